"""Writes small random models of every architecture that the core knows, with every switch that their files have.

Like tiny_gguf.py, which writes the llama family's plain form and the vocabulary: a few hundred kilobytes, the same
bytes for the same arguments, scaled so that attention looks at several tokens and logits have a deviation of about two.
Names of keys and tensors are those of llama.cpp's conversion script (gguf-py/gguf/constants.py there).

The one thing to know first: matrices are drawn as floats and then written in an element type. Types that the `gguf`
package cannot write are drawn as random blocks of the same deviation instead, so their values are others.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from quant_blocks import random_rows
from tiny_gguf import (
    CHATML,
    DType,
    DTypeOf,
    Floats,
    Raw,
    Tensor,
    Value,
    VType,
    array_of,
    quantized,
    tokenizer_metadata,
    write_file,
)

WRITABLE = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
"""Element types that the `gguf` package writes."""
BLOCKS_OF_256 = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
"""Element types whose matrices need widths that are multiples of 256."""
TYPES = (*WRITABLE, "IQ4_NL", *BLOCKS_OF_256)
"""Every element type that a matrix may have."""


def q4_k_m(name: str) -> str:
    """The mix of everyday files: values and what leaves a feed-forward block in 6 bits, the rest in 4."""
    return "Q6_K" if "attn_v." in name or "attn_qkv." in name or "ffn_down" in name or "token_embd" in name else "Q4_K"


@dataclass(frozen=True)
class Shape:
    """What a model is made of. None, zero and False leave a key or a tensor out."""

    arch: str = "llama"
    n_layer: int = 2
    n_embd: int = 64
    n_head: int = 4
    n_head_kv: int = 2
    head_size: int | None = None  # written as key_length and value_length
    n_ff: int = 96
    n_ctx: int = 1024
    n_vocab: int = 301
    tied: bool = True
    rms_eps: float = 1e-5
    fused: bool = False  # one matrix for queries, keys and values, one for gate and up
    biases: bool = False  # on queries, keys and values
    output_biases: bool = False  # on what attention adds
    head_norms: bool = False  # of each query and key head
    post_norms: bool = False  # of what a block adds
    scaled_embedding: bool = False  # the model multiplies embeddings by sqrt(D)
    attention_scale: float | None = None
    logit_cap: float | None = None  # written as final_logit_softcapping
    sliding_window: int | None = None
    pattern: int | tuple[bool, ...] | None = None  # which layers have the window
    rope_base: float = 10000.0
    local_base: float | None = None
    rope_dim: int | None = None
    scaling: tuple[tuple[str, str | float | int], ...] = ()  # keys below rope.scaling.
    rope_factors: tuple[float, ...] | None = None
    long_factors: tuple[float, ...] | None = None
    short_factors: tuple[float, ...] | None = None
    n_expert: int = 0
    n_expert_used: int = 0
    merged: bool = True  # one tensor for all experts of a kind, not one each

    @property
    def head(self) -> int:
        """Elements of a head."""
        return self.head_size if self.head_size is not None else self.n_embd // self.n_head


SHAPES: dict[str, Shape] = {
    "llama": Shape(),
    "qwen2": Shape("qwen2", biases=True, rms_eps=1e-6),
    "qwen3": Shape("qwen3", head_norms=True, head_size=24, tied=False, rms_eps=1e-6, rope_base=1e6),
    "phi3": Shape("phi3", fused=True, tied=False),
    "gemma3": Shape(
        "gemma3", n_layer=7, head_norms=True, head_size=24, post_norms=True, scaled_embedding=True, rms_eps=1e-6,
        sliding_window=100, rope_base=1e6,
    ),
    "smollm3": Shape("smollm3", n_layer=5),
}  # fmt: skip
"""The plain form of each architecture."""


# ---- Metadata


def _value(value: Any) -> tuple[Any, VType]:
    kinds = {bool: VType.BOOL, int: VType.UINT32, float: VType.FLOAT32, str: VType.STRING}
    return value, kinds[type(value)]


def _metadata(shape: Shape) -> dict[str, Value]:
    """The hyper-parameters as the conversion script names them."""
    values: dict[str, Any] = {
        "block_count": shape.n_layer,
        "context_length": shape.n_ctx,
        "embedding_length": shape.n_embd,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv,
        "attention.layer_norm_rms_epsilon": shape.rms_eps,
        "attention.key_length": shape.head_size,
        "attention.value_length": shape.head_size,
        "attention.scale": shape.attention_scale,
        "attention.sliding_window": shape.sliding_window,
        "final_logit_softcapping": shape.logit_cap,
        "rope.freq_base": shape.rope_base,
        "rope.freq_base_swa": shape.local_base,
        "rope.dimension_count": shape.rope_dim if shape.rope_dim is not None else shape.head,
        "expert_count": shape.n_expert or None,
        "expert_used_count": shape.n_expert_used or None,
        **{f"rope.scaling.{key}": value for key, value in shape.scaling},
    }
    entries: dict[str, Value] = {
        f"{shape.arch}.{key}": _value(value) for key, value in values.items() if value is not None
    }
    key = f"{shape.arch}.attention.sliding_window_pattern"
    if isinstance(shape.pattern, tuple):
        entries[key] = array_of(VType.BOOL, shape.pattern)
    elif shape.pattern is not None:
        entries[key] = _value(shape.pattern)
    return entries


# ---- Weights


class _Draw:
    """Random weights; matrices are [out, in] and turn unit variance into about unit variance."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def matrix(self, rows: int, columns: int, gain: float = 1.0) -> Floats:
        out: Floats = (self.rng.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)
        return out

    def norm(self, size: int, mean: float = 1.0) -> Floats:
        out: Floats = (mean * (1 + 0.2 * self.rng.standard_normal(size))).astype(np.float32)
        return out

    def bias(self, size: int) -> Floats:
        out: Floats = self.rng.standard_normal(size).astype(np.float32)
        return out


