"""Logits to a token, and C's own loop. Rank 1: imports _arrays, and its siblings base and state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pantheon._arrays import IdBuffer, Ids
from pantheon._native.base import Handle, check, fail, ffi, lib
from pantheon._native.state import StateHandle

Bias = Sequence[tuple[int, float]]


def _sampling_params(fields: dict[str, float], logit_bias: Bias) -> tuple[Any, Any]:
    """A pn_sampling_params, and what it points to: both must live until C has read them."""
    params = ffi.new("pn_sampling_params *", lib.pn_sampling_defaults())
    for name, value in fields.items():
        setattr(params, name, value)
    bias = ffi.new("pn_logit_bias[]", list(logit_bias)) if logit_bias else ffi.NULL
    params.logit_bias, params.n_logit_bias = bias, len(logit_bias)
    return params, bias


class SamplerHandle(Handle):
    """Owns one pn_sampler: parameters and a random generator. `fields` are named as in pn_sampling_params."""

    __slots__ = ()
    noun = "sampler"

    def __init__(self, n_vocab: int, fields: dict[str, float], logit_bias: Bias) -> None:
        params, _bias = _sampling_params(fields, logit_bias)
        super().__init__(lib.pn_sampler_new(n_vocab, params), lib.pn_sampler_free)


def sample(sampler: SamplerHandle, state: StateHandle) -> int:
    """Draw the next token from the state's logits."""
    token = ffi.new("uint32_t *")
    with state.exclusive(), sampler as draw, state as pointer:
        check(lib.pn_sample_state(draw, pointer, token))
    return int(token[0])


def stream_tokens(
    state: StateHandle, ids: Ids | IdBuffer, max_tokens: int, fields: dict[str, float], logit_bias: Bias
) -> int:
    """C's own loop: append ids, generate, return how many tokens came. Only state_cancel() interrupts it."""
    params, _bias = _sampling_params(fields, logit_bias)
    with state.exclusive(), state.model as model, state as pointer:
        buffer = ffi.from_buffer("uint32_t[]", ids)
        count = int(lib.pn_stream_tokens(model, pointer, buffer, len(ids), max_tokens, params, ffi.NULL, ffi.NULL))
    return count if count >= 0 else fail()
