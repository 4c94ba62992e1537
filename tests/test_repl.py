"""The conversation on a real (pseudo) terminal."""

from __future__ import annotations

import io
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pseudo_terminal import PASTE

import pantheon
from pantheon.repl import Talker, harmless

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

BANNER = r"Chat mode \(ChatML\)\. Type /quit to exit, /clear to reset\."


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_the_conversation_of_the_seed(terminal: Any, smollm2: str, term: str) -> None:
    t = terminal("--model", smollm2, "--chat", "--system", "You are a helpful assistant.", term=term)
    t.expect(BANNER)
    t.prompt()
    t.type("What is the capital of France?\r")
    t.expect(r"The capital of France is Paris\.")
    t.prompt()
    t.type("And Germany?\r")
    t.expect(r"The capital of Germany is Berlin\.")
    t.prompt()
    t.type("/quit\r")
    assert t.leaves_with() == 0


@pytest.mark.parametrize("leave", ["/exit\r", "\x04"])
def test_exit_and_ctrl_d_leave_with_0(terminal: Any, tiny_model: str, leave: str) -> None:
    t = terminal("chat", tiny_model)
    t.prompt()
    t.type(leave)
    assert t.leaves_with() == 0


@pytest.mark.timing
def test_ctrl_c_in_the_prompt_phase_keeps_the_chat(terminal: Any, smollm2: str) -> None:
    t = terminal("chat", smollm2, "--system", "You are a helpful assistant.", "--max-tokens", "20")
    t.prompt()
    t.type_much(PASTE.format("word " * 5000) + "\r", 1.5)
    started = time.monotonic()
    t.type("\x03")
    t.expect("taken back")
    assert time.monotonic() - started < 1.0
    t.prompt()
    t.type("What is the capital of France?\r")
    t.expect(r"The capital of France is Paris\.")
    t.prompt()
    t.type("/quit\r")
    assert t.leaves_with() == 0


@pytest.mark.timing
def test_ctrl_c_during_a_reply_stops_it_and_keeps_the_chat(terminal: Any, smollm2: str) -> None:
    t = terminal("chat", smollm2, "--max-tokens", "1000")
    t.prompt()
    t.type("Write a very long story about a ship.\r")
    t.expect("story")
    time.sleep(1)
    t.type("\x03")
    shown = t.expect(r"\(stopped\)", timeout=3).replace("\r\n", "\n").replace("^C", "")  # the terminal shows the key
    t.prompt()
    said = t.messages()
    assert [(message["role"], message.get("cut")) for message in said] == [("user", None), ("assistant", True)]
    assert said[1]["content"] in shown
    t.type("/quit\r")
    assert t.leaves_with() == 0


@pytest.mark.timing
def test_ctrl_c_clears_the_line_and_twice_on_an_empty_one_leaves(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model)
    t.prompt()
    t.type("half a mess")
    time.sleep(0.2)
    t.type("\x03")
    t.prompt()
    t.type("\x03")
    t.expect("Ctrl-C again")
    time.sleep(1.3)  # too late for a second one
    t.prompt()
    t.type("\x03")
    t.expect("Ctrl-C again")
    t.prompt()
    t.type("\x03")
    assert t.leaves_with() == 130


def keys(t: Any, *texts: str) -> None:
    """Press keys one after the other."""
    for text in texts:
        t.type(text)
        time.sleep(0.25)  # the terminal's reader takes an escape at the end of what it read for the key after that long


def users(t: Any) -> list[str]:
    return [message["content"] for message in t.messages() if message["role"] == "user"]


@pytest.mark.parametrize("history", [False, True])
def test_a_search_that_is_given_up_leaves_the_line_as_it_was(terminal: Any, tiny_model: str, history: bool) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "1")
    t.prompt()
    keys(t, "\x12", "\x03")  # an empty line, an empty field, and an empty history
    for said in ("find one", "find two", "other")[: 3 * history]:
        t.ask(said)
    for number, leave in enumerate(["\x03", "\x04", "\x07", ""]):
        keys(t, f"line{number}", "\x1b[D", "\x12", "find", "\x12", "\x12", leave)
        if not leave:
            t.child.kill(signal.SIGINT)
        keys(t, "-")
        t.ask("")
        assert users(t)[-1] == f"line-{number}"
        t.ask("/clear")
    t.type("/quit\r")
    assert t.leaves_with() == 0


