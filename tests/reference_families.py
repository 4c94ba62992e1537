"""What each architecture does otherwise than llama, in plain numpy: one class per name, and the class of a file.

Facts from the models' own code in the transformers library (modeling_qwen2, modeling_qwen3, modeling_phi3,
modeling_gemma3, modeling_smollm3) and, for the names of keys and tensors and for what a converter changes in the
weights, from llama.cpp's conversion script. Each of these classes, in variants like those of family_variants.py, was
compared once by hand with that code of transformers, given the same random weights and all computed in float64: over
330 tokens no logit differs by more than 1e-6 of the logits' deviation.

The one thing to know first: biases, per-head norms, fused matrices, experts and the kinds of rotation scaling are read
off the file's keys and tensors by reference_forward.py. Here stands only what a file does not say.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from reference_forward import Array, Reference


class Llama(Reference):
    """SmolLM2, Llama, Mistral, Mixtral."""


class HalfSplit(Reference):
    """Rotation turns element i of a head with element i + R/2, the convention of most newer models."""

    def pairs(self) -> tuple[Array, Array]:
        half = self.rope_dim // 2
        return np.arange(half), np.arange(half, 2 * half)


class Qwen2(HalfSplit):
    """Biases on queries, keys and values."""


class Qwen3(HalfSplit):
    """Norms of each query and key head before rotation."""


class Phi3(HalfSplit):
    """Fused matrices, long and short rotation factors, partial rotation."""


class Gemma3(HalfSplit):
    """Norms before and after each block, five local layers for each global one, GELU.

    Norm weights are stored as 1 + w, so they are read as they are.
    """

    def is_local(self, layer: int) -> bool:
        """Five of six layers see a window only, the last of each six all; a pattern in the file says otherwise."""
        if not self.sliding_window:
            return False
        pattern = self.setting("attention.sliding_window_pattern", 6)
        if isinstance(pattern, list):
            return bool(pattern[layer])
        return bool(pattern == 0 or layer % pattern < pattern - 1)

    def window_of(self, layer: int) -> int:
        return self.sliding_window if self.is_local(layer) else 0

    def frequencies(self, layer: int) -> Array:
        """Local layers have a base of their own and are never stretched."""
        if not self.is_local(layer):
            return super().frequencies(layer)
        i = np.arange(self.rope_dim // 2, dtype=np.float64)
        out: Array = self.local_base() ** (-2 * i / self.rope_dim)
        return out

    def local_base(self) -> float:
        return float(self.setting("rope.freq_base_swa", 10000.0))

    def rotation_gain(self, layer: int) -> float:
        return 1.0 if self.is_local(layer) else super().rotation_gain(layer)

    def score_scale(self) -> Any:
        """1 / sqrt(E), but in the model of 62 layers (27B) 1 / sqrt(D / H), which no key says."""
        size = self.n_embd // self.n_head if self.n_layer == 62 else self.head_size
        return self.precision(1 / np.sqrt(size))

    def activation(self, x: Array) -> Array:
        """GELU in its approximation by tanh, arXiv:1606.08415."""
        out: Array = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        return out

    def embedding(self, ids: Sequence[int] | Array) -> Array:
        out: Array = super().embedding(ids) * self.embedding_scale()
        return out

    def embedding_scale(self) -> Any:
        return self.precision(np.sqrt(self.n_embd))

    def block(self, x: Array, layer: int) -> Array:
        at = f"blk.{layer}."
        added = self.attention(self.norm(x, at + "attn_norm.weight"), layer)
        x = x + self.norm(added, at + "post_attention_norm.weight")
        added = self.feed_forward(self.norm(x, at + "ffn_norm.weight"), layer)
        return x + self.norm(added, at + "post_ffw_norm.weight")


class SmolLM3(Reference):
    """Every fourth layer knows no positions. Pairs are interleaved: the converter reorders rows as for llama."""

    def is_rotated(self, layer: int) -> bool:
        return (layer + 1) % 4 != 0


FAMILIES: dict[str, type[Reference]] = {
    "llama": Llama,
    "qwen2": Qwen2,
    "qwen3": Qwen3,
    "phi3": Phi3,
    "gemma3": Gemma3,
    "smollm3": SmolLM3,
}
"""The class for each `general.architecture`."""


def family_of(path: str | Path) -> type[Reference]:
    """The class for a file."""
    field = gguf.GGUFReader(path).get_field("general.architecture")
    assert field is not None
    return FAMILIES[str(field.contents())]


def with_wrong_step(family: type[Reference], wrong: type) -> type[Reference]:
    """A family with one step replaced: `wrong` is a class that holds just the method, which may call super()."""
    return type(wrong.__name__, (wrong, family), {})
