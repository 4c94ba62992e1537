"""The border to C: statuses, handles, threads, signals."""

from __future__ import annotations

import gc
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pantheon
from pantheon import _gate, _native, errors
from pantheon._core import lib as _core_lib
from pantheon._native import base


def test_every_status_of_the_core_has_an_exception_of_its_own() -> None:
    statuses = {name: getattr(_core_lib, name) for name in dir(_core_lib) if name.startswith("PN_ERR_")}
    assert len(statuses) == 16
    assert set(_native.ERROR_BY_STATUS) == set(statuses.values())
    assert len(set(_native.ERROR_BY_STATUS.values())) == len(statuses)


def test_an_unknown_status_is_still_an_error() -> None:
    with pytest.raises(errors.PantheonError):
        base.check(99)


def test_ids_are_checked_before_they_reach_c() -> None:
    assert _native.as_ids([1, 2]).dtype == np.uint32
    assert _native.as_ids(np.arange(6, dtype=np.int64)[::2]).tolist() == [0, 2, 4]
    assert _native.as_ids([]).tolist() == []
    bad_values: list[Any] = [[-1], [2**32], [2**70], [1.5], ["a"], [[1]], [[1], [1, 2]], 3, None]
    for bad in bad_values:
        with pytest.raises(errors.ArgumentError):
            _native.as_ids(bad)
    with pytest.raises(ValueError, match="-5 at index 1"):
        _native.as_ids([0, -5])


def test_ids_are_always_a_copy_that_nobody_else_can_write_into() -> None:
    theirs = np.arange(4, dtype=np.uint32)
    for given in (theirs, theirs.astype(np.int64), theirs[::2]):
        assert not np.shares_memory(_native.as_ids(given), given)
    ours = _native.as_ids(theirs)
    theirs[:] = 9
    assert ours.tolist() == [0, 1, 2, 3]


def test_no_array_is_written_beyond_its_end(tiny_model: str) -> None:
    with pantheon.load(tiny_model) as model, model.state() as state:
        width = model.n_vocab
        read_only = np.zeros((2, width), np.float32)
        read_only.flags.writeable = False
        unfit: list[Any] = [
            np.zeros((1, width), np.float32), np.zeros((2, width - 1), np.float32), np.zeros((2, width), np.float64),
            np.zeros(2 * width, np.float32), np.zeros((2, 2 * width), np.float32)[:, ::2], read_only, b"",
        ]  # fmt: skip
        for out in unfit:
            with pytest.raises(errors.ArgumentError, match="logits"):
                _native.state_eval(state._handle, [1, 2], None, out)
        with pytest.raises(errors.ArgumentError, match="at least one"):
            _native.state_eval(state._handle, [], None)
        assert len(state) == 0
        fit = np.zeros((2, width), np.float32)
        _native.state_eval(state._handle, [1, 2], None, fit)
        assert (fit == model.logits([1, 2])).all()


def test_rows_of_a_tensor_have_its_own_width(tiny_model: str) -> None:
    gguf = _native.GGUFHandle(tiny_model)
    tensors = _native.gguf_tensors(gguf)
    for index, tensor in enumerate(tensors):
        total = int(np.prod(tensor.shape[1:]))
        assert _native.gguf_rows(gguf, index, 0, total).shape == (total, tensor.shape[0])
        for row, n_rows in ((0, total + 1), (total + 1, 0), (-1, 1), (0, -1), (1, 2**63)):
            with pytest.raises(errors.ArgumentError, match="rows"):
                _native.gguf_rows(gguf, index, row, n_rows)
    for missing in (-1, len(tensors)):
        with pytest.raises(errors.ArgumentError, match="no tensor"):
            _native.gguf_rows(gguf, missing, 0, 1)
    gguf.close()


