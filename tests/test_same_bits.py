"""One list of ids, one set of bits: however the logits came about, they are compared with ==, never with a tolerance.

Every case is held against the same evaluation: all ids at once, on one thread, with the portable kernels. What differs
is how the ids are cut into calls, threads, instruction set, history of the state, and who else evaluates meanwhile.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from exact_bits import ISAS, Logits, load, same
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_forward import random_ids
from tiny_gguf import MULTIPLIABLE, quantized, write_model

import pantheon
from pantheon._core import ffi, lib

N, VOCAB = 40, 301
KINDS = (*MULTIPLIABLE, "mixed", "minus 128")
SHAPE: dict[str, Any] = {
    "n_embd": 96, "n_head": 8, "n_head_kv": 2, "head_size": 20, "n_ff": 160, "n_vocab": VOCAB, "n_ctx": 2048,
    "tied": False,
}  # fmt: skip

# Shapes that attention cuts in other ways: more query heads to a key head than rows in a job (several parts, the last a
# short one), and heads so large that a few query heads are more than a job, too.
HEADS: dict[str, dict[str, Any]] = {
    "40 heads on one": {
        "n_embd": 64, "n_head": 40, "n_head_kv": 1, "head_size": 8, "n_ff": 96, "n_vocab": VOCAB, "n_ctx": 2048,
    },
    "heads of 1024": {
        "n_layer": 1, "n_embd": 64, "n_head": 4, "n_head_kv": 1, "head_size": 1024, "n_ff": 96, "n_vocab": VOCAB,
        "n_ctx": 2048,
    },
}  # fmt: skip


def mixed(name: str) -> str:
    """An element type for each matrix, all of them in one file."""
    return MULTIPLIABLE[sum(name.encode()) % len(MULTIPLIABLE)]


IDS = random_ids(N, 0, VOCAB)
LONG = random_ids(1100, 1, VOCAB)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A model for each element type, and one that mixes them."""
    folder = tmp_path_factory.mktemp("bits")
    kinds: dict[str, Any] = {**{dtype: dtype for dtype in MULTIPLIABLE}, "mixed": mixed}
    out = {name: write_model(folder / f"{name}.gguf", dtype=kind, **SHAPE) for name, kind in kinds.items()}
    rng = np.random.default_rng(0)
    smallest = {}  # 8-bit weights of -128 take a way of their own through the kernels
    for name, shape in {"output.weight": (301, 96), "blk.0.ffn_down.weight": (96, 160)}.items():
        raw = quantized((rng.standard_normal(shape) / 8).astype(np.float32), "Q8_0")
        raw.data.reshape(-1, 34)[:, 7] = 0x80
        smallest[name] = raw
    out["minus 128"] = write_model(folder / "minus.gguf", tensors=smallest, **SHAPE)
    return out


@pytest.fixture(scope="module")
def wanted(paths: dict[str, str]) -> dict[str, Logits]:
    """float32[N, V] for IDS: the evaluation that all others are held against."""
    out: dict[str, Logits] = {}
    for name, path in paths.items():
        with load(path, threads=1, isa="portable") as model:
            out[name] = model.logits(IDS)
    return out


@pytest.fixture(scope="module")
def model(paths: dict[str, str]) -> Iterator[pantheon.Model]:
    """The mixed model on two threads with the best kernels."""
    with load(paths["mixed"], threads=2) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def want(wanted: dict[str, Logits]) -> Logits:
    return wanted["mixed"]


@pytest.fixture(scope="module")
def want_long(paths: dict[str, str]) -> Logits:
    """float32[V] after LONG."""
    with load(paths["mixed"], threads=1, isa="portable") as portable, portable.state() as state:
        return state.eval(LONG)


# ---- Kernels and threads


