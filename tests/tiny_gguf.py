"""Writes small random models of the llama family with the `gguf` package: a world of its own for every test.

A model takes a few hundred kilobytes, depends on nothing but its arguments (the same arguments give the same bytes),
and is scaled so that it behaves like a trained one where it matters: attention looks at several tokens and depends on
their distance, no activation explodes or vanishes over the layers, logits have a standard deviation of about two.

The one thing to know first: rows of numpy are rows of the file, so a matrix of shape [out, in] here has dims [in, out]
in the file. What a hostile file needs is said with `metadata` and `tensors`, which replace, add or leave out.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

DType = gguf.GGMLQuantizationType
VType = gguf.GGUFValueType
Floats = npt.NDArray[np.float32]

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
N_BYTES = 256
FULL_VOCAB = 512
MULTIPLIABLE = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1")
"""Element types that a matrix may have."""

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The chat template that SmolLM2-Instruct carries."""

# What the merges are learned from.
_TEXT = """
The capital of France is Paris. The capital of Germany is Berlin. You are a helpful assistant, and you answer in one
short sentence. What is the weather like today? It was raining when the train came into the station, and the people who
had been waiting there for more than an hour went on talking about the water in the streets of the old town. There is
nothing that they could have done about it. She said that she would come again in the morning with her brother and the
other children, because the house was full and because there was no time to read the letter that he had written. How
many of them are there? I think that this is the right one. A computer reads numbers, adds them, and writes the result;
it does not know what they stand for. The system and the user take turns: the user asks, the assistant answers.
"""


# ---- Vocabulary ----


@functools.cache
def byte_spellings() -> tuple[str, ...]:
    """The character for each byte in byte-level vocabularies: printable ones as they are, the others from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(N_BYTES))


@functools.cache
def learn_merges(n: int) -> tuple[tuple[str, str], ...]:
    """Byte-pair encoding of the text above: n times the most frequent pair of neighbours, ties in order of spelling."""
    spell = byte_spellings()
    joined = " ".join(_TEXT.split())
    words = Counter(tuple(spell[byte] for byte in f" {word}".encode()) for word in joined.split(" "))
    merges: list[tuple[str, str]] = []
    while len(merges) < n:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, times in words.items():
            for pair in zip(word, word[1:], strict=False):
                pairs[pair] += times
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = Counter({_merge(word, best): times for word, times in words.items()})
    return tuple(merges)


def _merge(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for part in word:
        if out and (out[-1], part) == pair:
            out[-1] += part
        else:
            out.append(part)
    return tuple(out)


def vocabulary(n_vocab: int) -> tuple[list[str], list[int], list[str]]:
    """Tokens, their types and the merges: control tokens, 256 bytes, merges, then unused ones up to n_vocab."""
    n_merges = min(n_vocab, FULL_VOCAB) - len(CONTROL) - N_BYTES
    if n_merges < 0:
        raise ValueError(f"a vocabulary needs {len(CONTROL) + N_BYTES} tokens for the bytes alone, got {n_vocab}")
    merges = learn_merges(n_merges)
    tokens = [*CONTROL, *byte_spellings(), *("".join(pair) for pair in merges)]
    types = [gguf.TokenType.CONTROL] * len(CONTROL) + [gguf.TokenType.NORMAL] * (len(tokens) - len(CONTROL))
    for number in range(n_vocab - len(tokens)):
        tokens.append(f"<unused{number}>")
        types.append(gguf.TokenType.UNUSED)
    return tokens, [int(kind) for kind in types], [" ".join(pair) for pair in merges]


# ---- A file's contents ----


@dataclass(frozen=True)
class Raw:
    """A tensor whose bytes are given: data is uint8 [..., bytes of a row], or any array of the type's own elements."""

    data: npt.NDArray[Any]
    dtype: DType


class Omit:
    """In `metadata` and `tensors`: leave this one out."""


