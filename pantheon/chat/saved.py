"""The form of a saved chat: a conversation to what JSON has, and from hostile JSON back, checked.

Rank 4: imports errors, _native, and its siblings messages, styles, turns and window.

The one thing to know first: a chat file is meant to be read, and may be edited. What is in it is believed only as far
as it can be checked: a value of the wrong kind is a DamagedFileError that names its place, an unknown key too (a slip
of the pen would otherwise go unnoticed), and the ids of a reply count only while they spell its text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from pantheon._native import text_bytes
from pantheon.chat.messages import Message, Turn, check_plain
from pantheon.chat.styles import STYLES
from pantheon.chat.window import Dropped, check_policy
from pantheon.errors import ArgumentError, DamagedFileError, NotSavedFileError, UnsupportedError

if TYPE_CHECKING:
    from pantheon.engine.tokenizer import Tokenizer

FORMAT, VERSION = "pantheon chat", 1
INT_MAX = 2**31 - 1
_MENDS = "mend it in an editor, or remove the file"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCache:
    """What must be in the cache beside a chat file for it to belong to it."""

    tokens: int
    digest: str
    """Of its ids: the first 16 hexadecimal digits of their SHA-256, as 32-bit numbers."""


@dataclass(slots=True, kw_only=True)
class SavedChat:
    """All that a chat file holds."""

    model: str
    """The name of the model's file, for people."""
    architecture: str
    fingerprint: str
    window: int
    reply_limit: int
    policy: str
    fraction: float
    template: str | None
    """None: the model's own; else the name of a style, or the text of a template."""
    now: datetime
    tools: list[Any] | None
    fold_system: bool
    merge_roles: bool
    sampling: dict[str, Any]
    turns: tuple[Turn, ...]
    dropped: tuple[Dropped, ...]
    cache: SavedCache | None = None
    notes: list[str] = field(default_factory=list)
    """Of reading: what was not believed."""


# ---- To JSON ------------------------------------------------------------------------------------------------------


def _message_form(turn: Turn) -> dict[str, Any]:
    message = turn.message
    form: dict[str, Any] = {"role": message.role, "content": message.content, **message.extras()}
    if message.cut:
        form["cut"] = True
    if turn.ids is not None:
        form["ids"] = list(turn.ids)
    if turn.versions:
        form["versions"] = [_message_form(version) for version in turn.versions]
        form["chosen"] = turn.chosen
    return form


def to_text(chat: SavedChat) -> str:
    """The file's text: one line for each number list, so that people find the messages between them."""
    form: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "model": {"name": chat.model, "architecture": chat.architecture, "fingerprint": chat.fingerprint},
        "window": chat.window,
        "reply_limit": chat.reply_limit,
        "policy": chat.policy,
        "fraction": chat.fraction,
        "template": chat.template,
        "now": chat.now.isoformat(),
        "tools": chat.tools,
        "fold_system": chat.fold_system,
        "merge_roles": chat.merge_roles,
        "sampling": chat.sampling,
        "messages": [_message_form(turn) for turn in chat.turns],
        "dropped": [
            {"messages": list(part.messages), "tokens": part.tokens, "reason": part.reason} for part in chat.dropped
        ],
    }
    if chat.cache is not None:
        form["cache"] = {"tokens": chat.cache.tokens, "digest": chat.cache.digest}
    try:
        return _indented(form, "") + "\n"
    except ValueError as error:  # in tools, arguments of calls, sampling
        raise ArgumentError(f"the chat holds a number that JSON has not, NaN or an infinity: {error}") from None


def _indented(value: Any, indent: str) -> str:
    """json.dumps(indent=2), but lists of numbers stay on one line."""
    inner = indent + "  "
    if isinstance(value, Mapping) and value:
        parts = [
            f"{inner}{json.dumps(key, ensure_ascii=False)}: {_indented(part, inner)}" for key, part in value.items()
        ]
        return "{\n" + ",\n".join(parts) + "\n" + indent + "}"
    if isinstance(value, (list, tuple)) and any(isinstance(part, (Mapping, list, tuple, str)) for part in value):
        return "[\n" + ",\n".join(inner + _indented(part, inner) for part in value) + "\n" + indent + "]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


# ---- From JSON ----------------------------------------------------------------------------------------------------


