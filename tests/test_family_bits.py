"""Same bits for every architecture: instruction sets, threads, pieces, histories and company change no bit.

As test_same_bits.py does it for the llama family in many ways, here in a few for each of the others, over windows,
experts, layers of two kinds and rotation gains. Everything is held against one evaluation of all ids at once, on one
thread, with the portable kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from exact_bits import ISAS, Logits, load, same
from family_variants import MIXED, ONE_TYPE, Variant
from reference_forward import random_ids
from tiny_families import TYPES, write_family

N = 330
N_SINGLE = 135  # ids that are evaluated one by one: beyond a window of 100, of 130, and a block of keys
CUTS = [0, 1, 24, 99, 100, 101, 127, 129, 130, 131, 229, 256, 257, 300, N]
IDS = random_ids(N, 0, 301)


Case = tuple[Variant, str, Logits]


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """A variant, its file and float32[N, V], each made once: what all other evaluations are held against."""
    folder, known = tmp_path_factory.mktemp("bits"), dict[str, Case]()

    def get(name: str) -> Case:
        if name not in known:
            variant = MIXED[name]
            path = variant.write(folder / f"{len(known)}.gguf")
            with load(path, threads=1, isa="portable") as model:
                known[name] = variant, path, model.logits(IDS, window=variant.window)
        return known[name]

    return get


@pytest.fixture(params=MIXED)
def case(request: pytest.FixtureRequest, cases: Callable[[str], Case]) -> Case:
    return cases(request.param)


def test_every_instruction_set_and_thread_count(case: Case, isa: str) -> None:
    variant, path, want = case
    for threads in (1, 2, 3):
        with load(path, threads=threads, isa=isa) as model:
            assert same(model.logits(IDS[:150], window=variant.window), want[:150])
            with model.state(window=variant.window) as state:
                assert same(state.eval(IDS), want[-1])


def test_one_id_at_a_time(case: Case, isa: str) -> None:
    variant, path, want = case
    with load(path, threads=2, isa=isa) as model, model.state(window=variant.window) as state:
        got = np.stack([state.eval([token]) for token in IDS[:N_SINGLE]])
        assert same(got, want[:N_SINGLE])


def test_pieces_and_rewinds(case: Case) -> None:
    variant, path, want = case
    with load(path, threads=2) as model, model.state(window=variant.window) as state:
        for start, end in zip(CUTS, CUTS[1:], strict=False):
            assert same(state.eval(IDS[start:end]), want[end - 1])
        for n in (327, 257, 256, 231, 130, 129, 101, 100, 99, 1, 0):
            state.rewind(n)
            state.eval(IDS[200:210])  # astray
            state.rewind(n)
            assert same(state.eval(IDS[n : n + 3]), want[n + 2])


def test_beside_other_conversations(case: Case) -> None:
    """States of other lengths in one batch: tokens of several of them meet in one expert and in one job."""
    variant, path, want = case
    with load(path, threads=2) as model:
        one, two, three = (model.state(variant.window) for _ in range(3))
        model.eval_batch([(one, IDS[:3]), (two, IDS[:128]), (three, IDS[:260])])
        parts = [(one, IDS[3:20]), (two, IDS[128:129]), (three, IDS[260:264])]
        for got, last in zip(model.eval_batch(parts), (20, 129, 264), strict=True):
            assert same(got, want[last - 1])


def test_long_and_short_factors_in_one_batch(tmp_path: Path) -> None:
    """What a state was made for goes with the state, not with the model or the batch."""
    variant = MIXED["phi3"]
    with load(variant.write(tmp_path / "m.gguf"), threads=2) as model:
        short, long = model.logits(IDS[:140], window=400), model.logits(IDS[:140], window=401)
        assert not same(short, long)
        with model.state(window=400) as one, model.state() as two:
            model.eval_batch([(one, IDS[:130]), (two, IDS[:131])])
            got = model.eval_batch([(one, IDS[130:140]), (two, IDS[131:140])])
            assert same(got[0], short[-1])
            assert same(got[1], long[-1])


# ---- Every element type alone


@pytest.mark.parametrize("dtype", TYPES)
def test_every_element_type(tmp_path: Path, dtype: str) -> None:
    """On each instruction set, for prompts that fill tiles, leave rests, and one id at a time."""
    path = write_family(tmp_path / "m.gguf", "llama", dtype=dtype, **ONE_TYPE)
    with load(path, threads=1, isa="portable") as model:
        want = model.logits(IDS[:45])
    for isa in ISAS:
        with load(path, threads=2, isa=isa) as model, model.state() as state:
            assert same(model.logits(IDS[:45]), want)
            assert same(np.stack([state.eval([token]) for token in IDS[:9]]), want[:9])
            for start, end in ((9, 11), (11, 14), (14, 19), (19, 26), (26, 45)):
                assert same(state.eval(IDS[start:end]), want[end - 1])