def _attention(shape: Shape, draw: _Draw, at: str) -> dict[str, Floats]:
    """A layer's attention; scores have a deviation of about two."""
    width_q, width_kv = shape.n_head * shape.head, shape.n_head_kv * shape.head
    parts = {
        "q": draw.matrix(width_q, shape.n_embd, 1.5),
        "k": draw.matrix(width_kv, shape.n_embd, 1.5),
        "v": draw.matrix(width_kv, shape.n_embd),
    }
    out = {at + "attn_norm.weight": draw.norm(shape.n_embd)}
    if shape.fused:
        out[at + "attn_qkv.weight"] = np.concatenate(list(parts.values()))
    else:
        out.update({f"{at}attn_{part}.weight": values for part, values in parts.items()})
    if shape.biases:
        out.update({f"{at}attn_{part}.bias": draw.bias(len(values)) for part, values in parts.items()})
    if shape.head_norms:
        out.update({f"{at}attn_{part}_norm.weight": draw.norm(shape.head, 1.4) for part in "qk"})
    out[at + "attn_output.weight"] = draw.matrix(shape.n_embd, width_q)
    if shape.output_biases:
        out[at + "attn_output.bias"] = draw.bias(shape.n_embd)
    if shape.post_norms:
        out[at + "post_attention_norm.weight"] = draw.norm(shape.n_embd)
    return out


