"""What the model read in one turn: every token, where it came from, what was reused, and what was left out.

Rank 4: imports the engine's Tokenizer and its siblings.

    pieces   tokens and pieces of a prompt     loss      why tokens had to be read again
    view     a Reading drawn as text           program   a Reading as a program of its own

The one thing to know first: a Reading is made from the very array of ids that goes to C. Nothing is rendered again. It
costs next to nothing until its parts are asked for, and it outlives its chat, though not its model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pantheon._arrays import IdBuffer
from pantheon.chat.format import ChatFormat
from pantheon.chat.pieces import Piece, Token, origin_of, take_apart
from pantheon.chat.segments import Kept, Special, join
from pantheon.chat.window import Dropped, Fitted

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAlike:
    """Text that is spelled like a control token and is none: it reached the model as ordinary text."""

    text: str
    role: str
    """Whose text it stands in."""
    message: int | None
    at: int
    """The index of its first character in Reading.text."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Reading:
    """What the model reads this turn. str() of it, or rich's print(), draws it.

    Indices of messages are those of the whole conversation, with what was left out.
    """

    fitted: Fitted
    """The prompt and what was done to make it fit."""
    chat_format: ChatFormat
    reused: int
    """How many of the ids, at the beginning, were in the state already; the others were evaluated."""
    held: IdBuffer = field(compare=False)
    """The ids that the state held before."""
    before: Fitted | None = field(default=None, compare=False)
    """The prompt of the turn before."""

    @cached_property
    def text(self) -> str:
        """The whole prompt."""
        return self.fitted.prompt.text

    @property
    def ids(self) -> list[int]:
        """The ids that the model read, a list of your own."""
        return list(self.fitted.prompt.ids)

    def __len__(self) -> int:
        """How many tokens the prompt has."""
        return len(self.fitted.prompt.ids)

    @property
    def evaluated(self) -> int:
        """How many of the tokens had to be evaluated this turn."""
        return len(self) - self.reused

    @property
    def tokens(self) -> tuple[Token, ...]:
        """Every token with its bytes, kind and origin."""
        return self._parts[0]

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Each message, and each part that is the template's alone, with its tokens. They add up to the prompt's."""
        return self._parts[1]

    @cached_property
    def _parts(self) -> tuple[tuple[Token, ...], tuple[Piece, ...]]:
        fitted, chat_format = self.fitted, self.chat_format
        return take_apart(
            fitted.prompt, fitted.turns, fitted.start, chat_format.tokenizer, chat_format.stop_ids, self.reused
        )

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """The exchanges that were left out, oldest first, in this turn or before."""
        return self.fitted.dropped

    @property
    def newly_dropped(self) -> tuple[Dropped, ...]:
        """Those of them that were left out in this turn."""
        return self.dropped[len(self.dropped) - self.fitted.newly :]

    @property
    def left_out(self) -> list[str]:
        """A line for each exchange that was left out: which messages, how many tokens, when and why."""
        already = len(self.dropped) - self.fitted.newly
        lines: list[str] = []
        for number, out in enumerate(self.dropped):
            which = f"messages {out.messages[0]} to {out.messages[-1]}"
            if len(out.messages) == 1:
                which = f"message {out.messages[0]}"
            when = "left out" if number >= already else "left out earlier"
            lines.append(f"{when}: {which}, {out.tokens} token{'s' * (out.tokens != 1)} ({out.reason})")
        return lines

    @property
    def reserve(self) -> int:
        """Tokens that were kept free for the reply."""
        return self.fitted.reserve

    @property
    def window(self) -> int:
        """The most tokens of prompt and reply together."""
        return self.fitted.window

    @property
    def policy(self) -> str:
        """What is done when prompt and reply do not fit."""
        return self.fitted.policy

    @cached_property
    def note(self) -> str | None:
        """Where and why tokens that the state held had to be read again; None if none had to."""
        from pantheon.chat.loss import note_of

        return note_of(self.fitted, self.before, self.held, self.reused, self.chat_format)

    @property
    def bos(self) -> int | None:
        """The beginning of sequence that the prompt begins with, or None."""
        ids, bos = self.fitted.prompt.ids, self.chat_format.tokenizer.bos
        return bos if ids and ids[0] == bos else None

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids at which the reply ends, ascending."""
        return tuple(sorted(self.chat_format.stop_ids))

    @cached_property
    def inserted_system(self) -> str | None:
        """The system text that the template inserted since the conversation has none, or None."""
        text = self.chat_format.default_system
        if not text or any(turn.message.role == "system" for turn in self.fitted.turns):
            return None
        return text if any(piece.message is None and text in piece.before for piece in self.pieces) else None

    @cached_property
    def look_alikes(self) -> tuple[LookAlike, ...]:
        """Where a message spells a control token."""
        return tuple(_look_alikes(self))

    def name_of(self, piece: Piece) -> str:
        """What a piece is, in words: "user, message 2", "the template's system text", "opening of the reply"."""
        if piece.message is not None:
            return f"{piece.role}, message {piece.message}"
        if self.inserted_system and self.inserted_system in piece.before:
            return "the template's system text"
        if piece is self.pieces[-1]:
            return "opening of the reply"
        only = self.bos is not None and piece is self.pieces[0] and piece.tokens == 1
        return "beginning of sequence" if only else "the template's own"

    def to_dict(self) -> dict[str, Any]:
        """All of it in what JSON has. Bytes are lists of numbers."""
        from pantheon.chat.view import as_dict

        return as_dict(self)

    def to_python(self) -> str:
        """A program, for the standard library alone, that leaves out the same turns and prints this very prompt."""
        from pantheon.chat.program import program_of

        return program_of(self)

    def __str__(self) -> str:
        from pantheon.chat.view import as_text

        return as_text(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from pantheon.chat.view import as_rich

        yield as_rich(self, options.max_width)

    def __repr__(self) -> str:
        out = f", {len(self.dropped)} exchanges left out" if self.dropped else ""
        return f"<pantheon Reading: {len(self)} tokens, {self.reused} reused{out}>"


def _look_alikes(reading: Reading) -> list[LookAlike]:
    """Stretches of neighbouring texts are searched as one: a marker may be half of a message and half of another."""
    found: list[LookAlike] = []
    controls, prompt, at = reading.chat_format.controls, reading.fitted.prompt, 0
    for span in prompt.spans:
        segments = prompt.segments[span.segments]
        text = join(segments)
        if not isinstance(segments[0], (Special, Kept)):
            inside = at
            for piece in controls.split(text):
                if isinstance(piece, Special):
                    role, message = _whose(reading, inside)
                    found.append(LookAlike(text=piece.text, role=role, message=message, at=inside))
                inside += len(piece.text)
        at += len(text)
    return found


def _whose(reading: Reading, at: int) -> tuple[str, int | None]:
    """The origin of a character of the prompt."""
    for segment in reading.fitted.prompt.segments:
        if at < len(segment.text):
            return origin_of(segment)
        at -= len(segment.text)
    raise IndexError(at)
