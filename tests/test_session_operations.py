"""Any sequence of operations on a chat, against two oracles: a plain list of messages that is kept here by the rules of
the documentation, and a fresh chat, whose next greedy reply must be the same.

"The same messages" means the same turns: roles and texts, of replies the ids that the model sampled (text alone does
not say which ids it was read as), and which exchanges the window has dropped already (they stay out).

CASES=2000 in the environment runs more of them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from test_session import check_next_reply, said

import pantheon
from pantheon.errors import ArgumentError, ContextError

CASES = int(os.environ.get("CASES", "150"))
Book = list[tuple[str, str]]
Operation = tuple[Any, ...]


@pytest.fixture(scope="module")
def model(tiny_model: str) -> Iterator[pantheon.Model]:
    with pantheon.load(tiny_model, blas=False, threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chats") / "chat.json"


WORDS = st.text(max_size=5) | st.sampled_from(["<|im_end|>", " the", "\n", "the system and the user " * 3, "🤗"])
PREFILLS = st.just("") | WORDS
STOPS = st.lists(st.sampled_from(["e", "t", " t", "he", "<|im_start|>", "\ufffd", "a\0"]), max_size=2)
OPTIONS = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 6),
        "temperature": st.sampled_from([0.0, 1.5]),
        "seed": st.integers(0, 50),
        "stop": STOPS,
        "speculate": st.sampled_from([False, False, 3]),
    }
)
CUTS = st.none() | st.tuples(st.integers(0, 3), st.sampled_from(["close", "stream", "chat", "thread"]))
INDICES = st.integers(0, 7)
SEND = st.tuples(st.just("send"), WORDS, PREFILLS, OPTIONS, CUTS)
REPLIES = st.one_of(
    SEND,
    st.tuples(st.just("regenerate"), PREFILLS, OPTIONS, CUTS),
    st.tuples(st.just("continue"), OPTIONS, CUTS),
    st.tuples(st.just("edit"), INDICES, WORDS, PREFILLS, OPTIONS, CUTS),
)
WINDOWS = st.sampled_from([45, 60, 80, 120, 256])
OTHERS = st.one_of(
    st.tuples(st.just("undo")),
    st.tuples(st.just("choose"), INDICES),
    st.tuples(st.just("system"), st.none() | WORDS),
    st.tuples(st.just("window"), WINDOWS),
    st.tuples(st.just("save and load"), st.booleans()),
    st.sampled_from([("clear",), ("undo",)]),
)
OPERATIONS = st.integers(0, 9).flatmap(
    lambda n: st.tuples(*[SEND, *[st.one_of(SEND, REPLIES, REPLIES, OTHERS)] * n]).map(list)
)


def read(chat: pantheon.Chat, stream: pantheon.ReplyStream, cut: tuple[int, str] | None) -> pantheon.Reply:
    """Read a reply to its end, or cut it after so many pieces."""
    if cut is None:
        return stream.finish()
    n, how = cut
    for _ in range(n):
        next(stream, None)
    if how == "close":
        stream.close()
    elif how == "stream":
        stream.cancel()
    elif how == "chat":
        chat.cancel()
    else:
        thread = threading.Thread(target=chat.cancel)
        thread.start()
        thread.join()
    return stream.finish()


def stays(reply: pantheon.Reply) -> bool:
    return bool(reply.tokens) or reply.finish_reason == "stop"


def reply_to(chat: pantheon.Chat, book: Book, operation: Operation) -> Book:
    """Do what makes a reply; the book afterwards."""
    name, *values = operation
    *values, options, cut = values
    stream: pantheon.ReplyStream | None
    if name == "send":
        text, prefill = values
        before = [*book, ("user", text)]
        stream = chat.stream(text, prefill=prefill, **options)
    elif name == "regenerate":
        before = book[:-1] if book and book[-1][0] == "assistant" else book
        stream = chat.regenerate(prefill=values[0], **options)
    elif name == "edit":
        index, text, prefill = values
        stream = chat.edit(index, text, prefill=prefill, **options)
        before = [*book[:index], (book[index][0], text)]
        assert (stream is not None) == (book[index][0] == "user")
        if stream is None:
            return before
    else:
        stream = chat.continue_(**options)
        before = book[:-1]
    reply = read(chat, stream, cut)
    if not stays(reply):
        return book
    assert chat.messages[-1].cut == (reply.finish_reason != "stop")
    text = reply.text
    if name == "continue":
        base = book[-1][1]
        if said(chat)[-1] != base + text:  # a character that was cut in two has become whole
            event("a character became whole")
            assert base.endswith("\ufffd")
            base = base[:-1]
        text = base + text
    return [*before, ("assistant", text)]


def change(chat: pantheon.Chat, book: Book, operation: Operation) -> Book:
    """Do what makes no reply; the book afterwards."""
    name = operation[0]
    if name == "undo":
        users = [index for index, (role, _) in enumerate(book) if role == "user"]
        taken = [(message.role, message.content) for message in chat.undo()]
        assert taken == (book[users[-1] :] if users else [])
        return book[: users[-1]] if users else book
    if name == "choose":
        texts = [message.content for message in chat.alternatives]
        chat.choose(operation[1])
        return [*book[:-1], ("assistant", texts[operation[1]])]
    if name == "system":
        chat.set_system(operation[1])
        rest = book[1:] if book and book[0][0] == "system" else book
        return rest if operation[1] is None else [("system", operation[1]), *rest]
    if name == "window":
        chat.window = operation[1]
        return book
    chat.clear()
    return [entry for entry in book[:1] if entry[0] == "system"]


def reloaded(chat: pantheon.Chat, path: Path, cache: bool) -> pantheon.Chat:
    """The chat as a file gives it back, with its cache or without; it goes on where the other one was."""
    chat.save(path, cache=cache)
    chosen, alternatives = chat.chosen, chat.alternatives
    chat.close()
    other = pantheon.Chat.load(path, chat._model, trusted=True)
    assert (other._turns, other._dropped, other.window) == (chat._turns, chat._dropped, chat.window)
    assert (other.chosen, other.alternatives) == (chosen, alternatives)
    assert [message.cut for message in other.messages] == [message.cut for message in chat.messages]
    return other


def do(chat: pantheon.Chat, book: Book, operation: Operation) -> Book:
    """One operation; what is refused changes nothing."""
    makes_reply = operation[0] in ("send", "regenerate", "edit", "continue")
    try:
        book = (reply_to if makes_reply else change)(chat, book, operation)
        event(f"{operation[0]}: done")
    except ContextError:
        event("too long for the window")
    except ArgumentError as error:
        if operation[0] == "send" or not ("there is no" in str(error) or "must be an integer in 0.." in str(error)):
            raise
    return book


@settings(
    deadline=None, max_examples=CASES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(WINDOWS, OPERATIONS)
def test_after_any_operations_a_chat_is_what_its_turns_say(
    model: pantheon.Model, file: Path, window: int, operations: list[Operation]
) -> None:
    book: Book = [("system", "s")]
    with contextlib.ExitStack() as stack:
        chat = stack.enter_context(model.chat("s", window=window))
        for operation in operations:
            if operation[0] == "save and load":
                event("save and load: done")
                chat = stack.enter_context(reloaded(chat, file, operation[1]))
            else:
                book = do(chat, book, operation)
            assert [(message.role, message.content) for message in chat.messages] == book
            for turn in chat._turns:
                if turn.ids is not None:
                    assert model.tokenizer.decode(turn.ids, special=False) == turn.message.content
        event(f"left out at the end: {len(chat._dropped)}")
        try:
            check_next_reply(chat)
        except ContextError:
            event("the next message is too long for the window")
