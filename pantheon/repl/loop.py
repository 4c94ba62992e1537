"""The conversation on a terminal, and the same over a pipe.

Rank 5: imports errors, the chat, and its siblings.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import IO

from pantheon.chat.session import Chat
from pantheon.errors import PantheonError
from pantheon.repl.commands import Desk, Leave, obey, say_notes, suggestions
from pantheon.repl.lines import LineEditor, PlainLines, Typed
from pantheon.repl.output import aside, is_dumb, note, prose

EXIT_DONE = 0
EXIT_INTERRUPTED = 130
_LEAVE_SECONDS = 1.0  # a second Ctrl-C at an empty prompt within this time leaves
_PIPE_COMMANDS = ("/quit", "/exit", "/clear")


def banner(chat: Chat) -> str:
    """The first line of a conversation."""
    return f"Chat mode ({chat.style}). Type /quit to exit, /clear to reset."


@contextlib.contextmanager
def conversation(desk: Desk, resume: bool = False) -> Iterator[None]:
    """The banner before, the chat's memory freed after. resume: go on with the chat that was kept last."""
    try:
        if resume:
            desk.load(desk.keeper.last())
        note(banner(desk.talker.chat))
        say_notes(desk.talker.chat)
        with desk.ending.watched():
            yield
    finally:
        desk.talker.chat.close()


# ---- Over a pipe --------------------------------------------------------------------------------------------------


def run_lines(desk: Desk, source: IO[bytes]) -> int:
    """One message per line until the end of input; each reply ends with a newline on stdout. Failures are raised.

    Of the commands only three are obeyed: a line that a program wrote must not be able to write files.
    """
    for number, raw in enumerate(_lines(desk, source), 1):
        line = _decode_line(raw, number)
        if not line.strip():
            continue
        if line.strip() in _PIPE_COMMANDS:
            try:
                obey(desk, line.strip())
            except Leave:
                break
            continue
        with desk.keeping(), desk.ending.stopping(desk.talker.stop):
            desk.talker.say(line)
        desk.ending.check()
    return EXIT_DONE


def _lines(desk: Desk, source: IO[bytes]) -> Iterator[bytes]:
    while True:
        with desk.ending.waiting():
            raw = source.readline()
        if not raw:
            return
        yield raw


def _decode_line(raw: bytes, number: int) -> str:
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        note(f"line {number} is not UTF-8 (byte {error.start}); what cannot be read becomes U+FFFD")
        return raw.decode("utf-8", "replace")


# ---- On a terminal ------------------------------------------------------------------------------------------------


def run_terminal(desk: Desk) -> int:
    """Talk until /quit, Ctrl-D, or Ctrl-C twice at the empty prompt; the exit status."""
    desk.asker = _asker(desk)
    last_interrupt = -_LEAVE_SECONDS
    while True:
        try:
            typed = desk.asker.ask()
        except EOFError:
            desk.ending.check()  # a terminal that hung up ends its input, too
            return EXIT_DONE
        except KeyboardInterrupt:
            now = time.monotonic()
            if desk.asker.was_empty and now - last_interrupt <= _LEAVE_SECONDS:
                return EXIT_INTERRUPTED
            if desk.asker.was_empty:
                last_interrupt = now
                aside("(Ctrl-C again, Ctrl-D or /quit leaves)")
            continue
        try:
            _handle(desk, typed)
        except Leave:
            return EXIT_DONE
        except KeyboardInterrupt:  # of a command that is no reply, such as loading a model
            aside("(interrupted)")
        desk.ending.check()


def _asker(desk: Desk) -> PlainLines | LineEditor:
    return PlainLines(desk.ending) if is_dumb() else LineEditor(lambda text: suggestions(desk, text), desk.ending)


def _handle(desk: Desk, typed: Typed) -> None:
    """Obey a command or send a message. A failure is said, and the conversation goes on."""
    if not typed.text.strip():
        return
    try:
        if typed.by_hand and obey(desk, typed.text, typed.pasted):
            return
        desk.reply(lambda **options: desk.talker.chat.stream(typed.text, **options), "the message was taken back")
    except PantheonError as error:
        note(prose(f"error: {error}"))
