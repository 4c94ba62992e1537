"""Reading of GGUF files, through the C functions alone.

The oracle is the `gguf` package, which no one here wrote: equal metadata, equal directory, equal floats to the bit.
Files that must be refused are built byte by byte; each has a status and words that its message must hold.
"""

from __future__ import annotations

import os
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import quant_blocks
from gguf_bytes import (
    READABLE,
    DType,
    Tensor,
    VType,
    array,
    entry,
    header,
    last_error,
    opened,
    pad,
    random_tensor,
    read_floats,
    read_info,
    read_metadata,
    refusal,
    same_bits,
    string,
    tensor,
    write_gguf,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from pantheon._core import ffi, lib

INTEGERS = {
    VType.UINT8: (0, 2**8 - 1),
    VType.INT8: (-(2**7), 2**7 - 1),
    VType.UINT16: (0, 2**16 - 1),
    VType.INT16: (-(2**15), 2**15 - 1),
    VType.UINT32: (0, 2**32 - 1),
    VType.INT32: (-(2**31), 2**31 - 1),
    VType.UINT64: (0, 2**64 - 1),
    VType.INT64: (-(2**63), 2**63 - 1),
}


# ---- What is right is read as the package reads it ----


def scalars() -> st.SearchStrategy[tuple[Any, VType]]:
    """A value and its type, for every type that is not an array."""
    kinds: list[st.SearchStrategy[tuple[Any, VType]]] = [
        st.tuples(st.integers(*limits), st.just(value_type)) for value_type, limits in INTEGERS.items()
    ]
    kinds.append(st.tuples(st.floats(width=32, allow_nan=False), st.just(VType.FLOAT32)))
    kinds.append(st.tuples(st.floats(allow_nan=False), st.just(VType.FLOAT64)))
    kinds.append(st.tuples(st.booleans(), st.just(VType.BOOL)))
    kinds.append(st.tuples(st.text(), st.just(VType.STRING)))
    return st.one_of(kinds)


def arrays() -> st.SearchStrategy[tuple[Any, VType]]:
    """Arrays whose element type the package chooses by the Python type: i32, f32, bool, string."""
    elements = [
        st.integers(-(2**31), 2**31 - 1),
        st.floats(width=32, allow_nan=False),
        st.booleans(),
        st.text(max_size=20),
    ]
    return st.one_of([st.tuples(st.lists(e, min_size=1, max_size=20), st.just(VType.ARRAY)) for e in elements])


def plain(value: Any) -> Any:
    """Strings as bytes, as the core hands them out."""
    if isinstance(value, str):
        return value.encode()
    return [plain(v) for v in value] if isinstance(value, list) else value


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=30).filter(lambda key: not key.startswith("general.")),
        st.one_of(scalars(), arrays()),
        max_size=12,
    )
)
def test_metadata_of_any_kind_comes_back_in_order_with_type_and_value(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, tuple[Any, VType]]
) -> None:
    path = tmp_path_factory.mktemp("metadata") / "m.gguf"
    write_gguf(path, metadata=[(key, value, kind) for key, (value, kind) in values.items()])
    with opened(path) as handle:
        got = read_metadata(handle)
    assert got[0] == (b"general.architecture", VType.STRING, b"test")
    assert got[1:] == [(key.encode(), kind, plain(value)) for key, (value, kind) in values.items()]


