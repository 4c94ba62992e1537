"""Jinja as chat templates expect it, in a box: the template is code from a file that someone else made.

Rank 4: imports errors; jinja2 is imported by whoever imports this module, which happens at the first template.

The environment is set up as the templates' authors have it (trimmed blocks, loop controls, `generation` blocks,
`tojson` without escapes, `raise_exception`, `strftime_now`). Around it stand limits that a sandbox alone does not
have: loops and calls count against a budget of steps and time, and no value may grow beyond MAX_CHARS. What they
do not bound: the memory of many values just below the limit.
"""

from __future__ import annotations

import copy
import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox

from pantheon.errors import ChatTemplateError

MAX_CHARS = 16_000_000
MAX_STEPS = 1_000_000
MAX_SECONDS = 5.0
_LONG_NUMBER = re.compile(r"\d{7,}")  # a width in a format string


class _LimitError(Exception):
    """A template outgrew its budget."""


class _RaisedError(Exception):
    """The template called raise_exception()."""


class _Budget:
    """What one rendering may still spend."""

    def __init__(self) -> None:
        self.steps = 0
        self.deadline = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise _LimitError(f"it takes more than {MAX_STEPS} steps")
        if self.steps % 64 == 0 and time.monotonic() > self.deadline:
            raise _LimitError(f"it takes longer than {MAX_SECONDS:g} seconds")

    def loop(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.step()
            yield item


def _check_size(value: Any) -> Any:
    """Pass a value through unless it is too large."""
    if isinstance(value, (str, bytes, list, tuple, dict)) and len(value) > MAX_CHARS:
        raise _LimitError(f"a value grows beyond {MAX_CHARS} characters")
    if isinstance(value, int) and value.bit_length() > 4096:
        raise _LimitError("a number grows beyond 4096 bits")
    return value


def _check_arguments(values: Iterable[Any]) -> None:
    """No call gets a number that could serve as a giant width or count."""
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_CHARS:
            raise _LimitError(f"a call gets the number {value if value.bit_length() < 64 else 'of many digits'}")
        if isinstance(value, str):
            _check_size(value)


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
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols])
        self.budget = _Budget()
        self.filters["tojson"] = _to_json
        self.filters = {name: self._guard(function) for name, function in self.filters.items()}
        self.filters["_budget_loop"] = lambda items: self.budget.loop(items)
        self.filters["_budget_size"] = _check_size

    def _guard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that counts as a step and cannot be given or return something giant."""

        name = getattr(function, "__name__", "")

        @functools.wraps(function)  # copies the mark by which Jinja passes a context to some filters
        def guarded(*args: Any, **kwargs: Any) -> Any:
            self.budget.step()
            _check_arguments([*args, *kwargs.values()])
            values = args[1:] if hasattr(function, "jinja_pass_arg") else args
            if name == "do_format":
                _check_format(values[0], values[1:])
            elif name == "do_replace":
                _check_replace(str(values[0]), values[1:])
            elif name in ("do_join", "sync_do_join") and len(values) > 1:
                _check_join(str(values[1]), values[0])
            return _check_size(function(*args, **kwargs))

        return guarded

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        """Send every loop and every `~` through the budget."""
        tree = super()._parse(source, name, filename)
        for loop in list(tree.find_all(jinja2.nodes.For)):
            loop.iter = _filtered(cast(jinja2.nodes.Expr, loop.iter), "_budget_loop")
        _wrap_concats(tree)
        return tree

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.budget.step()
        _check_arguments([*args, *kwargs.values()])
        method = getattr(function, "__wrapped__", function)  # Jinja wraps str.format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str):
            if name in ("format", "format_map"):
                _check_format(owner, args)
            elif name == "replace":
                _check_replace(owner, args)
            elif name == "join":
                _check_join(owner, args[0] if args else ())
        return _check_size(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        self.budget.step()
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                sized = isinstance(times, int) and isinstance(value, (str, bytes, list, tuple))
                if sized and len(value) * max(times, 0) > MAX_CHARS:
                    raise _LimitError(f"a value grows beyond {MAX_CHARS} characters")
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * abs(right) > 4096:
                raise _LimitError("a number grows beyond 4096 bits")
        elif operator == "%" and isinstance(left, (str, bytes)):
            _check_format(str(left), right if isinstance(right, tuple) else (right,))
        return _check_size(super().call_binop(context, operator, left, right))


def _check_format(form: Any, args: Sequence[Any]) -> None:
    """A format string may not ask for a giant width."""
    _check_arguments(args)
    if _LONG_NUMBER.search(str(form)):
        raise _LimitError("a format string asks for more than a million characters")


def _check_replace(text: str, args: Sequence[Any]) -> None:
    """Replacing can multiply two sizes."""
    if len(args) >= 2 and text.count(str(args[0])) * len(str(args[1])) > MAX_CHARS:
        raise _LimitError(f"a value grows beyond {MAX_CHARS} characters")


def _check_join(separator: str, items: Any) -> None:
    """Joining can repeat one large string many times."""
    if isinstance(items, (list, tuple, str)):
        size = len(separator) * len(items) + sum(len(item) for item in items if isinstance(item, str))
        if size > MAX_CHARS:
            raise _LimitError(f"a value grows beyond {MAX_CHARS} characters")


def _filtered(expression: jinja2.nodes.Expr, name: str) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(expression, name, [], [], None, None, lineno=expression.lineno)


def _wrap_concats(node: jinja2.nodes.Node) -> None:
    for field, value in node.iter_fields():
        items = value if isinstance(value, list) else [value]
        for index, item in enumerate(items):
            if not isinstance(item, jinja2.nodes.Node):
                continue
            _wrap_concats(item)
            if isinstance(item, jinja2.nodes.Concat):
                items[index] = _filtered(item, "_budget_size")
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
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


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
        self._environment.globals["strftime_now"] = lambda form: self._now().strftime(form)
        try:
            self._template = self._environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(f"the chat template is not valid Jinja: line {error.lineno}: {error}") from None
        except (_LimitError, RecursionError, MemoryError, ValueError, OverflowError, SyntaxError) as error:
            raise ChatTemplateError(f"the chat template cannot be compiled: {error or type(error).__name__}") from None

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
