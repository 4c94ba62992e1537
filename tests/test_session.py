"""What one can do to a conversation: replies made again, taken back, edited, continued, begun, and awaited.

The oracle of the long test at the end is a fresh chat that is given the same turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from chat_worlds import FAMILIES
from test_chat_session_formats import model_of as model_of  # a fixture
from test_spm import LLAMA, write_spm_model

import pantheon
from pantheon.chat import Message
from pantheon.chat.messages import Turn
from pantheon.engine.tokenizer import PieceDecoder
from pantheon.errors import ArgumentError, BusyError, ContextError

A, B = 40, 41  # ordinary tokens of the tiny vocabulary
FORCE: dict[str, Any] = {"logit_bias": {A: 1000.0}}
FORCE_B: dict[str, Any] = {"logit_bias": {B: 1000.0}}
Make = Callable[..., str]


@pytest.fixture(scope="module")
def model(tiny_model: str) -> Iterator[pantheon.Model]:
    with pantheon.load(tiny_model, blas=False) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def real(smollm2: str) -> Iterator[pantheon.Model]:
    with pantheon.load(smollm2) as loaded:
        yield loaded


def play(monkeypatch: pytest.MonkeyPatch, ids: Sequence[int]) -> None:
    """Let the model say these ids, in this and later replies."""
    tokens = iter(ids)
    monkeypatch.setattr(pantheon.State, "sample", lambda self, sampler: next(tokens))


def end_of(model: pantheon.Model) -> int:
    return model.tokenizer.stop_ids[0]


def single(model: pantheon.Model, text: str) -> list[int]:
    return [int(model.tokenizer.encode(bytes([byte]))[0]) for byte in text.encode()]


def said(chat: pantheon.Chat) -> list[str]:
    return [message.content for message in chat.messages]


def page(chat: pantheon.Chat) -> str:
    """What the model has read, as text."""
    return chat._model.tokenizer.decode(chat._state.tokens)


def twin(chat: pantheon.Chat) -> pantheon.Chat:
    """A fresh chat that is given the same turns, with the ids of the replies that the model made."""
    fresh = chat._model.chat(window=chat.window, now=chat._now)
    fresh._turns, fresh._dropped = chat._turns, chat._dropped
    return fresh


def check_next_reply(chat: pantheon.Chat, text: str = "b") -> None:
    """The next greedy reply equals the fresh chat's."""
    fresh = twin(chat)
    one, other = chat.send(text, max_tokens=6), fresh.send(text, max_tokens=6)
    assert (one.tokens, one.text, one.finish_reason) == (other.tokens, other.text, other.finish_reason)
    assert chat._state.tokens.tolist() == fresh._state.tokens.tolist()


# ---- Again


def test_regenerate_draws_anew_reads_one_token_and_keeps_both(model: pantheon.Model) -> None:
    chat = model.chat("s")
    first = chat.send("a", max_tokens=6, temperature=1.0)
    replies = [first]
    for _ in range(3):
        reply = chat.regenerate(max_tokens=6, temperature=1.0).finish()
        assert reply.usage.evaluated_tokens == 1
        assert reply.usage.prompt_tokens == first.usage.prompt_tokens
        replies.append(reply)
    assert len({reply.seed for reply in replies}) == 4
    assert len({reply.tokens for reply in replies}) > 1
    assert [message.content for message in chat.alternatives] == [reply.text for reply in replies]
    assert said(chat) == ["s", "a", replies[3].text]
    assert chat.chosen == 3
    chat.choose(1)
    assert (said(chat), chat.chosen) == (["s", "a", replies[1].text], 1)
    assert chat._turns[-1].ids == replies[1].tokens
    assert len(chat.alternatives) == 4
    check_next_reply(chat)


def test_the_same_seed_gives_the_same_reply_again(model: pantheon.Model) -> None:
    chat = model.chat("s")
    first = chat.send("a", max_tokens=6, temperature=1.0, seed=5)
    assert chat.regenerate(max_tokens=6, temperature=1.0, seed=5).finish().tokens == first.tokens


