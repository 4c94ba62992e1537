"""The conversation on a terminal, and the same over a pipe.

Rank 5: imports errors and chat; prompt_toolkit when a terminal asks for a line.

Replies go to stdout, everything else to stderr. On a terminal, what the model writes is made harmless first: a model
can be talked into printing escape sequences. While a reply runs, Ctrl-C is a request to the chat and not an
exception, so nothing can be torn apart by it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, TextIO

from pantheon.engine.generate import Reply
from pantheon.errors import PantheonError

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

    from pantheon.chat.session import Chat

EXIT_DONE = 0
EXIT_INTERRUPTED = 130
PROMPT = "> "
_LEAVE_SECONDS = 1.0  # a second Ctrl-C at an empty prompt within this time leaves
_COMMAND_LIKE = re.compile(r"/[A-Za-z]+")
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """Text without power over a terminal: control and direction characters become visible escapes."""
    return _UNSAFE.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)


def note(text: str) -> None:
    """Say something beside the conversation."""
    with beside():
        print(harmless(text), file=sys.stderr, flush=True)


@contextlib.contextmanager
def beside() -> Iterator[None]:
    """What is said inside on stderr is given up where nobody reads it or its disk is full: the work goes on."""
    try:
        yield
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Let a stream that cannot be written swallow what it still holds and whatever comes: Python's exit writes it too,
    and would change the exit code for it."""
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


class _StoppedError(Exception):
    """Ctrl-C came before the chat could be asked to stop."""


class Talker:
    """Sends messages to a chat and writes the replies, with the options of the command line."""

    def __init__(self, chat: Chat, max_tokens: int, sampling: dict[str, Any], out: TextIO | None = None) -> None:
        self.chat = chat
        self._max_tokens = max_tokens
        self._sampling = sampling
        self._out = out or sys.stdout
        self._on_terminal = self._out.isatty()
        self._interrupted = False

    def say(self, text: str) -> Reply | None:
        """Send a message and write the reply and a newline. None if Ctrl-C came before it began."""
        progress = self._check_interrupted
        stream = self.chat.stream(text, max_tokens=self._max_tokens, progress=progress, **self._sampling)
        with contextlib.closing(stream), contextlib.suppress(_StoppedError):
            if not self._interrupted:
                try:
                    for piece in stream:
                        self.write(piece)
                        if self._interrupted:
                            break
                finally:
                    stream.close()
                    self.write("\n")
        return stream.reply

    def say_interruptibly(self, text: str) -> Reply | None:
        """say(), with Ctrl-C as a request to stop the reply. Only the main thread can change what a signal does."""
        self._interrupted = False
        if threading.current_thread() is not threading.main_thread():
            return self.say(text)
        before = signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            return self.say(text)
        finally:
            signal.signal(signal.SIGINT, before)

    def _on_interrupt(self, number: int, frame: object) -> None:
        self._interrupted = True
        self.chat.cancel()

    def _check_interrupted(self, fraction: float) -> None:
        """Called while the prompt is read: a Ctrl-C just before it began found no reply that it could cancel."""
        if self._interrupted:
            raise _StoppedError

    def write(self, text: str) -> None:
        """Write a piece of a reply and flush it."""
        self._out.write(harmless(text) if self._on_terminal else text)
        self._out.flush()

    def command(self, line: str) -> bool | None:
        """Obey /quit, /exit (False: leave) and /clear (True: go on); None if the line is none of them."""
        if line in ("/quit", "/exit"):
            return False
        if line == "/clear":
            self.chat.clear()
            return True
        return None


def banner(chat: Chat) -> str:
    """The first line of a conversation."""
    return f"Chat mode ({chat.style}). Type /quit to exit, /clear to reset."


# ---- Over a pipe --------------------------------------------------------------------------------------------------


def run_lines(talker: Talker, source: IO[bytes]) -> int:
    """One message per line until the end of input; each reply ends with a newline on stdout. Failures are raised."""
    for number, raw in enumerate(source, 1):
        line = _decode_line(raw, number)
        if not line.strip():
            continue
        going = talker.command(line.strip())
        if going is False:
            break
        if going is None:
            talker.say(line)
    return EXIT_DONE


def _decode_line(raw: bytes, number: int) -> str:
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        note(f"line {number} is not UTF-8 (byte {error.start}); what cannot be read becomes U+FFFD")
        return raw.decode("utf-8", "replace")


