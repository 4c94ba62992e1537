"""Files of the newer architectures that parse and make no sense: one typed error each, which names the key or tensor.

What every architecture shares is in test_hostile_models.py; here are the keys and tensors that some of them bring.
Like there, everything runs in this process: a crash or a hang would end the whole run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import hostile_cases
import numpy as np
import pytest
from hostile_cases import BOOL, F32, I32, INF, NAN, STRING, U32, Case, check_refused, ones
from reference_families import FAMILIES, family_of
from tiny_families import write_family
from tiny_gguf import OMIT, VType, array_of

import pantheon
from pantheon.errors import CorruptFileError, MetadataError, NumericError, UnsupportedError


def meta(arch: str, key: str, value: Any, kind: VType, *says: str, **rest: Any) -> Case:
    """A key of the architecture replaced."""
    return hostile_cases.meta(f"{arch}.{key}", value, kind, *says, arch=arch, **rest)


def tensor(arch: str, name: str, value: Any, *says: str, **rest: Any) -> Case:
    return hostile_cases.tensor(name, value, *says, arch=arch, **rest)


def one_among(n: int, at: int, value: float) -> Any:
    out = ones(n)
    out[at] = value
    return out


EXPERTS: dict[str, Any] = {"n_expert": 4, "n_expert_used": 2}
MIXTRAL: dict[str, Any] = {"arch": "llama", **EXPERTS}
APART: dict[str, Any] = {**EXPERTS, "merged": False}
LISTS: dict[str, Any] = {
    "long_factors": (1.0,) * 8, "short_factors": (1.0,) * 8, "scaling": (("original_context_length", 256),),
}  # fmt: skip
YARN: dict[str, Any] = {"scaling": (("type", "yarn"), ("factor", 4.0), ("original_context_length", 256))}
PATTERN = "attention.sliding_window_pattern"
UNCLEAR = (CorruptFileError, MetadataError, UnsupportedError)
"""Where a key and the tensors contradict each other, either may be blamed."""

CASES: dict[str, Case] = {
    # ---- qwen2: biases
    "a bias of the wrong length": tensor("qwen2", "blk.0.attn_q.bias", ones(63), "63", "64"),
    "a bias of queries for keys": tensor("qwen2", "blk.1.attn_k.bias", ones(64), "64", "32"),
    "a bias that is a matrix": tensor("qwen2", "blk.0.attn_v.bias", ones(1, 32)),
    # ---- qwen3: norms of heads
    "a head norm of the whole width": tensor("qwen3", "blk.0.attn_q_norm.weight", ones(96), "96", "24"),
    "no head norm": tensor("qwen3", "blk.1.attn_k_norm.weight", OMIT),
    "a head size that the tensors contradict": Case(
        CorruptFileError, ("blk.0.attn_",),
        metadata={f"qwen3.attention.{part}_length": (32, U32) for part in ("key", "value")}, shape={"arch": "qwen3"},
    ),
    # ---- phi3: fused matrices, long and short factors
    "a fused matrix without values": tensor("phi3", "blk.0.attn_qkv.weight", ones(96, 64), "96", "128"),
    "no fused matrix": Case(
        CorruptFileError, ("blk.1.attn_",), tensors={"blk.1.attn_qkv.weight": OMIT}, shape={"arch": "phi3"}
    ),
    "a fused matrix and one of queries": Case(
        UNCLEAR, ("blk.0.attn_q",), tensors={"blk.0.attn_q.weight": ones(64, 64)}, shape={"arch": "phi3"}
    ),
    "a gate alone where gate and up are fused": tensor("phi3", "blk.0.ffn_up.weight", ones(96, 64), "96"),
    "long factors of the wrong length": tensor("phi3", "rope_factors_long.weight", ones(16), "16", "8", **LISTS),
    "short factors of another partial rotation": tensor("phi3", "rope_factors_short.weight", ones(6), "6", **LISTS),
    "a long factor of zero": tensor("phi3", "rope_factors_long.weight", one_among(8, 3, 0.0), "0", **LISTS),
    "a short factor of zero": tensor("phi3", "rope_factors_short.weight", one_among(8, 7, 0.0), "0", **LISTS),
    "a short factor that is no number": tensor(
        "phi3", "rope_factors_short.weight", one_among(8, 7, NAN), "nan", **LISTS
    ),
    "an infinite long factor": tensor("phi3", "rope_factors_long.weight", one_among(8, 0, INF), "inf", **LISTS),
    "a negative long factor": tensor("phi3", "rope_factors_long.weight", one_among(8, 0, -1.0), "-1", **LISTS),
    "long factors alone": tensor("phi3", "rope_factors_short.weight", OMIT, **LISTS),
    "short factors alone": tensor("phi3", "rope_factors_long.weight", OMIT, **LISTS),
    "an original context of zero": meta("phi3", "rope.scaling.original_context_length", 0, U32, "0", **LISTS),
    "an original context of one, whose logarithm is zero": meta(
        "phi3", "rope.scaling.original_context_length", 1, U32, "1", **LISTS
    ),
    "an attention factor that is no number": meta("phi3", "rope.scaling.attn_factor", NAN, F32, "nan", **LISTS),
    "a negative attention factor": meta("phi3", "rope.scaling.attn_factor", -1.0, F32, "-1", **LISTS),
    "an infinite attention factor": meta("phi3", "rope.scaling.attn_factor", INF, F32, "inf", **LISTS),
    "an odd part of a head rotated": meta("phi3", "rope.dimension_count", 11, U32, "11"),
    "a window that is text": meta("phi3", "attention.sliding_window", "2047", STRING),
    "a negative window": meta("phi3", "attention.sliding_window", -1, I32, "-1"),
    "a window that is a fraction": meta("phi3", "attention.sliding_window", 100.5, F32),
    # ---- yarn
    "yarn by a factor of zero": meta("qwen2", "rope.scaling.factor", 0.0, F32, "0", **YARN),
    "yarn by a factor that is no number": meta("qwen2", "rope.scaling.factor", NAN, F32, "nan", **YARN),
    "yarn by a negative factor": meta("qwen2", "rope.scaling.factor", -4.0, F32, "-4", **YARN),
    "yarn from a context of zero": meta("qwen2", "rope.scaling.original_context_length", 0, U32, "0", **YARN),
    "a slow border that is no number": meta("qwen2", "rope.scaling.yarn_beta_slow", NAN, F32, "nan", **YARN),
    "a fast border of zero": meta("qwen2", "rope.scaling.yarn_beta_fast", 0.0, F32, "0", **YARN),
    "a scaling that is unknown": meta("qwen2", "rope.scaling.type", "ntk", STRING, "ntk", error=UnsupportedError),
    "a scaling that is a number": meta("qwen2", "rope.scaling.type", 3, U32),
    # ---- angles beyond what sines are exact for
    "a rotation factor that makes angles of 1e9": tensor(
        "llama", "rope_freqs.weight", one_among(8, 0, 1 / 64), "rope_freqs.weight[0] is 0.015625",
        "llama.context_length 15625001", "1e+09", n_ctx=15_625_001,
    ),
    "a short factor that makes angles of 1e9": tensor(
        "phi3", "rope_factors_short.weight", one_among(8, 0, 1 / 64), "rope_factors_short.weight[0] is 0.015625",
        "phi3.context_length 67108864", **{**LISTS, "n_ctx": 2**26},
    ),
    "a scaling that makes angles of 1e9": meta(
        "llama", "rope.scaling.factor", 0.01, F32, "0.01", "llama.context_length 67108864", n_ctx=2**26
    ),
    "yarn that makes angles of 1e9": meta(
        "qwen2", "rope.scaling.factor", 0.01, F32, "0.01", "qwen2.context_length 67108864",
        scaling=(*YARN["scaling"], ("yarn_ext_factor", 0.0)), n_ctx=2**26,
    ),
    # ---- gemma3: more norms, two kinds of layers
    "no norm after attention": tensor("gemma3", "blk.6.post_attention_norm.weight", OMIT),
    "no norm after the feed-forward block": tensor("gemma3", "blk.0.post_ffw_norm.weight", OMIT),
    "a post norm of the wrong length": tensor("gemma3", "blk.0.post_ffw_norm.weight", ones(96), "96", "64"),
    "a negative pattern": meta("gemma3", PATTERN, -6, I32, "-6"),
    "a pattern that is text": meta("gemma3", PATTERN, "LLLLLG", STRING),
    "a pattern for six of seven layers": meta("gemma3", PATTERN, *array_of(BOOL, [True] * 6), "6", "7"),
    "a pattern for eight of seven layers": meta("gemma3", PATTERN, *array_of(BOOL, [True] * 8), "8", "7"),
    "a local base of zero": meta("gemma3", "rope.freq_base_swa", 0.0, F32, "0"),
    "a local base that is no number": meta("gemma3", "rope.freq_base_swa", NAN, F32, "nan"),
    "a cap that is no number": meta("gemma3", "final_logit_softcapping", NAN, F32, "nan"),
    "a negative cap": meta("gemma3", "final_logit_softcapping", -30.0, F32, "-30"),
    # ---- llama: a scale of its own, experts
    "an attention scale that is no number": meta("llama", "attention.scale", NAN, F32, "nan"),
    "an infinite attention scale": meta("llama", "attention.scale", INF, F32, "inf"),
    "more experts used than there are": meta("llama", "expert_used_count", 5, U32, "5", "4", **EXPERTS),
    "no experts used": meta("llama", "expert_used_count", 0, U32, "0", **EXPERTS),
    "2^32 - 1 experts used": meta("llama", "expert_used_count", 2**32 - 1, U32, **EXPERTS),
    "experts, but not how many are used": Case(
        MetadataError, ("llama.expert_used_count",), metadata={"llama.expert_used_count": OMIT},
        shape=MIXTRAL,
    ),
    "used experts as text": meta("llama", "expert_used_count", "2", STRING, **EXPERTS),
    "a negative number of experts": meta("llama", "expert_count", -4, I32, "-4", **EXPERTS),
    "2^31 experts": Case(
        UNCLEAR, ("expert",), metadata={"llama.expert_count": (2**31, U32)}, shape=MIXTRAL
    ),
    "more experts over all layers than a list of them may hold": Case(
        MetadataError, ("llama.expert_count is 258", "llama.block_count 170", "131580", "131072"),
        metadata={"llama.block_count": (170, U32), "llama.expert_count": (258, U32)}, shape=MIXTRAL,
    ),
    "as many experts as a list of them may hold, but not in the file": Case(
        CorruptFileError, ("blk.",),
        metadata={"llama.block_count": (170, U32), "llama.expert_count": (257, U32)}, shape=MIXTRAL,
    ),
    "no experts but their tensors": Case(
        UNCLEAR, ("ffn_",), metadata={"llama.expert_count": (0, U32)}, shape=MIXTRAL
    ),
    "no word of experts but their tensors": Case(
        UNCLEAR, ("ffn_",),
        metadata={"llama.expert_count": OMIT, "llama.expert_used_count": OMIT}, shape=MIXTRAL,
    ),
    "experts by the keys alone": Case(
        CorruptFileError, ("blk.0.ffn_",),
        metadata={"llama.expert_count": (4, U32), "llama.expert_used_count": (2, U32)}, shape={"arch": "llama"},
    ),
    "fewer experts than the tensors hold": Case(
        UNCLEAR, ("blk.0.ffn_", "4", "3"), metadata={"llama.expert_count": (3, U32)}, shape=MIXTRAL
    ),
    "no router": tensor("llama", "blk.1.ffn_gate_inp.weight", OMIT, **EXPERTS),
    "a router for three experts": tensor("llama", "blk.0.ffn_gate_inp.weight", ones(3, 64), "3", "4", **EXPERTS),
    "experts as one matrix": tensor("llama", "blk.0.ffn_up_exps.weight", ones(4 * 96, 64), **EXPERTS),
    "experts whose two widths are exchanged": tensor("llama", "blk.0.ffn_down_exps.weight", ones(4, 96, 64), **EXPERTS),
    "three of four experts": tensor("llama", "blk.0.ffn_gate_exps.weight", ones(3, 96, 64), "3", "4", **EXPERTS),
    "an expert left out": tensor("llama", "blk.1.ffn_down.3.weight", OMIT, **APART),
    "one expert too many": tensor("llama", "blk.0.ffn_up.4.weight", ones(96, 64), error=UNCLEAR, **APART),
    "an expert of another width": tensor("llama", "blk.0.ffn_gate.2.weight", ones(128, 64), "128", "96", **APART),
    "experts in one tensor and in tensors of their own": Case(
        UNCLEAR, ("blk.0.ffn_gate",),
        tensors={f"blk.0.ffn_gate.{number}.weight": ones(96, 64) for number in range(4)}, shape=MIXTRAL,
    ),
    "experts and a dense block": Case(
        UNCLEAR, ("blk.0.ffn_gate.weight",), tensors={"blk.0.ffn_gate.weight": ones(96, 64)}, shape=MIXTRAL
    ),
    # ---- smollm3
    "a tensor of another family": tensor("smollm3", "blk.0.attn_q_norm.weight", ones(16), error=UnsupportedError),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_model_that_makes_no_sense_is_refused_by_name(tmp_path: Path, name: str) -> None:
    check_refused(write_family(tmp_path / "m.gguf", **CASES[name].arguments()), CASES[name])


def test_angles_just_below_1e9_are_taken(tmp_path: Path) -> None:
    factors = {"rope_freqs.weight": one_among(8, 0, 1 / 64)}
    path = write_family(tmp_path / "m.gguf", "llama", tensors=factors, n_ctx=15_625_000)
    with pantheon.load(path) as model:
        assert np.isfinite(model.logits([3, 4, 5])).all()


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "phi3", "gemma3", "smollm3"])
def test_any_tensor_left_out_is_named(tmp_path: Path, arch: str) -> None:
    """All but those that a file may do without: a bias that it has not is a bias of zero, the output may be tied."""
    changes: dict[str, Any] = {"n_layer": 1, "n_embd": 32, "n_head": 2, "n_head_kv": 1, "n_ff": 32, "tied": True}
    whole = write_family(tmp_path / "whole.gguf", arch, **changes)
    for name in [tensor.name for tensor in gguf.GGUFReader(whole).tensors]:
        if name.endswith(".bias"):
            continue
        stem = name.removesuffix(".weight").replace("ffn_gate", "ffn_").replace("attn_qkv", "attn_")
        path = write_family(tmp_path / "m.gguf", arch, tensors={name: OMIT}, **changes)
        with pytest.raises((CorruptFileError, UnsupportedError)) as caught:
            pantheon.load(path)
        assert stem in str(caught.value)


def test_an_unknown_architecture_is_told_which_are_known(tmp_path: Path) -> None:
    path = write_family(tmp_path / "m.gguf", "llama", metadata={"general.architecture": ("qwen3moe", STRING)})
    with pytest.raises(UnsupportedError, match="qwen3moe") as caught:
        pantheon.load(path)
    for name in FAMILIES:
        assert name in str(caught.value).replace("qwen3moe", "")


# ---- Weights that are no numbers, where experts are chosen by them

ROUTERS: dict[str, Any] = {
    "no numbers": np.full((4, 64), NAN, np.float32),
    "one that is no number": np.concatenate([ones(1, 64) * NAN, ones(3, 64)]),
    "infinite": np.full((4, 64), INF, np.float32),
    "infinite with both signs": np.where(np.arange(256).reshape(4, 64) % 2, INF, -INF).astype(np.float32),
    "at the end of the range": np.full((4, 64), 3e38, np.float32),
}


@pytest.mark.parametrize("name", ROUTERS)
def test_a_router_that_is_no_number_ends_in_an_error_or_finite_logits(tmp_path: Path, isa: str, name: str) -> None:
    path = write_family(tmp_path / "m.gguf", "llama", tensors={"blk.0.ffn_gate_inp.weight": ROUTERS[name]}, **EXPERTS)
    with pantheon.load(path, isa=isa, threads=2) as model, model.state() as state:
        for ids in ([3], list(range(3, 40)), [1] * 140):
            try:
                assert np.isfinite(state.eval(ids)).all()
            except NumericError:
                assert state.logits is None
                state.reset()


@pytest.mark.parametrize("merged", [True, False])
def test_of_equal_scores_the_lowest_numbers_win(tmp_path: Path, merged: bool) -> None:
    """A router of zeros likes all experts equally. Which of them compute must not depend on anything else."""
    tensors = {f"blk.{layer}.ffn_gate_inp.weight": np.zeros((4, 64), np.float32) for layer in range(2)}
    path = write_family(tmp_path / "m.gguf", "llama", tensors=tensors, **{**EXPERTS, "merged": merged})
    ids = list(range(3, 40))
    want = family_of(path)(path).logits(ids)
    with pantheon.load(path) as model:
        assert np.abs(model.logits(ids) - want).max() < 5e-3 * want.std()
