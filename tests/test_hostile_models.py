"""Files that parse and make no sense: each is refused with one typed error that names the key or the tensor.

The container's own lies (offsets, counts, truncation of every field) are test_gguf.py's; here the syntax is right and
the model is not. Everything runs in this process: a crash or a hang would end the whole run.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile_cases import F32, I32, INF, NAN, STRING, U32, Case, check_refused, meta, ones, tensor, without
from tiny_gguf import (
    CHATML,
    FULL_VOCAB,
    OMIT,
    DType,
    Raw,
    VType,
    array_of,
    quantized,
    vocabulary,
    write_file,
    write_model,
    write_vocab,
)

import pantheon
from pantheon._core import ffi, lib
from pantheon.errors import (
    ArgumentError,
    CorruptFileError,
    FileError,
    MetadataError,
    ModelFileError,
    NumericError,
    PantheonError,
    UnsupportedError,
)


def floats(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


TOKENS, TYPES, MERGES = vocabulary(FULL_VOCAB)
HEADS, KV_HEADS = "llama.attention.head_count", "llama.attention.head_count_kv"
EPSILON, BASE = "llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base"
PATTERN = "llama.attention.sliding_window_pattern"
LONG_SHORT = ("rope_factors_long.weight", "rope_factors_short.weight")

CASES: dict[str, Case] = {
    # ---- Hyper-parameters
    "no blocks": meta("llama.block_count", 0, U32, "0"),
    "2^31 blocks": meta("llama.block_count", 2**31, U32, "2147483648"),
    "2^31 blocks as a 64-bit number": meta("llama.block_count", 2**31, VType.UINT64, "2147483648"),
    "2^63 blocks": meta("llama.block_count", 2**63, VType.UINT64),
    "minus one blocks": meta("llama.block_count", -1, I32),
    "blocks as text": meta("llama.block_count", "2", STRING),
    "blocks as a fraction": meta("llama.block_count", 2.5, F32),
    "a list of blocks": meta("llama.block_count", (U32, [2, 2]), VType.ARRAY),
    "more blocks than tensors": Case(CorruptFileError, ("blk.2.",), metadata={"llama.block_count": (3, U32)}),
    "10,000 blocks of which two are there": Case(
        CorruptFileError, ("blk.2.",), metadata={"llama.block_count": (10000, U32)}
    ),
    "fewer blocks than tensors": Case(
        UnsupportedError, ("blk.1.",), metadata={"llama.block_count": (1, U32)}
    ),
    "no block count": without("llama.block_count"),
    "a context of zero": meta("llama.context_length", 0, U32, "0"),
    "a context of 2^32 - 1": meta("llama.context_length", 2**32 - 1, U32),
    "no context length": without("llama.context_length"),
    "an embedding of zero": meta("llama.embedding_length", 0, U32),
    "an embedding of 2^32 - 1": meta("llama.embedding_length", 2**32 - 1, U32),
    "no embedding length": without("llama.embedding_length"),
    "another embedding than the tensors": Case(
        CorruptFileError, ("token_embd.weight", "64", "128"), metadata={"llama.embedding_length": (128, U32)}
    ),
    "an embedding that heads cannot share": Case(
        MetadataError, ("llama.embedding_length", "head_count", "64", "6"), metadata={HEADS: (6, U32)}
    ),
    "no feed-forward width": without("llama.feed_forward_length"),
    "a feed-forward width of zero": meta("llama.feed_forward_length", 0, U32),
    "another feed-forward width than the tensors": Case(
        CorruptFileError, ("blk.0.ffn_down.weight",), metadata={"llama.feed_forward_length": (128, U32)}
    ),
    "feed-forward widths per layer": meta("llama.feed_forward_length", (U32, [96, 96]), VType.ARRAY),
    "no heads": meta(HEADS, 0, U32, "0"),
    "2^32 - 1 heads": meta(HEADS, 2**32 - 1, U32),
    "no head count": without(HEADS),
    "no key heads": meta(KV_HEADS, 0, U32, "0"),
    "more key heads than heads": meta(KV_HEADS, 8, U32, "8", "4"),
    "key heads that do not divide the heads": meta(KV_HEADS, 3, U32, "3", "4"),
    "other key heads than the tensors": Case(CorruptFileError, ("blk.0.attn_k.weight",), metadata={KV_HEADS: (4, U32)}),
    "a key length of zero": meta("llama.attention.key_length", 0, U32),
    "a key length of 2^31": meta("llama.attention.key_length", 2**31, U32),
    "values of another length than keys": Case(
        UnsupportedError, ("value_length",), metadata={"llama.attention.value_length": (8, U32)}
    ),
    "an epsilon that is no number": meta(EPSILON, NAN, F32, "nan"),
    "a negative epsilon": meta(EPSILON, -1e-5, F32),
    "an infinite epsilon": meta(EPSILON, INF, F32, "inf"),
    "a rotation base of zero": meta(BASE, 0.0, F32, "0"),
    "a rotation base that is no number": meta(BASE, NAN, F32, "nan"),
    "a negative rotation base": meta(BASE, -10000.0, F32),
    "an infinite rotation base": meta(BASE, INF, F32, "inf"),
    "an odd number of rotated elements": meta("llama.rope.dimension_count", 15, U32, "15"),
    "more rotated elements than a head has": meta("llama.rope.dimension_count", 18, U32, "18"),
    "no rotated elements": meta("llama.rope.dimension_count", 0, U32),
    "a rotation scaling that is not built": meta(
        "llama.rope.scaling.type", "dynamic", STRING, "dynamic", "yarn", error=UnsupportedError
    ),
    "yarn over a base of one": Case(
        MetadataError, ("llama.rope.freq_base", "yarn"),
        metadata={"llama.rope.scaling.type": ("yarn", STRING), BASE: (1.0, F32)},
    ),
    "yarn with a border of zero turns": Case(
        MetadataError, ("yarn_beta_fast", "0"),
        metadata={"llama.rope.scaling.type": ("yarn", STRING), "llama.rope.scaling.yarn_beta_fast": (0.0, F32)},
    ),
    "yarn of an original context of zero": Case(
        MetadataError, ("original_context_length", "0"),
        metadata={"llama.rope.scaling.type": ("yarn", STRING), "llama.rope.scaling.original_context_length": (0, U32)},
    ),
    "an attention factor that is no number": meta("llama.rope.scaling.attn_factor", NAN, F32, "nan"),
    "longrope without its factors": Case(
        CorruptFileError, ("rope_factors_long.weight",), metadata={"llama.rope.scaling.type": ("longrope", STRING)}
    ),
    "long factors without short ones": Case(
        CorruptFileError, ("rope_factors_short.weight",), tensors={"rope_factors_long.weight": ones(8)}
    ),
    "short factors without long ones": Case(
        CorruptFileError, ("rope_factors_long.weight",), tensors={"rope_factors_short.weight": ones(8)}
    ),
    "a long factor of zero": Case(
        CorruptFileError, ("rope_factors_long.weight[0]", "0"),
        tensors={"rope_factors_long.weight": floats(8), "rope_factors_short.weight": ones(8)},
    ),
    "two kinds of rotation factors": Case(
        UnsupportedError, ("rope_freqs.weight", "rope_factors_long.weight"),
        tensors={name: ones(8) for name in ("rope_freqs.weight", *LONG_SHORT)},
    ),
    "a local rotation base of zero": meta("llama.rope.freq_base_swa", 0.0, F32, "0"),
    "an infinite scale of scores": meta("llama.attention.scale", INF, F32, "inf"),
    "a negative scale of scores": meta("llama.attention.scale", -0.1, F32),
    "a cap of logits that is no number": meta("llama.final_logit_softcapping", NAN, F32, "nan"),
    "a scaling factor of zero": Case(
        MetadataError, ("llama.rope.scaling.factor",),
        metadata={"llama.rope.scaling.type": ("linear", STRING), "llama.rope.scaling.factor": (0.0, F32)},
    ),
    "experts without a router": Case(
        CorruptFileError, ("blk.0.ffn_gate_inp.weight",),
        metadata={"llama.expert_count": (8, U32), "llama.expert_used_count": (2, U32)},
    ),
    "experts of which nobody says how many compute": Case(
        MetadataError, ("llama.expert_used_count",), metadata={"llama.expert_count": (8, U32)}
    ),
    "more experts used than there are": Case(
        MetadataError, ("llama.expert_used_count", "9", "8"),
        metadata={"llama.expert_count": (8, U32), "llama.expert_used_count": (9, U32)},
    ),
    "no experts used": Case(
        MetadataError, ("llama.expert_used_count", "0"),
        metadata={"llama.expert_count": (8, U32), "llama.expert_used_count": (0, U32)},
    ),
    "2^32 - 1 experts": meta("llama.expert_count", 2**32 - 1, U32),
    "experts where none are known": Case(
        UnsupportedError, ("qwen3.expert_count", "8"), shape={"arch": "qwen3"},
        metadata={"qwen3.expert_count": (8, U32)},
    ),
    "experts besides": meta("llama.expert_shared_count", 1, U32, "1", error=UnsupportedError),
    "experts of another width": meta("llama.expert_feed_forward_length", 32, U32, "32", error=UnsupportedError),
    "a sliding window that is text": meta("llama.attention.sliding_window", "16", STRING),
    "a pattern for too few layers": meta(PATTERN, *array_of(VType.BOOL, [True]), "1", "block_count", "2"),
    "a pattern of text": meta(PATTERN, *array_of(STRING, ["a", "b"])),
    "a pattern that is a fraction": meta(PATTERN, 1.5, F32),
    "a window for layers that nothing names": Case(
        UnsupportedError, ("qwen2.attention.sliding_window", "16", "pattern"), shape={"arch": "qwen2"},
        metadata={"qwen2.attention.sliding_window": (16, U32)},
    ),
    "a model that sees what is to come": meta("llama.attention.causal", False, VType.BOOL, error=UnsupportedError),
    "a cap of scores": meta("llama.attn_logit_softcapping", 50.0, F32, "50", error=UnsupportedError),
    "scaled logits": meta("llama.logit_scale", 0.5, F32, "0.5", error=UnsupportedError),
    "scaled embeddings": meta("llama.embedding_scale", 12.0, F32, "12", error=UnsupportedError),
    "local heads of another size": meta("llama.attention.key_length_swa", 8, U32, "8", error=UnsupportedError),
    "positions of three kinds": meta(
        "llama.rope.dimension_sections", *array_of(U32, [4, 2, 2]), error=UnsupportedError
    ),
    "another vocabulary size than rows": meta("llama.vocab_size", 511, U32, "511", "512"),
    # ---- What the file is
    "an unknown architecture": Case(UnsupportedError, ('"mamba9"', "llama"), shape={"arch": "mamba9"}),
    "an architecture of 10,000 letters": Case(UnsupportedError, ("known",), shape={"arch": "x" * 10000}),
    "an architecture with control characters": Case(
        UnsupportedError, ("known",), metadata={"general.architecture": ("a\0b\x1b[31m\n", STRING)}
    ),
    "no architecture": without("general.architecture"),
    "an architecture that is a number": meta("general.architecture", 7, U32),
    "the second part of a split model": Case(
        FileError, ("part 2 of 3", "split model", "-00002-of-00003.gguf"),
        metadata={
            "split.count": (3, VType.UINT16), "split.no": (1, VType.UINT16), "split.tensors.count": (60, I32),
        },
    ),
    "a part of a split model without anything else": Case(
        MetadataError, ("split.no",), metadata={"split.count": (2, VType.UINT16), "llama.block_count": OMIT}
    ),
    "a number of parts that is text": meta("split.count", "2", STRING),
    # ---- Tensors
    "no embedding": tensor("token_embd.weight", OMIT),
    "no output norm": tensor("output_norm.weight", OMIT),
    "no query matrix": tensor("blk.1.attn_q.weight", OMIT),
    "no feed-forward norm": tensor("blk.0.ffn_norm.weight", OMIT),
    "a matrix of the wrong shape": tensor("blk.0.attn_q.weight", floats(32, 64), "64", "32"),
    "a matrix turned on its side": tensor("blk.0.ffn_down.weight", floats(96, 64), "[64, 96", "[96, 64]"),
    "a norm of the wrong length": tensor("blk.1.attn_norm.weight", floats(63), "63", "64"),
    "a norm that is a matrix": tensor("output_norm.weight", floats(1, 64)),
    "a matrix that is a norm": tensor("blk.0.attn_v.weight", floats(32 * 64)),
    "an embedding with three dimensions": tensor("token_embd.weight", floats(8, 64, 64)),
    "an embedding of one dimension": tensor("token_embd.weight", floats(512 * 64)),
    "an output matrix with fewer rows": tensor("output.weight", floats(511, 64), "511"),
    "rotation factors of the wrong length": tensor("rope_freqs.weight", floats(16), "16"),
    "a rotation factor of zero": tensor("rope_freqs.weight", floats(8), "0"),
    "a rotation factor that is no number": tensor("rope_freqs.weight", np.full(8, NAN, np.float32), "nan"),
    "a tensor that nothing reads": tensor("blk.0.attn_q_norm.weight", floats(16), "llama", error=UnsupportedError),
    "a tensor with an unreadable name": Case(UnsupportedError, ("tensor",), tensors={"\x1b[2J\n\0": floats(4)}),
    "a norm of whole numbers": tensor(
        "output_norm.weight", Raw(np.zeros(64, np.int32), DType.I32), error=UnsupportedError
    ),
    # ---- The vocabulary against the weights
    "fewer tokens than rows": Case(
        MetadataError, ("tokenizer.ggml.tokens", "511", "512"),
        metadata={
            "tokenizer.ggml.tokens": array_of(STRING, TOKENS[:-1]),
            "tokenizer.ggml.token_type": array_of(I32, TYPES[:-1]),
            "tokenizer.ggml.merges": array_of(STRING, MERGES[:-1]),
        },
    ),
    "no tokens": without("tokenizer.ggml.tokens"),
    "an unknown tokenizer": meta("tokenizer.ggml.model", "rwkv", STRING, "rwkv", error=UnsupportedError),
    "an unknown splitter": meta("tokenizer.ggml.pre", "newest", STRING, "newest", error=UnsupportedError),
    "fewer token types than tokens": meta("tokenizer.ggml.token_type", (I32, TYPES[:-1]), VType.ARRAY, "511"),
    "token types as text": meta("tokenizer.ggml.token_type", (STRING, ["1"] * 512), VType.ARRAY),
    "scores as bytes": meta("tokenizer.ggml.scores", (VType.UINT8, [0] * 512), VType.ARRAY),
    "tokens as numbers": meta("tokenizer.ggml.tokens", (U32, list(range(512))), VType.ARRAY),
    "an end token outside of the vocabulary": meta("tokenizer.ggml.eos_token_id", 512, U32, "512"),
    "a start token outside of the vocabulary": meta("tokenizer.ggml.bos_token_id", 2**32 - 1, U32),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_model_that_makes_no_sense_is_refused_by_name(tmp_path: Path, name: str) -> None:
    check_refused(write_model(tmp_path / "m.gguf", **CASES[name].arguments()), CASES[name])


def test_a_file_with_one_key_of_another_integer_width_is_fine(tmp_path: Path) -> None:
    """The converse: every width that holds the value is taken, so nothing above was refused for the width alone."""
    ids = list(range(20, 40))
    with pantheon.load(write_model(tmp_path / "a.gguf")) as model:
        want = model.logits(ids)
    for kind in (VType.UINT8, VType.INT8, VType.UINT16, VType.INT16, VType.INT32, VType.UINT64, VType.INT64):
        keys = {"llama.block_count": 2, HEADS: 4, KV_HEADS: 2, "llama.embedding_length": 64}
        path = write_model(tmp_path / "b.gguf", metadata={key: (value, kind) for key, value in keys.items()})
        with pantheon.load(path) as model:
            assert (model.logits(ids) == want).all()


def test_a_split_model_of_one_part_is_a_model(tmp_path: Path) -> None:
    parts = {"split.count": (1, VType.UINT16), "split.no": (0, VType.UINT16), "split.tensors.count": (20, I32)}
    with pantheon.load(write_model(tmp_path / "x-00001-of-00001.gguf", metadata=parts)) as model:
        assert model.n_vocab == FULL_VOCAB


def test_a_file_without_tensors_or_without_anything_is_refused(tmp_path: Path) -> None:
    for path in (write_vocab(tmp_path / "v.gguf"), write_file(tmp_path / "e.gguf", "llama", {}, {})):
        with pytest.raises(ModelFileError):
            pantheon.load(path)


def test_an_unsupported_element_type_is_named_with_its_tensor(tmp_path: Path) -> None:
    for kind, block_bytes in ((DType.IQ2_XXS, 66), (DType.IQ3_S, 110), (DType.TQ1_0, 54)):
        raw = Raw(np.zeros((64, block_bytes), np.uint8), kind)
        path = write_model(tmp_path / "m.gguf", n_ff=256, tensors={"blk.1.ffn_down.weight": raw})
        with pytest.raises(UnsupportedError, match=rf"(?i)blk\.1\.ffn_down\.weight.*{kind.name}"):
            pantheon.load(path)


# ---- Truncation


def smallest_model(path: Path) -> str:
    return write_model(
        path, n_layer=1, n_embd=32, n_head=1, n_head_kv=1, n_ff=32, n_vocab=262, template=None, dtype="Q4_0"
    )


def test_every_prefix_of_a_model_is_refused(tmp_path: Path) -> None:
    """Cut from the end, byte by byte: what a download leaves when it breaks off."""
    path = tmp_path / "m.gguf"
    with pantheon.load(smallest_model(path), threads=1) as model:
        assert np.isfinite(model.logits([1, 2, 3])).all()
    size = path.stat().st_size
    for length in range(size - 1, -1, -1):
        os.truncate(path, length)
        with pytest.raises(ModelFileError, match="..........") as caught:
            pantheon.load(path, threads=1)
        assert str(caught.value).isprintable()


# ---- Weights that are no numbers


def damaged_scale(shape: tuple[int, int], bits: int) -> Raw:
    """A Q8_0 matrix with one scale replaced by these 16 bits."""
    raw = quantized((np.random.default_rng(1).standard_normal(shape) / 8).astype(np.float32), "Q8_0")
    raw.data.reshape(-1, 34)[5, :2] = np.frombuffer(bits.to_bytes(2, "little"), np.uint8)
    return raw


DAMAGED: dict[str, dict[str, Any]] = {
    "a scale that is no number": {"blk.0.ffn_up.weight": damaged_scale((96, 64), 0x7E00)},
    "a signalling scale": {"blk.1.attn_k.weight": damaged_scale((32, 64), 0x7D01)},
    "an infinite scale": {"blk.0.attn_v.weight": damaged_scale((32, 64), 0x7C00)},
    "a scale of minus infinity": {"blk.1.attn_q.weight": damaged_scale((64, 64), 0xFC00)},
    "an embedding that is no number": {"token_embd.weight": np.full((512, 64), NAN, np.float32)},
    "an infinite norm": {"blk.0.attn_norm.weight": np.full(64, INF, np.float32)},
    "a norm that is no number": {"output_norm.weight": np.full(64, NAN, np.float32)},
    "weights at the end of the range": {"blk.0.ffn_down.weight": np.full((64, 96), 3e38, np.float32)},
    "embeddings whose squares overflow": {"token_embd.weight": np.full((512, 64), 1e30, np.float32)},
    "keys beyond 16 bits": {"blk.0.attn_k.weight": np.full((32, 64), 1e20, np.float32)},
    "values beyond 16 bits": {"blk.0.attn_v.weight": np.full((32, 64), 1e20, np.float32)},
}


@pytest.mark.parametrize("name", DAMAGED)
def test_weights_that_are_no_numbers_end_in_an_error_or_finite_logits(tmp_path: Path, isa: str, name: str) -> None:
    path = write_model(tmp_path / "m.gguf", tensors=DAMAGED[name])
    outcomes: list[object] = []

    def run() -> None:
        try:
            with pantheon.load(path, isa=isa, threads=2) as model, model.state() as state:
                try:
                    for ids in ([3], list(range(3, 40)), [1] * 140):
                        outcomes.append(bool(np.isfinite(state.eval(ids)).all()))
                except NumericError as error:
                    outcomes.append(error)
                    assert state.logits is None
                    state.reset()
        except PantheonError as error:
            outcomes.append(error)

    runner = threading.Thread(target=run, daemon=True)
    runner.start()
    runner.join(60)
    assert not runner.is_alive()
    assert outcomes
    assert all(outcome is True or isinstance(outcome, PantheonError) for outcome in outcomes)


def test_logits_that_are_no_numbers_raise_a_numeric_error(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", tensors=DAMAGED["a norm that is no number"])
    with pantheon.load(path) as model, model.state() as state:
        with pytest.raises(NumericError, match="token 0"):
            state.eval([1, 2, 3])
        with pytest.raises(NumericError):
            model.logits([1, 2, 3])
        with pytest.raises(NumericError):
            model.generate([1, 2, 3], max_tokens=3)


def test_a_damaged_row_hurts_only_those_who_use_it(tmp_path: Path) -> None:
    """An embedding of NaN for one token: conversations without it are as they were, one with it fails."""
    values = (np.random.default_rng(2).standard_normal((512, 64)) / 4).astype(np.float32)
    values[300] = NAN
    output = (np.random.default_rng(3).standard_normal((512, 64)) / 4).astype(np.float32)
    path = write_model(tmp_path / "m.gguf", tensors={"token_embd.weight": values, "output.weight": output})
    with pantheon.load(path) as model, model.state() as state:
        before = state.eval([5, 6])
        state.rewind(1)
        with pytest.raises(NumericError):
            state.eval([300])
        state.rewind(1)
        assert (state.eval([6]) == before).all()


def test_a_row_in_the_middle_that_is_not_finite_raises_too(tmp_path: Path) -> None:
    """The last layer overflows for some tokens only, after the cache was written: later rows know nothing of it."""
    down = (np.random.default_rng(4).standard_normal((64, 96)) / 10).astype(np.float32)
    down[:, 5] = 2.5e38
    path = write_model(tmp_path / "m.gguf", tensors={"blk.1.ffn_down.weight": down})
    ids = np.random.default_rng(5).integers(3, FULL_VOCAB, 40).tolist()
    with pantheon.load(path) as model:

        def is_finite(run: Callable[[], object]) -> bool:
            try:
                run()
            except NumericError:
                return False
            return True

        def last_row(n: int) -> None:
            with model.state() as state:
                state.eval(ids[:n])

        rows = [is_finite(lambda n=n: last_row(n)) for n in range(1, len(ids) + 1)]  # type: ignore[misc]
        first_bad = rows.index(False)
        assert any(rows[first_bad:])
        for n in range(1, len(ids) + 1):
            assert is_finite(lambda n=n: model.logits(ids[:n])) == (n <= first_bad)  # type: ignore[misc]


def test_one_conversation_of_a_batch_that_is_not_finite_leaves_none_with_logits(tmp_path: Path) -> None:
    values = (np.random.default_rng(2).standard_normal((512, 64)) / 4).astype(np.float32)
    values[300] = NAN
    output = (np.random.default_rng(3).standard_normal((512, 64)) / 4).astype(np.float32)
    path = write_model(tmp_path / "m.gguf", tensors={"token_embd.weight": values, "output.weight": output})
    with pantheon.load(path) as model, model._handle as pointer:
        states = [ffi.gc(lib.pn_state_new(pointer), lib.pn_state_free) for _ in range(2)]
        tokens = [ffi.new("uint32_t[]", [token]) for token in (5, 300)]
        slices = ffi.new("pn_slice[]", 2)
        for piece, state, ids in zip(slices, states, tokens, strict=True):
            piece.state, piece.tokens, piece.n = state, ids, 1
        assert lib.pn_eval(pointer, slices, 2, ffi.NULL, ffi.NULL) == lib.PN_ERR_NUMERIC
        assert [lib.pn_state_logits(state) for state in states] == [ffi.NULL, ffi.NULL]
        for state in states:
            ffi.release(state)


# ---- Ids and lengths from the caller


def test_ids_outside_of_the_vocabulary_are_refused_and_change_nothing(tiny_model: str) -> None:
    with pantheon.load(tiny_model) as model, model.state() as state:
        want = state.eval([5, 6])
        for bad in ([model.n_vocab], [5, 2**32 - 1], [5, -1], [2**40]):
            with pytest.raises(ArgumentError):
                state.eval(bad)
        assert state.tokens.tolist() == [5, 6]
        state.rewind(1)
        assert (state.eval([6]) == want).all()


def test_the_context_can_be_filled_to_the_last_token_and_no_further(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", n_ctx=130)
    with pantheon.load(path) as model, model.state() as state:
        state.eval([7] * 129)
        state.eval([8])
        with pytest.raises(pantheon.ContextError, match="130"):
            state.eval([9])
        assert len(state) == 130
        state.reset()
        with pytest.raises(pantheon.ContextError):
            state.eval([7] * 131)
        assert len(state) == 0


# ---- Memory

FLAT = 1_000_000  # bytes over 200 cycles
needs_true_memory = pytest.mark.skipif(
    not Path("/proc/self/statm").exists() or "asan" in os.environ.get("LD_PRELOAD", ""),
    reason="needs /proc, and an allocator that gives memory back (AddressSanitizer's keeps what was freed)",
)


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def grows_by(cycle: Callable[[], None], times: int) -> tuple[int, int]:
    """Bytes of memory and open files that `times` cycles leave behind, after some that warm up."""
    for _ in range(30):
        cycle()
    gc.collect()  # what other tests left must not go away while it is counted
    memory, files = resident_bytes(), len(os.listdir("/proc/self/fd"))
    for _ in range(times):
        cycle()
    return resident_bytes() - memory, len(os.listdir("/proc/self/fd")) - files


@needs_true_memory
def test_memory_stays_flat_over_200_models_and_conversations(tiny_model: str) -> None:
    """Nothing at all is left behind; five kilobytes per cycle would show."""

    def cycle() -> None:
        with pantheon.load(tiny_model) as model:
            model.generate([5, 6, 7], max_tokens=3)
            with model.state() as state:
                state.eval(list(range(150)))

    memory, files = grows_by(cycle, 200)
    assert files == 0
    assert memory < FLAT


@needs_true_memory
@pytest.mark.parametrize(
    "name", ["no output norm", "fewer tokens than rows", "a rotation factor of zero", "no experts used"]
)
def test_memory_stays_flat_over_200_refusals(tmp_path: Path, name: str) -> None:
    """Refused early, in the middle and late; the template is long, so that a forgotten header would show."""
    case = CASES[name]
    path = write_model(tmp_path / "m.gguf", template=CHATML + " " * 100_000, **case.arguments())

    def cycle() -> None:
        with pytest.raises(PantheonError):
            pantheon.load(path)

    memory, files = grows_by(cycle, 200)
    assert files == 0
    assert memory < FLAT


LIMITED_LOADS = """
import os, resource, sys
import pantheon
from pantheon.errors import OutOfMemoryError, PantheonError