OMIT = Omit()
Value = tuple[Any, VType] | Omit
Tensor = Floats | Raw | Omit
DTypeOf = str | Callable[[str], str]


def quantized(values: Floats, dtype: str) -> Raw:
    """A float array as the file holds it in an element type."""
    kind = DType.__members__[dtype]
    return Raw(np.ascontiguousarray(gguf.quants.quantize(np.ascontiguousarray(values, np.float32), kind)), kind)


def array_of(element: VType, values: Sequence[Any]) -> tuple[Any, VType]:
    """A metadata array whose elements have a type of the file's, not the one that the package would pick."""
    return (element, list(values)), VType.ARRAY


def tokenizer_metadata(n_vocab: int = FULL_VOCAB, template: str | None = CHATML, pre: str = "smollm") -> dict[str, Any]:
    """The entries that make a vocabulary: key to (value, type)."""
    tokens, types, merges = vocabulary(n_vocab)
    entries: dict[str, Any] = {
        "tokenizer.ggml.model": ("gpt2", VType.STRING),
        "tokenizer.ggml.pre": (pre, VType.STRING),
        "tokenizer.ggml.tokens": array_of(VType.STRING, tokens),
        "tokenizer.ggml.token_type": array_of(VType.INT32, types),
        "tokenizer.ggml.merges": array_of(VType.STRING, merges),
        "tokenizer.ggml.bos_token_id": (1, VType.UINT32),
        "tokenizer.ggml.eos_token_id": (2, VType.UINT32),
        "tokenizer.ggml.add_bos_token": (False, VType.BOOL),
    }
    if not merges:  # the format has no way to write an empty array of strings with this package
        del entries["tokenizer.ggml.merges"]
    if template is not None:
        entries["tokenizer.chat_template"] = (template, VType.STRING)
    return entries


class _Writer(gguf.GGUFWriter):
    """The package's writer, with arrays whose element type is chosen."""

    def add_typed(self, key: str, value: Any, kind: VType) -> None:
        if kind == VType.ARRAY:
            element, values = value
            self.add_key_value(key, values, VType.ARRAY, sub_type=element)
        else:
            self.add_key_value(key, value, kind)


