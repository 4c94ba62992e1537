"""Markdown drawn as it comes, a block at a time.

Rank 5: rich where something is drawn.

A block ends with a blank line outside of a fence. So nothing that was drawn has to be taken back, however long the
reply and however small the window is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TextIO

from pantheon.repl.output import coloured, columns, harmless

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_FILLING = re.compile(r" +$", re.MULTILINE)


class MarkdownWriter:
    """Takes a reply in pieces and draws each block of it when it is whole."""

    def __init__(self, out: TextIO, before: Callable[[], object] = lambda: None) -> None:
        """before: called before something is written."""
        self._out = out
        self._before = before
        self._pending = ""
        """The last line, as far as it came."""
        self._lines: list[str] = []
        """The whole lines of the block that is not drawn yet."""
        self._fence = ""
        """What opened the fence that the block is in; empty outside of one."""

    def push(self, piece: str) -> None:
        """Take a piece, and draw what has become whole."""
        *whole, self._pending = (self._pending + piece).split("\n")
        for line in whole:
            self._take(line)

    def finish(self) -> None:
        """Draw the rest."""
        if self._pending:
            self._lines.append(self._pending)
        self._draw()
        self._pending, self._fence = "", ""

    def _take(self, line: str) -> None:
        self._lines.append(line)
        found = _FENCE.match(line)
        if self._fence:
            if found and found[1].startswith(self._fence) and not found[2].strip():
                self._fence = ""
                self._draw()
        elif found:
            self._fence = found[1]
        elif not line.strip():
            self._draw()

    def _draw(self) -> None:
        text = "\n".join(self._lines)
        self._lines = []
        if not text.strip():
            return
        self._before()
        from rich.console import Console
        from rich.markdown import Markdown

        plain = not coloured(self._out)
        console = Console(file=self._out, width=columns(), emoji=False, no_color=plain, force_terminal=not plain)
        with console.capture() as drawn:
            console.print(Markdown(harmless(text), hyperlinks=False))  # a hyperlink is an escape sequence of its own
        self._out.write(_FILLING.sub("", drawn.get()).rstrip() + "\n\n")
        self._out.flush()