def _feed_forward(shape: Shape, draw: _Draw, at: str) -> dict[str, Floats]:
    """A layer's feed-forward block, or its router and experts."""
    out = {at + "ffn_norm.weight": draw.norm(shape.n_embd)}
    one = [
        {
            "gate": draw.matrix(shape.n_ff, shape.n_embd, 1.5),
            "up": draw.matrix(shape.n_ff, shape.n_embd, 1.5),
            "down": draw.matrix(shape.n_embd, shape.n_ff),
        }
        for _ in range(max(shape.n_expert, 1))
    ]
    if shape.n_expert:
        out[at + "ffn_gate_inp.weight"] = draw.matrix(shape.n_expert, shape.n_embd, 1.5)
        for kind in ("gate", "up", "down"):
            if shape.merged:
                out[f"{at}ffn_{kind}_exps.weight"] = np.stack([expert[kind] for expert in one])
            else:
                out.update({f"{at}ffn_{kind}.{number}.weight": expert[kind] for number, expert in enumerate(one)})
    elif shape.fused:
        out[at + "ffn_up.weight"] = np.concatenate([one[0]["gate"], one[0]["up"]])
        out[at + "ffn_down.weight"] = one[0]["down"]
    else:
        out.update({f"{at}ffn_{kind}.weight": values for kind, values in one[0].items()})
    if shape.post_norms:
        out[at + "post_ffw_norm.weight"] = draw.norm(shape.n_embd)
    return out


def _weights(shape: Shape, seed: int) -> dict[str, Floats]:
    """Every weight by name."""
    draw = _Draw(seed)
    out = {"token_embd.weight": draw.matrix(shape.n_vocab, shape.n_embd, 2.0)}
    out["output_norm.weight"] = draw.norm(shape.n_embd)
    if not shape.tied:
        out["output.weight"] = draw.matrix(shape.n_vocab, shape.n_embd, 2.0)
        if shape.scaled_embedding:
            out["token_embd.weight"] /= 2
    for name, values in {
        "rope_freqs": shape.rope_factors, "rope_factors_long": shape.long_factors,
        "rope_factors_short": shape.short_factors,
    }.items():  # fmt: skip
        if values is not None:
            out[name + ".weight"] = np.asarray(values, np.float32)
    for layer in range(shape.n_layer):
        out.update(_attention(shape, draw, f"blk.{layer}."))
        out.update(_feed_forward(shape, draw, f"blk.{layer}."))
    return out


def encoded(values: Floats, dtype: str, seed: int = 0) -> Raw:
    """A matrix [..., rows, columns] as a file holds it in an element type; see the module's last sentence."""
    if dtype in WRITABLE:
        return quantized(values, dtype)
    rows = random_rows(dtype, values.size // values.shape[-1], values.shape[-1], seed, float(values.std()))
    return Raw(rows.reshape(*values.shape[:-1], -1), DType.__members__[dtype])


def _kept_float(name: str) -> bool:
    """Routers are never quantized by the tools of the field."""
    return name.endswith("ffn_gate_inp.weight")


# ---- The file


def write_family(
    path: str | Path,
    arch: str,
    *,
    dtype: DTypeOf = "F32",
    seed: int = 0,
    template: str | None = CHATML,
    metadata: Mapping[str, Value] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
    **changes: Any,
) -> str:
    """Write a random model of an architecture and return its path.

    dtype: the element type of the matrices, or a function from a tensor's name to it. Vectors and routers are F32.
    changes: fields of Shape that differ from the architecture's plain form.
    metadata, tensors: replace or add entries by name, or leave them out with OMIT.
    """
    shape = replace(SHAPES[arch], **changes)
    contents: dict[str, Tensor] = {}
    for name, values in _weights(shape, seed).items():
        kind = "F32" if values.ndim == 1 or _kept_float(name) else dtype(name) if callable(dtype) else dtype
        contents[name] = encoded(values, kind, seed + zlib.crc32(name.encode()))
    entries = {**_metadata(shape), **tokenizer_metadata(shape.n_vocab, template)}
    return write_file(path, arch, {**entries, **(metadata or {})}, {**contents, **(tensors or {})})


def tensor_bytes(path: str | Path) -> int:
    """The bytes that a file's tensors take."""
    return sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors)


def spread(low: float, high: float, n: int) -> tuple[float, ...]:
    """n factors from low to high in equal ratios: what lists of rotation factors look like."""
    return tuple(float(np.float32(value)) for value in np.geomspace(low, high, n))


def mixed(types: Sequence[str]) -> DTypeOf:
    """A choice of types by name, the same one each time, that uses many of them within a file."""
    return lambda name: types[zlib.crc32(name.encode()) % len(types)]
