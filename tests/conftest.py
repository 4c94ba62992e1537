"""Fixtures of all tests: a tiny model, the real one, the instruction sets of this machine; and no network."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Before numpy is imported: the oracles multiply small matrices, where a second thread of its library only waits, and
# burns six times the time when the machine has other work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a random model with SmolLM2's chat template and control tokens: 2 layers, 512 tokens, context 256."""
    from tiny_gguf import write_model

    return write_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def smollm2() -> str:
    """Path of SmolLM2-135M-Instruct in Q8_0 in the user's cache folder; the first time it is pulled there."""
    from pantheon import catalog
    from pantheon.errors import NoModelError

    try:
        path = catalog.resolve("smollm2")
    except NoModelError:
        path = catalog.pull("smollm2")
    return os.fspath(path)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Any]:
    """Opens pseudo-terminals: call it with the command line; see pseudo_terminal.py."""
    from pseudo_terminal import Terminal

    opened: list[Terminal] = []

    def open_terminal(*arguments: str, **options: Any) -> Terminal:
        opened.append(Terminal(*arguments, home=tmp_path, **options))
        return opened[-1]

    yield open_terminal
    for each in opened:
        each.child.close(force=True)


def pytest_configure() -> None:
    """What the user's shell sets for the package must not change what is tested; the cache folder may stay theirs."""
    for name in [name for name in os.environ if name.startswith("PANTHEON_") and name != "PANTHEON_HOME"]:
        del os.environ[name]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell started this in the background


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with an argument `isa` runs once for each instruction set that this machine can run, best first."""
    if "isa" in metafunc.fixturenames:
        from pantheon._core import ffi, lib

        names = bytes(ffi.string(lib.pn_isa_available())).decode("ascii").split()
        metafunc.parametrize("isa", names, scope="session")


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """Tests may talk to this machine only (subprocesses that fetch the real model or packages are their own affair)."""
    connect = socket.socket.connect

    def checked(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise OSError(f"a test tried to reach {address!r}; tests must not need the network")
        connect(self, address)

    socket.socket.connect = checked  # type: ignore[method-assign, assignment]
    yield
    socket.socket.connect = connect  # type: ignore[method-assign]
