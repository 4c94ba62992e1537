"""Text that knows where each of its characters comes from: the chat template, or which message.

Rank 4: imports nothing of the package.

The one thing to know first: trust is carried, never inferred. A plain str is data as a whole. Only a `Traced` can hold
characters that count as the template's, and only because each was copied, by an operation in this file, from a
character that counted already. An operation that is not here (a filter, `encode`, anything that a later Python adds)
gives a plain str, so what it made is data: forgetting an operation can cost a control token, never forge one.

Every operation first lets `str` do its work. That result is what comes back, and the origins are laid over it only if
the pieces that they belong to join to exactly this result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any, SupportsIndex

DATA = 0
"""The caller's, or no longer known."""
TEMPLATE = 1
"""The template's own: its literals, the names of roles, the beginning and the end of a sequence."""
FIRST_SOURCE = 2
"""From here on the numbers are the renderer's: one for each text that it hands to a template."""

MAX_RUNS = 500_000  # of one text; taking it apart goes through all of them
Runs = tuple[tuple[int, int], ...]
"""(number of characters, source) of each stretch; neighbours may have the same source."""

_BRACES = re.compile(r"\{\{|\}\}|\{(\w*)\}")
_PERCENTS = re.compile(r"%[%sdi]")


class PiecesError(Exception):
    """A text would have more stretches of different origins than MAX_RUNS."""

    def __init__(self) -> None:
        super().__init__(f"a text takes turns between template and messages more than {MAX_RUNS} times")


class Traced(str):
    """A str with origins. It equals, sorts and hashes as its text does."""

    __slots__ = ("_runs",)
    _runs: Runs

    def __new__(cls, text: str = "", runs: Runs | None = None) -> Traced:
        """Without runs, or with runs of another length than the text, everything counts as data."""
        self = str.__new__(cls, text)
        if runs is None or sum(length for length, _ in runs) != len(text):
            runs = ((len(text), DATA),)
        self._runs = runs
        return self

    # ---- the whole, a part, one after the other

    def __str__(self) -> str:
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str.__str__(self),)

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        result = str.__getitem__(self, key)
        if not isinstance(key, slice):
            at = key.__index__()
            return cut(self, at + len(self) if at < 0 else at, 1)
        start, stop, step = key.indices(len(self))
        if step == 1:
            return cut(self, start, max(stop - start, 0))
        each = [source for length, source in self._runs for _ in range(length)][key]
        return _over(result, tuple((sum(1 for _ in group), source) for source, group in groupby(each)))

    def __iter__(self) -> Iterator[str]:
        at = 0
        for length, source in self._runs:
            runs = ((1, source),)  # one for all, since lists of characters are long
            for character in str.__getitem__(self, slice(at, at + length)):
                one = str.__new__(Traced, character)
                one._runs = runs
                yield one
            at += length

    def __add__(self, other: Any) -> Any:
        return NotImplemented if _is_foreign(other) else concat((self, other))

    def __radd__(self, other: Any) -> Any:
        return NotImplemented if _is_foreign(other) else concat((other, self))

    def __mul__(self, times: SupportsIndex) -> str:
        result = str.__mul__(self, times)
        count = max(times.__index__(), 0)
        if len(self._runs) == 1:
            return mark(result, self._runs[0][1])
        if count * len(self._runs) > MAX_RUNS:
            raise PiecesError
        return _over(result, self._runs * count)

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> str:
        return _reassembled(str.__mod__(self, values), lambda: _percent_parts(self, values))

    def join(self, items: Iterable[str], /) -> str:
        parts = list(items)
        str.join(self, parts)  # refuses what is no str
        return concat(_between(self, parts))

    # ---- parts of it

    def strip(self, characters: str | None = None, /) -> str:
        rest = cut(self, len(self) - len(str.lstrip(self, characters)), len(self))
        return cut(rest, 0, len(str.rstrip(rest, characters)))

    def lstrip(self, characters: str | None = None, /) -> str:
        return cut(self, len(self) - len(str.lstrip(self, characters)), len(self))

    def rstrip(self, characters: str | None = None, /) -> str:
        return cut(self, 0, len(str.rstrip(self, characters)))

    def removeprefix(self, prefix: str, /) -> str:
        return cut(self, len(self) - len(str.removeprefix(self, prefix)), len(self))

    def removesuffix(self, suffix: str, /) -> str:
        return cut(self, 0, len(str.removesuffix(self, suffix)))

    def partition(self, separator: str, /) -> tuple[str, str, str]:
        before, found, _ = str.partition(self, separator)
        return self._three(len(before), len(found))

    def rpartition(self, separator: str, /) -> tuple[str, str, str]:
        before, found, _ = str.rpartition(self, separator)
        return self._three(len(before), len(found))

    def _three(self, before: int, found: int) -> tuple[str, str, str]:
        return cut(self, 0, before), cut(self, before, found), cut(self, before + found, len(self))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        at, starts = 0, []
        pieces = str.split(self, sep, maxsplit)
        for piece in pieces:
            starts.append(str.find(self, piece, at) if sep is None else at)
            at = starts[-1] + len(piece) + len(sep or "")
        return self._pieces(pieces, starts)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        end, starts = len(self), []
        pieces = str.rsplit(self, sep, maxsplit)
        for piece in reversed(pieces):
            starts.append(str.rfind(self, piece, 0, end) if sep is None else end - len(piece))
            end = starts[-1] - len(sep or "")
        return self._pieces(pieces, starts[::-1])

    def splitlines(self, keepends: bool = False) -> list[str]:
        starts = [0, *accumulate(map(len, str.splitlines(self, True)))]
        return self._pieces(str.splitlines(self, keepends), starts[:-1])

    def _pieces(self, pieces: list[str], starts: list[int]) -> list[str]:
        """The pieces, which str cut out of this text at these places, with their origins."""
        walk = _Walk(self)
        parts = [walk.cut(max(at, 0), len(piece)) for piece, at in zip(pieces, starts, strict=True)]
        return [part if str.__eq__(part, piece) else piece for part, piece in zip(parts, pieces, strict=True)]

    # ---- another text of it

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        result = str.replace(self, old, new, count)
        return _reassembled(result, lambda: list(_between(new, self.split(old, count))) if old else None)

    def _recased(self, result: str) -> str:
        """The same characters in another case: no case of a character is shorter than it, so lengths tell."""
        source = only_source(self)
        if source is not None:
            return mark(result, source)
        return _over(result, self._runs)

    def upper(self) -> str:
        return self._recased(str.upper(self))

    def lower(self) -> str:
        return self._recased(str.lower(self))

    def capitalize(self) -> str:
        return self._recased(str.capitalize(self))

    def title(self) -> str:
        return self._recased(str.title(self))

    def swapcase(self) -> str:
        return self._recased(str.swapcase(self))


