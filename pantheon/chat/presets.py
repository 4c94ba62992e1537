"""What the page starts with: the five messages that were recorded, its system prompts, its windows, its reply limit.

Rank 4: imports nothing of the package.

The recorded results (pantheon.record) are made of these and carry them, and the page reads them there: they are written
down nowhere else. Messages and texts were found by trying with SmolLM2-135M-Instruct, greedy, so that they show what
they are meant to show: without a system prompt it calls itself SmolLM, as a pirate Captain Mary; with a date it tells
the year of it, and without one another year; "And Germany?" is understood as long as the message before it is read; and
within the five messages a window of 256 tokens leaves out the first.

The one thing to know first: a change here changes the recorded results. Make them anew: `make recorded`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

REPLY_LIMIT = 96
"""The most tokens of a reply, and so many are kept free for it; see reply_limit_in() for very small windows."""

WINDOWS = (128, 256, 512, 1024, 2048)
"""The windows that can be chosen, in tokens, beside the model's own."""

MESSAGES = (
    "Who are you?",
    "What is the capital of France?",
    "And Germany?",
    "Give me one tip for sleeping better.",
    "What year is it?",
)

RECORDED_DATE = date(2026, 7, 1)
"""Today's date in the recorded conversation: fixed, so that it can be made again bit for bit."""

_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A system prompt to choose."""

    key: str
    label: str
    text: str | None
    """With {date} ("1 July 2026") and {year} where those of the day belong; None: what the template inserts."""

    def on(self, day: date) -> str | None:
        """The text on a day."""
        if self.text is None:
            return None
        return self.text.replace("{date}", in_words(day)).replace("{year}", str(day.year))


SYSTEMS = (
    System(key="none", label="None", text=None),
    System(key="pirate", label="Pirate", text="You are a pirate named Captain Mary."),
    System(
        key="date",
        label="Today\u2019s date",
        text="You are a helpful AI assistant named SmolLM. Today's date is {date}. The year is {year}.",
    ),
)


def in_words(day: date) -> str:
    """A day as the texts say it: "1 July 2026", whatever the locale."""
    return f"{day.day} {_MONTHS[day.month - 1]} {day.year}"


def reply_limit_in(window: int) -> int:
    """The reply limit in a window: REPLY_LIMIT, but at most half of the window. With all of it a window of 128 tokens
    would have no room for even the shortest question and the system text that SmolLM2's template inserts."""
    return max(1, min(REPLY_LIMIT, window // 2))
