"""Asking for one message on a terminal.

Rank 5: imports its siblings; prompt_toolkit when a terminal that can edit lines is asked.

What was pasted is text, byte for byte, whatever it looks like: a command is obeyed only if its word was typed. A
terminal sends a carriage return for each line end of a paste, which is taken for a newline; a carriage return and a
newline together can only be what was copied, and stay.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pantheon._work import TerminatedError
from pantheon.repl.ending import Ending
from pantheon.repl.output import beside, harmless, note

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.document import Document

PROMPT = "> "
_LONE_RETURN = re.compile(r"\r(?!\n)")
_COMMAND_WORD = re.compile(r"/\S*\s")
_SYSTEMS_LINE = 4096
"""So many bytes of a line, its end among them, a terminal of Linux takes where nothing edits them; the rest is lost."""


class Offer(NamedTuple):
    """A line that what was typed so far may become."""

    line: str
    listed: str
    """How it is shown beside others."""


Suggest = Callable[[str], Iterable[Offer]]
"""From what was typed so far to what it may become."""


class Typed(NamedTuple):
    """What was entered."""

    text: str
    by_hand: bool
    """Whether its first word was typed. What was pasted is never a command."""
    pasted: tuple[int, int] | None = None
    """From where to where it was pasted behind a command's word."""


class Asker(Protocol):
    """What the loop needs of a terminal."""

    was_empty: bool
    """Whether the line was empty when Ctrl-C was pressed."""

    def ask(self, default: str = "") -> Typed:
        """A message; default: what is in the line to begin with. EOFError: Ctrl-D; KeyboardInterrupt: Ctrl-C;
        TerminatedError: a signal that ends the program."""

    def confirm(self, question: str) -> bool:
        """Whether a question is answered with y or yes. Everything else is a no, Ctrl-C and Ctrl-D, too."""


class PlainLines:
    """Asks on a terminal that can do nothing: no editing but the system's own, no escape sequences. A backslash at the
    end of a line lets the message go on."""

    def __init__(self, ending: Ending | None = None) -> None:
        self._ending = ending or Ending()
        self.was_empty = True

    def ask(self, default: str = "") -> Typed:
        """As Asker.ask(); a default is what an empty line stands for. Ctrl-D behind a backslash ends the message."""
        if default:
            note(f"(an empty line keeps it, Ctrl-D gives up: {default})")
        self.was_empty = True  # the system has thrown a line away by the time that Ctrl-C arrives here
        text = self._line(PROMPT)
        while text.endswith("\\"):
            self.was_empty = False
            text = text[:-1]
            try:
                text += "\n" + self._line()
            except EOFError:
                break
        return Typed(text or default, True)

    def confirm(self, question: str) -> bool:
        """As Asker.confirm()."""
        try:
            return _is_yes(self._line(f"{question} [y/N] "))
        except (EOFError, KeyboardInterrupt):
            return False

    def _line(self, prompt: str = "") -> str:
        with beside():
            print(harmless(prompt), end="", file=sys.stderr, flush=True)
        try:
            with self._ending.waiting():
                raw = sys.stdin.buffer.readline()
        except KeyboardInterrupt:
            note("")
            raise
        if not raw:
            note("")
            raise EOFError
        if len(raw) >= _SYSTEMS_LINE and raw.endswith(b"\n"):
            note(f"(a line of {len(raw) - 1:,} bytes is all that the system takes here: the rest of it is lost)")
        try:
            return raw.removesuffix(b"\n").decode("utf-8")
        except UnicodeDecodeError as error:
            note(f"(this is not UTF-8, byte {error.start}: what cannot be read becomes U+FFFD)")
            return raw.removesuffix(b"\n").decode("utf-8", "replace")


def _is_yes(answer: str) -> bool:
    return answer.strip().lower() in ("y", "yes")