def test_alternatives_belong_to_their_turn(model: pantheon.Model) -> None:
    chat = model.chat("s")
    chat.send("a", max_tokens=2, **FORCE)
    chat.regenerate(max_tokens=2, **FORCE_B).finish()
    assert len(chat.alternatives) == 2
    chat.send("b", max_tokens=2, **FORCE)
    assert len(chat.alternatives) == 1
    chat.undo()
    assert len(chat.alternatives) == 2
    assert chat.chosen == 1
    chat.undo()
    assert (chat.alternatives, chat.chosen) == ([], 0)


def test_a_conversation_that_waits_for_a_reply_gets_one(model: pantheon.Model) -> None:
    chat = model.chat("s", messages=[{"role": "user", "content": "a"}])
    reply = chat.regenerate(max_tokens=4).finish()
    assert reply.tokens == model.chat("s").send("a", max_tokens=4).tokens
    assert len(chat.messages) == 3


def test_where_there_is_nothing_the_error_says_so(model: pantheon.Model) -> None:
    for chat in (model.chat(), model.chat("s")):
        with pytest.raises(ArgumentError, match="nothing was said yet"):
            chat.regenerate()
        with pytest.raises(ArgumentError, match="no reply to continue"):
            chat.continue_()
        with pytest.raises(ArgumentError, match="no reply to choose"):
            chat.choose(0)
        assert chat.undo() == []
    with pytest.raises(ArgumentError, match="no message to edit"):
        model.chat().edit(0, "x")
    chat = model.chat("s")
    chat.send("a", max_tokens=1, **FORCE)
    for index in (3, -1, True):
        with pytest.raises(ArgumentError, match=r"index of a message must be an integer in 0\.\.2"):
            chat.edit(index, "x")
    with pytest.raises(ArgumentError, match=r"number of a reply must be an integer in 0\.\.0"):
        chat.choose(1)


def test_a_cut_before_the_first_token_leaves_everything_as_it_was(model: pantheon.Model) -> None:
    chat = model.chat("s")
    chat.send("a", max_tokens=3, **FORCE)
    before = chat._turns

    for ask in (
        lambda: chat.stream("b", prefill="x"),
        lambda: chat.regenerate(prefill="y"),
        lambda: chat.edit(1, "c"),
        chat.continue_,
    ):
        stream = ask()
        assert stream is not None
        stream.cancel()
        reply = stream.finish()
        assert (reply.text, reply.tokens, reply.finish_reason) == ("", (), "cancelled")
        assert chat._turns is before
    check_next_reply(chat)


# ---- Back


def test_undo_takes_the_last_exchange_back_with_all_its_messages(model: pantheon.Model) -> None:
    given = [
        Message("assistant", "hello"), Message("user", "a"), Message("assistant", "b"), Message("tool", "c"),
        Message("assistant", "d"),
    ]  # fmt: skip
    chat = model.chat("s", messages=given)
    assert chat.undo() == given[1:]
    assert said(chat) == ["s", "hello"]
    assert chat.undo() == []


def test_after_undo_and_the_same_message_one_token_is_read(model: pantheon.Model) -> None:
    chat = model.chat("s")
    chat.send("a", max_tokens=3, **FORCE)
    first = chat.send("b", max_tokens=5)
    assert chat.undo()[0] == Message("user", "b")
    again = chat.send("b", max_tokens=5)
    assert again.usage.evaluated_tokens == 1
    assert again.tokens == first.tokens


# ---- Edit


def test_an_edited_question_is_answered_and_what_followed_is_gone(model: pantheon.Model) -> None:
    chat = model.chat("s")
    for text in "abc":
        chat.send(text, max_tokens=2, **FORCE)
    stream = chat.edit(3, "other", max_tokens=4)
    assert stream is not None
    assert said(chat)[3] == "b", "nothing happens before the first piece"
    reply = stream.finish()
    assert [m.content for m in chat.messages if m.role == "user"] == ["a", "other"]
    fresh = model.chat("s")
    fresh._turns = chat._turns[:3]
    assert fresh.send("other", max_tokens=4).tokens == reply.tokens
    check_next_reply(chat)


