"""Speed of prompt and decode beside llama-cpp-python, on one machine in one run. See README.md for the method.

    python benchmarks/compare.py --peer-python /path/to/venv/bin/python [MODEL.gguf]

Each engine lives in a process of its own and is asked in turn. This file is both sides: started with --worker it
answers requests, one JSON object per line, and imports nothing but its engine and numpy, so that any Python can run it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

WARM_UPS = 1
PAUSE_S = 0.2  # idle threads of the engine that was asked last stop spinning meanwhile
DECODE_PROMPT = 16
CONTEXT = 1024
BATCH = 512


# ---- The side that is measured ------------------------------------------------------------------------------------


class Engine(Protocol):
    """What a worker needs: evaluate fresh ids; evaluate one more and say which comes next."""

    def describe(self) -> dict[str, Any]: ...
    def prompt(self, ids: list[int]) -> int:
        """Forget everything, evaluate ids, and return the likeliest next id."""
        ...

    def step(self, token: int) -> int: ...


class Pantheon:
    """This package, through its Python interface."""

    def __init__(self, path: str, threads: int, options: dict[str, Any]) -> None:
        import pantheon

        self.version = pantheon.__version__
        self.model = pantheon.load(path, threads=threads, blas=False, **options)
        self.state = self.model.state()

    def describe(self) -> dict[str, Any]:
        info = self.model.info
        return {"name": "pantheon", "version": self.version, "how": info.isa, "n_vocab": info.n_vocab}

    def prompt(self, ids: list[int]) -> int:
        self.state.reset()
        return int(self.state.eval(ids).argmax())

    def step(self, token: int) -> int:
        return int(self.state.eval([token]).argmax())


class LlamaCpp:
    """llama-cpp-python: one decode call per batch of 512, logits of the last token only."""

    def __init__(self, path: str, threads: int, options: dict[str, Any]) -> None:
        import llama_cpp  # type: ignore[import-not-found]
        import numpy

        self.c, self.numpy, self.version = llama_cpp.llama_cpp, numpy, llama_cpp.__version__
        self.repack = options.get("repack", True)
        if not self.repack:
            self._leave_weights_as_they_are()
        self.llama = llama_cpp.Llama(
            path, n_ctx=CONTEXT, n_batch=BATCH, n_threads=threads, n_threads_batch=threads, logits_all=False,
            verbose=False,
        )  # fmt: skip

    def _leave_weights_as_they_are(self) -> None:
        original = self.c.llama_model_default_params

        def changed() -> Any:
            params = original()
            params.use_extra_bufts = False
            return params

        self.c.llama_model_default_params = changed

    def describe(self) -> dict[str, Any]:
        system = self.c.llama_print_system_info().decode()
        features = [part.split("=")[0].strip() for part in system.replace(":", "|").split("|") if "= 1" in part]
        how = " ".join(features).lower() + ("" if self.repack else ", repacking of weights off")
        n_vocab = int(self.llama.n_vocab())
        return {"name": "llama-cpp-python", "version": self.version, "how": how, "n_vocab": n_vocab}

    def prompt(self, ids: list[int]) -> int:
        self.llama.reset()
        self.llama.eval(ids)
        return self._likeliest()

    def step(self, token: int) -> int:
        self.llama.eval([token])
        return self._likeliest()

    def _likeliest(self) -> int:
        logits = self.c.llama_get_logits_ith(self.llama.ctx, -1)  # waits until they are there
        return int(self.numpy.ctypeslib.as_array(logits, shape=(self.llama.n_vocab(),)).argmax())


ENGINES: dict[str, type[Pantheon] | type[LlamaCpp]] = {"pantheon": Pantheon, "llama": LlamaCpp}


def answer(engine: Engine, request: dict[str, Any]) -> float:
    """Seconds that one request takes. The prompt of a decode is not part of its time."""
    if request["decode"]:
        token = engine.prompt(request["ids"])
        started = time.perf_counter()
        for _ in range(request["decode"]):
            token = engine.step(token)
    else:
        started = time.perf_counter()
        engine.prompt(request["ids"])
    return time.perf_counter() - started


def work(name: str) -> None:
    """Load what the first line asks for, then answer the others until the end of input."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever an engine prints must not get between the answers
    ask = json.loads(sys.stdin.readline())
    started = time.perf_counter()
    engine = ENGINES[name](ask["path"], ask["threads"], ask["options"])
    print(json.dumps({**engine.describe(), "load_s": time.perf_counter() - started}), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(engine, json.loads(line))), file=out, flush=True)


# ---- The side that measures ---------------------------------------------------------------------------------------


class WorkerError(Exception):
    """A worker ended before it answered; `crashed` if a signal ended it."""

    def __init__(self, message: str, crashed: bool) -> None:
        super().__init__(message)
        self.crashed = crashed


