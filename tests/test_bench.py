"""`pantheon bench`: what is asked in which order, what the figures are made of, and how it fails. No speed is asserted.

The other engine is a stub module of its name that answers at once, so that its whole way is walked everywhere.
"""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import pytest
from rich.console import Console
from tiny_gguf import OMIT, write_model

import pantheon
from pantheon.bench import engines, measure, plot, report, workers
from pantheon.bench.measure import Bandwidth, Figures, FileFacts, Plan, Result, Series
from pantheon.cli import run

ROOT = Path(__file__).resolve().parent.parent
SMALL: dict[str, Any] = {"threads": 1, "prompt": 24, "decode": 3, "runs": 3, "batch": 2, "pause_s": 0.0}

STUB = """
import ctypes, os, signal, types
__version__ = "9.9"
N_VOCAB = 512
params = types.SimpleNamespace(use_extra_bufts=True)

class Llama:
    def __init__(self, path, *, n_ctx, n_threads, **others):
        assert os.path.exists(path)
        self.n_ctx, self.n_tokens, self.ctx = n_ctx, 0, None
        print("an engine may say on stdout what it likes", flush=True)
        self.repacked = llama_cpp.llama_model_default_params().use_extra_bufts
    def n_vocab(self):
        return N_VOCAB
    def reset(self):
        self.n_tokens = 0
    def eval(self, ids):
        if CRASHES and self.repacked:
            os.kill(os.getpid(), signal.SIGILL)
        self.n_tokens += len(ids)
        assert self.n_tokens <= self.n_ctx
    def close(self):
        self.ctx = None

logits = (ctypes.c_float * N_VOCAB)(*range(N_VOCAB))
llama_cpp = types.SimpleNamespace(
    llama_model_default_params=lambda: params,
    llama_print_system_info=lambda: b"CPU : AVX2 = 1 | STUB = 1 | OFF = 0",
    llama_get_logits_ith=lambda ctx, at: ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)),
)
"""


def quiet(text: str) -> None:
    """For callers who do not want to be told."""


def make_python(folder: Path, *, flags: str = "", stub: str | None = None) -> str:
    """A Python of its own for a peer: this one, with flags, and with a stub of the other engine if given."""
    path = folder / "python"
    if stub is not None:
        (folder / "llama_cpp").mkdir()
        (folder / "llama_cpp" / "__init__.py").write_text(stub)
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" {flags} "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def peer(tmp_path: Path) -> str:
    """A Python that has the stub."""
    return make_python(tmp_path, stub="CRASHES = False\n" + STUB)


def call(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pantheon", "bench", *arguments],
        capture_output=True, text=True, timeout=300, env={**os.environ, **(env or {})},
    )  # fmt: skip


def check_series(figure: dict[str, Any], unit: str, n_runs: int) -> None:
    """A figure in the JSON object: the median of its own runs, within them."""
    assert len(figure["runs"]) == n_runs
    assert figure[unit] == statistics.median(figure["runs"])
    assert figure["low"] == min(figure["runs"]) <= figure[unit] <= max(figure["runs"]) == figure["high"]
    assert figure["low"] > 0 or unit == "fraction"


# ---- What comes out


