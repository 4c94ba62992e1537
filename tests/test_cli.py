"""The command line: streams, exit codes, and the words it says."""

from __future__ import annotations

import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import gguf
import pytest

import pantheon
from pantheon.cli import run

PANTHEON = [sys.executable, "-m", "pantheon"]


def call(*arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*PANTHEON, *arguments], input=stdin, capture_output=True, env={**os.environ, **(env or {})}, timeout=120
    )


# ---- Conversations over a pipe


def test_the_seeds_call_holds_the_seeds_conversation(smollm2: str) -> None:
    done = call(
        "--model", smollm2, "--chat", "--system", "You are a helpful assistant.", "--max-tokens", "128",
        stdin=b"What is the capital of France?\nAnd Germany?\n/quit\nnever read\n",
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout == b"The capital of France is Paris.\nThe capital of Germany is Berlin.\n"
    assert done.stderr == b"Chat mode (ChatML). Type /quit to exit, /clear to reset.\n"


def test_clear_over_a_pipe_makes_the_next_reply_a_first_one(smollm2: str) -> None:
    question = b"What is the capital of France?\n"
    once = call("chat", smollm2, "--max-tokens", "12", stdin=question).stdout
    twice = call("chat", smollm2, "--max-tokens", "12", stdin=question + b"/clear\n" + question).stdout
    assert twice == once + once


def test_each_line_is_a_message_and_empty_ones_are_skipped(tiny_model: str) -> None:
    done = call("chat", tiny_model, "--max-tokens", "2", stdin=b"a\n\n   \r\nb\r\nlast without newline")
    assert done.returncode == 0
    assert len(done.stdout.split(b"\n")) >= 4  # three replies, each closed by a newline
    silent = call("chat", tiny_model, stdin=b"")
    assert (silent.returncode, silent.stdout) == (0, b"")


def test_a_line_that_is_no_utf8_is_read_as_far_as_it_goes_and_said(tiny_model: str) -> None:
    done = call("chat", tiny_model, "--max-tokens", "1", stdin=b"fine\n\xff\xfe\n")
    assert done.returncode == 0
    assert b"line 2 is not UTF-8" in done.stderr


def test_a_message_that_does_not_fit_fails_with_the_numbers(tiny_model: str) -> None:
    done = call("chat", tiny_model, "--window", "40", "--max-tokens", "5", stdin=b"word " * 100 + b"\n")
    assert done.returncode == 1
    assert done.stdout == b""
    assert b"window of 40" in done.stderr
    assert done.stderr.count(b"\n") == 2  # banner and reason


def test_sampling_flags_reach_the_sampler(tiny_model: str) -> None:
    flags = ["--temperature", "5", "--max-tokens", "10"]
    replies = {call("chat", tiny_model, *flags, "--seed", seed, stdin=b"a\n").stdout for seed in ("1", "2", "3")}
    assert len(replies) == 3
    again = {call("chat", tiny_model, *flags, "--seed", "1", stdin=b"a\n").stdout for _ in range(2)}
    assert len(again) == 1
    assert again < replies


def test_stop_texts_end_replies_and_completions(smollm2: str) -> None:
    question = b"What is the capital of France?\n"
    system = ("--system", "You are a helpful assistant.")
    for command in (["chat", smollm2], ["--chat", "--model", smollm2]):
        done = call(*command, *system, "--stop", "never said", "--stop", "ance", stdin=question)
        assert done.stdout == b"The capital of Fr\n"
    for arguments in (["complete", smollm2, "1, 2, 3,"], ["--model", smollm2, "--prompt", "1, 2, 3,"]):
        assert call(*arguments, "--stop", ", 7", "--stop", "8").stdout == b" 4, 5, 6\n"
        assert call(*arguments, "--stop", "\\x36", "--max-tokens", "9").stdout == b" 4, 5, 6,\n"  # no escape for a 6


def test_speculate_changes_no_word(tiny_model: str) -> None:
    flags = ("--speculate", "--no-speculate")
    for how in (["--temperature", "0.5", "--seed", "3"], []):
        arguments = [tiny_model, *how, "--max-tokens", "40"]
        chats = [call("chat", *arguments, flag, stdin=b"a b a b\na b a b\n") for flag in flags]
        chats.append(call("--chat", "--speculate", "--model", *arguments, stdin=b"a b a b\na b a b\n"))
        texts = [call("complete", *arguments, "a b a b a b", flag) for flag in flags]
        texts.append(call("--prompt", "a b a b a b", "--speculate", "--model", *arguments))
        assert len({result.stdout for result in texts}) == 1
        assert len({result.stdout for result in chats}) == 1
        assert {result.returncode for result in (*chats, *texts)} == {0}


# ---- Completion


def test_completion_prints_the_continuation_alone(smollm2: str) -> None:
    by_flag = call("--model", smollm2, "--prompt", "The capital of France is", "--max-tokens", "5")
    by_command = call("complete", smollm2, "The capital of France is", "--max-tokens", "5")
    by_stdin = call("complete", smollm2, "--max-tokens", "5", stdin=b"The capital of France is")
    with pantheon.load(smollm2) as model:
        wanted = model.generate("The capital of France is", max_tokens=5).text.encode() + b"\n"
    assert by_flag.stdout == by_command.stdout == by_stdin.stdout == wanted
    assert by_flag.stderr == b""


# ---- Wrong usage and failures


@pytest.mark.parametrize(
    "arguments",
    [
        ["--nonsense"], ["nonsense"], ["--chat"], ["--model", "x"], ["--model", "x", "--chat", "--prompt", "y"],
        ["--model", "x", "--prompt", "y", "--system", "z"], ["chat", "x", "--max-tokens", "0"],
        ["chat", "x", "--temperature", "-1"], ["chat", "x", "--top-p", "0"], ["chat", "x", "--temperature", "nan"],
        ["chat", "x", "--stop", ""], ["complete", "x", "y", "--stop", "\udcff"], ["--model", "x", "--stop", "y"],
        ["chat", "x", "--threads", "0"], ["--model", "x", "chat"], ["quantize", "a", "b", "--type", "q9"], ["rm"],
    ],
)  # fmt: skip
def test_wrong_usage_is_2_and_says_what_is_wrong(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Error" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["chat", "/nonexistent/x.gguf"], "/nonexistent/x.gguf"),
        (["--model", "smolm2", "--chat"], "smollm2"),
        (["info", "/"], "/"),
        (["rm", "nothing"], "pantheon models"),
        (["rm", "../x"], "pantheon models"),
        (["pull", "nothing"], "smollm2"),
        (["chat", "smollm2"], "pantheon pull smollm2"),
        (["chat", "hf:a"], "hf:owner/repo"),
        (["quantize", "/nonexistent/a.gguf", "/nonexistent/b.gguf"], "/nonexistent/a.gguf"),
    ],
)
def test_a_failure_is_1_and_one_line(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("PANTHEON_HOME", str(tmp_path))
    assert run(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err
    assert "Traceback" not in err


def test_without_anything_it_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    out, _ = capsys.readouterr()
    for command in ("chat", "complete", "pull", "models", "rm", "info", "tokenize", "quantize"):
        assert f"  {command}" in out
    assert run(["--version"]) == 0
    assert pantheon.__version__ in capsys.readouterr().out


def test_an_unusable_instruction_set_is_named(tiny_model: str) -> None:
    done = call("chat", tiny_model, env={"PANTHEON_ISA": "mmx"})
    assert done.returncode == 1
    assert b"PANTHEON_ISA='mmx'" in done.stderr


@pytest.mark.timing
def test_ctrl_c_over_a_pipe_is_130(smollm2: str) -> None:
    process = subprocess.Popen(
        [*PANTHEON, "chat", smollm2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(b"word " * 6000 + b"\n")
    process.stdin.flush()
    assert b"Chat mode" in process.stderr.readline()
    time.sleep(0.5)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err == b"interrupted\n"
    assert time.monotonic() - started < 5


INTERRUPTED_START = """
import importlib.abc, os, signal, sys
import pantheon_main

class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell has it ignored
sys.meta_path.insert(0, Interrupt())
sys.argv[:] = ["pantheon", *sys.argv[1:]]
pantheon_main.main()
print("not reached")
"""


@pytest.mark.parametrize(
    "module", ["pantheon", "pantheon._native.base", "pantheon.engine.model", "pantheon.cli", "click"]
)
def test_ctrl_c_while_it_is_still_being_imported_is_130_without_a_word(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_START, module], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_the_installed_program_is_the_one_that_covers_its_imports() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="pantheon")
    assert script.value == "pantheon_main:main"


@pytest.mark.parametrize(
    "arguments",
    [["models"], ["--help"], ["info", "MODEL"], ["tokenize", "MODEL", "a"],
     ["bench", "MODEL", *"--threads 1 --prompt 8 --decode 2 --runs 1 --batch 1".split()]],
)  # fmt: skip
def test_where_the_reader_has_left_every_command_is_done(arguments: list[str], tiny_model: str) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as stdout:
        done = subprocess.run(
            [*PANTHEON, *(tiny_model if word == "MODEL" else word for word in arguments)],
            stdout=stdout, stderr=subprocess.PIPE, timeout=300,
        )  # fmt: skip
    assert done.returncode == 0
    assert b"rror" not in done.stderr


def test_wrong_usage_is_2_where_nobody_reads_why() -> None:
    with open("/dev/full", "wb") as stderr:
        assert subprocess.run([*PANTHEON, "--nonsense"], stderr=stderr, timeout=60).returncode == 2


def test_a_reader_that_leaves_ends_it_quietly(tiny_model: str) -> None:
    process = subprocess.Popen(
        [*PANTHEON, "chat", tiny_model, "--max-tokens", "50"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stdin.write(b"a\n" * 3)
    process.stdin.close()
    with process.stderr:
        err = process.stderr.read()
    assert process.wait(60) == 0
    for word in (b"Traceback", b"Exception", b"rror"):
        assert word not in err


def test_closed_streams_are_no_reason_to_crash(tiny_model: str) -> None:
    script = f"exec {sys.executable} -m pantheon chat {tiny_model} --max-tokens 2 <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", script], timeout=60).returncode == 0


# ---- Looking at models


def test_info_says_what_it_is_and_how_it_runs(tiny_model: str) -> None:
    done = call("info", tiny_model, "--threads", "1")
    lines = dict(line.split(maxsplit=1) for line in done.stdout.decode().splitlines())
    assert done.returncode == 0
    assert lines["architecture"] == "llama"
    assert lines["threads"].startswith("1 (")
    assert lines["promise"].startswith("same bits off" if pantheon._native.has_blas() else "same bits on")
    assert {"isa", "blas", "context", "weights", "parameters", "vocabulary"} <= set(lines)
    kinds = Counter(tensor.tensor_type.name for tensor in gguf.GGUFReader(tiny_model).tensors)
    assert f"element types   {', '.join(f'{n} {name}' for name, n in kinds.most_common())}" in done.stdout.decode()


def test_tokenize_shows_ids_and_text(tiny_model: str) -> None:
    tokenizer = pantheon.Tokenizer.from_file(tiny_model)
    text = "hi<|im_end|>\n\x1b"
    done = call("tokenize", tiny_model, text)
    rows = [line.split("\t") for line in done.stdout.decode().splitlines()]
    assert [int(row[0]) for row in rows] == tokenizer.encode(text).tolist()
    assert "\x1b" not in done.stdout.decode()
    special = call("tokenize", tiny_model, "--special", "--ids", stdin=text.encode())
    assert special.stdout.split() == [str(i).encode() for i in tokenizer.encode(text, special=True).tolist()]
    odd = call("tokenize", tiny_model, "--ids", stdin=b"\xff\x00")
    assert odd.stdout.split() == [str(i).encode() for i in tokenizer.encode(b"\xff\x00").tolist()]


def test_quantize_writes_a_file_that_others_read(tiny_model: str, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    done = call("quantize", tiny_model, str(target), "--type", "f16")
    assert done.returncode == 0
    assert done.stdout == b""
    kinds = {tensor.tensor_type.name for tensor in gguf.GGUFReader(target).tensors if len(tensor.shape) > 1}
    assert kinds == {"F16"}
    with pantheon.load(target) as model:
        assert model.n_vocab > 0
    before = target.read_bytes()
    refused = call("quantize", tiny_model, str(target), "--type", "Q8_0")
    assert refused.returncode == 1
    assert str(target) in refused.stderr.decode()
    assert "--force" in refused.stderr.decode()
    assert target.read_bytes() == before
    assert call("quantize", tiny_model, str(target), "--type", "Q8_0", "--force").returncode == 0
    assert target.read_bytes() != before


def test_quantize_says_what_it_wrote_and_what_could_not_be_as_asked(tiny_model: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
    floats = str(tmp_path / "floats.gguf")
    assert call("quantize", tiny_model, floats, "--type", "f16").returncode == 0
    done = call("quantize", floats, str(first), "--type", "q4_k")
    tensors = gguf.GGUFReader(first).tensors
    kinds = Counter(tensor.tensor_type.name for tensor in tensors)
    short = [t for t in tensors if len(t.shape) > 1 and t.tensor_type.name != "F32" and t.shape[0] % 256]
    assert short
    assert f"MB, {', '.join(f'{n} {name}' for name, n in kinds.most_common())}\n" in done.stderr.decode()
    assert re.search(
        r"instead of q4_k, since their rows are no multiple of 256 \(such as \S+, \d+\)", done.stderr.decode()
    )
    assert b"quantized already" not in done.stderr
    again = call("quantize", str(first), str(second), "--type", "q8_0")
    n = sum(a.tensor_type.name.startswith("Q") and a.tensor_type.name != "Q8_0" for a in tensors)
    assert f"warning: {n} tensors were quantized already" in again.stderr.decode()
    assert b"instead of" not in again.stderr
    assert b"quantized already" not in call("quantize", str(first), str(second), "--type", "f16", "--force").stderr


TERMINATED = """
import contextlib, os, signal, sys
from pantheon import cli
from pantheon.cli import models

@contextlib.contextmanager
def progress(note):
    def report(phase, fraction):
        print(len(os.listdir(sys.argv[2])), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
    yield report

models.progress = progress
sys.exit(cli.run(["quantize", sys.argv[1], sys.argv[2] + "/out.gguf"]))
"""


def test_sigterm_during_a_conversion_leaves_nothing_behind(tiny_model: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TERMINATED, tiny_model, str(tmp_path)], capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (143, b"1\n", b"terminated\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize(
    "arguments", [["--help"], ["models"], ["tokenize", "MODEL", "hi"], ["complete", "MODEL", "hi"]]
)
def test_a_full_disk_behind_stdout_is_named(arguments: list[str], tiny_model: str) -> None:
    words = [tiny_model if word == "MODEL" else word for word in arguments]
    with open("/dev/full", "wb") as stdout:
        done = subprocess.run([*PANTHEON, *words], stdout=stdout, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 1
    assert done.stderr.endswith(b"error: cannot write to stdout: No space left on device\n")
    assert b"Exception" not in done.stderr


@pytest.mark.parametrize(
    ("template", "words"),
    [("nofile.jinja", "there is no file 'nofile.jinja'"), ("/", "is a folder"), ("/dev/null", "is an empty file")],
)
def test_a_template_that_is_no_file_is_said_so(template: str, words: str, tiny_model: str) -> None:
    done = call("chat", tiny_model, "--template", template)
    assert done.returncode == 1
    assert words in done.stderr.decode()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder of Linux in which nothing can be made")
def test_where_nothing_can_be_stored_pull_says_so(tmp_path: Path) -> None:
    done = call("pull", env={"PANTHEON_HOME": "/proc"})
    assert done.returncode == 1
    assert b"nothing can be stored in /proc" in done.stderr
    assert b"full" not in done.stderr


def test_models_and_rm_look_after_the_cache_folder(tiny_model: str, tmp_path: Path) -> None:
    home = {"PANTHEON_HOME": str(tmp_path)}
    listed = call("models", env=home)
    assert b"smollm2" in listed.stdout
    assert b"not pulled" in listed.stdout
    (tmp_path / "mine.gguf").write_bytes(Path(tiny_model).read_bytes())
    assert b"mine.gguf" in call("models", env=home).stdout
    assert call("chat", "mine.gguf", "--max-tokens", "1", stdin=b"a\n", env=home).returncode == 0
    removed = call("rm", "mine.gguf", env=home)
    assert removed.returncode == 0
    assert list(tmp_path.iterdir()) == []
