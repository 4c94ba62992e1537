"""`make chat`, as a new user types it: on a model that is here, it needs no network and prints the replies alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_layers import ROOT

NOWHERE = "http://127.0.0.1:9"  # nobody listens there
PROXIES = {name: NOWHERE for word in ("http_proxy", "https_proxy", "all_proxy") for name in (word, word.upper())}
# Of an outer `make` and of sanitizers. CC, CFLAGS and USE_BLAS stay: with others the package would be built again.
FOREIGN = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "PYTHONPATH", "LD_PRELOAD"}
LINES = "What is the capital of France?\nAnd Germany?\n"
REPLIES = "The capital of France is Paris.\nThe capital of Germany is Berlin.\n"


def why_not() -> str | None:
    """What is missing for `make` to do what it does for a user; None if nothing is."""
    if shutil.which("make") is None:
        return "there is no make"
    if not (ROOT / "Makefile").is_file():
        return f"{ROOT} is not a source tree: it has no Makefile"
    if Path(sys.prefix).resolve() != (ROOT / ".venv").resolve():
        return f"the tests run in {sys.prefix}, and `make` works in the tree's own .venv"
    return None


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file that lies in a folder."""
    found = {path: path.stat() for path in folder.iterdir() if path.is_file()}
    return {path.name: (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


@pytest.mark.packaging
def test_make_chat_answers_a_pipe_without_the_network(smollm2: str) -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    cache = Path(smollm2).parent
    before = state_of(cache)
    environment = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    environment.update(PROXIES, PIP_NO_INDEX="1")  # pip fails at once should it want anything
    done = subprocess.run(
        ["make", "chat", 'ARGS=--system "You are a helpful assistant."'],
        cwd=ROOT,
        env=environment,
        input=LINES,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.stdout, done.returncode) == (REPLIES, 0), done.stderr[-2000:]
    assert "smollm2 is here already" in done.stderr
    assert "Chat mode (ChatML)" in done.stderr
    assert state_of(cache) == before