# ---- Any texts (functions, since a template can reach the methods of a text) ---------------------------------------


def mark(text: str, source: int) -> Traced:
    """A text whose characters all have one source."""
    return Traced(str.__str__(text), ((len(text), source),))


def traced(text: str) -> Traced:
    """Any text with the origins that it has."""
    return text if type(text) is Traced else Traced(str.__str__(text), runs_of(text))


def cut(text: Traced, start: int, length: int) -> Traced:
    """The characters from `start` on."""
    return _Walk(text).cut(start, length)


def runs_of(text: str) -> Runs:
    """The origins of any text, in order."""
    runs: Runs | None = getattr(text, "_runs", None)
    return ((len(text), DATA),) if runs is None else runs


def concat(parts: Iterable[str]) -> Traced:
    """One text after the other, each character with its origin."""
    texts: list[str] = []
    runs: list[tuple[int, int]] = []
    for part in parts:
        texts.append(part)
        for length, source in runs_of(part):
            if runs and runs[-1][1] == source:
                runs[-1] = (runs[-1][0] + length, source)
            elif length:
                runs.append((length, source))
        if len(runs) > MAX_RUNS:
            raise PiecesError
    return Traced("".join(texts), tuple(runs))


def only_source(text: str) -> int | None:
    """The source that all characters share, or None."""
    sources = {source for length, source in runs_of(text) if length}
    return sources.pop() if len(sources) == 1 else None


