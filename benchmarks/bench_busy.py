"""Two threads beside a program that keeps one core busy: python benchmarks/bench_busy.py [MODEL.gguf] [--seconds 120]

The model on one thread and on two, each in a process of its own, is asked in turn for the same short work, first
undisturbed, then beside a process that does nothing but compute: kept on each core in turn, then wherever the scheduler
puts it. Printed are medians in tokens per second (lowest - highest), and the ratio of two threads to one thread beside
the same process; below 0.9 two threads would do harm.

Others' work on the machine falsifies this more than other benchmarks. So its share is measured in each sample: CPU time
of the machine less that of the processes here. A sample with more than --calm cores of it does not count; where the
machine is never calm, `--calm 9` counts all.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import statistics
import sys
import time
from typing import Any

from compare import Case, busy_core, request_maker

from pantheon import catalog
from pantheon.bench import measure
from pantheon.bench.workers import OtherWork, Setup, Worker
from pantheon.errors import PantheonError

CASES = (Case(measure.DECODE_PROMPT, 24), Case(128, 0), Case(512, 0))


def title(case: Case) -> str:
    """What is measured of a case."""
    return f"decode {case.n_decode}" if case.n_decode else f"prompt {case.n_prompt}"


def speed(worker: Worker, request: dict[str, Any], case: Case) -> float:
    """Tokens per second of one sample."""
    answer = worker.ask(request)
    return float(case.n_decode / answer["decode_s"] if case.n_decode else case.n_prompt / answer["prompt_s"])


class Samples:
    """Speeds by (place, title, threads), of samples that nothing else disturbed much."""

    def __init__(self, calm: float) -> None:
        self.calm, self.n_left_out = calm, 0
        self.others: list[float] = []
        self.speeds: dict[tuple[str, str, int], list[float]] = collections.defaultdict(list)

    def take(self, place: str, case: Case, workers: dict[int, Worker], child: int | None) -> None:
        """One sample of each worker, of one request."""
        pids = [worker.process.pid for worker in workers.values()] + ([child] if child else [])
        request = request_maker(case, min(int(worker.facts["n_vocab"]) for worker in workers.values()))(0)
        for threads, worker in workers.items():
            time.sleep(measure.PAUSE_S)  # until the other one's threads sleep
            other_work = OtherWork(pids)
            found = speed(worker, request, case)
            self.others.append(other_work.cores() or 0.0)
            if self.others[-1] <= self.calm:
                self.speeds[place, title(case), threads].append(found)
            else:
                self.n_left_out += 1


def sample_all(options: argparse.Namespace, path: str, places: list[str]) -> Samples:
    """Round after round over all places and cases, until the time is over."""
    samples = Samples(options.calm)
    with contextlib.ExitStack() as stack:
        workers = {
            threads: stack.enter_context(Worker("pantheon", sys.executable, Setup(path=path, threads=threads)))
            for threads in (1, options.threads)
        }
        end = time.monotonic() + options.seconds
        while time.monotonic() < end:
            for place in places:
                with contextlib.nullcontext() if place == "none" else busy_core(place) as child:
                    for case in CASES:
                        samples.take(place, case, workers, child)
    return samples


def show(values: list[float]) -> str:
    """A median and its range."""
    return f"{statistics.median(values):.1f} ({min(values):.0f} - {max(values):.0f})" if values else "-"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", nargs="?", default="smollm2", help="a path or a name of the catalogue (%(default)s)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120, help="after which no new round begins")
    parser.add_argument("--calm", type=float, default=0.3, help="most cores of others' work in a sample that counts")
    options = parser.parse_args()
    places = ["none", *map(str, sorted(os.sched_getaffinity(0))[: options.threads]), "any"]
    try:
        samples = sample_all(options, str(catalog.resolve(options.model)), places)
    except PantheonError as error:
        raise SystemExit(f"error: {error}") from None
    print(f"| busy core | what | 1 thread | {options.threads} threads | ratio | samples |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for place in places:
        for case in CASES:
            one, more = (samples.speeds[place, title(case), threads] for threads in (1, options.threads))
            ratio = f"{statistics.median(more) / statistics.median(one):.2f}" if one and more else "-"
            print(f"| {place} | {title(case)} | {show(one)} | {show(more)} | {ratio} | {len(more)} |")
    print(f"\nOther work, in cores: {statistics.median(samples.others):.1f}; samples left out: {samples.n_left_out}")


if __name__ == "__main__":
    main()