good, *paths = sys.argv[1:]
pantheon.load(good, threads=1).close()  # what Python itself needs the first time
for path in [good, *paths]:
    held = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = held + 4 * os.path.getsize(path) + 64 * 2**20
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        pantheon.load(path, threads=1).close()
        outcome = "loaded"
    except PantheonError as error:
        outcome = type(error).__name__
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    print(outcome)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="a sanitizer reserves terabytes of addresses")
def test_loading_takes_no_more_than_four_files_and_64_megabytes(tmp_path: Path) -> None:
    """In a process with so much address space and no more: nothing that a file says makes the core ask for it."""
    good = write_model(tmp_path / "good.gguf")
    large = write_model(tmp_path / "large.gguf", n_embd=256, n_ff=512, n_layer=6, dtype="F32", n_vocab=8000)
    assert os.path.getsize(large) > 20_000_000
    paths = [good, good, large]  # the first one is loaded without a limit and again with one
    for number, case in enumerate(CASES.values()):
        path = tmp_path / f"{number}.gguf"
        paths.append(write_model(path, **case.arguments()))
    done = subprocess.run(
        [sys.executable, "-c", LIMITED_LOADS, *paths], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    outcomes = done.stdout.split()
    assert outcomes[:3] == ["loaded"] * 3
    assert outcomes[3:] == [case.error.__name__ for case in CASES.values()]  # type: ignore[union-attr]