@pytest.mark.parametrize("kind", KINDS)
def test_every_instruction_set_and_thread_count(
    paths: dict[str, str], wanted: dict[str, Logits], isa: str, kind: str
) -> None:
    for threads in (1, 2, 3, 5):
        with load(paths[kind], threads=threads, isa=isa) as model:
            assert (model.info.isa, model.info.threads) == (isa, threads)
            assert same(model.logits(IDS), wanted[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_one_id_at_a_time_on_every_instruction_set(
    paths: dict[str, str], wanted: dict[str, Logits], isa: str, kind: str
) -> None:
    with load(paths[kind], isa=isa, threads=2) as model, model.state() as state:
        assert same(np.stack([state.eval([token]) for token in IDS]), wanted[kind])


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_a_prompt_of_several_batches(paths: dict[str, str], want_long: Logits, isa: str, threads: int) -> None:
    with load(paths["mixed"], threads=threads, isa=isa) as model, model.state() as state:
        assert same(state.eval(LONG), want_long)


def test_a_file_read_instead_of_mapped(paths: dict[str, str], wanted: dict[str, Logits]) -> None:
    for kind, path in paths.items():
        with load(path, mmap=False) as model:
            assert same(model.logits(IDS), wanted[kind])


def test_loading_again_gives_the_same(paths: dict[str, str], want: Logits) -> None:
    for _ in range(3):
        with load(paths["mixed"]) as model:
            assert same(model.logits(IDS), want)


# ---- Other numbers and sizes of heads


BEYOND = 530  # ids: more than one of the spans of keys that threads share


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Logits]]:
    """The models of HEADS, each with float32[BEYOND, V] for LONG[:BEYOND]."""
    folder = tmp_path_factory.mktemp("heads")
    out = {}
    for name, shape in HEADS.items():
        path = write_model(folder / f"{name}.gguf", **shape)
        with load(path, threads=1, isa="portable") as model:
            out[name] = path, model.logits(LONG[:BEYOND])
    return out


@pytest.fixture(params=HEADS)
def other(request: pytest.FixtureRequest, others: dict[str, tuple[str, Logits]]) -> tuple[str, Logits]:
    return others[request.param]


def test_other_heads_on_every_instruction_set_and_thread_count(other: tuple[str, Logits], isa: str) -> None:
    path, want = other
    for threads in (1, 2, 5):
        with load(path, threads=threads, isa=isa) as model, model.state() as state:
            assert same(model.logits(LONG[:N]), want[:N])
            if isa != "portable":
                assert same(state.eval(LONG[:520]), want[519])
                assert same(state.eval(LONG[520:521]), want[520])  # few rows, two spans: threads share them
                assert same(state.eval(LONG[521:BEYOND]), want[-1])


def test_other_heads_one_id_at_a_time_on_every_instruction_set(other: tuple[str, Logits], isa: str) -> None:
    path, want = other
    with load(path, isa=isa, threads=2) as model, model.state() as state:
        assert same(np.stack([state.eval([token]) for token in LONG[:N]]), want[:N])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_other_heads_in_pieces_across_blocks_and_spans(other: tuple[str, Logits], threads: int) -> None:
    path, want = other
    with load(path, threads=threads) as model, model.state() as state:
        cuts = [0, 1, 24, 63, 127, 129, 500, *range(508, 516), BEYOND]
        for start, end in zip(cuts, cuts[1:], strict=False):
            assert same(state.eval(LONG[start:end]), want[end - 1])
        for n in (513, 512, 511, 128, 127):
            state.rewind(n)
            assert same(state.eval(LONG[n : n + 3]), want[n + 2])


def test_other_heads_in_one_ragged_batch(other: tuple[str, Logits]) -> None:
    """Short and long states together: jobs with one span and with two."""
    path, want = other
    for threads in (1, 2, 5):
        with load(path, threads=threads) as model:
            states = raw_states(model, 3)
            ragged(model, [(states[0], LONG[:3], False), (states[1], LONG[:505], False), (states[2], LONG[:1], False)])
            rows = ragged(
                model,
                [(states[0], LONG[3:5], True), (states[1], LONG[505:525], True), (states[2], LONG[1:2], True)],
            )
            for got, wanted_rows in zip(rows, (want[3:5], want[505:525], want[1:2]), strict=True):
                assert same(got, wanted_rows)
            for state in states:
                ffi.release(state)


# ---- Splits and history


@settings(deadline=None, max_examples=60)
@given(cuts=st.sets(st.integers(1, N - 1)))
def test_any_split_into_calls(model: pantheon.Model, want: Logits, cuts: set[int]) -> None:
    with model.state() as state:
        for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), N], strict=True):
            assert same(state.eval(IDS[start:end]), want[end - 1])
        assert state.tokens.tolist() == IDS


@settings(deadline=None, max_examples=10)
@given(
    cuts=st.sets(st.integers(1, len(LONG) - 1), max_size=5) | st.sets(st.sampled_from([127, 128, 129, 511, 512, 513]))
)
def test_any_split_of_a_prompt_of_several_batches(model: pantheon.Model, want_long: Logits, cuts: set[int]) -> None:
    with model.state() as state:
        for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(LONG)], strict=True):
            last = state.eval(LONG[start:end])
        assert same(last, want_long)


