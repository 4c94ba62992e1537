"""Two threads beside a program that keeps one core busy: python benchmarks/bench_busy.py MODEL.gguf [--seconds 120]

Two models in this process, on one thread and on two, are asked in turn for the same short work, first undisturbed,
then beside a child that does nothing but compute: kept on each core in turn, then wherever the scheduler puts it.
Printed are medians in tokens per second (lowest - highest), and the ratio of two threads to one thread beside the same
child; below 0.9 two threads would do harm. `decode` includes the argmax over the logits between two tokens.

Others' work on the machine falsifies this more than other benchmarks. So its share is measured in each sample: CPU time
of the machine less that of this process and the child. A sample with more than --calm cores of it does not count; where
the machine is never calm, `--calm 9` counts all.
"""

from __future__ import annotations

import argparse
import collections
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import pantheon

DECODE = 24
TICKS = os.sysconf("SC_CLK_TCK")
# Computes until it is ended, or its parent is gone, or two minutes are over.
BUSY = (
    "import os, time; end = time.time() + 120\nwhile os.getppid() == {parent} and time.time() < end: sum(range(9999))"
)


def machine_seconds() -> float:
    """CPU time that the whole machine spent since it was started."""
    with open("/proc/stat") as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS  # less idle and waiting for I/O


def process_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def busy(where: str) -> Iterator[int | None]:
    """A child that computes on core `where` ("any": the scheduler's choice; "none": no child); its process id."""
    if where == "none":
        yield None
        return
    cores = sorted(os.sched_getaffinity(0)) if where == "any" else [int(where)]
    child = subprocess.Popen([sys.executable, "-c", BUSY.format(parent=os.getpid())])
    try:
        os.sched_setaffinity(child.pid, cores)
        time.sleep(0.2)
        yield child.pid
    finally:
        child.kill()
        child.wait()


class Subject:
    """One model on n threads."""

    def __init__(self, path: str, threads: int) -> None:
        self.state = pantheon.load(path, threads=threads).state()
        self.ids = np.random.default_rng(1).integers(0, 40_000, 4096).astype(np.uint32).tolist()

    def measure(self, kind: str, n: int) -> float:
        """Tokens per second of one sample."""
        self.state.reset()
        if kind == "decode":
            token = int(self.state.eval(self.ids[:16]).argmax())
            started = time.perf_counter()
            for _ in range(n):
                token = int(self.state.eval([token]).argmax())
        else:
            started = time.perf_counter()
            self.state.eval(self.ids[:n])
        return n / (time.perf_counter() - started)


Samples = dict[tuple[str, str, int], list[float]]


def sample_all(
    options: argparse.Namespace, places: list[str], cases: list[tuple[str, int]]
) -> tuple[Samples, float, int]:
    """(samples that count, other work in cores over all samples, number of samples left out)"""
    subjects = {threads: Subject(options.model, threads) for threads in (1, options.threads)}
    samples: Samples = collections.defaultdict(list)
    others, n_left_out = [], 0
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        for place in places:
            with busy(place) as child:
                pids = [os.getpid(), *([child] if child else [])]
                for kind, n in cases:
                    for threads, subject in subjects.items():
                        started, before = time.monotonic(), machine_seconds() - sum(map(process_seconds, pids))
                        speed = subject.measure(kind, n)
                        after = machine_seconds() - sum(map(process_seconds, pids))
                        others.append(max(0.0, after - before) / (time.monotonic() - started))
                        if others[-1] <= options.calm:
                            samples[place, f"{kind} {n}", threads].append(speed)
                        else:
                            n_left_out += 1
    return samples, statistics.median(others), n_left_out


def show(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.0f} - {max(values):.0f})" if values else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120, help="after which no new round begins")
    parser.add_argument("--calm", type=float, default=0.3, help="most cores of others' work in a sample that counts")
    options = parser.parse_args()
    places = ["none", *map(str, sorted(os.sched_getaffinity(0))[: options.threads]), "any"]
    cases: list[tuple[str, int]] = [("decode", DECODE), ("prompt", 128), ("prompt", 512)]
    samples, others, n_left_out = sample_all(options, places, cases)
    print(
        "| busy core | what | 1 thread | "
        f"{options.threads} threads | ratio | samples |\n| --- | --- | ---: | ---: | ---: | ---: |"
    )
    for place in places:
        for kind, n in cases:
            one, more = (samples[place, f"{kind} {n}", threads] for threads in (1, options.threads))
            ratio: Any = f"{statistics.median(more) / statistics.median(one):.2f}" if one and more else "-"
            print(f"| {place} | {kind} {n} | {show(one)} | {show(more)} | {ratio} | {len(more)} |")
    print(f"\nOther work, in cores: {others:.1f}; samples left out: {n_left_out}")


if __name__ == "__main__":
    main()