class _Part:
    """A JSON object of the file: take what is known, each value of its kind; what is left over is refused."""

    def __init__(self, path: str, where: str, value: Any) -> None:
        self.path, self.where = path, where
        if not isinstance(value, dict):
            self.fail("", "must be an object", value)
        self.left: dict[str, Any] = dict(value)

    def fail(self, key: str, what: str, *value: Any) -> NoReturn:
        place = f"{self.where}.{key}" if self.where and key else self.where or key or "the file"
        got = f", got {_shown(value[0])}" if value else ""
        raise DamagedFileError(f"{self.path}: {place} {what}{got}; {_MENDS}")

    def take(self, key: str, kind: type | tuple[type, ...], what: str, default: Any = ...) -> Any:
        value = self.left.pop(key, default)
        if value is ...:
            self.fail(key, "is missing")
        wrong = (isinstance(value, bool) and kind is not bool) or not isinstance(value, kind)
        if wrong and value is not default:
            self.fail(key, f"must be {what}", value)
        return value

    def text(self, key: str, default: Any = ...) -> Any:
        value = self.take(key, str, "a text", default)
        if isinstance(value, str):
            self.checked(key, lambda: text_bytes(value))
        return value

    def count(self, key: str, low: int, high: int, default: Any = ...) -> int:
        value = self.take(key, int, "a whole number", default)
        if value is not default and not low <= value <= high:
            self.fail(key, f"must be between {low} and {high}", value)
        return int(value)

    def ids(self, key: str, high: int) -> tuple[int, ...] | None:
        values = self.take(key, list, "a list of token ids", None)
        if values is None:
            return None
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= high:
                self.fail(key, f"must hold whole numbers from 0 to {high}", value)
        return tuple(values)

    def parts(self, key: str, default: Any = ...) -> list[_Part]:
        values = self.take(key, list, "a list", default)
        where = f"{self.where}.{key}" if self.where else key
        return [_Part(self.path, f"{where}[{index}]", value) for index, value in enumerate(values)]

    def checked(self, key: str, check: Callable[[], Any]) -> Any:
        """What the check returns; its ArgumentError is the file's fault."""
        try:
            return check()
        except ArgumentError as error:
            self.fail(key, f"makes no sense: {error}")

    def end(self) -> None:
        for key in self.left:
            self.fail(ascii(key[:40]), "is not known here")


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value)
    except RecursionError:  # what could just be read need not be writable a few calls further down
        return "what is nested too deep"
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number that JSON has")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    form = dict(pairs)
    if len(form) < len(pairs):
        raise ValueError("an object has a key twice")
    return form


def _parsed(path: str, data: bytes) -> Any:
    try:
        return json.loads(
            data.decode("utf-8-sig"), parse_constant=_refuse_number, parse_float=_finite, object_pairs_hook=_unique
        )
    except UnicodeDecodeError as error:
        raise NotSavedFileError(f"{path} is not a saved chat: byte {error.start} is no UTF-8") from None
    except (ValueError, RecursionError) as error:
        kind = DamagedFileError if FORMAT.encode() in data[:100] else NotSavedFileError
        reason = "it is nested too deep" if isinstance(error, RecursionError) else error
        raise kind(f"{path} is not a saved chat, or was damaged: {reason}; {_MENDS}") from None


def from_bytes(
    path: str, data: bytes, tokenizer: Tokenizer, stop_ids: Callable[[str | None], frozenset[int]], trusted: bool
) -> SavedChat:
    """Read a chat file's bytes. path: for messages. stop_ids: what ends a reply, for the template that the file names.
    trusted: the ids of replies may hold control tokens.

    Raises NotSavedFileError, UnsupportedError (a newer version), DamagedFileError.
    """
    form = _parsed(path, data)
    if not isinstance(form, dict) or form.get("format") != FORMAT:
        raise NotSavedFileError(f'{path} is not a saved chat: it is JSON without "format": "{FORMAT}"')
    top = _Part(path, "", form)
    top.left.pop("format")
    version = top.count("version", 1, INT_MAX)
    if version != VERSION:
        raise UnsupportedError(
            f"{path} has version {version} of the format of saved chats, this build reads version {VERSION}: "
            "load it with the build that saved it"
        )
    model = _Part(path, "model", top.take("model", dict, "an object"))
    policy, fraction = top.text("policy"), top.take("fraction", (int, float), "a number")
    tools, sampling = top.take("tools", list, "a list", None), top.take("sampling", dict, "an object")
    template, notes = _template(top), list[str]()
    chat = SavedChat(
        model=model.text("name"),
        architecture=model.text("architecture"),
        fingerprint=model.text("fingerprint"),
        window=top.count("window", 1, INT_MAX),
        reply_limit=top.count("reply_limit", 1, INT_MAX),
        policy=policy,
        fraction=fraction,
        template=template,
        now=_moment(top),
        tools=tools,
        fold_system=top.take("fold_system", bool, "true or false"),
        merge_roles=top.take("merge_roles", bool, "true or false"),
        sampling=sampling,
        turns=(),
        dropped=(),
        cache=_cache(top),
        notes=notes,
    )
    model.end()
    top.checked("policy", lambda: check_policy(policy, fraction))
    top.checked("tools", lambda: check_plain("it", tools))
    top.checked("sampling", lambda: check_plain("it", sampling))
    believed = _Believed(tokenizer, stop_ids(template), trusted, notes)
    chat.turns = tuple(_turn(part, believed) for part in top.parts("messages"))
    chat.dropped = _dropped(top, len(chat.turns))
    top.end()
    return chat


