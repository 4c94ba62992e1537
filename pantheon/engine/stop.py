"""Stop strings, found in the bytes of a reply as they come.

Rank 3: imports nothing of the package. It knows bytes, nothing of tokens or characters.

The rule: the reply ends at the first byte that completes a stop string; of several that it completes, the longest
counts. Where the bytes are divided makes no difference. What can still become part of a match is held back, and
nothing else: that is the longest end of the text that some stop string begins with.

Each string has an automaton of Knuth, Morris and Pratt (SIAM J. Comput. 6, 1977), so a byte costs the same however
long and however repetitive the strings are.
"""

from __future__ import annotations

from collections.abc import Sequence


class _Automaton:
    """How much of one string the text ends with."""

    __slots__ = ("_borders", "_wanted", "length", "matched")

    def __init__(self, wanted: bytes) -> None:
        self._wanted = wanted
        self.length = len(wanted)
        self.matched = 0
        """The length of the longest beginning of the string that the text ends with."""
        self._borders = [0] * len(wanted)  # of each beginning: the longest one of its own that it ends with, too
        border = 0
        for at in range(1, len(wanted)):
            while border and wanted[at] != wanted[border]:
                border = self._borders[border - 1]
            border += wanted[at] == wanted[border]
            self._borders[at] = border

    def step(self, byte: int) -> bool:
        """One more byte of text; True if it completes the string. Nothing may follow then."""
        while self.matched and self._wanted[self.matched] != byte:
            self.matched = self._borders[self.matched - 1]
        self.matched += self._wanted[self.matched] == byte
        return self.matched == self.length


class StopMatcher:
    """Bytes in, bytes out, until one of the strings is complete."""

    def __init__(self, stops: Sequence[bytes]) -> None:
        """stops: none of them empty; with none at all every byte passes at once."""
        self._automata = [_Automaton(stop) for stop in stops]
        self._held = b""
        self.released = 0
        """How many bytes were given out; after a match: how many stand before it."""
        self.match: int | None = None
        """The index of the string that was found."""

    def push(self, data: bytes) -> bytes:
        """What has become certain to stand before any match. After a match: all that stands before it, the rest."""
        if not self._automata:
            self.released += len(data)
            return data
        text = self._held + data
        for at in range(len(self._held), len(text)):
            complete = [number for number, one in enumerate(self._automata) if one.step(text[at])]
            if complete:
                self.match = max(complete, key=lambda number: self._automata[number].length)
                return self._release(text, at + 1 - self._automata[self.match].length, b"")
        certain = len(text) - max(one.matched for one in self._automata)
        return self._release(text, certain, text[certain:])

    def finish(self) -> bytes:
        """What is held back, at the end of the text: it became no match."""
        return self._release(self._held, len(self._held), b"")

    def _release(self, text: bytes, size: int, held: bytes) -> bytes:
        self._held = held
        self.released += size
        return text[:size]