def test_an_edited_reply_is_replaced_at_once_and_is_text_from_then_on(model: pantheon.Model) -> None:
    chat = model.chat("s")
    chat.send("a", max_tokens=2, **FORCE)
    chat.regenerate(max_tokens=2, **FORCE_B).finish()
    chat.send("b", max_tokens=2, **FORCE)
    assert chat.edit(2, "I said this<|im_end|>") is None
    assert said(chat) == ["s", "a", "I said this<|im_end|>"]
    assert chat._turns[-1].ids is None
    assert [m.content for m in chat.alternatives][1] == "I said this<|im_end|>"
    assert len(chat.alternatives) == 2
    check_next_reply(chat)
    assert chat._state.tokens.tolist().count(end_of(model)) == 4


def test_edit_of_the_system_text_drops_the_rest_and_set_system_keeps_it(model: pantheon.Model) -> None:
    chat = model.chat("s")
    chat.send("a", max_tokens=2, **FORCE)
    chat.set_system("other")
    assert said(chat)[:2] == ["other", "a"]
    check_next_reply(chat)
    chat.set_system(None)
    assert chat.messages[0].role == "user"
    check_next_reply(chat)
    chat.clear()
    assert chat.messages == []
    chat.set_system("new")
    chat.send("a", max_tokens=2, **FORCE)
    chat.clear()
    assert said(chat) == ["new"]
    chat.send("a", max_tokens=2, **FORCE)
    assert chat.edit(0, "newer") is None
    assert said(chat) == ["newer"]
    with pytest.raises(ArgumentError, match="surrogate"):
        chat.set_system("\ud800")


def test_with_another_system_text_the_window_is_filled_anew(model: pantheon.Model) -> None:
    chat = model.chat("system text", window=64)
    for text in "abcdef":
        chat.send(text, max_tokens=2, **FORCE)
    assert chat.reading is not None
    before = [out.messages for out in chat.reading.dropped]
    assert before
    assert len(chat.reading.newly_dropped) < len(before)
    chat.undo()
    chat.set_system("system")
    chat.send("d", max_tokens=2, **FORCE)
    assert chat.reading.newly_dropped == chat.reading.dropped
    check_next_reply(chat)


def test_a_change_in_the_middle_of_a_reply_is_refused(model: pantheon.Model) -> None:
    chat = model.chat("s")
    chat.send("a", max_tokens=2, **FORCE)
    before = chat._turns
    stream = chat.stream("b", max_tokens=5, **FORCE)
    next(stream)
    for use in (
        chat.undo, chat.clear, chat.regenerate, chat.continue_, lambda: chat.edit(1, "x"), lambda: chat.edit(2, "x"),
        lambda: chat.set_system("x"), lambda: chat.choose(0), lambda: chat.stream("c"),
    ):  # fmt: skip
        with pytest.raises(BusyError):
            use()
        assert chat._turns is before
    stream.close()


# ---- Continue and cut


def test_continue_extends_the_turn_without_a_new_header_and_reads_one_token(model: pantheon.Model) -> None:
    whole = model.chat("s").send("a", max_tokens=12)
    assert whole.finish_reason == "length"
    chat = model.chat("s")
    first = chat.send("a", max_tokens=5)
    assert chat.messages[-1].cut
    reply = chat.continue_(max_tokens=7).finish()
    assert reply.usage.evaluated_tokens == 1
    assert first.tokens + reply.tokens == whole.tokens == chat._turns[-1].ids
    assert said(chat) == ["s", "a", whole.text]
    assert first.text + reply.text == whole.text
    check_next_reply(chat)


