"""Chats to files and back: the next turn equals that of the unsaved run and evaluates only its new tokens.

The oracle is the conversation that was never saved. Files that are damaged, foreign, newer, forged or edited badly are
in test_hostile_chat_files.py; the binary format of caches is in test_saving_states.py.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import CHATML, write_model

import pantheon
from pantheon.chat import saving
from pantheon.errors import ArgumentError, BusyError, ContextError, DamagedFileError, FileError, OtherModelError


@pytest.fixture(scope="module")
def model(tiny_model: str) -> Iterator[pantheon.Model]:
    with pantheon.load(tiny_model, threads=1) as model:
        yield model


def two_turns(model: pantheon.Model, **options: Any) -> pantheon.Chat:
    chat = model.chat("You are brief.", **{"window": 200, "reply_limit": 12, **options})
    chat.send("What is the capital of France?")
    chat.send("And Germany?", temperature=0.9, seed=3)
    return chat


def third(chat: pantheon.Chat) -> tuple[Any, ...]:
    """A greedy reply, and all that the model read for it."""
    reply = chat.send("And Spain?")
    assert chat.reading is not None
    return reply.tokens, reply.text, reply.finish_reason, [token.id for token in chat.reading.tokens], chat.messages


IN_A_NEW_PROCESS = """
import json, sys, pantheon
model = pantheon.load(sys.argv[1], threads=2, isa="portable")
chat = model.load_chat(sys.argv[2])
reply = chat.send("And Spain?")
print(json.dumps([list(reply.tokens), reply.usage.prompt_tokens, reply.usage.reused_tokens, chat.notes]))
"""


@pytest.mark.parametrize("cache", [True, False])
def test_a_new_process_goes_on_as_if_nothing_had_been(
    model: pantheon.Model, tiny_model: str, cache: bool, tmp_path: Path
) -> None:
    chat = two_turns(model)
    chat.save(tmp_path / "chat.json", cache=cache)
    assert sorted(os.listdir(tmp_path)) == (["chat.json", "chat.kv"] if cache else ["chat.json"])
    done = subprocess.run(
        [sys.executable, "-c", IN_A_NEW_PROCESS, tiny_model, tmp_path / "chat.json"], capture_output=True, check=True
    )
    tokens, prompt, reused, notes = json.loads(done.stdout)
    expected = chat.send("And Spain?")
    assert tokens == list(expected.tokens)
    assert prompt == expected.usage.prompt_tokens
    assert reused == (expected.usage.reused_tokens if cache else 0)
    assert notes == []


def test_the_real_model_evaluates_only_new_tokens_after_loading(smollm2: str, tmp_path: Path) -> None:
    with pantheon.load(smollm2) as model:
        chat = model.chat("You are a helpful assistant.", window=512, reply_limit=24)
        chat.send("What is the capital of France?")
        chat.send("And Germany?")
        chat.save(tmp_path / "chat.json", cache=True)
        expected = chat.send("And Spain?")
        loaded = model.load_chat(tmp_path / "chat.json")
        reply = loaded.send("And Spain?")
    assert reply.text == expected.text
    assert reply.tokens == expected.tokens
    assert reply.usage == expected.usage
    assert reply.usage.prompt_tokens - reply.usage.reused_tokens < 20


def test_all_that_belongs_to_a_chat_comes_back(model: pantheon.Model, tmp_path: Path) -> None:
    chat = two_turns(model, now=datetime(2024, 2, 29, 12, 30, 1, 5), policy="drop_to_fraction", fraction=0.75)
    chat.regenerate(temperature=1.0, seed=8).finish()
    chat.save(tmp_path / "chat.json", sampling={"temperature": 0.5, "stop": ["x"]})
    loaded = pantheon.Chat.load(tmp_path / "chat.json", model)
    assert loaded.messages == chat.messages
    assert [m.cut for m in loaded.messages] == [m.cut for m in chat.messages]
    assert any(message.cut for message in chat.messages)
    assert loaded._turns == chat._turns
    assert loaded.alternatives == chat.alternatives
    assert len(loaded.alternatives) == 2
    assert loaded.chosen == chat.chosen == 1
    assert (loaded.window, loaded.reply_limit, loaded.policy, loaded._fraction) == (200, 12, "drop_to_fraction", 0.75)
    assert loaded._now == chat._now
    assert loaded.sampling == {"temperature": 0.5, "stop": ["x"]}
    loaded.choose(0)
    chat.choose(0)
    assert third(loaded) == third(chat)
    loaded.clear()
    assert [message.content for message in loaded.messages] == ["You are brief."]
    loaded.save(tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text())["sampling"] == {"temperature": 0.5, "stop": ["x"]}


def test_tools_and_arrangements_come_back(model: pantheon.Model, tmp_path: Path) -> None:
    template = "{% for t in tools %}{{ t.name }};{% endfor %}" + str(model.metadata["tokenizer.chat_template"])
    (tmp_path / "template.jinja").write_text(template)
    tools = [{"name": "add", "n": [1, 2.5, None, True], "deep": {"a": []}}]
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": {"a": 1}}]}
    messages = [{"role": "user", "content": "1+1? é\u200b\n"}, call, {"role": "tool", "content": "2", "name": "add"}]
    options = {"template": str(tmp_path / "template.jinja"), "tools": tools, "merge_roles": True, "fold_system": True}
    chat = model.chat(messages=messages, **options)
    chat.save(tmp_path / "chat.json")
    (tmp_path / "template.jinja").unlink()  # its text is in the file
    loaded = model.load_chat(tmp_path / "chat.json")
    assert loaded.messages == chat.messages
    assert loaded._options == chat._options
    assert third(loaded) == third(chat)
    loaded.save(tmp_path / "again.json")
    assert len(json.loads((tmp_path / "again.json").read_text())["messages"]) == 5


def test_what_was_left_out_stays_out(model: pantheon.Model, tmp_path: Path) -> None:
    chat = model.chat("Be brief.", window=110, reply_limit=16)
    for n in range(5):
        chat.send(f"What is the capital of number {n}?")
    assert chat._dropped
    chat.save(tmp_path / "chat.json", cache=True)
    loaded = model.load_chat(tmp_path / "chat.json")
    assert loaded._dropped == chat._dropped
    assert third(loaded) == third(chat)
    wide = model.load_chat(tmp_path / "chat.json", window=256)
    assert wide.window == 256
    assert not wide._dropped
    strict = model.load_chat(tmp_path / "chat.json", policy="error")  # which leaves nothing out
    with pytest.raises(ContextError):
        strict.send("And Spain?")
    assert strict.count() > strict.window


def test_what_was_left_out_may_be_taken_back(model: pantheon.Model, tmp_path: Path) -> None:
    """What is left out of the conversation is no longer there after some undos: nothing of it may stay in the file."""
    chat = model.chat("s", window=70, reply_limit=4)
    for n in range(6):
        chat.send(f"hello number {n}")
    assert len(chat._dropped) > 2
    while chat.undo():
        chat.save(tmp_path / "chat.json")
        loaded = model.load_chat(tmp_path / "chat.json")
        assert (loaded.messages, loaded._dropped) == (chat.messages, chat._dropped)
        assert third(loaded) == third(chat)
        chat.undo()


def test_a_template_that_says_more_when_it_is_given_less_comes_back(model: pantheon.Model, tmp_path: Path) -> None:
    """Leaving an exchange out can make the prompt longer, so its number of tokens can be below zero."""
    longer = "{% if messages|length < 4 %}{{ 'a long introduction for a short conversation ' * 3 }}{% endif %}"
    said = [("user" if n % 2 == 0 else "assistant", f"t{n} " * 8) for n in range(6)]
    messages = [pantheon.Message(*pair) for pair in said]
    chat = model.chat(template=longer + CHATML, window=134, reply_limit=1, messages=messages)
    chat.send("t")
    assert min(out.tokens for out in chat._dropped) < 0
    chat.save(tmp_path / "chat.json")
    assert model.load_chat(tmp_path / "chat.json")._dropped == chat._dropped


def test_a_chat_that_could_not_be_loaded_is_not_saved(
    model: pantheon.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "MAX_BYTES", 4000)
    path = os.fsencode(tmp_path / "chat.json")
    model.chat("x" * 2000).save(path, cache=True)
    assert model.load_chat(path).messages[0].content == "x" * 2000
    with pytest.raises(ArgumentError, match="too large"):
        model.chat("x" * 4000).save(path, cache=True)
    assert model.load_chat(path).messages[0].content == "x" * 2000


def test_the_file_is_readable_and_may_be_edited(model: pantheon.Model, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    chat = two_turns(model)
    chat.send("Grüße, 你好 🙂")
    chat.save(path, cache=True)
    text = path.read_text("utf-8")
    assert '"content": "Grüße, 你好 🙂"' in text
    form = json.loads(text)
    assert (form["format"], form["version"]) == ("pantheon chat", 1)
    assert form["model"]["fingerprint"] == model.fingerprint
    assert form["messages"][2]["ids"] == list(chat._turns[2].ids or ())
    form["messages"][2]["content"] = "It is Rome."
    path.write_text(json.dumps(form))  # no indent: any JSON will do
    edited = model.load_chat(path)
    assert edited.messages[2].content == "It is Rome."
    assert edited._turns[2].ids is None
    assert edited._turns[4].ids == chat._turns[4].ids
    assert any("messages[2]" in note and "spell" in note for note in edited.notes)
    fresh = model.chat(messages=edited.messages, window=200, reply_limit=12)
    fresh._turns = edited._turns
    assert third(edited) == third(fresh)


def test_another_model_is_refused_unless_only_the_messages_are_wanted(model: pantheon.Model, tmp_path: Path) -> None:
    chat = two_turns(model)
    chat.save(tmp_path / "chat.json", cache=True)
    with pantheon.load(write_model(tmp_path / "other.gguf", seed=1, n_ctx=128), threads=1) as other:
        with pytest.raises(OtherModelError, match="ignore_model=True"):
            other.load_chat(tmp_path / "chat.json")
        taken = other.load_chat(tmp_path / "chat.json", ignore_model=True)
        assert taken.messages == chat.messages
        assert all(turn.ids is None for turn in taken._turns)
        assert taken.window == 128
        assert any("another model" in note for note in taken.notes)
        assert len(taken._state) == 0


# ---- The cache beside it ----


def test_a_cache_that_is_missing_or_of_another_moment_is_not_used_and_a_note_says_so(
    model: pantheon.Model, tmp_path: Path
) -> None:
    path = tmp_path / "chat.json"
    chat = two_turns(model)
    chat.save(path, cache=True)
    before = path.read_bytes()
    expected = third(chat)
    chat.save(path, cache=True)
    path.write_bytes(before)  # as if the process had died between the two files
    loaded = model.load_chat(path)
    assert any("another moment" in note for note in loaded.notes)
    assert len(loaded._state) == 0
    assert third(loaded) == expected
    (tmp_path / "chat.kv").unlink()
    loaded = model.load_chat(path)
    assert any("not there" in note for note in loaded.notes)
    assert third(loaded) == expected


def test_a_damaged_cache_is_refused_with_the_cure(model: pantheon.Model, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    chat = two_turns(model)
    chat.save(path, cache=True)
    cache = bytearray((tmp_path / "chat.kv").read_bytes())
    cache[len(cache) // 2] ^= 1
    (tmp_path / "chat.kv").write_bytes(cache)
    with pytest.raises(DamagedFileError, match=r"chat\.kv.*cache=False"):
        model.load_chat(path)
    assert third(model.load_chat(path, cache=False)) == third(chat)


# ---- The file system ----


def test_a_full_disk_leaves_the_old_file(model: pantheon.Model, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    chat = two_turns(model)
    chat.save(path)
    before = path.read_bytes()
    third(chat)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    try:
        for cache in (False, True):
            with pytest.raises(FileError, match="cannot write"):
                chat.save(path, cache=cache)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["chat.json"]
    assert path.stat().st_mode & 0o777 == 0o600


KILLED = """
import sys, pantheon
chat = pantheon.load(sys.argv[1], threads=1).load_chat(sys.argv[2])
print(flush=True)
while True:
    chat.save(sys.argv[2], cache=True)
