"""How long it takes from starting a process to the first token of a reply, and where the time goes.

    python benchmarks/bench_load.py [MODEL.gguf] [--threads N] [--runs 9] [--json]

Every run is a process of its own, and runs of the kinds below take turns:

    chat   start Python, import pantheon, load the model, ask one short question, take the first piece of the reply
    read   read the file once: into memory that is there already (the kernel's copy alone), and into new memory (whose
           pages the kernel must make first, as it must for a model's weights)
    parts  in one process: open and check the file, and build its tokenizer, without any weights

The file is in the page cache, and so are Python's own files: Python may write its bytecode, and one round is run before
those that count. Figures are medians of the runs, with the lowest and highest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from pantheon import catalog
from pantheon.bench.workers import OtherWork, cpu_name, usable_cores
from pantheon.errors import PantheonError

QUESTION = "What is the capital of France?"

# A clock that all processes of the machine share; the parent's reading comes as the first argument.
CHAT = f"""
import time
started = time.monotonic()
import sys, json
import pantheon
imported = time.monotonic()
model = pantheon.load(sys.argv[2], threads=int(sys.argv[3]) or None)
loaded = time.monotonic()
pages = [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(("VmRSS", "VmHWM"))]
stream = model.chat().stream({QUESTION!r})
next(stream)
first = time.monotonic()
begun = float(sys.argv[1])
print(json.dumps({{
    "start": started - begun, "import": imported - started, "load": loaded - imported, "first_token": first - loaded,
    "total": first - begun, "threads": model.info.threads, "isa": model.info.isa, "weights": model.info.weight_bytes,
    "peak": pages[0] * 1024, "resident": pages[1] * 1024,
}}))
"""

READ = """
import json, os, sys, time
size = os.path.getsize(sys.argv[2])
there = bytearray(size)
there[::4096] = b"x" * len(there[::4096])
seconds = []
for new in (False, True):
    with open(sys.argv[2], "rb", buffering=0) as file:
        begun = time.monotonic()
        memory = memoryview(bytearray(size) if new else there)
        done = 0
        while done < size:
            done += file.readinto(memory[done:])
        seconds.append(time.monotonic() - begun)
print(json.dumps({"into_memory_that_is_there": seconds[0], "into_new_memory": seconds[1]}))
"""

PARTS = """
import json, sys, time
from pantheon import _native
begun = time.monotonic()
_native.GGUFHandle(sys.argv[2]).close()
opened = time.monotonic()
_native.TokenizerHandle(sys.argv[2]).close()
built = time.monotonic()
print(json.dumps({"open_and_check": opened - begun, "tokenizer": built - opened - (opened - begun)}))
"""

TITLES = {
    "start": "Python starts",
    "import": "`import pantheon`",
    "load": "`pantheon.load`",
    "first_token": "first token of a short chat",
    "total": "**process start to first token**",
    "open_and_check": "of load: open and check the file",
    "tokenizer": "of load: build the tokenizer",
    "into_memory_that_is_there": "read the file once, into memory that is there",
    "into_new_memory": "read the file once, into new memory",
}


def run(script: str, path: str, threads: int) -> dict[str, Any]:
    """What one process reports."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", script, repr(time.monotonic()), path, str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def measure(path: str, threads: int, runs: int) -> dict[str, Any]:
    """Seconds of every run by name, and the facts of the last one."""
    scripts = (CHAT, READ, PARTS)
    for script in scripts:
        run(script, path, threads)
    other_work = OtherWork()
    seconds: dict[str, list[float]] = {name: [] for name in TITLES}
    facts: dict[str, Any] = {}
    for _ in range(runs):
        for script in scripts:
            for name, value in run(script, path, threads).items():
                if name in seconds:
                    seconds[name].append(value)
                else:
                    facts[name] = value
    return {
        "model": os.path.basename(path), "model_bytes": os.path.getsize(path), "cpu": cpu_name(), "runs": runs,
        "cores": usable_cores(),
        "cores_busy_with_other_work": other_work.cores(),
        "seconds": seconds, "median": {name: statistics.median(values) for name, values in seconds.items()}, **facts,
    }  # fmt: skip


def markdown(result: dict[str, Any]) -> str:
    """The report as a table and two lines of facts."""
    lines = ["| | median, ms | lowest to highest |", "| --- | ---: | ---: |"]
    for name, title in TITLES.items():
        values = [1000 * value for value in result["seconds"][name]]
        lines.append(f"| {title} | {statistics.median(values):.0f} | {min(values):.0f} to {max(values):.0f} |")
    median, megabyte = result["median"], 1e6
    ratios = [median["load"] / median[name] for name in ("into_memory_that_is_there", "into_new_memory")]
    lines += [
        "",
        f"{result['model']} ({result['model_bytes'] / megabyte:.0f} MB), {result['threads']} threads, {result['isa']}, "
        f"{result['cpu']}, {result['cores']} cores; {result['runs']} runs.",
        f"Loading takes {ratios[0]:.2f} x reading into memory that is there, {ratios[1]:.2f} x into new memory.",
        f"Resident after loading: {result['resident'] / megabyte:.0f} MB, of which weights "
        f"{result['weights'] / megabyte:.0f} MB; at most {result['peak'] / megabyte:.0f} MB while loading.",
    ]
    if result["cores_busy_with_other_work"] is not None:
        lines.append(f"Other work kept {result['cores_busy_with_other_work']:.1f} cores busy meanwhile.")
    return "\n".join(lines)


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description="Time from process start to first token, and its parts.")
    parser.add_argument("model", nargs="?", default="smollm2", help="a GGUF file or a name of the catalogue (smollm2)")
    parser.add_argument("--threads", type=int, default=0, help="0: the default of this machine")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print every single run")
    arguments = parser.parse_args()
    try:
        path = str(catalog.resolve(arguments.model))
    except PantheonError as error:
        raise SystemExit(f"error: {error}") from None
    result = measure(path, arguments.threads, arguments.runs)
    print(json.dumps(result, indent=2) if arguments.json else markdown(result))


if __name__ == "__main__":
    main()
