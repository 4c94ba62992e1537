"""What a template may spend: steps, time, bytes; and what each operation could cost, reckoned before it is done.

Rank 4: imports the origins of text.

The one thing to know first: containers share what they hold, so a small list can be a giant text. Every list that a
template makes is therefore weighed as the text that it would print, and anything lazy becomes a list at once.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from pantheon.chat.origin import runs_of

MAX_CHARS = 4_000_000  # of one value, as text
MAX_ITEMS = 200_000
MAX_BYTES = 128_000_000  # of all values that one rendering makes
MAX_DEPTH = 100
MAX_STEPS = 1_000_000
MAX_SECONDS = 5.0
MAX_SOURCE = 200_000  # of a template. Published ones have up to 20,000; so much takes seconds to compile
MAX_WIDTH = 100  # of an indentation, of a separator in JSON, and of what is searched from the right
_NUMBER_CHARS = 1300  # of a number of 4096 bits, or of any float
RUN_BYTES = 96  # of the memory that one stretch of one origin takes


class LimitError(Exception):
    """A template outgrew its budget."""


class Budget:
    """What one rendering, or several that answer one question, may still spend."""

    def __init__(self) -> None:
        self.steps = 0
        self.deadline: float | None = None
        self.bytes = 0

    def start(self) -> Budget:
        """Begin to count the time, at the first rendering: compiling a template is not part of it."""
        if self.deadline is None:
            self.deadline = time.monotonic() + MAX_SECONDS
        return self

    def _is_late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    @property
    def is_spent(self) -> bool:
        """Whether nothing more can be rendered with it."""
        return self.steps > MAX_STEPS or self.bytes > MAX_BYTES or self._is_late()

    def step(self) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise LimitError(f"it takes more than {MAX_STEPS} steps")
        if self._is_late():
            raise LimitError(f"it takes longer than {MAX_SECONDS:g} seconds")

    def loop(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.step()
            yield item

    def count(self, value: Any) -> Any:
        """Pass a new value through, unless it is too large or the last of too many."""
        if isinstance(value, Iterator):
            value = self.settle(value)
        if isinstance(value, (str, bytes)):
            fits(len(value))
        elif isinstance(value, int):
            if value.bit_length() > 4096:
                raise LimitError("a number grows beyond 4096 bits")
            return value
        elif isinstance(value, (list, tuple, dict)):
            self.step()
            weigh(value)
        self.bytes += sys.getsizeof(value)
        if isinstance(value, str):
            self.bytes += RUN_BYTES * len(runs_of(value))
        if self.bytes > MAX_BYTES:
            raise LimitError(f"it makes more than {MAX_BYTES} bytes of values")
        return value

    def settle(self, items: Iterable[Any]) -> list[Any]:
        """Something lazy as a list."""
        settled: list[Any] = []
        size = 0
        for item in self.loop(items):
            size += weigh(item)
            fits(size, len(settled))
            settled.append(item)
        return settled


_shared: ContextVar[Budget | None] = ContextVar("the budget of several renderings", default=None)


@contextlib.contextmanager
def one_budget() -> Iterator[Budget]:
    """All renderings inside, by this thread, share one budget: for questions that take several of them. Within another
    such block that one's budget goes on."""
    budget = _shared.get() or Budget()
    token = _shared.set(budget)
    try:
        yield budget
    finally:
        _shared.reset(token)


def budget_for_rendering() -> Budget:
    """The shared one, or a fresh one; its time runs."""
    return (_shared.get() or Budget()).start()


def fits(size: int, items: int = 0) -> None:
    """Raise LimitError for a value of so many characters or items."""
    if size > MAX_CHARS:
        raise LimitError(f"a value grows beyond {MAX_CHARS} characters")
    if items > MAX_ITEMS:
        raise LimitError(f"a value grows beyond {MAX_ITEMS} items")


