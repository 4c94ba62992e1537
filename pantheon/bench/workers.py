"""The side that asks: engines as processes, asked in turn; and how busy the machine was with something else.

Rank 5: imports errors. It knows lines of JSON and signals, nothing of tokens.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from pantheon import errors
from pantheon.bench import engines
from pantheon.errors import BenchmarkError

PEER = "llama-cpp-python"
ANSWER_MOST = 1 << 20
"""Characters of an answer: ours have some hundred."""
GOODBYE_S = 10.0
"""How long a process may live on after it closed its output."""
Say = Callable[[str], object]
"""Called with one line for people on what is being done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a worker loads. threads 0: the engine's default. window: tokens that the other engine reserves room for."""

    path: str
    threads: int
    window: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    """Of the engine's own: isa and blas, or repack."""


class Worker:
    """A process with one engine and one model in it. Use `with`, or close()."""

    def __init__(self, engine: str, python: str, setup: Setup, *, label: str | None = None) -> None:
        self.engine, self.python = engine, python
        self.who = f"the process of {engine} ({python})"
        self.label = label or engine
        self.log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by close()
        command = [python, os.path.abspath(engines.__file__), engine]
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
                encoding="utf-8", errors="backslashreplace",
            )  # fmt: skip
        except OSError as error:
            self.log.close()
            raise BenchmarkError(f"the Python {python} of {engine} cannot be started: {error.strerror}") from None
        try:
            self.facts: dict[str, Any] = self.ask(
                {"path": setup.path, "threads": setup.threads, "window": setup.window, "options": setup.options}
            )
        except BaseException:
            self.close()
            raise

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one line, wait for one line. Raises what the engine raised, or BenchmarkError if its process died or
        answered what no engine answers: any program may have been named as its Python."""
        requests, answers = self._pipes()
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(request), file=requests, flush=True)
        line = answers.readline(ANSWER_MOST)
        if not line:
            raise self._death()
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            raise self._useless(f"answered {line.strip()[:60]!r}, which is not JSON") from None
        if not isinstance(answer, dict):
            raise self._useless(f"answered {line.strip()[:60]!r}, which is not an object")
        if "error" in answer:
            raise self._failure(str(answer.get("kind")), str(answer["error"]))
        self._check(answer, request.get("what"))
        return answer

    def _check(self, answer: dict[str, Any], what: str | None) -> None:
        """Whether all is there that the answer to this request (None: the first line) must have."""
        wanted: dict[str, type] = engines.FACTS if what is None else dict.fromkeys(engines.SECONDS[what], float)
        for key, kind in wanted.items():
            if key not in answer:
                raise self._useless(f"answered without {key!r}")
            if not _fits(answer[key], kind):
                raise self._useless(f"answered {key!r} with {json.dumps(answer[key])[:60]}")

    def _useless(self, what: str) -> BenchmarkError:
        cure = f"; name a Python that has {PEER} with --peer-python" if self.engine == "llama" else ""
        return BenchmarkError(f"{self.who} {what}{cure}")

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        return self.process.stdin, self.process.stdout

    def _failure(self, kind: str, message: str) -> Exception:
        cls = getattr(errors, kind, None)
        if self.engine == "pantheon" and isinstance(cls, type) and issubclass(cls, errors.PantheonError):
            return cls(message)
        if kind == engines.NotInstalled.__name__:
            return BenchmarkError(
                f"{PEER} is not installed for {self.python}: install it there "
                f"({self.python} -m pip install {PEER}), or name a Python that has it with --peer-python"
            )
        return BenchmarkError(f"{self.who} failed: {kind}: {message}")

    def _death(self) -> BenchmarkError:
        try:
            code = self.process.wait(GOODBYE_S)
        except subprocess.TimeoutExpired:
            return self._useless("closed its output without an answer")
        if code < 0:
            return BenchmarkError(f"{self.who} was ended by {_signal_name(-code)}", crashed=True)
        self.log.seek(0)
        last = self.log.read().strip().rpartition("\n")[2]
        return self._useless(f"ended with status {code} and no answer" + (f": {last}" if last else ""))

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


def _fits(value: object, kind: type) -> bool:
    """Whether a value of an answer is a text, a count, or seconds (kind float), and one that can be."""
    if kind is str:
        return isinstance(value, str)
    numbers = (int, float) if kind is float else (int,)
    return isinstance(value, numbers) and not isinstance(value, bool) and 0 <= value < 2**31


def _signal_name(number: int) -> str:
    """Signals for real time have numbers alone."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def start_peer(python: str, setup: Setup, say: Say) -> Worker:
    """The other engine, tried with one token; where its repacked weights crash it gets a second chance without."""
    worker = None
    try:
        worker = Worker("llama", python, setup)
        worker.ask({"what": "generate", "ids": [1], "decode": 0})
    except BenchmarkError as error:
        if worker is not None:
            worker.close()
        if not error.crashed or setup.options.get("repack") is False:
            raise
        say(f"{error}; trying again without repacked weights")
        plain = {**setup.options, "repack": False}
        return start_peer(
            python, Setup(path=setup.path, threads=setup.threads, window=setup.window, options=plain), say
        )
    except BaseException:
        if worker is not None:
            worker.close()
        raise
    return worker


@contextlib.contextmanager
def engines_of(ours: Setup, peer_python: str | None, say: Say, *, repack: bool = True) -> Iterator[list[Worker]]:
    """Pantheon, and the other engine beside it if a Python is given, on the same file with as many threads."""
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(Worker("pantheon", sys.executable, ours))]
        if peer_python is not None:
            threads = ours.threads or int(workers[0].facts["threads"])
            theirs = Setup(path=ours.path, threads=threads, window=ours.window, options={"repack": repack})
            workers.append(stack.enter_context(start_peer(peer_python, theirs, say)))
        yield workers


def find_peer(python: str | None) -> str | None:
    """The Python to run the other engine with: the one given, else this one if it has the engine, else None."""
    if python is not None:
        return python
    return sys.executable if importlib.util.find_spec("llama_cpp") else None


# ---- The rest of the machine --------------------------------------------------------------------------------------


def cpu_name() -> str:
    """What the machine calls its processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _busy_seconds() -> float | None:
    """CPU time that all processes of the machine have used, and that a hypervisor took; None where nobody counts it."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _idle, _iowait, irq, soft, steal = map(int, file.readline().split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def _process_seconds(pid: int) -> float:
    """CPU time of a process that runs, all its threads together; 0 where nobody counts it."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class OtherWork:
    """How many cores were busy with something else since this object was made. Ask when all workers have ended, or
    while they run if `pids` names them: processes that run from here to the question and are no other work either."""

    def __init__(self, pids: Iterable[int] = ()) -> None:
        self.pids = tuple(pids)
        self.wall, self.busy, self.own = time.monotonic(), _busy_seconds(), self._own_seconds()

    def _own_seconds(self) -> float:
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in usages) + sum(map(_process_seconds, self.pids))

    def cores(self) -> float | None:
        """Mean number of cores; None where nobody counts it."""
        now = _busy_seconds()
        if now is None or self.busy is None:
            return None
        others = (now - self.busy) - (self._own_seconds() - self.own)
        return max(0.0, others / max(time.monotonic() - self.wall, 1e-9))
