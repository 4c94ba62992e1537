"""Log-probabilities against numpy's softmax of the logits that Model.logits gives for the same ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import pantheon
from pantheon.engine.logprobs import measure
from pantheon.errors import ArgumentError

CHAINS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.3, "seed": 4},
    {"temperature": 0.7, "seed": 5, "top_k": 3, "repeat_penalty": 1.5, "logit_bias": {90: 8.0, 40: float("-inf")}},
    {"temperature": 0.9, "seed": 6, "speculate": True},
]


@pytest.fixture(scope="module")
def model(tiny_model: str) -> Iterator[pantheon.Model]:
    with pantheon.load(tiny_model, blas=False) as loaded:
        yield loaded


def log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """In long double, by the definition."""
    wide = logits.astype(np.longdouble)
    return np.asarray(wide - wide.max() - np.log(np.exp(wide - wide.max()).sum()), np.float64)


def check(model: pantheon.Model, prompt: Sequence[int], reply: pantheon.Reply, n_top: int) -> None:
    rows = model.logits([*prompt, *reply.tokens])[len(prompt) - 1 :]
    assert reply.logprobs is not None
    assert [one.id for one in reply.logprobs] == list(reply.tokens)
    for row, one in zip(rows, reply.logprobs, strict=False):
        wanted = log_softmax(row)
        assert one.bytes == model.tokenizer.piece(one.id)
        assert one.logprob == pytest.approx(wanted[one.id], rel=1e-13, abs=1e-13)
        assert one.logprob <= 0
        order = sorted(range(len(row)), key=lambda i: (-row[i], i))[:n_top]
        assert [other.id for other in one.top] == order
        for other in one.top:
            assert other.bytes == model.tokenizer.piece(other.id)
            assert other.logprob == pytest.approx(wanted[other.id], rel=1e-13, abs=1e-13)
            assert other.top == ()


@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_they_are_the_models_own_distribution_whatever_draws_from_it(
    model: pantheon.Model, chain: dict[str, Any]
) -> None:
    prompt = model.tokenizer.encode("the capital of").tolist()
    reply = model.generate(prompt, max_tokens=12, logprobs=5, **chain)
    assert reply.tokens == model.generate(prompt, max_tokens=12, **chain).tokens
    check(model, prompt, reply, 5)
    chat = model.chat("s")
    reply = chat.send("a", max_tokens=8, logprobs=3, **chain)
    held = chat._state.tokens.tolist()[: reply.usage.prompt_tokens]
    check(model, held, reply, 3)


@pytest.mark.parametrize("n_top", [0, 1, 20])
def test_as_many_alternatives_as_asked_for(model: pantheon.Model, n_top: int) -> None:
    reply = model.generate([1, 70, 80], max_tokens=3, logprobs=n_top)
    assert reply.logprobs is not None
    assert [len(one.top) for one in reply.logprobs] == [n_top] * len(reply.tokens)
    if n_top:
        assert [one.top[0].id for one in reply.logprobs] == list(reply.tokens), "a greedy token is the likeliest"


def test_equal_logits_come_in_the_order_of_ids(model: pantheon.Model) -> None:
    logits = np.full(model.n_vocab, 1.5, np.float32)
    logits[100] = 2
    one = measure(logits, 7, 4, model.tokenizer)
    assert [other.id for other in one.top] == [100, 0, 1, 2]
    assert one.logprob == one.top[1].logprob
    assert len(measure(logits[:3], 1, 20, model.tokenizer).top) == 3
    extreme = np.full(model.n_vocab, -3e38, np.float32)
    extreme[3] = 3e38
    assert measure(extreme, 3, 1, model.tokenizer).logprob == 0
    assert measure(extreme, 4, 1, model.tokenizer).logprob == pytest.approx(-6e38, rel=1e-6)


def test_without_asking_there_are_none(model: pantheon.Model) -> None:
    assert model.generate("a", max_tokens=2).logprobs is None
    stream = model.stream("a", max_tokens=2)
    assert list(stream.logprobs) == []
    stream.close()
    for bad in (-1, 21, True, 1.5):
        with pytest.raises(ArgumentError, match=r"logprobs must be an integer in 0\.\.20"):
            model.stream("a", logprobs=bad)


def scripted(monkeypatch: pytest.MonkeyPatch, ids: Sequence[int]) -> None:
    tokens = iter(ids)
    monkeypatch.setattr(pantheon.State, "sample", lambda self, sampler: next(tokens))


def single(model: pantheon.Model, text: str) -> list[int]:
    return [int(model.tokenizer.encode(bytes([byte]))[0]) for byte in text.encode()]


def test_a_stream_reports_the_tokens_whose_text_has_come(
    model: pantheon.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = single(model, "a🤗bENDx")
    scripted(monkeypatch, ids)
    stream = model.stream("x", logprobs=0, stop="END")
    seen = 0
    grouped: list[tuple[str, bytes]] = []
    for piece in stream:
        new = stream.logprobs[seen:]
        seen += len(new)
        grouped.append((piece, b"".join(one.bytes for one in new)))
    assert grouped == [("a", b"a"), ("🤗", "🤗".encode()), ("b", b"b")]
    assert stream.reply is not None
    assert stream.reply.logprobs == stream.logprobs
    assert [one.id for one in stream.logprobs] == list(stream.reply.tokens) == ids[:6]


def test_a_token_that_a_stop_cut_in_two_is_reported_at_the_end(
    model: pantheon.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = int(model.tokenizer.encode(" the")[0])
    scripted(monkeypatch, [*single(model, "a"), token])
    stream = model.stream("x", logprobs=1, stop="he")
    assert "".join(stream) == "a t"
    assert [one.bytes for one in stream.logprobs] == [b"a", b" the"]
