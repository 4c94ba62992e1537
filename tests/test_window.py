"""Which turns are left out when the window is full: whole exchanges, the oldest, as few as will do, and for good."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from chat_worlds import FAMILIES, NOW, open_vocabulary, write_family
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_gguf import CHATML, VType, write_model

import pantheon
from pantheon.chat import ChatFormat, Message, Prompt, Turn, make_format
from pantheon.chat.window import Fitted, exchanges, fit
from pantheon.errors import ArgumentError, BusyError, ContextError

A = 40
FORCE: dict[str, Any] = {"logit_bias": {A: 1000.0}}
TOOLS = [
    ("system", "Be brief."), ("user", "one"), ("assistant", "1"), ("user", "two"), ("assistant", "calling"),
    ("tool", "22"), ("tool", "222"), ("assistant", "2"), ("user", "four"),
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tiny_model: str) -> Iterator[pantheon.Model]:
    with pantheon.load(tiny_model, blas=False) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    path = write_family(tmp_path_factory.mktemp("window"), "chatml")
    return make_format(*open_vocabulary(path), now=NOW)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    """A template without control tokens: all of a prompt is one text."""
    template = "{% for m in messages %}{{ '[' + m.role + '] ' + m.content + '\n' }}{% endfor %}"
    path = write_family(tmp_path_factory.mktemp("plain"), "chatml", template=template)
    return make_format(*open_vocabulary(path), now=NOW)


def turns_of(said: Sequence[tuple[str, str]]) -> tuple[Turn, ...]:
    return tuple(Turn(Message(role, text)) for role, text in said)


def fitted(chat_format: ChatFormat, said: Sequence[tuple[str, str]], room: int, **more: Any) -> Fitted:
    turns = turns_of(said)
    how = {"reserve": 7, "window": room + 7, **more}
    return fit(turns, lambda start: chat_format.prompt(turns, NOW, start=start), **how)


class Writer:
    """Writes prompts, and counts how often it did."""

    def __init__(self, chat_format: ChatFormat, turns: Sequence[Turn]) -> None:
        self.chat_format, self.turns, self.calls = chat_format, turns, 0

    def __call__(self, start: int) -> Prompt:
        self.calls += 1
        return self.chat_format.prompt(self.turns, NOW, start=start)


# ---- By hand, without any of the code under test


def kept_by_hand(said: Sequence[tuple[str, str]]) -> Iterator[list[int]]:
    """The lists of messages that may be read, longest first: an exchange less each time."""
    users = [n for n, (role, _) in enumerate(said) if role == "user"]
    first = next((n for n, (role, _) in enumerate(said) if role != "system"), 0)
    starts = [first, *(n for n in users if n > first)]
    for start in starts or [0]:
        yield [n for n, (role, _) in enumerate(said) if role == "system" or n >= start]


def count_by_hand(chat_format: ChatFormat, said: Sequence[tuple[str, str]], kept: Sequence[int]) -> list[int]:
    return chat_format.prompt(turns_of([said[n] for n in kept]), NOW).ids.tolist()


def read_messages(result: Fitted) -> list[int]:
    return [n for n, turn in enumerate(result.turns) if n >= result.start or turn.message.role == "system"]


# ---- What is left out


def test_exchanges_are_left_out_whole_with_their_tools(chatml: ChatFormat) -> None:
    sizes = [len(count_by_hand(chatml, TOOLS, kept)) for kept in kept_by_hand(TOOLS)]
    assert len(sizes) == 3
    assert sizes[0] > sizes[1] > sizes[2]
    for n, kept in enumerate([[*range(9)], [0, 3, 4, 5, 6, 7, 8], [0, 8]]):
        exact = fitted(chatml, TOOLS, sizes[n])
        assert read_messages(exact) == kept
        assert exact.prompt.ids.tolist() == count_by_hand(chatml, TOOLS, kept)
        assert [out.messages for out in exact.dropped] == [(1, 2), (3, 4, 5, 6, 7)][:n]
        assert [out.tokens for out in exact.dropped] == [sizes[0] - sizes[1], sizes[1] - sizes[2]][:n]
    with pytest.raises(ContextError) as caught:
        fitted(chatml, TOOLS, sizes[2] - 1)
    error = caught.value
    assert (error.prompt_tokens, error.reply_limit, error.window) == (sizes[2], 7, sizes[2] + 6)
    for number in (sizes[2], 7, sizes[2] + 6):
        assert str(number) in str(error)


def test_what_was_left_out_says_which_numbers_did_not_fit(chatml: ChatFormat) -> None:
    sizes = [len(count_by_hand(chatml, TOOLS, kept)) for kept in kept_by_hand(TOOLS)]
    (out,) = fitted(chatml, TOOLS, sizes[1]).dropped
    for number in (sizes[0], 7, sizes[1] + 7):
        assert str(number) in out.reason


ROLES = st.lists(st.sampled_from(["system", "user", "user", "assistant", "assistant", "tool"]), min_size=1, max_size=12)


@settings(deadline=None, max_examples=200)
@given(
    markers=st.booleans(),
    roles=ROLES,
    sizes=st.lists(st.integers(0, 12), min_size=12, max_size=12),
    room=st.integers(1, 160),
)
def test_any_conversation_is_cut_as_by_hand(
    chatml: ChatFormat, plain: ChatFormat, markers: bool, roles: list[str], sizes: list[int], room: int
) -> None:
    chatml = chatml if markers else plain
    said = [(role, "x y " * size) for role, size in zip(roles, sizes, strict=False)]
    candidates = [(kept, count_by_hand(chatml, said, kept)) for kept in kept_by_hand(said)]
    fits = [(kept, ids) for kept, ids in candidates if len(ids) <= room]
    if not fits:
        with pytest.raises(ContextError) as caught:
            fitted(chatml, said, room)
        assert caught.value.prompt_tokens == len(candidates[-1][1])
        return
    result = fitted(chatml, said, room)
    assert (read_messages(result), result.prompt.ids.tolist()) == fits[0]
    assert len(result.prompt.ids) + sum(out.tokens for out in result.dropped) == len(candidates[0][1])
    others = [role for n, role in enumerate(roles) if n in read_messages(result) and role != "system"]
    assert not result.dropped or not others or others[0] == "user"


def test_a_template_that_says_more_when_it_is_given_less_is_counted_as_it_prints(tmp_path: Path) -> None:
    """The prompt of the last two messages is longer than that of the last four: only rendering tells."""
    longer = "{% if messages|length < 4 %}{{ 'a long introduction for a short conversation ' * 3 }}{% endif %}"
    path = write_family(tmp_path, "chatml", template=longer + FAMILIES["chatml"]["template"])
    chat_format = make_format(*open_vocabulary(path), now=NOW)
    said = [("user" if n % 2 == 0 else "assistant", f"text {n} " * 3) for n in range(7)]
    sizes = [len(count_by_hand(chat_format, said, kept)) for kept in kept_by_hand(said)]
    assert sizes[0] > sizes[1]
    assert sizes[2] > sizes[1]
    for room in range(min(sizes), max(sizes) + 1):
        first = next(n for n, size in enumerate(sizes) if size <= room)
        assert len(fitted(chat_format, said, room).dropped) == first


def test_an_exchange_without_which_the_prompt_is_longer_is_saved_and_loaded(tmp_path: Path) -> None:
    longer = "{% if messages|length == 5 %}{{ 'a long introduction' * 5 }}{% endif %}"
    path = write_model(tmp_path / "m.gguf", template=longer + FAMILIES["chatml"]["template"])
    said = [Message(("user", "assistant")[n % 2], f"text {n}") for n in range(6)]
    with pantheon.load(path, blas=False) as model:
        chat = model.chat(messages=said, reply_limit=4)
        sizes = [chat.count([*said[n:], Message("user", "x")]) for n in (0, 2, 4, 6)]
        assert sizes[1] > sizes[0] > sizes[2]
        chat.window = sizes[2] + 4
        chat.send("x", **FORCE)
        assert [out.tokens for out in chat._dropped] == [sizes[0] - sizes[1], sizes[1] - sizes[2]]
        chat.save(tmp_path / "chat.json")
        loaded = model.load_chat(tmp_path / "chat.json")
        assert loaded._dropped == chat._dropped


@pytest.mark.parametrize(
    ("template", "n_messages"),
    [
        ("{% if messages|length > 4 %}{{ 'a long introduction ' * 9 }}{% endif %}{% for m in messages %}"
         "{{ m.content + '<|im_end|>' }}{% endfor %}", 8),
        ("{% set wordy = 'a word or two more ' if messages|length > 100 else '' %}{% for m in messages %}"
         "{{ wordy + m.content + '<|im_end|>' }}{% endfor %}", 300),
    ],
)  # fmt: skip
def test_a_template_that_says_less_when_it_is_given_less_is_counted_as_it_prints(
    tmp_path: Path, template: str, n_messages: int
) -> None:
    """What is expected from the whole conversation is more than what turns out: nothing may be left out for it."""
    path = write_family(tmp_path, "chatml", template=template)
    chat_format = make_format(*open_vocabulary(path), now=NOW)
    said = [("system", "s"), *((("user", "assistant")[n % 2], f"text {n}") for n in range(n_messages - 1))]
    sizes = [len(count_by_hand(chat_format, said, kept)) for kept in kept_by_hand(said)]
    for room in {*sizes[-40:], (sizes[0] + sizes[-1]) // 2}:
        first = next(n for n, size in enumerate(sizes) if size <= room)
        assert len(fitted(chat_format, said, room).dropped) == first


def test_system_texts_in_the_middle_stay(chatml: ChatFormat) -> None:
    said = [("user", "a" * 50), ("assistant", "b"), ("system", "now speak French"), ("user", "c")]
    kept = [2, 3]
    assert read_messages(fitted(chatml, said, len(count_by_hand(chatml, said, kept)))) == kept


def test_policies(chatml: ChatFormat) -> None:
    said = [("system", "s"), *((("user", "assistant")[n % 2], "word " * 4) for n in range(13))]
    sizes = [len(count_by_hand(chatml, said, kept)) for kept in kept_by_hand(said)]
    assert len(fitted(chatml, said, sizes[1], policy="drop_oldest").dropped) == 1
    for fraction in (0.25, 0.5, 0.9, 1):
        wanted = next((n for n, size in enumerate(sizes) if size <= int(sizes[1] * fraction)), len(sizes) - 1)
        assert len(fitted(chatml, said, sizes[1], policy="drop_to_fraction", fraction=fraction).dropped) == wanted
        assert not fitted(chatml, said, sizes[0], policy="drop_to_fraction", fraction=fraction).dropped
    with pytest.raises(ContextError, match="drop_oldest") as caught:
        fitted(chatml, said, sizes[0] - 1, policy="error")
    assert caught.value.prompt_tokens == sizes[0]
    assert len(fitted(chatml, said, sizes[0], policy="error").prompt.ids) == sizes[0]
    tight = fitted(chatml, said, sizes[-1], policy="drop_to_fraction", fraction=0.01)
    assert len(tight.prompt.ids) == sizes[-1]  # the last exchange stays, whatever the fraction


def test_what_was_left_out_stays_out(chatml: ChatFormat) -> None:
    sizes = [len(count_by_hand(chatml, TOOLS, kept)) for kept in kept_by_hand(TOOLS)]
    first = fitted(chatml, TOOLS, sizes[1])
    later = [*TOOLS, ("assistant", "4"), ("user", "five")]
    again = fitted(chatml, later, 10_000, before=first.dropped)
    assert again.dropped == first.dropped
    assert (again.newly, first.newly) == (0, 1)
    assert read_messages(again) == [0, *range(3, 11)]
    shortened = TOOLS[:2]  # its one exchange is the last, and stays
    assert read_messages(fitted(chatml, shortened, 10_000, before=first.dropped)) == [0, 1]
    assert read_messages(fitted(chatml, TOOLS[:3], 10_000, before=first.dropped)) == [0, 1, 2]
    assert exchanges(turns_of(TOOLS)) == [(1, 2), (3, 4, 5, 6, 7), (8,)]


def test_a_long_history_is_cut_as_by_hand_without_rendering_it_once_for_each_exchange(
    chatml: ChatFormat, plain: ChatFormat
) -> None:
    said = [("system", "s"), *((("user", "assistant")[n % 2], "x y " * (n * 7 % 5)) for n in range(301))]
    turns = turns_of(said)
    for chat_format in (chatml, plain):
        sizes = [len(count_by_hand(chat_format, said, kept)) for kept in list(kept_by_hand(said))[::-1]]
        for room in (sizes[0], sizes[1], sizes[30], sizes[75], sizes[75] - 1, sizes[149]):
            written = Writer(chat_format, turns)
            result = fit(turns, written, reserve=1, window=room + 1)
            left = max(n for n, size in enumerate(sizes) if size <= room)
            assert len(result.dropped) == len(sizes) - 1 - left
            assert len(result.prompt.ids) == sizes[left]
            assert sum(out.tokens for out in result.dropped) == sizes[-1] - sizes[left]
            assert max(out.tokens for out in result.dropped) < 60
            assert written.calls < 50


# ---- In a chat


def test_the_example_of_the_seed(smollm2: str) -> None:
    messages = [
        {"role": "user", "content": "Hi! My name is Priya."},
        {"role": "assistant", "content": "Hello, Priya! How can I help you today?"},
        {"role": "user", "content": "Give me one tip for sleeping better."},
        {
            "role": "assistant",
            "content": "Go to bed and wake up at the same time every day, even on weekends.",
        },
    ]
    with pantheon.load(smollm2) as model, model.chat(messages=messages, window=128, reply_limit=32) as chat:
        reply = chat.send("What is my name?")
        reading = chat.reading
        assert reading is not None
        assert reply.usage.prompt_tokens == len(reading) == 71
        (out,) = reading.newly_dropped
        assert (out.messages, out.tokens) == ((0, 1), 13 + 18)
        assert [piece.tokens for piece in reading.pieces] == [21, 13, 23, 10, 4]
    assert reading.text + "\n" == (
        "<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\n"
        "Give me one tip for sleeping better.<|im_end|>\n"
        "<|im_start|>assistant\n"
        "Go to bed and wake up at the same time every day, even on weekends.<|im_end|>\n"
        "<|im_start|>user\n"
        "What is my name?<|im_end|>\n"
        "<|im_start|>assistant\n\n"
    )


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_to_fraction"])
def test_a_long_chat_leaves_out_more_and_more_and_reads_as_a_fresh_one_would(
    model: pantheon.Model, policy: Any
) -> None:
    chat = model.chat("Be brief.", window=250, reply_limit=4, policy=policy, fraction=0.3)
    gone: list[tuple[int, ...]] = []
    changes = 0
    for n in range(25):
        reply = chat.send(f"this is message {n}", seed=n)
        reading = chat.reading
        assert reading is not None
        now = [out.messages for out in reading.dropped]
        assert now[: len(gone)] == gone
        changes += now != gone
        gone = now
        assert len(reading) + 4 <= 250
        start = reading.fitted.start
        kept = [turn for m, turn in enumerate(reading.fitted.turns[:-1]) if m >= start or turn.message.role == "system"]
        fresh = model.chat(window=250, reply_limit=4)
        fresh._turns = tuple(kept)
        again = fresh.send(f"this is message {n}", seed=n)
        assert again.tokens == reply.tokens
        assert fresh.reading is not None
        assert fresh.reading.ids == reading.ids
    assert gone
    assert len(chat.messages) == 51  # nothing is lost from the conversation itself
    assert changes > 10 if policy == "drop_oldest" else changes < 6


def test_a_turn_that_comes_to_nothing_leaves_nothing_out(model: pantheon.Model) -> None:
    chat = model.chat("s", window=100, reply_limit=4)
    for text in ("one", "two"):
        chat.send(text, **FORCE)
    need = chat.count([*chat.messages, Message("user", "three " * 10)])
    chat.window = need + 3
    before = chat.messages
    chat._keep_prefix = _first(chat.cancel, chat._keep_prefix)  # type: ignore[method-assign, assignment]
    assert chat.send("three " * 10, **FORCE).finish_reason == "cancelled"
    assert chat.reading is not None
    assert len(chat.reading.dropped) == 1
    del chat._keep_prefix
    assert chat.messages == before
    chat.send("x", **FORCE)
    assert chat.reading.dropped == ()
    chat.stream("three " * 10).close()
    with pytest.raises(ContextError):
        chat.send("three " * 100)
    chat.send("y", max_tokens=1, **FORCE)
    assert chat.reading.dropped == ()


def _first(before: Any, function: Any) -> Any:
    def both(argument: Any) -> Any:
        before()
        return function(argument)

    return both


def test_a_larger_window_and_a_cleared_chat_start_anew(model: pantheon.Model) -> None:
    chat = model.chat("s", window=60, reply_limit=4)
    for n in range(4):
        chat.send(f"message {n}", **FORCE)
    assert chat.reading is not None
    assert chat.reading.dropped
    chat.window = 50
    chat.send("x", **FORCE)
    assert chat.window == chat.reading.window == 50
    out = chat.reading.dropped
    chat.window = 50
    assert chat._dropped == out
    chat.window = None
    chat.send("x", **FORCE)
    assert chat.window == model.context_length
    assert chat.reading.dropped == ()
    assert chat.reading.note is not None
    assert "came back" in chat.reading.note
    chat.window = 50
    chat.send("x", **FORCE)
    assert chat.reading.dropped
    chat.clear()
    assert chat.reading is None
    chat.send("x", **FORCE)
    assert chat.reading.dropped == ()


def test_a_window_changed_before_the_first_piece_counts(model: pantheon.Model) -> None:
    chat = model.chat("s", reply_limit=4)
    chat.send("one", **FORCE)
    stream = chat.stream("two", **FORCE)
    chat.window = chat.count([*chat.messages, Message("user", "two")]) + 3
    stream.finish()
    assert chat.reading is not None
    assert len(chat.reading.dropped) == 1


def test_numbers_that_make_no_sense_are_refused(model: pantheon.Model) -> None:
    for policy in ("drop", "", None):
        with pytest.raises(ArgumentError, match="policy must be one of drop_oldest"):
            model.chat(policy=policy)  # type: ignore[arg-type]
    for fraction in (0, -1, 1.01, float("nan"), True, "half"):
        with pytest.raises(ArgumentError, match="fraction"):
            model.chat(fraction=fraction)  # type: ignore[arg-type]
    chat = model.chat()
    for window in (0, -32, model.context_length + 1, 1.5):
        with pytest.raises(ArgumentError, match="window"):
            chat.window = window  # type: ignore[assignment]
    stream = chat.stream("a", max_tokens=3, **FORCE)
    next(stream)
    with pytest.raises(BusyError):
        chat.window = 100
    stream.close()


def test_a_window_takes_the_rotary_factors_that_are_its_own(tmp_path: Path) -> None:
    """A model whose state depends on the window gets a new state where it must, and the replies of a fresh chat."""
    key = "llama.rope.scaling.original_context_length"
    path = write_model(tmp_path / "m.gguf", template=CHATML, metadata={key: (64, VType.UINT32)})
    with pantheon.load(path, blas=False) as model:
        chat = model.chat("s", window=60, reply_limit=4)
        assert chat._state.window == 64
        chat.send("a", **FORCE)
        first = chat._state
        chat.window = 64
        assert chat._state is first
        chat.window = 65
        assert first.closed
        assert chat._state.window == model.context_length
        reply = chat.send("b", **FORCE)
        assert reply.usage.reused_tokens == 0