def test_continue_after_the_models_own_end_goes_on_in_the_same_turn(
    model: pantheon.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = end_of(model)
    play(monkeypatch, [*single(model, "hi"), end, end, *single(model, "!"), end])
    chat = model.chat("s")
    chat.send("a")
    assert not chat.messages[-1].cut
    reply = chat.continue_().finish()
    assert (reply.text, reply.tokens, reply.finish_reason) == ("", (), "stop")
    assert said(chat) == ["s", "a", "hi"]
    assert chat.continue_().finish().usage.evaluated_tokens == 1
    assert said(chat) == ["s", "a", "hi!"]
    assert len(chat.messages) == 3


def test_a_character_cut_in_two_becomes_whole_when_the_reply_goes_on(
    model: pantheon.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = single(model, "a🤗b")
    play(monkeypatch, [*ids[:3], *ids[3:], end_of(model)])
    chat = model.chat("s")
    assert chat.send("a", max_tokens=3).text == "a\ufffd"
    stream = chat.continue_()
    assert list(stream) == ["🤗", "b"]
    assert said(chat)[-1] == "a🤗b"
    assert chat._turns[-1].ids == tuple(ids)
    play(monkeypatch, [*ids[:3], *single(model, "b"), end_of(model)])
    chat = model.chat("s")
    chat.send("a", max_tokens=3)
    assert chat.continue_().finish().text == "\ufffdb"
    assert said(chat)[-1] == "a\ufffdb"


def test_text_that_ends_with_a_replacement_character_is_not_half_a_character(
    model: pantheon.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, [*single(model, "x"), end_of(model)])
    chat = model.chat("s", messages=[Message("user", "a"), Message("assistant", "b\ufffd")])
    chat.continue_().finish()
    assert said(chat)[-1] == "b\ufffdx"


def test_a_given_or_edited_reply_can_be_continued(model: pantheon.Model) -> None:
    chat = model.chat("s", messages=[Message("user", "a"), Message("assistant", "The ", name="me")])
    reply = chat.continue_(max_tokens=3, **FORCE).finish()
    assert page(chat).endswith("<|im_start|>assistant\nThe " + model.tokenizer.decode([A, A]))
    assert chat.messages[-1] == Message("assistant", "The " + reply.text, name="me")
    assert chat.messages[-1].cut
    chat.edit(2, "No")
    chat.continue_(max_tokens=3, **FORCE).finish()
    assert page(chat).endswith("<|im_start|>assistant\nNo" + model.tokenizer.decode([A, A]))
    check_next_reply(chat)


def test_continue_belongs_to_the_version_that_it_continues(model: pantheon.Model) -> None:
    chat = model.chat("s")
    chat.send("a", max_tokens=2, **FORCE)
    chat.regenerate(max_tokens=2, **FORCE_B).finish()
    chat.choose(0)
    chat.continue_(max_tokens=1, **FORCE_B).finish()
    texts = [m.content for m in chat.alternatives]
    assert texts == [model.tokenizer.decode([A, A, B]), model.tokenizer.decode([B, B])]
    assert chat.messages[-1].content == texts[0]
    assert chat.chosen == 0


@pytest.mark.parametrize("n_tokens", [1, 2, 5])
@pytest.mark.parametrize("how", ["close", "cancel", "thread"])
def test_a_cut_reply_stays_marked_and_is_closed_when_the_next_turn_is_written(
    model: pantheon.Model, n_tokens: int, how: str
) -> None:
    chat = model.chat("s")
    stream = chat.stream("a", max_tokens=50, **FORCE)
    for _ in range(n_tokens):
        next(stream)
    if how == "close":
        stream.close()
    elif how == "cancel":
        stream.cancel()
        stream.finish()
    else:
        thread = threading.Thread(target=chat.cancel)
        thread.start()
        thread.join()
        stream.finish()
    assert stream.reply is not None
    assert stream.reply.finish_reason == "cancelled"
    assert chat.messages[-1].cut
    assert chat._turns[-1].ids == (A,) * n_tokens
    assert not any(message.cut for message in chat.messages[:-1])
    check_next_reply(chat)
    assert model.tokenizer.decode([A] * n_tokens) + "<|im_end|>\n<|im_start|>user\nb" in page(chat)


def test_the_mark_of_a_cut_is_no_difference_and_unseen_by_templates(model: pantheon.Model) -> None:
    cut = Message("assistant", "x", cut=True)
    assert cut == Message("assistant", "x")
    assert cut.extras() == {}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "x", "cut": True}]
    assert model.chat(messages=messages).messages[-1].cut
    assert model.chat().count(messages) == model.chat().count([Message("user", "a"), Message("assistant", "x")])
    with pytest.raises(ArgumentError, match="cut must be"):
        Message("assistant", "x", cut=1)  # type: ignore[arg-type]


