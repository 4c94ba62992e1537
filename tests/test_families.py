"""Every architecture and every element type against the plain numpy forward pass, over windows and rotation scalings.

The bounds are those of test_forward.py, which says where they come from; here they hold for prompts of 330 tokens,
which pass several blocks of keys (128 each) and both windows in use (100 and 130). For each variant the wrong steps
that an implementation could take instead must be ten times as far off as all roundings of the cache together.

Deep models have more cached values, of which some fall on the other side of a rounding: from seven layers on hardly a
prompt is free of that, in numpy's float32 as in the core. There the bound on the long prompt alone speaks: off by less
than half the effect of all such roundings (measured: a third with 62 layers, a twentieth with two). So what is special
about an architecture has a variant of few layers, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from family_variants import VARIANTS, WRONG, Variant
from reference_families import family_of, with_wrong_step
from reference_forward import Array, Reference, random_ids, rms, worst
from tiny_families import TYPES, mixed, q4_k_m, tensor_bytes

import pantheon

TIGHT = 1e-5  # in units of the logits' deviation, as in test_forward.py
DEEP = 6  # layers


SHORT = [random_ids(1 + number % 3, number) for number in range(30)]
LONG = random_ids(330, 1000)
WIDE = {"n_embd": 256, "n_head": 4, "n_head_kv": 2, "head_size": 64, "n_ff": 256, "n_vocab": 301, "n_layer": 1}
"""A shape that types with blocks of 256 can have. One layer: with four times the width of test_forward.py's models
there are four times as many roundings that can fall on the other side."""


def core_logits(path: str, window: int | None = None) -> tuple[Array, list[Array]]:
    """What the core computes for LONG and for each of SHORT, as float64."""
    with pantheon.load(path, blas=False, threads=2) as model:
        long, *short = (model.logits(ids, window=window).astype(np.float64) for ids in (LONG, *SHORT))
    return long, short


class Measured:
    """A float model: what the core computes for LONG (`got`) and SHORT, what the reference does, and the effect of all
    roundings of cached values on LONG."""

    def __init__(self, variant: Variant, path: str) -> None:
        self.variant, self.path = variant, path
        self.got, self.short = core_logits(path, variant.window)
        self.want = variant.reference(path).logits(LONG)
        self.effect = rms(self.want - variant.reference(path, half_cache=False).logits(LONG))

    def check(self) -> None:
        """The bounds of float weights. The first: no rounding makes another expert compute, so they are tight."""
        assert self.effect < 0.01 * self.want.std()
        assert rms(self.got - self.want) < 0.5 * self.effect
        reference = self.variant.reference(self.path)
        if reference.n_layer < DEEP:
            errors = [worst(got, reference.logits(ids)) for got, ids in zip(self.short, SHORT, strict=True)]
            assert np.median(errors) < TIGHT
            assert np.quantile(errors, 0.75) < 10 * TIGHT


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Measured]:
    """A variant of float weights, measured once."""
    folder, known = tmp_path_factory.mktemp("families"), dict[str, Measured]()

    def get(name: str) -> Measured:
        if name not in known:
            variant = VARIANTS[name]
            known[name] = Measured(variant, variant.write(folder / f"{len(known)}.gguf"))
        return known[name]

    return get


# ---- Float weights


@pytest.mark.parametrize("name", VARIANTS)
def test_float_weights_give_the_reference(measured: Callable[[str], Measured], name: str) -> None:
    measured(name).check()


@pytest.mark.parametrize("name", ["llama", "llama, experts", "qwen2", "qwen3", "phi3", "gemma3, shallow", "smollm3"])
def test_16_bit_weights_give_the_reference(tmp_path: Path, name: str) -> None:
    variant = VARIANTS[name]
    path = variant.write(
        tmp_path / "m.gguf", seed=4, dtype=mixed(("F16", "BF16"))
    )  # a seed of clear choices of experts
    Measured(variant, path).check()


@pytest.mark.parametrize(
    ("name", "wrong"), [(name, kind) for name, kinds in WRONG.items() for kind in kinds],
    ids=lambda part: part if isinstance(part, str) else part.__name__,
)  # fmt: skip
def test_a_wrong_step_is_noticed(measured: Callable[[str], Measured], name: str, wrong: type) -> None:
    model = measured(name)
    other = with_wrong_step(family_of(model.path), wrong)(model.path, window=model.variant.window)
    assert rms(model.got - other.logits(LONG)) > 10 * model.effect


def test_the_window_chooses_the_factors_once(tmp_path: Path) -> None:
    """By what the state is made for, not by how many tokens it holds; a state keeps to its choice."""
    path = VARIANTS["phi3, long"].write(tmp_path / "m.gguf")
    with pantheon.load(path) as model:
        long, short = model.logits(LONG[:40], window=401), model.logits(LONG[:40], window=400)
        assert long.tobytes() == model.logits(LONG[:40], window=1024).tobytes() == model.logits(LONG[:40]).tobytes()
        assert short.tobytes() == model.logits(LONG[:40], window=40).tobytes()
        assert np.abs(long - short).max() > 0.1
        with model.state(window=400) as one, model.state(window=401) as other, model.state() as whole:
            for at in range(40):
                assert one.eval(LONG[at : at + 1]).tobytes() == short[at].tobytes()
                assert other.eval(LONG[at : at + 1]).tobytes() == long[at].tobytes()
            assert whole.eval(LONG[:40]).tobytes() == long[-1].tobytes()
    with pantheon.load(VARIANTS["llama"].write(tmp_path / "plain.gguf")) as model:
        assert model.logits(LONG[:40], window=40).tobytes() == model.logits(LONG[:40]).tobytes()


# ---- Quantized weights


def check_eight_bit(path: str) -> None:
    """As test_forward.py does it, with the long prompt of this file."""
    rounded, exact = (family_of(path)(path, eight_bit=eight_bit) for eight_bit in (True, False))
    long, short = core_logits(path)
    errors = np.array([worst(got, rounded.logits(ids)) for got, ids in zip(short, SHORT, strict=True)])
    if rounded.n_layer < DEEP:
        assert np.mean(errors < TIGHT) > 0.6
    want = exact.logits(LONG)
    effect = rms(rounded.logits(LONG) - want)
    assert 0.5 * effect < rms(long - want) < 2 * effect
    assert effect < 0.08 * want.std()


@pytest.mark.parametrize("dtype", TYPES)
def test_every_element_type(tmp_path: Path, dtype: str) -> None:
    variant = VARIANTS["llama"]
    path = variant.write(tmp_path / "m.gguf", dtype=dtype, tied=False, **WIDE)
    assert dtype in {tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    if dtype in ("F32", "F16", "BF16"):
        Measured(variant, path).check()
    else:
        check_eight_bit(path)


@pytest.mark.parametrize("name", ["llama", "llama, experts", "qwen2", "qwen3", "phi3", "gemma3, shallow", "smollm3"])
def test_the_mix_of_everyday_files(tmp_path: Path, name: str) -> None:
    """Q4_K with Q6_K in the places where quantizers put it."""
    path = VARIANTS[name].write(tmp_path / "m.gguf", dtype=q4_k_m, **WIDE)
    check_eight_bit(path)


def test_all_types_in_one_file(tmp_path: Path) -> None:
    turn = itertools.cycle(TYPES)
    path = VARIANTS["llama, experts in tensors of their own"].write(
        tmp_path / "m.gguf", dtype=lambda name: next(turn), tied=False, **WIDE
    )
    assert {tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors} == set(TYPES)
    check_eight_bit(path)


class OnePlane(Reference):
    """A fused matrix of queries, keys and values whose input is rounded once only."""

    def linear(self, x: Array, name: str, expert: int | None = None) -> Array:
        out: Array = self.to_eight_bit(x) @ self.weight(name).T
        return out


def test_a_fused_matrix_takes_its_input_in_two_planes(tmp_path: Path) -> None:
    path = VARIANTS["phi3"].write(tmp_path / "m.gguf", dtype="Q8_0")
    _, short = core_logits(path)
    one_plane = with_wrong_step(family_of(path), OnePlane)(path)
    errors = np.array([worst(got, one_plane.logits(ids)) for got, ids in zip(short, SHORT, strict=True)])
    assert np.mean(errors < TIGHT) < 0.05


# ---- Memory


@pytest.mark.parametrize("dtype", [*TYPES, "a mix"])
def test_small_types_stay_small_in_memory(tmp_path: Path, dtype: str) -> None:
    """Resident weights are at most 1.15 times the file's, whatever the type."""
    kind = q4_k_m if dtype == "a mix" else dtype
    path = VARIANTS["llama"].write(tmp_path / "m.gguf", dtype=kind, tied=False, **{**WIDE, "n_vocab": 512})
    with pantheon.load(path) as model:
        assert model.info.weight_bytes <= 1.15 * tensor_bytes(path)