def test_json_is_one_object_with_all_figures(tiny_model: str) -> None:
    flags = "--threads 2 --prompt 32 --decode 4 --runs 2 --batch 3 --context 8 --context 64 --isa portable --json"
    done = call(tiny_model, *flags.split())
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    found = json.loads(done.stdout)
    assert (found["threads"], found["isa"], found["runs"], found["type"]) == (2, "portable", 2, "Q8_0")
    assert (found["window"], found["peer"]) == (256, None)
    assert found["version"] == pantheon.__version__
    assert found["load_s"] == found["load"]["s"] > 0
    check_series(found["load"], "s", 2)
    assert (found["prompt"]["tokens"], found["decode"]["tokens"]) == (32, 4)
    check_series(found["prompt"], "tokens_per_s", 2)
    check_series(found["decode"], "tokens_per_s", 2)
    check_series(found["prompt_cached"], "s", 2)
    assert [entry["context"] for entry in found["contexts"]] == [8, 64]
    for entry in found["contexts"]:
        check_series(entry, "tokens_per_s", 2)
    assert found["batch"]["conversations"] == 3
    assert found["batch"]["gain"] > 0
    check_series(found["batch"], "tokens_per_s", 2)
    check_series(found["sampling"], "s", 2)
    assert found["sampling"]["fraction_of_decode"] == found["sampling"]["s"] * found["decode"]["tokens_per_s"]
    check_series(found["python"]["overhead"], "fraction", 2)
    memory = found["bandwidth"]
    assert memory["bytes_per_s"] == (memory["before"] + memory["after"]) / 2 > 0
    share = memory["bytes_per_token"] * found["decode"]["tokens_per_s"] / memory["bytes_per_s"]
    assert memory["fraction"] == pytest.approx(share, rel=1e-12)


def test_the_table_has_a_line_for_each_figure_and_stderr_says_what_goes_on(tiny_model: str) -> None:
    done = call(tiny_model, *"--threads 1 --prompt 32 --decode 4 --runs 1 --context 50 --batch 2".split())
    assert done.returncode == 0, done.stderr
    for words in (
        "Q8_0", "window 256", "1 thread (asked for)", "load, ms", "prompt of 32, tokens/s", "the same again",
        "decode 4, tokens/s", "decode after 50", "2 conversations together", "drawing a token", "Python over C",
        "GB/s", "temperature 0.8, top_k 40, top_p 0.95, min_p 0.05",
    ):  # fmt: skip
        assert words in done.stdout, words
    assert "ratio" not in done.stdout
    assert "measuring decode 4" in done.stderr


@pytest.mark.parametrize("tied", [True, False])
def test_a_token_reads_every_matrix_but_an_embedding_of_its_own(tmp_path: Path, tied: bool) -> None:
    path = write_model(tmp_path / "m.gguf", tied=tied, dtype="F16")
    facts = measure.read_file_facts(path)
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors}
    assert facts.unread_bytes == (0 if tied else sizes["token_embd.weight"])
    assert (facts.dtype, facts.window, facts.n_bytes) == ("F16", 256, os.path.getsize(path))
    with pantheon.load(path) as model:
        read = sum(sizes.values()) - (0 if tied else sizes["token_embd.weight"])
        assert measure.token_bytes(facts, model.info.weight_bytes) == read


# ---- What is asked


