"""Sends messages to a chat and writes its replies.

Rank 5: imports the engine's Reply, the chat, and its siblings.

The one thing to know first: while a reply runs, Ctrl-C is a request to the chat and not an exception, so nothing can be
torn apart by it.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from pantheon.engine.generate import Reply, ReplyStream
from pantheon.repl.keys import kept_apart
from pantheon.repl.markdown import MarkdownWriter
from pantheon.repl.output import Progress, aside, columns, harmless

if TYPE_CHECKING:
    from pantheon.chat.reading import Reading
    from pantheon.chat.session import Chat


class _StoppedError(Exception):
    """Ctrl-C came before the chat could be asked to stop."""


@dataclass(slots=True)
class Totals:
    """What the replies of this run took together."""

    replies: int = 0
    evaluated_tokens: int = 0
    prompt_s: float = 0.0
    generated_tokens: int = 0
    decode_s: float = 0.0

    def add(self, reply: Reply) -> None:
        """Count one more reply."""
        self.replies += 1
        self.evaluated_tokens += reply.usage.evaluated_tokens
        self.prompt_s += reply.timings.prompt_s
        self.generated_tokens += reply.usage.generated_tokens
        self.decode_s += reply.timings.decode_s


@dataclass(slots=True)
class _Turn:
    """What is known of the reply that is running."""

    before: Reading | None
    """The chat's reading before it."""
    progress: Progress = field(default_factory=Progress)
    began: float = field(default_factory=time.monotonic)
    announced: bool = False
    """Whether it was said what was left out."""


class Talker:
    """Sends messages to a chat and writes the replies, with the options of the command line."""

    def __init__(
        self,
        chat: Chat,
        max_tokens: int,
        sampling: dict[str, Any],
        out: TextIO | None = None,
        *,
        markdown: bool = False,
    ) -> None:
        """sampling: as for Chat.stream(), `speculate` too. markdown: draw the replies, where `out` is a terminal."""
        self.chat = chat
        self.max_tokens = max_tokens
        self.sampling = sampling
        self.last: Reply | None = None
        """The reply that was made last."""
        self.first_piece_s: float | None = None
        """How long its first piece took, from the moment that it was asked for."""
        self.totals = Totals()
        self._turn = _Turn(None)
        self._out = out or sys.stdout
        self._on_terminal = self._out.isatty()
        self._markdown: MarkdownWriter | None = None
        if markdown and self._on_terminal:
            self._markdown = MarkdownWriter(self._out, lambda: self._turn.progress.clear())
        self._interrupted = False

    # ---- replies

    def say(self, text: str) -> Reply | None:
        """Send a message and write the reply and a newline. None if Ctrl-C came before it began."""
        return self.play(lambda **options: self.chat.stream(text, **options))

    def interruptibly(self, talk: Callable[[], Reply | None]) -> Reply | None:
        """Do it with Ctrl-C as a request to stop. Only the main thread can change what a signal does."""
        self._interrupted = False
        if threading.current_thread() is not threading.main_thread():
            return talk()
        before = signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            with kept_apart():
                return talk()
        finally:
            signal.signal(signal.SIGINT, before)

    def play(self, open_stream: Callable[..., ReplyStream], **changes: Any) -> Reply | None:
        """Write a reply and a newline. None if Ctrl-C came before it began.

        open_stream: makes the reply when it is called with max_tokens, progress and the sampling. changes: other
        sampling for this reply.
        """
        turn = self._turn = _Turn(self.chat.reading)
        options = {**self.sampling, **changes}
        stream = open_stream(max_tokens=self.max_tokens, progress=self._progress, **options)
        with contextlib.closing(stream), contextlib.suppress(_StoppedError):
            if not self._interrupted:
                try:
                    self._write_all(stream)
                finally:
                    stream.close()
                    turn.progress.clear()
                    self._end()
        if stream.reply is not None:
            self.last = stream.reply
            self.totals.add(stream.reply)
        return stream.reply

    def _write_all(self, stream: ReplyStream) -> None:
        turn, self.first_piece_s = self._turn, None
        for piece in stream:
            if self.first_piece_s is None:
                self.first_piece_s = time.monotonic() - turn.began
                turn.progress.clear()
            self._announce()
            self.write(piece)
            if self._interrupted:
                break
        self._announce()

    def _announce(self) -> None:
        """Say what was left out for this reply, as soon as it is known."""
        turn, reading = self._turn, self.chat.reading
        if turn.announced or reading is None or reading is turn.before:
            return
        turn.announced = True
        if reading.newly_dropped:
            turn.progress.clear()
            aside(left_out(reading))

    def _progress(self, done: float) -> None:
        """Called while the prompt is read: a Ctrl-C just before it began found no reply that it could cancel."""
        if self._interrupted:
            raise _StoppedError
        self._announce()
        text = f"reading: {done:.0%}"
        whole = text + (f" of {self.chat.reading.evaluated:,} tokens" if self.chat.reading else "")
        self._turn.progress.show(whole if len(whole) < columns() else text)  # half a number would be a wrong one

    def stop(self) -> None:
        """Ask the reply that runs, or is about to, to end. From a signal handler, too."""
        self._interrupted = True
        self.chat.cancel()

    def _on_interrupt(self, number: int, frame: object) -> None:
        self.stop()

    # ---- stdout

    def write(self, text: str) -> None:
        """Write a piece of a reply and flush it; with Markdown, each block when it is whole."""
        if self._markdown is not None:
            self._turn.progress.show("writing ...")
            self._markdown.push(text)
            return
        self._out.write(harmless(text) if self._on_terminal else text)
        self._out.flush()

    def _end(self) -> None:
        """End a reply's text with a newline."""
        if self._markdown is not None:
            self._markdown.finish()
        else:
            self.write("\n")


def left_out(reading: Reading) -> str:
    """A line that says what had to be left out in this turn."""
    gone = [message for out in reading.newly_dropped for message in out.messages]
    which = f"messages {gone[0]} to {gone[-1]} are" if len(gone) > 1 else f"message {gone[0]} is"
    tokens = sum(out.tokens for out in reading.newly_dropped)
    return f"(the window of {reading.window} is full: {which} left out, {tokens} tokens; /show tells more)"
