"""The models that every architecture is tested with, and the wrong steps that such a test must notice.

A variant is a file of tiny_families.py and the window that it is evaluated for. What a wrong implementation would
confuse differs between variants or is done wrongly by one of the classes below.

The one thing to know first: a wrong step is a class that holds one method of Reference, to be put before the class of
the variant's architecture with reference_families.with_wrong_step; hence the calls of super() without a base.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from reference_families import family_of
from reference_forward import Reference
from tiny_families import mixed, spread, write_family

LINEAR = (("type", "linear"), ("factor", 8.0))
YARN = (("type", "yarn"), ("factor", 4.0), ("original_context_length", 256))
YARN_ITS_OWN_WAY = (
    ("type", "yarn"), ("factor", 8.0), ("original_context_length", 512), ("yarn_beta_fast", 7.0),
    ("yarn_beta_slow", 2.0), ("yarn_attn_factor", 1.3),
)  # fmt: skip
ORIGINAL = ("original_context_length", 400)
LISTS: dict[str, Any] = {"long_factors": spread(1.0, 30.0, 8), "short_factors": spread(1.0, 1.5, 8)}
PARTIAL: dict[str, Any] = {"rope_dim": 12, "long_factors": spread(1.0, 30.0, 6), "short_factors": spread(1.0, 1.5, 6)}
EXPERTS: dict[str, Any] = {"n_expert": 6, "n_expert_used": 2}


@dataclass(frozen=True)
class Variant:
    """A model, and what its states are made for (None: its whole context)."""

    arch: str
    changes: dict[str, Any] = field(default_factory=dict)
    window: int | None = None

    def write(self, path: Path, **more: Any) -> str:
        return write_family(path, self.arch, **{**self.changes, **more})

    def reference(self, path: str, **switches: Any) -> Reference:
        return family_of(path)(path, window=self.window, **switches)


VARIANTS: dict[str, Variant] = {
    "llama": Variant("llama"),
    "llama, heads wider than the model": Variant("llama", {"head_size": 24, "tied": False}),
    "llama, rotation factors": Variant("llama", {"rope_factors": (1.0, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 8.0)}),
    "llama, linear": Variant("llama", {"scaling": LINEAR}),
    "llama, a factor but no scaling": Variant("llama", {"scaling": (("type", "none"), ("factor", 8.0))}),
    "llama, yarn": Variant("llama", {"scaling": YARN}),
    "llama, yarn its own way": Variant("llama", {"scaling": YARN_ITS_OWN_WAY}),
    "llama, longrope": Variant("llama", {"scaling": (("type", "longrope"), ORIGINAL), **LISTS}),
    "llama, window of 100": Variant("llama", {"sliding_window": 100}),
    "llama, window of 130": Variant("llama", {"sliding_window": 130}),
    "llama, window of 1": Variant("llama", {"sliding_window": 1}),
    "llama, a scale of its own": Variant("llama", {"attention_scale": 0.4}),
    "llama, biases": Variant("llama", {"biases": True, "output_biases": True}),
    "llama, experts": Variant("llama", EXPERTS),
    "llama, experts in tensors of their own": Variant("llama", {**EXPERTS, "merged": False}),
    "llama, all of five experts": Variant("llama", {"n_expert": 5, "n_expert_used": 5, "sliding_window": 100}),
    "qwen2": Variant("qwen2"),
    "qwen2, an output matrix of its own": Variant("qwen2", {"tied": False, "n_head_kv": 1}),
    "qwen2, yarn": Variant("qwen2", {"scaling": YARN}),
    "qwen3": Variant("qwen3"),
    "qwen3, tied": Variant("qwen3", {"tied": True, "n_head_kv": 4, "head_size": 32}),
    "phi3": Variant("phi3"),
    "phi3, window of 100": Variant("phi3", {"sliding_window": 100}),
    "phi3, long": Variant("phi3", {"scaling": (ORIGINAL,), **LISTS}),
    "phi3, just long": Variant("phi3", {"scaling": (ORIGINAL,), **LISTS}, 401),
    "phi3, short": Variant("phi3", {"scaling": (ORIGINAL,), **LISTS}, 400),
    "phi3, its own attention factor": Variant("phi3", {"scaling": (ORIGINAL, ("attn_factor", 1.4)), **LISTS}),
    "phi3, partly rotated": Variant("phi3", {"scaling": (ORIGINAL,), "tied": True, **PARTIAL}),
    "gemma3": Variant("gemma3"),
    "gemma3, shallow": Variant("gemma3", {"n_layer": 2, "pattern": 2}),
    "gemma3, shallow and linear": Variant("gemma3", {"n_layer": 2, "pattern": 2, "scaling": LINEAR}),
    "gemma3, shallow without a window": Variant("gemma3", {"n_layer": 2, "sliding_window": None}),
    "gemma3, capped logits": Variant("gemma3", {"n_layer": 2, "pattern": 2, "logit_cap": 3.0}),
    "gemma3, linear": Variant("gemma3", {"scaling": LINEAR, "sliding_window": 130}),
    "gemma3, 13 layers": Variant("gemma3", {"n_layer": 13, "tied": False}),
    "gemma3, a local base of its own": Variant("gemma3", {"n_layer": 2, "pattern": 2, "local_base": 500.0}),
    "gemma3, 62 layers": Variant("gemma3", {"n_layer": 62, "n_embd": 32, "n_head": 2, "n_head_kv": 1, "n_ff": 32}),
    "smollm3": Variant("smollm3", {"n_layer": 4}),
    "smollm3, yarn": Variant("smollm3", {"n_layer": 4, "scaling": YARN}),
    "smollm3, nine layers": Variant("smollm3", {"n_layer": 9, "tied": False}),
}

SMALL = mixed(("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL"))
WIDE = mixed(("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "Q8_0"))
SHAPE: dict[str, Any] = {"n_vocab": 301, "dtype": SMALL}
MIXED: dict[str, Variant] = {
    "llama": Variant("llama", {**SHAPE, "sliding_window": 130, "scaling": YARN}),
    "experts": Variant("llama", {**SHAPE, "n_expert": 6, "n_expert_used": 2, "sliding_window": 100}),
    "experts of their own": Variant(
        "llama", {**SHAPE, "n_expert": 3, "n_expert_used": 3, "merged": False, "n_layer": 1}
    ),
    "qwen2": Variant("qwen2", SHAPE),
    "qwen3": Variant("qwen3", SHAPE),
    "phi3": Variant("phi3", {**SHAPE, "sliding_window": 100, "scaling": (ORIGINAL,), **PARTIAL}, 400),
    "gemma3": Variant("gemma3", SHAPE),
    "smollm3": Variant("smollm3", SHAPE),
    "types of 256": Variant("gemma3", {
        "n_vocab": 301, "dtype": WIDE, "n_embd": 256, "n_ff": 256, "head_size": 64, "n_layer": 2,
        "pattern": 2,
    }),
}  # fmt: skip
"""One of each architecture in a mix of element types: what must give the same bits however it is evaluated."""

ONE_TYPE: dict[str, Any] = {"n_vocab": 301, "n_embd": 256, "n_ff": 256, "head_size": 64, "n_layer": 1, "tied": False}
"""The shape of llama models in one element type each, any of them."""


# ---- Wrong steps: positions


class OtherPairs:
    def pairs(self: Any) -> Any:
        if super().pairs()[0][1] == 1:  # type: ignore[misc]
            return np.arange(0, self.rope_dim, 2), np.arange(1, self.rope_dim, 2)
        return np.arange(self.rope_dim // 2), np.arange(self.rope_dim // 2, self.rope_dim)


class PairsAcrossTheWholeHead:
    """Partial rotation whose halves are those of the head."""

    def pairs(self: Any) -> Any:
        return np.arange(self.rope_dim // 2), np.arange(self.rope_dim // 2) + self.head_size // 2


class WindowOneMore:
    def visible(self: Any, n: int, window: int) -> Any:
        return super().visible(n, window + 1 if window else 0)  # type: ignore[misc]


class WindowOneLess:
    def visible(self: Any, n: int, window: int) -> Any:
        return super().visible(n, window - 1 if window else 0)  # type: ignore[misc]


class NoWindow:
    def visible(self: Any, n: int, window: int) -> Any:
        return super().visible(n, 0)  # type: ignore[misc]


class FactorsMultiplied:
    def factors(self: Any) -> Any:
        return 1 / super().factors()  # type: ignore[misc]


class FactorsLeftOut:
    def factors(self: Any) -> Any:
        return 1.0


class OtherFactors:
    def is_long(self: Any) -> bool:
        return not super().is_long()  # type: ignore[misc]


class NoGain:
    def rotation_gain(self: Any, layer: int) -> float:
        return 1.0


class GainWhenLongOnly:
    def rotation_gain(self: Any, layer: int) -> float:
        return float(super().rotation_gain(layer)) if self.is_long() else 1.0  # type: ignore[misc]


class GainOfYarn:
    """LongRoPE's factor computed as YaRN's."""

    def rotation_gain(self: Any, layer: int) -> float:
        return 0.1 * float(np.log(self.n_context / self.n_original)) + 1.0


class GainOfQueriesOnly:
    def rotated(self: Any, q: Any, k: Any, layer: int) -> Any:
        q, k = super().rotated(q, k, layer)  # type: ignore[misc]
        k[:, :, : self.rope_dim] /= self.rotation_gain(layer)
        return q, k


class GainOfWholeHeads:
    def rotate(self: Any, x: Any, angles: Any, gain: float = 1.0) -> Any:
        return super().rotate(x, angles) * gain  # type: ignore[misc]


class NotStretched:
    def rope_scaling(self: Any) -> Any:
        return "none", 1.0


class StretchedEvenly:
    def kept_by_yarn(self: Any) -> Any:
        return np.zeros(self.rope_dim // 2)


class RampTurnedAround:
    def kept_by_yarn(self: Any) -> Any:
        return 1 - super().kept_by_yarn()  # type: ignore[misc]


class RampOfTheNewContext:
    def kept_by_yarn(self: Any) -> Any:
        self.n_original = self.n_context
        return super().kept_by_yarn()  # type: ignore[misc]


class RampOfThePaperAlone:
    """beta_fast 32 and beta_slow 1, whatever the file says."""

    def setting(self: Any, key: str, missing: Any = None) -> Any:
        return missing if "beta" in key else super().setting(key, missing)  # type: ignore[misc]


class RotatedEverywhere:
    def is_rotated(self: Any, layer: int) -> bool:
        return True


class FirstOfFourNotRotated:
    def is_rotated(self: Any, layer: int) -> bool:
        return layer % 4 != 0


# ---- Wrong steps: attention


class FullHeadCountScale:
    def score_scale(self: Any) -> Any:
        return self.precision(1 / np.sqrt(self.head_size))


class WidthOverHeadsScale:
    def score_scale(self: Any) -> Any:
        return self.precision(1 / np.sqrt(self.n_embd // self.n_head))


class NoBiases:
    def biased(self: Any, x: Any, name: str) -> Any:
        return x


class HeadsNotNormed:
    def head_norm(self: Any, x: Any, name: str) -> Any:
        return x


class HeadsNormedTogether:
    def head_norm(self: Any, x: Any, name: str) -> Any:
        root = np.sqrt((x * x).mean(axis=(1, 2), keepdims=True) + self.eps)
        return x / root * self.weight(name)


class HeadsNormedAfterRotation:
    def rotated(self: Any, q: Any, k: Any, layer: int) -> Any:
        q, k = (x / self.weight(f"blk.{layer}.attn_{part}_norm.weight") for x, part in ((q, "q"), (k, "k")))
        q, k = super().rotated(q, k, layer)  # type: ignore[misc]
        return (x * self.weight(f"blk.{layer}.attn_{part}_norm.weight") for x, part in ((q, "q"), (k, "k")))


class KeysAndValuesSwapped:
    def queries_keys_values(self: Any, h: Any, layer: int) -> Any:
        q, k, v = super().queries_keys_values(h, layer)  # type: ignore[misc]
        return q, v, k


# ---- Wrong steps: layers


class GlobalLayersFirst:
    def is_local(self: Any, layer: int) -> bool:
        return layer % 6 != 0


class LocalLayersOnly:
    def is_local(self: Any, layer: int) -> bool:
        return True


class LocalLayersWithTheGlobalBase:
    def local_base(self: Any) -> float:
        return float(self.rope_base)


class LocalLayersStretched:
    def frequencies(self: Any, layer: int) -> Any:
        out = super().frequencies(layer)  # type: ignore[misc]
        return out / self.rope_scale if self.is_local(layer) else out


class EmbeddingNotScaled:
    def embedding_scale(self: Any) -> Any:
        return 1.0


class PostNormsLeftOut:
    def norm(self: Any, x: Any, name: str) -> Any:
        return x if "post_" in name else super().norm(x, name)  # type: ignore[misc]


class NormsOfOnePlusWeight:
    def norm(self: Any, x: Any, name: str) -> Any:
        out = super().norm(x, name)  # type: ignore[misc]
        return out + out / self.weight(name)


class NormAfterTheSum:
    def block(self: Any, x: Any, layer: int) -> Any:
        at = f"blk.{layer}."
        x = x + self.attention(self.norm(x, at + "attn_norm.weight"), layer)
        x = self.norm(x, at + "post_attention_norm.weight")
        x = x + self.feed_forward(self.norm(x, at + "ffn_norm.weight"), layer)
        return self.norm(x, at + "post_ffw_norm.weight")


class NormsExchanged:
    """The norm before the feed-forward block taken for the one after attention, as in other families' names."""

    def norm(self: Any, x: Any, name: str) -> Any:
        if "ffn_norm" in name:
            name = name.replace("ffn_norm", "post_attention_norm")
        elif "post_attention_norm" in name:
            name = name.replace("post_attention_norm", "ffn_norm")
        return super().norm(x, name)  # type: ignore[misc]


