"""What the model read in one turn: every token, where it came from, what was reused, and what was left out.

Rank 4: imports its siblings.

The one thing to know first: a Reading is made from the very array of ids that goes to C. Nothing is rendered again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pantheon._arrays import IdBuffer
from pantheon.chat.format import ChatFormat
from pantheon.chat.window import Dropped, Fitted


@dataclass(frozen=True, kw_only=True, repr=False)
class Reading:
    """What the model reads this turn. Its parts are worked out when they are asked for."""

    fitted: Fitted
    """The prompt and what was done to make it fit."""
    chat_format: ChatFormat
    reused: int
    """How many of the ids, at the beginning, were in the state already; the others were evaluated."""
    held: IdBuffer = field(compare=False)
    """The ids that the state held before."""
    before: Fitted | None = field(default=None, compare=False)
    """The prompt of the turn before."""

    @property
    def text(self) -> str:
        """The whole prompt."""
        return self.fitted.prompt.text

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids that the model read."""
        return tuple(self.fitted.prompt.ids)

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """The exchanges that were left out, oldest first, in this turn or before."""
        return self.fitted.dropped

    @property
    def newly_dropped(self) -> tuple[Dropped, ...]:
        """Those of them that were left out in this turn."""
        return self.dropped[len(self.dropped) - self.fitted.newly :]

    @property
    def reserve(self) -> int:
        """Tokens that were kept free for the reply."""
        return self.fitted.reserve

    @property
    def window(self) -> int:
        """The most tokens of prompt and reply together."""
        return self.fitted.window