class LineEditor:
    """Asks with line editing, several lines, history and completion; a paste of several lines is one message."""

    def __init__(self, suggest: Suggest = lambda text: (), ending: Ending | None = None) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.layout.processors import TabsProcessor
        from prompt_toolkit.output import create_output
        from prompt_toolkit.shortcuts import CompleteStyle

        from pantheon.repl.history import open_history

        output = create_output(always_prefer_tty=True)  # stdout, or stderr where stdout is a file
        if hasattr(output, "enable_cpr"):
            output.enable_cpr = False  # no questions to the terminal: their answers can end up in the line
        self._ending = ending or Ending()
        self._pasted = False
        self._behind_paste: str | None = None
        """The text as a paste at its end left it."""
        self._behind_word: tuple[str, str] | None = None
        """What was typed before the pastes behind a command's word; and the text from there to the end of the last."""
        self.was_empty = True
        self._before_search: tuple[int, Document] | None = None
        """Which line of the history was shown when a search began, and what it was."""
        self._session: PromptSession[str] = PromptSession(
            output=output,
            key_bindings=self._bindings(),
            multiline=True,
            history=open_history(),
            completer=_completer(suggest),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,  # needs no room below the line
            enable_suspend=True,
            input_processors=[TabsProcessor(char1=" ", char2=" ")],
        )
        self._session.default_buffer.on_text_changed += self._forget_paste

    def ask(self, default: str = "") -> Typed:
        """As Asker.ask()."""
        self._session.layout.focus(self._session.default_buffer)  # whatever the line before ended in
        self._pasted, self._behind_paste, self._behind_word = default.startswith("/"), None, None
        text = self._prompt(self._session, PROMPT, default)
        return Typed(text, not self._pasted, self._where_pasted(text))

    def confirm(self, question: str) -> bool:
        """As Asker.confirm()."""
        from prompt_toolkit import PromptSession

        try:
            # A session of its own: no history, no completion, one line.
            return _is_yes(self._prompt(PromptSession(output=self._session.output), f"{question} [y/N] "))
        except (EOFError, KeyboardInterrupt):
            return False

    def _prompt(self, session: PromptSession[str], prompt: str, default: str = "") -> str:
        """What is entered in one prompt; TerminatedError, with the terminal as it was, if a signal asks for the end."""
        app = session.app

        def leave() -> None:
            if self._ending.number and app.future is not None and not app.future.done():
                app.exit(exception=TerminatedError(self._ending.number))

        def wake() -> None:  # called between any two steps: the event loop may wait for a key
            if app.loop is not None:
                app.loop.call_soon_threadsafe(leave)

        with self._ending.stopping(wake):
            # The colour (the terminal's own) makes the library write the space behind the prompt, not step over it.
            text: str = session.prompt([("fg:ansidefault", prompt)], default=default, pre_run=leave, handle_sigint=True)
        return text

    def _where_pasted(self, text: str) -> tuple[int, int] | None:
        """Where the pastes behind a command's word are, if they were left as they came."""
        if self._behind_word is None or not text.startswith("/"):
            return None
        typed, pasted = self._behind_word
        start = len(typed) if text.startswith(typed + pasted) else text.rfind(pasted)  # the word was corrected since
        return (start, start + len(pasted)) if start > 0 else None

    def _forget_paste(self, buffer: Any) -> None:
        if not buffer.text:
            self._pasted, self._behind_paste, self._behind_word = False, None, None

    def _paste(self, buffer: Any, data: str) -> None:
        if buffer is not self._session.default_buffer:  # what is searched for is no part of the message
            buffer.insert_text(" ".join(data.split()))
            return
        before, data = buffer.document.text_before_cursor, _LONE_RETURN.sub("\n", data)
        if not _COMMAND_WORD.match(before):
            self._pasted = True
        elif self._behind_word is not None and before.startswith("".join(self._behind_word)):
            typed = self._behind_word[0]
            self._behind_word = (typed, before[len(typed) :] + data)
        else:
            self._behind_word = (before, data)
        buffer.insert_text(data)
        self._behind_paste = buffer.text if buffer.document.is_cursor_at_the_end else None

    def _enter(self, event: Any) -> None:
        """Send, or begin a new line behind a typed backslash."""
        buffer = event.current_buffer
        document = buffer.document
        if document.is_cursor_at_the_end and buffer.text.endswith("\\") and buffer.text != self._behind_paste:
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
            return
        if self._pasted and buffer.text.startswith("/"):
            # Brought back from the history it would count as typed.
            event.app.exit(result=buffer.text, style="class:accepted")
            return
        buffer.validate_and_handle()

    def _start_search(self, direction: Any) -> None:
        from prompt_toolkit.search import start_search

        buffer = self._session.default_buffer
        self._before_search = (buffer.working_index, buffer.document)
        start_search(direction=direction)

    def _give_up_search(self) -> None:
        """End a search with the line as it was: the library leaves the line that was found, once it was asked for the
        next one."""
        from prompt_toolkit.search import stop_search

        stop_search()
        buffer = self._session.default_buffer
        if self._before_search is None:
            return
        index, document = self._before_search
        if buffer.working_index != index:
            buffer.working_index = index
        if buffer.document != document:
            buffer.document = document

    def _bindings(self) -> Any:
        from prompt_toolkit.enums import DEFAULT_BUFFER
        from prompt_toolkit.filters import Condition, control_is_searchable, has_focus, is_searching
        from prompt_toolkit.key_binding import KeyBindings
        from prompt_toolkit.keys import Keys
        from prompt_toolkit.search import SearchDirection

        bindings = KeyBindings()
        in_message = has_focus(DEFAULT_BUFFER)

        @bindings.add(Keys.BracketedPaste)
        def _paste(event: Any) -> None:
            self._paste(event.current_buffer, event.data)

        @bindings.add("enter", filter=in_message)
        def _enter(event: Any) -> None:
            self._enter(event)

        @bindings.add(
            "tab", filter=in_message & Condition(lambda: not self._session.default_buffer.text.startswith("/"))
        )
        def _tab(event: Any) -> None:  # a message has nothing to complete, and what types a paste may bring tabs
            event.current_buffer.insert_text("\t")

        @bindings.add("escape", "enter", filter=in_message)
        def _new_line(event: Any) -> None:
            event.current_buffer.insert_text("\n")

        @bindings.add(Keys.Vt100MouseEvent)
        def _mouse(event: Any) -> None:
            """No mouse is asked for. What looks like one came with a paste that has no brackets, and need not be whole:
            the library would fail on it."""

        @bindings.add("c-c")
        @bindings.add("<sigint>")
        def _interrupt(event: Any) -> None:
            self.was_empty = not self._session.default_buffer.text
            event.app.exit(exception=KeyboardInterrupt(), style="class:aborting")

        @bindings.add("c-r", filter=control_is_searchable)
        def _backward(event: Any) -> None:
            self._start_search(SearchDirection.BACKWARD)

        @bindings.add("c-s", filter=control_is_searchable)
        def _forward(event: Any) -> None:
            self._start_search(SearchDirection.FORWARD)

        # Behind _interrupt: of two that match, the later one counts. To leave the prompt with the focus in the search
        # would leave it there for the next line, which nothing could then send.
        @bindings.add("c-c", filter=is_searching)
        @bindings.add("c-d", filter=is_searching)
        @bindings.add("c-g", filter=is_searching)
        @bindings.add("<sigint>", filter=is_searching)
        def _give_up(event: Any) -> None:
            self._give_up_search()

        return bindings


def _completer(suggest: Suggest) -> Any:
    from prompt_toolkit.completion import Completer, Completion

    class Suggestions(Completer):
        """Whole lines in the place of what was typed so far."""

        def get_completions(self, document: Any, complete_event: Any) -> Iterable[Any]:
            before = document.text_before_cursor
            for offer in suggest(before):
                yield Completion(offer.line, start_position=-len(before), display=offer.listed)

    return Suggestions()
