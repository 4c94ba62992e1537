"""The table of speed: Pantheon beside llama-cpp-python, what the memory allows, and the targets.

    python benchmarks/compare.py --peer-python /path/to/venv/bin/python [MODEL.gguf]

The measuring is that of `pantheon bench` (pantheon/bench/); here are only the cases, the targets and the table.
README.md says how to read it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pantheon.bench import measure, workers
from pantheon.bench.measure import Series
from pantheon.errors import PantheonError

DECODE = 64
LONG = 4096
SHORT = 128
CONVERSATIONS = 8

# Targets by number of threads: times the other engine's decode rate, and the share of the memory's speed.
DECODE_TARGETS = {1: (1.45, 0.90), 2: (1.35, 0.85)}
PROMPT_TARGET = 1.8
LONG_PROMPT_TARGET = 0.5
LONG_DECODE_TARGET = 0.6
BUSY_TARGET = 0.9
BATCH_TARGET = 3.0

# Spins on the cores that it is given until it is ended, or until whoever started it is gone.
BUSY_CHILD = """
import os, sys, time
os.sched_setaffinity(0, map(int, sys.argv[1:]))
print("ready", flush=True)
parent = os.getppid()
while os.getppid() == parent:
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        pass
"""


@dataclass(frozen=True)
class Case:
    """A prompt, and what is decoded after it: one conversation gives both figures."""

    n_prompt: int
    n_decode: int


CASES = (Case(512, 0), Case(measure.DECODE_PROMPT, DECODE), Case(SHORT, DECODE), Case(LONG, DECODE))


@dataclass
class Row:
    """One line: what each engine did, and what was asked for. A target compares `value` with `target`."""

    title: str
    threads: int
    rates: dict[str, Series] = field(default_factory=dict)
    value: float | None = None
    """What the target is about, where it is not the ratio of the engines."""
    target: float | None = None
    bandwidth: float | None = None
    """Bytes per second, for rows of decoding."""
    fraction: float | None = None
    fraction_target: float | None = None
    unit: str = "x of the other"

    @property
    def ratio(self) -> float | None:
        """Pantheon over the other engine, of medians."""
        if len(self.rates) < 2:
            return None
        return self.rates["pantheon"].median / self.rates["llama"].median

    @property
    def reached(self) -> float | None:
        """The value that stands against the target."""
        return self.value if self.value is not None else self.ratio


# ---- Measuring ----------------------------------------------------------------------------------------------------


class Bench:
    """The rows of one number of threads."""

    def __init__(self, arguments: argparse.Namespace, path: str, threads: int) -> None:
        self.runs: int = arguments.runs
        self.threads = threads
        self.file = measure.read_file_facts(path)
        options = {"isa": arguments.isa, "blas": False}
        longest = max(case.n_prompt + case.n_decode for case in self.cases(arguments))
        self.setup = workers.Setup(
            path=self.file.path, threads=threads, window=measure.room(longest), options=options
        )  # fmt: skip
        self.facts: dict[str, dict[str, Any]] = {}

    @staticmethod
    def cases(arguments: argparse.Namespace) -> list[Case]:
        return [case for case in CASES if case.n_prompt < LONG or not arguments.quick]

    def compare(self, arguments: argparse.Namespace, peer: str | None) -> list[Row]:
        """Every case, the engines in turn; then what Pantheon alone has a target for."""
        series: dict[tuple[str, int], dict[str, Series]] = {}
        with workers.engines_of(self.setup, peer, say, repack=not arguments.no_repack) as engines:
            self.facts = {worker.label: worker.facts for worker in engines}
            n_vocab = min(int(worker.facts["n_vocab"]) for worker in engines)
            per_token = measure.token_bytes(self.file, int(engines[0].facts["weight_bytes"]))
            speeds = [measure.read_bandwidth(self.threads, per_token)]
            for case in self.cases(arguments):
                say(f"{self.threads} threads: prompt {case.n_prompt}, decode {case.n_decode} ...")
                answers = measure.alternate(engines, request_maker(case, n_vocab), self.runs)
                for kind, n in (("prompt", case.n_prompt), ("decode", case.n_decode)):
                    if n and (kind == "decode" or case.n_prompt > measure.DECODE_PROMPT):
                        series[kind, case.n_prompt] = {
                            label: measure.rates(found, f"{kind}_s", n) for label, found in answers.items()
                        }
                if case.n_decode:
                    speeds.append(measure.read_bandwidth(self.threads, per_token))
            batch = self.batch(engines[:1], n_vocab)
        limit = statistics.mean(speeds[:2])  # those around the decoding that is held against it
        return [*self.rows(series, limit, per_token), batch]

    def rows(self, series: dict[tuple[str, int], dict[str, Series]], limit: float, per_token: int) -> list[Row]:
        """The lines that the series make."""
        times, share = DECODE_TARGETS.get(self.threads, (None, None))
        out = []
        for (kind, n_prompt), rates in sorted(series.items(), key=lambda item: (item[0][0], item[0][1])):
            after = f" after {n_prompt:,}" if kind == "decode" and n_prompt > measure.DECODE_PROMPT else ""
            title = f"decode {DECODE}{after}" if kind == "decode" else f"prompt {n_prompt:,}"
            row = Row(title, self.threads, rates)
            if kind == "decode":
                row.bandwidth, row.fraction = limit, rates["pantheon"].median * per_token / limit
            if kind == "decode" and not after:
                row.target, row.fraction_target = times, share
            if kind == "prompt" and n_prompt == 512:
                row.target = PROMPT_TARGET
            if n_prompt == LONG:
                base = series["prompt", 512] if kind == "prompt" else series["decode", SHORT]
                row.value = rates["pantheon"].median / base["pantheon"].median
                row.unit = "x prompt 512" if kind == "prompt" else f"x decode after {SHORT}"
                row.target = LONG_PROMPT_TARGET if kind == "prompt" else LONG_DECODE_TARGET
            out.append(row)
        return out

    def batch(self, ours: Sequence[workers.Worker], n_vocab: int) -> Row:
        """Several conversations decoding together, against one of them alone right after."""
        say(f"{self.threads} threads: {CONVERSATIONS} conversations ...")
        answers = measure.alternate(
            ours,
            lambda run: {
                "what": "batch",
                "prompts": [measure.fresh_ids(measure.DECODE_PROMPT, n_vocab) for _ in range(CONVERSATIONS)],
                "decode": DECODE,
            },
            self.runs,
        )["pantheon"]
        gain = statistics.median(CONVERSATIONS * answer["one_s"] / answer["batch_s"] for answer in answers)
        rates = {"pantheon": measure.rates(answers, "batch_s", CONVERSATIONS * DECODE)}
        return Row(
            f"{CONVERSATIONS} conversations", self.threads, rates, value=gain, target=BATCH_TARGET, unit="x one"
        )  # fmt: skip

    def busy_core(self) -> list[Row]:
        """Two threads while something else has one of the cores, against one thread at the same time."""
        one = workers.Setup(path=self.setup.path, threads=1, options=self.setup.options)
        with (
            workers.Worker("pantheon", sys.executable, one, label="one thread") as single,
            workers.Worker("pantheon", sys.executable, self.setup, label="pantheon") as double,
            busy_core(),
        ):
            say("2 threads while one core is busy ...")
            maker = request_maker(Case(512, DECODE), int(single.facts["n_vocab"]))
            answers = measure.alternate([single, double], maker, self.runs)
        out = []
        for kind, n in (("decode", DECODE), ("prompt", 512)):
            rates = {label: measure.rates(found, f"{kind}_s", n) for label, found in answers.items()}
            value = rates["pantheon"].median / rates["one thread"].median
            out.append(
                Row(
                    f"{kind} {n}, one core busy", 2, {"pantheon": rates["pantheon"]}, value=value, target=BUSY_TARGET,
                    unit="x one thread",
                )
            )  # fmt: skip
        return out


def request_maker(case: Case, n_vocab: int) -> Any:
    """Fresh requests of one case."""
    return lambda run: {
        "what": "generate", "ids": measure.fresh_ids(case.n_prompt, n_vocab), "decode": case.n_decode
    }  # fmt: skip


@contextlib.contextmanager
def busy_core(place: str = "") -> Iterator[int]:
    """A process that spins for as long as this lasts; its id. place: the number of a core (default: our last one), or
    "any", where the scheduler puts it."""
    cores = sorted(os.sched_getaffinity(0))
    chosen = map(str, cores) if place == "any" else [place or str(cores[-1])]
    child = subprocess.Popen([sys.executable, "-c", BUSY_CHILD, *chosen], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        if not child.stdout.readline():
            raise SystemExit(f"error: no process can be kept on core {place}")
        yield child.pid
    finally:
        child.kill()
        child.communicate()


def run(arguments: argparse.Namespace, path: str, peer: str | None) -> dict[str, Any]:
    """All rows and what one must know to read them, as one object."""
    rows: list[Row] = []
    facts: dict[str, dict[str, Any]] = {}
    other_work = workers.OtherWork()
    for threads in arguments.threads:
        bench = Bench(arguments, path, threads)
        rows += bench.compare(arguments, peer)
        facts = facts or bench.facts
    busy_cores = other_work.cores()  # before one is kept busy on purpose
    if 2 in arguments.threads and workers.usable_cores() >= 2 and not arguments.quick:
        rows += Bench(arguments, path, 2).busy_core()
    file = measure.read_file_facts(path)
    return {
        "model": os.path.basename(path), "model_bytes": file.n_bytes, "type": file.dtype, "cpu": workers.cpu_name(),
        "cores": workers.usable_cores(), "runs": arguments.runs, "engines": facts,
        "cores_busy_with_other_work": busy_cores, "rows": [row_json(row) for row in rows],
    }  # fmt: skip


def row_json(row: Row) -> dict[str, Any]:
    """A row with its runs."""
    return {
        "case": row.title, "threads": row.threads,
        "tokens_per_s": {label: series.runs for label, series in row.rates.items()},
        "median": {label: series.median for label, series in row.rates.items()},
        "ratio": row.ratio, "reached": row.reached, "unit": row.unit, "target": row.target,
        "bandwidth": row.bandwidth, "fraction": row.fraction, "fraction_target": row.fraction_target,
    }  # fmt: skip


# ---- The table ----------------------------------------------------------------------------------------------------


def markdown(result: dict[str, Any]) -> str:
    """The table, and below it what one must know to read it."""
    engines = result["engines"]
    titles = {label: f"{facts['name']} {facts['version']}" for label, facts in engines.items()}
    head = ["tokens/s, median (lowest to highest)", "threads", *titles.values()] + ["ratio"] * (len(titles) > 1)
    head += ["target", "memory", "share", "target"]
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    lines += [f"| {' | '.join(cells(row, list(titles)))} |" for row in result["rows"]]
    lines.append("")
    lines.append(
        f"{result['model']} ({result['type']}, {result['model_bytes'] / 1e6:.0f} MB), {result['cpu']}, "
        f"{result['cores']} cores, {result['runs']} runs in turn."
    )
    if result["cores_busy_with_other_work"] is not None:
        lines.append(f"Other work kept {result['cores_busy_with_other_work']:.1f} cores busy meanwhile.")
    for label, facts in engines.items():
        lines.append(f"{titles[label]}: {facts['how']}; window {facts['window']:,}.")
    return "\n".join(lines)


def cells(row: dict[str, Any], labels: list[str]) -> list[str]:
    """One line of the table; a target that was met has a plus beside it, else a minus."""
    out = [row["case"], str(row["threads"])]
    for label in labels:
        runs = row["tokens_per_s"].get(label)
        out.append(f"{row['median'][label]:.1f} ({min(runs):.1f} to {max(runs):.1f})" if runs else "")
    if len(labels) > 1:
        out.append(f"{row['ratio']:.2f}" if row["ratio"] is not None else "")
    reached = row["reached"]
    out.append("" if row["target"] is None else verdict(reached, row["target"], f"{row['target']:g} {row['unit']}"))
    out.append(f"{row['bandwidth'] / 1e9:.1f} GB/s" if row["bandwidth"] else "")
    out.append(f"{row['fraction']:.0%}" if row["fraction"] else "")
    wanted = row["fraction_target"]
    out.append("" if wanted is None else f"{wanted:.0%} {'+' if row['fraction'] >= wanted else '-'}")
    return out


def verdict(reached: float | None, target: float, text: str) -> str:
    """A target and whether it was met."""
    return text if reached is None else f"{text} {'+' if reached >= target else '-'} {reached:.2f}"


# ---- The program --------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """A line for whoever waits."""
    print(text, file=sys.stderr)


def positive(text: str) -> int:
    """A count on the command line."""
    if not text.isdecimal() or not 0 < int(text) <= 256:
        raise argparse.ArgumentTypeError(f"must be a number in 1..256, got {text!r}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    out = argparse.ArgumentParser(description="Measure Pantheon beside llama-cpp-python and against the targets.")
    out.add_argument("model", nargs="?", default="smollm2", help="a path or a name of the catalogue (%(default)s)")
    out.add_argument(
        "--peer-python", metavar="PATH", help="a Python that has llama-cpp-python; else this one if it has"
    )
    out.add_argument("--threads", type=positive, nargs="+", default=[1, 2], metavar="N")
    out.add_argument("--runs", type=positive, default=5, metavar="N", help="measured runs of each case (%(default)s)")
    out.add_argument("--quick", action="store_true", help="leave out what takes long: 4,096 tokens, and the busy core")
    out.add_argument("--isa", help="the instruction set of pantheon (default: the best)")
    out.add_argument("--no-repack", action="store_true", help="the peer multiplies its weights as they lie in the file")
    out.add_argument("--json", action="store_true", help="print all figures as one object")
    return out


def main() -> None:
    """Measure and print."""
    arguments = parser().parse_args()
    peer = workers.find_peer(arguments.peer_python)
    if peer is None:
        say("no --peer-python, and llama-cpp-python is not installed here: measuring pantheon alone")
    try:
        result = run(arguments, measure.read_file_facts(arguments.model).path, peer)
    except PantheonError as error:
        raise SystemExit(f"error: {error}") from None
    print(json.dumps(result) if arguments.json else markdown(result))


if __name__ == "__main__":
    main()
