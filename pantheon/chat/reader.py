"""What a model would read, from its file's header alone: no weights are loaded, nothing is evaluated.

Rank 4: imports catalog, the engine's Tokenizer and Metadata, and its siblings.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any

from pantheon import catalog
from pantheon._arrays import ID_CODE
from pantheon.chat.choice import make_format
from pantheon.chat.format import ChatFormat
from pantheon.chat.messages import Message, Turn, as_messages, check_plain
from pantheon.chat.reading import Reading
from pantheon.chat.window import Policy, check_policy, fit
from pantheon.engine.metadata import Metadata
from pantheon.engine.sampling import check_integer
from pantheon.engine.tokenizer import Tokenizer
from pantheon.errors import ArgumentError, MetadataError

Messages = Iterable[Message | Mapping[str, Any]]


class Reader:
    """The chat format of one model file, to count and to look at prompts with. Any number of threads may share it.

    What it shows and counts is what a Chat with the same settings would give to the model, to the id.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        template: str | None = None,
        now: datetime | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        fold_system: bool = False,
        merge_roles: bool = False,
    ) -> None:
        """model: a name of the catalogue, a path, or hf:owner/repo/file.gguf. The other arguments are those of Chat.

        Raises what opening the file raises, and ChatTemplateError if there is no template for it, or a broken one.
        """
        check_plain("tools", tools)
        path = catalog.resolve(model)
        self._metadata = Metadata.from_file(path)
        self._tokenizer = Tokenizer.from_file(path)
        self._now = now or datetime.now()
        self._format = make_format(self._tokenizer, self._metadata, forced=template, now=self._now)
        self._options: dict[str, Any] = {"tools": tools, "fold_system": fold_system, "merge_roles": merge_roles}

    @property
    def format(self) -> ChatFormat:
        """Which template writes the prompts and why."""
        return self._format

    @property
    def context_length(self) -> int | None:
        """The most tokens that the model can have in its context, if the header says so."""
        value = self._metadata.get(self._context_key)
        return value if isinstance(value, int) and value > 0 else None

    @property
    def _context_key(self) -> str:
        return f"{self._metadata.text('general.architecture')}.context_length"

    def _check_window(self, window: int | None) -> int:
        most = self.context_length
        if window is None:
            if most is None:
                raise MetadataError(f"the header has no {self._context_key}, so the window must be given")
            return most
        check_integer("window", window, 1, 2**31 - 1)
        if most is not None and window > most:
            raise ArgumentError(f"window must be at most the model's context length of {most}, got {window}")
        return window

    def count(self, messages: Messages) -> int:
        """How many tokens the prompt for a reply to these messages has, the opening of the reply included."""
        turns = tuple(Turn(message) for message in as_messages(messages))
        return len(self._format.prompt(turns, self._now, **self._options).ids)

    def read(
        self,
        messages: Messages,
        *,
        window: int | None = None,
        reply_limit: int = 128,
        policy: Policy = "drop_oldest",
        fraction: float = 0.5,
    ) -> Reading:
        """What the model would read for a reply to these messages in a fresh conversation. The arguments are those of
        Chat, and so are the errors; MetadataError if no window is given and the header has no context length."""
        turns = tuple(Turn(message) for message in as_messages(messages))
        policy_name, fraction = check_policy(policy, fraction)
        fitted = fit(
            turns,
            lambda start: self._format.prompt(turns, self._now, start=start, **self._options),
            reserve=check_integer("reply_limit", reply_limit, 1, 2**31 - 1),
            window=self._check_window(window),
            policy=policy_name,
            fraction=fraction,
        )
        return Reading(fitted=fitted, chat_format=self._format, reused=0, held=array(ID_CODE))

    def close(self) -> None:
        """Free the tokenizer's memory. Idempotent; what was read can no longer be taken apart then."""
        self._tokenizer.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<pantheon.chat.Reader: {self._format.title}>"


def messages_from(data: str | bytes) -> tuple[list[Any], list[Any] | None]:
    """Messages and tools from JSON: a list of messages, or an object with `messages` and perhaps `tools`."""
    import json

    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"the messages are no JSON: {error}") from None
    messages, tools = value, None
    if isinstance(value, dict):
        messages, tools = value.get("messages"), value.get("tools")
    if not isinstance(messages, list) or not isinstance(tools, (list, type(None))):
        raise ArgumentError("the messages must be a JSON list, or an object with such lists as `messages` and `tools`")
    return messages, tools


def count_tokens(model: str | os.PathLike[str], messages: Messages, **options: Any) -> int:
    """How many tokens a chat's prompt for these messages has, without loading the weights.

    model and options: those of Reader, which is quicker where more than one list of messages is counted.
    """
    with Reader(model, **options) as reader:
        return reader.count(messages)