SIGNALLED = """
import signal, sys, time, pantheon
model = pantheon.load(sys.argv[1])
state, chat = model.state(), model.chat()
state.eval([1, 2])
calls = 0
def on_alarm(number, frame):
    global calls
    calls += 1
    state.cancel()
    chat.cancel()
    if calls == 200:
        spare.close()
signal.signal(signal.SIGALRM, on_alarm)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
end, spare = time.monotonic() + 1.0, model.state()
while time.monotonic() < end:
    assert len(state) == 2
    try:
        len(spare)
    except pantheon.ClosedError:
        pass
    chat.messages
signal.setitimer(signal.ITIMER_REAL, 0)
state.clear_cancel()
state.eval([3])
print("done" if calls else "no signal came")
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
def test_a_signal_handler_may_cancel_whatever_the_main_thread_is_doing(tiny_model: str) -> None:
    command = [sys.executable, "-c", SIGNALLED, tiny_model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_gate_lets_one_in_and_turns_the_others_away() -> None:
    gate = _gate.OneAtATime(errors.BusyError, "occupied")
    with gate.hold():
        assert gate.busy
        for _ in range(2):
            with pytest.raises(errors.BusyError, match="occupied"), gate.hold():
                pass
        with pytest.raises(errors.BusyError, match="occupied"):
            gate.check()
    assert not gate.busy
    with pytest.raises(KeyError), gate.hold():
        raise KeyError
    gate.check()


INTERRUPTED = """
import signal
from pantheon import _gate
gate, hits = _gate.OneAtATime(RuntimeError, "occupied"), 0
def on_alarm(number, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, on_alarm)
while hits < 2000:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005)
        while True:
            with gate.hold():
                pass
    except KeyboardInterrupt:
        hits += 1
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="older Pythons may raise between any two instructions")
def test_a_keyboard_interrupt_cannot_leave_a_gate_occupied() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_lone_surrogate_is_named_with_its_index() -> None:
    with pytest.raises(ValueError, match="index 1") as caught:
        _native.text_bytes("a\ud800")
    assert isinstance(caught.value, errors.ArgumentError)


def test_a_path_with_nul_is_refused() -> None:
    with pytest.raises(errors.ArgumentError, match="NUL"):
        _native.path_bytes("a\0b")


def test_closing_twice_is_fine_and_later_use_is_an_error(tiny_model: str) -> None:
    model = pantheon.load(tiny_model)
    state, chat = model.state(), model.chat()
    tokenizer = model.tokenizer
    state.close()
    state.close()
    with pytest.raises(errors.ClosedError, match="state"):
        state.eval([1])
    model.close()
    model.close()
    uses: list[Callable[[], object]] = [
        model.state, model.chat, lambda: model.logits([1]), lambda: tokenizer.encode("a"),
        lambda: model.metadata["general.architecture"], lambda: chat.send("hi"), lambda: model.__enter__(),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(errors.ClosedError):
            use()


def test_a_state_keeps_its_model_alive(tiny_model: str) -> None:
    state = pantheon.load(tiny_model).state()
    gc.collect()
    assert np.isfinite(state.eval([1, 2, 3])).all()


def test_what_holds_memory_of_c_cannot_be_pickled(tiny_model: str) -> None:
    with pantheon.load(tiny_model) as model:
        for thing in (model, model.state(), model.tokenizer, model.chat()):
            with pytest.raises(TypeError, match="pickle"):
                pickle.dumps(thing)


def test_what_a_progress_function_raises_reaches_the_caller(smollm2: str) -> None:
    class EnoughError(Exception):
        pass

    def stop(fraction: float) -> None:
        assert 0.0 <= fraction <= 1.0
        raise EnoughError

    with pantheon.load(smollm2) as model, model.state() as state:
        with pytest.raises(EnoughError):
            state.eval([1] * 2000, progress=stop)
        assert len(state) < 2000
        assert state.logits is None
        state.reset()
        again = state.eval([1, 2, 3])
        with model.state() as fresh:
            assert (again == fresh.eval([1, 2, 3])).all()


@pytest.mark.timing
def test_progress_is_reported_during_a_long_evaluation(smollm2: str) -> None:
    seen: list[float] = []
    with pantheon.load(smollm2) as model, model.state() as state:
        state.eval([1] * 1000, progress=seen.append)
    assert len(seen) >= 3
    assert seen == sorted(seen)


@pytest.mark.timing
def test_ctrl_c_ends_a_long_evaluation_at_once(smollm2: str) -> None:
    with pantheon.load(smollm2) as model, model.state() as state:
        sent: list[float] = []

        def interrupt() -> None:
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(0.3, interrupt)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            state.eval([1] * 8000)
        assert time.monotonic() - sent[0] < 0.5  # 0.2 s and what a busy machine adds
        timer.join()
        n = len(state)
        state.rewind(min(n, 1))
        assert len(state.eval([1] * 5)) == model.n_vocab


def _run_long(state: pantheon.State, outcome: list[object]) -> threading.Thread:
    def work() -> None:
        try:
            outcome.append(state.eval([1] * 8000))
        except BaseException as error:  # noqa: BLE001  the test looks at it
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.2)
    return thread


