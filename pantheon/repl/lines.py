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

from pantheon.repl.output import beside, note

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.document import Document

PROMPT = "> "
_LONE_RETURN = re.compile(r"\r(?!\n)")
_COMMAND_WORD = re.compile(r"/\S*\s")

Suggest = Callable[[str], Iterable[str]]
"""From what was typed so far to whole lines that it may become."""


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
        """A message; default: what is in the line to begin with. EOFError: Ctrl-D; KeyboardInterrupt: Ctrl-C."""


class PlainLines:
    """Asks on a terminal that can do nothing: no editing but the system's own, no escape sequences. A backslash at the
    end of a line lets the message go on."""

    was_empty = True  # the system has thrown the line away by the time that Ctrl-C arrives here

    def ask(self, default: str = "") -> Typed:
        """As Asker.ask(); a default is what an empty line stands for."""
        if default:
            note(f"(an empty line keeps: {default})")
        with beside():
            print(PROMPT, end="", file=sys.stderr, flush=True)
        text = self._line()
        while text.endswith("\\"):
            text = text[:-1] + "\n" + self._line()
        return Typed(text or default, True)

    def _line(self) -> str:
        try:
            raw = sys.stdin.buffer.readline()
        except KeyboardInterrupt:
            note("")
            raise
        if not raw:
            note("")
            raise EOFError
        return raw.removesuffix(b"\n").decode("utf-8", "replace")


class LineEditor:
    """Asks with line editing, several lines, history and completion; a paste of several lines is one message."""

    def __init__(self, suggest: Suggest = lambda text: ()) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.output import create_output
        from prompt_toolkit.shortcuts import CompleteStyle

        from pantheon.repl.history import open_history

        output = create_output(always_prefer_tty=True)  # stdout, or stderr where stdout is a file
        if hasattr(output, "enable_cpr"):
            output.enable_cpr = False  # no questions to the terminal: their answers can end up in the line
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
        )
        self._session.default_buffer.on_text_changed += self._forget_paste

    def ask(self, default: str = "") -> Typed:
        """As Asker.ask()."""
        self._session.layout.focus(self._session.default_buffer)  # whatever the line before ended in
        self._pasted, self._behind_paste, self._behind_word = default.startswith("/"), None, None
        # The colour (the terminal's own) makes the library write the space after ">" and not step over it.
        text = self._session.prompt([("fg:ansidefault", PROMPT)], default=default, handle_sigint=True)
        return Typed(text, not self._pasted, self._where_pasted(text))

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
        from prompt_toolkit.filters import control_is_searchable, has_focus, is_searching
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
            for line in suggest(before):
                yield Completion(line, start_position=-len(before), display=line.split(" ")[-1])

    return Suggestions()