@pytest.mark.timing
@pytest.mark.parametrize("how", ["chat", "stream", "close"])
def test_a_cancel_in_the_prompt_phase_is_obeyed_at_once(real: pantheon.Model, how: str) -> None:
    chat = real.chat("s")
    stream = chat.stream("word " * 5000, max_tokens=5)
    asked: list[float] = []

    def cancel() -> None:
        asked.append(time.monotonic())
        {"chat": chat.cancel, "stream": stream.cancel, "close": chat.close}[how]()

    timer = threading.Timer(0.3, cancel)
    timer.start()
    with contextlib.suppress(pantheon.CancelledError, pantheon.ClosedError):
        stream.finish()
    assert time.monotonic() - asked[0] < 0.2
    timer.join()
    if how != "close":
        assert said(chat) == ["s"]
        check_next_reply(chat, "What is the capital of France?")


def test_ctrl_c_between_a_token_and_its_text_leaves_neither(
    model: pantheon.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    push, count = PieceDecoder.push, itertools.count()

    def interrupted(self: PieceDecoder, token: int) -> bytes:
        if next(count) == 2:
            raise KeyboardInterrupt
        return push(self, token)

    chat = model.chat("s")
    stream = chat.stream("a", max_tokens=9, logprobs=0, **FORCE)
    monkeypatch.setattr(PieceDecoder, "push", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stream.finish()
    assert stream.reply is not None
    assert stream.reply.tokens == (A, A) == chat._turns[-1].ids
    assert stream.reply.text == model.tokenizer.decode([A, A]) == said(chat)[-1]
    assert len(stream.reply.logprobs or ()) == 2
    check_next_reply(chat)


@pytest.mark.timing
def test_ctrl_c_in_the_prompt_phase_is_obeyed_at_once(real: pantheon.Model) -> None:
    chat = real.chat("s")
    asked: list[float] = []

    def interrupt() -> None:
        asked.append(time.monotonic())
        signal.raise_signal(signal.SIGINT)

    timer = threading.Timer(0.3, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        chat.send("word " * 5000, max_tokens=5)
    assert time.monotonic() - asked[0] < 0.2
    timer.join()
    assert said(chat) == ["s"]
    check_next_reply(chat, "What is the capital of France?")


# ---- Prefill


@pytest.mark.parametrize("prefill", ["Sure, ", "Sure", " ", "\n\n", "<|im_end|>", "🤗"])
def test_a_reply_begins_with_its_prefill(model: pantheon.Model, prefill: str) -> None:
    chat = model.chat("s")
    stream = chat.stream("a", prefill=prefill, max_tokens=4, **FORCE)
    pieces = list(stream)
    assert stream.reply is not None
    generated = model.tokenizer.decode([A] * 4)
    assert "".join(pieces) == stream.reply.text == said(chat)[-1] == prefill + generated
    assert stream.reply.tokens == (A,) * 4
    assert page(chat).endswith("<|im_start|>assistant\n" + prefill + model.tokenizer.decode([A] * 3))
    ids = model.tokenizer.encode(prefill).tolist()
    assert chat._turns[-1].ids == (*ids, A, A, A, A)
    prompt = stream.reply.usage.prompt_tokens
    second = chat.send("b", max_tokens=2, **FORCE)
    assert second.usage.reused_tokens == prompt + 3, "the prefill's ids stay as they were read"
    check_next_reply(chat)


def test_an_empty_prefill_is_none(model: pantheon.Model) -> None:
    assert model.chat("s").send("a", prefill="", max_tokens=5).tokens == model.chat("s").send("a", max_tokens=5).tokens
    chat = model.chat("s")
    reply = chat.send("a", prefill="Sure", logit_bias={end_of(model): 1000.0})
    assert (reply.text, reply.tokens, reply.finish_reason, said(chat)[-1]) == ("Sure", (), "stop", "Sure")
    for bad in (3, None, "\ud800"):
        with pytest.raises(ArgumentError):
            chat.stream("a", prefill=bad)  # type: ignore[arg-type]


def test_a_prefill_for_another_reply_and_for_an_edited_question(model: pantheon.Model) -> None:
    chat = model.chat("s")
    chat.send("a", max_tokens=2, **FORCE)
    assert chat.regenerate(prefill="No, ", max_tokens=1, **FORCE).finish().text.startswith("No, ")
    assert len(chat.alternatives) == 2
    stream = chat.edit(1, "b", prefill="Yes", max_tokens=1, **FORCE)
    assert stream is not None
    assert stream.finish().text.startswith("Yes")
    assert said(chat)[1] == "b"


def test_a_prefill_in_every_family(model_of: Make) -> None:
    for name in FAMILIES:
        with pantheon.load(model_of(name)) as model:
            chat = model.chat()
            first = chat.send("a", prefill="So", max_tokens=3, **FORCE)
            assert first.text.startswith("So"), name
            header = model.tokenizer.decode(chat._state.tokens.tolist()[: chat.count([Message("user", "a")])])
            assert page(chat) == header + "So" + model.tokenizer.decode([A, A]), name
            second = chat.send("b", max_tokens=2, **FORCE)
            header_ids = chat.count([Message("user", "a")])
            assert second.usage.reused_tokens >= header_ids - 1, name
            check_next_reply(chat, "c")


def test_a_prefill_in_a_vocabulary_of_sentencepiece(tmp_path: Path) -> None:
    with pantheon.load(write_spm_model(tmp_path / "m.gguf", LLAMA)) as model:
        the = next(token for token in range(model.n_vocab) if model.tokenizer.piece(token) == b" the")
        force: dict[str, Any] = {"logit_bias": {the: 1000.0}}
        for prefill, whole in (("Sure", "Sure the the"), ("Sure, ", "Sure,  the the"), ("", "the the")):
            chat = model.chat()
            first = chat.send("Hi", prefill=prefill, max_tokens=2, **force)
            assert first.text == said(chat)[-1] == whole
            assert chat.continue_(max_tokens=1, **force).finish().text == " the"
            assert said(chat)[-1] == whole + " the"
            second = chat.send("Yo", max_tokens=1, **force)
            assert second.usage.reused_tokens == first.usage.prompt_tokens + 2
            check_next_reply(chat)


def test_real_words_go_on_from_a_prefill(real: pantheon.Model) -> None:
    chat = real.chat("You are a helpful assistant.")
    reply = chat.send("What is the capital of France?", prefill="The capital of")
    assert (reply.text, reply.finish_reason) == ("The capital of France is Paris.", "stop")
    assert chat.continue_().finish().text == ""
    cut = chat.send("And Germany?", max_tokens=3)
    rest = chat.continue_().finish()
    assert cut.text + rest.text == "The capital of Germany is Berlin."


def test_a_prefill_that_does_not_fit_is_refused_with_the_numbers(model: pantheon.Model) -> None:
    need = model.chat("s").count([Message("system", "s"), Message("user", "a")])
    chat = model.chat("s", window=need + 4)
    with pytest.raises(ContextError) as caught:
        chat.stream("a", prefill="😀" * 3, max_tokens=4)
    assert caught.value.prompt_tokens == need + len(model.tokenizer.encode("😀" * 3))


# ---- Async


def test_async_replies_never_block_the_loop(real: pantheon.Model) -> None:
    chat = real.chat("You are a helpful assistant.")
    beats: list[float] = []

    async def heart() -> None:
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(0.005)

    async def main() -> tuple[str, pantheon.Reply]:
        beating = asyncio.create_task(heart())
        stream = chat.astream("What is the capital of France?")
        pieces = [piece async for piece in stream]
        assert stream.reply is not None
        assert stream.reply.text == "".join(pieces)
        reply = await chat.asend("And Germany?")
        beating.cancel()
        return "".join(pieces), reply

    text, reply = asyncio.run(main())
    assert text == "The capital of France is Paris."
    assert reply.text == "The capital of Germany is Berlin."
    assert len(beats) > 10, "the loop ran all the while"


@pytest.mark.parametrize("phase", ["prompt", "reply"])
def test_a_cancelled_task_ends_the_reply(real: pantheon.Model, phase: str) -> None:
    chat = real.chat("s")

    async def main() -> None:
        began = asyncio.Event()

        async def talk() -> None:
            loop = asyncio.get_running_loop()
            note = lambda fraction: loop.call_soon_threadsafe(began.set)  # noqa: E731
            text = "word " * (5000 if phase == "prompt" else 1)
            async for _ in chat.astream(text, max_tokens=1000, progress=note if phase == "prompt" else None):
                began.set()

        task = asyncio.create_task(talk())
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert (len(chat.messages) == 1) == (phase == "prompt")
    assert chat.messages[-1].cut == (phase == "reply")
    check_next_reply(chat, "What is the capital of France?")


def test_leaving_an_async_loop_ends_the_reply_there(model: pantheon.Model) -> None:
    chat = model.chat("s")

    async def main() -> None:
        async for _ in chat.astream("a", max_tokens=50, **FORCE):
            break
        assert chat.messages[-1].content == model.tokenizer.decode([A])
        async with chat.astream("b", max_tokens=50, **FORCE) as stream:
            assert await anext(stream) == model.tokenizer.decode([A])
        assert stream.reply is not None
        assert stream.reply.finish_reason == "cancelled"
        await stream.aclose()
        assert [piece async for piece in chat.regenerate(max_tokens=2, **FORCE)] == [model.tokenizer.decode([A])] * 2
        unread = chat.astream("c")
        await unread.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(unread)

    asyncio.run(main())
    assert [m.content for m in chat.messages if m.role == "user"] == ["a", "b"]
    check_next_reply(chat)


def test_async_errors_come_with_the_first_piece(model: pantheon.Model) -> None:
    chat = model.chat("s", window=60)

    async def main() -> None:
        with pytest.raises(ContextError):
            await chat.asend("a " * 200)
        with pytest.raises(ArgumentError, match="max_tokens"):
            await anext(chat.astream("a", max_tokens=0))
        stream = chat.astream("a", max_tokens=9, **FORCE)
        await anext(stream)
        with pytest.raises(BusyError):
            await chat.asend("b")
        await stream.aclose()

    asyncio.run(main())


def test_two_async_chats_talk_at_once(model: pantheon.Model) -> None:
    words = ["one", "two", "three"]
    alone = [model.chat(word).send(word, max_tokens=10).tokens for word in words]

    async def main() -> list[pantheon.Reply]:
        return await asyncio.gather(*(model.chat(word).asend(word, max_tokens=10) for word in words))

    assert [reply.tokens for reply in asyncio.run(main())] == alone


# ---- Processes


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_goes_on_with_the_conversation(model: pantheon.Model) -> None:
    chat = model.chat("s")
    chat.send("a", max_tokens=3)
    wanted = twin(chat).send("b", max_tokens=4).tokens
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover  another process
        try:
            os.write(writer, repr(chat.send("b", max_tokens=4).tokens).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == repr(wanted)
    os.waitpid(child, 0)
    assert chat.send("b", max_tokens=4).tokens == wanted


# ---- Reuse


def test_twenty_equal_turns_evaluate_the_same_number_of_tokens(model: pantheon.Model) -> None:
    chat = model.chat("s")
    counts = [chat.send("go on", max_tokens=2, **FORCE).usage.evaluated_tokens for _ in range(8)]
    assert len(set(counts[1:])) == 1


def test_twenty_equal_turns_of_the_real_model(real: pantheon.Model) -> None:
    chat = real.chat("Be brief.")
    counts = []
    for _ in range(20):
        usage = chat.send("Say yes.", max_tokens=6).usage
        counts.append(usage.evaluated_tokens)
        assert usage.evaluated_tokens == usage.prompt_tokens - usage.reused_tokens
    assert max(counts[1:]) <= len(real.tokenizer.encode("<|im_end|>\n<|im_start|>user\nSay yes.", special=True)) + 8


def test_turns_hold_what_the_model_wrote(model: pantheon.Model) -> None:
    chat = model.chat("s")
    chat.send("a", max_tokens=2, **FORCE)
    text = model.tokenizer.decode([A, A])
    assert chat._turns[-1] == Turn(Message("assistant", text), (A, A))
