"""Text to ids and back. Rank 1: imports _arrays, and its siblings base and files."""

from __future__ import annotations

import os
from array import array
from typing import NamedTuple

from pantheon._arrays import ID_CODE, IdBuffer, Ids
from pantheon._native.base import Borrowed, Handle, fail, ffi, last_error, lib
from pantheon._native.files import GGUFHandle

ENCODE_SPECIAL = int(lib.PN_ENCODE_SPECIAL)
ENCODE_BOS, ENCODE_EOS = int(lib.PN_ENCODE_BOS), int(lib.PN_ENCODE_EOS)
TOKEN_CONTROL = 3


class TokenizerHandle(Handle):
    """Owns one pn_tokenizer, built from a file's header alone."""

    __slots__ = ()
    noun = "tokenizer"

    def __init__(self, path: str | bytes | os.PathLike[str]) -> None:
        gguf = GGUFHandle(path)
        try:
            with gguf as pointer:
                super().__init__(lib.pn_tokenizer_new(pointer), lib.pn_tokenizer_free)
        finally:
            gguf.close()


AnyTokenizer = TokenizerHandle | Borrowed


class TokenizerFacts(NamedTuple):
    """What a tokenizer says about itself; ids are None where the file names none."""

    n_vocab: int
    bos: int | None
    eos: int | None
    add_bos: bool
    add_eos: bool
    stop_ids: tuple[int, ...]


def tokenizer_facts(tokenizer: AnyTokenizer) -> TokenizerFacts:
    """Read them all at once: they never change."""
    with tokenizer as pointer:
        n_stop = int(lib.pn_tokenizer_stop_ids(pointer, ffi.NULL, 0))
        stop = ffi.new("uint32_t[]", max(n_stop, 1))
        lib.pn_tokenizer_stop_ids(pointer, stop, n_stop)
        bos, eos = int(lib.pn_tokenizer_bos(pointer)), int(lib.pn_tokenizer_eos(pointer))
        return TokenizerFacts(
            int(lib.pn_tokenizer_n_vocab(pointer)),
            bos if bos >= 0 else None,
            eos if eos >= 0 else None,
            bool(lib.pn_tokenizer_add_bos(pointer)),
            bool(lib.pn_tokenizer_add_eos(pointer)),
            tuple(int(stop[i]) for i in range(n_stop)),
        )


def tokenize(tokenizer: AnyTokenizer, text: bytes, flags: int, previous: int = -1) -> IdBuffer:
    """Ids of `text`, which may hold NUL and invalid UTF-8; previous: the token that it follows, -1: it begins."""
    ids, n = array(ID_CODE), len(text) + 2  # seldom more
    with tokenizer as pointer:
        while n > len(ids):
            ids = array(ID_CODE, bytes(4 * n))
            room = ffi.from_buffer("uint32_t[]", ids, True)
            n = int(lib.pn_tokenize_after(pointer, previous, ffi.from_buffer(text), len(text), flags, room, len(ids)))
    if n < 0:
        raise last_error(-n)
    return ids[:n]


def adds_space(tokenizer: AnyTokenizer, previous: int) -> bool:
    """Whether a text that follows this token (-1: begins) gets a space in front, which decoding drops."""
    with tokenizer as pointer:
        return bool(lib.pn_tokenizer_adds_space(pointer, previous))


def token_piece(tokenizer: AnyTokenizer, token: int) -> bytes:
    """The bytes of a token, for a control token its spelling."""
    length = ffi.new("size_t *")
    with tokenizer as pointer:
        piece = lib.pn_token_piece(pointer, token, length)
        if piece == ffi.NULL:
            fail()
        return bytes(ffi.buffer(piece, length[0]))


def detokenize(tokenizer: AnyTokenizer, ids: Ids | IdBuffer, special: bool, previous: int) -> bytes:
    """The bytes of many tokens at once; special: control tokens are spelled out; previous: as in tokenize()."""
    with tokenizer as pointer:
        room = ffi.from_buffer("uint32_t[]", ids)
        n = int(lib.pn_detokenize(pointer, previous, room, len(ids), special, ffi.NULL, 0))
        if n < 0:
            raise last_error(-n)
        out = bytearray(n)
        lib.pn_detokenize(pointer, previous, room, len(ids), special, ffi.from_buffer("char[]", out, True), n)
    return bytes(out)


def token_id(tokenizer: AnyTokenizer, text: bytes) -> int | None:
    """The id of the control or user-defined token with exactly this text."""
    with tokenizer as pointer:
        token = int(lib.pn_token_id(pointer, ffi.from_buffer("char[]", text), len(text)))
    return token if token >= 0 else None


def token_type(tokenizer: AnyTokenizer, token: int) -> int:
    """1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte; 0 if there is no such token."""
    with tokenizer as pointer:
        return int(lib.pn_token_type(pointer, token))
