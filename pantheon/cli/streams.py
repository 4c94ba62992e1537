"""What commands read, and how they draw.

Rank 6: imports the catalogue; rich where something is drawn.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pantheon import catalog
from pantheon.errors import ArgumentError

if TYPE_CHECKING:
    from rich.console import Console


def read_file(path: str) -> bytes:
    """A file that the command line names; ArgumentError."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{path!r} cannot be read: {error}") from None


def read_text(text: str | None) -> bytes:
    """An argument as bytes (also where it is no UTF-8), or stdin to its end."""
    if text is not None and text != "-":
        return os.fsencode(text)
    return sys.stdin.buffer.read() if sys.stdin is not None else b""


def megabytes(size: int) -> str:
    """A number of bytes for people."""
    return f"{size / 1e6:,.0f} MB" if size >= 10_000_000 else f"{size / 1e6:,.1f} MB"


def visible(piece: bytes) -> str:
    """A token's text in quotes, with every byte that is no printable character escaped."""
    return f'"{catalog.printable(piece.decode("utf-8", "backslashreplace"))}"'


@contextlib.contextmanager
def drawing() -> Iterator[Console]:
    """Something to draw tables on. They are written here: rich itself ends the program where the reader has left."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False, markup=False, emoji=False)
    with console.capture() as drawn:
        yield console
    sys.stdout.write(drawn.get())
    sys.stdout.flush()
