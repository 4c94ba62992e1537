"""Stop strings: found wherever tokens begin and end, held back no longer than they must be, never part of the text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pantheon
from pantheon.engine.stop import StopMatcher
from pantheon.errors import ArgumentError

Script = Callable[[Sequence[bytes | int]], None]


@pytest.fixture(scope="module")
def model(tiny_model: str) -> Iterator[pantheon.Model]:
    with pantheon.load(tiny_model, blas=False) as loaded:
        yield loaded


@pytest.fixture
def script(model: pantheon.Model, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Let the model say what the test wants: ids as they are, bytes as their tokens; the end of the turn behind it."""

    def play(parts: Sequence[bytes | int]) -> None:
        ids: list[int] = []
        for part in parts:
            ids += [part] if isinstance(part, int) else model.tokenizer.encode(part).tolist()
        tokens = iter([*ids, *model.tokenizer.stop_ids])
        monkeypatch.setattr(pantheon.State, "sample", lambda self, sampler: next(tokens))

    return play


def single(model: pantheon.Model, text: str) -> list[int]:
    """One token for each byte."""
    return [int(model.tokenizer.encode(bytes([byte]))[0]) for byte in text.encode()]


def say(model: pantheon.Model, **options: Any) -> tuple[list[str], pantheon.Reply]:
    """The pieces and the reply, which must say the same."""
    stream = model.chat("s").stream("a", **options)
    pieces = list(stream)
    assert stream.reply is not None
    assert "".join(pieces) == stream.reply.text
    return pieces, stream.reply


# ---- The search itself, against a search of the whole text


