"""The forward pass in plain numpy: the oracle for logits. Slow and obvious on purpose.

Written from the papers: RMSNorm arXiv:1910.07467, rotary positions arXiv:2104.09864, grouped-query attention
arXiv:2305.13245, SwiGLU arXiv:2002.05202, sliding windows arXiv:2310.06825, experts arXiv:2401.04088, longer contexts
by YaRN arXiv:2309.00071 and LongRoPE arXiv:2402.13753. It shares nothing with the C core: files are read and
dequantized by the `gguf` package, and the whole prompt is computed at once, with a mask instead of a cache.

`Reference` is the llama architecture, with all that a file can add to it by its keys and tensors. What other
architectures do otherwise is in reference_families.py.

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
FLOATS = {gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "BF16")}
_KEEP_BELOW = 1 << 20  # elements; larger tensors are dequantized anew each time, so that real models fit into memory
_TWO_PLANES = tuple(f"attn_{part}.weight" for part in ("q", "k", "v", "qkv"))


class Reference:
    """One model file, evaluated over a whole list of ids.

    window: the number of tokens that a state is made for, which chooses between long and short rotation factors where
    a file has both; the file's context length when None.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        window: int | None = None,
        half_cache: bool = True,
        eight_bit: bool = False,
        precision: type[np.float32] | type[np.float64] = np.float64,
    ) -> None:
        self.reader = gguf.GGUFReader(path)
        self.half_cache, self.eight_bit, self.precision = half_cache, eight_bit, precision
        self.by_name = {tensor.name: tensor for tensor in self.reader.tensors}
        self.kept: dict[str, Array] = {}
        architecture = self.reader.get_field("general.architecture")
        assert architecture is not None
        self.arch = str(architecture.contents())
        self.n_layer = int(self.setting("block_count"))
        self.n_embd = int(self.setting("embedding_length"))
        self.n_head = int(self.setting("attention.head_count"))
        self.n_head_kv = int(self.setting("attention.head_count_kv", self.n_head))
        self.head_size = int(self.setting("attention.key_length", self.n_embd // self.n_head))
        self.rope_dim = int(self.setting("rope.dimension_count", self.head_size))
        self.rope_base = float(self.setting("rope.freq_base", 10000.0))
        self.eps = float(self.setting("attention.layer_norm_rms_epsilon", 1e-5))
        self.n_context = int(self.setting("context_length"))
        self.window = self.n_context if window is None else window
        self.sliding_window = int(self.setting("attention.sliding_window", 0))
        self.n_expert = int(self.setting("expert_count", 0))
        self.n_expert_used = int(self.setting("expert_used_count", 0))
        self.scaling, self.rope_scale = self.rope_scaling()
        self.n_original = int(self.setting("rope.scaling.original_context_length", self.n_context))

    def setting(self, key: str, missing: float | str | None = None) -> Any:
        """A hyper-parameter of the file."""
        field = self.reader.get_field(f"{self.arch}.{key}")
        if field is None:
            assert missing is not None, f"{self.arch}.{key} is missing"
            return missing
        return field.contents()

    def weight(self, name: str) -> Array:
        """A tensor as floats: [out, in] for matrices, [experts, out, in] for those of all experts."""
        if name in self.kept:
            return self.kept[name]
        tensor = self.by_name[name]
        values: Array = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(self.precision)
        if values.size < _KEEP_BELOW:
            self.kept[name] = values
        return values

    # ---- Products and norms

    def linear(self, x: Array, name: str, expert: int | None = None) -> Array:
        """x [T, in] times a matrix [out, in] of the file, or that of one expert, plus its bias if any: [T, out]."""
        if self.eight_bit and self.by_name[name].tensor_type not in FLOATS:
            first = self.to_eight_bit(x)
            x = first + self.to_eight_bit(x - first) if name.endswith(_TWO_PLANES) else first
        weight = self.weight(name) if expert is None else self.weight(name)[expert]
        out: Array = x @ weight.T
        return self.biased(out, name.removesuffix("weight") + "bias")

    def biased(self, x: Array, name: str) -> Array:
        """x [T, out] plus a bias [out], where the file has it."""
        return x + self.weight(name) if name in self.by_name else x

    def to_eight_bit(self, x: Array) -> Array:
        """x [T, in], rounded per 32 values to multiples of a 127th of the largest."""
        blocks = x.reshape(len(x), -1, 32)
        d = np.abs(blocks).max(axis=2, keepdims=True).astype(np.float32) / np.float32(127)
        d = np.where(d == 0, np.float32(1), d).astype(self.precision)
        rounded: Array = np.rint(blocks / d) * d
        return rounded.reshape(x.shape)

    def norm(self, x: Array, name: str) -> Array:
        """RMSNorm over the last axis of x [..., D]."""
        root = np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.precision(self.eps))
        out: Array = x / root * self.weight(name)
        return out

    # ---- Positions

    def rope_scaling(self) -> tuple[str, float]:
        """How positions are stretched, and by how much. Files of older converters name a factor alone: linear."""
        factor = float(self.setting("rope.scaling.factor", self.setting("rope.scale_linear", 1.0)))
        kind = str(self.setting("rope.scaling.type", "linear"))
        if "rope_factors_long.weight" in self.by_name:  # the converter writes them for phi3 without a type
            kind = "longrope"
        return kind, factor

    def factors(self) -> Array | float:
        """[R/2]: what the rotation frequencies are divided by."""
        if self.scaling == "longrope":
            return self.weight(f"rope_factors_{'long' if self.is_long() else 'short'}.weight")
        return self.weight("rope_freqs.weight") if "rope_freqs.weight" in self.by_name else 1.0

    def is_long(self) -> bool:
        """Are the factors for long contexts in force?"""
        return self.window > self.n_original

    def frequencies(self, layer: int) -> Array:
        """[R/2]: by how much each pair of elements turns per position, base^(-2i/R) before any scaling."""
        i = np.arange(self.rope_dim // 2, dtype=np.float64)
        frequency: Array = self.rope_base ** (-2 * i / self.rope_dim) / self.factors()
        if self.scaling == "linear":
            frequency = frequency / self.rope_scale
        if self.scaling == "yarn":
            kept = self.kept_by_yarn()
            frequency = frequency * kept + frequency / self.rope_scale * (1 - kept)
        return frequency

    def kept_by_yarn(self) -> Array:
        """[R/2]: 1 where a frequency stays, 0 where it is divided by the factor, a ramp between (paper, section 3.2).

        The ramp runs over the pairs that turn beta_fast to beta_slow times in the original context, its ends rounded
        outwards to whole pairs, as the paper's own code and transformers do it.
        """

        def pair_that_turns(times: float) -> float:
            turns = np.log(self.n_original / (times * 2 * np.pi)) / (2 * np.log(self.rope_base))
            return float(self.rope_dim * turns)

        fast = float(self.setting("rope.scaling.yarn_beta_fast", 32.0))
        slow = float(self.setting("rope.scaling.yarn_beta_slow", 1.0))
        low = max(np.floor(pair_that_turns(fast)), 0)
        high = min(np.ceil(pair_that_turns(slow)), self.rope_dim - 1)
        ramp = (np.arange(self.rope_dim // 2) - low) / max(high - low, 0.001)
        out: Array = (1 - np.clip(ramp, 0, 1)) * float(self.setting("rope.scaling.yarn_ext_factor", 1.0))
        return out

    def rotation_gain(self, layer: int) -> float:
        """What rotated elements are multiplied by, those of queries and those of keys ("attention factor").

        YaRN: 0.1 ln s + 1 (paper, section 3.4). LongRoPE: sqrt(1 + ln s / ln n_original), s = context / n_original,
        whichever of the two lists of factors is in force.
        """
        stored = float(self.setting("rope.scaling.attn_factor", 0.0))
        if self.scaling == "yarn":
            by_yarn = 1.0 if self.rope_scale <= 1 else 0.1 * np.log(self.rope_scale) + 1.0
            return float(self.setting("rope.scaling.yarn_attn_factor", float(by_yarn))) * (stored or 1.0)
        if self.scaling == "longrope" and not stored:
            s = float(self.setting("rope.scaling.factor", self.n_context / self.n_original))
            return 1.0 if s <= 1 else float(np.sqrt(1 + np.log(s) / np.log(self.n_original)))
        return stored or 1.0

    def angles(self, n: int, layer: int) -> Array:
        """[T, R/2]: position times frequency."""
        return np.outer(np.arange(n), self.frequencies(layer))

    def rotate(self, x: Array, angles: Array, gain: float = 1.0) -> Array:
        """Turn the pairs of elements of each head of x [T, heads, E] by its angle; the rest of a head stays."""
        cosine, sine = gain * np.cos(angles)[:, None, :], gain * np.sin(angles)[:, None, :]
        first, second = self.pairs()
        out = x.copy()
        out[:, :, first] = x[:, :, first] * cosine - x[:, :, second] * sine
        out[:, :, second] = x[:, :, first] * sine + x[:, :, second] * cosine
        return out

    def pairs(self) -> tuple[Array, Array]:
        """Which elements of a head turn together, [R/2] each: here (2i, 2i+1), "interleaved"."""
        return np.arange(0, self.rope_dim, 2), np.arange(1, self.rope_dim, 2)

    def is_rotated(self, layer: int) -> bool:
        """Does this layer know positions?"""
        return True

    def query_angles(self, angles: Array) -> Array:
        """Queries are turned like keys."""
        return angles

    # ---- Attention

    def to_cache(self, x: Array) -> Array:
        """Keys or values as the cache gives them back."""
        return x.astype(np.float16).astype(self.precision) if self.half_cache else x

    def kv_head(self, head: int) -> int:
        """The key/value head that a query head looks at: neighbours share one."""
        return head // (self.n_head // self.n_head_kv)

    def window_of(self, layer: int) -> int:
        """How many keys a query of this layer sees at most, its own included; 0 for all."""
        return self.sliding_window

    def visible(self, n: int, window: int) -> npt.NDArray[np.bool_]:
        """[T, T]: may query i look at key j? Not at later ones; with a window, at those with i - j < window."""
        mask = np.tril(np.ones((n, n), bool))
        return mask & ~np.tril(np.ones((n, n), bool), -window) if window else mask

    def queries_keys_values(self, h: Array, layer: int) -> tuple[Array, Array, Array]:
        """h [T, D] to q [T, H, E], k and v [T, K, E], before any rotation."""
        n, at = len(h), f"blk.{layer}.attn_"
        if at + "qkv.weight" in self.by_name:
            fused = self.linear(h, at + "qkv.weight")
            width_q, width_kv = self.n_head * self.head_size, self.n_head_kv * self.head_size
            q, k, v = np.split(fused, [width_q, width_q + width_kv], axis=1)
        else:
            q, k, v = (self.linear(h, f"{at}{part}.weight") for part in "qkv")
        q = self.head_norm(q.reshape(n, self.n_head, self.head_size), at + "q_norm.weight")
        k = self.head_norm(k.reshape(n, self.n_head_kv, self.head_size), at + "k_norm.weight")
        return q, k, v.reshape(n, self.n_head_kv, self.head_size)

    def head_norm(self, x: Array, name: str) -> Array:
        """RMSNorm of each head of x [T, heads, E], all with one weight [E], where the file has it."""
        return self.norm(x, name) if name in self.by_name else x

    def rotated(self, q: Array, k: Array, layer: int) -> tuple[Array, Array]:
        """Queries and keys with their positions."""
        if not self.is_rotated(layer):
            return q, k
        angles, gain = self.angles(len(q), layer), self.rotation_gain(layer)
        return self.rotate(q, self.query_angles(angles), gain), self.rotate(k, angles, gain)

    def attention(self, x: Array, layer: int) -> Array:
        """What the attention block of a layer computes from its normed input x [T, D]: [T, D]."""
        n = len(x)
        q, k, v = self.queries_keys_values(x, layer)
        q, k = self.rotated(q, k, layer)
        q, k, v = q.astype(self.precision), self.to_cache(k.astype(self.precision)), self.to_cache(v)
        mask = self.visible(n, self.window_of(layer))
        out = np.empty((n, self.n_head, self.head_size), self.precision)
        for head in range(self.n_head):
            scores = q[:, head] @ k[:, self.kv_head(head)].T * self.score_scale()
            scores = np.where(mask, scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            out[:, head] = weights @ v[:, self.kv_head(head)]
        return self.linear(out.reshape(n, -1), f"blk.{layer}.attn_output.weight")

    def score_scale(self) -> Any:
        """Scores are divided by the root of the head size, unless the file has a scale of its own."""
        return self.precision(float(self.setting("attention.scale", 0.0)) or 1 / np.sqrt(self.head_size))

    # ---- Feed-forward

    def feed_forward(self, x: Array, layer: int) -> Array:
        """What the feed-forward block of a layer computes from its normed input x [T, D]: [T, D]."""
        if self.n_expert:
            return self.experts(x, layer)
        at = f"blk.{layer}.ffn_"
        if at + "gate.weight" in self.by_name:
            gate, up = self.linear(x, at + "gate.weight"), self.linear(x, at + "up.weight")
        else:
            gate, up = self.fused_gate_and_up(self.linear(x, at + "up.weight"))
        return self.linear(self.gated(gate, up), at + "down.weight")

    def fused_gate_and_up(self, both: Array) -> tuple[Array, Array]:
        """[T, 2 F] of one matrix for both: the gate is the first half."""
        gate, up = np.split(both, 2, axis=1)
        return gate, up

    def activation(self, x: Array) -> Array:
        """SiLU."""
        out: Array = x / (1 + np.exp(-x))
        return out

    def gated(self, gate: Array, up: Array) -> Array:
        """SwiGLU."""
        return self.activation(gate) * up

    def experts(self, x: Array, layer: int) -> Array:
        """For each row of x [T, D] the weighted sum of the experts that the router likes best for it."""
        scores = self.linear(x, f"blk.{layer}.ffn_gate_inp.weight")
        best = self.chosen(scores)
        shares = self.shares(scores, best)
        out = np.zeros_like(x)
        for expert in range(self.n_expert):
            rows, places = np.nonzero(best == expert)
            if len(rows):
                out[rows] += shares[rows, places, None] * self.expert(x[rows], layer, expert)
        return out

    def chosen(self, scores: Array) -> Array:
        """The experts with the highest scores [T, experts], the lower number first where two are equal: [T, used]."""
        return np.argsort(-scores, axis=1, kind="stable")[:, : self.n_expert_used]

    def shares(self, scores: Array, best: Array) -> Array:
        """Softmax over the scores of the chosen experts alone: [T, used]."""
        kept = np.take_along_axis(scores, best, axis=1)
        weights = np.exp(kept - kept.max(axis=1, keepdims=True))
        out: Array = weights / weights.sum(axis=1, keepdims=True)
        return out

    def expert(self, x: Array, layer: int, expert: int) -> Array:
        """One expert's SwiGLU of x [rows, D]; the experts' matrices are one tensor, in older files one each."""

        def product(x: Array, kind: str) -> Array:
            merged = f"blk.{layer}.ffn_{kind}_exps.weight"
            if merged in self.by_name:
                return self.linear(x, merged, expert)
            return self.linear(x, f"blk.{layer}.ffn_{kind}.{expert}.weight")

        return product(self.gated(product(x, "gate"), product(x, "up")), "down")

    # ---- The whole

    def embedding(self, ids: Sequence[int] | Array) -> Array:
        """[T, D]: the rows of the ids."""
        tensor = self.by_name["token_embd.weight"]
        return gguf.quants.dequantize(tensor.data[np.asarray(ids)], tensor.tensor_type).astype(self.precision)

    def block(self, x: Array, layer: int) -> Array:
        """One layer: the residual stream x [T, D] before it to that after it."""
        at = f"blk.{layer}."
        x = x + self.attention(self.norm(x, at + "attn_norm.weight"), layer)
        return x + self.feed_forward(self.norm(x, at + "ffn_norm.weight"), layer)

    def logits(self, ids: Sequence[int] | Array) -> Array:
        """The logits after each id: [T, V]."""
        x = self.embedding(ids)
        for layer in range(self.n_layer):
            x = self.block(x, layer)
        head = "output.weight" if "output.weight" in self.by_name else "token_embd.weight"
        return self.capped(self.linear(self.norm(x, "output_norm.weight"), head))

    def capped(self, logits: Array) -> Array:
        """Logits bent into (-cap, cap) by tanh, where the file has a cap."""
        cap = float(self.setting("final_logit_softcapping", 0.0))
        return cap * np.tanh(logits / cap) if cap else logits


# ---- What the tests measure with it ----


def random_ids(n: int, seed: int, n_vocab: int = 259) -> list[int]:
    """Ids for a tiny model."""
    return [int(token) for token in np.random.default_rng(seed).integers(0, n_vocab, n)]


def rms(values: Array) -> float:
    """The root of the mean of the squares."""
    return float(np.sqrt(np.mean(np.square(values))))


def worst(got: Array, want: Array) -> float:
    """The largest difference in units of the logits' standard deviation."""
    return float(np.abs(got - want).max() / want.std())
