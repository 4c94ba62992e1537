"""Chat files that are cut short, foreign, newer, edited badly or made to deceive: one typed error that names the file
and the place, or a note; never a crash, never a control token out of a text.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pantheon
from pantheon.chat import saving
from pantheon.errors import (
    ArgumentError,
    ChatTemplateError,
    DamagedFileError,
    FileError,
    NotSavedFileError,
    OtherModelError,
    PantheonError,
    SavedFileError,
    UnsupportedError,
)

Form = dict[str, Any]


@pytest.fixture(scope="module")
def model(tiny_model: str) -> Iterator[pantheon.Model]:
    with pantheon.load(tiny_model, threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def saved(model: pantheon.Model, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small chat: system, user, a reply with two versions."""
    path = tmp_path_factory.mktemp("saved") / "chat.json"
    chat = model.chat("Be brief.", window=128, reply_limit=4)
    chat.send("Hi")
    chat.regenerate(temperature=1.0, seed=1).finish()
    chat.save(path)
    return path.read_bytes()


def load(model: pantheon.Model, path: Path, data: bytes | Form) -> pantheon.Chat:
    path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    return model.load_chat(path)


def test_a_file_cut_short_anywhere_is_refused(model: pantheon.Model, saved: bytes, tmp_path: Path) -> None:
    for length in range(len(saved) - 2):
        with pytest.raises(SavedFileError) as caught:
            load(model, tmp_path / "cut.json", saved[:length])
        assert str(tmp_path / "cut.json") in str(caught.value)


def test_a_changed_byte_is_refused_or_gives_a_chat_that_talks(
    model: pantheon.Model, saved: bytes, tmp_path: Path
) -> None:
    for at in range(0, len(saved), 3):
        data = bytearray(saved)
        data[at] ^= (1, 0x10, 0x80)[at // 3 % 3]
        with contextlib.suppress(PantheonError):
            chat = load(model, tmp_path / "changed.json", bytes(data))
            chat.count()
            chat.close()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\0" * 100, b"GGUF", b"PNSTATE\n", b"[]", b"1", b"null", b"{}", b'{"format": "other"}', b"\xff\xfe{}",
        b'"pantheon chat"', b'{"messages": []}', b"[" * 100_000, b"1" * 100_000,
    ],
)  # fmt: skip
def test_another_kind_of_file_is_refused(model: pantheon.Model, data: bytes, tmp_path: Path) -> None:
    with pytest.raises(NotSavedFileError):
        load(model, tmp_path / "foreign.json", data)


def change(key: str, value: Any) -> Callable[[Form], None]:
    """Set a value at "a.b.3.c"; a value of `...` removes it."""

    def apply(form: Form) -> None:
        *path, name = [int(part) if part.isdigit() else part for part in key.split(".")]
        at: Any = form
        for part in path:
            at = at[part]
        if value is ...:
            del at[name]
        else:
            at[name] = value

    return apply


LONG = 10**400
DEEP: Any = []
for _ in range(60):
    DEEP = [DEEP]

