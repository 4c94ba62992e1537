"""The commands of the chat on a real (pseudo) terminal. What they did is looked up in the chat that was kept."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pseudo_terminal import PASTE

import pantheon
from pantheon.repl import COMMANDS
from pantheon.repl.commands import unknown

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

NAMES = "help quit exit clear system show tokens window regenerate undo edit continue save load stats seed stop"
NAMES += " temperature"


def roles(messages: list[dict[str, Any]]) -> list[str]:
    return [message["role"] for message in messages]


def test_the_table_has_each_command_once_and_help_lists_it(terminal: Any, tiny_model: str) -> None:
    assert sorted(command.name for command in COMMANDS) == sorted([*NAMES.split(), "model"])
    t = terminal("chat", tiny_model)
    t.prompt()
    shown = t.ask("/help")
    for command in COMMANDS:
        assert f"/{command.name} {command.arguments}".rstrip() in shown
        assert command.help in shown
    assert t.ask("/hlep") == "there is no command /hlep, perhaps /help? /help lists them"
    assert t.ask("/xyzzy") == "there is no command /xyzzy; /help lists them"
    assert t.ask("/undo it") == "usage: /undo: take the last message and its reply back"
    assert "there was no reply yet" in t.ask("/stats")
    assert "nothing was read yet" in t.ask("/show")
    assert "nothing to take back" in t.ask("/undo")
    assert "nothing was said yet" in t.ask("/regenerate")
    assert "there is no reply to choose" in t.ask("/regenerate 9")
    assert "nothing to save" in t.ask("/save")
    t.ask("/system x")
    assert t.ask("/load") == "(no chat was kept yet)"
    assert not (t.home / "chats").exists()  # an empty chat takes no other's place
    t.type("/und\t\r")  # completed
    t.expect("nothing to take back")
    t.prompt()
    t.type("/exit\r")
    assert t.leaves_with() == 0


@pytest.mark.parametrize(
    ("typed", "offer"), [("sho", "show"), ("regen", "regenerate"), ("QUIT", "quit"), ("temprature", "temperature")]
)
def test_the_nearest_command_is_offered(typed: str, offer: str) -> None:
    assert f"perhaps /{offer}?" in unknown(typed)


def test_show_is_what_the_model_read(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "3", "--system", "s")
    t.prompt()
    t.ask("Is <|im_end|> a word?")
    drawn = t.ask("/show")
    prompt = (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nIs <|im_end|> a word?<|im_end|>\n<|im_start|>assistant\n"
    )
    with pantheon.Tokenizer.from_file(tiny_model) as tokenizer:
        start, end = tokenizer.token_id("<|im_start|>"), tokenizer.token_id("<|im_end|>")

        def written(role: str, text: str) -> list[int]:
            return [start, *tokenizer.encode(f"{role}\n{text}").tolist()]

        tail = tokenizer.encode("\n").tolist()
        ids = [*written("system", "s"), end, *tail, *written("user", "Is <|im_end|> a word?"), end, *tail]
        ids += written("assistant", "")
        spelled = len(tokenizer.encode("<|im_end|>"))
    assert t.ask("/show text") == prompt.rstrip("\n")
    assert t.ask("/show ids") == " ".join(map(str, ids))
    read = json.loads(t.ask("/show json"))
    assert (read["text"], read["prompt_tokens"]) == (prompt, len(ids))
    assert f"{len(ids)} tokens read: 0 reused, {len(ids)} evaluated" in drawn
    assert f"[{'#' * -(-len(ids) * 40 // 256)}-" in drawn
    assert "⟦<|im_start|>⟧user\\n\nIs <|im_end|> a word?⟦<|im_end|>⟧" in drawn
    assert "look-alike: message 1 (user) spells <|im_end|>" in drawn
    counted = re.findall(r"^ *(\d+)  (.*)$", t.ask("/tokens"), re.MULTILINE)
    assert [int(n) for n, _ in counted[:-2]] == [piece["tokens"] for piece in read["pieces"]]
    assert [int(n) for n, name in counted if name == "read for the last reply"] == [len(ids)]
    assert t.ask("/tokens <|im_end|>").endswith(f"\n{spelled} tokens")
    t.ask("And again")
    stats = t.ask("/stats")
    again = json.loads(t.ask("/show json"))
    assert f"prompt: {again['prompt_tokens']} tokens, {again['reused_tokens']} of them reused" in stats
    assert again["reused_tokens"] >= len(ids)
    for words in ("time to first token: 0.", "tokens/s", "seed ", "all 2 replies"):
        assert words in stats
    assert t.ask("/show nonsense").startswith("usage: /show [FORM]")


def test_replies_are_made_again_taken_back_changed_and_continued(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "4", "--temperature", "0.9", "--seed", "1")
    t.prompt()
    first = t.ask("one")
    assert "(cut at 4 tokens" in first
    said = t.messages()
    assert roles(said) == ["user", "assistant"]
    again = t.ask("/regenerate")  # the seed of the command line would make the same
    assert "(reply 2 of 2" in again
    assert t.messages()[1]["content"] != said[1]["content"]
    for bad in (0, 3, -1):
        assert t.ask(f"/regenerate {bad}") == f"error: there is no reply {bad}: there are 2, /regenerate 1 to 2"
    t.ask("/regenerate 1")
    assert t.messages()[1]["content"] == said[1]["content"]
    more = t.ask("/continue")
    assert roles(t.messages()) == ["user", "assistant"]
    longer = t.messages()[1]["content"]
    assert longer.startswith(said[1]["content"])
    assert len(longer) > len(said[1]["content"])
    assert "(cut at 4 tokens" in more or "nothing to add" in more
    t.ask("two")
    assert t.ask("/undo") == "(taken back: two)"
    assert t.messages()[1]["content"] == longer
    t.ask("/edit 0 three")
    assert [message["content"] for message in t.messages()][:1] == ["three"]
    assert len(t.messages()) == 2
    assert "message 1 says this now" in t.ask("/edit 1 four")
    assert [message["content"] for message in t.messages()] == ["three", "four"]
    t.ask("/edit")  # the last message comes into the line editor
    t.ask(" and more")
    assert t.messages()[0]["content"] == "three and more"
    assert "which message?" in t.ask("/edit 9 x")
    assert "a whole number belongs there, not 'x'" in t.ask("/edit x y")
    t.ask("/edit")
    t.ask("\x15\x03", end="")  # and stays as it was
    assert t.messages()[0]["content"] == "three and more"
    assert t.ask("/undo") == "(taken back: three and more)"
    assert "nothing to take back" in t.ask("/undo")


def test_how_it_is_answered_can_be_changed(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "3")
    t.prompt()
    assert t.ask("/temperature") == "temperature: 0 (the likeliest token each time)"
    assert t.ask("/temperature 0.7") == "temperature: 0.7"
    assert t.ask("/temperature -1").startswith("error: temperature must be")
    assert t.ask("/temperature warm").startswith("usage: /temperature")
    assert t.ask("/temperature") == "temperature: 0.7"
    assert t.ask("/seed 7") == "seed: 7"
    drawn = t.ask("hello")
    t.ask("/undo")
    assert t.ask("hello") == drawn
    assert t.ask("/seed random") == "seed: a fresh one for each reply; the last reply's was 7"
    assert t.ask("/seed -1").startswith("error: seed must be")
    assert "the template inserts: You are a helpful AI assistant" in t.ask("/system")
    assert t.ask("/system Be short.") == "system text: Be short."
    t.ask("hi")
    assert t.messages()[0] == {"role": "system", "content": "Be short."}
    assert t.ask('/system ""') == "the system text is empty"
    assert "the template inserts" in t.ask("/system -")
    t.ask("/system You are\\\na pirate.".replace("\n", "\r"))
    assert t.messages()[0] == {"role": "system", "content": "You are\na pirate."}
    assert "of a window of 256" in t.ask("/window")
    assert "of a window of 100" in t.ask("/window 100")
    assert t.ask("/window 300").startswith("error: window must be at most the model's context length of 256")
    assert "of a window of 256" in t.ask("/window max")
    assert t.ask("/clear") == ""
    assert t.ask("/system") == "system text: You are\na pirate."
    assert "(llama, " in t.ask("/model")
    assert t.ask("/model nothing").startswith("error: ")
    t.ask("hi")
    assert tiny_model in t.ask(f"/model {tiny_model}").replace("\n", "")
    t.ask("there")
    assert [message["content"] for message in t.messages() if message["role"] == "user"] == ["hi", "there"]


def test_a_turn_that_is_left_out_is_said_at_that_moment(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "4", "--window", "100", "--system", "")
    t.prompt()
    shown = [t.ask(f"message number {n}") for n in range(4)]
    first = next(n for n, text in enumerate(shown) if "is full" in text)
    assert shown[first].startswith("(the window of 100 is full: messages ")  # before the reply
    assert first > 0
    assert "left out" in t.ask("/show")
    assert len(t.messages()) == 9  # nothing is lost


# ---- Chats that are kept -----------------------------------------------------------------------------------------


def test_chats_are_saved_by_name_and_loaded(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "4", "--temperature", "0.5")
    t.prompt()
    t.ask("first")
    assert t.ask("/save one") == f"(saved: {t.home / 'chats' / 'one.json'})"
    t.ask("second")
    assert t.ask("/save") == f"(saved: {t.home / 'chats' / 'one.json'})"
    assert len(t.messages("one")) == 4
    t.ask("/clear")
    t.ask("/temperature 0")
    t.ask("other")
    assert re.search(r"\d\d:\d\d  one$", t.ask("/load"), re.MULTILINE)
    assert "(going on after 4 messages)" in t.ask("/load one")
    assert t.ask("/temperature") == "temperature: 0.5"
    t.ask("third")
    assert [m["content"] for m in t.messages() if m["role"] == "user"] == ["first", "second", "third"]
    for bad in ("/save ../evil", "/load ../evil", "/save .evil", "/load none"):
        assert t.ask(bad).startswith("error: ")
    (t.home / "chats" / "bad.json").write_text('{"format": "pantheon chat", "version": 1')
    assert t.ask("/load bad").startswith("error: ")
    t.ask("fourth")
    assert len(t.messages()) == 8  # what failed left all as it was
    t.type("/load o\t\r")
    t.expect("going on after 4 messages")


def test_an_undo_of_all_is_kept_and_an_empty_new_chat_is_not(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "2")
    t.prompt()
    t.ask("/system early")
    assert not (t.home / "chats").exists()
    t.ask("one")
    t.ask("/undo")
    assert roles(t.messages()) == ["system"]
    t.ask("/system -")
    assert t.messages() == []
    t.type("\x04")
    assert t.leaves_with() == 0
    again = terminal("chat", tiny_model, "--max-tokens", "2", "--resume")
    assert "going on" not in again.prompt()
    again.ask("two")
    again.ask("/clear")
    again.ask("/system late")
    assert roles(again.messages()) == ["user", "assistant"]  # of before /clear
    again.ask("/load last")
    again.ask("/undo")
    assert again.messages() == []


def test_a_chat_of_another_model_is_taken_over_and_a_line_says_so(terminal: Any, tiny_model: str, smollm2: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "4")
    t.prompt()
    t.ask("first")
    t.type("\x04")
    assert t.leaves_with() == 0
    other = terminal("chat", smollm2, "--max-tokens", "4", "--resume", "--window", "100", "--system", "Be short.")
    other.expect("the messages come from another model, tiny.gguf")
    other.prompt()
    assert "of a window of 100" in other.ask("/window")  # what the command line says counts more
    other.ask("second")
    assert [m["content"] for m in other.messages() if m["role"] != "assistant"] == ["Be short.", "first", "second"]


def test_resume_after_a_kill_goes_on_with_the_last_chat(terminal: Any, smollm2: str) -> None:
    options = ("chat", smollm2, "--max-tokens", "30", "--system", "You are a helpful assistant.")
    t = terminal(*options)
    t.prompt()
    assert t.ask("What is the capital of France?") == "The capital of France is Paris."
    t.type("Tell me a long story.\r")
    t.expect(r"\w+ \w+ \w+")
    t.child.kill(signal.SIGKILL)
    t.child.wait()
    assert oct((t.home / "chats" / "last.json").stat().st_mode & 0o777) == "0o600"
    again = terminal("chat", smollm2, "--resume", "--temperature", "0")
    assert "(going on after 3 messages)" in again.prompt()
    assert again.ask("And Germany?") == "The capital of Germany is Berlin."
    assert roles(again.messages()) == ["system", *["user", "assistant"] * 2]


def test_a_full_disk_is_said_once_and_the_chat_goes_on(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "2")
    t.prompt()
    (t.home / "chats").write_text("in the way")
    assert "error: the chat was not kept" in t.ask("one")
    assert "error" not in t.ask("two")
    assert t.ask("/save x").startswith("error: ")


def test_resume_without_a_chat_is_a_failure_that_says_so(tiny_model: str, tmp_path: Path) -> None:
    done = pipe(tiny_model, b"", tmp_path, "--resume")
    assert done.returncode == 1
    assert done.stdout == b""
    assert b"there is no chat to go on with" in done.stderr


# ---- Entering a message -------------------------------------------------------------------------------------------

PASTED = [
    ("first\n\n\tthird  \n", "first\n\n\tthird  \n"),
    ("/save x", "/save x"),
    ("/quit\nmore", "/quit\nmore"),
    ('"""\ndoc\n"""', '"""\ndoc\n"""'),
    ("dos\r\nlines\r\n", "dos\r\nlines\r\n"),
    ("one\rtwo\r", "one\ntwo\n"),  # as terminals send newlines
    ("ends with a backslash\\", "ends with a backslash\\"),
    ("안녕 🤗 \u202e \x1b[31m \x07", "안녕 🤗 \u202e \x1b[31m \x07"),
]


def test_a_paste_is_one_message_byte_for_byte(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "1")
    t.prompt()
    for pasted, wanted in PASTED:
        t.ask("/clear")
        raw = t.raw(PASTE.format(pasted))
        assert "\x07" not in raw
        assert [m["content"] for m in t.messages() if m["role"] == "user"] == [wanted]
    t.ask("/clear")
    t.ask("by hand")
    t.ask(PASTE.format("/quit"))
    t.ask("\x1b[A")  # brought back from the history it would count as typed: it is not there
    assert [m["content"] for m in t.messages() if m["role"] == "user"] == ["by hand", "/quit", "by hand"]
    t.ask("/clear")
    t.ask("/system " + PASTE.format("two\nlines"))  # a typed command may be given pasted text
    t.ask("x")
    assert t.messages()[0] == {"role": "system", "content": "two\nlines"}


def test_a_paste_behind_a_command_arrives_byte_for_byte(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "1")
    t.prompt()
    t.ask("x")
    for pasted in ("\n\n  indented\n\ttab  \n\n", "  ", "plain"):
        t.ask("/system  " + PASTE.format(pasted))
        assert t.messages()[0] == {"role": "system", "content": pasted}
        if pasted.strip():
            t.ask("/edit 1  " + PASTE.format(pasted))
            assert t.messages()[1] == {"role": "user", "content": pasted}
    t.ask("/system " + PASTE.format(" a ") + " and " + PASTE.format(" b\r\n") + "  ")
    assert t.messages()[0]["content"] == " a  and  b\r\n"
    t.ask("/sistem " + PASTE.format("\tc ") + "\x01\x1b[C\x1b[C\x1b[3~y")  # the command's word is corrected
    assert t.messages()[0]["content"] == "\tc "
    t.ask("/edit " + PASTE.format("1\ttwo "))
    assert t.messages()[1]["content"] == "two "
    t.ask("/edit 1 \\\r  typed  ")  # what is typed around a text is no part of it
    assert t.messages()[1]["content"] == "typed"
    t.ask("/temperature " + PASTE.format("0.5\n"))
    assert t.ask("/temperature") == "temperature: 0.5"


def test_json_on_a_terminal_stays_json(terminal: Any, tiny_model: str, tmp_path: Path) -> None:
    said = "a\x9b31m\u202e\x7f\u200f\x1b"
    (tmp_path / "said.json").write_text(json.dumps([{"role": "user", "content": said}]))
    t = terminal("read", tiny_model, "--messages", str(tmp_path / "said.json"), "--format", "json", "--window", "250")
    shown = t.expect(r"\d+ tokens\r\n")
    assert said in json.loads(shown[: shown.rindex("}") + 1])["text"]


def test_several_lines_can_be_typed(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "1")
    t.prompt()
    t.ask("one\\\rtwo\x1b\rthree")
    assert t.messages()[0]["content"] == "one\ntwo\nthree"
    t.ask("/clear")
    t.ask(" /quit")  # a space in front makes it text
    assert t.messages()[0]["content"] == " /quit"
    t.ask("/clear")
    t.ask("/etc/passwd is a file")
    assert t.messages()[0]["content"] == "/etc/passwd is a file"
    t.ask("/clear")
    t.ask("hello\x1b[<bad\x1b[31Mx")  # what looks like a broken mouse is no reason to fail
    assert t.messages()[0]["content"].startswith("hello")


def test_the_history_is_the_users_alone_and_kept_apart_from_chats(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "1")
    t.prompt()
    t.ask("remember me")
    t.ask(PASTE.format("/quit now"))
    t.type("\x04")
    assert t.leaves_with() == 0
    kept = t.home / "history"
    assert oct(kept.stat().st_mode & 0o777) == "0o600"
    assert "+remember me\n" in kept.read_text()
    assert "/quit" not in kept.read_text()
    os.chmod(kept, 0o644)
    again = terminal("chat", tiny_model, "--max-tokens", "1")
    again.prompt()
    assert oct(kept.stat().st_mode & 0o777) == "0o600"
    again.ask("\x1b[A")
    assert again.messages()[0]["content"] == "remember me"


# ---- Terminals ----------------------------------------------------------------------------------------------------


def test_twenty_columns_are_enough(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "2", columns=20)
    t.expect("reset")
    t.prompt()
    t.ask("hello there, how are you today?")
    assert t.messages()[0]["content"] == "hello there, how are you today?"
    for line in ("/help", "/window"):
        shown = t.ask(line).splitlines()
        assert all(len(part) <= 20 for part in shown[: 1 if line == "/window" else None]), shown
    assert "[#" in t.ask("/show")


def test_without_colours_nothing_is_coloured_and_nothing_is_lost(terminal: Any, tiny_model: str) -> None:
    plain = terminal("chat", tiny_model, "--max-tokens", "2", "--markdown", NO_COLOR="1")
    plain.prompt()
    coloured = terminal("chat", tiny_model, "--max-tokens", "2")
    coloured.prompt()
    plain.ask("Is <|im_end|> one?")
    coloured.ask("Is <|im_end|> one?")
    without, with_colours = plain.raw("/show"), coloured.raw("/show")
    colour = re.compile(r"\x1b\[[1-9][0-9;]*m")
    assert not colour.search(without)
    assert colour.search(with_colours)
    assert coloured.ask("/show") == plain.ask("/show")


def test_a_dumb_terminal_gets_no_escape_sequence(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "3", "--markdown", term="dumb")
    t.expect("reset")
    t.prompt()
    for line in ("hello", "/show", "/help", "/tokens", "/stats", "/regenerate", "/undo", "/nonsense"):
        assert "\x1b" not in t.raw(line)
    t.type("one\\\r")
    t.ask("two")
    assert t.messages()[0]["content"] == "one\ntwo"
    t.ask("/edit")
    t.ask("three")
    assert t.messages()[0]["content"] == "three"
    t.type("\x04")
    assert t.leaves_with() == 0


def test_progress_is_shown_while_a_long_prompt_is_read(terminal: Any, smollm2: str) -> None:
    t = terminal("chat", smollm2, "--max-tokens", "1")
    t.prompt()
    t.type_much(PASTE.format("word " * 4000) + "\r", 0.2)
    assert re.search(r"reading: \d+% of 4,0\d\d tokens", t.expect(r"reading: [1-9]\d*% of 4,0\d\d tokens"))
    t.type("\x03")
    t.expect("taken back")


def pipe(model: str, stdin: bytes, home: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "pantheon", "chat", model, "--max-tokens", "3", *arguments]
    environment = {**os.environ, "PANTHEON_HOME": str(home)}
    return subprocess.run(command, input=stdin, env=environment, capture_output=True, timeout=60)


def test_over_a_pipe_stdout_has_the_replies_alone_and_other_commands_are_text(tiny_model: str, tmp_path: Path) -> None:
    done = pipe(tiny_model, b"one\n/save x\n/show\n/quit\nnever\n", tmp_path)
    with pantheon.load(tiny_model) as model, model.chat(reply_limit=3) as chat:
        wanted = "".join(chat.send(text).text + "\n" for text in ("one", "/save x", "/show"))
    assert done.stdout.decode() == wanted
    assert not (tmp_path / "chats").exists()


def test_over_a_pipe_a_chat_can_be_resumed(terminal: Any, tiny_model: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "3")
    t.prompt()
    t.ask("one")
    t.type("\x04")
    t.leaves_with()
    done = pipe(tiny_model, b"two\n", t.home, "--resume")
    assert done.returncode == 0
    assert [m["content"] for m in t.messages() if m["role"] == "user"] == ["one", "two"]


def test_line_editing_and_drawing_are_imported_when_they_are_needed() -> None:
    code = "import sys, pantheon.cli, pantheon.repl; print({'prompt_toolkit', 'rich'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).stdout == b"set()\n"