# ---- Wrong steps: feed-forward


class AnotherActivation:
    """SiLU for GELU, GELU for SiLU."""

    def activation(self: Any, x: Any) -> Any:
        if self.arch == "gemma3":
            return x / (1 + np.exp(-x))
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


class HalvesSwapped:
    def fused_gate_and_up(self: Any, both: Any) -> Any:
        up, gate = np.split(both, 2, axis=1)
        return gate, up


class GateAndUpAlternate:
    def fused_gate_and_up(self: Any, both: Any) -> Any:
        return both[:, ::2], both[:, 1::2]


class LogitsNotCapped:
    def capped(self: Any, logits: Any) -> Any:
        return logits


class OneExpertLess:
    def shares(self: Any, scores: Any, best: Any) -> Any:
        out = super().shares(scores, best)  # type: ignore[misc]
        out[:, -1] = 0
        return out


class SharesOfAll:
    """Softmax over all experts, not brought to a sum of one again."""

    def shares(self: Any, scores: Any, best: Any) -> Any:
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.take_along_axis(weights / weights.sum(axis=1, keepdims=True), best, axis=1)


class SharesTurnedAround:
    def shares(self: Any, scores: Any, best: Any) -> Any:
        return super().shares(scores, best)[:, ::-1]  # type: ignore[misc]


