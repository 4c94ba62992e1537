"""Jinja as chat templates expect it, in a box: the template is code from a file that someone else made.

Rank 4: imports errors; jinja2 is imported by whoever imports this module, which happens at the first template.

The environment is set up as the templates' authors have it (trimmed blocks, loop controls, `generation` blocks,
`tojson` without escapes, `raise_exception`, `strftime_now`). Around it stand limits that a sandbox alone does not have:
only filters and methods that chat templates use; every loop, call, filter and comparison is a step that counts against
a budget of steps and time; every value that is made counts against a budget of bytes, and what could be large is
reckoned before it is made.

The one thing to know first: containers share what they hold, so a small list can be a giant text. Every list that a
template makes is therefore weighed as the text that it would print, and anything lazy becomes a list at once.
"""

from __future__ import annotations

import copy
import functools
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.filters
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils

from pantheon.errors import ChatTemplateError

MAX_CHARS = 4_000_000  # of one value, as text
MAX_ITEMS = 200_000
MAX_BYTES = 128_000_000  # of all values that one rendering makes
MAX_DEPTH = 100
MAX_STEPS = 1_000_000
MAX_SECONDS = 5.0
MAX_SOURCE = 1_000_000
_MAX_WIDTH = 100  # of an indentation, and of a separator in JSON
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_NUMBER_CHARS = 1300  # of a number of 4096 bits, or of any float

FILTERS = frozenset(
    "abs capitalize count d default dictsort e escape first float indent int items join last length list lower map max "
    "min reject rejectattr replace reverse round safe select selectattr sort string sum title tojson trim unique upper"
    .split()
)  # fmt: skip
METHODS: dict[type, frozenset[str]] = {
    str: frozenset(
        "capitalize count endswith find format index isalnum isalpha isdecimal isdigit islower isnumeric isspace "
        "istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit "
        "rstrip split splitlines startswith strip swapcase title upper".split()
    ),
    dict: frozenset("get items keys values copy".split()),
    list: frozenset("index count copy".split()),
    tuple: frozenset("index count".split()),
}
_WALKING = FILTERS & set("join list map max min reject rejectattr select selectattr sort sum unique".split())


class _LimitError(Exception):
    """A template outgrew its budget."""


class _RaisedError(Exception):
    """The template called raise_exception()."""


