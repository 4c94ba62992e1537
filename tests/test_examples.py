"""The programs in examples/ are built as their comments say, run on the real model, and say the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tiny_gguf import write_model

import pantheon

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(not (ROOT / "examples").is_dir(), reason="the sources are not here")
REPLIES = b"The capital of France is Paris.\nThe capital of Germany is Berlin.\n"


@pytest.fixture(scope="module")
def chat_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """examples/chat.c, built with the whole core by one call of the compiler."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    if shutil.which(compiler[0]) is None:
        compiler = ["cc"]
    program = tmp_path_factory.mktemp("example") / "chat"
    sources = [ROOT / "examples" / "chat.c", *(ROOT / "csrc").glob("*.c"), *(ROOT / "csrc" / "kernels").glob("*.c")]
    flags = "-std=c11 -D_GNU_SOURCE -O2 -ffp-contract=off -pthread -Wall -Wextra -Werror".split()
    command = [*compiler, *flags, f"-I{ROOT / 'csrc'}", *map(str, sources), "-lm", "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return program


def run(*command: str | Path) -> tuple[int, bytes, bytes]:
    """(exit status, standard output, standard error)."""
    done = subprocess.run([*map(str, command)], capture_output=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_the_c_program_holds_the_conversation(chat_program: Path, smollm2: str) -> None:
    assert run(chat_program, smollm2) == (0, REPLIES, b"")


def test_the_python_program_holds_the_same_conversation(smollm2: str) -> None:
    assert run(sys.executable, ROOT / "examples" / "chat.py", smollm2) == (0, REPLIES, b"")


def test_the_c_program_goes_on_after_a_reply_that_was_cut_as_the_package_does(
    chat_program: Path, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "tiny.gguf", n_ctx=1024)
    messages = ["Tell me about it", "more", "and more"]
    lines = b""
    with pantheon.load(path) as model:
        chat = model.chat(system="You are a helpful assistant.", reply_limit=128)
        replies = [chat.send(message) for message in messages]
        for reply in replies:
            lines += b"".join(model.tokenizer.piece(token) for token in reply.tokens) + b"\n"
    assert "length" in {reply.finish_reason for reply in replies[:-1]}
    assert run(chat_program, path, *messages) == (0, lines, b"")


def test_the_c_program_says_what_is_wrong(chat_program: Path, tmp_path: Path) -> None:
    assert run(chat_program)[0] == 2
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    status, output, error = run(chat_program, broken)
    assert (status, output) == (1, b"")
    assert error.startswith(b"load: ")
