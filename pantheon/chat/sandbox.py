"""Jinja as chat templates expect it, in a box: the template is code from a file that someone else made.

Rank 4: imports errors; jinja2 is imported by whoever imports this module, which happens at the first template.

The environment is set up as the templates' authors have it (trimmed blocks, loop controls, `generation` blocks,
`tojson` without escapes, `raise_exception`, `strftime_now`). Around it stand limits that a sandbox alone does not have:
only filters and methods that chat templates use; every loop, call, filter and comparison is a step that counts against
a budget of steps and time; every value that is made counts against a budget of bytes (limits.py).

The one thing to know first: what a rendering gives back is Traced (origin.py). The generator of code below writes the
template's literals as texts of the template; whatever else is to count as such must be a Traced among the variables.
"""

from __future__ import annotations

import functools
import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, cast

import jinja2
import jinja2.compiler
import jinja2.exceptions
import jinja2.ext
import jinja2.filters
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
import markupsafe

from pantheon.chat.limits import (
    MAX_CHARS,
    MAX_DEPTH,
    MAX_SOURCE,
    RUN_BYTES,
    Budget,
    LimitError,
    budget_for_rendering,
    check_arguments,
    check_format,
    check_join,
    check_percent,
    check_replace,
    check_short,
    check_split,
    count_lines,
    fits,
    short,
    weigh,
)
from pantheon.chat.origin import (
    TEMPLATE,
    PiecesError,
    Runs,
    Traced,
    concat,
    formatted,
    mark,
    only_source,
    runs_of,
    traced,
    written_from,
)
from pantheon.chat.wording import of_limit, of_missing, of_security, of_syntax, plain
from pantheon.errors import ChatTemplateError

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
_SHORT_ARGUMENTS = frozenset("lstrip rfind rindex round rpartition rsplit rstrip strip trim".split())
_WALKING = FILTERS & set("join list map max min reject rejectattr select selectattr sort sum unique".split())