class Worker:
    """A process with one engine and one model in it. Use `with`."""

    def __init__(self, name: str, python: str, path: str, threads: int, options: dict[str, Any]) -> None:
        self.name = name
        self.log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by close()
        command = [python, os.path.abspath(__file__), "--worker", name]
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True
            )
        except OSError:
            self.log.close()
            raise
        try:
            self.facts: dict[str, Any] = self.ask({"path": path, "threads": threads, "options": options})
        except BaseException:
            self.close()
            raise

    def ask(self, request: dict[str, Any]) -> Any:
        """Send one line, wait for one line."""
        requests, answers = self._pipes()
        line = ""
        try:
            print(json.dumps(request), file=requests, flush=True)
            line = answers.readline()
        except BrokenPipeError:
            pass
        if not line:
            raise self._failure()
        return json.loads(line)

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        return self.process.stdin, self.process.stdout

    def _failure(self) -> WorkerError:
        code = self.process.wait()
        if code < 0:
            return WorkerError(f"the process of {self.name} was ended by {signal.Signals(-code).name}", True)
        self.log.seek(0)
        last = self.log.read().strip().rpartition("\n")[2]
        return WorkerError(f"the process of {self.name} ended with status {code}: {last}", False)

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (*self._pipes(), self.log):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@dataclass(frozen=True)
class Case:
    """A prompt of so many tokens, or so many tokens decoded one by one after a short prompt."""

    n_prompt: int
    n_decode: int

    @property
    def title(self) -> str:
        return f"decode {self.n_decode}" if self.n_decode else f"prompt {self.n_prompt}"

    @property
    def n_tokens(self) -> int:
        return self.n_decode or self.n_prompt


@dataclass
class Row:
    """The figures of one case at one number of threads: tokens per second of each run, by engine."""

    case: str
    threads: int
    rates: dict[str, list[float]] = field(default_factory=dict)


def fresh_ids(n: int, n_vocab: int) -> list[int]:
    """Ids that no run before had, so that nothing can be reused."""
    draw = random.SystemRandom()
    return [draw.randrange(min(100, n_vocab - 1), n_vocab) for _ in range(n)]


def measure(workers: Sequence[Worker], cases: Sequence[Case], threads: int, runs: int) -> list[Row]:
    """Every case `runs` times, the engines in turn with the same ids; the first round only warms up."""
    rows = []
    for case in cases:
        row = Row(case.title, threads, {worker.name: [] for worker in workers})
        for run in range(WARM_UPS + runs):
            request = {"ids": fresh_ids(case.n_prompt, workers[0].facts["n_vocab"]), "decode": case.n_decode}
            for worker in workers:
                time.sleep(PAUSE_S)
                seconds = worker.ask(request)
                if run >= WARM_UPS:
                    row.rates[worker.name].append(case.n_tokens / seconds)
        rows.append(row)
        print(f"measured {case.title}, {threads} threads", file=sys.stderr)
    return rows


