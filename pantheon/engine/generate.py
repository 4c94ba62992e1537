"""From evaluated prompt to reply: the loop of sample, decode, evaluate, and what a finished reply looks like.

Rank 3: imports _native, logprobs, sampling, state, stop, tokenizer. It knows ids and text, nothing of messages.

The one thing to know first: a reply's last sampled token is never evaluated. Whoever continues puts it in with the
next prompt; the ids in Reply.tokens are what was sampled, state.tokens is what was evaluated. Where a stop string
ended the reply, the state holds tokens that are no part of it: whoever goes on compares ids.
"""

from __future__ import annotations

import codecs
import contextlib
import time
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from pantheon import _native
from pantheon.engine.logprobs import TokenLogprob, measure
from pantheon.engine.sampling import SamplingParams
from pantheon.engine.state import State
from pantheon.engine.stop import StopMatcher
from pantheon.engine.tokenizer import PieceDecoder, Tokenizer
from pantheon.errors import CancelledError, ClosedError

if TYPE_CHECKING:
    from pantheon.engine.aio import AsyncReplyStream

FinishReason = Literal["stop", "length", "cancelled"]
"""stop: the model ended its turn, or a stop string came. length: max_tokens were reached. cancelled: cancel(), Ctrl-C
or a closed stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a reply cost, in tokens. prompt_tokens == reused_tokens + evaluated_tokens, once the prompt is through."""

    prompt_tokens: int
    reused_tokens: int
    """The part of the prompt that was in the state already."""
    evaluated_tokens: int
    """The part of the prompt that had to be read for this reply."""
    generated_tokens: int
    """Sampled for the reply, those of the stop string that ended it included."""
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
    """A finished reply. Control tokens never show in its text."""

    text: str
    """All of it, the prefill included; of Chat.continue_() what was added."""
    tokens: tuple[int, ...]
    """The sampled ids without the end-of-turn. Where a stop string ended the reply: up to the one in which the text
    before it ends, so the last one may read on into the stop string."""
    finish_reason: FinishReason
    stop: str | None = None
    """The stop string that ended the reply, if one did."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """With `logprobs=`: one for each of `tokens`."""
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
    prefill: str = ""
    """What the reply's text begins with. Its ids are the end of the prompt."""
    begun: bytes = b""
    """The bytes of an unfinished character that the prompt ends with: the reply's text begins with that character."""


