"""A loaded model: the weights, what is known about them, and the ways to put them to work.

Rank 3: imports _native, catalog (name to path) and its siblings in engine/; reaches up to chat/ only inside
Model.chat(). A model is immutable and may be shared by any number of threads; each conversation has a state.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pantheon import _native, catalog
from pantheon._arrays import id_buffer
from pantheon.engine.generate import Job, Record, Reply, ReplyStream, generate
from pantheon.engine.metadata import Metadata
from pantheon.engine.sampling import SamplingParams, check_integer, check_speculate, sampling_params
from pantheon.engine.state import State
from pantheon.engine.tokenizer import Tokenizer
from pantheon.errors import ArgumentError, ClosedError, ContextError, ISAError, UnsupportedError

if TYPE_CHECKING:
    from datetime import datetime

    import numpy.typing as npt

    from pantheon.chat.messages import Message
    from pantheon.chat.session import Chat
    from pantheon.chat.window import Policy

logger = logging.getLogger("pantheon")

MAX_THREADS = 256
_SCORE_ROWS = 64  # logits of so many tokens at a time: 64 x 150,000 floats are 38 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What a loaded model is and how it runs here. Sizes in bytes."""

    path: str
    architecture: str
    n_vocab: int
    n_context: int
    n_embed: int
    n_layer: int
    n_head: int
    n_head_kv: int
    head_size: int
    n_ff: int
    n_params: int
    weight_bytes: int
    """Resident memory of the weights as this process holds them."""
    kv_bytes_per_token: int
    """What one token of a conversation costs."""
    isa: str
    threads: int
    threads_reason: str
    """Where the number of threads comes from."""
    blas: bool
    """True: prompts go through BLAS, and equal inputs may differ in the last bits."""
    load_s: float


def load(
    name_or_path: str | bytes | os.PathLike[str],
    *,
    threads: int | None = None,
    isa: str | None = None,
    progress: _native.Progress | None = None,
    mmap: bool = True,
    blas: bool | None = None,
) -> Model:
    """Load a model: a catalogue name ("smollm2"), a path to a GGUF file, or "hf:owner/repo/file.gguf".

    threads: 1..256; None takes PANTHEON_THREADS, else the usable cores of this machine or container.
    isa: "avx2", "portable", ...; None takes PANTHEON_ISA, else the best that runs here.
    progress: called with the fraction loaded, 0.0 to 1.0; what it raises stops the load.
    mmap: False reads the file into memory first, for files that may shrink or vanish meanwhile.
    blas: True sends prompts through BLAS where the build has it; equal bits are given up.
    Raises NoModelError (with the command that fetches the model), a ModelFileError, UnsupportedError, ISAError,
    ArgumentError or OutOfMemoryError. The network is never touched.
    """
    return Model(name_or_path, threads=threads, isa=isa, progress=progress, mmap=mmap, blas=blas)