def test_closing_a_state_in_use_cancels_it_and_frees_it_afterwards(smollm2: str) -> None:
    with pantheon.load(smollm2) as model:
        state = model.state()
        outcome: list[object] = []
        thread = _run_long(state, outcome)
        state.close()
        thread.join(10)
        assert isinstance(outcome[0], errors.CancelledError)
        assert state._handle._pointer is None


def test_closing_a_model_in_use_waits_for_nobody_and_breaks_nothing(smollm2: str) -> None:
    model = pantheon.load(smollm2)
    outcome: list[object] = []
    thread = _run_long(model.state(), outcome)
    model.close()
    thread.join(10)
    assert isinstance(outcome[0], errors.CancelledError)
    assert model._handle._pointer is None


def test_a_second_caller_is_told_that_the_state_is_busy(smollm2: str) -> None:
    with pantheon.load(smollm2) as model, model.state() as state:
        outcome: list[object] = []
        thread = _run_long(state, outcome)
        uses: list[Callable[[], object]] = [
            lambda: state.eval([1]), lambda: state.tokens, lambda: state.logits, lambda: state.rewind(0), state.reset
        ]  # fmt: skip
        for use in uses:
            with pytest.raises(errors.BusyError):
                use()
        state.cancel()
        thread.join(10)
        assert isinstance(outcome[0], errors.CancelledError)


def test_nothing_is_printed_and_exit_is_quiet_whatever_was_left_open(tiny_model: str) -> None:
    script = (
        "import pantheon, sys\n"
        "m = pantheon.load(sys.argv[1]); s = m.state(); s.eval([1, 2])\n"
        "c = m.chat(); stream = c.stream('hi'); next(stream, None)\n"
        "t = pantheon.Tokenizer.from_file(sys.argv[1])\n"
        "half = m.stream('abc'); next(half, None)\n"
    )
    done = subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", script, tiny_model], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_two_hundred_loads_leak_neither_memory_nor_files(tiny_model: str) -> None:
    def resident() -> int:
        fields = Path("/proc/self/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc")

    def cycle(times: int) -> None:
        for _ in range(times):
            with pantheon.load(tiny_model) as model:
                model.generate("ab", max_tokens=2)

    cycle(30)
    gc.collect()  # what other tests left must not go away while it is counted
    before, files = resident(), len(os.listdir("/proc/self/fd"))
    cycle(200)
    assert len(os.listdir("/proc/self/fd")) == files
    if "asan" not in os.environ.get("LD_PRELOAD", ""):  # its allocator keeps what was freed
        assert resident() - before < 8_000_000


def test_a_forked_child_can_evaluate(tiny_model: str) -> None:
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    script = (
        "import os, sys, pantheon\n"
        "m = pantheon.load(sys.argv[1], threads=2); want = m.logits([1, 2, 3])\n"
        "pid = os.fork()\n"
        "if pid == 0: os._exit(0 if (m.logits([1, 2, 3]) == want).all() else 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", script, tiny_model], timeout=60).returncode == 0


def test_the_memory_is_read_at_some_speed_and_nonsense_is_refused() -> None:
    rate = _native.read_bandwidth(2, 2 << 20, 3)
    assert math.isfinite(rate)
    assert rate > 0
    for threads, n_bytes, runs in ((0, 1 << 20, 1), (1, 1, 1), (1, 1 << 20, 0)):
        with pytest.raises(pantheon.ArgumentError, match="bandwidth"):
            _native.read_bandwidth(threads, n_bytes, runs)


def test_the_loop_of_c_generates_what_the_loop_of_python_does(tiny_model: str) -> None:
    with pantheon.load(tiny_model, threads=1) as model, model.state() as state:
        ids = _native.as_ids([5, 6, 7])
        bias = [(token, -math.inf) for token in model.tokenizer.stop_ids]
        reply = model.generate(ids, max_tokens=20, logit_bias=dict(bias))
        assert _native.stream_tokens(state._handle, ids, 20, {}, bias) == 20
        assert state.tokens.tolist() == [*ids.tolist(), *reply.tokens[:-1]]
        with pytest.raises(pantheon.ContextError):
            _native.stream_tokens(state._handle, _native.as_ids([1] * 300), 1, {}, ())
