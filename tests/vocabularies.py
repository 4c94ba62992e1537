"""Vocabularies for tests: made and real ones, as files of ours and as tokenizers of the reference library.

Files are written with the `gguf` package and read with it, so nothing of ours takes part in making expected ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import tokenizers
from tokenizers import AddedToken, models, pre_tokenizers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def spelling_of_bytes() -> list[str]:
    """GPT-2's printable character for each byte, as published with the model."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]


SPELLING = spelling_of_bytes()


def spell(data: bytes) -> str:
    """Bytes in the spelling of byte-level vocabularies."""
    return "".join(SPELLING[byte] for byte in data)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What a tokenizer file holds. types None: all normal; keys: further metadata, by name after "tokenizer.ggml."."""

    tokens: Sequence[str]
    merges: Sequence[str]
    types: Sequence[int] | None = None
    keys: tuple[tuple[str, Any], ...] = ()

    def oracle(self, pre: str, *, special: bool = False) -> tokenizers.Tokenizer:
        """The reference tokenizer; with special=True it also knows the control and user-defined tokens."""
        ids: dict[str, int] = {}
        for number, token in enumerate(self.tokens):
            ids.setdefault(token, number)
        reference = tokenizers.Tokenizer(
            models.BPE(ids, [(left, right) for left, right in (merge.split(" ") for merge in self.merges)])
        )
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        digits = pre_tokenizers.Digits(individual_digits=True)
        reference.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level]) if pre == "smollm" else byte_level
        if special:
            types = self.types or []
            reference.add_special_tokens(
                [
                    AddedToken(token, special=True, normalized=False)
                    for token, kind in zip(self.tokens, types, strict=True)
                    if kind in (CONTROL, USER_DEFINED)
                ]
            )
        return reference

    def write(self, path: Path, pre: str | None = "gpt-2", model: str = "gpt2", architecture: str = "llama") -> Path:
        """A GGUF file with the tokenizer and nothing else."""
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_tokenizer_model(model)
        if pre is not None:
            writer.add_tokenizer_pre(pre)
        writer.add_token_list(list(self.tokens))
        if self.types is not None:
            writer.add_token_types(list(self.types))
        writer.add_token_merges(list(self.merges))
        for name, value in self.keys:
            add_key(writer, f"tokenizer.ggml.{name}", value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def add_key(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    """One metadata entry in the type that files usually have it in."""
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        writer.add_array(name, list(value))


def made_vocabulary(words: Iterable[bytes] = (), extra: Iterable[tuple[str, int]] = (), **keys: Any) -> Vocabulary:
    """All 256 bytes, each word with merges that build it from left to right, then `extra` tokens (text, type)."""
    tokens = list(SPELLING)
    merges = []
    for word in words:
        for end in range(2, len(word) + 1):
            merges.append(f"{spell(word[: end - 1])} {spell(word[end - 1 : end])}")
            tokens.append(spell(word[:end]))
    types = [NORMAL] * len(tokens)
    for text, kind in extra:
        tokens.append(text)
        types.append(kind)
    return Vocabulary(tokens=tokens, merges=merges or ["a b"], types=types, keys=tuple(keys.items()))


def replaced(vocabulary: Vocabulary, **changes: Any) -> Vocabulary:
    """The vocabulary with some of its fields changed."""
    return Vocabulary(**{**vocabulary.__dict__, **changes})


@cache
def read_vocabulary(path: str) -> Vocabulary:
    """The vocabulary of a file as the `gguf` package reads it."""
    fields = gguf.GGUFReader(path).fields

    def value(name: str) -> Any:
        return fields[f"tokenizer.ggml.{name}"].contents()

    keys = tuple((name, int(value(name))) for name in ("bos_token_id", "eos_token_id", "unknown_token_id"))
    return Vocabulary(tokens=value("tokens"), merges=value("merges"), types=value("token_type"), keys=keys)