def write_file(path: str | Path, arch: str, metadata: Mapping[str, Value], tensors: Mapping[str, Tensor]) -> str:
    """Write a file of exactly these entries, general.architecture first (unless it is among them). Returns the path."""
    writer = _Writer(path, arch)
    if "general.architecture" in metadata:
        del writer.kv_data[0]["general.architecture"]
    for key, value in metadata.items():
        if not isinstance(value, Omit):
            writer.add_typed(key, *value)
    for name, tensor in tensors.items():
        if isinstance(tensor, Raw):
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.dtype)
        elif not isinstance(tensor, Omit):
            writer.add_tensor(name, np.ascontiguousarray(tensor, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def write_vocab(
    path: str | Path, *, n_vocab: int = FULL_VOCAB, template: str | None = CHATML, pre: str = "smollm"
) -> str:
    """A file with a vocabulary and no tensor, which is enough for a tokenizer."""
    return write_file(path, "llama", tokenizer_metadata(n_vocab, template, pre), {})


# ---- Weights ----


def _weights(
    rng: np.random.Generator,
    n_layer: int,
    n_embd: int,
    width_q: int,
    width_kv: int,
    n_ff: int,
    n_vocab: int,
    tied: bool,
) -> dict[str, Floats]:
    """Every weight by name; matrices are [out, in] and turn unit variance into about unit variance."""

    def matrix(rows: int, columns: int, gain: float = 1.0) -> Floats:
        out: Floats = (rng.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)
        return out

    def norm() -> Floats:
        out: Floats = (1 + 0.2 * rng.standard_normal(n_embd)).astype(np.float32)
        return out

    weights = {"token_embd.weight": matrix(n_vocab, n_embd, 2.0), "output_norm.weight": norm()}
    if not tied:
        weights["output.weight"] = matrix(n_vocab, n_embd, 2.0)
    for layer in range(n_layer):
        at = f"blk.{layer}."
        weights[at + "attn_norm.weight"] = norm()
        weights[at + "attn_q.weight"] = matrix(width_q, n_embd, 1.5)  # scores with a deviation of about two
        weights[at + "attn_k.weight"] = matrix(width_kv, n_embd, 1.5)
        weights[at + "attn_v.weight"] = matrix(width_kv, n_embd)
        weights[at + "attn_output.weight"] = matrix(n_embd, width_q)
        weights[at + "ffn_norm.weight"] = norm()
        weights[at + "ffn_gate.weight"] = matrix(n_ff, n_embd, 1.5)
        weights[at + "ffn_up.weight"] = matrix(n_ff, n_embd, 1.5)
        weights[at + "ffn_down.weight"] = matrix(n_embd, n_ff)
    return weights


# ---- The model ----


def write_model(
    path: str | Path,
    *,
    arch: str = "llama",
    dtype: DTypeOf = "Q8_0",
    n_layer: int = 2,
    n_embd: int = 64,
    n_head: int = 4,
    n_head_kv: int = 2,
    head_size: int | None = None,
    n_ff: int = 96,
    n_ctx: int = 256,
    n_vocab: int = FULL_VOCAB,
    tied: bool = True,
    seed: int = 0,
    rope_base: float = 10000.0,
    rope_dim: int | None = None,
    rms_eps: float = 1e-5,
    rope_factors: Sequence[float] | None = None,
    template: str | None = CHATML,
    metadata: Mapping[str, Value] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
) -> str:
    """Write a random model and return its path.

    dtype: the element type of the matrices, or a function from a tensor's name to it; vectors are always F32.
    n_vocab: at least 259; more than 512 adds unused tokens.
    head_size: written as attention.key_length and value_length when given, else n_embd / n_head.
    rope_factors: rope_dim / 2 numbers that divide the rotation frequencies (rope_freqs.weight).
    metadata, tensors: replace or add entries by name, or leave them out with OMIT.
    """
    head = head_size if head_size is not None else n_embd // n_head
    entries: dict[str, Any] = {
        f"{arch}.block_count": (n_layer, VType.UINT32),
        f"{arch}.context_length": (n_ctx, VType.UINT32),
        f"{arch}.embedding_length": (n_embd, VType.UINT32),
        f"{arch}.feed_forward_length": (n_ff, VType.UINT32),
        f"{arch}.attention.head_count": (n_head, VType.UINT32),
        f"{arch}.attention.head_count_kv": (n_head_kv, VType.UINT32),
        f"{arch}.rope.freq_base": (rope_base, VType.FLOAT32),
        f"{arch}.attention.layer_norm_rms_epsilon": (rms_eps, VType.FLOAT32),
        f"{arch}.vocab_size": (n_vocab, VType.UINT32),
        f"{arch}.rope.dimension_count": (rope_dim if rope_dim is not None else head, VType.UINT32),
    }
    if head_size is not None:
        entries[f"{arch}.attention.key_length"] = (head_size, VType.UINT32)
        entries[f"{arch}.attention.value_length"] = (head_size, VType.UINT32)
    entries.update(tokenizer_metadata(n_vocab, template))
    rng = np.random.default_rng(seed)
    contents: dict[str, Tensor] = {}
    for name, values in _weights(rng, n_layer, n_embd, n_head * head, n_head_kv * head, n_ff, n_vocab, tied).items():
        kind = "F32" if values.ndim == 1 else dtype(name) if callable(dtype) else dtype
        contents[name] = quantized(values, kind)
    if rope_factors is not None:
        contents["rope_freqs.weight"] = np.asarray(rope_factors, np.float32)
    return write_file(path, arch, {**entries, **(metadata or {})}, {**contents, **(tensors or {})})
