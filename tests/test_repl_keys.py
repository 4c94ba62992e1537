"""Keys on a real (pseudo) terminal: what Tab completes, what Ctrl-D and Ctrl-C give up, which questions are asked."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from pseudo_terminal import PASTE

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def contents(t: Any, name: str = "last") -> list[str]:
    return [message["content"] for message in t.messages(name)]


def users(t: Any, name: str = "last") -> list[str]:
    return [message["content"] for message in t.messages(name) if message["role"] == "user"]


# ---- Tab ----------------------------------------------------------------------------------------------------------


def test_tab_completes_a_command_and_leaves_a_space_where_something_may_follow(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "1")
    t.prompt()
    assert t.ask("/tem\t0.5") == "temperature: 0.5"
    assert "nothing to take back" in t.ask("/un\t")
    t.type("/s\t")  # several: they are listed, and the line stays
    shown = t.expect(r"/system[^\n]*\n")
    assert all(name in shown for name in ("/save", "/seed", "/show", "/stats", "/stop", "/system"))
    assert "temperature" not in shown
    t.prompt()
    assert t.ask("ystem x") == "system text: x"
    assert "there is no command /xyz" in t.ask("/xyz\t")


def test_tab_completes_the_numbers_of_edit_and_shows_which_they_are(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "1", "--system", "be short")
    t.prompt()
    t.ask("first question")
    t.ask("second question")
    t.type("/edit \t")
    shown = t.expect(r"4 +assistant[^\n]*\n")
    for line in ("0  system: be short", "1  user: first question", "3  user: second question"):
        assert line in shown
    t.prompt()
    t.ask("3\tchanged")
    assert users(t) == ["first question", "changed"]
    t.ask("/ed\t1\tfirst, too")
    assert users(t) == ["first, too"]


def test_tab_completes_names_of_chats_with_spaces_in_them(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "1")
    t.prompt()
    t.ask("a")
    for name in ("my first chat", "my second chat"):
        assert "(saved: " in t.ask(f"/save {name}")
    t.type("/load m\t\t")
    shown = t.expect(r"my second chat[^\n]*\n")
    assert "my first chat" in shown
    t.prompt()
    assert "(going on after 2 messages)" in t.ask("f\t")


def test_tab_completes_replies_and_models(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "3", "--temperature", "1")
    t.prompt()
    t.ask("one")
    t.ask("/regenerate")
    t.type("/reg\t\t")
    shown = t.expect(r"2  [^\n]*\n")
    assert "1  " in shown
    t.prompt()
    assert "(reply 1 of 2)" in t.ask("1")
    t.type("/model smol\t")
    t.expect("smollm2")
    t.type("\x03")


def test_tab_in_a_message_is_a_tab(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "1")
    t.prompt()
    t.ask("if x:\\\r\treturn\t/sav")
    assert users(t) == ["if x:\n\treturn\t/sav"]


# ---- Ctrl-D and Ctrl-C --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", ["\x15\x04", "\x15\x03", "\x03"])
def test_an_edit_is_given_up_and_the_conversation_goes_on(terminal: Any, tiny_model: str, leave: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "1")
    t.prompt()
    t.ask("one")
    t.ask("/edit 0")
    assert "(nothing changed)" in t.ask(leave, end="")
    t.ask("two")
    assert users(t) == ["one", "two"]
    t.type("\x04")
    assert t.leaves_with() == 0


@pytest.mark.parametrize("key", ["\x04", "\x03"])
def test_a_dumb_terminal_gives_up_an_edit_too(terminal: Any, tiny_model: str, key: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "1", term="dumb")
    t.prompt()
    t.ask("one")
    t.ask("/edit 0")
    assert "(nothing changed)" in t.ask(key, end="")
    t.ask("two")
    assert users(t) == ["one", "two"]


def test_ctrl_d_behind_a_backslash_sends_what_was_typed_on_a_dumb_terminal(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "1", term="dumb")
    t.prompt()
    t.type("one\\\r")
    t.type("two\\\r")
    t.ask("\x04", end="")
    assert users(t) == ["one\ntwo"]
    t.type("three\\\r")
    time.sleep(0.2)
    assert "Ctrl-C again" not in t.ask("\x03", end="")  # it threw a message away: the prompt was not empty
    t.ask("four")
    assert users(t) == ["one\ntwo", "four"]
    t.type("\x04")
    assert t.leaves_with() == 0


def test_a_line_that_the_system_cuts_is_said_on_a_dumb_terminal(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "1", term="dumb")
    t.prompt()
    assert "4,095 bytes is all that the system takes" in t.ask("/tokens " + "ab" * 2500)
    assert "all that the system takes" not in t.ask("/tokens " + "ab" * 1500)
    t.child.setecho(False)  # what is read here must be UTF-8
    t.child.ptyproc.write(b"a\xff\r")
    t.expect(r"\(this is not UTF-8, byte 1")
    t.prompt()
    assert users(t) == ["a\ufffd"]


def test_what_is_typed_during_a_reply_is_shown_in_the_next_prompt_alone(terminal: Any, smollm2: str) -> None:
    t = terminal("chat", smollm2, "--max-tokens", "60", "--system", "")
    t.prompt()
    t.type("Write a very long story about a ship.\r")
    t.expect(r"\x1b\[\?2004l")
    t.expect(r"\w+ \w+ ")
    t.type("typed ahead")
    shown = t.prompt()
    assert "(cut at 60 tokens" in shown
    assert "ahead" not in shown
    t.expect("typed ahead")
    t.ask(" of it")
    assert users(t)[1] == "typed ahead of it"


# ---- Questions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_another_chat_of_a_name_is_replaced_only_by_a_yes(terminal: Any, tiny_model: str, term: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "1", term=term)
    t.prompt()
    t.ask("one")
    assert "(saved: " in t.ask("/save kept")
    assert "(saved: " in t.ask("/save kept")  # it is this very chat
    t.ask("/clear")
    t.ask("two")
    for no in ("\r", "n\r", "\x03", "\x04", "yesterday\r", " \r"):
        t.type("/save kept\r")
        t.expect(r"there is another chat 'kept', of 20\d\d-\d\d-\d\d \d\d:\d\d: replace it\? \[y/N\] ")
        time.sleep(0.2)
        assert "not saved" in t.ask(no, end="")
        assert users(t, "kept") == ["one"]
    t.type("/save kept\r")
    t.expect(r"\[y/N\] ")
    time.sleep(0.2)
    assert "(saved in its place: " in t.ask("y")
    assert users(t, "kept") == ["two"]
    if term != "dumb":
        t.ask("\x1b[A\x1b[A\x01\x0bthree")  # the answer is no line of the history, nor in the way of the next one
        assert users(t) == ["two", "three"]
    assert "(saved: " in t.ask("/save")
    assert t.ask("/save last") == "error: last is the chat that each turn saves: to keep this one choose another name"
    assert t.ask("/save ../x").startswith("error: a chat's name must be")


def test_a_chat_that_begins_anew_has_no_name(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "1")
    t.prompt()
    t.ask("one")
    t.ask("/save kept")
    t.ask("/clear")
    t.ask("two")
    assert "(saved: " in t.ask("/save")  # under the time that it is
    assert users(t, "kept") == ["one"]
    assert len(list((t.home / "chats").glob("*.json"))) == 3


def test_a_chat_that_was_not_saved_is_there_after_another_was_loaded(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "1")
    t.prompt()
    t.ask("one")
    t.ask("/save kept")
    t.ask("/clear")
    t.ask("two")
    assert "/load last goes back" in t.ask("/load kept")
    assert "goes back" not in t.ask("/load kept")  # that would be another one
    assert "goes back" not in t.ask("/load last")
    t.ask("three")
    assert users(t) == ["two", "three"]
    t.ask("/load kept")
    t.ask("four")
    assert users(t) == ["one", "four"]


# ---- Stop texts ---------------------------------------------------------------------------------------------------


def test_stop_texts_are_shown_added_and_forgotten(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "9")
    t.prompt()
    assert t.ask("/stop") == "no text ends a reply"
    t.ask("hello")
    whole = contents(t)[1]
    middle = re.findall(r"[!-~]{3}", whole)[-1]
    assert t.ask("/stop " + PASTE.format(middle)).startswith("a reply ends at: ")
    t.ask("/undo")
    t.ask("hello")
    assert contents(t)[1] == whole[: whole.index(middle)]
    assert "ended by: stop, the text " in t.ask("/stats")
    assert t.ask("/stop -") == "no text ends a reply"
    assert t.ask("/stop a\\n") == 'a reply ends at: "a\\\\n"'  # escapes are none
    assert t.ask("/stop " + PASTE.format("\n")) == 'a reply ends at: "a\\\\n", "\\n"'
    assert t.ask("/stop a\\n") == 'a reply ends at: "a\\\\n", "\\n"'  # once is enough


def test_stop_texts_of_the_command_line_are_kept_with_the_chat(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "1", "--stop", "###", "--stop", "b c")
    t.prompt()
    assert t.ask("/stop") == 'a reply ends at: "###", "b c"'
    t.ask("x")
    t.type("\x04")
    assert t.leaves_with() == 0
    again = terminal("chat", tiny_model, "--max-tokens", "1", "--resume")
    again.prompt()
    assert again.ask("/stop") == 'a reply ends at: "###", "b c"'


# ---- Another model ------------------------------------------------------------------------------------------------


def test_another_model_keeps_the_other_replies(terminal: Any, tiny_model: str, smollm2: str) -> None:
    t = terminal("chat", smollm2, "--max-tokens", "3", "--temperature", "1", "--window", "200")
    t.prompt()
    t.ask("one")
    t.ask("/regenerate")
    t.ask("/regenerate")
    first = t.ask("/regenerate 1")
    shown = t.ask(f"/model {tiny_model}")
    assert "the messages come from another model" in shown.replace("\n", " ")
    assert t.ask("/regenerate 1") == first
    assert "(reply 3 of 3)" in t.ask("/regenerate 3")
    assert "of a window of 200" in t.ask("/window")
    assert "(reply 4 of 4" in t.ask("/regenerate")
    assert t.messages()[1]["cut"]