class Model:
    """The weights of one file, ready to run. Use it as a context manager, or close() it."""

    def __init__(
        self,
        name_or_path: str | bytes | os.PathLike[str],
        *,
        threads: int | None = None,
        isa: str | None = None,
        progress: _native.Progress | None = None,
        mmap: bool = True,
        blas: bool | None = None,
    ) -> None:
        """See pantheon.load()."""
        path = catalog.resolve(name_or_path)
        n_threads, reason = _choose_threads(threads)
        if blas and not _native.has_blas():
            raise UnsupportedError("this build has no BLAS; build it with USE_BLAS=1, or leave blas=True out")
        started = time.perf_counter()
        self._handle = _load_handle(path, n_threads, isa, mmap, blas, progress)
        self._states: weakref.WeakSet[_native.StateHandle] = weakref.WeakSet()
        self.chat_formats: dict[str | None, object] = {}  # kept for chat/: a template is compiled and checked once
        facts = _native.model_facts(self._handle)._asdict()
        self._info = ModelInfo(
            path=os.fsdecode(path),
            threads=facts.pop("n_threads"),
            threads_reason=reason,
            load_s=time.perf_counter() - started,
            **facts,
        )
        self._tokenizer = Tokenizer(self._handle.tokenizer())
        self._metadata = Metadata(self._handle.gguf())
        logger.info(
            "loaded %s (%s, %s, %d threads) in %.2f s",
            self._info.path, self._info.architecture, self._info.isa, self._info.threads, self._info.load_s,
        )  # fmt: skip

    # ---- what it is

    @property
    def info(self) -> ModelInfo:
        """Architecture, sizes, threads, instruction set."""
        return self._info

    @property
    def architecture(self) -> str:
        """general.architecture of the file, such as "llama"."""
        return self._info.architecture

    @property
    def context_length(self) -> int:
        """The most tokens that the model was made to read."""
        return self._info.n_context

    @property
    def n_vocab(self) -> int:
        """How many tokens there are, which is the width of the logits."""
        return self._info.n_vocab

    @property
    def fingerprint(self) -> str:
        """Which model this is: 16 hexadecimal digits that two models share if they compute the same.

        It covers the architecture, its metadata, the tensors' names, types and shapes, and a part of all weights that
        is read in milliseconds; not the vocabulary and the chat template. It depends on the file alone.
        """
        return f"{_native.model_fingerprint(self._handle):016x}"

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer; it closes with the model."""
        return self._tokenizer

    @property
    def metadata(self) -> Metadata:
        """The header of its file, read-only."""
        return self._metadata

    # ---- at the level of ids

    def state(self, window: int | None = None) -> State:
        """A new, empty conversation.

        window: the most tokens that it may hold, 1 to context_length; None: context_length. Models with rotary factors
        for short and for long contexts (Phi-3) take those of the window; for all others the window changes no bit.
        """
        handle = _native.StateHandle(self._handle, self._check_window(window))
        self._states.add(handle)
        return State(handle, self.n_vocab, window or self.context_length)

    def logits(self, ids: Sequence[int] | npt.ArrayLike, window: int | None = None) -> _native.Floats:
        """The logits after each of `ids`, float32[len(ids), n_vocab]. Mind the size: 8,192 ids x 49,152 are 1.6 GB.

        window: as in state().
        """
        import numpy as np

        tokens = _native.as_ids(ids)
        out = np.empty((len(tokens), self.n_vocab), np.float32)
        if len(tokens):
            with self.state(window) as state:
                state._advance_all(tokens, out)
        return out

    def score(self, ids: Sequence[int] | npt.ArrayLike, window: int | None = None) -> _native.Floats:
        """Natural log-probabilities of ids[1:], each given all ids before it: float32[len(ids) - 1], all <= 0.

        window: as in state().
        """
        import numpy as np

        tokens = _native.as_ids(ids)
        if len(tokens) and int(tokens.max()) >= self.n_vocab:
            raise ArgumentError(f"token id {tokens.max()} is not in 0..{self.n_vocab - 1}")
        scores = np.empty(max(len(tokens) - 1, 0), np.float32)
        with self.state(window) as state:
            for start in range(0, len(scores), _SCORE_ROWS):
                targets = tokens[start + 1 : start + 1 + _SCORE_ROWS]
                rows = np.empty((len(targets), self.n_vocab), np.float32)
                state._advance_all(tokens[start : start + len(targets)], rows)
                wide = rows.astype(np.float64)
                wide -= wide.max(axis=1, keepdims=True)
                chosen = wide[np.arange(len(targets)), targets]
                scores[start : start + len(targets)] = chosen - np.log(np.exp(wide).sum(axis=1))
        return scores

    def eval_batch(
        self,
        parts: Sequence[tuple[State, Sequence[int] | npt.ArrayLike]],
        *,
        progress: _native.Progress | None = None,
    ) -> _native.Floats:
        """Append ids to several states of this model in one call: (state, ids) each, at least one id.

        Returns the logits after the last id of each, float32[len(parts), n_vocab], equal to the bit to what each state
        would get alone. Together they read the weights once, so a step of eight conversations costs little more than
        one of them alone. progress: as in State.eval().
        Raises ArgumentError (a part that is no such pair, a state that is here twice or of another model, an id that
        there is not, no ids), BusyError and ContextError before any work, and names the part by its index; after
        OutOfMemoryError, NumericError or CancelledError (a cancel of one state ends the whole call) each state holds a
        prefix of what was asked for, and no logits.
        """
        if not isinstance(parts, Iterable):
            raise ArgumentError(f"the parts of a batch must be a sequence of (state, ids), got {type(parts).__name__}")
        pairs = [_read_part(at, part) for at, part in enumerate(parts)]
        for at, (handle, ids) in enumerate(pairs):
            if len(ids) == 0:
                raise ArgumentError(f"part {at} of the batch has no token ids")
            if handle.model is not self._handle:
                raise ArgumentError(f"the state of part {at} of the batch belongs to another model")
            if any(handle is other for other, _ in pairs[:at]):
                raise ArgumentError(f"the state of part {at} is in the batch twice; give its ids in one part")
        if not pairs:
            import numpy as np

            return np.empty((0, self.n_vocab), np.float32)
        return _native.states_eval(self._handle, pairs, progress, self.n_vocab)

    # ---- at the level of text

    def stream(
        self,
        prompt: str | bytes | Sequence[int] | npt.ArrayLike,
        *,
        max_tokens: int | None = 128,
        progress: _native.Progress | None = None,
        speculate: bool | int = False,
        window: int | None = None,
        **sampling: Any,
    ) -> ReplyStream:
        """Continue `prompt`: an iterator of text pieces whose `reply` is set at the end.

        A text is encoded without control tokens and gets the beginning-of-sequence id if the file asks for one; ids
        are taken as they are. max_tokens None: as many as fit. sampling: the fields of SamplingParams.
        speculate: guess the next tokens from what was read before and evaluate them in one pass. The reply is the same;
        where it repeats its source it comes faster. True, or the most tokens to guess at a time (1 to 30).
        window: as in state(). Raises ContextError if prompt and max_tokens do not fit into it: nothing is ever cut.
        """
        ids = self._prompt_ids(prompt)
        if len(ids) == 0:
            raise ArgumentError("the prompt is empty: it has no token to continue")
        params, guesses = sampling_params(sampling), check_speculate(speculate)
        room = self._check_window(window) or self.context_length
        last = int(ids[-1])
        after = None if last == self.tokenizer.bos else last  # behind a BOS a text begins
        job = replace(self._job(len(ids), room, max_tokens, progress, guesses, params), after=after)
        record = Record(job)
        return ReplyStream(_complete(self, ids, window, record), record)

    def generate(
        self,
        prompt: str | bytes | Sequence[int] | npt.ArrayLike,
        *,
        max_tokens: int | None = 128,
        progress: _native.Progress | None = None,
        speculate: bool | int = False,
        window: int | None = None,
        **sampling: Any,
    ) -> Reply:
        """stream() in one go: the whole reply."""
        return self.stream(
            prompt, max_tokens=max_tokens, progress=progress, speculate=speculate, window=window, **sampling
        ).finish()

    def chat(
        self,
        system: str | None = None,
        *,
        messages: Iterable[Message | Mapping[str, Any]] = (),
        window: int | None = None,
        reply_limit: int = 128,
        policy: Policy = "drop_oldest",
        fraction: float = 0.5,
        template: str | None = None,
        now: datetime | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        fold_system: bool = False,
        merge_roles: bool = False,
    ) -> Chat:
        """A conversation with this model; see Chat. Many may run at once, each in its own thread."""
        from pantheon.chat.session import Chat

        return Chat(
            self,
            system,
            messages=messages,
            window=window,
            reply_limit=reply_limit,
            policy=policy,
            fraction=fraction,
            template=template,
            now=now,
            tools=tools,
            fold_system=fold_system,
            merge_roles=merge_roles,
        )

    def load_chat(self, path: str | bytes | os.PathLike[str], **options: Any) -> Chat:
        """The conversation that Chat.save() wrote; options and errors: as in Chat.load()."""
        from pantheon.chat.session import Chat

        return Chat.load(path, self, **options)

    def _prompt_ids(self, prompt: str | bytes | Sequence[int] | npt.ArrayLike) -> _native.Ids | _native.IdBuffer:
        if isinstance(prompt, (str, bytes)):
            return self.tokenizer.encode_buffer(prompt, bos=True)
        return id_buffer(prompt)

    def _check_window(self, window: int | None) -> int:
        """A window for C, where 0 stands for the context."""
        return 0 if window is None else check_integer("window", window, 1, self.context_length)

    def _job(
        self,
        n_prompt: int,
        window: int,
        max_tokens: int | None,
        progress: Any,
        speculate: int,
        params: SamplingParams,
    ) -> Job:
        params.check_vocab(self.n_vocab)
        room = window - n_prompt
        limit = room if max_tokens is None else check_integer("max_tokens", max_tokens, 0, 2**31 - 1)
        if limit > room or room < 0:
            raise ContextError(
                f"a prompt of {n_prompt} tokens and {max(limit, 0)} tokens of reply do not fit into the "
                f"{'model' if window == self.context_length else 'window'}'s {window}; shorten the prompt or lower "
                "max_tokens",
                prompt_tokens=n_prompt,
                reply_limit=max(limit, 0),
                window=window,
            )
        return Job(
            tokenizer=self.tokenizer,
            params=params,
            seed=params.seed_or_fresh(),
            limit=limit,
            stop_ids=frozenset(self.tokenizer.stop_ids),
            progress=progress,
            speculate=speculate,
        )

    # ---- the end

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._handle.closed

    def close(self) -> None:
        """Free the weights and close every state and chat of this model. Idempotent, from any thread."""
        for state in list(self._states):
            state.close()
        self._handle.close()

    def __enter__(self) -> Model:
        if self.closed:
            raise ClosedError("this model is closed")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> str:
        raise TypeError("a Model holds memory of this process and cannot be pickled; pass its path and load it there")

    def __repr__(self) -> str:
        name = os.path.basename(self._info.path)
        return f"<pantheon.Model {name}: {self.architecture}, {self._info.n_params / 1e6:.0f} M parameters>"


def _read_part(at: int, part: object) -> tuple[_native.StateHandle, _native.Ids | _native.IdBuffer]:
    """Part `at` of a batch, for C."""
    if not isinstance(part, (tuple, list)):
        raise ArgumentError(f"part {at} of the batch must be (state, ids), got {type(part).__name__}")
    if len(part) != 2 or not isinstance(part[0], State):
        kinds = ", ".join(type(value).__name__ for value in part[:3])
        raise ArgumentError(f"part {at} of the batch must be (state, ids), got {len(part)} values ({kinds})")
    try:
        return part[0]._handle, id_buffer(part[1])
    except ArgumentError as error:
        raise ArgumentError(f"part {at}: {error}") from None


def _complete(model: Model, ids: _native.Ids | _native.IdBuffer, window: int | None, record: Record) -> Iterator[str]:
    """The generator behind Model.stream(): the state lives exactly as long as the reply."""
    record.prompt_tokens = len(ids)
    with model.state(window) as state:
        yield from generate(state, ids, record)


def _choose_threads(threads: int | None) -> tuple[int, str]:
    """The number for C and where it comes from."""
    if threads is not None:
        return check_integer("threads", threads, 1, MAX_THREADS), "asked for"
    value = os.environ.get("PANTHEON_THREADS", "")
    if not value:
        return _native.default_threads()  # the number and its reason from one call: they cannot differ
    if not value.isascii() or not value.isdigit() or not 1 <= int(value[:9]) <= MAX_THREADS:
        raise ArgumentError(f"PANTHEON_THREADS must be a number in 1..{MAX_THREADS}, got {value!r}")
    return int(value), "PANTHEON_THREADS"


def _load_handle(
    path: str | os.PathLike[str],
    threads: int,
    isa: str | None,
    mmap: bool,
    blas: bool | None,
    progress: _native.Progress | None,
) -> _native.ModelHandle:
    """Load with the instruction set that was asked for, by argument or by environment."""
    forced = isa if isa is not None else os.environ.get("PANTHEON_ISA") or None
    source = "isa" if isa is not None else "PANTHEON_ISA"
    if forced is not None and forced not in _native.isa_available():
        usable = ", ".join(_native.isa_available())
        raise ISAError(f"{source}={forced!r} cannot be used on this machine; it can run: {usable}")
    return _native.ModelHandle(path, threads=threads, isa=forced, mmap=mmap, blas=blas, progress=progress)