@dataclass(slots=True)
class Record:
    """What has happened so far; becomes a Reply in the end, however that comes about."""

    job: Job
    prompt_tokens: int = 0
    reused_tokens: int = 0
    evaluated_tokens: int = 0
    proposed_tokens: int = 0
    accepted_tokens: int = 0
    generated_tokens: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    """Their text. Kept as it comes, so that a reply can be finished after its model was closed."""
    finish_reason: FinishReason = "cancelled"
    stop: str | None = None
    spelled: list[int] | None = None
    """After a stop string: ids that read as the text and not a byte further. None: `tokens` do."""
    n_released: int = 0
    """How many of the tokens have their text in the pieces."""
    prompt_s: float = 0.0
    decode_s: float = 0.0
    reply: Reply | None = None
    state: State | None = None
    """While the reply runs: what it runs on."""
    unwanted: bool = False
    """Somebody asked for the end."""

    @property
    def ids(self) -> tuple[int, ...]:
        """Ids that read as the sampled part of the text: for whoever keeps the reply to go on from it."""
        return tuple(self.tokens if self.spelled is None else self.spelled)

    def cancel(self) -> None:
        """Ask for the end of the reply, before it begins or while it runs. From any thread."""
        self.unwanted = True  # first: whoever sets `state` looks here afterwards
        if self.state is not None:
            with contextlib.suppress(ClosedError):
                self.state.cancel()

    def finish(self) -> Reply:
        """Make the Reply, once."""
        if self.reply is None:
            usage = Usage(
                prompt_tokens=self.prompt_tokens,
                reused_tokens=self.reused_tokens,
                evaluated_tokens=self.evaluated_tokens,
                generated_tokens=self.generated_tokens,
                proposed_tokens=self.proposed_tokens,
                accepted_tokens=self.accepted_tokens,
            )
            self.reply = Reply(
                text="".join(self.pieces),
                tokens=tuple(self.tokens),
                finish_reason=self.finish_reason,
                stop=self.stop,
                logprobs=None if self.job.params.logprobs is None else tuple(self.logprobs),
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

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """With `logprobs=`: those of the tokens whose text came already. Between two pieces they are the new ones'."""
        n = self._record.n_released if self._record.reply is None else len(self._record.tokens)
        return tuple(self._record.logprobs[:n])

    def finish(self) -> Reply:
        """Read the rest and return the whole reply."""
        for _ in self._pieces:
            pass
        return self._record.finish()

    def cancel(self) -> None:
        """Let the reply end as soon as it can, in the prompt phase too, or not begin. From any thread; it still has to
        be read to its end, or closed."""
        self._record.cancel()

    def close(self) -> None:
        """End the reply here. Idempotent."""
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()

    def __aiter__(self) -> AsyncReplyStream:
        """The same for `async for`: the work is done in a thread, and the loop never waits for it."""
        from pantheon.engine.aio import AsyncReplyStream

        return AsyncReplyStream(lambda: self)

    def __enter__(self) -> ReplyStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Text:
    """Sampled tokens in, the reply's text out; knows which bytes of it are whose."""

    def __init__(self, record: Record) -> None:
        job = record.job
        self._record = record
        self._pieces = PieceDecoder(job.tokenizer, False, job.after)
        self._matcher = StopMatcher([stop.encode() for stop in job.params.stops])
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._utf8.decode(job.begun)
        self._ends: list[int] = []
        """For each token, how many bytes of text there are up to its end."""
        self._bytes = bytearray()
        self._prefill = job.prefill

    def push(self, token: int) -> str:
        """The text that became certain. After a stop string it is the last, and the record says so."""
        piece = self._pieces.push(token)
        self._bytes += piece
        self._ends.append(len(self._bytes))
        data = self._matcher.push(piece)
        if self._matcher.match is not None:
            record = self._record
            record.finish_reason, record.stop = "stop", record.job.params.stops[self._matcher.match]
            self._cut(self._matcher.released)
        return self._add(data, self._matcher.match is not None)

    def finish(self) -> str:
        """What was held back, if no stop string came; U+FFFD if the last character never became whole. Idempotent.

        Tokens that Ctrl-C kept from being pushed are no part of the reply: its text and its ids say the same.
        """
        n = len(self._ends)
        del self._record.tokens[n:], self._record.logprobs[n:]
        began = self._record.generated_tokens or self._record.finish_reason == "stop"
        return self._add(self._matcher.finish(), True) if began else ""

    def _add(self, data: bytes, final: bool) -> str:
        text = self._prefill + self._utf8.decode(data, final)
        self._prefill = ""
        self._record.n_released = bisect_right(self._ends, self._matcher.released)
        self._record.pieces.append(text)
        return text

    def _cut(self, size: int) -> None:
        """The text ends after so many bytes: leave the tokens that are in it, and spell it exactly."""
        record = self._record
        n = bisect_left(self._ends, size) + 1 if size else 0
        whole = n - (n > 0 and self._ends[n - 1] > size)
        start = self._ends[whole - 1] if whole else 0
        record.spelled = record.tokens[:whole]
        if start < size:
            after = record.tokens[whole - 1] if whole else record.job.after
            record.spelled += record.job.tokenizer.encode_buffer(bytes(self._bytes[start:size]), after=after)
        del record.tokens[n:], record.logprobs[n:], self._ends[n:]


def generate(state: State, ids: _native.Ids | _native.IdBuffer, record: Record) -> Iterator[str]:
    """Evaluate `ids` (the rest of the prompt), then sample up to the limit, yielding text as it becomes certain."""
    text = _Text(record)
    tokens = generate_tokens(state, ids, record)
    record.state = state
    try:
        if record.unwanted:
            state.cancel()
        for token in tokens:
            piece = text.push(token)
            if piece:
                yield piece
            if record.stop is not None:
                break
        rest = text.finish()
        if rest:
            yield rest
    finally:
        record.state = None
        tokens.close()
        text.finish()  # nothing, unless the reply was left with text held back or in the middle of a character
        record.finish()


def generate_tokens(state: State, ids: _native.Ids | _native.IdBuffer, record: Record) -> Generator[int, None, None]:
    """The loop itself. A cancelled evaluation ends it quietly; every other failure is raised."""
    job = record.job
    sampler = job.params.sampler(job.tokenizer.n_vocab, job.seed)
    stop_tokens = _stop_tokens(job)
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
            if token in job.stop_ids or token in stop_tokens:
                record.finish_reason, record.stop = "stop", stop_tokens.get(token)
                return
            if job.params.logprobs is not None:
                logits = state.logits
                assert logits is not None  # a token was drawn from them
                record.logprobs.append(measure(logits, token, job.params.logprobs, job.tokenizer))
            record.tokens.append(token)
            record.generated_tokens += 1
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


def _stop_tokens(job: Job) -> dict[int, str]:
    """Control tokens that are spelled like a stop string. They never show in the text, where it would be found."""
    found = {job.tokenizer.token_id(stop): stop for stop in job.params.stops}
    return {token: stop for token, stop in found.items() if token is not None and job.tokenizer.is_control(token)}


def _read_prompt(state: State, ids: _native.Ids | _native.IdBuffer, record: Record) -> None:
    before = len(state)
    started = time.perf_counter()
    try:
        state._advance(ids, record.job.progress)
    finally:
        record.prompt_s = time.perf_counter() - started
        if not state.closed:
            record.evaluated_tokens = len(state) - before
