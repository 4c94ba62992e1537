"""The recorded results that the page ships: what the engine says now, and good for what the page wants to show.

Here three of the eighteen conversations are held anew; `make check-recorded` compares the whole file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import pantheon
from pantheon import record as recorder
from pantheon.chat import presets
from pantheon.chat.wire import page_reading
from pantheon.cli import run

FILE = Path(pantheon.__file__).parent / "web" / "static" / "recorded.json"
MAKE_ANEW = "if this is meant to have changed: make recorded"


@pytest.fixture(scope="module")
def model(smollm2: str) -> Iterator[pantheon.Model]:
    with pantheon.load(smollm2) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    """The shipped file, unfolded."""
    return recorder.unfold(json.loads(FILE.read_text("utf-8")))


def turns_of(recorded: dict[str, Any], system: str, window: int) -> list[dict[str, Any]]:
    return [recorded["turns"][index] for index in recorded["runs"][system][str(window)]]


def replies_of(recorded: dict[str, Any], system: str) -> dict[int, list[str]]:
    """The texts of the replies for each window."""
    return {
        window: [turn["reply"]["text"] for turn in turns_of(recorded, system, window)] for window in recorded["windows"]
    }


# ---- What the file says is what the engine says -------------------------------------------------------------------


def test_a_conversation_held_by_hand_is_the_recorded_one(model: pantheon.Model, recorded: dict[str, Any]) -> None:
    """Without the recorder: the same prompts, ids, replies, rivals and programs, bit for bit."""
    shipped = turns_of(recorded, "none", 256)
    chat = model.chat(window=256, reply_limit=96)
    for message, turn in zip(recorded["messages"], shipped, strict=True):
        reply = chat.send(message, logprobs=5)
        assert chat.reading is not None
        assert turn["reading"] == page_reading(chat.reading), MAKE_ANEW
        assert turn["python"] == chat.reading.to_python()
        assert reply.logprobs is not None
        kept = turn["reply"]
        assert (kept["text"], kept["finish_reason"], kept["limit"]) == (reply.text, reply.finish_reason, 96), MAKE_ANEW
        assert kept["tokens"]["id"] == list(reply.tokens)
        for columns, tokens in [
            (kept["tokens"], reply.logprobs),
            *zip(kept["top"], (each.top for each in reply.logprobs), strict=True),
        ]:
            assert columns["id"] == [token.id for token in tokens]
            assert columns["hex"] == [token.bytes.hex() for token in tokens]
            assert columns["logprob"] == [round(token.logprob, 3) for token in tokens]


def test_the_recorder_says_of_some_conversations_what_the_file_says(
    model: pantheon.Model, recorded: dict[str, Any]
) -> None:
    chosen = [("pirate", 128), ("date", 256)]
    fresh = recorder.unfold(recorder.record(model, "SmolLM2-135M-Instruct", only=chosen))
    for system, window in chosen:
        assert turns_of(fresh, system, window) == turns_of(recorded, system, window), MAKE_ANEW
    same = set(recorded) - {"turns", "runs"}
    assert {key: recorded[key] for key in same} == {key: fresh[key] for key in same}, MAKE_ANEW


def test_the_file_is_what_would_be_written_and_small() -> None:
    text = FILE.read_text("utf-8")
    assert recorder.as_json(json.loads(text)) == text
    assert len(text.encode()) < 400_000


# ---- It shows what it is meant to show ----------------------------------------------------------------------------


def test_there_is_a_run_for_each_system_prompt_and_window(recorded: dict[str, Any]) -> None:
    assert recorded["windows"] == [128, 256, 512, 1024, 2048, 8192]
    assert list(recorded["runs"]) == [system["key"] for system in recorded["systems"]] == ["none", "pirate", "date"]
    for key, runs in recorded["runs"].items():
        assert list(runs) == list(map(str, recorded["windows"]))
        for window in recorded["windows"]:
            for number, turn in enumerate(turns_of(recorded, key, window)):
                reading = turn["reading"]
                assert reading["window"] == window
                assert reading["reserve"] == turn["reply"]["limit"] == (64 if window == 128 else 96)
                assert reading["prompt_tokens"] + reading["reserve"] <= window
                text = bytes.fromhex("".join(reading["tokens"]["hex"])).decode()
                assert f"<|im_start|>user\n{recorded['messages'][number]}<|im_end|>" in text
                assert (reading["inserted_system"] is not None) == (key == "none")
                assert len(turn["reply"]["tokens"]["id"]) <= turn["reply"]["limit"]


def test_the_name_comes_from_the_system_prompt(recorded: dict[str, Any]) -> None:
    assert recorded["messages"][0] == "Who are you?"
    assert all("SmolLM" in texts[0] for texts in replies_of(recorded, "none").values())
    assert all("Captain Mary" in texts[0] for texts in replies_of(recorded, "pirate").values())


def test_the_year_comes_from_the_system_prompt(recorded: dict[str, Any]) -> None:
    assert recorded["messages"][-1] == "What year is it?"
    assert recorded["date"] == "2026-07-01"
    assert all("2026" in texts[-1] for texts in replies_of(recorded, "date").values())
    assert all("2026" not in texts[-1] for key in ("none", "pirate") for texts in replies_of(recorded, key).values())


def test_a_window_of_256_leaves_out_the_first_message_and_the_own_one_nothing(recorded: dict[str, Any]) -> None:
    for key in recorded["runs"]:
        last = turns_of(recorded, key, 256)[-1]["reading"]
        first = 0 if key == "none" else 1
        assert last["dropped"][0]["messages"] == [first, first + 1]
        assert last["dropped"][0]["texts"][0] == {"role": "user", "content": "Who are you?"}
        assert turns_of(recorded, key, 8192)[-1]["reading"]["dropped"] == []


def test_a_recorded_program_prints_the_recorded_prompt(
    recorded: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    turn = turns_of(recorded, "date", 256)[-1]
    exec(turn["python"], {})
    text = bytes.fromhex("".join(turn["reading"]["tokens"]["hex"])).decode()
    count = turn["reading"]["prompt_tokens"]
    assert capsys.readouterr().out == f"1 turn left out; the prompt is {count} tokens:\n{text}\n"


# ---- Presets ------------------------------------------------------------------------------------------------------


def test_the_texts_of_a_day() -> None:
    none, pirate, today = presets.SYSTEMS
    day = date(2028, 2, 29)
    assert none.on(day) is None
    assert pirate.on(day) == pirate.text
    assert today.on(day) == (
        "You are a helpful AI assistant named SmolLM. Today's date is 29 February 2028. The year is 2028."
    )
    assert [presets.in_words(date(2026, month, 1)) for month in (1, 12)] == ["1 January 2026", "1 December 2026"]


def test_a_reply_may_take_half_of_a_window_at_most() -> None:
    limits = {window: presets.reply_limit_in(window) for window in (1, 2, 128, 191, 192, 256, 8192)}
    assert limits == {1: 1, 2: 1, 128: 64, 191: 95, 192: 96, 256: 96, 8192: 96}


# ---- The command --------------------------------------------------------------------------------------------------


def test_the_command_writes_and_compares(
    smollm2: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "WINDOWS", ())
    monkeypatch.setattr(recorder, "SYSTEMS", presets.SYSTEMS[2:])
    monkeypatch.setattr(recorder, "MESSAGES", presets.MESSAGES[-1:])
    assert run(["record", smollm2]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["runs"] == {"date": {"8192": [0]}}
    assert err.endswith(f"1 turns, {len(out.encode()):,} bytes\n")
    file = tmp_path / "recorded.json"
    file.write_text(out, "utf-8")
    assert run(["record", smollm2, "--check", str(file)]) == 0
    out, err = capfd.readouterr()
    assert out == ""
    assert err.endswith(f"{file} is what SmolLM2-135M-Instruct-Q8_0 says: 1 turns, bit for bit\n")
    lines = file.read_text("utf-8").split("\n")
    lines[8] += " "
    file.write_text("\n".join(lines), "utf-8")
    assert run(["record", smollm2, "--check", str(file)]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    n = len(lines)
    assert f"line 9 differs (of {n} lines; a fresh run has {n}); to make it anew: make recorded" in err
    assert run(["record", smollm2, "--check", str(tmp_path / "none")]) == 1
    assert str(tmp_path / "none") in capfd.readouterr().err


def test_a_difference_is_named_also_where_one_text_ends() -> None:
    assert recorder.difference("a\nb\n", "a\nb\n") is None
    assert recorder.difference("a\nb\n", "a\nc\n") == "line 2 differs (of 3 lines; a fresh run has 3)"
    assert recorder.difference("a\nb", "a\nb\nc") == "line 3 differs (of 2 lines; a fresh run has 3)"