def busy_seconds() -> float | None:
    """CPU time that all processes of the machine have used, and that a hypervisor took; None where nobody counts it."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _idle, _iowait, irq, soft, steal = map(int, file.readline().split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


class OtherWork:
    """How many cores were busy with something else since this object was made. Ask when all workers have ended."""

    def __init__(self) -> None:
        self.wall, self.busy, self.own = time.monotonic(), busy_seconds(), self._own_seconds()

    @staticmethod
    def _own_seconds() -> float:
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    def cores(self) -> float | None:
        """Mean number of cores; None where nobody counts it."""
        now = busy_seconds()
        if now is None or self.busy is None:
            return None
        others = (now - self.busy) - (self._own_seconds() - self.own)
        return max(0.0, others / (time.monotonic() - self.wall))


def start_peer(python: str, path: str, threads: int, options: dict[str, Any]) -> Worker:
    """The other engine, tried with one token; where its repacked weights crash it gets a second chance without."""
    probe = {"ids": [100], "decode": 0}
    worker = None
    try:
        worker = Worker("llama", python, path, threads, options)
        worker.ask(probe)
    except WorkerError as error:
        if worker is not None:
            worker.close()
        if not error.crashed or not options["repack"]:
            raise
        print(f"{error}; trying again without repacked weights", file=sys.stderr)
        options["repack"] = False
        return start_peer(python, path, threads, options)
    return worker


def compare(arguments: argparse.Namespace, path: str, peer: str | None) -> dict[str, Any]:
    """All figures as one object: what ran, and the rows."""
    cases = [Case(n, 0) for n in arguments.prompt] + [Case(DECODE_PROMPT, n) for n in arguments.decode]
    ours = {"isa": arguments.isa} if arguments.isa else {}
    theirs: dict[str, Any] = {"repack": not arguments.no_repack}
    rows: list[Row] = []
    facts: dict[str, dict[str, Any]] = {}
    other_work = OtherWork()
    for threads in arguments.threads:
        with Worker("pantheon", sys.executable, path, threads, ours) as first:
            workers = [first]
            try:
                if peer is not None:
                    workers.append(start_peer(peer, path, threads, theirs))
                facts.update({worker.name: worker.facts for worker in workers})
                rows += measure(workers, cases, threads, arguments.runs)
            finally:
                for worker in workers[1:]:
                    worker.close()
    return {
        "model": os.path.basename(path), "model_bytes": os.path.getsize(path), "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "n_ctx": CONTEXT, "n_batch": BATCH, "runs": arguments.runs, "engines": facts,
        "cores_busy_with_other_work": other_work.cores(),
        "rows": [
            {"case": row.case, "threads": row.threads, "tokens_per_s": row.rates,
             "median": {name: statistics.median(rates) for name, rates in row.rates.items()}}
            for row in rows
        ],
    }  # fmt: skip


def cpu_name() -> str:
    """What the machine calls its processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def markdown(result: dict[str, Any]) -> str:
    """The table, and below it what one must know to read it."""
    engines = result["engines"]
    titles = {name: f"{facts['name']} {facts['version']}" for name, facts in engines.items()}
    head = ["tokens/s, median (lowest to highest)", "threads", *titles.values()] + ["ratio"] * (len(titles) > 1)
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    for row in result["rows"]:
        rates, medians = row["tokens_per_s"], row["median"]
        cells = [f"{medians[name]:.1f} ({min(rates[name]):.1f} to {max(rates[name]):.1f})" for name in titles]
        ratio = [f"{medians['pantheon'] / medians['llama']:.2f}"] if len(titles) > 1 else []
        lines.append(f"| {' | '.join([row['case'], str(row['threads']), *cells, *ratio])} |")
    lines.append("")
    lines.append(
        f"{result['model']} ({result['model_bytes'] / 1e6:.0f} MB), {result['cpu']}, {result['cores']} cores, "
        f"context {result['n_ctx']}, batch {result['n_batch']}, {result['runs']} runs in turn."
    )
    if result["cores_busy_with_other_work"] is not None:
        lines.append(f"Other work kept {result['cores_busy_with_other_work']:.1f} cores busy meanwhile.")
    for name, facts in engines.items():
        lines.append(f"{titles[name]}: {facts['how']}; loaded in {facts['load_s']:.2f} s.")
    return "\n".join(lines)


def find_model(name: str) -> str:
    """A path, or what a catalogue name stands for."""
    from pantheon import catalog
    from pantheon.errors import PantheonError

    try:
        path = os.fspath(catalog.resolve(name))
    except PantheonError as error:
        raise SystemExit(f"error: {error}") from None
    if not os.path.exists(path):
        raise SystemExit(f"error: there is no file {path}")
    return path


def positive(text: str) -> int:
    """A count on the command line."""
    if not text.isdecimal() or not 0 < int(text) <= CONTEXT - DECODE_PROMPT:
        raise argparse.ArgumentTypeError(f"must be a number in 1..{CONTEXT - DECODE_PROMPT}, got {text!r}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    out = argparse.ArgumentParser(description="Measure prompt and decode speed, alone or beside llama-cpp-python.")
    out.add_argument("model", nargs="?", default="smollm2", help="a path or a name of the catalogue (%(default)s)")
    out.add_argument(
        "--peer-python", metavar="PATH", help="a Python that has llama-cpp-python; else this one if it has"
    )
    out.add_argument("--threads", type=positive, nargs="+", default=[1, 2], metavar="N")
    out.add_argument("--runs", type=positive, default=5, metavar="N", help="measured runs of each case (%(default)s)")
    out.add_argument("--prompt", type=positive, nargs="+", default=[128, 512], metavar="N", help="tokens")
    out.add_argument("--decode", type=positive, nargs="+", default=[64], metavar="N", help="tokens")
    out.add_argument("--isa", help="the instruction set of pantheon (default: the best)")
    out.add_argument("--no-repack", action="store_true", help="the peer multiplies its weights as they lie in the file")
    out.add_argument("--json", action="store_true", help="print all figures as one object")
    out.add_argument("--worker", choices=ENGINES, help=argparse.SUPPRESS)
    return out


def main() -> None:
    """Measure and print."""
    arguments = parser().parse_args()
    if arguments.worker:
        work(arguments.worker)
        return
    peer = arguments.peer_python or (sys.executable if importlib.util.find_spec("llama_cpp") else None)
    if peer is None:
        print("no --peer-python, and llama-cpp-python is not installed here: measuring pantheon alone", file=sys.stderr)
    try:
        result = compare(arguments, find_model(arguments.model), peer)
    except (WorkerError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    print(json.dumps(result) if arguments.json else markdown(result))


if __name__ == "__main__":
    main()
