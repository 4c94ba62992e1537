"""What is measured, and in which order: a plan in, figures out.

Rank 5: imports _native, catalog, engine, errors. Every figure is kept run by run; medians are made where shown.

The method (benchmarks/README.md says why): each engine in a process of its own, asked in turn with the same ids; fresh
random ids in every run; one round that only warms up; a pause before each request, in which the threads of whoever was
asked last go to sleep; the speed of the memory right before and right after the decoding that is held against it.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pantheon import _native, catalog
from pantheon.bench.workers import OtherWork, Say, Setup, Worker, engines_of
from pantheon.engine.metadata import Metadata
from pantheon.errors import ContextError

WARM_UPS = 1
PAUSE_S = 0.2
DECODE_PROMPT = 16
"""Tokens before the decoding of which only the speed counts."""
DRAWS = 50
MIB = 1 << 20
BANDWIDTH_RUNS = 7

Request = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Series:
    """One figure, run by run, in the order of the runs."""

    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        """The figure that stands for all."""
        return statistics.median(self.runs)

    @property
    def low(self) -> float:
        """The lowest of them."""
        return min(self.runs)

    @property
    def high(self) -> float:
        """The highest of them."""
        return max(self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure. Counts in tokens; contexts: decode also after so many of them."""

    model: str
    threads: int | None = None
    isa: str | None = None
    blas: bool | None = None
    prompt: int = 512
    decode: int = 64
    runs: int = 5
    contexts: tuple[int, ...] = ()
    batch: int = 8
    peer_python: str | None = None
    """A Python that has the other engine; None: Pantheon alone."""
    pause_s: float = PAUSE_S

    @property
    def longest(self) -> int:
        """Tokens that the longest conversation of the plan has."""
        return max(self.prompt, max(DECODE_PROMPT, *self.contexts, 0) + self.decode)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What the file says about its weights."""

    path: str
    n_bytes: int
    dtype: str
    """The element type that most bytes have."""
    unread_bytes: int
    """Weights of which a token reads one row only: an embedding that is not the output matrix too."""
    window: int | None
    """Tokens that the model reads at most; None where the file does not say it."""


@dataclass(slots=True, kw_only=True)
class Figures:
    """What was measured of one engine. Rates in tokens per second; the second half of Pantheon alone."""

    load_s: Series
    prompt: Series
    cached_s: Series
    decode: Series
    contexts: dict[int, Series] = field(default_factory=dict)
    batch: Series | None = None
    """All conversations together."""
    batch_gain: Series | None = None
    """That, over one of them alone."""
    draw_s: Series | None = None
    python_overhead: Series | None = None
    """Extra time of Python's loop as a share of that of C's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth:
    """The speed of the memory on as many threads, in bytes per second, and the part of it that decoding reached."""

    before: float
    after: float
    token_bytes: int

    @property
    def bytes_per_s(self) -> float:
        """The mean of before and after."""
        return (self.before + self.after) / 2

    def fraction(self, tokens_per_s: float) -> float:
        """The share of the bandwidth that so many tokens per second use."""
        return self.token_bytes * tokens_per_s / self.bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All of it: the plan, what ran, and the figures by engine ("pantheon", and "llama" if it took part)."""

    plan: Plan
    file: FileFacts
    facts: dict[str, dict[str, Any]]
    figures: dict[str, Figures]
    bandwidth: Bandwidth
    other_work: float | None


# ---- Tools that benchmarks/compare.py shares ----------------------------------------------------------------------


def fresh_ids(n: int, n_vocab: int) -> list[int]:
    """Ids that no run before had, so that nothing can be reused."""
    draw = random.SystemRandom()
    return [draw.randrange(min(100, n_vocab - 1), n_vocab) for _ in range(n)]


def alternate(
    workers: Sequence[Worker], make: Callable[[int], Request], runs: int, *, pause_s: float = PAUSE_S,
    warm_ups: int = WARM_UPS,
) -> dict[str, list[dict[str, float]]]:  # fmt: skip
    """The answers of each worker (by label) to make(run), asked in turn with the same request; without the warm-ups."""
    answers: dict[str, list[dict[str, float]]] = {worker.label: [] for worker in workers}
    for run in range(-warm_ups, runs):
        request = make(run)
        for worker in workers:
            time.sleep(pause_s)
            answer = worker.ask(request)
            if run >= 0:
                answers[worker.label].append(answer)
    return answers


def rates(answers: Sequence[dict[str, float]], key: str, n_tokens: int) -> Series:
    """Tokens per second of each answer."""
    return Series(tuple(n_tokens / max(answer[key], 1e-9) for answer in answers))


def read_file_facts(name: str) -> FileFacts:
    """The facts of a model file, from its header; raises what opening it raises."""
    path = catalog.resolve(name)
    metadata = Metadata.from_file(path)
    tensors = {tensor.name: tensor for tensor in metadata.tensors}
    window = metadata.get(f"{metadata.text('general.architecture')}.context_length")
    by_type: Counter[str] = Counter()
    for tensor in tensors.values():
        by_type[tensor.type_name] += tensor.size
    embedding = tensors.get("token_embd.weight")
    untied = embedding is not None and "output.weight" in tensors
    return FileFacts(
        path=str(path),
        n_bytes=path.stat().st_size,
        dtype=by_type.most_common(1)[0][0] if by_type else "-",
        unread_bytes=embedding.size if embedding is not None and untied else 0,
        window=window if isinstance(window, int) else None,
    )


def token_bytes(file: FileFacts, weight_bytes: int) -> int:
    """Bytes of weights that one token reads, of those that a process holds."""
    return max(weight_bytes - file.unread_bytes, 1)


def read_bandwidth(threads: int, n_bytes: int, *, pause_s: float = PAUSE_S) -> float:
    """Bytes per second of reading a buffer as large as what a token reads (1 MiB to 1 GiB)."""
    time.sleep(pause_s)
    return _native.read_bandwidth(threads, min(max(n_bytes, MIB), 1024 * MIB), BANDWIDTH_RUNS)


# ---- pantheon bench -----------------------------------------------------------------------------------------------


def check_room(plan: Plan, window: int | None) -> None:
    """Raise ContextError if the plan has a conversation that the model cannot hold."""
    if window is not None and plan.longest > window:
        raise ContextError(
            f"the longest case has {plan.longest} tokens and the model reads at most {window}: "
            "lower --prompt, --context or --decode"
        )


def room(n_tokens: int) -> int:
    """A window for the other engine: so many tokens, and a round number."""
    return (n_tokens + 256) // 256 * 256


class _Session:
    """One run of a plan, while its workers live."""

    def __init__(self, plan: Plan, workers: list[Worker], say: Say) -> None:
        self.plan, self.workers, self.say = plan, workers, say
        self.n_vocab = min(int(worker.facts["n_vocab"]) for worker in workers)

    def ids(self, n: int) -> list[int]:
        return fresh_ids(n, self.n_vocab)

    def ask(
        self, title: str, make: Callable[[int], Request], *, ours_only: bool = False, warm_ups: int = WARM_UPS
    ) -> dict[str, list[dict[str, float]]]:
        self.say(f"measuring {title} ...")
        workers = self.workers[:1] if ours_only else self.workers
        return alternate(workers, make, self.plan.runs, pause_s=self.plan.pause_s, warm_ups=warm_ups)

    def generate(self, title: str, n_prompt: int, n_decode: int, key: str) -> dict[str, Series]:
        answers = self.ask(title, lambda run: {"what": "generate", "ids": self.ids(n_prompt), "decode": n_decode})
        return {label: rates(found, key, n_decode or n_prompt) for label, found in answers.items()}

    def seconds(self, title: str, key: str, make: Callable[[int], Request], **options: Any) -> dict[str, Series]:
        answers = self.ask(title, make, **options)
        return {label: Series(tuple(answer[key] for answer in found)) for label, found in answers.items()}

    def common(self, decode: dict[str, Series]) -> dict[str, Figures]:
        """What every engine can do, but for the decoding, which was measured already."""
        plan = self.plan
        loads = self.seconds("load", "load_s", lambda run: {"what": "load"}, warm_ups=0)  # they loaded once already
        prompts = self.generate(f"prompt {plan.prompt}", plan.prompt, 0, "prompt_s")
        cached = self.seconds(
            "the same prompt again", "cached_s", lambda run: {"what": "cached", "ids": self.ids(plan.prompt)}
        )
        figures = {
            label: Figures(load_s=loads[label], prompt=prompts[label], cached_s=cached[label], decode=decode[label])
            for label in decode
        }
        for context in plan.contexts:
            series = self.generate(f"decode after {context}", context, plan.decode, "decode_s")
            for label, one in series.items():
                figures[label].contexts[context] = one
        return figures

    def ours(self, figures: Figures) -> None:
        """What is measured of Pantheon alone."""
        plan = self.plan
        batch = self.ask(
            f"{plan.batch} conversations",
            lambda run: {
                "what": "batch", "prompts": [self.ids(DECODE_PROMPT) for _ in range(plan.batch)], "decode": plan.decode
            },
            ours_only=True,
        )["pantheon"]  # fmt: skip
        figures.batch = rates(batch, "batch_s", plan.batch * plan.decode)
        figures.batch_gain = Series(tuple(plan.batch * a["one_s"] / max(a["batch_s"], 1e-9) for a in batch))
        figures.draw_s = self.seconds(
            "sampling", "draw_s", lambda run: {"what": "sampling", "ids": self.ids(DECODE_PROMPT), "draws": DRAWS},
            ours_only=True,
        )["pantheon"]  # fmt: skip
        loops = self.ask(
            "Python's own loop",
            lambda run: {
                "what": "loops", "ids": self.ids(DECODE_PROMPT), "decode": plan.decode, "python_first": run % 2 == 0
            },
            ours_only=True,
        )["pantheon"]  # fmt: skip
        figures.python_overhead = Series(tuple(a["python_s"] / max(a["c_s"], 1e-9) - 1 for a in loops))


def run_plan(plan: Plan, say: Say) -> Result:
    """Measure everything. Raises what loading raises, ContextError if a case does not fit, BenchmarkError."""
    file = read_file_facts(plan.model)
    check_room(plan, file.window)
    options: dict[str, Any] = {"isa": plan.isa, "blas": plan.blas}
    ours = Setup(path=file.path, threads=plan.threads or 0, window=room(plan.longest), options=options)
    other_work = OtherWork()
    say("loading ...")
    with engines_of(ours, plan.peer_python, say) as workers:
        facts = {worker.label: worker.facts for worker in workers}
        own = facts["pantheon"]
        session = _Session(plan, workers, say)
        per_token = token_bytes(file, own["weight_bytes"])
        before = read_bandwidth(own["threads"], per_token, pause_s=plan.pause_s)
        decode = session.generate(f"decode {plan.decode}", DECODE_PROMPT, plan.decode, "decode_s")
        after = read_bandwidth(own["threads"], per_token, pause_s=plan.pause_s)
        figures = session.common(decode)
        session.ours(figures["pantheon"])
    return Result(
        plan=plan,
        file=file,
        facts=facts,
        figures=figures,
        bandwidth=Bandwidth(before=before, after=after, token_bytes=per_token),
        other_work=other_work.cores(),
    )
