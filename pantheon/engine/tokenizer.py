"""Text to token ids and back, from a file's header alone.

Rank 3: imports _native. One thing to know first: `encode` never makes a control token out of text unless it is asked
to (`special=True`); chats never ask.

The second thing: vocabularies of SentencePiece put a space in front of a text, which decoding takes off again. Where a
text stands decides about both, so whoever encodes or decodes a part of something longer says what came `after`.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from pantheon import _native
from pantheon.engine.sampling import check_integer

if TYPE_CHECKING:
    import numpy.typing as npt


class Tokenizer:
    """The tokenizer of one model file. Immutable; any number of threads may share it."""

    def __init__(self, handle: _native.AnyTokenizer) -> None:
        """Internal: use Tokenizer.from_file() or model.tokenizer."""
        self._handle = handle
        self._facts = _native.tokenizer_facts(handle)

    @classmethod
    def from_file(cls, path: str | bytes | os.PathLike[str]) -> Tokenizer:
        """Read the tokenizer of a GGUF file without touching its weights.

        Raises a ModelFileError if the file cannot be read, UnsupportedError for a kind of tokenizer not known here.
        """
        return cls(_native.TokenizerHandle(path))

    def encode(
        self,
        text: str | bytes,
        *,
        special: bool = False,
        bos: bool = False,
        eos: bool = False,
        after: int | None = None,
    ) -> _native.Ids:
        """The ids of `text` as uint32[n]; the text may hold NUL, and bytes may be any bytes.

        special: control tokens spelled in the text become their ids (else they are ordinary text).
        bos: put the beginning-of-sequence id in front, if the file asks for one.
        eos: put the end-of-sequence id at the end, if the file asks for one (for whole documents, never for prompts).
        after: the token that the text follows; None: it begins. What the vocabulary's reference does at the beginning
        of a text, or behind a control token, then happens there and nowhere else. Goes with bos=False only.
        Raises ArgumentError (a ValueError) for a str with a lone surrogate, naming its index.
        """
        import numpy as np

        return np.array(self.encode_buffer(text, special=special, bos=bos, eos=eos, after=after), np.uint32)

    def encode_buffer(
        self,
        text: str | bytes,
        *,
        special: bool = False,
        bos: bool = False,
        eos: bool = False,
        after: int | None = None,
    ) -> _native.IdBuffer:
        """encode() as an array.array, for callers that do without numpy."""
        flags = (_native.ENCODE_SPECIAL if special else 0) | (_native.ENCODE_BOS if bos else 0)
        flags |= _native.ENCODE_EOS if eos else 0
        return _native.tokenize(self._handle, _native.text_bytes(text), flags, self._check_after(after))

    def decode(self, ids: Sequence[int] | npt.ArrayLike, *, special: bool = True, after: int | None = None) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD.

        special=False leaves control tokens out. after: the token that the ids follow; None: they begin a text. The
        space that encode() puts in front of a text there is taken off, once.
        """
        return self.decode_bytes(ids, special=special, after=after).decode("utf-8", "replace")

    def decode_bytes(
        self, ids: Sequence[int] | npt.ArrayLike, *, special: bool = True, after: int | None = None
    ) -> bytes:
        """The bytes of decode(), as the tokens have them."""
        return _native.detokenize(self._handle, _native.as_ids(ids), special, self._check_after(after))

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for, a space in front included; for a control token its spelling."""
        return _native.token_piece(self._handle, self._check_id(token))

    def token_id(self, text: str | bytes) -> int | None:
        """The id of the control (or user-defined) token with exactly this text, or None.

        User-defined tokens that are ordinary text, such as runs of line ends, do not count.
        """
        return _native.token_id(self._handle, _native.text_bytes(text))

    def is_control(self, token: int) -> bool:
        """True for a token that steers the model and is no text."""
        return _native.token_type(self._handle, self._check_id(token)) == _native.TOKEN_CONTROL

    def adds_space(self, after: int | None = None) -> bool:
        """Whether encode(..., after=after) puts a space in front of a text, and decoding takes it off."""
        return _native.adds_space(self._handle, self._check_after(after))

    def decoder(self, *, special: bool = False, after: int | None = None) -> TextDecoder:
        """A decoder for one stream of tokens: what it gives out, joined, equals decode() of all of them."""
        return TextDecoder(self, special, after)

    @property
    def n_vocab(self) -> int:
        """How many tokens there are; ids are 0..n_vocab-1."""
        return self._facts.n_vocab

    @property
    def bos(self) -> int | None:
        """The id that begins a sequence, or None."""
        return self._facts.bos

    @property
    def eos(self) -> int | None:
        """The id that ends a sequence, or None."""
        return self._facts.eos

    @property
    def add_bos(self) -> bool:
        """True if the file asks for the beginning-of-sequence id in front of a text."""
        return self._facts.add_bos

    @property
    def add_eos(self) -> bool:
        """True if the file asks for the end-of-sequence id at the end of a text."""
        return self._facts.add_eos

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids that end a reply by the file's metadata, ascending."""
        return self._facts.stop_ids

    def close(self) -> None:
        """Free the tokenizer's memory (a model's own tokenizer is freed with the model). Idempotent."""
        self._handle.close()

    def __enter__(self) -> Tokenizer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> str:
        raise TypeError("a Tokenizer holds memory of this process and cannot be pickled")

    def __repr__(self) -> str:
        return f"<pantheon.Tokenizer: {self.n_vocab} tokens>"

    def _check_id(self, token: int) -> int:
        return check_integer("a token id", token, 0, self.n_vocab - 1)

    def _check_after(self, after: int | None) -> int:
        return -1 if after is None else self._check_id(after)


class PieceDecoder:
    """Tokens in, bytes out: the pieces of the tokens, but for the space in front of a text.

    That space is the first byte of the first token that is no control token, as in SentencePiece: control tokens before
    it are no text, and one in the middle begins none.
    """

    def __init__(self, tokenizer: Tokenizer, special: bool, after: int | None) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._drops_space = tokenizer.adds_space(after)

    def push(self, token: int) -> bytes:
        """The token's bytes in the text."""
        if self._tokenizer.is_control(token):
            return self._tokenizer.piece(token) if self._special else b""
        piece = self._tokenizer.piece(token)
        if self._drops_space and piece:
            self._drops_space = False
            return piece.removeprefix(b" ")
        return piece


class TextDecoder:
    """Tokens in, text out, as early as possible: bytes are held only until their character is whole."""

    def __init__(self, tokenizer: Tokenizer, special: bool, after: int | None) -> None:
        self._pieces = PieceDecoder(tokenizer, special, after)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that became whole with this token; often, but not always, the token's own text."""
        return self._utf8.decode(self._pieces.push(token))

    def finish(self) -> str:
        """What is left at the end: U+FFFD if the last character never became whole, else nothing."""
        return self._utf8.decode(b"", True)
