"""Vocabularies of SentencePiece: trained or made up, written as GGUF, and as the two references read them.

The references are the `sentencepiece` package, given the vocabulary as a model file of its own format, and the
`tokenizers` package, set up as Hugging Face converts such models (Llama, Phi-3, Gemma).

The one thing to know first: pieces here are spelled as in files, with U+2581 for a space.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import sentencepiece
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
MARK = "\u2581"

CORPUS = """
The capital of France is Paris. The capital of Germany is Berlin, and the user asks what the capital of Spain is.
   Three spaces in front, some    in    between, and a tab\there.  Numbers: 1, 12, 123, 2024; 3.14159 and 10%.
def main(argument): return [value for value in argument if value > 0] # a comment, then an end of line
Größe, Straße, über, Äpfel. L'été à la plage; ça va? Привет, как дела? 日本語の文章。 中文 文章 😀 naïve café №5 ½ ﬁ
She said that she would come again in the morning with her brother, because the house was full, and there was no time.
"""


class Piece(NamedTuple):
    """One token of a vocabulary."""

    text: str
    score: float = 0.0
    kind: int = NORMAL


def byte_pieces() -> list[Piece]:
    """The 256 pieces that bytes fall back to."""
    return [Piece(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]


# ---- The format of SentencePiece's model files: protobuf, of which these few lines are enough ----


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _field(number: int, value: int | float | bytes) -> bytes:
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    return _varint(number << 3) + _varint(value)


def _fields(data: bytes) -> dict[int, list[bytes | int]]:
    """A message's fields by number; those of fixed width as bytes."""
    found: dict[int, list[bytes | int]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            found.setdefault(key >> 3, []).append(varint())
            continue
        size = varint() if key & 7 == 2 else {1: 8, 5: 4}[key & 7]
        found.setdefault(key >> 3, []).append(data[at : at + size])
        at += size
    return found


# ---- Vocabularies ----


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What a file of the kind "llama" holds. space, collapse None: the file does not say."""

    pieces: tuple[Piece, ...]
    space: bool | None = None
    """add_space_prefix, SentencePiece's add_dummy_prefix."""
    collapse: bool | None = None
    """remove_extra_whitespaces."""
    charsmap: bytes = b""
    architecture: str = "llama"
    keys: tuple[tuple[str, Any], ...] = ()
    """Further metadata, by name after "tokenizer.ggml."; None leaves an entry out."""
    template: str = ""
    """The chat template; "": none."""

    def id_of(self, text: str) -> int:
        """The id of the first piece with this text."""
        return [piece.text for piece in self.pieces].index(text)

    def metadata(self) -> dict[str, Any]:
        """The entries after "tokenizer.ggml."."""
        kinds = [piece.kind for piece in self.pieces]
        entries: dict[str, Any] = {
            "model": "llama",
            "tokens": [piece.text for piece in self.pieces],
            "scores": [float(piece.score) for piece in self.pieces],
            "token_type": kinds,
        }
        for name, kind in (("unknown_token_id", UNKNOWN),):
            if kind in kinds:
                entries[name] = kinds.index(kind)
        for name, text in (("bos_token_id", "<s>"), ("eos_token_id", "</s>")):
            if text in entries["tokens"]:
                entries[name] = self.id_of(text)
        entries["add_space_prefix"] = self.space
        entries["remove_extra_whitespaces"] = self.collapse
        if self.charsmap:
            entries["precompiled_charsmap"] = self.charsmap
        entries.update(self.keys)
        return {name: value for name, value in entries.items() if value is not None}

    def write(self, path: Path) -> Path:
        """A GGUF file with the tokenizer and nothing else."""
        writer = gguf.GGUFWriter(path, self.architecture)
        if self.template:
            writer.add_chat_template(self.template)
        for name, value in self.metadata().items():
            key = f"tokenizer.ggml.{name}"
            if isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, int):
                writer.add_uint32(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)
            else:
                writer.add_array(key, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def sentencepiece(self) -> sentencepiece.SentencePieceProcessor:
        """SentencePiece's own idea of this vocabulary."""
        kinds = [piece.kind for piece in self.pieces]
        texts = [piece.text for piece in self.pieces]
        model = b"".join(
            _field(1, _field(1, piece.text.encode()) + _field(2, float(piece.score)) + _field(3, piece.kind))
            for piece in self.pieces
        )
        ids = [kinds.index(UNKNOWN), texts.index("<s>"), texts.index("</s>")]
        trainer = _field(3, 2) + _field(35, int(BYTE in kinds))
        trainer += b"".join(_field(40 + number, value) for number, value in enumerate(ids))
        space = True if self.space is None else self.space
        normalizer = _field(2, self.charsmap) + _field(3, int(space)) + _field(4, int(self.collapse or False))
        model += _field(2, trainer) + _field(3, normalizer + _field(5, 1))
        return sentencepiece.SentencePieceProcessor(model_proto=model)

    def fast(self, scheme: str, *, rstrip: Sequence[str] = (), special: bool = True) -> tokenizers.Tokenizer:
        """The conversion for `tokenizers`. scheme: a space in front "always" (of each part), "first", or "never".

        special: control and user-defined tokens are found in text; rstrip: those that swallow the white space behind.
        """
        ids = {piece.text: number for number, piece in enumerate(self.pieces)}
        merges = []
        for piece in self.pieces:
            ways = [(piece.text[:cut], piece.text[cut:]) for cut in range(1, len(piece.text))]
            merges += [(piece.score, left, right) for left, right in ways if left in ids and right in ids]
        merges.sort(key=lambda merge: -merge[0])
        unknown = next((piece.text for piece in self.pieces if piece.kind == UNKNOWN), None)
        model = models.BPE(
            ids, [(left, right) for _, left, right in merges], unk_token=unknown, fuse_unk=True, byte_fallback=True
        )
        fast = tokenizers.Tokenizer(model)
        replace = normalizers.Replace(" ", MARK)
        if scheme == "first":
            fast.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme="first", split=False)
        elif scheme == "always":
            fast.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), replace])
        else:
            fast.normalizer = replace
        strip = [decoders.Strip(" ", 1, 0)] if scheme != "never" else []
        fast.decoder = decoders.Sequence(
            [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        )
        if special:
            fast.add_special_tokens(
                [
                    AddedToken(piece.text, special=True, normalized=False, rstrip=piece.text in rstrip)
                    for piece in self.pieces
                    if piece.kind in (CONTROL, USER_DEFINED)
                ]
            )
        return fast


@cache
def trained(
    size: int = 420, *, bytes_: bool = True, space: bool = True, collapse: bool = False, rule: str = "identity",
    symbols: tuple[str, ...] = (), control: tuple[str, ...] = (),
) -> Vocabulary:  # fmt: skip
    """A vocabulary that SentencePiece learned from the text above."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.splitlines()),
        model_writer=model,
        model_type="bpe",
        vocab_size=size,
        byte_fallback=bytes_,
        character_coverage=0.98,
        add_dummy_prefix=space,
        remove_extra_whitespaces=collapse,
        normalization_rule_name=rule,
        user_defined_symbols=list(symbols),
        control_symbols=list(control),
        split_digits=True,
        allow_whitespace_only_pieces=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return from_model(model.getvalue(), space=space, collapse=collapse)


def from_model(model: bytes, **flags: Any) -> Vocabulary:
    """The vocabulary of a model file, its types and character map included."""
    parsed = _fields(model)
    pieces = []
    for piece in map(_fields, (field for field in parsed[1] if isinstance(field, bytes))):
        text, score, kind = piece[1][0], piece.get(2, [bytes(4)])[0], piece.get(3, [NORMAL])[0]
        assert isinstance(text, bytes)
        assert isinstance(score, bytes)
        assert isinstance(kind, int)
        pieces.append(Piece(text.decode(), struct.unpack("<f", score)[0], kind))
    normalizer = parsed[3][0]
    assert isinstance(normalizer, bytes)
    charsmap = _fields(normalizer).get(2, [b""])[0]
    assert isinstance(charsmap, bytes)
    return Vocabulary(pieces=tuple(pieces), charsmap=charsmap, **flags)
