"""GGUF files: their header as values, rows of their tensors as floats, and new ones made of them.

Rank 1: imports errors, _arrays, and its siblings base and facts. C checks the file; nothing here knows models.
"""

from __future__ import annotations

import math
import os
from typing import NamedTuple

from pantheon import errors
from pantheon._arrays import Floats
from pantheon._native.base import Borrowed, Call, Handle, Progress, check, decode, ffi, lib, path_bytes, text_bytes
from pantheon._native.facts import known


class Tensor(NamedTuple):
    """One entry of the tensor directory. `shape` has the contiguous dimension first; `offset`, `size` in bytes.

    `offset` is from the start of the file; of a model that was split, `part` is the number of that file, from 0.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    size: int
    part: int = 0


_NUMBER_TYPES: dict[int, str] = {
    lib.PN_VALUE_U8: "<u1",
    lib.PN_VALUE_I8: "<i1",
    lib.PN_VALUE_U16: "<u2",
    lib.PN_VALUE_I16: "<i2",
    lib.PN_VALUE_U32: "<u4",
    lib.PN_VALUE_I32: "<i4",
    lib.PN_VALUE_F32: "<f4",
    lib.PN_VALUE_BOOL: "?",
    lib.PN_VALUE_U64: "<u8",
    lib.PN_VALUE_I64: "<i8",
    lib.PN_VALUE_F64: "<f8",
}
_SIGNED = {lib.PN_VALUE_I8, lib.PN_VALUE_I16, lib.PN_VALUE_I32, lib.PN_VALUE_I64}
_FLOATING = {lib.PN_VALUE_F32, lib.PN_VALUE_F64}


class GGUFHandle(Handle):
    """Owns one pn_gguf: a file whose header was read and checked."""

    __slots__ = ()
    noun = "GGUF file"

    def __init__(self, path: str | bytes | os.PathLike[str]) -> None:
        super().__init__(lib.pn_gguf_open(path_bytes(path)), lib.pn_gguf_free)


AnyGGUF = GGUFHandle | Borrowed


def gguf_version(gguf: AnyGGUF) -> int:
    """The version of the container, 2 or 3."""
    with gguf as pointer:
        return int(lib.pn_gguf_version(pointer))


def gguf_files(gguf: AnyGGUF) -> tuple[int, int]:
    """Of how many files the model consists, and how many bytes they have together."""
    with gguf as pointer:
        return int(lib.pn_gguf_n_parts(pointer)), int(lib.pn_gguf_size(pointer))


def gguf_keys(gguf: AnyGGUF) -> dict[str, int]:
    """Metadata keys in file order, each with its index."""
    entry = ffi.new("pn_metadata *")
    keys: dict[str, int] = {}
    with gguf as pointer:
        for index in range(int(lib.pn_gguf_n_metadata(pointer))):
            check(lib.pn_gguf_metadata(pointer, index, entry))
            keys[decode(entry.key, entry.key_len)] = index
    return keys


def gguf_value(gguf: AnyGGUF, index: int) -> object:
    """The value of entry `index`: int, float, bool, str, a numpy array of numbers, or a list of str."""
    entry = ffi.new("pn_metadata *")
    with gguf as pointer:
        check(lib.pn_gguf_metadata(pointer, index, entry))
        kind = int(entry.type)
        if kind == lib.PN_VALUE_STRING:
            return decode(entry.str, entry.len)
        if kind == lib.PN_VALUE_ARRAY:
            return _array_value(int(entry.element_type), int(entry.n), bytes(ffi.buffer(entry.str, entry.len)))
        if kind == lib.PN_VALUE_BOOL:
            return bool(entry.u)
        if kind in _FLOATING:
            return float(entry.f)
        return int(entry.i) if kind in _SIGNED else int(entry.u)


def _array_value(element: int, n: int, data: bytes) -> object:
    if element != lib.PN_VALUE_STRING:
        import numpy as np

        return np.frombuffer(data, _NUMBER_TYPES[element], n)  # over bytes: read-only
    strings: list[str] = []
    at = 0
    for _ in range(n):
        end = at + 8 + int.from_bytes(data[at : at + 8], "little")
        strings.append(data[at + 8 : end].decode("utf-8", "replace"))
        at = end
    return strings


def gguf_tensors(gguf: AnyGGUF) -> list[Tensor]:
    """The tensor directory in file order."""
    info = ffi.new("pn_tensor_info *")
    tensors: list[Tensor] = []
    with gguf as pointer:
        for index in range(int(lib.pn_gguf_n_tensors(pointer))):
            check(lib.pn_gguf_tensor(pointer, index, info))
            shape = tuple(int(info.dims[d]) for d in range(info.n_dims))
            type_name = bytes(ffi.string(info.type_name)).decode("ascii")
            name = decode(info.name, info.name_len)
            tensors.append(Tensor(name, shape, type_name, int(info.offset), int(info.size), int(info.part)))
    return tensors


def gguf_rows(gguf: AnyGGUF, tensor: int, row: int, n_rows: int) -> Floats:
    """Rows row .. row + n_rows - 1 of tensor `tensor` as float32[n_rows, its contiguous dimension]."""
    import numpy as np

    info = ffi.new("pn_tensor_info *")
    with gguf as pointer:
        if not 0 <= tensor < int(lib.pn_gguf_n_tensors(pointer)):
            raise errors.ArgumentError(f"there is no tensor {tensor}; the file has {lib.pn_gguf_n_tensors(pointer)}")
        check(lib.pn_gguf_tensor(pointer, tensor, info))
        dims = [int(info.dims[d]) for d in range(info.n_dims)]
        total = math.prod(dims[1:])
        if not (0 <= row <= total and 0 <= n_rows <= total - row):
            raise errors.ArgumentError(f"rows {row} + {n_rows} of tensor {tensor}, which has {total}")
        out = np.empty((n_rows, dims[0]), np.float32)
        check(lib.pn_gguf_read_rows(pointer, tensor, row, n_rows, ffi.from_buffer("float[]", out, True)))
    return out


_TARGETS = [name.lower() for name in known("targets")]
QUANTIZE_TYPES = (*_TARGETS, *(name.removesuffix("_m") for name in _TARGETS if name.endswith("_m")))
"""What the core writes, and its mixtures by their short names too: "q4_k" is "q4_k_m"."""


def quantize(
    in_path: str | bytes | os.PathLike[str],
    out_path: str | bytes | os.PathLike[str],
    type_name: str,
    progress: Progress | None = None,
) -> None:
    """Rewrite a GGUF file with its matrices as one of QUANTIZE_TYPES; whole or not at all; an old one is replaced."""
    call = Call(progress)
    data = ffi.new_handle(call)
    status = lib.pn_quantize(path_bytes(in_path), path_bytes(out_path), text_bytes(type_name), lib.pn_py_progress, data)
    call.check(status == 0)
