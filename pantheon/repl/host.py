"""The model that is talked with, and how a chat with it begins.

Rank 5: imports errors, the chat, and the engine's Model.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pantheon.errors import FileError, PantheonError

if TYPE_CHECKING:
    from pantheon.chat.session import Chat
    from pantheon.engine.model import Model


class Host:
    """Owns one model at a time. Chats that it began belong to the caller, and end with their model."""

    def __init__(self, load: Callable[[str], Model], name: str, settings: dict[str, Any]) -> None:
        """Load the model `name`. load: from a name or a path to a model. settings: those of Model.chat() for each chat.

        What `load` raises passes through.
        """
        self._load = load
        self.settings = settings
        self.name = name
        self.model = load(name)

    def chat(self, system: str | None) -> Chat:
        """A new chat, with a system text or none. Raises what Model.chat() does."""
        return self.model.chat(system, **self.settings)

    @property
    def given(self) -> dict[str, Any]:
        """Those of the settings that somebody chose."""
        return {key: value for key, value in self.settings.items() if value not in (None, False)}

    def switch(self, name: str, chat: Chat) -> Chat:
        """The same conversation with another model, the other replies in the last one's place included. The model
        before is freed once the new one is there: both are in memory for a moment. What fails leaves all as it was."""
        model = self._load(name)
        window = chat.window if chat.window < min(self.model.context_length, model.context_length) else None
        try:
            other = _taken_over(chat, model, {**self.given, "window": window})
        except BaseException:
            model.close()
            raise
        before, self.model, self.name = self.model, model, name
        chat.close()
        before.close()
        return other

    def close(self) -> None:
        """Free the model and all chats with it. Idempotent."""
        self.model.close()


def _taken_over(chat: Chat, model: Model, options: dict[str, Any]) -> Chat:
    """A chat like another one, with another model. A file is the one form that holds all of it: what else was replied,
    which replies were cut, the clock. It is readable for the user alone, and gone at once."""
    try:
        with tempfile.TemporaryDirectory(prefix="pantheon-") as folder:
            path = Path(folder) / "chat.json"
            chat.save(path)
            return model.load_chat(path, ignore_model=True, trusted=True, **options)
    except OSError as error:
        if isinstance(error, PantheonError):
            raise
        raise FileError(f"there is no room for a file of a moment: {error}; TMPDIR names another folder") from None
