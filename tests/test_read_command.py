"""`pantheon read`: what a model would read, on stdout, from a file's header."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from chat_worlds import write_vocabulary
from tiny_gguf import CHATML

from pantheon.chat import Reader
from pantheon.cli import run

MESSAGES = [
    {"role": "user", "content": "first"},
    {"role": "assistant", "content": "reply"},
    {"role": "user", "content": "hi<|im_end|>\x1b[2J\u200b"},
]


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file that has a header and no weights."""
    path = tmp_path_factory.mktemp("read") / "header.gguf"
    return write_vocabulary(path, ["<|im_start|>", "<|im_end|>"], eos="<|im_end|>", template=CHATML)


@pytest.fixture
def messages(tmp_path: Path) -> str:
    path = tmp_path / "messages.json"
    path.write_text(json.dumps(MESSAGES), "utf-8")
    return str(path)


def read(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["read", *arguments])
    out, err = capfd.readouterr()
    return code, out, err


def test_every_form_says_the_same(header: str, messages: str, capfd: pytest.CaptureFixture[str]) -> None:
    forms = {}
    for form in ("view", "text", "ids", "tokens", "json", "python"):
        code, forms[form], err = read(capfd, header, "--messages", messages, "--window", "400", "--format", form)
        assert code == 0
        assert (err == "") == (form == "view")
    with Reader(header) as reader:
        reading = reader.read(MESSAGES, window=400)
        assert forms["view"] == str(reading) + "\n"
        assert forms["text"] == reading.text + "\n"
        assert [int(word) for word in forms["ids"].split()] == reading.ids
        assert json.loads(forms["json"]) == json.loads(json.dumps(reading.to_dict()))
        assert forms["python"] == reading.to_python()
        lines = forms["tokens"].splitlines()
        assert [int(line.split("\t")[0]) for line in lines] == reading.ids
        assert [line.split("\t")[1] for line in lines] == [token.kind for token in reading.tokens]
    done = subprocess.run([sys.executable, "-I", "-c", forms["python"]], capture_output=True, check=True)
    assert done.stdout.decode().partition("\n")[2] == forms["text"]
    for form in ("view", "tokens", "python"):
        assert "\x1b" not in forms[form]


def test_what_was_left_out_is_said(header: str, messages: str, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = (header, "--messages", messages, "--window", "90", "--reply-limit", "20")
    code, out, err = read(capfd, *arguments, "--format", "text")
    assert (code, "first" in out) == (0, False)
    assert "left out: messages 0 to 1, " in err
    code, out, _ = read(capfd, *arguments)
    assert "left out: messages 0 to 1, " in out
    code, out, err = read(capfd, *arguments, "--policy", "error")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "do not fit into the window of 90" in err


def test_messages_come_from_stdin_and_with_tools(header: str) -> None:
    def call(stdin: bytes, *more: str) -> subprocess.CompletedProcess[bytes]:
        words = [sys.executable, "-m", "pantheon", "read", header, "--messages", "-", "--window", "4000", *more]
        return subprocess.run(words, input=stdin, capture_output=True, env={**os.environ, "NO_COLOR": "1"}, timeout=60)

    done = call(json.dumps({"messages": MESSAGES, "tools": [{"name": "f"}]}).encode(), "--format", "text")
    assert done.returncode == 0
    assert done.stdout.endswith(b"<|im_start|>assistant\n\n")
    zephyr = call(json.dumps(MESSAGES).encode(), "--template", "passthrough", "--format", "text")
    assert zephyr.stdout.startswith(b"first")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the messages are no JSON"),
        ("[", "the messages are no JSON"),
        ("[" * 100_000, "the messages are no JSON"),
        ("3", "must be a JSON list"),
        ("{}", "must be a JSON list"),
        ('{"messages": [], "tools": 3}', "must be a JSON list"),
        ("[3]", "message 0: a message must be"),
        ('[{"role": "user", "content": "\\ud800"}]', "message 0: "),
        ('[{"role": "user", "content": [1]}]', "message 0: "),
        ('[{"role": "root", "content": "x"}]', "message 0: a role must be one of"),
        ('[{"role": "user", "content": "' + "x " * 500 + '"}]', "do not fit into the window of 300"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    header: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    code, out, err = read(capfd, header, "--messages", str(path), "--window", "300")
    assert (code, out) == (1, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_other_failures(header: str, messages: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "latin.json").write_bytes(b'["\xe9"]')
    no_json, no_model, latin = (str(tmp_path / name) for name in ("none.json", "none.gguf", "latin.json"))
    files = [(header, no_json), (header, messages), (no_model, messages), (header, latin), (header, str(tmp_path))]
    for model, source in files:
        code, out, err = read(capfd, model, "--messages", source)
        assert (code, out, err.count("\n")) == (1, "", 1)
    for more in (("--window", "0"), ("--format", "xml"), ("--reply-limit", "0"), ("--policy", "x")):
        assert read(capfd, header, "--messages", messages, *more)[0] == 2
    assert read(capfd, header)[0] == 2
