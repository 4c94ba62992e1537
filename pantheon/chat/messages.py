"""What a conversation is made of: messages, and turns that remember the ids that the model itself wrote.

Rank 4: imports errors, _native.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pantheon._native import text_bytes
from pantheon.errors import ArgumentError

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. The role is "system", "user" or "assistant"; anything else is an ArgumentError."""

    role: str
    content: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ArgumentError(f"a role must be one of {', '.join(ROLES)}, got {self.role!r}")
        if not isinstance(self.content, str):
            raise ArgumentError(f"the content of a message must be a str, got {type(self.content).__name__}")
        text_bytes(self.content)  # refuses a lone surrogate here, with its index in the message


@dataclass(frozen=True, slots=True)
class Turn:
    """A message of the running conversation; `ids` are the sampled ids if the model wrote it here, else None."""

    message: Message
    ids: tuple[int, ...] | None = None


def as_message(value: Message | Mapping[str, Any]) -> Message:
    """A Message from itself or from a mapping with exactly the keys role and content."""
    if isinstance(value, Message):
        return value
    if not isinstance(value, Mapping):
        raise ArgumentError(f"a message must be a Message or a mapping, got {type(value).__name__}")
    unknown = [key for key in value if key not in ("role", "content")]
    if unknown or "role" not in value or "content" not in value:
        keys = sorted(map(str, value))
        raise ArgumentError(f"a message must have the keys role and content and no other, got {keys}")
    return Message(value["role"], value["content"])


def as_messages(values: Iterable[Message | Mapping[str, Any]]) -> tuple[Message, ...]:
    """A tuple of Messages; an error names the index of the message at fault."""
    messages: list[Message] = []
    for index, value in enumerate(values):
        try:
            messages.append(as_message(value))
        except ArgumentError as error:
            raise ArgumentError(f"message {index}: {error}") from None
    return tuple(messages)