class _RaisedError(Exception):
    """The template called raise_exception()."""


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks what the assistant wrote; for a prompt it is just its content."""

    tags = {"generation"}  # noqa: RUF012  the base class declares it so

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class _CodeGenerator(jinja2.compiler.CodeGenerator):
    """Writes every literal as a text whose characters are the template's."""

    def _literal(self, text: str) -> str:
        literals: list[str] = self.environment.literals  # type: ignore[attr-defined]
        literals.append(mark(text, TEMPLATE))
        return f"environment.literals[{len(literals) - 1}]"

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return self._literal("".join(group))

    def visit_Const(self, node: jinja2.nodes.Const, frame: jinja2.compiler.Frame) -> None:  # noqa: N802
        if isinstance(node.value, str) and not hasattr(node.value, "__html__"):
            self.write(self._literal(node.value))
        else:
            super().visit_Const(node, frame)

    def visit_Concat(self, node: jinja2.nodes.Concat, frame: jinja2.compiler.Frame) -> None:  # noqa: N802
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super().visit_Concat(node, frame)
            return
        self.write("environment.concat((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox with a budget. One rendering at a time: the budget is the environment's."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])
    code_generator_class = _CodeGenerator

    def __init__(self) -> None:
        self.literals: list[str] = []
        extensions: list[Any] = [_GenerationTag, jinja2.ext.loopcontrols]
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=extensions,
            finalize=self._print,
            optimized=False,  # it would write lists of literals as plain constants, without origins
        )
        self.budget = Budget()
        self.concat = self._concat  # type: ignore[method-assign]
        del self.globals["lipsum"]
        self.globals["namespace"] = _Namespace
        own = {"tojson": _to_json, "join": self._join, "sum": _sum, "indent": _indent}
        own |= {"safe": _safe, "escape": _escape, "e": _escape}
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
        """The text of a macro or a block, or of `~`."""
        parts = [piece if isinstance(piece, str) else str(piece) for piece in pieces]
        fits(sum(map(len, parts)))
        return str(self.budget.count(concat(parts)))

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
            check_arguments([*args[at + 1 :], *kwargs.values()])
            values = [self.budget.count(value) if isinstance(value, (Iterator, range)) else value for value in args]
            values = [list(value) if isinstance(value, range) else value for value in values]
            if name in _WALKING and isinstance(values[at], str):
                fits(0, len(values[at]))
            if name in _SHORT_ARGUMENTS:
                check_short(name, [*values[at + 1 :], *kwargs.values()])
            if name == "replace":
                check_replace(*values[at:], **kwargs)
            return self._count_made(values[at], function(*values, **kwargs))

        return guarded

    def _count_made(self, owner: Any, result: Any) -> Any:
        """Count what a filter or a method of `owner` gave back; what a text was taken apart into is new as well."""
        result = self.budget.count(result)
        if isinstance(result, list) and isinstance(owner, str):
            for piece in result:
                self.budget.bytes += sys.getsizeof(piece) + RUN_BYTES
        return result

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """The sandbox looks at what a method belongs to; `dict.update` belongs to nothing, and changes what it is
        given. So nothing of a type itself is in reach: of `dict`, `range`, `cycler` and the like a template can only
        make one."""
        return not isinstance(obj, type) and super().is_safe_attribute(obj, attr, value)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, type):  # dict["a"] is an alias, which passes on what dict has
            raise jinja2.exceptions.SecurityError(f"the type {obj.__name__} has no items")
        return super().getitem(obj, argument)

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        """Send every loop, every comparison, and every value that no call makes through the budget."""
        if len(source) > MAX_SOURCE:
            raise LimitError(f"it is longer than {MAX_SOURCE} characters")
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
            check_arguments([*args, *kwargs.values()])
        if isinstance(owner, (str, bytes, bytearray, int, float, list, tuple, dict, range, type)):
            args = self._method_arguments(owner, name, args, kwargs)
        result = super().call(context, function, *args, **kwargs)
        if name == "format" and type(owner) is Traced and isinstance(result, str):
            result = formatted(owner, args, kwargs, result)
        return self._count_made(owner, result)

    def _method_arguments(self, owner: Any, name: str, args: tuple[Any, ...], kwargs: Any) -> tuple[Any, ...]:
        """The arguments of a method of a plain value, checked, with anything lazy made a list."""
        kind = next((kind for kind in METHODS if isinstance(owner, kind)), None)
        if kind is None or name not in METHODS[kind]:
            owned = kind.__name__ if kind is not None else type(owner).__name__
            raise jinja2.exceptions.SecurityError(f"access to attribute {name!r} of {owned!r} object is unsafe.")
        args = tuple(self.budget.settle(arg) if isinstance(arg, (Iterator, range)) else arg for arg in args)
        if name == "format":
            check_format(owner, [*args, *kwargs.values()])
        elif name == "replace":
            check_replace(owner, *args, **kwargs)
        elif name == "join" and args:
            check_join(owner, args[0])
        elif name in ("split", "rsplit"):
            check_split(owner, *args, **kwargs)
        elif name == "splitlines":
            fits(0, count_lines(owner))
        if name in _SHORT_ARGUMENTS:
            check_short(name, [*args, *kwargs.values()])
        return args

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        self.budget.step()
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(value, (str, bytes)):
                    fits(len(value) * max(times, 0))
                elif isinstance(times, int) and isinstance(value, (list, tuple)):
                    fits(weigh(value) * max(times, 0), len(value) * max(times, 0))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * abs(right) > 4096:
                raise LimitError("a number grows beyond 4096 bits")
        elif operator == "%" and isinstance(left, (str, bytes)):
            check_percent(str(left), right)
        result = super().call_binop(context, operator, left, right)
        if operator == "+" and isinstance(result, markupsafe.Markup):
            result = _markup(result, left, right)
        return self.budget.count(result)


class _Markup(markupsafe.Markup):
    """What `safe` and `escape` make, with the origins of its characters. Only `+` keeps them; whatever else Markup does
    gives one without, which is data."""

    __slots__ = ("_runs",)
    _runs: Runs

    def __str__(self) -> str:
        return Traced(str.__str__(self), runs_of(self))

    def __repr__(self) -> str:
        return f"Markup({str.__repr__(self)})"  # as in a list that is printed


def _markup(made: str, *parts: Any) -> str:
    """`made` with the origins of its parts, if they join to it: if nothing in them was escaped."""
    joined = concat(part for part in parts if isinstance(part, str))
    if not str.__eq__(joined, made):
        return made
    markup = _Markup(str.__str__(joined))
    markup._runs = runs_of(joined)
    return markup


def _safe(value: Any) -> str:
    made = jinja2.filters.do_mark_safe(value)
    return _markup(made, value)


