"""What is written beside the replies, and how anything gets on a terminal without having power over it.

Rank 5: imports nothing of the package; rich where something is drawn.

Replies go to stdout, everything else to stderr. On a terminal, what a model or a user wrote is made harmless first: a
model can be talked into printing escape sequences. Nothing here fails because nobody reads stderr.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import Any, TextIO

_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_CLEAR_LINE = "\r\x1b[K"
_PATIENCE = 0.5  # seconds before progress is worth a line


def harmless(text: str) -> str:
    """Text without power over a terminal: control and direction characters become visible escapes."""
    return _UNSAFE.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)


def note(text: str) -> None:
    """Say something on stderr."""
    with beside():
        print(harmless(text), file=sys.stderr, flush=True)


def aside(text: str) -> None:
    """note() of what is no failure and nobody asked for: dim where that can be."""
    if not coloured(sys.stderr):
        note(prose(text))
        return
    with beside():
        print(f"{_DIM}{prose(harmless(text))}{_PLAIN}", file=sys.stderr, flush=True)


def prose(text: str) -> str:
    """Sentences for stderr: on a terminal, lines that are too long for it end between two words."""
    if not sys.stderr.isatty():
        return text
    how: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    return "\n".join(textwrap.fill(line, columns(), **how) for line in text.split("\n"))


def draw(renderable: Any) -> None:
    """Something that rich can draw, on stderr with colours."""
    from rich.console import Console

    console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False, width=columns())
    with console.capture() as drawn:  # rich itself ends the program where the reader has left
        console.print(renderable, soft_wrap=True)
    with beside():
        sys.stderr.write(drawn.get())
        sys.stderr.flush()


@contextlib.contextmanager
def beside() -> Iterator[None]:
    """What is said inside on stderr is given up where nobody reads it or its disk is full: the work goes on."""
    try:
        yield
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Let a stream that cannot be written swallow what it still holds and whatever comes: Python's exit writes it too,
    and would change the exit code for it."""
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


# ---- What a terminal can do ---------------------------------------------------------------------------------------


def is_dumb() -> bool:
    """Whether the terminal knows no escape sequences."""
    return os.environ.get("TERM", "dumb").lower() in ("", "dumb", "unknown")


def coloured(stream: TextIO) -> bool:
    """Whether colours may be written to it: a terminal that has them, and nobody who said NO_COLOR."""
    return stream.isatty() and not is_dumb() and not os.environ.get("NO_COLOR")


def columns() -> int:
    """How many columns a line of the terminal has."""
    return max(shutil.get_terminal_size().columns, 1)


def fitting(text: str, width: int) -> str:
    """As much of the beginning of a text as fits into so many columns: a character may take two of them, or none."""
    from rich.cells import get_character_cell_size

    if text.isascii():
        return text[:width]
    for index, character in enumerate(text):
        width -= get_character_cell_size(character)
        if width < 0:
            return text[:index]
    return text


class Progress:
    """A line on the terminal that says how far something is, and that goes away again."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._shown = False

    def show(self, text: str) -> None:
        """Write or renew the line. Not in the first half second; on a terminal that cannot erase, once and for good."""
        if not sys.stderr.isatty() or time.monotonic() - self._began < _PATIENCE:
            return
        if is_dumb():
            if not self._shown:
                note(text)
        else:
            with beside():
                sys.stderr.write(_CLEAR_LINE + fitting(harmless(text), columns() - 1))
                sys.stderr.flush()
        self._shown = True

    def clear(self) -> None:
        """Take the line away."""
        if self._shown and not is_dumb():
            with beside():
                sys.stderr.write(_CLEAR_LINE)
                sys.stderr.flush()
            self._shown = False
