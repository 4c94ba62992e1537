"""The list of turns of a conversation, and what its operations make of it. Pure functions: no model, no state.

Rank 4: imports errors, the engine's check of integers, and its siblings.

The one thing to know first: no operation repairs anything. Each one only says what the list of turns is afterwards, and
the session compares the ids of the next prompt with what the model's state holds. A reply that is to be made is a
Draft; until it has said something, the list stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pantheon.chat.messages import Message, Turn
from pantheon.engine.sampling import check_integer
from pantheon.errors import ArgumentError

Turns = tuple[Turn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A reply to be made."""

    before: Turns
    """What it follows."""
    opening: Turn | None = None
    """The assistant's turn that it goes on with: a prefill, or the turn that is continued."""
    continues: bool = False
    """True: the opening was in the conversation already, and the reply is what is added to it."""
    earlier: Turn | None = None
    """The reply in whose place it is made."""

    @property
    def read(self) -> Turns:
        """The turns that the model reads; if there is an opening, it is the last one."""
        return self.before if self.opening is None else (*self.before, self.opening)

    def finished(self, content: str, ids: Sequence[int], cut: bool) -> Turns:
        """The conversation with the reply. content: of the whole turn, which reads as these ids."""
        if self.continues and self.opening is not None:
            message = replace(self.opening.message, content=content, cut=cut)
            return (*self.before, in_place_of(self.opening, Turn(message, tuple(ids))))
        turn = Turn(Message("assistant", content, cut=cut), tuple(ids))
        return (*self.before, turn if self.earlier is None else beside(self.earlier, turn))


# ---- A reply and others in its place ------------------------------------------------------------------------------


def versions_of(turn: Turn) -> Turns:
    """All replies that were made in this place, in the order of their making."""
    return turn.versions or (turn,)


def beside(earlier: Turn, turn: Turn) -> Turn:
    """A new reply where there is one already: both are kept, the new one counts."""
    versions = (*versions_of(earlier), turn)
    return replace(turn, versions=versions, chosen=len(versions) - 1)


def in_place_of(old: Turn, turn: Turn) -> Turn:
    """A turn that replaces another one, which is gone; other replies in its place stay."""
    if not old.versions:
        return turn
    versions = (*old.versions[: old.chosen], turn, *old.versions[old.chosen + 1 :])
    return replace(turn, versions=versions, chosen=old.chosen)


def with_choice(turns: Turns, index: int) -> Turns:
    """The same conversation with another of the last reply's versions."""
    last = turns[-1] if turns else None
    if last is None or last.message.role != "assistant":
        raise ArgumentError("there is no reply to choose: the conversation does not end with one")
    versions = versions_of(last)
    index = check_integer("the number of a reply", index, 0, len(versions) - 1)
    return (*turns[:-1], replace(versions[index], versions=last.versions, chosen=index))


# ---- Replies to be made -------------------------------------------------------------------------------------------


def begun(prefill: str) -> Turn | None:
    """The opening for a prefill; None for an empty one."""
    message = Message("assistant", prefill)
    return Turn(message) if message.content else None


def to_message(turns: Turns, message: Message, prefill: str) -> Draft:
    """A reply to a new message."""
    return Draft(before=(*turns, Turn(message)), opening=begun(prefill))


def once_more(turns: Turns, prefill: str) -> Draft:
    """Another reply in the place of the last one; where the conversation waits for a reply, that one."""
    last = turns[-1] if turns else None
    replies = last is not None and last.message.role == "assistant"
    before = turns[:-1] if replies else turns
    if all(turn.message.role == "system" for turn in before):
        raise ArgumentError("there is no reply to make again: nothing was said yet")
    return Draft(before=before, opening=begun(prefill), earlier=last if replies else None)


def going_on(turns: Turns) -> Draft:
    """More of the last reply."""
    if not turns or turns[-1].message.role != "assistant":
        raise ArgumentError("there is no reply to continue: the conversation does not end with one")
    return Draft(before=turns[:-1], opening=turns[-1], continues=True)


def edited(turns: Turns, index: int, text: str) -> Turns:
    """The conversation up to message `index`, which now says `text`."""
    if not turns:
        raise ArgumentError("there is no message to edit: the conversation is empty")
    index = check_integer("the index of a message", index, 0, len(turns) - 1)
    old = turns[index]
    return (*turns[:index], in_place_of(old, Turn(replace(old.message, content=text, cut=False))))


# ---- What is said no longer ---------------------------------------------------------------------------------------


def without_last_exchange(turns: Turns) -> Turns:
    """The conversation before the last user's message; all of it where there is none."""
    at = max((index for index, turn in enumerate(turns) if turn.message.role == "user"), default=len(turns))
    return turns[:at]


def first_system(turns: Turns) -> Turns:
    """The first system text alone, if there is one: what is left of a conversation that begins anew."""
    return tuple(turn for turn in turns if turn.message.role == "system")[:1]


def with_system(turns: Turns, text: str | None) -> Turns:
    """The conversation with this text as its first message; None: with none."""
    rest = turns[1:] if turns and turns[0].message.role == "system" else turns
    return rest if text is None else (Turn(Message("system", text)), *rest)