# ---- On a terminal ------------------------------------------------------------------------------------------------


class PlainLines:
    """Asks for one message on a terminal that can do nothing: no editing but the system's own, no escape sequences."""

    was_empty = True
    """The system has thrown the line away by the time that Ctrl-C arrives here."""

    def ask(self) -> tuple[str, bool]:
        """As LineEditor.ask()."""
        print(PROMPT, end="", file=sys.stderr, flush=True)
        try:
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            print(file=sys.stderr)
            raise
        if not line:
            print(file=sys.stderr)
            raise EOFError
        return line.removesuffix("\n"), False


class LineEditor:
    """Asks for one message, with line editing, history, and pastes of several lines kept as one message."""

    def __init__(self) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.output import create_output

        output = create_output(always_prefer_tty=True)  # stdout, or stderr where stdout is a file
        if hasattr(output, "enable_cpr"):
            output.enable_cpr = False  # no questions to the terminal: their answers can end up in the line
        self._pasted = False
        self._was_empty = True
        self._session: PromptSession[str] = PromptSession(output=output, key_bindings=self._bindings())

    def ask(self) -> tuple[str, bool]:
        """A message, and whether any of it was pasted. EOFError: Ctrl-D; KeyboardInterrupt: Ctrl-C."""
        self._pasted = False
        # The colour (the terminal's own) makes the library write the space after ">" and not step over it.
        return self._session.prompt([("fg:ansidefault", PROMPT)], handle_sigint=True), self._pasted

    @property
    def was_empty(self) -> bool:
        """Whether the line was empty when Ctrl-C was pressed."""
        return self._was_empty

    def _bindings(self) -> Any:
        from prompt_toolkit.key_binding import KeyBindings
        from prompt_toolkit.keys import Keys

        bindings = KeyBindings()

        @bindings.add(Keys.BracketedPaste)
        def _paste(event: Any) -> None:
            self._pasted = True
            event.current_buffer.insert_text(event.data.replace("\r\n", "\n").replace("\r", "\n"))

        @bindings.add("c-c")
        @bindings.add("<sigint>")
        def _interrupt(event: Any) -> None:
            self._was_empty = not event.current_buffer.text
            event.app.exit(exception=KeyboardInterrupt(), style="class:aborting")

        return bindings


def run_terminal(talker: Talker) -> int:
    """Talk until /quit, Ctrl-D, or Ctrl-C twice at the empty prompt; the exit status."""
    dumb = os.environ.get("TERM", "dumb").lower() in ("", "dumb", "unknown")
    editor = PlainLines() if dumb else LineEditor()
    last_interrupt = -_LEAVE_SECONDS
    while True:
        try:
            text, pasted = editor.ask()
            if not _handle(talker, text, pasted):
                return EXIT_DONE
        except EOFError:
            return EXIT_DONE
        except KeyboardInterrupt:
            now = time.monotonic()
            if editor.was_empty and now - last_interrupt <= _LEAVE_SECONDS:
                return EXIT_INTERRUPTED
            if editor.was_empty:
                last_interrupt = now
                note("(Ctrl-C again, Ctrl-D or /quit leaves)")


def _handle(talker: Talker, text: str, pasted: bool) -> bool:
    """Obey a command or send a message; False: leave. A failure is said, and the conversation goes on."""
    line = text.strip()
    if not line:
        return True
    try:
        if not pasted and "\n" not in text:
            going = talker.command(line)
            if going is not None:
                return going
            if _COMMAND_LIKE.fullmatch(line):
                note(f"there is no command {line}; there are /quit, /exit and /clear")
                return True
        _comment(talker.say_interruptibly(text))
    except PantheonError as error:
        note(f"error: {error}")
    return True


def _comment(reply: Reply | None) -> None:
    """Say what the reply alone does not show."""
    if reply is None or (reply.finish_reason == "cancelled" and not reply.tokens):
        note("(stopped before the reply began; the message was taken back)")
    elif reply.finish_reason == "cancelled":
        note("(stopped)")
    elif reply.finish_reason == "length":
        note(f"(cut at {len(reply.tokens)} tokens; --max-tokens allows more)")


@contextlib.contextmanager
def conversation(chat: Chat) -> Iterator[None]:
    """The banner before, the chat's memory freed after."""
    note(banner(chat))
    for text in chat.notes:
        if text not in chat.format.notes:  # those were logged when the format was chosen
            note(f"({text})")
    try:
        yield
    finally:
        chat.close()