def test_all_rows_or_only_the_last(model: pantheon.Model, want: Logits) -> None:
    assert same(model.logits(IDS), want)
    for n in range(1, N + 1):
        with model.state() as state:
            assert same(state.eval(IDS[:n]), want[n - 1])


def test_after_reset(model: pantheon.Model, want: Logits) -> None:
    with model.state() as state:
        state.eval(LONG[:300])
        state.reset()
        assert same(state.eval(IDS), want[-1])


def test_rewound_to_every_length(model: pantheon.Model, want: Logits) -> None:
    with model.state() as state:
        for n in range(N):
            state.eval(random_ids(N, 100 + n, VOCAB))
            state.reset()
            state.eval(IDS)
            state.rewind(n)
            assert state.tokens.tolist() == IDS[:n]
            assert same(state.eval(IDS[n:]), want[-1])


def test_rewound_and_led_astray_before_the_right_continuation(model: pantheon.Model, want: Logits) -> None:
    with model.state() as state:
        state.eval(IDS)
        for n in (39, 30, 12, 1, 0):
            state.rewind(n)
            state.eval(random_ids(N - n, n, VOCAB))
            state.rewind(n)
            assert same(state.eval(IDS[n:]), want[-1])


def test_rewound_over_many_blocks_of_the_cache(model: pantheon.Model, want_long: Logits) -> None:
    with model.state() as state:
        state.eval(LONG)
        for n in (1099, 1024, 513, 512, 511, 129, 128, 127, 1):
            state.rewind(n)
            assert same(state.eval(LONG[n:]), want_long)


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_history_of_a_state(model: pantheon.Model, want: Logits, data: st.DataObject) -> None:
    """Random appends, wrong turns, rewinds, resets; whenever the state holds a prefix of IDS its logits are known."""
    with model.state() as state:
        for _ in range(data.draw(st.integers(1, 8))):
            held = len(state)
            step = data.draw(st.sampled_from(["append", "astray", "rewind", "reset"]))
            if step == "append" and held < N:
                n = data.draw(st.integers(1, N - held))
                assert same(state.eval(IDS[held : held + n]), want[held + n - 1])
            elif step == "astray":
                state.eval(data.draw(st.lists(st.integers(0, 300), min_size=1, max_size=20)))
                state.rewind(held)
            elif step == "rewind":
                state.rewind(data.draw(st.integers(0, held)))
            elif step == "reset":
                state.reset()


# ---- Beside others


def test_two_states_interleaved_token_by_token(model: pantheon.Model, want: Logits) -> None:
    with model.state() as one, model.state() as two:
        for at, token in enumerate(IDS):
            assert same(one.eval([token]), want[at])
            if at >= 7:
                assert same(two.eval([IDS[at - 7]]), want[at - 7])


def raw_states(model: pantheon.Model, n: int) -> list[Any]:
    """States of the C interface, which alone takes several in one call."""
    with model._handle as pointer:
        return [ffi.gc(lib.pn_state_new(pointer), lib.pn_state_free) for _ in range(n)]


def ragged(model: pantheon.Model, parts: Sequence[tuple[Any, Sequence[int], bool]]) -> list[Logits | None]:
    """One pn_eval over several states; for parts that ask for it the rows of all their tokens."""
    slices = ffi.new("pn_slice[]", len(parts))
    held: list[Any] = []
    rows: list[Logits | None] = []
    for piece, (state, ids, wants_all) in zip(slices, parts, strict=True):
        tokens = ffi.new("uint32_t[]", list(ids))
        out = np.empty((len(ids), model.n_vocab), np.float32) if wants_all else None
        piece.state, piece.tokens, piece.n = state, tokens, len(ids)
        if out is not None:
            piece.all_logits = ffi.from_buffer("float[]", out, require_writable=True)
        held.append(tokens)
        rows.append(out)
    with model._handle as pointer:
        status = lib.pn_eval(pointer, slices, len(parts), ffi.NULL, ffi.NULL)
    assert status == lib.PN_OK, bytes(ffi.string(lib.pn_last_error()))
    return rows


def last_logits(state: Any, n_vocab: int) -> Logits:
    pointer = lib.pn_state_logits(state)
    assert pointer != ffi.NULL
    return np.frombuffer(ffi.buffer(pointer, 4 * n_vocab), np.float32).copy()


