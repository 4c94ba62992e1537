"""Which chats are kept: the last one after each turn, and others by name.

Rank 5: imports errors, the chat and its siblings.

The one thing to know first: a chat that was kept may come back to another model. Its messages are then taken over, and
the chat's notes say so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pantheon.chat import saving
from pantheon.engine.sampling import SamplingParams, sampling_params
from pantheon.errors import ArgumentError, FileError, PantheonError
from pantheon.repl.facts import moment
from pantheon.repl.output import note

if TYPE_CHECKING:
    from pantheon.chat.session import Chat
    from pantheon.repl.host import Host
    from pantheon.repl.talker import Talker

AUTOSAVED = "last"
"""The name of the chat that is kept after each turn. The next one takes its place."""

_SAMPLING = tuple(field.name for field in fields(SamplingParams) if field.name not in ("logit_bias", "logprobs"))


class Keeper:
    """Saves chats into the user's folder, and brings them back."""

    def __init__(self, autosave: bool) -> None:
        """autosave: keep the chat after each turn."""
        self._autosave = autosave
        self._failed = ""
        self._is_kept = False
        """Whether this chat was kept before, in any file."""
        self.is_last = False
        """Whether the chat that is kept as the last one is this one, as it is now."""
        self._name: str | None = None
        """What this chat was saved or loaded as."""

    def after_turn(self, talker: Talker) -> None:
        """Keep the chat as it is now. A failure is said once, and the conversation goes on."""
        if not self._autosave or (is_empty(talker.chat) and not self._is_kept):
            return  # the last chat is worth more than an empty one, unless all of it was taken back
        try:
            saving.save_named(talker.chat, AUTOSAVED, sampling=_settings(talker))
            self._failed, self._is_kept, self.is_last = "", True, True
        except (PantheonError, OSError) as error:
            if str(error) != self._failed:
                note(f"error: the chat was not kept: {error}")
            self._failed, self.is_last = str(error), False

    def begin_anew(self) -> None:
        """The chat begins again: until something was said it takes no other's place."""
        self._is_kept, self._name, self.is_last = False, None, False

    def other(self, name: str) -> float | None:
        """When another chat was saved that saving under this name would replace, in seconds since 1970; None: there is
        none. ArgumentError for what is no name."""
        if not name or name == self._name or name.lower() == AUTOSAVED:
            return None
        try:
            return saving.named_path(name).stat().st_mtime
        except OSError:
            return None

    def save(self, talker: Talker, name: str) -> Path:
        """Keep the chat under a name; without one under that of last time, or under the time that it is. The file."""
        if name.lower() == AUTOSAVED:
            raise ArgumentError(f"{name} is the chat that each turn saves: to keep this one choose another name")
        name = name or self._name or time.strftime("%Y-%m-%d-%H.%M.%S")
        path = saving.save_named(talker.chat, name, sampling=_settings(talker))
        self._name = name
        return path

    def load(self, host: Host, name: str) -> Chat:
        """A chat that was kept, with the model of now. Errors: those of Chat.load(), but for another model."""
        chat = saving.load_named(name, host.model, ignore_model=True, **host.given)
        self._name = name if name != AUTOSAVED else None
        self._is_kept, self.is_last = True, name == AUTOSAVED
        return chat

    def last(self) -> str:
        """The name of the chat that was kept last. FileError if none was."""
        name = saving.last()
        if name is None:
            raise FileError(f"there is no chat to go on with: none was kept in {saving.chats_folder()} yet")
        return name

    def names(self) -> list[str]:
        """The names of the chats that were kept, the last one first."""
        return [chat.name for chat in saving.list_named()]

    def listed(self) -> Iterator[str]:
        """A line for each of them, with the time."""
        for chat in saving.list_named():
            yield f"{moment(chat.changed)}  {chat.name}"


def is_empty(chat: Chat) -> bool:
    """Whether nothing was said yet."""
    return all(message.role == "system" for message in chat.messages)


def _settings(talker: Talker) -> dict[str, Any]:
    """What is kept of how replies are made."""
    return {key: value for key, value in talker.sampling.items() if key in _SAMPLING}


def sampling_of(chat: Chat) -> dict[str, Any]:
    """What was kept of how replies are made; nothing where it makes no sense, and a line says so."""
    kept = {key: value for key, value in chat.sampling.items() if key in _SAMPLING}
    try:
        sampling_params(kept)
    except (ArgumentError, TypeError) as error:
        note(f"the kept chat's sampling is not used: {error}")
        return {}
    return kept