def test_experts_stay_small_in_memory(tmp_path: Path) -> None:
    for name in ("llama, experts", "llama, experts in tensors of their own"):
        path = VARIANTS[name].write(tmp_path / "m.gguf", dtype=q4_k_m, **WIDE)
        with pantheon.load(path) as model:
            assert model.info.weight_bytes <= 1.15 * tensor_bytes(path)


# ---- Keys that say the same


def same_logits(tmp_path: Path, one: Variant, other: Variant) -> bool:
    outcomes = []
    for number, variant in enumerate((one, other)):
        with pantheon.load(variant.write(tmp_path / f"{number}.gguf"), threads=1) as model:
            outcomes.append(model.logits(LONG, window=variant.window).tobytes())
    return outcomes[0] == outcomes[1]


SAME: dict[str, tuple[Variant, Variant]] = {
    "experts in one tensor or in one each": (
        VARIANTS["llama, experts"], VARIANTS["llama, experts in tensors of their own"],
    ),
    "a window of 0 is none (converters write 0)": (VARIANTS["phi3"], Variant("phi3", {"sliding_window": 0})),
    "a window beyond the context is none": (VARIANTS["llama"], Variant("llama", {"sliding_window": 5000})),
    "no window in gemma3 is a window of 0": (
        VARIANTS["gemma3, shallow without a window"], Variant("gemma3", {"n_layer": 2, "sliding_window": 0}),
    ),
    "a pattern of 6 is the default": (VARIANTS["gemma3"], Variant("gemma3", {"pattern": 6})),
    "a pattern by layer": (VARIANTS["gemma3"], Variant("gemma3", {"pattern": (True,) * 5 + (False, True)})),
    "a local base of 10000 is the default": (VARIANTS["gemma3"], Variant("gemma3", {"local_base": 10000.0})),
    "an attention scale of 0 is the default": (VARIANTS["llama"], Variant("llama", {"attention_scale": 0.0})),
    "no experts": (VARIANTS["llama"], Variant("llama", {"n_expert_used": 0})),
    "longrope by its tensors or by its type": (
        VARIANTS["phi3, long"],
        Variant("phi3", {**VARIANTS["phi3, long"].changes, "scaling": (
            ("type", "longrope"), ("original_context_length", 400),
        )}),
    ),
    "the paper's betas are the default": (
        VARIANTS["qwen2, yarn"],
        Variant("qwen2", {"scaling": (
            *VARIANTS["qwen2, yarn"].changes["scaling"], ("yarn_beta_fast", 32.0), ("yarn_beta_slow", 1.0),
        )}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_two_ways_to_say_the_same(tmp_path: Path, name: str) -> None:
    assert same_logits(tmp_path, *SAME[name])


def test_the_six_names_are_known() -> None:
    """And every one of them has variants: a new architecture needs a line above."""
    assert {variant.arch for variant in VARIANTS.values()} == {"llama", "qwen2", "qwen3", "phi3", "gemma3", "smollm3"}
    assert set(WRONG) <= set(VARIANTS)