class _Budget:
    """What one rendering may still spend."""

    def __init__(self) -> None:
        self.steps = 0
        self.deadline = time.monotonic() + MAX_SECONDS

        self.bytes = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise _LimitError(f"it takes more than {MAX_STEPS} steps")
        if time.monotonic() > self.deadline:
            raise _LimitError(f"it takes longer than {MAX_SECONDS:g} seconds")

    def loop(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.step()
            yield item

    def count(self, value: Any) -> Any:
        """Pass a new value through, unless it is too large or the last of too many."""
        if isinstance(value, Iterator):
            value = self.settle(value)
        if isinstance(value, (str, bytes)):
            _fits(len(value))
        elif isinstance(value, int):
            if value.bit_length() > 4096:
                raise _LimitError("a number grows beyond 4096 bits")
            return value
        elif isinstance(value, (list, tuple, dict)):
            self.step()
            _weigh(value)
        self.bytes += sys.getsizeof(value)
        if self.bytes > MAX_BYTES:
            raise _LimitError(f"it makes more than {MAX_BYTES} bytes of values")
        return value

    def settle(self, items: Iterable[Any]) -> list[Any]:
        """Something lazy as a list."""
        settled: list[Any] = []
        size = 0
        for item in self.loop(items):
            size += _weigh(item)
            _fits(size, len(settled))
            settled.append(item)
        return settled


def _fits(size: int, items: int = 0) -> None:
    """Raise _LimitError for a value of so many characters or items."""
    if size > MAX_CHARS:
        raise _LimitError(f"a value grows beyond {MAX_CHARS} characters")
    if items > MAX_ITEMS:
        raise _LimitError(f"a value grows beyond {MAX_ITEMS} items")


def _weigh(value: Any) -> int:
    """About how many characters a value prints; _LimitError if they are too many, however few objects they share."""
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
                raise _LimitError(f"a value is nested deeper than {MAX_DEPTH} levels")
            _fits(size, items + len(rest) + len(item))
            parts: Iterable[Any] = [*item.keys(), *item.values()] if isinstance(item, dict) else item
            rest += [(part, depth + 1) for part in parts]
        else:
            size += item.bit_length() // 3 + 4 if isinstance(item, int) else 16
        _fits(size, items)
    return size


def _check_arguments(values: Iterable[Any]) -> None:
    """No call gets a number that could serve as a giant width or count."""
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_CHARS:
            raise _LimitError(f"a call gets the number {value if value.bit_length() < 64 else 'of many digits'}")


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks what the assistant wrote; for a prompt it is just its content."""

    tags = {"generation"}  # noqa: RUF012  the base class declares it so

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox with a budget. One rendering at a time: the budget is the environment's."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        extensions: list[Any] = [_GenerationTag, jinja2.ext.loopcontrols]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=self._print)
        self.budget = _Budget()
        self.concat = self._concat  # type: ignore[method-assign]
        del self.globals["lipsum"]
        self.globals["namespace"] = _Namespace
        own = {"tojson": _to_json, "join": self._join, "sum": _sum, "indent": _indent}
        self.filters = {name: self._guard(name, own.get(name, self.filters[name])) for name in FILTERS}
        self.filters["_budget_loop"] = lambda items: self.budget.loop(items)
        self.filters["_budget_count"] = lambda value: self.budget.count(value)
        self.filters["_budget_step"] = self._step

    def _step(self, value: Any) -> Any:
        self.budget.step()
        return value

    def _print(self, value: Any) -> Any:
        """What `{{ value }}` prints."""
        return value if isinstance(value, str) else self.budget.count(str(value))

    def _concat(self, pieces: Iterable[str]) -> str:
        """The text of a macro or a block."""
        parts = list(pieces)
        _fits(sum(map(len, parts)))
        return str(self.budget.count("".join(parts)))

    def _join(self, items: Iterable[Any], d: Any = "", attribute: Any = None) -> str:
        if attribute is not None:
            items = self.budget.settle(self.getitem(item, attribute) for item in items)
        return _join(str(d), items)

    def _guard(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that counts as a step and cannot be given or return something giant."""
        at = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)  # copies the mark by which Jinja passes a context to some filters
        def guarded(*args: Any, **kwargs: Any) -> Any:
            self.budget.step()
            _check_arguments([*args[at + 1 :], *kwargs.values()])
            values = [self.budget.count(value) if isinstance(value, (Iterator, range)) else value for value in args]
            values = [list(value) if isinstance(value, range) else value for value in values]
            if name in _WALKING and isinstance(values[at], str):
                _fits(0, len(values[at]))
            if name == "replace":
                _check_replace(*values[at:], **kwargs)
            return self.budget.count(function(*values, **kwargs))

        return guarded

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        """Send every loop, every comparison, and every value that no call makes through the budget."""
        if len(source) > MAX_SOURCE:
            raise _LimitError(f"it is longer than {MAX_SOURCE} characters")
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(jinja2.nodes.For)):
            loop.iter = _filtered(cast(jinja2.nodes.Expr, loop.iter), "_budget_loop")
        for comparison in list(tree.find_all(jinja2.nodes.Compare)):
            comparison.expr = _filtered(comparison.expr, "_budget_step")
        _wrap_values(tree)
        return tree

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.budget.step()
        method = getattr(function, "__wrapped__", function)  # Jinja wraps str.format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if name != "format":
            _check_arguments([*args, *kwargs.values()])
        if isinstance(owner, (str, bytes, bytearray, int, float, list, tuple, dict, range)):
            args = self._method_arguments(owner, name, args, kwargs)
        result = self.budget.count(super().call(context, function, *args, **kwargs))
        if isinstance(result, list) and isinstance(owner, str):  # split: its pieces are new
            for piece in result:
                self.budget.bytes += sys.getsizeof(piece)
        return result

    def _method_arguments(self, owner: Any, name: str, args: tuple[Any, ...], kwargs: Any) -> tuple[Any, ...]:
        """The arguments of a method of a plain value, checked, with anything lazy made a list."""
        kind = next((kind for kind in METHODS if isinstance(owner, kind)), None)
        if kind is None or name not in METHODS[kind]:
            raise jinja2.exceptions.SecurityError(f"{type(owner).__name__}.{name}() is not for chat templates")
        args = tuple(self.budget.settle(arg) if isinstance(arg, (Iterator, range)) else arg for arg in args)
        if name == "format":
            _check_format(owner, [*args, *kwargs.values()])
        elif name == "replace":
            _check_replace(owner, *args, **kwargs)
        elif name == "join" and args:
            _check_join(owner, args[0])
        elif name in ("split", "rsplit", "splitlines"):
            _fits(0, len(owner) // 10)
        return args

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        self.budget.step()
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(value, (str, bytes)):
                    _fits(len(value) * max(times, 0))
                elif isinstance(times, int) and isinstance(value, (list, tuple)):
                    _fits(_weigh(value) * max(times, 0), len(value) * max(times, 0))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * abs(right) > 4096:
                raise _LimitError("a number grows beyond 4096 bits")
        elif operator == "%" and isinstance(left, (str, bytes)):
            _check_percent(str(left), right)
        return self.budget.count(super().call_binop(context, operator, left, right))


class _Namespace(jinja2.utils.Namespace):
    """`namespace()`, which prints nothing of what it holds: it is the one thing that can be filled afterwards."""

    def __repr__(self) -> str:
        return "<namespace>"


def _check_widths(form: str) -> int:
    """The sum of all numbers in a format string, each of which may be a width."""
    total = 0
    for run in re.finditer(r"\d+", form):
        if len(run.group()) > 7:
            raise _LimitError("a format string asks for more than a million characters")
        total += int(run.group())
    return total


def _check_format(form: str, args: Sequence[Any]) -> None:
    """str.format: plain fields only, whose widths and values fit."""
    bare = form.replace("{{", "").replace("}}", "")
    if re.search(r"\{[^{}]*\{|\{[^{}:!]*[.\[]", bare):
        raise _LimitError("a format string computes its fields")
    largest = max((_weigh(arg) for arg in args), default=0) + _NUMBER_CHARS
    _fits(len(form) + _check_widths(form) + (form.count("{") * largest if args else 0))


def _check_percent(form: str, right: Any) -> None:
    """The operator %: no width from an argument, and widths and values that fit."""
    if re.search(r"%[^a-zA-Z%]*\*", form):
        raise _LimitError("a format string computes its widths")
    _fits(len(form) + _check_widths(form) + form.count("%") * (_weigh(right) + _NUMBER_CHARS))


def _check_replace(text: Any, old: Any = "", new: Any = "", *count: Any, **named: Any) -> None:
    """Replacing can multiply two sizes."""
    text, old, new = str(text), str(named.get("old", old)), str(named.get("new", new))
    _fits(len(text) + text.count(old) * len(new))


def _check_join(separator: str, items: Any) -> None:
    """Joining can repeat one large string many times."""
    count = len(items) if hasattr(items, "__len__") else 0
    _fits(len(separator) * count + sum(_weigh(item) for item in items), count)


def _join(separator: str, items: Iterable[Any]) -> str:
    _check_join(separator, items)
    return separator.join(map(str, items))


def _sum(items: Iterable[Any], start: Any = 0) -> Any:
    """Of numbers alone: lists would grow."""
    total = start
    for number in (start, *items):
        if not isinstance(number, (int, float)):
            raise TypeError(f"sum is for numbers, not for {type(number).__name__}")
    for number in items:
        total += number
    return total


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """`indent`: every line but the first and the blank ones."""
    width = _short("an indentation", width)
    prefix = len(width) if isinstance(width, str) else max(width, 0)
    lines = sum(map(text.count, _LINE_ENDS)) + 2
    _fits(len(text) + lines * prefix, lines)
    return jinja2.filters.do_indent(text, width, first, blank)


def _short(what: str, value: Any) -> Any:
    """A width or a separator, if it is a short one."""
    if (len(value) if isinstance(value, str) else abs(value or 0)) > _MAX_WIDTH:
        raise _LimitError(f"{what} is longer than {_MAX_WIDTH} characters")
    return value


def _filtered(expression: jinja2.nodes.Expr, name: str) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(expression, name, [], [], None, None, lineno=expression.lineno)


def _makes_value(node: jinja2.nodes.Node) -> bool:
    """Whether an expression makes a value by itself, without an operator or a call that the sandbox sees."""
    if isinstance(node, jinja2.nodes.Getitem):
        return isinstance(node.arg, jinja2.nodes.Slice)
    if isinstance(node, jinja2.nodes.Tuple):
        return node.ctx == "load"
    return isinstance(node, (jinja2.nodes.Concat, jinja2.nodes.List, jinja2.nodes.Dict))


def _wrap_values(node: jinja2.nodes.Node) -> None:
    for field, value in node.iter_fields():
        items = value if isinstance(value, list) else [value]
        for index, item in enumerate(items):
            if not isinstance(item, jinja2.nodes.Node):
                continue
            _wrap_values(item)
            if isinstance(item, jinja2.nodes.Concat):  # its parts become texts, one after the other
                item.nodes = [_filtered(_filtered(part, "string"), "_budget_count") for part in item.nodes]
            if _makes_value(item):
                items[index] = _filtered(cast(jinja2.nodes.Expr, item), "_budget_count")
        if not isinstance(value, list):
            setattr(node, field, items[0])


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON for a model, not for a web page: no HTML escapes, keys in the order they have."""
    _short("an indentation", indent)
    for separator in separators or ():
        _short("a separator", separator)
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    parts: list[str] = []
    size = 0
    for part in encoder.iterencode(value):  # piece by piece, unlike encode()
        size += len(part)
        _fits(size)
        parts.append(part)
    return "".join(parts)


def _same(now: datetime) -> datetime:
    return now


def _raise_exception(message: object) -> None:
    raise _RaisedError(str(message))


class CompiledTemplate:
    """A template's text, compiled; `render` may be called from any thread, one at a time."""

    def __init__(self, source: str) -> None:
        """Raises ChatTemplateError for a template that is not valid Jinja, with the line."""
        self._lock = threading.Lock()
        self._environment = _Environment()
        self._now: Callable[[], datetime] = datetime.now
        self._environment.globals["raise_exception"] = _raise_exception
        self._environment.globals["strftime_now"] = self._strftime
        try:
            self._template = self._environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(f"the chat template is not valid Jinja: line {error.lineno}: {error}") from None
        except (_LimitError, RecursionError, MemoryError, ValueError, OverflowError, SyntaxError) as error:
            raise ChatTemplateError(f"the chat template cannot be compiled: {error or type(error).__name__}") from None

    def _strftime(self, form: str) -> str:
        """The clock; a format may hold widths, which the system's function obeys."""
        _fits(256 * len(form))
        return self._now().strftime(form)

    def render(self, variables: Mapping[str, Any], now: datetime | None) -> str:
        """The text for these variables, which are not changed. `now` freezes the template's clock."""
        variables = copy.deepcopy(dict(variables))
        with self._lock:
            self._environment.budget = _Budget()
            self._now = datetime.now if now is None else functools.partial(_same, now)
            try:
                return self._collect(self._template.generate(**variables))
            except _RaisedError as error:
                raise ChatTemplateError(f"the chat template refuses these messages: {error}") from None
            except _LimitError as error:
                raise ChatTemplateError(f"the chat template was stopped: {error}") from None
            except jinja2.exceptions.SecurityError as error:
                raise ChatTemplateError(f"the chat template does something that is not allowed: {error}") from None
            except Exception as error:  # noqa: BLE001  a template is a program: whatever it runs into is its fault, not a crash
                detail = f"{type(error).__name__}: {error}"
                raise ChatTemplateError(f"the chat template fails on these messages: {detail[:300]}") from None

    @staticmethod
    def _collect(pieces: Iterable[str]) -> str:
        parts: list[str] = []
        size = 0
        for piece in pieces:
            size += len(piece)
            if size > MAX_CHARS:
                raise _LimitError(f"it prints more than {MAX_CHARS} characters")
            parts.append(piece)
        return "".join(parts)