@pytest.mark.parametrize("leave", ["\r", "\x1b"])
def test_what_a_search_found_can_be_sent(terminal: Any, tiny_model: str, leave: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "1")
    t.prompt()
    t.ask("find one")
    t.ask("other")
    keys(t, "\x12", PASTE.format("find"), leave)
    if leave == "\x1b":
        time.sleep(0.6)
    t.ask("")
    assert users(t) == ["find one", "other", "find one"]
    keys(t, "\x12", PASTE.format("nowhere"), "\x03")
    assert t.ask("/undo") == "(taken back: find one)"  # a paste into the search made no message of it


@pytest.mark.timing
def test_a_line_with_text_is_not_the_empty_prompt_in_a_search(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model)
    t.prompt()
    keys(t, "text", "\x12")
    t.type("\x03\x03")  # the search, then the line
    assert "Ctrl-C again" not in t.prompt()
    t.type("\x04")
    assert t.leaves_with() == 0


def test_a_signal_from_outside_is_like_ctrl_c(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model)
    t.prompt()
    t.child.kill(signal.SIGINT)
    t.expect("Ctrl-C again")
    t.prompt()
    t.type("\x04")
    assert t.leaves_with() == 0


def test_a_paste_of_several_lines_is_one_message_and_never_a_command(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "1")
    t.prompt()
    t.type(PASTE.format("first\nsecond\n\nfourth"))
    time.sleep(0.3)
    t.type("\r")
    t.expect(r"\(cut at 1 tokens")
    t.prompt()
    t.type(PASTE.format("/quit"))
    time.sleep(0.3)
    t.type("\r")
    t.expect(r"\(cut at 1 tokens")  # it was answered
    t.prompt()
    t.type("/quit\r")
    assert t.leaves_with() == 0


def test_a_message_that_does_not_fit_is_said_and_the_chat_goes_on(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--window", "60", "--max-tokens", "5")
    t.prompt()
    t.type("word " * 60 + "\r")
    t.expect("error: a prompt of")
    t.prompt()
    t.type("\x04")
    assert t.leaves_with() == 0


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("\x1b[2J\r", "\\x1b[2J\\r"),
        ("a\x9b31mb", "a\\x9b31mb"),
        ("abc\u202egnp.exe", "abc\\u202egnp.exe"),
        ("plain\ttext\n안녕 🤗 é", "plain\ttext\n안녕 🤗 é"),
        ("a\u061c\u200e\u200fb", "a\\u061c\\u200e\\u200fb"),
        ("\x00\x7f\x08", "\\x00\\x7f\\x08"),
    ],
)
def test_what_a_model_writes_has_no_power_over_the_terminal(hostile: str, shown: str) -> None:
    assert harmless(hostile) == shown


def test_ctrl_c_before_the_reply_counts_as_running_stops_the_prompt(smollm2: str) -> None:
    class LateChat:
        """A chat whose stream is asked for its first piece just after Ctrl-C found nothing to cancel."""

        def __init__(self, chat: pantheon.Chat) -> None:
            self.chat, self.pieces, self.reading = chat, 0, chat.reading

        def stream(self, *args: Any, **options: Any) -> Any:
            stream = self.chat.stream(*args, **options)
            inner = stream._pieces

            def late() -> Iterator[str]:
                talker._on_interrupt(signal.SIGINT, None)
                for piece in inner:
                    self.pieces += 1
                    yield piece

            stream._pieces = late()
            return stream

        def cancel(self) -> None:
            self.chat.cancel()

    with pantheon.load(smollm2) as model, model.chat("s") as chat:
        late = LateChat(chat)
        talker = Talker(late, 5, {}, io.StringIO())  # type: ignore[arg-type]
        reply = talker.say("word " * 2000)
        assert late.pieces == 0
        assert reply is not None
        assert reply.finish_reason == "cancelled"
        assert reply.usage.evaluated_tokens < 1500
        assert [message.role for message in chat.messages] == ["system"]