class Recorder:
    """An engine that notes what it has to do, and needs a second of a clock of its own for each token."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.clock = 0.0
        monkeypatch.setattr(engines.time, "perf_counter", lambda: self.clock)

    def prompt(self, ids: list[int]) -> int:
        self.calls.append(("prompt", ids))
        self.clock += len(ids)
        return 7

    def rewind(self, n: int) -> None:
        self.calls.append(("rewind", n))

    def step(self, token: int) -> int:
        self.calls.append(("step", token))
        self.clock += 1
        return token + 1


def test_prompt_and_decode_are_timed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = Recorder(monkeypatch)
    answer = engines.run_generate(engine, {"ids": [1, 2, 3, 4, 5], "decode": 2})
    assert answer == {"prompt_s": 5.0, "decode_s": 2.0}
    assert engine.calls == [("prompt", [1, 2, 3, 4, 5]), ("step", 7), ("step", 8)]


def test_a_cached_prompt_evaluates_its_last_token_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = Recorder(monkeypatch)
    assert engines.run_cached(engine, {"ids": [4, 5, 6]}) == {"cached_s": 1.0}
    assert engine.calls == [("prompt", [4, 5, 6]), ("rewind", 2), ("step", 6)]


class FakeWorker:
    """Notes who was asked what, in a list that several share."""

    def __init__(self, label: str, log: list[tuple[str, Any]]) -> None:
        self.label, self.log = label, log

    def ask(self, request: dict[str, Any]) -> dict[str, float]:
        self.log.append((self.label, request))
        return {"decode_s": float(len(self.log))}


def test_engines_are_asked_in_turn_with_the_same_request_and_the_warm_up_does_not_count() -> None:
    log: list[tuple[str, Any]] = []
    both: Any = [FakeWorker("a", log), FakeWorker("b", log)]
    answers = measure.alternate(both, lambda run: {"ids": measure.fresh_ids(8, 512)}, 3, pause_s=0)
    assert [label for label, _ in log] == ["a", "b"] * 4
    asked = [request["ids"] for _, request in log]
    assert asked[::2] == asked[1::2]
    assert len({tuple(ids) for ids in asked}) == 4
    assert [answer["decode_s"] for answer in answers["a"]] == [3, 5, 7]
    assert [answer["decode_s"] for answer in answers["b"]] == [4, 6, 8]


def test_fresh_ids_are_tokens_of_the_vocabulary() -> None:
    assert set(measure.fresh_ids(2000, 103)) == {100, 101, 102}
    assert set(measure.fresh_ids(50, 2)) == {1}


def test_rates_are_tokens_per_second() -> None:
    series = measure.rates([{"x_s": 2.0}, {"x_s": 4.0}, {"x_s": 1.0}], "x_s", 8)
    assert (series.runs, series.median, series.low, series.high) == ((4.0, 2.0, 8.0), 4.0, 2.0, 8.0)


def test_both_loops_and_the_batch_run_on_a_real_model(tiny_model: str) -> None:
    engine = engines.Pantheon(tiny_model, 1, 0, {})
    engine.load()
    engine.load()  # again: the first one is given up
    for python_first in (True, False):
        answer = engines.run_loops(engine, {"ids": [3, 4, 5], "decode": 9, "python_first": python_first})
        assert set(answer) == {"python_s", "c_s"}
    answer = engines.run_batch(engine, {"prompts": [[1, 2], [3], [4, 5, 6]], "decode": 2})
    assert min(answer.values()) > 0
    assert engines.run_sampling(engine, {"ids": [1, 2], "draws": 5})["draw_s"] > 0
    assert engine.describe()["n_vocab"] == 512
    engine.model.close()


# ---- The other engine


def test_the_peer_is_measured_beside_and_ratios_are_of_medians(tiny_model: str, peer: str) -> None:
    result = measure.run_plan(Plan(model=tiny_model, peer_python=peer, contexts=(40,), **SMALL), quiet)
    found = report.as_json(result)
    other = found["peer"]
    assert (other["name"], other["version"], other["how"]) == ("llama-cpp-python", "9.9", "avx2 stub")
    assert other["window"] >= 43
    for key in ("prompt", "decode"):
        check_series(other[key], "tokens_per_s", 3)
        assert other["ratios"][key] == found[key]["tokens_per_s"] / other[key]["tokens_per_s"]
    assert other["ratios"]["load"] == other["load_s"] / found["load_s"]
    assert other["ratios"]["prompt_cached"] == other["prompt_cached"]["s"] / found["prompt_cached"]["s"]
    assert other["ratios"]["decode_after_40"] > 0


def test_the_command_takes_a_peer_and_shows_ratios(tiny_model: str, peer: str) -> None:
    small = "--threads 1 --prompt 24 --decode 2 --runs 1 --batch 1".split()
    done = call(tiny_model, "--peer", "llama-cpp-python", "--peer-python", peer, *small)
    assert done.returncode == 0, done.stderr
    assert "llama-cpp-python 9.9" in done.stdout
    assert "ratio" in done.stdout
    assert "what it likes" not in done.stdout + done.stderr


def test_a_peer_that_crashes_with_repacked_weights_gets_a_second_chance(tiny_model: str, tmp_path: Path) -> None:
    python = make_python(tmp_path, stub="CRASHES = True\n" + STUB)
    said: list[str] = []
    setup = workers.Setup(path=tiny_model, threads=1, window=64)
    with workers.start_peer(python, setup, said.append) as worker:
        assert worker.facts["how"].endswith("repacking of weights off")
        assert worker.ask({"what": "generate", "ids": [1, 2], "decode": 1})["decode_s"] > 0
    assert any("SIGILL" in line for line in said)
    stubborn = workers.Setup(path=tiny_model, threads=1, window=64, options={"repack": True})
    broken = "CRASHES = True\n" + STUB.replace("and self.repacked", "")
    (tmp_path / "llama_cpp" / "__init__.py").write_text(broken)
    with pytest.raises(pantheon.BenchmarkError, match="SIGILL") as caught:
        workers.start_peer(python, stubborn, quiet)
    assert caught.value.crashed


def test_a_python_without_the_peer_is_an_error_with_its_cure(
    tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = make_python(tmp_path, flags="-I -S")
    assert run(["bench", tiny_model, "--threads", "1", "--prompt", "8", "--peer-python", python]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{python} -m pip install llama-cpp-python" in err
    assert "--peer-python" in err
    assert "Traceback" not in err


def test_a_peer_python_that_does_not_exist_is_named(tiny_model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", tiny_model, "--threads", "1", "--prompt", "8", "--peer-python", "/nonexistent/python"]) == 1
    assert "/nonexistent/python" in capsys.readouterr().err.splitlines()[-1]


def test_what_a_peer_raises_is_told(tiny_model: str, tmp_path: Path) -> None:
    python = make_python(tmp_path, stub="CRASHES = False\n" + STUB.replace("assert os", "raise ValueError('no'); os"))
    with pytest.raises(pantheon.BenchmarkError, match="ValueError: no"):
        workers.start_peer(python, workers.Setup(path=tiny_model, threads=1), quiet)


FACTS = '{"name": "n", "version": "1", "how": "h", "n_vocab": 9, "window": 9, "threads": 1'


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo nonsense", "'nonsense', which is not JSON"),
        (r"printf '\377\376\n'", "not JSON"),
        ("yes '[' | tr -d '\\n'", "not JSON"),
        ("echo '[1]'", "'[1]', which is not an object"),
        ("echo '{}'", "without 'name'"),
        (f"echo '{FACTS.replace('9', 'null')}" + "}'", "'n_vocab' with null"),
        (f"echo '{FACTS.replace('9', '-1')}" + "}'", "'n_vocab' with -1"),
        (f"echo '{FACTS.replace('9', 'true')}" + "}'", "'n_vocab' with true"),
        (f"echo '{FACTS}" + "}'; read line; read line; echo '{\"prompt_s\": NaN}'", "'prompt_s' with NaN"),
        (f"echo '{FACTS}" + "}'; read line; read line; echo '{\"prompt_s\": 1}'", "without 'decode_s'"),
        ("echo '{\"error\": [1], \"kind\": 7}'", "7: [1]"),
        ("exit 0", "status 0 and no answer;"),
        ("echo the reason >&2; exit 3", "status 3 and no answer: the reason"),
        ("kill -40 $$", "signal 40"),
    ],
)  # fmt: skip
def test_what_is_no_python_of_the_peer_is_one_error_that_names_it(tmp_path: Path, script: str, words: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    with pytest.raises(pantheon.BenchmarkError) as caught:
        workers.start_peer(str(python), workers.Setup(path="m", threads=1, options={"repack": False}), quiet)
    assert words in str(caught.value)
    assert str(python) in str(caught.value)


def test_a_peer_that_falls_silent_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "GOODBYE_S", 0.1)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec >&-\nexec sleep 120\n")
    python.chmod(0o755)
    with pytest.raises(pantheon.BenchmarkError, match="closed its output"):
        workers.start_peer(str(python), workers.Setup(path="m", threads=1), quiet)


# ---- Wrong usage and failures


@pytest.mark.parametrize(
    "flags",
    [
        "--threads 0", "--prompt 0", "--decode -1", "--runs 0", "--batch 0", "--context 0", "--prompt x",
        "--peer another", "--nonsense", "--plot /", "--plot picture.nonsense", "--plot /nonexistent/p.png", "a b",
    ],
)  # fmt: skip
def test_wrong_usage_is_2(tiny_model: str, flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", tiny_model, *flags.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Error" in err


def test_failures_keep_their_class_across_the_process(tiny_model: str, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"nothing of the kind")
    broken = write_model(tmp_path / "broken.gguf", tensors={"output_norm.weight": OMIT})
    for model, options, error in (
        (str(tmp_path / "x.gguf"), {}, pantheon.NotGGUFError),
        ("/nonexistent/model.gguf", {}, pantheon.FileError),
        (broken, {}, pantheon.CorruptFileError),
        (tiny_model, {"isa": "nonsense"}, pantheon.ISAError),
        (tiny_model, {"prompt": 257}, pantheon.ContextError),
        (tiny_model, {"contexts": (254,)}, pantheon.ContextError),
    ):
        with pytest.raises(error):
            measure.run_plan(Plan(model=model, **{**SMALL, **options}), quiet)


def test_ctrl_c_ends_all_processes(tiny_model: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "pantheon", "bench", tiny_model, "--prompt", "8", "--threads", "1", "--runs", "500"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    while "measuring" not in process.stderr.readline():
        assert process.poll() is None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert children
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "interrupted"
    check_ended(children)


def check_ended(pids: list[str]) -> None:
    """Within a time that no request of the test needs."""
    deadline = time.monotonic() + 20
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(pid: str) -> bool:
    """A zombie, whom nobody may be left to bury, is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_no_engine_outlives_the_program_that_asks(tmp_path: Path, end: signal.Signals) -> None:
    """Not even in the middle of a request: the stub's takes two minutes."""
    busy = tmp_path / "busy"
    work = f"import time; open({str(busy)!r}, 'w').close(); time.sleep(120)"
    slow = STUB.replace("self.n_tokens += len(ids)", work)
    python = make_python(tmp_path, stub="CRASHES = False\n" + slow)
    (tmp_path / "m").write_bytes(b"x")
    script = f"""
from pantheon.bench import workers
with workers.Worker("llama", {python!r}, workers.Setup(path={str(tmp_path / "m")!r}, threads=1)) as worker:
    print(worker.process.pid, flush=True)
    worker.ask({{"what": "generate", "ids": [1], "decode": 0}})
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        child = process.stdout.readline().strip()
        while not busy.exists():
            assert process.poll() is None
            time.sleep(0.02)
        assert is_running(child)
        process.send_signal(end)
        assert process.wait(20) == -end
        check_ended([child])


@pytest.mark.parametrize("full", [True, False])
def test_notes_that_nobody_reads_do_not_cost_the_result(tiny_model: str, full: bool) -> None:
    flags = "--threads 1 --prompt 8 --decode 2 --runs 1 --batch 1 --json".split()
    read, write = os.pipe()
    os.close(read)
    with open("/dev/full", "wb") if full else os.fdopen(write, "wb") as stderr:
        done = subprocess.run(
            [sys.executable, "-m", "pantheon", "bench", tiny_model, *flags],
            stdout=subprocess.PIPE, stderr=stderr, timeout=300,
        )  # fmt: skip
    if full:
        os.close(write)
    assert done.returncode == 0
    assert json.loads(done.stdout)["runs"] == 1


HOSTILE = "a$b$ \x1b[31m\n:smile:[b]\udcff.gguf"
SHOWN = r"a$b$ \x1b[31m\n:smile:[b]\udcff.gguf"


def test_the_name_of_a_file_has_no_power_over_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    result = some_result(False)
    named = dataclasses.replace(result, file=dataclasses.replace(result.file, path=HOSTILE))
    console = Console(width=200, highlight=False, markup=False, emoji=False)
    report.print_table(named, console)
    assert capsys.readouterr().out.startswith(f"{SHOWN}: llama, Q8_0")


# ---- The picture


def some_result(peer: bool) -> Result:
    """Figures out of the blue."""

    def figures(scale: float) -> Figures:
        def series(*values: float) -> Series:
            return Series(tuple(scale * value for value in values))

        return Figures(
            load_s=series(1, 2), prompt=series(500, 520), cached_s=series(0.1, 0.2), decode=series(60, 70),
            contexts={128: series(55, 60), 4096: series(30, 40)},
        )  # fmt: skip

    facts = {
        "name": "pantheon", "version": "1", "threads": 2, "kv_bytes_per_token": 23040, "window": 8192, "isa": "avx2",
        "threads_reason": "asked for", "blas": False, "architecture": "llama", "how": "avx2",
    }  # fmt: skip
    both = {"pantheon": figures(1.0), **({"llama": figures(0.5)} if peer else {})}
    return Result(
        plan=Plan(model="m", contexts=(128, 4096)),
        file=FileFacts(path="m.gguf", n_bytes=10**8, dtype="Q8_0", unread_bytes=0, window=8192),
        facts=dict.fromkeys(both, facts),
        figures=both,
        bandwidth=Bandwidth(before=9e9, after=11e9, token_bytes=10**8),
        other_work=0.0,
    )


@pytest.mark.parametrize("peer", [True, False])
def test_a_picture_is_drawn(tmp_path: Path, peer: bool) -> None:
    path = tmp_path / "p.png"
    plot.check(str(path))
    plot.draw(some_result(peer), str(path))
    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    vector = tmp_path / "p.svg"
    plot.draw(some_result(peer), str(vector))
    text = vector.read_text()
    assert text.count("<!-- m.gguf, 2 threads") == 1
    assert text.count("<!-- pantheon 1 -->") == (2 if peer else 1)


def test_a_picture_shows_any_name_of_a_file(tmp_path: Path) -> None:
    result = some_result(False)
    named = dataclasses.replace(result, file=dataclasses.replace(result.file, path=HOSTILE))
    plot.draw(named, str(tmp_path / "p.png"))
    plot.draw(named, str(tmp_path / "p.svg"))
    assert f"<!-- {SHOWN}, 2 threads" in (tmp_path / "p.svg").read_text()


def test_a_picture_that_cannot_be_written_is_told_before_anything_is_measured(
    tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = tmp_path / ("x" * 300 + ".png")
    assert run(["bench", tiny_model, "--plot", str(long)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"error: --plot {long} cannot be written: {os.strerror(errno.ENAMETOOLONG)}\n"
    old, new, link = tmp_path / "old.png", tmp_path / "new.png", tmp_path / "link.png"
    old.write_bytes(b"kept")
    link.symlink_to(new)
    for path in (old, new, link):
        plot.check(str(path))
    assert old.read_bytes() == b"kept"
    assert not new.exists()
    assert link.is_symlink()


def test_the_share_of_the_memory_is_bytes_over_bytes() -> None:
    limit = some_result(False).bandwidth
    assert limit.bytes_per_s == 10e9
    assert limit.fraction(50.0) == 0.5


def test_plot_takes_the_lengths_that_the_model_has_room_for(tiny_model: str, tmp_path: Path) -> None:
    assert plot.contexts_for(tiny_model, 64) == (128,)
    path = tmp_path / "p.png"
    small = "--threads 1 --prompt 8 --decode 2 --runs 1 --batch 1 --json".split()
    done = call(tiny_model, "--plot", str(path), *small)
    assert done.returncode == 0, done.stderr
    assert [entry["context"] for entry in json.loads(done.stdout)["contexts"]] == [128]
    assert path.exists()


def test_without_matplotlib_the_cure_is_told(
    tiny_model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    assert run(["bench", tiny_model, "--plot", "p.png"]) == 1
    assert "pip install 'pantheon[plot]'" in capsys.readouterr().err


# ---- benchmarks/compare.py


@pytest.fixture(scope="module")
def compare() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("compare_script", ROOT / "benchmarks" / "compare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["compare_script"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_script_prints_the_table_of_targets(compare: ModuleType, tmp_path: Path, peer: str) -> None:
    model = write_model(tmp_path / "m.gguf", n_ctx=8192)
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "compare.py"), model, "--peer-python", peer, "--quick",
         "--runs", "1", "--threads", "1", "--json"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    rows = {row["case"]: row for row in found["rows"]}
    assert set(rows) == {"decode 64", "decode 64 after 128", "prompt 128", "prompt 512", "8 conversations"}
    assert (rows["decode 64"]["target"], rows["decode 64"]["fraction_target"]) == (1.45, 0.9)
    assert rows["prompt 512"]["target"] == 1.8
    assert rows["8 conversations"]["target"] == 3.0
    medians = rows["prompt 512"]["median"]
    assert rows["prompt 512"]["ratio"] == medians["pantheon"] / medians["llama"]
    table = compare.markdown(found).split("\n\n")[0].splitlines()
    assert len(table) == 2 + len(rows)
    assert len({line.count("|") for line in table}) == 1


def test_long_contexts_are_held_against_short_ones(compare: ModuleType, tiny_model: str) -> None:
    arguments = compare.parser().parse_args([tiny_model, "--threads", "2"])
    series = {
        ("prompt", 512): {"pantheon": Series((400.0,))}, ("prompt", 4096): {"pantheon": Series((300.0,))},
        ("decode", 16): {"pantheon": Series((90.0,))}, ("decode", 128): {"pantheon": Series((80.0,))},
        ("decode", 4096): {"pantheon": Series((40.0,))},
    }  # fmt: skip
    rows = {row.title: row for row in compare.Bench(arguments, tiny_model, 2).rows(series, 1e9, 10**7)}
    long_prompt, long_decode = rows["prompt 4,096"], rows["decode 64 after 4,096"]
    assert (long_prompt.value, long_prompt.target) == (0.75, 0.5)
    assert (long_decode.value, long_decode.target) == (0.5, 0.6)
    assert (rows["decode 64"].target, rows["decode 64"].fraction_target) == (1.35, 0.85)
    assert rows["decode 64"].fraction == 0.9
    cells = compare.cells(compare.row_json(long_decode), ["pantheon"])
    assert cells[3] == "0.6 x decode after 128 - 0.50"
    assert compare.cells(compare.row_json(long_prompt), ["pantheon"])[3] == "0.5 x prompt 512 + 0.75"


def test_the_busy_child_sits_on_one_core_and_ends(compare: ModuleType) -> None:
    ours = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    before = set(ours.read_text().split())
    with compare.busy_core():
        (child,) = set(ours.read_text().split()) - before
        assert os.sched_getaffinity(int(child)) == {max(os.sched_getaffinity(0))}
    assert set(ours.read_text().split()) == before


def test_wrong_numbers_are_refused_by_the_script() -> None:
    script = [sys.executable, str(ROOT / "benchmarks" / "compare.py")]
    for flags in (["--runs", "0"], ["--threads", "x"], ["--nonsense"]):
        assert subprocess.run([*script, *flags], capture_output=True, timeout=60).returncode == 2
    done = subprocess.run([*script, "/nonexistent/m.gguf"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "/nonexistent/m.gguf" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_worker_imports_nothing_of_ours_for_another_engine(tmp_path: Path) -> None:
    """Its folder must not hide modules of the engine that it measures, nor the package be there."""
    stub = (
        "CRASHES = False\n"
        + STUB
        + textwrap.dedent("""
        import importlib.util, sys
        assert importlib.util.find_spec("report") is None
        assert "pantheon" not in sys.modules
    """)
    )
    python = make_python(tmp_path, stub=stub)
    (tmp_path / "m").write_bytes(b"x")
    with workers.start_peer(python, workers.Setup(path=str(tmp_path / "m"), threads=1, window=64), quiet) as worker:
        assert worker.facts["version"] == "9.9"