BAD: list[tuple[str, Any, type[PantheonError]]] = [
    ("version", 2, UnsupportedError),
    ("version", "1", DamagedFileError),
    ("version", True, DamagedFileError),
    ("version", ..., DamagedFileError),
    ("model", "x", DamagedFileError),
    ("model.fingerprint", ..., DamagedFileError),
    ("model.fingerprint", 7, DamagedFileError),
    ("model.fingerprint", "0" * 16, OtherModelError),
    ("model.more", 1, DamagedFileError),
    ("window", 0, DamagedFileError),
    ("window", -1, DamagedFileError),
    ("window", 1.5, DamagedFileError),
    ("window", LONG, DamagedFileError),
    ("window", 10_000, DamagedFileError),
    ("window", None, DamagedFileError),
    ("reply_limit", 0, DamagedFileError),
    ("policy", "none", DamagedFileError),
    ("policy", ["drop_oldest"], DamagedFileError),
    ("fraction", 0, DamagedFileError),
    ("fraction", "a", DamagedFileError),
    ("template", "/etc/passwd", DamagedFileError),
    ("template", "../x.jinja", DamagedFileError),
    ("template", "", DamagedFileError),
    ("template", "{% broken", ChatTemplateError),
    ("template", 1, DamagedFileError),
    ("now", "yesterday", DamagedFileError),
    ("now", 0, DamagedFileError),
    ("tools", {}, DamagedFileError),
    ("tools", DEEP, DamagedFileError),
    ("tools", ["\ud800"], DamagedFileError),
    ("fold_system", 1, DamagedFileError),
    ("sampling", [], DamagedFileError),
    ("system", "no longer here", DamagedFileError),
    ("messages", {}, DamagedFileError),
    ("messages", [1], DamagedFileError),
    ("messages.1.role", "developer", DamagedFileError),
    ("messages.1.role", "<|im_start|>", DamagedFileError),
    ("messages.1.role", None, DamagedFileError),
    ("messages.1.content", "\ud83d", DamagedFileError),
    ("messages.1.content", ["a"], DamagedFileError),
    ("messages.1.content", ..., DamagedFileError),
    ("messages.1.contents", "typo", DamagedFileError),
    ("messages.1.name", 1, DamagedFileError),
    ("messages.1.tool_calls", "x", DamagedFileError),
    ("messages.1.tool_calls", [DEEP], DamagedFileError),
    ("messages.2.cut", 1, DamagedFileError),
    ("messages.2.cut", "yes", DamagedFileError),
    ("messages.2.ids", "1 2", DamagedFileError),
    ("messages.2.ids", [-1], DamagedFileError),
    ("messages.2.ids", [2**32], DamagedFileError),
    ("messages.2.ids", [1.0], DamagedFileError),
    ("messages.2.ids", [True], DamagedFileError),
    ("messages.2.ids", [LONG], DamagedFileError),
    ("messages.2.versions", [], DamagedFileError),
    ("messages.2.versions", [{}], DamagedFileError),
    ("messages.2.versions.0.versions", [], DamagedFileError),
    ("messages.2.chosen", 0, DamagedFileError),
    ("messages.2.chosen", 2, DamagedFileError),
    ("messages.2.chosen", -1, DamagedFileError),
    ("dropped", [{"messages": [9], "tokens": 1, "reason": ""}], DamagedFileError),
    ("dropped", [{"messages": [], "tokens": 1, "reason": ""}], DamagedFileError),
    ("dropped", [{"messages": [2, 1], "tokens": 1, "reason": ""}], DamagedFileError),
    ("dropped", [{"messages": [1], "tokens": -(2**31), "reason": ""}], DamagedFileError),
    ("dropped", [{"messages": [1], "tokens": 2**31, "reason": ""}], DamagedFileError),
    ("dropped", [{"messages": [1], "tokens": 1, "reason": 1}], DamagedFileError),
    ("cache", 1, DamagedFileError),
    ("cache", {"tokens": 1}, DamagedFileError),
    ("surprise", 1, DamagedFileError),
    ("\ud800", 1, DamagedFileError),
]


@pytest.mark.parametrize(("key", "value", "error"), BAD)
def test_a_value_that_makes_no_sense_is_refused_by_its_place(
    model: pantheon.Model, saved: bytes, key: str, value: Any, error: type[PantheonError], tmp_path: Path
) -> None:
    form = copy.deepcopy(json.loads(saved))
    change(key, value)(form)
    with pytest.raises(error) as caught:
        load(model, tmp_path / "bad.json", form)
    message = str(caught.value)
    message.encode()  # it can be printed
    assert len(message) < 1000
    if error is DamagedFileError:
        assert str(tmp_path / "bad.json") in message
        assert key.rsplit(".", 1)[-1] in message or key[0] in "m\ud800" or key.startswith("dropped")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"window": 128', b'"window": NaN'),
        (b'"fraction": 0.5', b'"fraction": Infinity'),
        (b'"fraction": 0.5', b'"fraction": 1e999'),
        (b'"window": 128', b'"window": ' + b"9" * 10_000),
        (b'"window": 128', b'"window": 128, "window": 128'),
        (b'"tools": null', b'"tools": ' + b"[" * 50_000 + b"]" * 50_000),
        (b'"Hi"', b'"H\x00"'),
        (b'"Hi"', b'"\xed\xa0\x80"'),
    ],
)
def test_what_is_no_json_is_refused(
    model: pantheon.Model, saved: bytes, before: bytes, after: bytes, tmp_path: Path
) -> None:
    assert before in saved
    with pytest.raises(SavedFileError):
        load(model, tmp_path / "bad.json", saved.replace(before, after))