@pytest.mark.parametrize("dtype", READABLE, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("special", [False, True], ids=["numbers", "any bytes"])
def test_floats_of_every_type_equal_the_package_to_the_bit(tmp_path: Path, dtype: DType, special: bool) -> None:
    block_len = max(gguf.GGML_QUANT_SIZES[dtype][0], 32)
    tensors = [
        random_tensor("vector.weight", (256,), dtype, 1, special=special),
        random_tensor("matrix.weight", (37, 3 * block_len), dtype, 2, special=special),
        random_tensor("cube.weight", (3, 5, 2 * block_len), dtype, 3, special=special),
        random_tensor("experts.weight", (2, 3, 4, block_len), dtype, 4, special=special),
    ]
    path = write_gguf(tmp_path / "t.gguf", tensors)
    reader = gguf.GGUFReader(path)
    with opened(path) as handle:
        assert lib.pn_gguf_n_tensors(handle) == len(tensors)
        for index, (t, theirs) in enumerate(zip(tensors, reader.tensors, strict=True)):
            info = read_info(handle, index)
            assert bytes(ffi.buffer(info.name, info.name_len)) == t.name.encode()
            assert list(info.dims)[: info.n_dims] == theirs.shape.tolist()
            assert (info.type, info.offset, info.size) == (dtype, theirs.data_offset, theirs.n_bytes)
            assert same_bits(read_floats(handle, index), t.floats())


@pytest.mark.parametrize("name", quant_blocks.READABLE)
def test_random_rows_are_fit_to_be_weights_and_reach_every_code(name: str) -> None:
    raw = quant_blocks.random_rows(name, 64, 512, 1, std=0.03)
    values = gguf.quants.dequantize(raw, DType[name]).astype(np.float64)
    assert values.shape == (64, 512)
    assert np.isfinite(values).all()
    assert 0.02 < values.std() < 0.04
    assert abs(values.mean()) < 0.005
    assert (raw == quant_blocks.random_rows(name, 64, 512, 1, std=0.03)).all()
    if name in quant_blocks.LAYOUTS:
        assert len(np.unique(raw)) == 256


def test_the_halves_of_every_bit_pattern_equal_numpy(tmp_path: Path) -> None:
    halves = Tensor("all", np.arange(2**16, dtype=np.uint16).view(np.uint8).reshape(256, 512), DType.F16)
    with opened(write_gguf(tmp_path / "h.gguf", [halves])) as handle:
        assert same_bits(read_floats(handle, 0), halves.floats())


def test_rows_are_counted_through_the_higher_dimensions_and_the_range_is_checked(tmp_path: Path) -> None:
    t = random_tensor("x", (2, 3, 64), DType.Q8_0)
    out = np.full((2, 64), 7, np.float32)
    buffer = ffi.from_buffer("float[]", out, require_writable=True)
    with opened(write_gguf(tmp_path / "r.gguf", [t])) as handle:
        assert lib.pn_gguf_read_rows(handle, 0, 2, 2, buffer) == lib.PN_OK
        assert same_bits(out, t.floats().reshape(6, 64)[2:4])
        for row, n in [(5, 2), (7, 0), (0, 2**64 - 1), (2**64 - 1, 2)]:
            assert lib.pn_gguf_read_rows(handle, 0, row, n, buffer) == lib.PN_ERR_ARGUMENT
        assert lib.pn_gguf_read_rows(handle, 1, 0, 1, buffer) == lib.PN_ERR_ARGUMENT


def test_every_type_that_the_package_knows_is_listed_or_refused_by_name(tmp_path: Path) -> None:
    listed = 0
    for dtype, (block_len, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        path = write_gguf(tmp_path / f"{dtype.name}.gguf", [random_tensor("some.weight", (4, block_len * 2), dtype)])
        raw = lib.pn_gguf_open(str(path).encode())
        if raw == ffi.NULL:  # newer than this version of the core
            assert lib.pn_last_status() == lib.PN_ERR_UNSUPPORTED
            assert f"element type number {int(dtype)}" in last_error()
            continue
        listed += 1
        info = read_info(raw, 0)
        assert bytes(ffi.string(info.type_name)).decode() == dtype.name
        assert info.size == 4 * 2 * block_bytes
        if dtype not in READABLE:
            out = ffi.new("float[]", block_len * 2)
            assert lib.pn_gguf_read_rows(raw, 0, 0, 1, out) == lib.PN_ERR_UNSUPPORTED
            assert "some.weight" in last_error()
            assert dtype.name in last_error()
        lib.pn_gguf_free(raw)
    assert listed >= 32


def test_version_2_reads_like_version_3(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "v3.gguf", [random_tensor("x", (2, 32), DType.F32)])
    data = bytearray(path.read_bytes())
    data[4] = 2
    (tmp_path / "v2.gguf").write_bytes(data)
    with opened(path) as new, opened(tmp_path / "v2.gguf") as old:
        assert (lib.pn_gguf_version(new), lib.pn_gguf_version(old)) == (3, 2)
        assert read_metadata(new) == read_metadata(old)
        assert same_bits(read_floats(old, 0), read_floats(new, 0))


def test_an_alignment_of_the_file_is_obeyed(tmp_path: Path) -> None:
    tensors = [random_tensor(f"t{i}", (1, 5), DType.F32, i) for i in range(3)]
    with opened(write_gguf(tmp_path / "a.gguf", tensors, alignment=512)) as handle:
        for i, t in enumerate(tensors):
            assert read_info(handle, i).offset % 512 == 0
            assert same_bits(read_floats(handle, i), t.floats())


def test_a_vocabulary_of_250000_opens(tmp_path: Path) -> None:
    tokens = b"".join(string(f"token{i}") for i in range(250_000))
    path = tmp_path / "v.gguf"
    path.write_bytes(header(0, 1) + entry("tokenizer.ggml.tokens", 9, array(8, 250_000, tokens)))
    with opened(path) as handle:
        assert lib.pn_gguf_n_metadata(handle) == 1


# ---- What is wrong is refused, with the cause ----

DATA = bytes(128)


def one(dims: list[int], element_type: int = 0, offset: int = 0, data: bytes = DATA) -> bytes:
    """A file of one tensor."""
    return pad(header(1, 0) + tensor("blk.0.x", dims, element_type, offset)) + data


def pair(first: int, second: int) -> bytes:
    """A file of two tensors of 32 bytes each at these offsets."""
    return pad(header(2, 0) + tensor("one", [8], 0, first) + tensor("two", [8], 0, second)) + DATA


def alignment(value: int, value_type: int = 4) -> bytes:
    return header(0, 1) + entry("general.alignment", value_type, struct.pack("<I", value))


MALFORMED: dict[str, tuple[bytes, str, str]] = {
    # container
    "magic_only": (b"GGUF", "TRUNCATED", "version"),
    "short_hdr": (header(0, 0)[:20], "TRUNCATED", "byte 16"),
    "ver_0": (header(0, 0, 0), "UNSUPPORTED", "version 0"),
    "ver_1": (header(0, 0, 1), "UNSUPPORTED", "version 1"),
    "ver_big": (header(0, 0, 99), "UNSUPPORTED", "version 99"),
    "bigendian": (bytes.fromhex("474755460000000300000000000000000000000000000000"), "UNSUPPORTED", "big-endian"),
    "nkv_max": (header(0, 2**64 - 1), "CORRUPT", "18446744073709551615 metadata entries"),
    "nkv_2p63": (header(0, 2**63), "CORRUPT", "9223372036854775808 metadata entries"),
    "nkv_1000": (header(0, 1000), "TRUNCATED", "1000 metadata entries"),
    "ntens_max": (header(2**64 - 1, 0), "CORRUPT", "18446744073709551615 tensors"),
    "ntens_2p58": (header(2**58, 0), "CORRUPT", "288230376151711744 tensors"),
    # metadata
    "str_len_2p63": (header(0, 1) + struct.pack("<QQ", 2**63, 0), "CORRUPT", "9223372036854775808"),
    "empty_key": (header(0, 1) + entry("", 4, bytes(4)), "CORRUPT", "empty key"),
    "long_key": (header(0, 1) + entry("k" * 65536, 4, bytes(4)), "CORRUPT", "at most 65535"),
    "type_13": (header(0, 1) + entry("a", 13, bytes(8)), "CORRUPT", "value type 13"),
    "type_max": (header(0, 1) + entry("a", 2**32 - 1, bytes(8)), "CORRUPT", "value type 4294967295"),
    "bool_2": (header(0, 1) + entry("a", 7, b"\2"), "CORRUPT", "bool 2"),
    "arr_len_2p63": (header(0, 1) + entry("a", 9, array(0, 2**63)), "CORRUPT", "9223372036854775808 elements"),
    "arr_mul_wrap": (header(0, 1) + entry("a", 9, array(12, 2**61, bytes(8))), "CORRUPT", "2305843009213693952"),
    "arr_str_2p61": (header(0, 1) + entry("a", 9, array(8, 2**61, bytes(64))), "CORRUPT", "strings"),
    "arr_type_13": (header(0, 1) + entry("a", 9, array(13, 0)), "CORRUPT", "element type 13"),
    "arr_of_arr": (header(0, 1) + entry("a", 9, array(9, 1, array(0, 0))), "UNSUPPORTED", "array of arrays"),
    "arr_short": (header(0, 1) + entry("a", 9, array(4, 3, bytes(11))), "TRUNCATED", "3 elements"),
    "dup_key": (header(0, 2) + entry("a", 0, b"1") + entry("a", 0, b"2"), "CORRUPT", 'the same key "a"'),
    "align_0": (alignment(0), "CORRUPT", "general.alignment is 0"),
    "align_3": (alignment(3), "CORRUPT", "general.alignment is 3"),
    "align_2p31": (alignment(2**31), "CORRUPT", "general.alignment is 2147483648"),
    "align_i32": (alignment(32, 5), "CORRUPT", "type i32; it must be u32"),
    # tensors
    "name_empty": (pad(header(1, 0) + tensor("", [8], 0, 0)) + DATA, "CORRUPT", "empty name"),
    "name_65": (pad(header(1, 0) + tensor("n" * 65, [8], 0, 0)) + DATA, "CORRUPT", "at most 64"),
    "name_twice": (pad(header(2, 0) + tensor("n", [8], 0, 0) + tensor("n", [8], 0, 32)) + DATA, "CORRUPT", '"n"'),
    "ndims_0": (one([]), "CORRUPT", "0 dimensions"),
    "ndims_5": (one([1] * 5), "CORRUPT", "5 dimensions"),
    "dim_0": (one([32, 0]), "CORRUPT", "dimension 1 of length 0"),
    "dim_mul_wrap": (one([2**32, 2**32]), "CORRUPT", "overflows"),
    "dim_bytes_wrap": (one([2**31, 2**31]), "CORRUPT", "overflows"),
    "dim_block": (one([48], 8), "CORRUPT", "multiple of 32"),
    "ttype_999": (one([32], 999), "UNSUPPORTED", "element type number 999"),
    "ttype_neg": (one([32], 2**32 - 1), "UNSUPPORTED", "element type number 4294967295"),
    "off_past_eof": (one([32], 0, 2**40), "TRUNCATED", '"blk.0.x" needs the bytes'),
    "off_wraps": (one([32], 0, 2**64 - 32), "CORRUPT", "beyond any file"),
    "off_unaligned": (one([8], 0, 1), "CORRUPT", "alignment 32"),
    "data_short": (one([32], 0, 0, DATA[:-1]), "TRUNCATED", "the file has 191"),
    "same_offset": (pair(0, 0), "CORRUPT", '"one" and "two" overlap'),
    "joined": (pair(0, 96) + header(0, 0), "CORRUPT", "a second GGUF file begins at byte"),
    # something else
    "ggml": (b"lmgg" + bytes(20), "NOT_GGUF", "old GGML"),
    "ggmf": (b"fmgg" + bytes(20), "NOT_GGUF", "old GGMF"),
    "ggjt": (b"tjgg" + bytes(20), "NOT_GGUF", "old GGJT"),
    "zip": (b"PK\3\4" + bytes(20), "NOT_GGUF", "zip archive"),
    "html": (b"\xef\xbb\xbf\n<!doctype HTML><p>", "NOT_GGUF", "HTML page: the download failed"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "NOT_GGUF", "git lfs pull"),
    "safetensors": (struct.pack("<Q", 2) + b"{}", "NOT_GGUF", "safetensors"),
    "json": (b'{"error": "not found"}', "NOT_GGUF", "JSON"),
    "gzip": (b"\x1f\x8b\x08\x00", "NOT_GGUF", "gzip"),
    "zeros": (bytes(100), "NOT_GGUF", "00 00 00 00"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_file_is_refused_with_its_cause(tmp_path: Path, name: str) -> None:
    data, status, words = MALFORMED[name]
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(data)
    got, message = refusal(path)
    assert got == getattr(lib, f"PN_ERR_{status}"), message
    assert words in message
    assert message.startswith(str(path))


@pytest.mark.timing
def test_a_lie_about_a_length_is_refused_at_once(tmp_path: Path) -> None:
    for name in ("nkv_max", "ntens_2p58", "str_len_2p63", "arr_len_2p63", "arr_mul_wrap", "arr_str_2p61"):
        path = tmp_path / name
        path.write_bytes(MALFORMED[name][0])
        start = time.perf_counter()
        refusal(path)
        assert time.perf_counter() - start < 1, name  # microseconds, or for ever: not a measurement


def small_file(path: Path) -> bytes:
    """A file of the package with a little of everything, whose last tensor ends with the file."""
    metadata = [
        ("general.name", "small", VType.STRING),
        ("tokens", ["a", "b", "<|end|>"], VType.ARRAY),
        ("scores", [0.5, -1.0, 0.0], VType.ARRAY),
        ("flag", True, VType.BOOL),
        ("size", 2**40, VType.UINT64),
    ]
    tensors = [
        random_tensor("norm.weight", (7,), DType.F32, 1),
        random_tensor("q.weight", (2, 64), DType.Q8_0, 2),
        random_tensor("k.weight", (4, 32), DType.Q4_1, 3),
        random_tensor("v.weight", (1, 64), DType.BF16, 4),
    ]
    return write_gguf(path, tensors, metadata).read_bytes()


def test_every_prefix_of_a_small_file_is_refused_as_truncated(tmp_path: Path) -> None:
    data = small_file(tmp_path / "whole.gguf")
    path = tmp_path / "part.gguf"
    for n in range(len(data)):
        path.write_bytes(data[:n])
        status, message = refusal(path)
        assert status == lib.PN_ERR_TRUNCATED, (n, message)
    path.write_bytes(data)
    with opened(path):
        pass


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_no_change_of_bytes_reads_beyond_the_file(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("changed")
    raw = bytearray(small_file(folder / "whole.gguf"))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(raw), 700) - 1))
        raw[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    path = folder / "changed.gguf"
    path.write_bytes(raw)
    handle = lib.pn_gguf_open(str(path).encode())
    if handle == ffi.NULL:
        assert lib.pn_last_status() in range(lib.PN_ERR_NOT_GGUF, lib.PN_ERR_UNSUPPORTED + 1)
        assert str(path) in last_error()
        return
    read_metadata(handle)
    for index in range(lib.pn_gguf_n_tensors(handle)):
        info = read_info(handle, index)
        assert info.offset + info.size <= len(raw)
        if info.type in READABLE:
            read_floats(handle, index)
    lib.pn_gguf_free(handle)


# ---- Paths ----


@pytest.mark.parametrize(
    "name", ["模型/ü  Загрузки/мод.gguf", "a b/'quoted'.gguf", "/".join(["long" * 20] * 4) + "/m.gguf"]
)
def test_a_path_of_any_kind_opens(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    write_gguf(path, [random_tensor("x", (2, 32), DType.F32)])
    with opened(path) as handle:
        assert lib.pn_gguf_n_tensors(handle) == 1


def test_a_path_of_bytes_that_are_no_utf_8_opens(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff\xfe.gguf"
    try:
        with open(path, "wb") as file:
            file.write(header(0, 0))
    except OSError:
        pytest.skip("this file system has only UTF-8 names")
    with opened(path) as handle:
        assert lib.pn_gguf_n_tensors(handle) == 0


def test_each_thing_that_is_no_file_has_its_own_sentence(tmp_path: Path) -> None:
    fifo, empty = tmp_path / "fifo", tmp_path / "empty.gguf"
    os.mkfifo(fifo)
    empty.touch()
    cases: list[tuple[Path | str, int, str]] = [
        (tmp_path / "missing.gguf", lib.PN_ERR_IO, "missing.gguf: No such file or directory"),
        (tmp_path, lib.PN_ERR_IO, "is a directory"),
        (fifo, lib.PN_ERR_IO, "is a named pipe (FIFO)"),
        ("/dev/null", lib.PN_ERR_IO, "is a device"),
        (empty, lib.PN_ERR_TRUNCATED, "is empty (0 bytes)"),
    ]
    for path, status, words in cases:
        assert refusal(path)[0] == status
        assert words in refusal(path)[1]
        assert str(path) in refusal(path)[1]


def test_a_file_without_permission_says_so() -> None:
    """Root may read everything, so root becomes nobody for a moment; hence a folder that everybody may enter."""
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = write_gguf(Path(folder) / "secret.gguf")
        path.chmod(0)
        if is_root:
            os.seteuid(65534)
        try:
            status, message = refusal(path)
        finally:
            if is_root:
                os.seteuid(0)
    assert status == lib.PN_ERR_IO
    assert "Permission denied" in message


def test_control_bytes_of_a_file_do_not_reach_the_message(tmp_path: Path) -> None:
    path = tmp_path / "escape.gguf"
    path.write_bytes(header(0, 1) + entry(b"\x1b[31mred\n", 13, bytes(8)))
    message = refusal(path)[1]
    assert "\x1b" not in message
    assert "\n" not in message
    assert "?[31mred?" in message