def _template(top: _Part) -> str | None:
    """A style or a template's text; never a path, which would let a file name other files to be read."""
    template = top.text("template", None)
    if template is not None and template not in STYLES and "{{" not in template and "{%" not in template:
        top.fail("template", "must be null, the name of a style, or the text of a Jinja template", template)
    return template  # type: ignore[no-any-return]


def _moment(top: _Part) -> datetime:
    text = top.text("now")
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        top.fail("now", "must be a date and time as 2025-01-31T12:00:00", text)


def _cache(top: _Part) -> SavedCache | None:
    value = top.take("cache", dict, "an object", None)
    if value is None:
        return None
    part = _Part(top.path, "cache", value)
    cache = SavedCache(tokens=part.count("tokens", 0, INT_MAX), digest=part.text("digest"))
    part.end()
    return cache


def _dropped(top: _Part, n_turns: int) -> tuple[Dropped, ...]:
    dropped: list[Dropped] = []
    last = -1
    for part in top.parts("dropped", []):
        messages = part.ids("messages", n_turns - 1)
        if not messages or any(b <= a for a, b in zip((last, *messages), messages, strict=False)):
            part.fail("messages", "must be indices of messages, ascending")
        last = messages[-1]
        tokens = part.count("tokens", -INT_MAX, INT_MAX)  # below 0 where a template says more when it is given less
        dropped.append(Dropped(messages=messages, tokens=tokens, reason=part.text("reason")))
        part.end()
    return tuple(dropped)


def _turn(part: _Part, believed: _Believed, is_version: bool = False) -> Turn:
    extras = {key: part.left.pop(key) for key in ("name", "tool_calls", "tool_call_id") if key in part.left}
    role, content, cut = part.text("role"), part.text("content"), part.take("cut", bool, "true or false", False)
    message = part.checked("", lambda: Message(role, content, cut=cut, **extras))
    ids = believed.ids(part.where, message, part.ids("ids", 2**32 - 1))
    if is_version or "versions" not in part.left:
        part.end()
        return Turn(message, ids)
    versions = tuple(_turn(version, believed, True) for version in part.parts("versions"))
    chosen = part.count("chosen", 0, max(len(versions) - 1, 0))
    part.end()
    if not versions or versions[chosen].message != message:
        part.fail("versions", "do not hold this message at the place that `chosen` names")
    return Turn(message, ids, versions=versions, chosen=chosen)


class _Believed:
    """Which ids of replies count: those that spell the reply's text, in this vocabulary, without an end in them.

    Control tokens, which no text shows, count only in a trusted file.
    """

    def __init__(self, tokenizer: Tokenizer, stop_ids: frozenset[int], trusted: bool, notes: list[str]) -> None:
        self.tokenizer, self.stop_ids, self.trusted, self.notes = tokenizer, stop_ids, trusted, notes

    def ids(self, where: str, message: Message, ids: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if ids is None:
            return None
        reason = self._doubt(message, ids)
        if reason is None:
            return ids
        self.notes.append(f"{where}: its token ids are not used, {reason}; its text is read instead")
        return None

    def _doubt(self, message: Message, ids: tuple[int, ...]) -> str | None:
        if message.role != "assistant":
            return "for only replies have them"
        if any(token >= self.tokenizer.n_vocab for token in ids):
            return "for some are beyond the model's vocabulary"
        if any(token in self.stop_ids for token in ids):
            return "for one of them ends a reply"
        control = {token for token in ids if self.tokenizer.is_control(token)}
        if control and not self.trusted:  # the model may have written them; so may whoever wrote the file
            names = ", ".join(self.tokenizer.piece(token).decode("utf-8", "replace") for token in sorted(control))
            return f"for there are control tokens among them ({names}), which need trusted=True"
        spelled = b"".join(self.tokenizer.piece(token) for token in ids if token not in control)
        text = spelled.decode("utf-8", "replace")
        # Vocabularies of SentencePiece begin a text with a space that is not part of it.
        return None if message.content in (text, text.removeprefix(" ")) else "for they do not spell its text"
