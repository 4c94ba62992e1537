"""The sampler against numpy: the same token for the same uniform number, whatever the chain.

The oracle sorts the whole vocabulary in float64 and has a generator of its own, so a draw is compared with `==`. Only
where a filter or the draw is decided by less than rounding explains (1e-5 of a probability's own size, 1e-6 on the way
from 0 to 1) the comparison is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pantheon._core import ffi, lib

Array = npt.NDArray[Any]
MASK = 2**64 - 1


def make_sampler(n_vocab: int, bias: Sequence[tuple[int, float]] = (), **values: Any) -> Any:
    """A pn_sampler with the defaults but for `values`."""
    params = ffi.new("pn_sampling_params *", lib.pn_sampling_defaults())
    for name, value in values.items():
        setattr(params, name, value)
    entries = ffi.new("pn_logit_bias[]", list(bias))
    params.logit_bias, params.n_logit_bias = entries, len(bias)
    sampler = lib.pn_sampler_new(n_vocab, params)
    assert sampler != ffi.NULL, bytes(ffi.string(lib.pn_last_error()))
    return ffi.gc(sampler, lib.pn_sampler_free)


def draw(sampler: Any, logits: Array, seen: Sequence[int] = ()) -> int:
    token = ffi.new("uint32_t *")
    data = ffi.from_buffer("float[]", np.ascontiguousarray(logits, np.float32))
    status = lib.pn_sample(sampler, data, ffi.new("uint32_t[]", list(seen)), len(seen), token)
    assert status == 0, bytes(ffi.string(lib.pn_last_error()))
    return int(token[0])


def uniforms(seed: int, n: int) -> list[float]:
    """The first n numbers of xoshiro256** seeded by splitmix64: 53 bits each, in [0, 1)."""

    def rotl(x: int, k: int) -> int:
        return (x << k | x >> 64 - k) & MASK

    s = []
    for _ in range(4):
        seed = (seed + 0x9E3779B97F4A7C15) & MASK
        z = (seed ^ seed >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        s.append(z ^ z >> 31)
    out = []
    for _ in range(n):
        out.append((rotl(s[1] * 5 & MASK, 7) * 9 & MASK) >> 11)
        t = s[1] << 17 & MASK
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = rotl(s[3], 45)
    return [x / 2**53 for x in out]


def test_the_oracles_generator_is_the_published_one() -> None:
    assert (0 + 0x9E3779B97F4A7C15) & MASK == 0x9E3779B97F4A7C15
    # splitmix64 of seed 0 begins with e220a8397b1dcdaf 6e789e6aa1b965f4 06c45d188009454f f88bb8a8724c81ec, so the first
    # number of xoshiro256** is rotl(5 * 6e789e6aa1b965f4, 7) * 9.
    product = 0x6E789E6AA1B965F4 * 5 & MASK
    assert uniforms(0, 1) == [(((product << 7 | product >> 57) & MASK) * 9 & MASK) / 2**64 // 2**-53 * 2**-53]


@dataclass
class Expected:
    """tokens and p: what the filters keep, in order. margin: how far the nearest decision of a filter was."""

    tokens: Array
    p: Array
    margin: float

    def at(self, u: float) -> tuple[int, float]:
        """The token that u falls on, and how far u is from the nearest edge."""
        sums = np.cumsum(self.p)
        index = min(int(np.searchsorted(sums, u, side="right")), len(self.p) - 1)
        return int(self.tokens[index]), float(np.abs(sums[:-1] - u).min()) if len(self.p) > 1 else 1.0


def expect(logits: Array, seen: Sequence[int], bias: Sequence[tuple[int, float]], chain: Mapping[str, Any]) -> Expected:
    """The distribution over the kept tokens: changes of logits in float32, as they are documented, the rest in float64.

    Tokens are in the order of their distance from the largest logit, as a float32.
    """
    get = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0, "presence_penalty": 0.0,
           "frequency_penalty": 0.0, "penalty_window": 64, **chain}  # fmt: skip
    values = logits.astype(np.float32)
    for token, add in bias:
        values[token] += np.float32(add)
    window = get["penalty_window"]
    recent = np.array(seen if window < 0 else seen[max(len(seen) - window, 0) :], np.int64)
    count = np.bincount(recent, minlength=len(values))
    hit = count > 0
    repeat = np.float32(get["repeat_penalty"])
    values[hit] = np.where(values[hit] > 0, values[hit] / repeat, values[hit] * repeat)
    counts = count[hit].astype(np.float32)
    values[hit] -= np.float32(get["presence_penalty"]) + np.float32(get["frequency_penalty"]) * counts
    distances = values.max() - values
    order = np.argsort(distances, kind="stable")
    if get["top_k"]:
        order = order[: get["top_k"]]
    weights = np.exp(-distances[order].astype(np.float64) / np.float64(np.float32(get["temperature"])))
    margin, keep = 1.0, len(order)
    if get["top_p"] < 1:
        sums = np.cumsum(weights) / weights.sum()
        top_p = float(np.float32(get["top_p"]))
        keep = min(int(np.searchsorted(sums, top_p)) + 1, keep)
        margin = min(margin, float(np.abs(sums - top_p).min()))
    if get["min_p"] > 0:
        ratio = weights / float(np.float32(get["min_p"]))
        margin = min(margin, float(np.abs(ratio - 1).min()))
        keep = min(keep, int((ratio >= 1).sum()))
    return Expected(order[:keep], weights[:keep] / weights[:keep].sum(), margin)


CHAINS = st.fixed_dictionaries(
    {"temperature": st.floats(0.0625, 5, width=32)},
    optional={
        "top_k": st.integers(0, 500),
        "top_p": st.floats(0.0625, 1, width=32),
        "min_p": st.floats(0, 1, width=32),
        "repeat_penalty": st.floats(0.25, 4, width=32),
        "presence_penalty": st.floats(-2, 2, width=32),
        "frequency_penalty": st.floats(-2, 2, width=32),
        "penalty_window": st.integers(-1, 20),
    },
)


@settings(deadline=None, max_examples=300)
@given(st.data(), CHAINS, st.integers(1, 400), st.integers(0, MASK), st.sampled_from([0.0, 0.2, 2.5, 20.0]))
def test_every_chain_draws_the_token_that_numpy_draws(
    data: st.DataObject, chain: dict[str, Any], n_vocab: int, seed: int, deviation: float
) -> None:
    logits = np.random.default_rng(seed).normal(0, deviation, n_vocab).astype(np.float32)
    token = st.integers(0, n_vocab - 1)
    seen = data.draw(st.lists(token, max_size=30))
    bias = data.draw(st.lists(st.tuples(token, st.floats(-5, 5, width=16)), max_size=5))
    expected = expect(logits, seen, bias, chain)
    sampler = make_sampler(n_vocab, bias, seed=seed, **chain)
    for u in uniforms(seed, 5):
        drawn = draw(sampler, logits, seen)
        wanted, edge = expected.at(u)
        if expected.margin > 1e-5 and edge > 1e-5:
            assert drawn == wanted


@pytest.mark.parametrize(
    ("n_vocab", "bias"), [(8, [(0, 3.0), (2, 2.0**-23)]), (2, [(0, 2.0), (1, 2.0), (1, 2.0**-23)])]
)
def test_logits_closer_than_a_rounding_of_their_distance_are_a_tie(n_vocab: int, bias: list[tuple[int, float]]) -> None:
    logits = np.zeros(n_vocab, np.float32)
    expected = expect(logits, [], bias, {"temperature": 1.0})
    for seed in range(50):
        wanted, edge = expected.at(uniforms(seed, 1)[0])
        if edge > 1e-5:
            assert draw(make_sampler(n_vocab, bias, seed=seed, temperature=1.0), logits, []) == wanted


@pytest.mark.parametrize("deviation", [0.0, 1.0, 2.5, 6.0])
@pytest.mark.parametrize(
    "chain",
    [{}, {"top_p": 0.95}, {"top_p": 0.3, "min_p": 0.01}, {"min_p": 0.1}, {"top_k": 40, "top_p": 0.9}, {"top_k": 5000}],
    ids=str,
)
def test_a_vocabulary_of_150000_draws_what_numpy_draws(chain: dict[str, Any], deviation: float) -> None:
    logits = np.random.default_rng(1).normal(0, deviation, 150_000).astype(np.float32)
    expected = expect(logits, (), (), {"temperature": 0.8, **chain})
    sampler = make_sampler(len(logits), seed=7, temperature=0.8, **chain)
    compared = 0
    for u in uniforms(7, 30):
        drawn = draw(sampler, logits)
        wanted, edge = expected.at(u)
        # Here a flat distribution has steps of 1e-5: rounding of the weights may shift all of them by 1e-7.
        if edge > 5e-7:
            compared += 1
            assert drawn == wanted
    assert compared > 10


def test_frequencies_follow_the_distribution() -> None:
    logits = np.array([2.0, 1.0, 0.5, 0.0, -1.0, 1.0], np.float32)
    chain: dict[str, Any] = {"temperature": 0.7, "top_k": 5}
    expected = expect(logits, (), (), chain)
    sampler = make_sampler(len(logits), seed=3, **chain)
    n = 20_000
    counts = np.bincount([draw(sampler, logits) for _ in range(n)], minlength=len(logits))
    assert counts[4] == 0
    chi_square = ((counts[expected.tokens] - n * expected.p) ** 2 / (n * expected.p)).sum()
    assert chi_square < 23.5  # 4 degrees of freedom: one run in 10,000 is above


def test_greedy_is_numpys_argmax() -> None:
    rng = np.random.default_rng(0)
    for n_vocab in (1, 2, 7, 127, 128, 129, 1000, 49_152):
        sampler = make_sampler(n_vocab)
        for _ in range(20):
            logits = rng.integers(-5, 6, n_vocab).astype(np.float32)  # many ties
            assert draw(sampler, logits) == int(np.argmax(logits))