@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_one_ragged_batch_of_several_states(model: pantheon.Model, want: Logits, data: st.DataObject) -> None:
    """States of different lengths, each with some tokens, in one call: each gets what it would get alone."""
    n = data.draw(st.integers(1, 6))
    states = raw_states(model, n)
    lengths = [0] * n
    for _ in range(3):
        takes = [data.draw(st.integers(1, 12)) for _ in range(n)]
        wants = [data.draw(st.booleans()) for _ in range(n)]
        parts = [
            (state, IDS[have : have + take], every)
            for state, have, take, every in zip(states, lengths, takes, wants, strict=True)
        ]
        rows = ragged(model, parts)
        for at, take in enumerate(takes):
            before, lengths[at] = lengths[at], lengths[at] + take
            assert same(last_logits(states[at], model.n_vocab), want[lengths[at] - 1])
            if wants[at]:
                assert same(rows[at], want[before : lengths[at]])
    for state in states:
        ffi.release(state)


def test_a_ragged_batch_larger_than_an_internal_one(model: pantheon.Model, want: Logits, want_long: Logits) -> None:
    states = raw_states(model, 4)
    parts = [(states[0], IDS, True), (states[1], LONG, False), (states[2], IDS, False), (states[3], LONG, False)]
    rows = ragged(model, parts)
    assert same(rows[0], want)
    assert same(last_logits(states[0], model.n_vocab), want[-1])
    assert same(last_logits(states[2], model.n_vocab), want[-1])
    for state in (states[1], states[3]):
        assert same(last_logits(state, model.n_vocab), want_long)
    for state in states:
        ffi.release(state)