@pytest.mark.parametrize(
    "ids",
    [[511], [512], [2**32 - 1], [], [300, 301], "stop", "more", "start"],
)
def test_ids_that_do_not_spell_the_text_are_not_used_and_a_note_says_so(
    model: pantheon.Model, saved: bytes, ids: Any, tmp_path: Path
) -> None:
    form = json.loads(saved)
    reply = form["messages"][2]
    own = reply["ids"]
    stop = model.tokenizer.token_id("<|im_end|>")
    reply["ids"] = {"stop": [*own, stop], "more": [*own, own[0]], "start": [*own[1:]]}.get(str(ids), ids)
    chat = load(model, tmp_path / "edited.json", form)
    assert chat._turns[2].ids is None
    assert any("messages[2]" in note and "not used" in note for note in chat.notes)
    fresh = model.chat("Be brief.", messages=chat.messages[1:], window=128, reply_limit=4)
    assert chat.send("And?").tokens == fresh.send("And?").tokens


def test_ids_of_others_than_the_model_are_not_used(model: pantheon.Model, saved: bytes, tmp_path: Path) -> None:
    form = json.loads(saved)
    form["messages"][1]["ids"] = model.tokenizer.encode("Hi").tolist()
    chat = load(model, tmp_path / "edited.json", form)
    assert chat._turns[1].ids is None
    assert any("messages[1]" in note for note in chat.notes)


def test_no_control_token_comes_out_of_a_file(model: pantheon.Model, saved: bytes, tmp_path: Path) -> None:
    """The model may have written one, which its text does not show; a file may not."""
    form = json.loads(saved)
    form["messages"][2]["ids"].append(model.tokenizer.token_id("<|im_start|>"))
    chat = load(model, tmp_path / "edited.json", form)
    assert chat._turns[2].ids is None
    assert any("messages[2]" in note and "<|im_start|>" in note for note in chat.notes)
    trusted = pantheon.Chat.load(tmp_path / "edited.json", model, trusted=True)
    assert trusted._turns[2].ids == tuple(form["messages"][2]["ids"])


def test_any_depth_of_nesting_is_refused(model: pantheon.Model, saved: bytes, tmp_path: Path) -> None:
    """Near the limit of the interpreter's stack, too, where a value can be read and not be shown."""
    limit = sys.getrecursionlimit()
    for depth in range(limit - 250, limit):
        data = saved.replace(b'"window": 128', b'"window": ' + b'{"a":' * depth + b"1" + b"}" * depth)
        with pytest.raises(SavedFileError):
            load(model, tmp_path / "deep.json", data)


def test_a_byte_order_mark_is_no_damage(model: pantheon.Model, saved: bytes, tmp_path: Path) -> None:
    assert load(model, tmp_path / "bom.json", b"\xef\xbb\xbf" + saved).messages[1].content == "Hi"


def test_a_gigabyte_is_refused_before_it_is_read(model: pantheon.Model, tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(FileError, match="64 MiB"):
        model.load_chat(path)


def test_a_pipe_or_device_is_refused_at_once(model: pantheon.Model, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(FileError):
            model.load_chat(path)


def test_options_that_there_are_not_are_refused(model: pantheon.Model, saved: bytes, tmp_path: Path) -> None:
    (tmp_path / "chat.json").write_bytes(saved)
    with pytest.raises(ArgumentError, match="windows"):
        model.load_chat(tmp_path / "chat.json", windows=3)
    with pytest.raises(ArgumentError, match="context length"):
        model.load_chat(tmp_path / "chat.json", window=10_000)
    assert saving.cache_path(tmp_path / "a.b") == tmp_path / "a.b.kv"