def _escape(value: Any) -> str:
    made = markupsafe.escape(value)
    return _markup(made, value)


class _Namespace(jinja2.utils.Namespace):
    """`namespace()`, which prints nothing of what it holds: it is the one thing that can be filled afterwards."""

    def __repr__(self) -> str:
        return "<namespace>"


def _join(separator: str, items: Iterable[Any]) -> str:
    parts = list(items)
    check_join(separator, parts)
    return traced(separator).join([part if isinstance(part, str) else str(part) for part in parts])


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
    width = short("an indentation", width)
    prefix = len(width) if isinstance(width, str) else max(width, 0)
    lines = count_lines(text)
    fits(len(text) + lines * prefix, lines)
    result = jinja2.filters.do_indent(text, width, first, blank)
    return result if hasattr(result, "__html__") else written_from(result, text)


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
    short("an indentation", indent)
    for separator in separators or ():
        short("a separator", separator)
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    parts: list[str] = []
    size = 0
    for part in encoder.iterencode(value):  # piece by piece, unlike encode()
        size += len(part)
        fits(size)
        parts.append(part)
    return written_from("".join(parts), value)


def _isolated(value: Any, depth: int = 0) -> Any:
    """A copy of a variable, which the template may do with as it likes."""
    if depth > MAX_DEPTH:
        raise LimitError(f"a value is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, str):
        return value if isinstance(value, Traced) else str.__str__(value)
    if isinstance(value, Mapping):
        return {_isolated(key, depth + 1): _isolated(part, depth + 1) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_isolated(part, depth + 1) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    if value is None or isinstance(value, (int, float)):
        return value
    raise TypeError(f"a {type(value).__name__} has no place in JSON")  # and its methods none in a template


def _same(now: datetime) -> datetime:
    return now


def _raise_exception(message: object) -> None:
    raise _RaisedError(str(message))


class CompiledTemplate:
    """A template's text, compiled; `render` may be called from any thread, one at a time."""

    def __init__(self, source: str) -> None:
        """Raises ChatTemplateError for a template that is not valid Jinja, with the line."""
        self.source = source
        self._lock = threading.Lock()
        self._environment = _Environment()
        self._now: Callable[[], datetime] = datetime.now
        self._environment.globals["raise_exception"] = _raise_exception
        self._environment.globals["strftime_now"] = self._strftime
        try:
            self._template = self._environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(of_syntax(error)) from None
        except (LimitError, RecursionError, MemoryError, ValueError, OverflowError, SyntaxError) as error:
            raise ChatTemplateError(f"the chat template cannot be compiled: {error or type(error).__name__}") from None

    def _strftime(self, form: str) -> str:
        """The clock; a format may hold widths, which the system's function obeys."""
        fits(256 * len(form))
        text = self._now().strftime(form)
        return mark(text, TEMPLATE) if only_source(form) == TEMPLATE else text

    def render(self, variables: Mapping[str, Any], now: datetime | None) -> Traced:
        """The text for these variables, which are not changed. `now` freezes the template's clock."""
        with self._lock:
            self._environment.budget = budget_for_rendering()
            self._now = datetime.now if now is None else functools.partial(_same, now)
            try:
                return self._collect(self._template.generate(**_isolated(variables)))
            except _RaisedError as error:
                text = f"the chat template refuses these messages: {error}"
                raise ChatTemplateError(text, sentence=str(error)) from None
            except (LimitError, PiecesError) as error:
                raise ChatTemplateError(of_limit(error, variables.get("messages"))) from None
            except jinja2.exceptions.SecurityError as error:
                raise ChatTemplateError(of_security(error)) from None
            except Exception as error:  # noqa: BLE001  a template is a program: whatever it runs into is its fault, not a crash
                missing = of_missing(error)
                if missing is not None:
                    raise ChatTemplateError(missing) from None
                detail = plain(f"{type(error).__name__}: {error}")[:300]
                text = f"the chat template fails on these messages: {detail}"
                raise ChatTemplateError(text, sentence=f"it fails with {detail}") from None

    @staticmethod
    def _collect(pieces: Iterable[str]) -> Traced:
        parts: list[str] = []
        size = 0
        for piece in pieces:
            size += len(piece)
            if size > MAX_CHARS:
                raise LimitError(f"it prints more than {MAX_CHARS} characters")
            parts.append(piece)
        return concat(parts)
