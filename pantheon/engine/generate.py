"""From evaluated prompt to reply: the loop of sample, decode, evaluate, and what a finished reply looks like.

Rank 3: imports _native, sampling, state, tokenizer. It knows ids and text, nothing of messages.

The one thing to know first: a reply's last sampled token is never evaluated. Whoever continues puts it in with the
next prompt; the ids in Reply.tokens are what was sampled, state.tokens is what was evaluated.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal

from pantheon import _native
from pantheon.engine.sampling import SamplingParams
from pantheon.engine.state import State
from pantheon.engine.tokenizer import Tokenizer
from pantheon.errors import CancelledError, ClosedError

FinishReason = Literal["stop", "length", "cancelled"]
"""stop: the model ended its turn. length: max_tokens were reached. cancelled: cancel(), Ctrl-C or a closed stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a reply cost, in tokens. prompt_tokens == reused_tokens + evaluated_tokens, once the prompt is through."""

    prompt_tokens: int
    reused_tokens: int
    """The part of the prompt that was in the state already."""
    evaluated_tokens: int
    """The part of the prompt that had to be read for this reply."""
    generated_tokens: int
    proposed_tokens: int = 0
    """With `speculate=`: guesses that were evaluated along with other tokens..."""
    accepted_tokens: int = 0
    """...and those of them that came true, each of which saved a pass over the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Wall time of a reply in seconds; the time that the caller spent between two pieces is not counted."""

    prompt_s: float
    decode_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A finished reply. `tokens` are the sampled ids without the end-of-turn; control tokens never show in `text`."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    seed: int
    """The seed that was used: give it as `seed=` to draw the same reply again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to generate, fixed before it starts."""

    tokenizer: Tokenizer
    params: SamplingParams
    seed: int
    limit: int
    """At most so many tokens."""
    stop_ids: frozenset[int]
    progress: _native.Progress | None
    speculate: int = 0
    """Guess so many tokens at a time; the reply is the same."""
    after: int | None = None
    """The token whose text the reply's text goes on from; None: the reply is a text of its own."""


@dataclass(slots=True)
class Record:
    """What has happened so far; becomes a Reply in the end, however that comes about."""

    job: Job
    prompt_tokens: int = 0
    reused_tokens: int = 0
    evaluated_tokens: int = 0
    proposed_tokens: int = 0
    accepted_tokens: int = 0
    tokens: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    """Their text. Kept as it comes, so that a reply can be finished after its model was closed."""
    finish_reason: FinishReason = "cancelled"
    prompt_s: float = 0.0
    decode_s: float = 0.0
    reply: Reply | None = None

    def finish(self) -> Reply:
        """Make the Reply, once."""
        if self.reply is None:
            usage = Usage(
                prompt_tokens=self.prompt_tokens,
                reused_tokens=self.reused_tokens,
                evaluated_tokens=self.evaluated_tokens,
                generated_tokens=len(self.tokens),
                proposed_tokens=self.proposed_tokens,
                accepted_tokens=self.accepted_tokens,
            )
            self.reply = Reply(
                text="".join(self.pieces),
                tokens=tuple(self.tokens),
                finish_reason=self.finish_reason,
                usage=usage,
                timings=Timings(prompt_s=self.prompt_s, decode_s=self.decode_s),
                seed=self.job.seed,
            )
        return self.reply


class ReplyStream:
    """A reply in the making: iterate for its text, piece by piece; afterwards `reply` holds it whole.

    Leaving the loop early, or close(), ends the reply there and frees what it held.
    """

    def __init__(self, pieces: Iterator[str], record: Record) -> None:
        """Internal. `pieces` must be a generator that does not refer to this object: a `break` then closes it."""
        self._pieces = pieces
        self._record = record

    def __iter__(self) -> ReplyStream:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def reply(self) -> Reply | None:
        """The whole reply once it has ended (by itself, by cancel, or by close()), else None."""
        return self._record.reply

    def finish(self) -> Reply:
        """Read the rest and return the whole reply."""
        for _ in self._pieces:
            pass
        return self._record.finish()

    def close(self) -> None:
        """End the reply here. Idempotent."""
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> ReplyStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def generate(state: State, ids: _native.Ids | _native.IdBuffer, record: Record) -> Iterator[str]:
    """Evaluate `ids` (the rest of the prompt), then sample up to the limit, yielding text as it becomes whole."""
    decoder = record.job.tokenizer.decoder(after=record.job.after)
    tokens = generate_tokens(state, ids, record)
    try:
        for token in tokens:
            text = decoder.push(token)
            if text:
                record.pieces.append(text)
                yield text
        rest = decoder.finish()
        if rest:
            record.pieces.append(rest)
            yield rest
    finally:
        tokens.close()
        record.pieces.append(decoder.finish())  # nothing, unless the reply was left in the middle of a character
        record.finish()


def generate_tokens(state: State, ids: _native.Ids | _native.IdBuffer, record: Record) -> Generator[int, None, None]:
    """The loop itself. A cancelled evaluation ends it quietly; every other failure is raised."""
    job = record.job
    sampler = job.params.sampler(job.tokenizer.n_vocab, job.seed)
    try:
        if job.speculate:
            state._speculate(job.speculate)
        while len(record.tokens) < job.limit:
            started = time.perf_counter()
            if not record.tokens:
                _read_prompt(state, ids, record)
            elif job.speculate:
                state._advance_one(record.tokens[-1], job.limit - len(record.tokens))
            else:
                state._advance(record.tokens[-1:])
            token = state.sample(sampler)
            if len(record.tokens) > 0:
                record.decode_s += time.perf_counter() - started
            if token in job.stop_ids:
                record.finish_reason = "stop"
                return
            record.tokens.append(token)
            if len(record.tokens) == job.limit:
                record.finish_reason = "length"
            yield token
        record.finish_reason = "length"
    except CancelledError:
        record.finish_reason = "cancelled"
    finally:
        sampler.close()
        if job.speculate:
            with contextlib.suppress(ClosedError):  # the reply is kept, whoever closed the state
                record.proposed_tokens, record.accepted_tokens = state._speculation()


def _read_prompt(state: State, ids: _native.Ids | _native.IdBuffer, record: Record) -> None:
    before = len(state)
    started = time.perf_counter()
    try:
        state._advance(ids, record.job.progress)
    finally:
        record.prompt_s = time.perf_counter() - started
        if not state.closed:
            record.evaluated_tokens = len(state) - before
