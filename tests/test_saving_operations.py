"""Any sequence of operations, with a save and a load in the middle: the loaded chat is what the saved one was, and what
is done to it afterwards comes out as it does in the chat that was never away.

CASES=2000 in the environment runs more of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from test_session import check_next_reply
from test_session_operations import OPERATIONS, WINDOWS, Book, Operation, do

import pantheon
from pantheon.errors import ContextError

CASES = int(os.environ.get("CASES", "60"))


@pytest.fixture(scope="module")
def model(tiny_model: str) -> Iterator[pantheon.Model]:
    with pantheon.load(tiny_model, blas=False, threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chats") / "chat.json"


def facts(chat: pantheon.Chat) -> tuple[object, ...]:
    versions = [(turn.message, turn.message.cut, turn.ids, turn.versions, turn.chosen) for turn in chat._turns]
    cuts = [message.cut for message in chat.alternatives]
    return versions, cuts, chat._dropped, chat.window, chat.reply_limit


@settings(
    deadline=None, max_examples=CASES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(WINDOWS, OPERATIONS, OPERATIONS, st.booleans())
def test_a_save_and_a_load_change_nothing(
    model: pantheon.Model, path: Path, window: int, before: list[Operation], after: list[Operation], cache: bool
) -> None:
    book: Book = [("system", "s")]
    with model.chat("s", window=window) as chat:
        for operation in before:
            book = do(chat, book, operation)
        chat.save(path, cache=cache)
        with model.load_chat(path, trusted=True) as loaded:
            assert not any("messages[" in note and "not used" in note for note in loaded.notes)
            assert facts(loaded) == facts(chat)
            if cache:
                assert (loaded._state.tokens == chat._state.tokens).all()
            for operation in after[:3]:
                expected = do(chat, book, operation)
                assert do(loaded, book, operation) == expected
                book = expected
                assert facts(loaded) == facts(chat)
            event(f"left out: {len(loaded._dropped)}, versions: {len(loaded.alternatives)}")
            try:
                check_next_reply(loaded)
            except ContextError:
                event("the next message is too long for the window")