class EqualShares:
    def shares(self: Any, scores: Any, best: Any) -> Any:
        return np.full(best.shape, 1 / best.shape[1])


class WorstExperts:
    def chosen(self: Any, scores: Any) -> Any:
        return super().chosen(-scores)  # type: ignore[misc]


class NeighbourExpert:
    def expert(self: Any, x: Any, layer: int, expert: int) -> Any:
        return super().expert(x, layer, (expert + 1) % self.n_expert)  # type: ignore[misc]


WRONG: dict[str, tuple[type, ...]] = {
    "llama": (OtherPairs, AnotherActivation),
    "llama, rotation factors": (FactorsMultiplied, FactorsLeftOut),
    "llama, linear": (NotStretched,),
    "llama, yarn": (NotStretched, StretchedEvenly, RampTurnedAround, RampOfTheNewContext, NoGain, GainOfQueriesOnly),
    "llama, yarn its own way": (RampOfThePaperAlone, NoGain),
    "llama, longrope": (OtherFactors, NoGain, FactorsMultiplied),
    "llama, window of 100": (WindowOneMore, WindowOneLess, NoWindow),
    "llama, window of 130": (WindowOneMore, WindowOneLess, NoWindow),
    "llama, a scale of its own": (FullHeadCountScale,),
    "llama, biases": (NoBiases,),
    "llama, experts": (
        OneExpertLess, SharesOfAll, SharesTurnedAround, EqualShares, WorstExperts, NeighbourExpert, AnotherActivation,
    ),
    "llama, experts in tensors of their own": (SharesTurnedAround, NeighbourExpert),
    "qwen2": (NoBiases, OtherPairs),
    "qwen3": (HeadsNotNormed, HeadsNormedTogether, HeadsNormedAfterRotation, OtherPairs, WidthOverHeadsScale),
    "phi3": (KeysAndValuesSwapped, HalvesSwapped, GateAndUpAlternate, OtherPairs),
    "phi3, window of 100": (WindowOneMore, WindowOneLess, NoWindow),
    "phi3, long": (OtherFactors, FactorsMultiplied, FactorsLeftOut, NoGain, GainOfYarn, GainOfQueriesOnly),
    "phi3, just long": (OtherFactors,),
    "phi3, short": (OtherFactors, FactorsLeftOut, NoGain, GainWhenLongOnly),
    "phi3, its own attention factor": (NoGain, GainOfYarn),
    "phi3, partly rotated": (PairsAcrossTheWholeHead, GainOfWholeHeads, OtherPairs),
    "gemma3": (GlobalLayersFirst, LocalLayersOnly, WindowOneMore),
    "gemma3, shallow": (
        OtherPairs, WindowOneMore, WindowOneLess, NoWindow, LocalLayersWithTheGlobalBase, EmbeddingNotScaled,
        PostNormsLeftOut, NormsOfOnePlusWeight, NormAfterTheSum, NormsExchanged, HeadsNotNormed,
        HeadsNormedAfterRotation, AnotherActivation, WidthOverHeadsScale,
    ),
    "gemma3, shallow and linear": (NotStretched, LocalLayersStretched),
    "gemma3, capped logits": (LogitsNotCapped,),
    "gemma3, a local base of its own": (LocalLayersWithTheGlobalBase,),
    "gemma3, 62 layers": (FullHeadCountScale,),
    "smollm3": (RotatedEverywhere, FirstOfFourNotRotated, OtherPairs),
}  # fmt: skip
"""For each variant the steps that a wrong implementation could take instead."""