def test_states_evaluated_by_several_threads_at_once(model: pantheon.Model, want: Logits, want_long: Logits) -> None:
    failures: list[str] = []

    def converse(number: int) -> None:
        for turn in range(4):
            with model.state() as state:
                cut = 1 + (7 * number + turn) % (N - 1)
                if not (same(state.eval(IDS[:cut]), want[cut - 1]) and same(state.eval(IDS[cut:]), want[-1])):
                    failures.append(f"thread {number}, cut at {cut}")

    def read_a_lot(number: int) -> None:
        with model.state() as state:
            if not same(state.eval(LONG), want_long):
                failures.append(f"thread {number}, long prompt")

    threads = [threading.Thread(target=converse, args=(n,)) for n in range(5)]
    threads += [threading.Thread(target=read_a_lot, args=(n,)) for n in (5, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []


# ---- After a cancel


def test_after_a_cancel_before_the_call(model: pantheon.Model, want: Logits) -> None:
    with model.state() as state:
        state.eval(IDS[:10])
        state.cancel()
        with pytest.raises(pantheon.CancelledError):
            state.eval(IDS[10:])
        held = state.tokens.tolist()
        assert held == IDS[:10]
        assert same(state.eval(IDS[len(held) :]), want[-1])


def test_after_a_cancel_in_the_middle_of_a_prompt(model: pantheon.Model) -> None:
    """From another thread, at many moments: what the state still holds is a prefix, and goes on with equal bits."""
    prompt = random_ids(2000, 9, VOCAB)
    with model.state() as fresh:
        started = time.perf_counter()
        want = fresh.eval(prompt)
        took = time.perf_counter() - started
    cut_short = 0
    for part in range(8):
        with model.state() as state:
            timer = threading.Timer(took * part / 8, state.cancel)
            timer.start()
            try:
                state.eval(prompt)
            except pantheon.CancelledError:
                cut_short += 1
            timer.join()
            state.clear_cancel()
            held = state.tokens.tolist()
            assert held == prompt[: len(held)]
            if len(held) == len(prompt):
                state.rewind(len(held) - 1)
            assert same(state.eval(prompt[len(state) :]), want)
    assert cut_short > 0


def test_after_a_progress_callback_that_raised(smollm2: str) -> None:
    class EnoughError(Exception):
        pass

    def stop(fraction: float) -> None:
        raise EnoughError

    ids = random_ids(600, 4, VOCAB)
    with load(smollm2) as real, real.state() as state, real.state() as fresh:
        with pytest.raises(EnoughError):
            state.eval(ids, progress=stop)
        held = len(state)
        assert held < len(ids)
        assert state.tokens.tolist() == ids[:held]
        assert same(state.eval(ids[held : held + 20]), fresh.eval(ids[: held + 20]))


# ---- In a thread whose floating-point arithmetic was changed

FLUSH_TO_ZERO, SUBNORMALS_ARE_ZERO, ROUND_UP, ROUND_DOWN = 0x8000, 0x0040, 0x4000, 0x2000
CHANGES = {
    "subnormals flushed": FLUSH_TO_ZERO | SUBNORMALS_ARE_ZERO,
    "rounding up": ROUND_UP,
    "rounding towards zero, subnormals flushed": ROUND_UP | ROUND_DOWN | FLUSH_TO_ZERO | SUBNORMALS_ARE_ZERO,
}
glibc_x86 = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc",
    reason="knows the layout of fenv_t of glibc on x86-64 only",
)


class Environment(ctypes.Structure):
    """fenv_t: 28 bytes of the x87 unit, then the control word of SSE."""

    _fields_ = (("x87", ctypes.c_uint8 * 28), ("mxcsr", ctypes.c_uint32))


@contextmanager
def arithmetic(bits: int) -> Iterator[None]:
    """This thread's SSE arithmetic with these control bits set, as libraries built with -ffast-math leave it behind."""
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    saved, changed = Environment(), Environment()
    assert libm.fegetenv(ctypes.byref(saved)) == 0
    ctypes.memmove(ctypes.byref(changed), ctypes.byref(saved), ctypes.sizeof(saved))
    changed.mxcsr |= bits
    assert libm.fesetenv(ctypes.byref(changed)) == 0
    try:
        yield
    finally:
        libm.fesetenv(ctypes.byref(saved))


@glibc_x86
@pytest.mark.parametrize("change", CHANGES)
def test_evaluated_by_a_thread_with_other_arithmetic(
    model: pantheon.Model, want: Logits, want_long: Logits, change: str
) -> None:
    with model.state() as state, model.state() as long:
        with arithmetic(CHANGES[change]):
            last, last_long = state.eval(IDS), long.eval(LONG)
        assert same(last, want[-1])
        assert same(last_long, want_long)


@glibc_x86
@pytest.mark.parametrize("change", CHANGES)
def test_loaded_by_a_thread_with_other_arithmetic(
    paths: dict[str, str], wanted: dict[str, Logits], isa: str, change: str
) -> None:
    """Rotation frequencies are computed while loading."""
    for kind in ("F16", "mixed"):
        with arithmetic(CHANGES[change]):
            model = load(paths[kind], threads=2, isa=isa)
        with model:
            assert same(model.logits(IDS), wanted[kind])


@glibc_x86
def test_the_changed_arithmetic_is_changed() -> None:
    """The converse: in it numpy gives other numbers, and afterwards the same again."""
    thirds, tiny = np.full(9, 1 / 3), np.full(9, 1e-310)
    before = (thirds * 0.1).tobytes(), (tiny * 0.5).tobytes()
    with arithmetic(ROUND_UP):
        rounded_up = (thirds * 0.1).tobytes()
    with arithmetic(FLUSH_TO_ZERO | SUBNORMALS_ARE_ZERO):
        flushed = (tiny * 0.5).tobytes()
    assert rounded_up != before[0]
    assert flushed != before[1]
    assert ((thirds * 0.1).tobytes(), (tiny * 0.5).tobytes()) == before


# ---- The real model


def test_the_real_model_on_every_path(smollm2: str) -> None:
    with load(smollm2, isa="portable", threads=2) as portable:
        ids = portable.tokenizer.encode("The capital of France is Paris. What is the capital of Germany?").tolist()
        want = portable.logits(ids)
    for isa in reversed(ISAS):
        for threads in (1, 2, 3):
            with load(smollm2, isa=isa, threads=threads) as model, model.state() as state:
                assert same(state.eval(ids), want[-1])
                state.rewind(5)
                assert same(state.eval(ids[5:6]), want[5])
                assert same(state.eval(ids[6:]), want[-1])
                if isa != "portable" and threads == 2:
                    assert same(model.logits(ids), want)


# ---- The comparison itself


def test_the_comparison_sees_a_single_bit(want: Logits) -> None:
    other = want.copy()
    assert same(other, want)
    other.view(np.uint32)[3, 5] ^= 1
    assert not same(other, want)
    assert not same(np.zeros_like(want), -np.zeros_like(want))
    assert not same(None, want)


def test_other_ids_give_other_bits(model: pantheon.Model, want: Logits) -> None:
    """A core that ignored what it was asked would pass all of the above."""
    for at in (0, 20, N - 1):
        changed = [*IDS[:at], (IDS[at] + 1) % 301, *IDS[at + 1 :]]
        got = model.logits(changed)
        assert same(got[:at], want[:at])
        assert not any(same(got[row], want[row]) for row in range(at, N))
