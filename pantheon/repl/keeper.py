"""Which chats are kept: the last one after each turn, and others by name.

Rank 5: imports errors, the chat and its siblings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pantheon.chat.session import Chat
    from pantheon.engine.model import Model


class Keeper:
    def __init__(self, autosave: bool) -> None:
        self.resumed = ""

    def after_turn(self, chat: Chat) -> None: ...
    def save(self, chat: Chat, name: str) -> str: return ""
    def names(self) -> list[str]: return []
    def load(self, model: Model, name: str) -> Chat: raise NotImplementedError
