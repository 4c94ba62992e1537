"""How logits become a reply: the parameters, checked when they are made.

Rank 3: imports errors, _native. The drawing itself happens in C; nothing here looks at a logit.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real

from pantheon import _native
from pantheon.errors import ArgumentError

DEFAULT_GUESSES = 8
MOST_LOGPROBS = 20
"""So many alternatives for a token at most, as in OpenAI's API."""
_MAX_SEED = 2**64 - 1
_NOT_OF_THE_SAMPLER = {"logit_bias", "seed", "stop", "logprobs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to turn logits into tokens, and where to stop. Every default is neutral: greedy decoding of the model's own
    logits.

    They apply in this order: logit_bias, penalties, temperature, top_k, top_p, min_p, draw. A value out of range
    raises ArgumentError (a ValueError) that names it.
    """

    temperature: float = 0.0
    """>= 0; 0 takes the highest logit, the lowest id on ties."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0: off."""
    top_p: float = 1.0
    """In (0, 1]: keep the likeliest tokens that together reach this probability; 1: off."""
    min_p: float = 0.0
    """In [0, 1]: keep tokens with at least this share of the likeliest one's probability; 0: off."""
    repeat_penalty: float = 1.0
    """> 0: divides (or multiplies, where negative) the logits of tokens seen; 1: off."""
    presence_penalty: float = 0.0
    """In [-2, 2]: subtracted once from tokens seen; 0: off."""
    frequency_penalty: float = 0.0
    """In [-2, 2]: subtracted for each time that a token was seen; 0: off."""
    penalty_window: int = 64
    """How many of the last tokens count as seen, the prompt's included; -1: all."""
    logit_bias: Mapping[int, float] | None = None
    """Added to the logits of these ids; -inf forbids a token."""
    seed: int | None = None
    """0..2**64-1: equal seeds give equal draws. None: fresh, and the reply says which one was used."""
    stop: str | Sequence[str] | None = None
    """Texts that end the reply, one or several; they are no part of it. Searched in the bytes of what is generated,
    wherever its tokens begin and end: the first one to be complete counts, of those that are complete at once the
    longest. One that is spelled like a control token stands for that token, too. Kept here as a tuple."""
    logprobs: int | None = None
    """0..20: report the log-probability of each token and of so many of the likeliest in its place; None: off."""

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, ">= 0", _number("temperature", self.temperature) >= 0)
        _check("top_p", self.top_p, "in (0, 1]", 0 < _number("top_p", self.top_p) <= 1)
        _check("min_p", self.min_p, "in [0, 1]", 0 <= _number("min_p", self.min_p) <= 1)
        _check("repeat_penalty", self.repeat_penalty, "> 0", _number("repeat_penalty", self.repeat_penalty) > 0)
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _check(name, value, "in [-2, 2]", -2 <= _number(name, value) <= 2)
        check_integer("top_k", self.top_k, 0, 2**31 - 1)
        check_integer("penalty_window", self.penalty_window, -1, 2**31 - 1)
        if self.seed is not None:
            check_integer("seed", self.seed, 0, _MAX_SEED)
        if self.logit_bias is not None and not isinstance(self.logit_bias, Mapping):
            kind = type(self.logit_bias).__name__
            raise ArgumentError(f"logit_bias must be a mapping of token ids to numbers, got {kind}")
        for token, bias in (self.logit_bias or {}).items():
            check_integer("a token id of logit_bias", token, 0, 2**32 - 1)
            if bias != -math.inf:
                _number(f"logit_bias[{token}]", bias, "a number or -inf")
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        if self.logprobs is not None:
            check_integer("logprobs", self.logprobs, 0, MOST_LOGPROBS)

    @property
    def stops(self) -> tuple[str, ...]:
        """`stop` as it is searched for."""
        return tuple(self.stop or ())

    def check_vocab(self, n_vocab: int) -> None:
        """Raise ArgumentError if logit_bias names a token that a vocabulary of this size does not have."""
        for token in self.logit_bias or {}:
            check_integer("a token id of logit_bias", token, 0, n_vocab - 1)

    def seed_or_fresh(self) -> int:
        """The seed, or a fresh one from the operating system."""
        return int.from_bytes(os.urandom(8), "little") if self.seed is None else self.seed

    def sampler(self, n_vocab: int, seed: int) -> _native.SamplerHandle:
        """The C sampler with these parameters; close it after use."""
        numbers = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NOT_OF_THE_SAMPLER}
        bias = [(int(token), float(value)) for token, value in (self.logit_bias or {}).items()]
        return _native.SamplerHandle(n_vocab, {**numbers, "seed": seed}, bias)


def sampling_params(named: Mapping[str, object]) -> SamplingParams:
    """SamplingParams from what a caller passed by name; TypeError for a name that nothing has."""
    known = [f.name for f in fields(SamplingParams)]
    for name in named:
        if name not in known:
            raise TypeError(f"there is no argument {name!r}; those of sampling are {', '.join(known)}")
    return SamplingParams(**named)  # type: ignore[arg-type]


def check_integer(name: str, value: object, low: int, high: int) -> int:
    """`value` as an int in low..high, else ArgumentError with name, range and value. bool is not a number here."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentError(f"{name} must be an integer in {low}..{high}, got {_shown(value)}")
    number = int(value.__index__())
    _check(name, value, f"an integer in {low}..{high}", low <= number <= high)
    return number


def check_speculate(value: bool | int) -> int:
    """`speculate=` as the most tokens to guess at a time: True is DEFAULT_GUESSES, False is 0."""
    if isinstance(value, bool):
        return DEFAULT_GUESSES if value else 0
    return check_integer("speculate", value, 0, _native.GUESSES_MAX)


def _stop_strings(value: object) -> tuple[str, ...]:
    """`stop=` as a tuple. An empty string would stop every reply before it begins."""
    if value is None:
        return ()
    if not isinstance(value, (str, Sequence)) or isinstance(value, (bytes, bytearray)):
        raise ArgumentError(f"stop must be a text or a list of texts, got {type(value).__name__}")
    stops = (value,) if isinstance(value, str) else tuple(value)
    for index, stop in enumerate(stops):
        if not isinstance(stop, str) or not stop:
            wanted = f"stop[{index}] must be a text of at least one character"
            raise ArgumentError(f"{wanted}, got {_shown(stop)}")
        _native.text_bytes(stop)  # refuses a lone surrogate
    return stops


def _number(name: str, value: object, wanted: str = "a finite number") -> float:
    """`value` as C will have it, in 32 bits: too large a number is none there, and a tiny one may be 0."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ArgumentError(f"{name} must be {wanted}, got {_shown(value)}")
    try:
        number: float = struct.unpack("f", struct.pack("f", float(value)))[0]
    except OverflowError:
        raise ArgumentError(f"{name} must be {wanted} of at most 3.4e38, got {_shown(value)}") from None
    if not math.isfinite(number):
        raise ArgumentError(f"{name} must be {wanted}, got {_shown(value)}")
    return number


def _shown(value: object) -> str:
    """A value for a message. Python refuses to write very long integers, and nobody wants to read them."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


def _check(name: str, value: object, wanted: str, legal: bool) -> None:
    if not legal:
        raise ArgumentError(f"{name} must be {wanted}, got {_shown(value)}")
