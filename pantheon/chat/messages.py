"""What a conversation is made of: messages, and turns that remember the ids that the model itself wrote.

Rank 4: imports errors, _native.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pantheon._native import text_bytes
from pantheon.errors import ArgumentError

ROLES = ("system", "user", "assistant", "tool")
_MAX_DEPTH = 50


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. What is not of the kinds below is an ArgumentError.

    The optional fields are handed to the model's template as they are; what becomes of them is its affair.
    """

    role: str
    """ "system", "user", "assistant" or "tool" (the result of a tool that the assistant called)."""
    content: str
    name: str | None = field(default=None, kw_only=True)
    tool_calls: tuple[Any, ...] | None = field(default=None, kw_only=True, hash=False)
    """Of an assistant's message: the calls, each a mapping as JSON has it."""
    tool_call_id: str | None = field(default=None, kw_only=True)
    cut: bool = field(default=False, kw_only=True, compare=False)
    """Of a reply: it was cut short, by its limit, by cancel() or by leaving the stream. A remark for people: templates
    do not see it, and messages that differ in nothing else are equal."""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ArgumentError(f"a role must be one of {', '.join(ROLES)}, got {self.role!r}")
        if isinstance(self.content, (list, tuple)):
            raise ArgumentError("the content of a message must be one str; a list of parts is not supported")
        if self.content is None and self.tool_calls:
            object.__setattr__(self, "content", "")
        if not isinstance(self.content, str):
            raise ArgumentError(f"the content of a message must be a str, got {type(self.content).__name__}")
        text_bytes(self.content)  # refuses a lone surrogate here, with its index in the message
        for key in ("name", "tool_call_id"):
            if getattr(self, key) is not None and not isinstance(getattr(self, key), str):
                raise ArgumentError(f"the {key} of a message must be a str, got {type(getattr(self, key)).__name__}")
        if self.tool_calls is not None:
            if not isinstance(self.tool_calls, (list, tuple)):
                raise ArgumentError(f"tool_calls must be a list, got {type(self.tool_calls).__name__}")
            object.__setattr__(self, "tool_calls", tuple(self.tool_calls) or None)
        if not isinstance(self.cut, bool):
            raise ArgumentError(f"cut must be True or False, got {self.cut!r}")
        check_plain("the message", self.extras())

    def extras(self) -> dict[str, Any]:
        """The optional fields that are there and that templates get."""
        pairs = (("name", self.name), ("tool_calls", self.tool_calls), ("tool_call_id", self.tool_call_id))
        return {key: list(value) if key == "tool_calls" else value for key, value in pairs if value is not None}


def check_plain(what: str, value: Any, depth: int = 0) -> None:
    """ArgumentError unless `value` is made of what JSON has: mappings, lists, text, numbers, true, false, null."""
    if depth > _MAX_DEPTH:
        raise ArgumentError(f"{what} is nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, str):
        text_bytes(value)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            if not isinstance(key, str):
                raise ArgumentError(f"{what} has a key that is no str: {key!r}")
            check_plain(what, key, depth + 1)
            check_plain(what, part, depth + 1)
    elif isinstance(value, (list, tuple)):
        for part in value:
            check_plain(what, part, depth + 1)
    elif value is not None and not isinstance(value, (int, float)):
        raise ArgumentError(f"{what} holds a {type(value).__name__}, which has no place in JSON")


def check_text(name: str, value: object) -> None:
    """ArgumentError if an argument is no str."""
    if not isinstance(value, str):
        raise ArgumentError(f"{name} must be a str, got {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class Turn:
    """A message of the running conversation; `ids` are those that it reads as if the model wrote it here, else None."""

    message: Message
    ids: tuple[int, ...] | None = None
    versions: tuple[Turn, ...] = field(default=(), kw_only=True, compare=False)
    """Of a reply that was made more than once: all of them, this one included. They have no versions themselves."""
    chosen: int = field(default=0, kw_only=True, compare=False)
    """The index in versions of this one."""


_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "cut")


def as_message(value: Message | Mapping[str, Any]) -> Message:
    """A Message from itself or from a mapping with the keys role, content, name, tool_calls, tool_call_id, cut."""
    if isinstance(value, Message):
        return value
    if not isinstance(value, Mapping):
        raise ArgumentError(f"a message must be a Message or a mapping, got {type(value).__name__}")
    if any(key not in _KEYS for key in value) or "role" not in value:
        raise ArgumentError(f"a message must have a role, and of {_KEYS[1:]} what it needs, got {[*map(str, value)]}")
    if "content" not in value and not value.get("tool_calls"):
        raise ArgumentError("a message must have a content, unless it has tool_calls")
    extras = {key: value[key] for key in _KEYS[2:] if key in value}
    return Message(value["role"], value.get("content"), **extras)  # type: ignore[arg-type]


def as_messages(values: Iterable[Message | Mapping[str, Any]]) -> tuple[Message, ...]:
    """A tuple of Messages; an error names the index of the message at fault."""
    messages: list[Message] = []
    for index, value in enumerate(values):
        try:
            messages.append(as_message(value))
        except ArgumentError as error:
            raise ArgumentError(f"message {index}: {error}") from None
    return tuple(messages)