"""


def test_kill_in_mid_save_leaves_a_chat_that_loads(model: pantheon.Model, tiny_model: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    chat = two_turns(model)
    chat.save(path, cache=True)
    process = subprocess.Popen([sys.executable, "-c", KILLED, tiny_model, path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    loaded = model.load_chat(path)
    assert loaded.notes == []
    assert third(loaded) == third(chat)


@pytest.mark.parametrize("path", ["/proc/chat.json", "/no/such/folder/chat.json", "/dev/null", "/", ""])
def test_places_where_no_chat_can_be(model: pantheon.Model, path: str) -> None:
    chat = model.chat()
    for call in (chat.save, model.load_chat):
        with pytest.raises((FileError, ArgumentError)):
            call(path)
    with pytest.raises(ArgumentError):
        chat.save("a\0b")


def test_a_chat_in_the_middle_of_a_reply_is_not_saved(model: pantheon.Model, tmp_path: Path) -> None:
    chat = two_turns(model)
    stream = chat.stream("And Spain?")
    next(stream)
    with pytest.raises(BusyError):
        chat.save(tmp_path / "chat.json")
    assert os.listdir(tmp_path) == []
    stream.close()
    chat.save(tmp_path / "chat.json")
    assert model.load_chat(tmp_path / "chat.json").messages[-1].cut


def test_what_has_no_place_in_json_is_refused_before_a_file_is_made(model: pantheon.Model, tmp_path: Path) -> None:
    chat = two_turns(model)
    for sampling in ({"temperature": float("nan")}, {"a": object()}, {"a": "\ud800"}):
        with pytest.raises(ArgumentError):
            chat.save(tmp_path / "chat.json", sampling=sampling)
    assert os.listdir(tmp_path) == []


# ---- The user's own folder ----


def test_named_chats(model: pantheon.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PANTHEON_HOME", str(tmp_path / "home"))
    assert saving.list_named() == []
    assert saving.last() is None
    chat = two_turns(model)
    for moment, name in enumerate(("first", "Zwei Wörter", "third")):
        path = saving.save_named(chat, name, cache=True)
        assert path == tmp_path / "home" / "chats" / f"{name}.json"
        os.utime(path, (moment, moment))
    (path.parent / ".hidden.json").write_text("{}")
    (path.parent / "folder.json").mkdir()
    old = path.parent / ".pantheon-1-1.tmp"
    old.write_text("")
    os.utime(old, (0, 0))
    assert [entry.name for entry in saving.list_named()] == ["third", "Zwei Wörter", "first"]
    assert saving.last() == "third"
    assert third(saving.load_named("third", model)) == third(chat)
    assert path.stat().st_mode & 0o777 == path.with_suffix(".kv").stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    saving.save_named(chat, "third")
    assert not old.exists()
    saving.remove_named("third")
    assert not path.with_suffix(".kv").exists()
    assert saving.last() == "Zwei Wörter"
    with pytest.raises(FileError):
        saving.load_named("third", model)
    with pytest.raises(FileError):
        saving.remove_named("third")


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "../x", "a\\b", "a:b", " a", "a ", "a\0b", "a\nb", "x" * 121, "\ud800", 3]
)
def test_names_that_are_no_plain_ones_are_refused(name: Any) -> None:
    with pytest.raises(ArgumentError):
        saving.named_path(name)