def weigh(value: Any) -> int:
    """About how many characters a value prints; LimitError if they are too many, however few objects they share."""
    if isinstance(value, (str, bytes)):
        return len(value)
    size, items = 0, 0
    rest: list[tuple[Any, int]] = [(value, 0)]
    while rest:
        item, depth = rest.pop()
        items += 1
        if isinstance(item, (str, bytes)):
            size += len(item) + 4
        elif isinstance(item, (list, tuple, dict)):
            size += 2
            if depth > MAX_DEPTH:
                raise LimitError(f"a value is nested deeper than {MAX_DEPTH} levels")
            fits(size, items + len(rest) + len(item))
            parts: Iterable[Any] = [*item.keys(), *item.values()] if isinstance(item, dict) else item
            rest += [(part, depth + 1) for part in parts]
        else:
            size += item.bit_length() // 3 + 4 if isinstance(item, int) else 16
        fits(size, items)
    return size


def short(what: str, value: Any) -> Any:
    """A width or a separator, if it is a short one."""
    size = len(value) if isinstance(value, str) else abs(value) if isinstance(value, int) else 0
    if size > MAX_WIDTH:
        raise LimitError(f"{what} is longer than {MAX_WIDTH} characters")
    return value


def check_arguments(values: Iterable[Any]) -> None:
    """No call gets a number that could serve as a giant width or count."""
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_CHARS:
            raise LimitError(f"a call gets the number {value if value.bit_length() < 64 else 'of many digits'}")


def check_short(name: str, values: Iterable[Any]) -> None:
    """Searches from the right, and the characters to strip, take as long as text and argument multiplied, in C, where
    no clock stops them. `round` takes ten to the power of its argument."""
    for value in values:
        if isinstance(value, str):
            short(f"an argument of {name}", value)
        elif name == "round" and isinstance(value, int) and abs(value) > MAX_WIDTH:
            raise LimitError(f"round is asked for more than {MAX_WIDTH} digits")


def _check_widths(form: str) -> int:
    """The sum of all numbers in a format string, each of which may be a width."""
    total = 0
    for run in re.finditer(r"\d+", form):
        if len(run.group()) > 7:
            raise LimitError("a format string asks for more than a million characters")
        total += int(run.group())
    return total


def check_format(form: str, args: Sequence[Any]) -> None:
    """str.format: plain fields only, whose widths and values fit."""
    bare = form.replace("{{", "").replace("}}", "")
    if re.search(r"\{[^{}]*\{|\{[^{}:!]*[.\[]", bare):
        raise LimitError("a format string computes its fields")
    largest = max((weigh(arg) for arg in args), default=0) + _NUMBER_CHARS
    fits(len(form) + _check_widths(form) + (form.count("{") * largest if args else 0))


def check_percent(form: str, right: Any) -> None:
    """The operator %: no width from an argument, and widths and values that fit."""
    if re.search(r"%[^a-zA-Z%]*\*", form):
        raise LimitError("a format string computes its widths")
    fits(len(form) + _check_widths(form) + form.count("%") * (weigh(right) + _NUMBER_CHARS))


def check_replace(text: Any, old: Any = "", new: Any = "", *count: Any, **named: Any) -> None:
    """Replacing can multiply two sizes."""
    text, old, new = str(text), str(named.get("old", old)), str(named.get("new", new))
    fits(len(text) + text.count(old) * len(new))


def check_join(separator: str, items: Any) -> None:
    """Joining can repeat one large string many times."""
    count = len(items) if hasattr(items, "__len__") else 0
    fits(len(separator) * count + sum(weigh(item) for item in items), count)


def check_split(text: str, separator: Any = None, *most: Any, **named: Any) -> None:
    """Splitting makes many small texts, each far larger in memory than its characters."""
    separator = named.get("sep", separator)
    fits(0, str.count(text, separator) + 1 if isinstance(separator, str) and separator else len(str.split(text)))


def count_lines(text: str) -> int:
    """At least as many lines as splitlines() makes."""
    return sum(str.count(text, end) for end in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029") + 2
