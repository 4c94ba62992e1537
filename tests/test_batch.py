"""Model.eval_batch: several conversations in one call, each with the bits that it has alone, or none is touched."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_forward import random_ids
from tiny_gguf import write_model

import pantheon
from pantheon import _native


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pantheon.Model]:
    path = write_model(tmp_path_factory.mktemp("batch") / "m.gguf", n_ctx=700, tied=False)
    with pantheon.load(path, threads=2, blas=False) as loaded:
        yield loaded


def alone(model: pantheon.Model, ids: list[int]) -> Any:
    with model.state() as state:
        return state.eval(ids)


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_each_state_gets_the_bits_it_has_alone(model: pantheon.Model, data: st.DataObject) -> None:
    """Ragged lengths, different histories (none, evaluated, rewound), several steps."""
    n = data.draw(st.integers(1, 5))
    states = [model.state() for _ in range(n)]
    held: list[list[int]] = []
    for at, state in enumerate(states):
        history = random_ids(data.draw(st.sampled_from([0, 1, 7, 130])), 1000 + at, 512)
        if history:
            state.eval(history)
            keep = data.draw(st.integers(0, len(history)))
            state.rewind(keep)
            history = history[:keep]
        held.append(history)
    for step in range(2):
        takes = [random_ids(data.draw(st.integers(1, 40)), 10 * step + at, 512) for at in range(n)]
        rows = model.eval_batch(list(zip(states, takes, strict=True)))
        assert (rows.shape, rows.dtype) == ((n, model.n_vocab), np.float32)
        for at, state in enumerate(states):
            held[at] += takes[at]
            assert rows[at].tobytes() == alone(model, held[at]).tobytes()
            assert state.logits is not None
            assert state.logits.tobytes() == rows[at].tobytes()
            assert state.tokens.tolist() == held[at]
    for state in states:
        state.close()


def test_more_tokens_than_an_internal_batch(model: pantheon.Model) -> None:
    lengths = [300, 1, 520, 64]
    parts = [(model.state(), random_ids(n, n, 512)) for n in lengths]
    rows = model.eval_batch(parts)
    for row, (_, ids) in zip(rows, parts, strict=True):
        assert row.tobytes() == alone(model, ids).tobytes()


def test_no_parts_are_no_rows(model: pantheon.Model) -> None:
    assert model.eval_batch([]).shape == (0, model.n_vocab)


def test_ids_may_be_arrays(model: pantheon.Model) -> None:
    with model.state() as one, model.state() as two:
        rows = model.eval_batch([(one, np.array([1, 2], np.int64)), (two, (3,))])
        assert rows[0].tobytes() == alone(model, [1, 2]).tobytes()
        assert rows[1].tobytes() == alone(model, [3]).tobytes()


def test_nonsense_is_refused_before_any_work(model: pantheon.Model, tiny_model: str) -> None:
    with model.state() as one, model.state() as two, pantheon.load(tiny_model) as other, other.state() as foreign:
        before = one.eval([1, 2])
        for parts, word in (
            ([(one, [3]), (one, [4])], "twice"),
            ([(one, [3]), (two, [])], "part 1"),
            ([(one, [3]), (foreign, [4])], "another model"),
            ([(one, [3]), (two, [512])], "512"),
            ([(one, [3]), (two, [-1])], "-1"),
        ):
            with pytest.raises(pantheon.ArgumentError, match=word):
                model.eval_batch(parts)
        with pytest.raises(pantheon.ContextError):
            model.eval_batch([(one, [3]), (two, [4] * 701)])
        assert one.tokens.tolist() == [1, 2]
        assert one.logits is not None
        assert one.logits.tobytes() == before.tobytes()
        assert len(two) == 0
        two.close()
        with pytest.raises(pantheon.ClosedError):
            model.eval_batch([(one, [3]), (two, [4])])
        assert model.eval_batch([(one, [3])])[0].tobytes() == alone(model, [1, 2, 3]).tobytes()


def test_parts_that_are_none_are_refused_by_number(model: pantheon.Model) -> None:
    with model.state() as one, model.state() as two:
        good = (one, [3])
        wrong: list[tuple[Any, str]] = [
            (None, "must be a sequence of .state, ids., got NoneType"),
            (7, "got int"),
            ("ab", "part 0 of the batch must be .state, ids., got str"),
            ([1], "part 0 .* got int"),
            ([good, None], "part 1 .* got NoneType"),
            ([good, (None, [1])], r"part 1 .* got 2 values \(NoneType, list\)"),
            ([good, (two,)], "part 1 .* got 1 values"),
            ([good, (two, [1], 2)], "part 1 .* got 3 values"),
            ([good, (two, None)], "part 1: token ids"),
            ([good, (two, [1.5])], "part 1: token ids"),
            ([good, (two, [-1])], "part 1: token id -1"),
            ([good, (two, [4, 512])], "part 1: eval: token 1 is 512"),
        ]
        for parts, words in wrong:
            with pytest.raises(pantheon.ArgumentError, match=words):
                model.eval_batch(parts)
        with pytest.raises(pantheon.ContextError, match="part 1: .* 701"):
            model.eval_batch([good, (two, [4] * 701)])
        progress: Any = 7
        with pytest.raises(pantheon.ArgumentError, match="progress .* got int"):
            model.eval_batch([good], progress=progress)
        with pytest.raises(pantheon.ArgumentError, match="progress .* got int"):
            one.eval([3], progress=progress)
        two.close()
        with pytest.raises(pantheon.ClosedError, match="part 1: "):
            model.eval_batch([good, (two, [4])])
        assert len(one) == 0


def test_what_progress_raises_stops_it_and_frees_the_states(model: pantheon.Model) -> None:
    class Enough(Exception):
        pass

    def stop(fraction: float) -> None:
        raise Enough

    with model.state() as one, model.state() as two:
        one.cancel()
        with pytest.raises(pantheon.CancelledError):
            model.eval_batch([(one, [1]), (two, [2])])
        for _ in range(50):  # a tiny batch may be over before the first report
            try:
                model.eval_batch([(one, random_ids(300, 1, 512)), (two, random_ids(300, 2, 512))], progress=stop)
            except Enough:
                break
            one.reset()
            two.reset()
        one.reset()
        two.reset()
        rows = model.eval_batch([(one, [5]), (two, [6])])
        assert rows[0].tobytes() == alone(model, [5]).tobytes()


def test_states_are_entered_in_one_order_whatever_the_order_of_the_parts(
    model: pantheon.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that of two callers who want the same states one gets them: two orders could turn both away for ever."""
    entered: list[Any] = []
    exclusive = _native.StateHandle.exclusive

    def noted(handle: _native.StateHandle) -> Any:
        entered.append(handle)
        return exclusive(handle)

    states = [model.state() for _ in range(4)]
    monkeypatch.setattr(_native.StateHandle, "exclusive", noted)
    model.eval_batch([(state, [7]) for state in states])
    model.eval_batch([(state, [7]) for state in states[::-1]])
    assert len(entered) == 8
    assert entered[:4] == entered[4:]


def test_two_threads_that_want_the_same_states_do_not_wait_for_each_other(model: pantheon.Model) -> None:
    states = [model.state() for _ in range(4)]
    done = {"ok": 0, "busy": 0}
    lock = threading.Lock()
    start = threading.Barrier(2)

    def run(order: list[pantheon.State]) -> None:
        start.wait()
        for _ in range(40):
            try:
                model.eval_batch([(state, [7]) for state in order])
                result = "ok"
            except pantheon.BusyError:
                result = "busy"
            with lock:
                done[result] += 1

    workers = [threading.Thread(target=run, args=(order,)) for order in (states, states[::-1])]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    assert done["ok"] + done["busy"] == 80
    assert done["ok"] >= 1
    assert {len(state) for state in states} == {done["ok"]}
