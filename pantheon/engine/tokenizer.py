"""Text to token ids and back, from a file's header alone.

Rank 3: imports _native. One thing to know first: `encode` never makes a control token out of text unless it is asked
to (`special=True`); chats never ask.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Sequence
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

    def encode(self, text: str | bytes, *, special: bool = False, bos: bool = False, eos: bool = False) -> _native.Ids:
        """The ids of `text` as uint32[n]; the text may hold NUL, and bytes may be any bytes.

        special: control tokens spelled in the text become their ids (else they are ordinary text).
        bos: put the beginning-of-sequence id in front, if the file asks for one.
        eos: put the end-of-sequence id at the end, if the file asks for one (for whole documents, never for prompts).
        Raises ArgumentError (a ValueError) for a str with a lone surrogate, naming its index.
        """
        import numpy as np

        return np.array(self.encode_buffer(text, special=special, bos=bos, eos=eos), np.uint32)

    def encode_buffer(
        self, text: str | bytes, *, special: bool = False, bos: bool = False, eos: bool = False
    ) -> _native.IdBuffer:
        """encode() as an array.array, for callers that do without numpy."""
        flags = (_native.ENCODE_SPECIAL if special else 0) | (_native.ENCODE_BOS if bos else 0)
        flags |= _native.ENCODE_EOS if eos else 0
        return _native.tokenize(self._handle, _native.text_bytes(text), flags)

    def decode(self, ids: Sequence[int] | npt.ArrayLike, *, special: bool = True) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD. special=False leaves control tokens out."""
        return self.decode_bytes(ids, special=special).decode("utf-8", "replace")

    def decode_bytes(self, ids: Sequence[int] | npt.ArrayLike, *, special: bool = True) -> bytes:
        """The bytes of `ids`, exactly as the tokens have them."""
        tokens: Iterable[int] = _native.as_ids(ids).tolist()
        return b"".join(self.piece(token) for token in tokens if special or not self.is_control(token))

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; for a control token its spelling."""
        return _native.token_piece(self._handle, self._check_id(token))

    def token_id(self, text: str | bytes) -> int | None:
        """The id of the control (or user-defined) token with exactly this text, or None."""
        return _native.token_id(self._handle, _native.text_bytes(text))

    def is_control(self, token: int) -> bool:
        """True for a token that steers the model and is no text."""
        return _native.token_type(self._handle, self._check_id(token)) == _native.TOKEN_CONTROL

    def decoder(self, *, special: bool = False) -> TextDecoder:
        """A decoder for one stream of tokens: what it gives out, joined, equals decode() of all of them."""
        return TextDecoder(self, special)

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


class TextDecoder:
    """Tokens in, text out, as early as possible: bytes are held only until their character is whole."""

    def __init__(self, tokenizer: Tokenizer, special: bool) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that became whole with this token; often, but not always, the token's own text."""
        if not self._special and self._tokenizer.is_control(token):
            return ""
        return self._utf8.decode(self._tokenizer.piece(token))

    def finish(self) -> str:
        """What is left at the end: U+FFFD if the last character never became whole, else nothing."""
        return self._utf8.decode(b"", True)
