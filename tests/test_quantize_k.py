"""Writing the super-block types: how good the search is, and which tensor gets which type.

The `gguf` package reads Q4_K, Q5_K and Q6_K but does not write them, so there are no bytes to compare with. The oracle
for the search is its own reading of our bytes, beside an obvious and slow search in numpy that shares nothing with the
C; the oracle for the mixtures is what llama.cpp (version 0.3.36 of its Python package) makes of the same files, written
down here as plain lists.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import quant_blocks
from gguf_bytes import DType, Floats, Tensor, VType, last_error, write_gguf

from pantheon import _native
from pantheon._core import ffi, lib

K_TYPES = (DType.Q4_K, DType.Q5_K, DType.Q6_K)


def convert(source: Path, kind: str) -> gguf.GGUFReader:
    """The file as `kind`, as the package reads it."""
    target = source.with_name(f"{source.stem}.{kind}.gguf")
    assert lib.pn_quantize(os.fsencode(source), os.fsencode(target), kind.encode(), ffi.NULL, ffi.NULL) == lib.PN_OK, (
        last_error()
    )
    return gguf.GGUFReader(target)


def through(folder: Path, values: Floats, dtype: DType) -> Floats:
    """What the package reads from what we write."""
    source = write_gguf(folder / "in.gguf", [Tensor("x.weight", values.view(np.uint8), DType.F32)])
    tensor = convert(source, dtype.name.lower()).tensors[0]
    assert tensor.tensor_type == dtype
    return np.asarray(gguf.quants.dequantize(tensor.data, dtype), np.float32)


def loss(got: Floats, want: Floats) -> float:
    """The mean squared error."""
    return float(np.mean((got.astype(np.float64) - want) ** 2))


# ---- How good ----


def half(x: Floats) -> Floats:
    return x.astype(np.float16).astype(np.float64)


def affine_reference(values: Floats, top: int, search: bool) -> Floats:
    """Q4_K, Q5_K: each group's ends drawn in by every pair of fractions, codes rounded, scale and minimum fitted;
    then all integers up to two away from the rounded ones. Without search: from end to end."""
    x = values.astype(np.float64).reshape(-1, 8, 32)
    low, high = np.minimum(x.min(-1, keepdims=True), 0), x.max(-1, keepdims=True)
    best = [np.full(low.shape, np.inf), high - low, -low]
    for a, b in (
        [(a, b) for a in np.linspace(-0.1, 0.3, 13) for b in np.linspace(-0.1, 0.3, 13)] if search else [(0, 0)]
    ):
        start, width = low * (1 - a), high * (1 - b) - low * (1 - a)
        q = np.clip(np.rint((x - start) / np.maximum(width, 1e-30) * top), 0, top)
        sums = [s.sum(-1, keepdims=True) for s in (q, q * q, x, q * x)]
        det = 32 * sums[1] - sums[0] ** 2
        with np.errstate(all="ignore"):
            scale = (32 * sums[3] - sums[0] * sums[2]) / det if search else width / top
            minimum = (sums[0] * sums[3] - sums[1] * sums[2]) / det if search else -start
        ok = (det > 0) & (minimum >= 0) & (scale > 0)
        error = np.where(ok, ((scale * q - minimum - x) ** 2).sum(-1, keepdims=True), np.inf)
        better = error < best[0]
        best = [np.where(better, new, old) for new, old in zip((error, scale, minimum), best, strict=True)]
    d, m = (half(part.max(1, keepdims=True) / 63) for part in best[1:])
    first = [np.rint(part / np.maximum(unit, 1e-30)) for part, unit in zip(best[1:], (d, m), strict=True)]
    moves = range(-2, 3) if search else [0]
    result, least = x, np.full(low.shape, np.inf)
    for s, t in [(s, t) for s in moves for t in moves]:
        scale, minimum = (unit * np.clip(n + by, 0, 63) for unit, n, by in zip((d, m), first, (s, t), strict=True))
        q = np.clip(np.rint((x + minimum) / np.where(scale > 0, scale, np.inf)), 0, top)
        error = ((scale * q - minimum - x) ** 2).sum(-1, keepdims=True)
        result, least = np.where(error < least, scale * q - minimum, result), np.minimum(error, least)
    return result.reshape(values.shape)


def linear_reference(values: Floats, search: bool) -> Floats:
    """Q6_K: 81 scales of each sign for each group, codes rounded; then all integers up to two away. Without search: the
    extreme at 31."""
    x = values.astype(np.float64).reshape(-1, 16, 16)
    extreme = np.abs(x).max(-1, keepdims=True)
    best, least = extreme / 31, np.full(extreme.shape, np.inf)
    steps = [sign * n for n in np.linspace(28, 36, 81) for sign in (1, -1)] if search else [31]
    for n in steps:
        scale = np.where(extreme > 0, extreme / n, 1)
        q = np.clip(np.rint(x / scale), -32, 31)
        scale = (q * x).sum(-1, keepdims=True) / np.maximum((q * q).sum(-1, keepdims=True), 1) if search else scale
        error = ((scale * q - x) ** 2).sum(-1, keepdims=True)
        best, least = np.where(error < least, scale, best), np.minimum(error, least)
    at = np.abs(best).argmax(1, keepdims=True)
    d = half(np.take_along_axis(best, at, 1) / -128)
    result, least = x, np.full(extreme.shape, np.inf)
    for by in range(-2, 3) if search else [0]:
        scale = d * np.clip(np.rint(best / np.where(d == 0, np.inf, d)) + by, -128, 127)
        q = np.clip(np.rint(x / np.where(scale == 0, np.inf, scale)), -32, 31)
        error = ((scale * q - x) ** 2).sum(-1, keepdims=True)
        result, least = np.where(error < least, scale * q, result), np.minimum(error, least)
    return result.reshape(values.shape)


def reference(values: Floats, dtype: DType, search: bool = True) -> Floats:
    if dtype == DType.Q6_K:
        return linear_reference(values, search)
    return affine_reference(values, 15 if dtype == DType.Q4_K else 31, search)


def samples() -> dict[str, Floats]:
    """Rows of several kinds, [24, 512]."""
    rng = np.random.default_rng(7)
    shape = (24, 512)
    kinds = {
        "normal": rng.standard_normal(shape) * 0.02,
        "heavy tails": rng.standard_t(3, shape) * 0.02,
        "uniform": rng.uniform(-1, 1, shape),
        "off zero": rng.standard_normal(shape) + 2,
        "below zero": rng.standard_normal(shape) - 2,
        "sparse": rng.standard_normal(shape) * (rng.random(shape) < 0.1),
        "one outlier": np.where(np.arange(512) == 300, 40, 1) * rng.standard_normal(shape),
        "large": rng.standard_normal(shape) * 1e5,
    }
    return {name: np.ascontiguousarray(values, np.float32) for name, values in kinds.items()}


@pytest.mark.parametrize("dtype", K_TYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("kind", samples())
def test_the_search_loses_no_more_than_an_obvious_and_slow_one(tmp_path: Path, kind: str, dtype: DType) -> None:
    values = samples()[kind]
    ours = loss(through(tmp_path, values, dtype), values)
    best = loss(reference(values, dtype), values)
    assert ours <= 1.02 * best
    assert ours >= 0.8 * best  # the reference is a good one
    if kind == "normal":
        assert loss(reference(values, dtype, search=False), values) > 1.02 * best  # and the bound can fail


@pytest.mark.parametrize(
    ("dtype", "simpler"), [(DType.Q4_K, DType.Q4_0), (DType.Q5_K, DType.Q5_0), (DType.Q6_K, DType.Q5_0)]
)
def test_the_search_beats_the_types_of_32(tmp_path: Path, dtype: DType, simpler: DType) -> None:
    for values in samples().values():
        theirs = gguf.quants.dequantize(gguf.quants.quantize(values, simpler), simpler)
        assert loss(through(tmp_path, values, dtype), values) < loss(theirs, values)


@pytest.mark.parametrize("dtype", K_TYPES, ids=lambda dtype: dtype.name)
def test_zeros_stay_zeros_and_constants_stay_constant(tmp_path: Path, dtype: DType) -> None:
    values = np.zeros((6, 256), np.float32)
    values[1:3], values[3], values[4, 7] = [[3], [-3]], 1e-30, 5
    got = through(tmp_path, values, dtype)
    assert (got[0] == 0).all()
    assert np.allclose(got[1:3], values[1:3], rtol=1e-3)
    assert np.allclose(got[3:], values[3:], rtol=1e-3, atol=1e-25)


@pytest.mark.parametrize("dtype", K_TYPES, ids=lambda dtype: dtype.name)
def test_what_was_written_once_changes_little_when_written_again(tmp_path: Path, dtype: DType) -> None:
    values = samples()["normal"]
    once = through(tmp_path, values, dtype)
    assert loss(through(tmp_path, once, dtype), once) < 0.1 * loss(once, values)


# ---- Which type ----


def tensors_of(names: Sequence[str], n_cols: int = 256, n_experts: int = 0) -> list[Tensor]:
    """A matrix of ones for each name, [2, n_cols], or [n_experts, 2, n_cols] where the name says so."""
    out = []
    for name in names:
        shape = (n_experts, 2) if "_exps" in name else (1,) if "_norm" in name else (2,)
        raw = np.ones((*shape, n_cols), np.float32).view(np.uint8)
        out.append(Tensor(name, raw, DType.F32))
    return out


def names_of(n_layers: int, parts: Sequence[str], outer: Sequence[str]) -> list[str]:
    return [*outer, *(f"blk.{n}.{part}.weight" for n in range(n_layers) for part in parts)]


DENSE = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
FUSED = ("attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down")
EXPERTS = (*DENSE[:6], "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
TIED, OUTER = ("token_embd.weight", "output_norm.weight"), ("token_embd.weight", "output_norm.weight", "output.weight")
EXPOSED = {
    12: {0, 3, 6, 9, 10, 11},
    16: {0, 1, 4, 7, 10, 13, 14, 15},
    80: {*range(10), *range(12, 70, 3), *range(70, 80)},
}
"""The layers that get more bits, by the number of layers."""


def facts(arch: str, n_layers: int, **numbers: int) -> list[tuple[str, Any, VType]]:
    all_numbers = {"block_count": n_layers, **numbers}
    return [(f"{arch}.{key.replace('__', '.')}", n, VType.UINT32) for key, n in all_numbers.items()]


def written(
    folder: Path, arch: str, kind: str, tensors: Sequence[Tensor], metadata: Sequence[tuple[str, Any, VType]]
) -> dict[str, str]:
    """Name of each tensor and of the type that it got; the general.file_type as "file"."""
    source = folder / "m.gguf"
    writer = gguf.GGUFWriter(source, arch)
    for key, value, value_type in metadata:
        writer.add_key_value(key, value, value_type)
    for t in tensors:
        writer.add_tensor(t.name, t.data, raw_dtype=t.dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    reader = convert(source, kind)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    return kinds | {"file": str(reader.fields["general.file_type"].contents())}


def exposed(n_layers: int, part: str, kind: str) -> Iterator[tuple[str, str]]:
    return ((f"blk.{n}.{part}.weight", kind) for n in EXPOSED[n_layers])


def expect(names: Sequence[str], base: str, file_type: int, special: dict[str, str]) -> dict[str, str]:
    """Norms F32, what is special as that says, all else the base."""
    plain = {name: "F32" if "_norm" in name or "ffn_gate_inp" in name else base for name in names}
    assert special.keys() <= plain.keys()
    return plain | special | {"file": str(file_type)}


@pytest.mark.parametrize(
    ("kind", "base", "number"),
    [("q4_k", "Q4_K", 15), ("Q4_K_M", "Q4_K", 15), ("q5_k", "Q5_K", 17), ("q5_k_m", "Q5_K", 17)],
)
@pytest.mark.parametrize("n_layers", [12, 16])
def test_a_mixture_gives_the_output_and_half_of_the_sensitive_matrices_more_bits(
    tmp_path: Path, kind: str, base: str, number: int, n_layers: int
) -> None:
    metadata = facts("llama", n_layers)
    sensitive = {**dict(exposed(n_layers, "attn_v", "Q6_K")), **dict(exposed(n_layers, "ffn_down", "Q6_K"))}
    names = names_of(n_layers, DENSE, OUTER)
    got = written(tmp_path, "llama", kind, tensors_of(names), metadata)
    assert got == expect(names, base, number, sensitive | {"output.weight": "Q6_K"})
    names = names_of(n_layers, DENSE, TIED)  # the embedding is the output
    got = written(tmp_path, "llama", kind, tensors_of(names), metadata)
    assert got == expect(names, base, number, sensitive | {"token_embd.weight": "Q6_K"})


def test_fused_queries_keys_and_values_count_as_values(tmp_path: Path) -> None:
    names = names_of(12, FUSED, OUTER)
    got = written(tmp_path, "phi3", "q4_k", tensors_of(names), facts("phi3", 12))
    special = {**dict(exposed(12, "attn_qkv", "Q6_K")), **dict(exposed(12, "ffn_down", "Q6_K"))}
    assert got == expect(names, "Q4_K", 15, special | {"output.weight": "Q6_K"})


@pytest.mark.parametrize(
    ("kind", "base", "number", "attention_output"),
    [("q4_k", "Q4_K", 15, "Q5_K"), ("q5_k", "Q5_K", 17, "Q5_K"), ("q6_k", "Q6_K", 18, "Q6_K")],
)
def test_eight_experts_get_better_attention_and_routers_stay_f32(
    tmp_path: Path, kind: str, base: str, number: int, attention_output: str
) -> None:
    names = names_of(12, EXPERTS, OUTER)
    got = written(tmp_path, "llama", kind, tensors_of(names, n_experts=8), facts("llama", 12, expert_count=8))
    attention = {"attn_k": "Q8_0", "attn_v": "Q8_0", "attn_output": attention_output}
    special = {f"blk.{n}.{part}.weight": kind for n in range(12) for part, kind in attention.items()}
    special |= {**dict(exposed(12, "ffn_down_exps", "Q6_K")), "output.weight": "Q6_K"}
    assert got == expect(names, base, number, special)


def test_any_other_number_of_experts_is_as_none(tmp_path: Path) -> None:
    names = names_of(12, EXPERTS, OUTER)
    got = written(tmp_path, "llama", "q4_k", tensors_of(names, n_experts=4), facts("llama", 12, expert_count=4))
    special = {**dict(exposed(12, "attn_v", "Q6_K")), **dict(exposed(12, "ffn_down_exps", "Q6_K"))}
    assert got == expect(names, "Q4_K", 15, special | {"output.weight": "Q6_K"})


def test_one_tensor_for_each_expert_follows_the_layer_in_its_name(tmp_path: Path) -> None:
    names = names_of(12, ("ffn_down.0", "ffn_down.1"), OUTER)
    got = written(tmp_path, "llama", "q4_k", tensors_of(names), facts("llama", 12, expert_count=2))
    special = {**dict(exposed(12, "ffn_down.0", "Q6_K")), **dict(exposed(12, "ffn_down.1", "Q6_K"))}
    assert got == expect(names, "Q4_K", 15, special | {"output.weight": "Q6_K"})


@pytest.mark.parametrize(
    ("arch", "heads", "value"),
    [("llama", (8, 1), "Q5_K"), ("llama", (8, 8), "Q4_K"), ("qwen2", (8, 1), "Q5_K"), ("phi3", (8, 1), "Q4_K")],
)
def test_values_that_many_heads_share_get_more_bits_in_a_model_of_80_layers(
    tmp_path: Path, arch: str, heads: tuple[int, int], value: str
) -> None:
    names = names_of(80, ("attn_q", "attn_v"), OUTER)
    metadata = facts(arch, 80, attention__head_count=heads[0], attention__head_count_kv=heads[1])
    got = written(tmp_path, arch, "q4_k", tensors_of(names), metadata)
    special = {f"blk.{n}.attn_v.weight": value for n in range(80)} | dict(exposed(80, "attn_v", "Q6_K"))
    assert got == expect(names, "Q4_K", 15, special | {"output.weight": "Q6_K"})


@pytest.mark.parametrize(("kind", "base", "number"), [("q4_k", "Q5_0", 15), ("q5_k", "Q5_1", 17), ("q6_k", "Q8_0", 18)])
def test_rows_that_are_no_whole_super_blocks_take_the_type_of_32_that_holds_as_much(
    tmp_path: Path, kind: str, base: str, number: int
) -> None:
    names = names_of(12, DENSE, TIED)
    got = written(tmp_path, "llama", kind, tensors_of(names, n_cols=96), facts("llama", 12))
    special = {**dict(exposed(12, "attn_v", "Q8_0")), **dict(exposed(12, "ffn_down", "Q8_0"))}
    assert got == expect(names, base, number, special | {"token_embd.weight": "Q8_0"})


def test_names_that_are_none_of_a_model_do_no_harm(tmp_path: Path) -> None:
    names = [
        "blk.weight",
        "blk..attn_v.weight",
        "blk.99999999999999999999.attn_v.weight",
        "blk.0",
        "attn_v.weight",
        "x",
    ]
    got = written(tmp_path, "", "q4_k", tensors_of(names), [])
    assert got == expect(names, "Q4_K", 15, {})


def test_matrices_that_are_norms_or_biases_or_routers_are_f32_in_every_type(tmp_path: Path) -> None:
    names = ["a_norm.weight", "b.bias", "ffn_gate_inp.weight"]
    tensors = [Tensor(name, np.ones((2, 256), np.float16).view(np.uint8), DType.F16) for name in names]
    for kind in _native.QUANTIZE_TYPES:
        got = written(tmp_path, "llama", kind, tensors, [])
        assert {got[name] for name in names} == {"F32"}


# ---- How ----


def test_the_bytes_do_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    values = np.random.default_rng(3).standard_normal((520, 2048)).astype(np.float32)  # more than two rounds of pieces
    source = write_gguf(tmp_path / "in.gguf", [Tensor("x.weight", values.view(np.uint8), DType.F32)])
    convert(source, "q4_k")
    here = (tmp_path / "in.q4_k.gguf").read_bytes()
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(cores)})
        convert(source, "q4_k")
    finally:
        os.sched_setaffinity(0, cores)
    assert (tmp_path / "in.q4_k.gguf").read_bytes() == here


@pytest.mark.parametrize("name", quant_blocks.LAYOUTS)
def test_a_quantized_file_is_written_as_its_values_would_be(tmp_path: Path, name: str) -> None:
    raw = quant_blocks.random_rows(name, 6, 512, 5, std=0.1)
    floats = np.ascontiguousarray(gguf.quants.dequantize(raw, DType[name]), np.float32)
    source = write_gguf(tmp_path / "a.gguf", [Tensor("x.weight", raw, DType[name])])
    plain = write_gguf(tmp_path / "b.gguf", [Tensor("x.weight", floats.view(np.uint8), DType.F32)])
    for kind in ("q4_k", "q6_k"):
        got, want = (convert(path, kind).tensors[0].data.tobytes() for path in (source, plain))
        assert got == (raw.tobytes() if DType[name].name.lower() == kind else want)


def test_every_type_that_the_command_line_offers_can_be_written(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "in.gguf", tensors_of(["x.weight"]))
    for kind in _native.QUANTIZE_TYPES:
        assert convert(source, kind).tensors[0].tensor_type.name.lower() == kind.removesuffix("_m")
