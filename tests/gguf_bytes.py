"""Files for the tests of the container: written byte by byte, or with the `gguf` package, and read through C.

Shared by test_gguf.py and test_quantize.py. Nothing here reads a file the way the core does: the builders only put
numbers one after the other, and the values to compare with come from the `gguf` package.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import quant_blocks

from pantheon._core import ffi, lib

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
DType = gguf.GGMLQuantizationType
VType = gguf.GGUFValueType

READABLE = [DType[name] for name in quant_blocks.READABLE]
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


# ---- Byte by byte ----


def string(text: str | bytes) -> bytes:
    """u64 length, then the bytes."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def header(n_tensors: int, n_entries: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_entries)


def entry(key: str | bytes, value_type: int, value: bytes) -> bytes:
    """One metadata entry; `value` is already encoded."""
    return string(key) + struct.pack("<I", value_type) + value


def array(element_type: int, n: int, elements: bytes = b"") -> bytes:
    """The value of an entry of type 9."""
    return struct.pack("<IQ", element_type, n) + elements


def tensor(name: str, dims: Sequence[int], element_type: int, offset: int) -> bytes:
    """One entry of the tensor directory; the count of dimensions is that of `dims`."""
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, element_type, offset)


def pad(data: bytes, alignment: int = 32) -> bytes:
    return data + bytes(-len(data) % alignment)


# ---- With the package ----


@dataclass(frozen=True)
class Tensor:
    """Raw rows as the file holds them: data is uint8 [..., bytes of a row], the rest follows from the type."""

    name: str
    data: Bytes
    dtype: DType

    def floats(self) -> Floats:
        """What the package reads from it, [..., elements of a row]."""
        with np.errstate(all="ignore"):
            return np.asarray(gguf.quants.dequantize(self.data, self.dtype), dtype=np.float32)


def random_tensor(
    name: str, shape: Sequence[int], dtype: DType, seed: int = 0, scale: float = 1.0, special: bool = False
) -> Tensor:
    """A tensor of numpy shape (last dimension contiguous); special: any bytes, with NaN and infinity among them."""
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[dtype]
    rng = np.random.default_rng(seed)
    row_shape = (*shape[:-1], shape[-1] // block_len * block_bytes)
    if special or dtype not in READABLE:
        return Tensor(name, rng.integers(0, 256, row_shape, dtype=np.uint8), dtype)
    n_rows = int(np.prod(shape[:-1]))
    return Tensor(name, quant_blocks.random_rows(dtype.name, n_rows, shape[-1], seed, scale).reshape(row_shape), dtype)


def write_gguf(
    path: Path, tensors: Sequence[Tensor] = (), metadata: Sequence[tuple[str, Any, VType]] = (), alignment: int = 0
) -> Path:
    """Write a file with the package: general.architecture first, then metadata in order, then the alignment if any."""
    writer = gguf.GGUFWriter(path, "test")
    for key, value, value_type in metadata:
        writer.add_key_value(key, value, value_type)
    if alignment:
        writer.add_custom_alignment(alignment)
    for t in tensors:
        writer.add_tensor(t.name, t.data, raw_dtype=t.dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# ---- Through C ----


def last_error() -> str:
    """The message of this thread's last failure."""
    return bytes(ffi.string(lib.pn_last_error())).decode("utf-8", "replace")


@contextmanager
def opened(path: Path | bytes) -> Iterator[Any]:
    """The pn_gguf of a file that must open."""
    raw = path if isinstance(path, bytes) else str(path).encode()
    handle = lib.pn_gguf_open(raw)
    assert handle != ffi.NULL, last_error()
    try:
        yield handle
    finally:
        lib.pn_gguf_free(handle)


def refusal(path: Path | str) -> tuple[int, str]:
    """Status and message for a file that must not open."""
    handle = lib.pn_gguf_open(str(path).encode())
    if handle != ffi.NULL:
        lib.pn_gguf_free(handle)
        raise AssertionError(f"{path} was opened")
    return int(lib.pn_last_status()), last_error()


def read_value(item: Any) -> Any:
    """A pn_metadata as a Python value; strings as bytes."""
    if item.type == VType.STRING:
        return bytes(ffi.buffer(item.str, item.len))
    if item.type == VType.ARRAY:
        raw = bytes(ffi.buffer(item.str, item.len)) if item.len else b""
        if item.element_type != VType.STRING:
            return list(struct.unpack(f"<{item.n}{SCALARS[item.element_type]}", raw))
        strings, at = [], 0
        for _ in range(item.n):
            (length,) = struct.unpack_from("<Q", raw, at)
            strings.append(raw[at + 8 : at + 8 + length])
            at += 8 + length
        assert at == len(raw)
        return strings
    if item.type == VType.BOOL:
        return bool(item.u)
    if item.type in (VType.FLOAT32, VType.FLOAT64):
        return float(item.f)
    return int(item.i if item.type in (VType.INT8, VType.INT16, VType.INT32, VType.INT64) else item.u)


def read_metadata(handle: Any) -> list[tuple[bytes, int, Any]]:
    """Every entry in file order: key, value type, value."""
    item = ffi.new("pn_metadata *")
    entries = []
    for index in range(lib.pn_gguf_n_metadata(handle)):
        assert lib.pn_gguf_metadata(handle, index, item) == lib.PN_OK
        entries.append((bytes(ffi.buffer(item.key, item.key_len)), int(item.type), read_value(item)))
    return entries


def read_info(handle: Any, index: int) -> Any:
    """The pn_tensor_info of a tensor."""
    info = ffi.new("pn_tensor_info *")
    assert lib.pn_gguf_tensor(handle, index, info) == lib.PN_OK
    return info


def read_floats(handle: Any, index: int) -> Floats:
    """A whole tensor, [rows, elements of a row]."""
    info = read_info(handle, index)
    rows = info.dims[1] * info.dims[2] * info.dims[3]
    out = np.empty((rows, info.dims[0]), np.float32)
    status = lib.pn_gguf_read_rows(handle, index, 0, rows, ffi.from_buffer("float[]", out, require_writable=True))
    assert status == lib.PN_OK, last_error()
    return out


def same_bits(got: Floats, want: Floats) -> bool:
    """Equal to the bit; where the oracle has NaN any NaN will do, for its payload depends on the machine."""
    got, want = got.reshape(-1), want.reshape(-1)
    nan = np.isnan(want)
    equal = got.view(np.uint32) == want.view(np.uint32)
    return len(got) == len(want) and bool((np.isnan(got) == nan).all() and (equal | nan).all())
