"""What the commands show, as lines of text. Nothing is written here.

Rank 5: imports the chat, and its siblings.
"""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pantheon.chat.view import bar_lines, shown
from pantheon.repl.output import columns, fitting

if TYPE_CHECKING:
    from pantheon.chat.session import Chat
    from pantheon.engine.tokenizer import Tokenizer
    from pantheon.repl.talker import Talker

_PREVIEW = 60


def per_second(tokens: int, seconds: float) -> str:
    """A speed in words."""
    return f"{tokens / seconds:,.1f} tokens/s" if seconds > 0 else "too short to measure"


def plural(number: int, what: str) -> str:
    """A number of things."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def preview(text: str) -> str:
    """The beginning of a text on one line."""
    line = " ".join(text[: 4 * _PREVIEW].split())
    width = min(_PREVIEW, max(columns() - 20, 10))
    whole = len(text) <= 4 * _PREVIEW and fitting(line, width) == line
    return line if whole else fitting(line, width - 3) + "..."


def quoted(text: str) -> str:
    """A text in quotes, on one line."""
    return json.dumps(text, ensure_ascii=False)


def moment(seconds: float) -> str:
    """A time in seconds since 1970, as people here write it."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def stats(talker: Talker) -> Iterator[str]:
    """What the last reply took, and all of them together."""
    reply, totals = talker.last, talker.totals
    if reply is None:
        yield "there was no reply yet"
        return
    usage, timings = reply.usage, reply.timings
    first = "none came" if talker.first_piece_s is None else f"{talker.first_piece_s:.2f} s"
    reading = per_second(usage.evaluated_tokens, timings.prompt_s)
    writing = per_second(usage.generated_tokens, timings.decode_s)
    yield f"prompt: {plural(usage.prompt_tokens, 'token')}, {usage.reused_tokens:,} of them reused"
    yield f"read: {usage.evaluated_tokens:,} in {timings.prompt_s:.2f} s, {reading}"
    yield f"time to first token: {first}"
    yield f"written: {plural(usage.generated_tokens, 'token')} in {timings.decode_s:.2f} s, {writing}"
    if usage.proposed_tokens:
        yield f"guessed: {usage.proposed_tokens:,}, right {usage.accepted_tokens:,} times"
    text = f", the text {quoted(reply.stop)}" if reply.stop is not None else ""
    yield f"ended by: {reply.finish_reason}{text}; seed {reply.seed}"
    if totals.replies > 1:
        yield f"all {totals.replies} replies: {totals.evaluated_tokens:,} read, {totals.generated_tokens:,} written"
        yield f"on average {per_second(totals.evaluated_tokens, totals.prompt_s)} read"
        yield f"and {per_second(totals.generated_tokens, totals.decode_s)} written"


def counts(chat: Chat) -> Iterator[str]:
    """The pieces of what the model read last, and what the conversation has come to since."""
    reading = chat.reading
    if reading is not None:
        for piece in reading.pieces:
            yield f"{piece.tokens:>6,}  {reading.name_of(piece)}"
        yield f"{len(reading):>6,}  read for the last reply"
    yield f"{chat.count():>6,}  the conversation now, all of it"


def tokens(tokenizer: Tokenizer, text: str) -> Iterator[str]:
    """The tokens of a text, as it would be read in a message."""
    ids = tokenizer.encode(text).tolist()
    for token in ids:
        piece = shown(tokenizer.piece(token).decode("utf-8", "surrogateescape")).replace("\n", "")
        yield f'{token:>6}  "{piece}"'
    yield plural(len(ids), "token")


def window(chat: Chat) -> Iterator[str]:
    """The window as a bar, and what is done when it is full."""
    used = 0 if chat.reading is None else len(chat.reading)
    yield from bar_lines(used, chat.reply_limit, chat.window, columns())
    yield f"the conversation now: {plural(chat.count(), 'token')}"
    yield f"when it is full: {chat.policy}"


def messages(chat: Chat) -> Iterator[str]:
    """The messages with their numbers."""
    for index, message in enumerate(chat.messages):
        yield f"{index}  {message.role}: {preview(message.content)}"


def in_two_columns(rows: list[tuple[str, str]]) -> Iterator[str]:
    """Names and what they are, as wide as the terminal is; one below the other where it is narrow."""
    width, left = columns(), max(len(name) for name, _ in rows) + 2
    if width < 2 * left:
        for name, text in rows:
            yield name
            yield from textwrap.wrap(text, max(width - 1, 10), initial_indent="  ", subsequent_indent="  ")
        return
    for name, text in rows:
        indent = " " * left
        yield from textwrap.wrap(text, width - 1, initial_indent=name.ljust(left), subsequent_indent=indent)