def sources_in(value: Any) -> set[int]:
    """The sources of all texts in lists and mappings, keys included. Not for values that hold themselves."""
    if isinstance(value, str):
        return {source for length, source in runs_of(value) if length}
    if isinstance(value, Mapping):
        return set().union(*(sources_in(part) for pair in value.items() for part in pair))
    if isinstance(value, (list, tuple)):
        return set().union(*map(sources_in, value))
    return set()


def written_from(result: str, value: Any) -> str:
    """A text that was computed from `value`, such as its JSON: it belongs to the one message that all texts in it come
    from, if they do. It is never the template's."""
    sources = sources_in(value)
    source = sources.pop() if len(sources) == 1 else DATA
    return str.__str__(result) if source in (DATA, TEMPLATE) else mark(result, source)


def formatted(form: str, args: Sequence[Any], named: Mapping[str, Any], result: str) -> str:
    """`result`, which str.format made, with origins if the fields are plain ones: {}, {0}, {name}."""
    return _reassembled(str.__str__(result), lambda: _brace_parts(form, args, named))


# ---- Inside -------------------------------------------------------------------------------------------------------


class _Walk:
    """Many parts of one text in rising order: one pass over its origins in all, since a template may make 100,000 of
    each."""

    __slots__ = ("_at", "_next", "_runs", "_text")

    def __init__(self, text: Traced) -> None:
        self._text, self._runs = text, runs_of(text)
        self._next = self._at = 0  # the first stretch that is not over yet, and where it begins

    def cut(self, start: int, length: int) -> Traced:
        """The characters from `start` on, which is not before the end of the last part."""
        end = start + length
        while self._next < len(self._runs) and self._at + self._runs[self._next][0] <= start:
            self._at += self._runs[self._next][0]
            self._next += 1
        runs: list[tuple[int, int]] = []
        number, at = self._next, self._at
        while number < len(self._runs) and at < end:
            size, source = self._runs[number]
            low, high = max(at, start), min(at + size, end)
            if low < high:
                runs.append((high - low, source))
            at += size
            number += 1
        return Traced(str.__getitem__(self._text, slice(start, end)), tuple(runs))


def _is_foreign(other: Any) -> bool:
    """Whether adding it is not ours: no text, or a text with rules of its own (Markup escapes what it is added to)."""
    return not isinstance(other, str) or hasattr(other, "__html__")


def _over(result: str, runs: Runs) -> str:
    return Traced(result, runs)


def _reassembled(result: str, parts: Callable[[], list[str] | None]) -> str:
    """`result` with the origins of the parts, if they join to it."""
    pieces = parts()
    if pieces is None:
        return result
    joined = concat(pieces)
    return joined if str.__eq__(joined, result) else result


def _between(separator: str, parts: Sequence[str]) -> Iterator[str]:
    for number, part in enumerate(parts):
        if number:
            yield separator
        yield part


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _percent_parts(form: Traced, values: Any) -> list[str] | None:
    rest = list(values)[::-1] if isinstance(values, tuple) else [values]
    parts: list[str] = []
    at, walk = 0, _Walk(form)
    for match in _PERCENTS.finditer(form):
        parts.append(walk.cut(at, match.start() - at))
        if "%" in parts[-1]:  # a directive with a width or a name
            return None
        at = match.end()
        if match.group() == "%%":
            parts.append(walk.cut(at - 1, 1))
        elif not rest:
            return None
        else:
            parts.append(_text(rest.pop()))
    return None if "%" in cut(form, at, len(form)) else [*parts, cut(form, at, len(form))]


def _brace_parts(form: str, args: Sequence[Any], named: Mapping[str, Any]) -> list[str] | None:
    if not isinstance(form, Traced):
        return None
    parts: list[str] = []
    at = used = 0
    walk = _Walk(form)
    for match in _BRACES.finditer(form):
        parts.append(walk.cut(at, match.start() - at))
        if set("{}") & set(parts[-1]):  # a field with a format of its own
            return None
        at = match.end()
        field = match.group(1)
        if field is None:
            parts.append(walk.cut(at - 1, 1))
        elif field and not (field.isascii() and field.isdigit()):
            parts.append(_text(named.get(field, "")))
        else:
            number = int(field) if field else used
            used += 1
            if number >= len(args):
                return None
            parts.append(_text(args[number]))
    return None if set("{}") & set(cut(form, at, len(form))) else [*parts, cut(form, at, len(form))]
