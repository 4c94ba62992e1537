"""Rewriting a file in another element type, through the C function alone.

The oracle is the `gguf` package: what it reads from the new file must be, bit for bit, what it would itself have
written from the values of the old one. The other half is about what may never happen: half a file under the final
name, a temporary file left behind, or a value that became infinite without a word.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_bytes import (
    READABLE,
    DType,
    Floats,
    Tensor,
    VType,
    entry,
    header,
    last_error,
    opened,
    pad,
    random_tensor,
    read_metadata,
    string,
    tensor,
    write_gguf,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from pantheon._core import ffi, lib

FILE_TYPES = {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7, "q4_0": 2, "q4_1": 3, "q5_0": 8, "q5_1": 9}


def quantize(source: Path, target: Path, kind: str, progress: Any = ffi.NULL) -> int:
    """The status of pn_quantize."""
    return int(lib.pn_quantize(os.fsencode(source), os.fsencode(target), kind.encode(), progress, ffi.NULL))


def converted(source: Path, kind: str, target: Path | None = None) -> gguf.GGUFReader:
    """The new file as the package reads it."""
    target = target or source.with_name(f"{source.stem}.{kind}.gguf")
    assert quantize(source, target, kind) == lib.PN_OK, last_error()
    return gguf.GGUFReader(target)


def encode(values: Floats, dtype: DType) -> bytes:
    """Rows as the package would write them."""
    return np.ascontiguousarray(gguf.quants.quantize(values, dtype)).tobytes()


def comparable(raw: bytes, dtype: DType) -> bytes:
    """The rows with every minimum of zero positive: which zero numpy takes for the lowest is chance."""
    blocks = np.frombuffer(raw, np.uint8).reshape(-1, gguf.GGML_QUANT_SIZES[dtype][1]).copy()
    if dtype in (DType.Q4_1, DType.Q5_1):
        minima = blocks[:, 2:4].copy().view(np.uint16)
        blocks[:, 2:4] = np.where(minima == 0x8000, np.uint16(0), minima).view(np.uint8)
    return blocks.tobytes()


def names(folder: Path) -> set[str]:
    return set(os.listdir(folder))


# ---- What comes out ----


@pytest.mark.parametrize("kind", FILE_TYPES)
@pytest.mark.parametrize("dtype", READABLE, ids=lambda dtype: dtype.name)
def test_every_type_becomes_every_type_as_the_package_would_write_it(tmp_path: Path, dtype: DType, kind: str) -> None:
    wanted = getattr(DType, kind.upper())
    tensors = [
        random_tensor("token_embd.weight", (300, 256), dtype, 1, scale=0.02),  # more than one chunk
        random_tensor("blk.0.attn_norm.weight", (256,), dtype, 2),
        random_tensor("experts.weight", (2, 3, 256), dtype, 3, scale=10),
        random_tensor("column.weight", (1, 256), dtype, 4),  # [256, 1] is no matrix
    ]
    reader = converted(write_gguf(tmp_path / "in.gguf", tensors), kind)
    for old, new in zip(tensors, reader.tensors, strict=True):
        matrix = old.name in ("token_embd.weight", "experts.weight")
        target = wanted if matrix else DType.F32
        assert (new.name, new.tensor_type) == (old.name, target)
        want = old.data.tobytes() if dtype == target else encode(old.floats(), target)
        assert comparable(new.data.tobytes(), target) == comparable(want, target)
    assert reader.fields["general.file_type"].contents() == FILE_TYPES[kind]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=64, max_size=64),
    st.sampled_from(["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "f16"]),
)
def test_blocks_of_any_values_equal_the_package(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], kind: str
) -> None:
    # the package leaves to chance what becomes of scales whose inverse overflows, and the sign of a minimum of zero
    row = np.array([v if abs(v) > 1e-20 else 0.0 for v in values], np.float32).reshape(2, 32)
    source = Tensor("x.weight", row.view(np.uint8), DType.F32)
    reader = converted(write_gguf(tmp_path_factory.mktemp("q") / "in.gguf", [source]), kind)
    assert reader.tensors[0].data.tobytes() == encode(row, getattr(DType, kind.upper()))


def test_metadata_is_kept_in_order_and_byte_for_byte(tmp_path: Path) -> None:
    metadata: list[tuple[str, Any, VType]] = [
        ("general.name", "ünï\0code", VType.STRING),
        ("general.file_type", 3, VType.UINT32),
        ("tokenizer.ggml.tokens", ["a", "", "<|im_start|>", "ж"], VType.ARRAY),
        ("tokenizer.ggml.scores", [1.5, float("nan"), -0.0], VType.ARRAY),
        ("llama.rope.freq_base", 10000.0, VType.FLOAT32),
        ("general.quantization_version", 1, VType.UINT32),
        ("u64", 2**64 - 1, VType.UINT64),
        ("flags", [True, False], VType.ARRAY),
    ]
    source = write_gguf(tmp_path / "in.gguf", [random_tensor("x", (4, 32), DType.F32)], metadata, alignment=128)
    target = tmp_path / "out.gguf"
    converted(source, "q8_0", target)
    old, new = source.read_bytes(), target.read_bytes()
    start, end = 24, old.index(string("x") + b"\2\0\0\0")
    assert new[:16] == old[:16]
    wanted = old[start:end]
    for key, before, after in [("general.file_type", 3, 7), ("general.quantization_version", 1, 2)]:
        numbers = [n.to_bytes(4, "little") for n in (before, after)]
        wanted = wanted.replace(entry(key, 4, numbers[0]), entry(key, 4, numbers[1]))
    assert new[start:end] == wanted
    with opened(source) as a, opened(target) as b:
        assert [e[0] for e in read_metadata(a)] == [e[0] for e in read_metadata(b)]


def test_what_the_file_lacks_is_added_at_the_end(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "in.gguf", [random_tensor("x", (4, 32), DType.F32)], [("k", 1, VType.UINT8)])
    converted(source, "f16", tmp_path / "out.gguf")
    with opened(source) as a, opened(tmp_path / "out.gguf") as b:
        added = [(b"general.file_type", VType.UINT32, 1), (b"general.quantization_version", VType.UINT32, 2)]
        assert read_metadata(b) == read_metadata(a) + added


def test_a_file_type_of_another_width_is_set_where_it_stands(tmp_path: Path) -> None:
    source = tmp_path / "in.gguf"
    source.write_bytes(header(0, 2) + entry("general.file_type", 11, bytes(8)) + entry("z", 0, b"\1"))
    assert quantize(source, tmp_path / "out.gguf", "q8_0") == lib.PN_OK, last_error()
    with opened(tmp_path / "out.gguf") as handle:
        assert read_metadata(handle)[:2] == [(b"general.file_type", VType.UINT32, 7), (b"z", VType.UINT8, 1)]


def test_a_version_2_file_becomes_version_3(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "in.gguf", [random_tensor("x", (4, 32), DType.F32)])
    data = bytearray(source.read_bytes())
    data[4] = 2
    source.write_bytes(data)
    assert quantize(source, source, "f16") == lib.PN_OK
    assert source.read_bytes()[4] == 3


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_the_alignment_is_kept(tmp_path: Path, alignment: int) -> None:
    tensors = [random_tensor(f"t{i}", (3, 32), DType.F32, i) for i in range(3)]
    reader = converted(write_gguf(tmp_path / "in.gguf", tensors, alignment=alignment), "q8_0")
    assert reader.alignment == alignment
    for old, new in zip(tensors, reader.tensors, strict=True):
        assert new.data_offset % alignment == 0
        assert new.data.tobytes() == encode(old.floats(), DType.Q8_0)


@pytest.mark.parametrize("kind", ["q8_0", "q4_k", "q6_k"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16], ids=lambda dtype: dtype.name)
def test_a_matrix_whose_rows_are_no_whole_blocks_takes_16_bits(tmp_path: Path, dtype: DType, kind: str) -> None:
    odd = random_tensor("odd.weight", (4, 40), dtype)
    reader = converted(write_gguf(tmp_path / "in.gguf", [odd]), kind)
    target = DType.F16 if dtype == DType.F32 else dtype
    assert reader.tensors[0].tensor_type == target
    assert reader.tensors[0].data.tobytes() == encode(odd.floats(), target)


def test_what_has_its_type_already_is_copied_byte_for_byte_even_nan(tmp_path: Path) -> None:
    weird = random_tensor("w", (4, 64), DType.Q8_0, special=True)  # NaN scales and all
    reader = converted(write_gguf(tmp_path / "in.gguf", [weird]), "q8_0")
    assert reader.tensors[0].data.tobytes() == weird.data.tobytes()


def test_the_output_may_be_the_input(tmp_path: Path) -> None:
    t = random_tensor("x", (64, 256), DType.F32)
    path = write_gguf(tmp_path / "same.gguf", [t])
    reader = converted(path, "q4_1", path)
    assert reader.tensors[0].data.tobytes() == encode(t.floats(), DType.Q4_1)
    assert names(tmp_path) == {"same.gguf"}


def test_a_new_file_has_the_permissions_that_the_umask_leaves(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "in.gguf", [random_tensor("x", (4, 32), DType.F32)])
    before = os.umask(0o027)
    try:
        converted(source, "f16", tmp_path / "out.gguf")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out.gguf").stat().st_mode) == 0o640


def test_a_relative_path_and_a_long_name_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_gguf(Path("in.gguf"), [random_tensor("x", (4, 32), DType.F32)])
    name = "ü" * 120 + ".gguf"
    assert quantize(Path("in.gguf"), Path(name), "q8_0") == lib.PN_OK, last_error()
    assert names(tmp_path) == {"in.gguf", name}


def test_progress_grows_to_one(tmp_path: Path) -> None:
    seen: list[float] = []

    def note(_data: Any, fraction: float) -> int:
        seen.append(fraction)
        return 0

    callback = ffi.callback("int(void *, double)", note)

    source = write_gguf(tmp_path / "in.gguf", [random_tensor(f"t{i}", (300, 256), DType.F32) for i in range(3)])
    assert quantize(source, tmp_path / "out.gguf", "q8_0", callback) == lib.PN_OK
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert len(seen) >= 9


# ---- What may not happen ----


def small_and_old(folder: Path) -> tuple[Path, Path]:
    """A source, and something of value that stands where the output would go."""
    source = write_gguf(folder / "in.gguf", [random_tensor("x.weight", (512, 512), DType.F32)])
    target = folder / "out.gguf"
    target.write_bytes(b"precious")
    return source, target


def assert_untouched(target: Path) -> None:
    """The old file is whole and nothing lies beside it."""
    assert target.read_bytes() == b"precious"
    assert names(target.parent) == {"in.gguf", "out.gguf"}


def test_a_cancelled_run_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    source, target = small_and_old(tmp_path)
    calls = []

    def stop(_data: Any, fraction: float) -> int:
        calls.append(fraction)
        if len(calls) == 2:
            assert len(names(tmp_path)) == 3  # there is one to clean up
        return len(calls) >= 3

    callback = ffi.callback("int(void *, double)", stop)
    assert quantize(source, target, "q8_0", callback) == lib.PN_ERR_CANCELLED
    assert len(calls) == 3
    assert_untouched(target)


@pytest.mark.parametrize("limit", [0, 100, 5000, 200_000])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path, limit: int) -> None:
    source, target = small_and_old(tmp_path)
    program = (
        "import resource, sys\n"
        "from pantheon._core import ffi, lib\n"
        "source, target, limit = sys.argv[1:]\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))\n"
        "status = lib.pn_quantize(source.encode(), target.encode(), b'q8_0', ffi.NULL, ffi.NULL)\n"
        "print(status, ffi.string(lib.pn_last_error()).decode())\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(source), str(target), str(limit)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.startswith(f"{lib.PN_ERR_IO} cannot write {target}: ")
    assert_untouched(target)


def test_a_type_that_cannot_be_read_is_named_before_anything_is_written(tmp_path: Path) -> None:
    _, target = small_and_old(tmp_path)
    source = write_gguf(tmp_path / "in.gguf", [random_tensor("blk.0.ffn.weight", (4, 256), DType.IQ2_XXS)])
    assert quantize(source, target, "q8_0") == lib.PN_ERR_UNSUPPORTED
    assert "blk.0.ffn.weight" in last_error()
    assert "IQ2_XXS" in last_error()
    assert_untouched(target)


def values(*numbers: float) -> Tensor:
    """A matrix of two rows whose last values are these."""
    row = np.zeros((2, 256), np.float32)
    row[1, -len(numbers) :] = numbers
    return Tensor("x.weight", row.view(np.uint8), DType.F32)


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        *[("f16", 65520.0), ("f16", -1e30), ("q8_0", 1e7), ("q4_0", 1e6), ("q4_1", -7e4), ("bf16", 3.4e38)],
        *[("q5_0", 2e6), ("q5_1", -7e4), ("q4_k", -5e6), ("q5_k", 5e6), ("q6_k", 3e8)],
    ],
)
def test_a_value_that_would_become_infinite_is_refused(tmp_path: Path, kind: str, number: float) -> None:
    _, target = small_and_old(tmp_path)
    source = write_gguf(tmp_path / "in.gguf", [values(number)])
    assert quantize(source, target, kind) == lib.PN_ERR_NUMERIC
    assert "x.weight" in last_error()
    assert kind.upper() in last_error()
    assert_untouched(target)


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_are_refused_where_they_would_spoil_a_block(tmp_path: Path, kind: str, number: float) -> None:
    source = write_gguf(tmp_path / "in.gguf", [values(number)])
    assert quantize(source, tmp_path / "out.gguf", kind) == lib.PN_ERR_NUMERIC
    assert "NaN or infinity" in last_error()
    assert "f32, f16 and bf16 can" in last_error()
    assert names(tmp_path) == {"in.gguf"}


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_nan_and_infinity_stay_what_they_are_in_types_that_have_them(tmp_path: Path, kind: str) -> None:
    source = write_gguf(tmp_path / "in.gguf", [values(float("inf"), float("-inf"), float("nan"), 65504.0)])
    new = converted(source, kind).tensors[0]
    got = gguf.quants.dequantize(new.data, new.tensor_type)[1, -4:]
    assert got[0] == np.inf
    assert got[1] == -np.inf
    assert np.isnan(got[2])
    assert got[3] >= 65504


@pytest.mark.parametrize("target", ["folder", "fifo", "nowhere/out.gguf", ""])
def test_an_output_that_cannot_be_a_file_is_refused(tmp_path: Path, target: str) -> None:
    source = write_gguf(tmp_path / "in.gguf", [random_tensor("x", (4, 32), DType.F32)])
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    before = names(tmp_path)
    raw = os.fsencode(tmp_path / target) if target else b""
    status = lib.pn_quantize(os.fsencode(source), raw, b"f16", ffi.NULL, ffi.NULL)
    assert status == (lib.PN_ERR_IO if target else lib.PN_ERR_ARGUMENT)
    assert not target or str(tmp_path / target) in last_error()
    assert names(tmp_path) == before
    assert stat.S_ISFIFO((tmp_path / "fifo").stat().st_mode)


def test_an_unknown_type_is_refused_with_a_list_of_the_known(tmp_path: Path) -> None:
    source, target = small_and_old(tmp_path)
    for kind in ("q9_0", "", "q2_k", "iq4_xs", "q4_k_", "x" * 1000):
        assert quantize(source, target, kind) == lib.PN_ERR_ARGUMENT
        assert "known are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K_M, Q5_K_M, Q6_K" in last_error()
    assert lib.pn_quantize(os.fsencode(source), os.fsencode(target), ffi.NULL, ffi.NULL, ffi.NULL) == 1
    assert_untouched(target)


def test_a_source_that_is_damaged_is_refused_as_when_opened(tmp_path: Path) -> None:
    _, target = small_and_old(tmp_path)
    source = tmp_path / "in.gguf"
    source.write_bytes(pad(header(1, 0) + tensor("x", [32], 0, 0)) + bytes(127))
    assert quantize(source, target, "q8_0") == lib.PN_ERR_TRUNCATED
    source.unlink()
    assert quantize(source, target, "q8_0") == lib.PN_ERR_IO
    assert target.read_bytes() == b"precious"
    assert names(tmp_path) == {"out.gguf"}