def first_match(text: bytes, stops: Sequence[bytes]) -> tuple[int, int] | None:
    """(start, end) of the earliest end, of those the longest: by looking at every stretch of the text."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return min(starts), end
    return None


def held_back(text: bytes, stops: Sequence[bytes]) -> int:
    """The length of the longest end of the text that some stop begins with."""
    return max(n for n in range(len(text) + 1) if n == 0 or any(s.startswith(text[len(text) - n :]) for s in stops))


ALPHABET = st.binary(max_size=1).map(lambda data: data.translate(bytes(b"ab\0"[i % 3] for i in range(256))))
WORDS = st.lists(ALPHABET, min_size=1, max_size=6).map(b"".join).filter(bool)


@settings(deadline=None, max_examples=600)
@given(st.lists(WORDS, max_size=4), st.lists(st.lists(ALPHABET, max_size=5).map(b"".join), max_size=12))
def test_any_division_gives_what_a_search_of_the_whole_text_gives(stops: list[bytes], parts: list[bytes]) -> None:
    matcher, out, seen = StopMatcher(stops), b"", b""
    text = b"".join(parts)
    wanted = first_match(text, stops)
    for part in parts:
        out += matcher.push(part)
        seen += part
        if matcher.match is not None:
            break
        assert len(seen) - len(out) == held_back(seen, stops), "as much as can still match, and no more"
    assert matcher.released == len(out)
    if wanted is None:
        assert matcher.match is None
        assert out + matcher.finish() == text
    else:
        assert matcher.match is not None
        assert out == text[: wanted[0]]
        assert stops[matcher.match] == text[wanted[0] : wanted[1]]
        assert matcher.finish() == b""


def test_long_repetitive_stops_cost_no_more_than_others() -> None:
    matcher = StopMatcher([b"a" * 50_000 + b"b", b"a" * 49_999 + b"c"])
    out = b"".join(matcher.push(b"a" * 1000) for _ in range(100))
    assert (len(out), matcher.match) == (50_000, None)
    assert matcher.push(b"c") == b"a"
    assert matcher.match == 1


# ---- In replies


def test_a_stop_inside_a_token_ends_the_text_before_it(model: pantheon.Model, script: Script) -> None:
    token = int(model.tokenizer.encode(" the")[0])
    assert model.tokenizer.piece(token) == b" the"
    script([b"so", token, b"rest"])
    _, reply = say(model, stop=["he"])
    assert (reply.text, reply.finish_reason, reply.stop) == ("so t", "stop", "he")
    assert reply.tokens == (*model.tokenizer.encode("so").tolist(), token)
    assert reply.usage.generated_tokens == len(reply.tokens)


@pytest.mark.parametrize("stops", [["abc", "b"], ["b", "abc"]])
def test_the_earliest_end_wins_however_the_text_is_divided(
    model: pantheon.Model, script: Script, stops: list[str]
) -> None:
    for parts in ([b"xabc"], single(model, "xabc"), [b"xa", b"bc"]):
        script(parts)
        _, reply = say(model, stop=stops)
        assert (reply.text, reply.stop) == ("xa", "b")


def test_of_stops_that_end_together_the_longest_counts(model: pantheon.Model, script: Script) -> None:
    script(single(model, "so END."))
    _, reply = say(model, stop=["D", " END", "END"])
    assert (reply.text, reply.stop) == ("so", " END")


def test_text_is_held_only_while_it_can_match(model: pantheon.Model, script: Script) -> None:
    script(single(model, "a--b---c--"))
    pieces, reply = say(model, stop="---x")
    assert pieces == ["a", "--b", "---c", "--"]
    assert (reply.finish_reason, reply.stop) == ("stop", None)


def test_a_stop_over_several_tokens_leaves_none_of_them(model: pantheon.Model, script: Script) -> None:
    script([*single(model, "hi\nUser: x")])
    pieces, reply = say(model, stop=["\nUser:"])
    assert (pieces, reply.text) == (["h", "i"], "hi")
    assert list(reply.tokens) == single(model, "hi")
    assert reply.usage.generated_tokens == len("hi\nUser:")


def test_characters_of_several_bytes_and_nul(model: pantheon.Model, script: Script) -> None:
    script(single(model, "a🤗b"))
    assert say(model, stop="🤗")[1].text == "a"
    script(single(model, "a🤗b"))
    assert say(model, stop="🤗c")[0] == ["a", "🤗b"]
    script(single(model, "a\0\0b"))
    _, reply = say(model, stop="\0b")
    assert (reply.text, reply.stop) == ("a\0", "\0b")
    script([*single(model, "a"), *single(model, "é")[:1], *single(model, "END")])
    assert say(model, stop="END")[1].text == "a\ufffd"


def test_a_stop_at_once_is_an_empty_reply_that_stays(model: pantheon.Model, script: Script) -> None:
    script([b"END"])
    chat = model.chat("s")
    reply = chat.send("a", stop="END")
    assert (reply.text, reply.tokens, reply.stop) == ("", (), "END")
    assert [m.content for m in chat.messages] == ["s", "a", ""]
    assert not chat.messages[-1].cut


def test_a_stop_that_completes_with_the_last_token_allowed_is_a_stop(model: pantheon.Model, script: Script) -> None:
    script(single(model, "hiEND"))
    _, reply = say(model, stop="END", max_tokens=5)
    assert (reply.text, reply.finish_reason) == ("hi", "stop")
    script(single(model, "hiEND"))
    _, reply = say(model, stop="END", max_tokens=4)
    assert (reply.text, reply.finish_reason, reply.stop) == ("hiEN", "length", None)
    assert list(reply.tokens) == single(model, "hiEN")


def test_held_text_comes_out_at_the_end_of_the_turn(model: pantheon.Model, script: Script) -> None:
    script(single(model, "hi--"))
    assert say(model, stop="---")[0] == ["h", "i", "--"]


@pytest.mark.parametrize("cut", ["close", "cancel"])
def test_text_that_is_held_when_the_reply_is_cut_stays_in_it(model: pantheon.Model, script: Script, cut: str) -> None:
    token = int(model.tokenizer.encode(" t")[0])
    assert model.tokenizer.piece(token) == b" t"
    script([token, b"x"])
    chat = model.chat("s")
    stream = chat.stream("a", stop="t--")
    assert next(stream) == " "
    if cut == "close":
        stream.close()
    else:
        chat.cancel()
        assert list(stream) == ["t"]
    assert stream.reply is not None
    assert (stream.reply.text, stream.reply.tokens, stream.reply.finish_reason) == (" t", (token,), "cancelled")
    assert chat.messages[-1].content == " t"
    assert chat.messages[-1].cut


def test_a_stop_spelled_like_a_control_token_means_both(model: pantheon.Model, script: Script) -> None:
    start = model.tokenizer.token_id("<|im_start|>")
    assert start is not None
    script([b"hi", start, b"there"])
    _, reply = say(model, stop=["<|im_start|>"])
    assert (reply.text, reply.finish_reason, reply.stop) == ("hi", "stop", "<|im_start|>")
    script([b"hi<|im_start|>there"])
    _, reply = say(model, stop=["<|im_start|>"])
    assert (reply.text, reply.stop) == ("hi", "<|im_start|>")
    script([b"hi", start, b"there"])
    assert say(model)[1].text == "hithere"


def test_the_end_of_the_turn_named_as_a_stop_is_reported(model: pantheon.Model, script: Script) -> None:
    script([b"hi"])
    _, reply = say(model, stop=["<|im_end|>"])
    assert (reply.text, reply.stop) == ("hi", "<|im_end|>")
    script([b"<|im_end|>", b" is a marker"])
    _, reply = say(model)
    assert (reply.text, reply.stop) == ("<|im_end|> is a marker", None)


def test_control_tokens_in_the_middle_are_no_part_of_the_text_that_is_searched(
    model: pantheon.Model, script: Script
) -> None:
    start = model.tokenizer.token_id("<|im_start|>")
    assert start is not None
    script([b"hiE", start, b"NDx"])
    _, reply = say(model, stop="END")
    assert (reply.text, reply.stop) == ("hi", "END")
    script([b"hi", start, b"there"])
    assert say(model, stop=["start", "im_"])[1].text == "hithere"


def test_what_the_next_turn_reads_is_the_text_before_the_stop(model: pantheon.Model, script: Script) -> None:
    token = int(model.tokenizer.encode(" the")[0])
    script([*single(model, "so"), token])
    chat = model.chat("s")
    first = chat.send("a", stop="he")
    rest = model.tokenizer.encode(" t", after=first.tokens[-2]).tolist()
    assert chat._turns[-1].ids == (*single(model, "so"), *rest)
    assert model.tokenizer.decode(chat._turns[-1].ids) == chat.messages[-1].content == "so t"
    script([b"x"])
    second = chat.send("b")
    assert second.usage.reused_tokens == first.usage.prompt_tokens + 2
    assert "so t<|im_end|>" in model.tokenizer.decode(chat._state.tokens)


def test_completions_and_guesses_stop_alike(model: pantheon.Model) -> None:
    whole = model.generate("the quick", max_tokens=40, temperature=0.9, seed=3)
    at = len(whole.text) // 2
    stop = whole.text[at : at + 3]
    plain = model.generate("the quick", max_tokens=40, temperature=0.9, seed=3, stop=stop)
    guessed = model.generate("the quick", max_tokens=40, temperature=0.9, seed=3, stop=stop, speculate=True)
    assert plain.text == whole.text[: whole.text.index(stop)]
    assert (plain.text, plain.tokens, plain.stop) == (guessed.text, guessed.tokens, guessed.stop)
    assert plain.stop == stop


def test_what_cannot_be_a_stop_is_refused(model: pantheon.Model) -> None:
    for bad, words in (("", "one character"), (["a", ""], r"stop\[1\]"), ([1], r"stop\[0\]"), (3, "got int")):
        with pytest.raises(ArgumentError, match=words):
            model.chat().stream("a", stop=bad)
    with pytest.raises(ArgumentError, match="surrogate"):
        model.chat().stream("a", stop="\ud800")
    with pytest.raises(ArgumentError, match="got bytes"):
        model.chat().stream("a", stop=b"x")
    assert pantheon.SamplingParams(stop=["a"]).stops == ("a",)
    assert pantheon.SamplingParams(stop=[]).stops == ()
