"""The llama architecture in plain numpy: the oracle for logits. Slow and obvious on purpose.

Written from the papers: RMSNorm arXiv:1910.07467, rotary positions arXiv:2104.09864, grouped-query attention
arXiv:2305.13245, SwiGLU arXiv:2002.05202. It shares nothing with the C core: files are read and dequantized by the
`gguf` package, and the whole prompt is computed at once, with a mask instead of a cache.

Three roundings of the core can be switched on, each written from its contract, not from its code:

- `half_cache`: keys (after rotation) and values are rounded to 16-bit floats, as the cache holds them.
- `eight_bit`: the input of a product with a quantized matrix is rounded to 8 bits, per 32 values with the scale
  d = max|x| / 127; that of queries, keys and values is the sum of two such roundings, the second of what the first
  left. Products with float matrices take their input as it is.
- `precision`: float64, in which its own rounding is out of sight, or float32.

The one thing to know first: each step is a method of its own, so that a test can replace one by a wrong one and see
that its bound notices.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
QUANTIZED = {gguf.GGMLQuantizationType[name] for name in ("Q8_0", "Q4_0", "Q4_1")}
_KEEP_BELOW = 1 << 20  # elements; larger tensors are dequantized anew each time, so that real models fit into memory


class Reference:
    """One model file, evaluated over a whole list of ids."""

    def __init__(
        self,
        path: str | Path,
        *,
        half_cache: bool = True,
        eight_bit: bool = False,
        precision: type[np.float32] | type[np.float64] = np.float64,
    ) -> None:
        self.reader = gguf.GGUFReader(path)
        self.half_cache, self.eight_bit, self.precision = half_cache, eight_bit, precision
        self.by_name = {tensor.name: tensor for tensor in self.reader.tensors}
        self.kept: dict[str, Array] = {}
        self.n_layer = int(self.setting("block_count"))
        self.n_embd = int(self.setting("embedding_length"))
        self.n_head = int(self.setting("attention.head_count"))
        self.n_head_kv = int(self.setting("attention.head_count_kv", self.n_head))
        self.head_size = int(self.setting("attention.key_length", self.n_embd // self.n_head))
        self.rope_dim = int(self.setting("rope.dimension_count", self.head_size))
        self.rope_base = float(self.setting("rope.freq_base", 10000.0))
        self.eps = float(self.setting("attention.layer_norm_rms_epsilon", 1e-5))
        linear = self.reader.get_field("llama.rope.scaling.type")
        self.rope_scale = 1.0
        if linear is not None and linear.contents() == "linear":
            self.rope_scale = float(self.setting("rope.scaling.factor", 1.0))

    def setting(self, key: str, missing: float | None = None) -> Any:
        """A hyper-parameter of the file."""
        field = self.reader.get_field(f"llama.{key}")
        if field is None:
            assert missing is not None, f"llama.{key} is missing"
            return missing
        return field.contents()

    def weight(self, name: str) -> Array:
        """A tensor as floats: [out, in] for matrices."""
        if name in self.kept:
            return self.kept[name]
        tensor = self.by_name[name]
        values: Array = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(self.precision)
        if values.size < _KEEP_BELOW:
            self.kept[name] = values
        return values

    # ---- The steps

    def linear(self, x: Array, name: str) -> Array:
        """x [T, in] times a matrix [out, in] of the file: [T, out]."""
        if self.eight_bit and self.by_name[name].tensor_type in QUANTIZED:
            first = self.to_eight_bit(x)
            in_two_planes = name.endswith(("attn_q.weight", "attn_k.weight", "attn_v.weight"))
            x = first + self.to_eight_bit(x - first) if in_two_planes else first
        return x @ self.weight(name).T

    def to_eight_bit(self, x: Array) -> Array:
        """x [T, in], rounded per 32 values to multiples of a 127th of the largest."""
        blocks = x.reshape(len(x), -1, 32)
        d = np.abs(blocks).max(axis=2, keepdims=True).astype(np.float32) / np.float32(127)
        d = np.where(d == 0, np.float32(1), d).astype(self.precision)
        rounded: Array = np.rint(blocks / d) * d
        return rounded.reshape(x.shape)

    def norm(self, x: Array, name: str) -> Array:
        """RMSNorm of each row of x [T, D]."""
        root = np.sqrt((x * x).mean(axis=1, keepdims=True) + self.precision(self.eps))
        out: Array = x / root * self.weight(name)
        return out

    def angles(self, n: int) -> Array:
        """[T, R/2]: position times base^(-2i/R), divided by the file's factors and its linear scale."""
        i = np.arange(self.rope_dim // 2, dtype=np.float64)
        frequency = self.rope_base ** (-2 * i / self.rope_dim)
        if "rope_freqs.weight" in self.by_name:
            frequency = frequency / self.weight("rope_freqs.weight").astype(np.float64)
        return np.outer(np.arange(n), frequency) / self.rope_scale

    def rotate(self, x: Array, angles: Array) -> Array:
        """Turn the pairs (2i, 2i+1) of each head of x [T, heads, E] by its angle; the rest of a head stays."""
        cosine, sine = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
        a, b = x[:, :, 0 : self.rope_dim : 2], x[:, :, 1 : self.rope_dim : 2]
        out = x.copy()
        out[:, :, 0 : self.rope_dim : 2] = a * cosine - b * sine
        out[:, :, 1 : self.rope_dim : 2] = a * sine + b * cosine
        return out

    def to_cache(self, x: Array) -> Array:
        """Keys or values as the cache gives them back."""
        return x.astype(np.float16).astype(self.precision) if self.half_cache else x

    def kv_head(self, head: int) -> int:
        """The key/value head that a query head looks at: neighbours share one."""
        return head // (self.n_head // self.n_head_kv)

    def visible(self, n: int) -> npt.NDArray[np.bool_]:
        """[T, T]: may query i look at key j?"""
        return np.tril(np.ones((n, n), bool))

    def attention(self, x: Array, layer: int) -> Array:
        """What the attention block of a layer adds to the residual stream [T, D]."""
        n, at = len(x), f"blk.{layer}.attn_"
        h = self.norm(x, at + "norm.weight")
        q = self.linear(h, at + "q.weight").reshape(n, self.n_head, self.head_size)
        k = self.linear(h, at + "k.weight").reshape(n, self.n_head_kv, self.head_size)
        v = self.linear(h, at + "v.weight").reshape(n, self.n_head_kv, self.head_size)
        angles = self.angles(n)
        q = self.rotate(q, self.query_angles(angles)).astype(self.precision)
        k = self.to_cache(self.rotate(k, angles).astype(self.precision))
        v = self.to_cache(v)
        out = np.empty((n, self.n_head, self.head_size), self.precision)
        for head in range(self.n_head):
            scores = q[:, head] @ k[:, self.kv_head(head)].T * self.score_scale()
            scores = np.where(self.visible(n), scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            out[:, head] = weights @ v[:, self.kv_head(head)]
        return self.linear(out.reshape(n, -1), at + "output.weight")

    def query_angles(self, angles: Array) -> Array:
        """Queries are turned like keys."""
        return angles

    def score_scale(self) -> Any:
        """Scores are divided by the root of the head size."""
        return self.precision(1 / np.sqrt(self.head_size))

    def feed_forward(self, x: Array, layer: int) -> Array:
        """What the feed-forward block of a layer adds to the residual stream [T, D]."""
        at = f"blk.{layer}.ffn_"
        h = self.norm(x, at + "norm.weight")
        gate, up = self.linear(h, at + "gate.weight"), self.linear(h, at + "up.weight")
        return self.linear(self.gated(gate, up), at + "down.weight")

    def gated(self, gate: Array, up: Array) -> Array:
        """SwiGLU."""
        out: Array = gate / (1 + np.exp(-gate)) * up
        return out

    def logits(self, ids: Sequence[int] | Array) -> Array:
        """The logits after each id: [T, V]."""
        tensor = self.by_name["token_embd.weight"]
        rows = gguf.quants.dequantize(tensor.data[np.asarray(ids)], tensor.tensor_type)
        x = rows.astype(self.precision)
        for layer in range(self.n_layer):
            x = x + self.attention(x, layer)
            x = x + self.feed_forward(x, layer)
        head = "output.weight" if "output.weight" in self.by_name else "token_embd.weight"
        return self.linear(self.norm(x, "output_norm.weight"), head)
