"""How many threads a model gets by default: the affinity mask of a real process. Quotas: tests/c/test_cpu.c."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CHILD = """
import os, sys
os.sched_setaffinity(0, {int(word) for word in sys.argv[1:]})
from pantheon import _native
count, why = _native.default_threads()
print(count, why, sep="\\n")
"""


def default_threads_on(*cpus: int) -> tuple[int, str]:
    """(threads, why) of a process that may run on these CPUs alone."""
    command = [sys.executable, "-c", CHILD, *map(str, cpus)]
    count, why = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return int(count), why


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity masks here")
def test_a_process_that_may_use_one_cpu_gets_one_thread() -> None:
    for cpu in sorted(os.sched_getaffinity(0))[:4]:
        count, why = default_threads_on(cpu)
        assert count == 1
        assert why.startswith(("1 physical cores behind 1 usable CPUs", "cgroup quota of 0."))


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity masks here")
def test_more_cpus_never_give_fewer_threads_nor_more_than_there_are_cpus() -> None:
    cpus = sorted(os.sched_getaffinity(0))[:8]
    counts = [default_threads_on(*cpus[:n])[0] for n in range(1, len(cpus) + 1)]
    assert counts == sorted(counts)
    assert all(1 <= count <= n for n, count in enumerate(counts, 1))
