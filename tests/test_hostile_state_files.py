"""Saved states that are cut short, changed, forged, or of another model: one typed error each, and nothing changes.

Every length and every byte of the format is covered in tests/c/test_state_file.c; here a real model's states go through
the Python binding. Forged files have the right checksums, made by a second implementation (state_bytes.py).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from state_bytes import HEADER, MAGIC, digest, joined, sections
from tiny_families import write_family
from tiny_gguf import write_model

import pantheon
from pantheon.errors import (
    ContextError,
    DamagedFileError,
    FileError,
    NotSavedFileError,
    NumericError,
    OtherModelError,
    SavedFileError,
    UnsupportedError,
)

IDS = [(i * 31 + 5) % 500 for i in range(40)]


@pytest.fixture(scope="module")
def model(tiny_model: str) -> Iterator[pantheon.Model]:
    with pantheon.load(tiny_model, threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def saved(model: pantheon.Model, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of 40 tokens with logits."""
    path = tmp_path_factory.mktemp("saved") / "state"
    with model.state() as state:
        state.eval(IDS)
        state.save(path)
    return path.read_bytes()


@pytest.fixture
def state(model: pantheon.Model) -> Iterator[pantheon.State]:
    """A state that must stay as it is, whatever is refused."""
    with model.state() as state:
        logits = state.eval([7, 8, 9])
        yield state
        assert state.tokens.tolist() == [7, 8, 9]
        assert state.logits is not None
        assert (state.logits == logits).all()
        assert (state.eval([10]) == model.logits([7, 8, 9, 10])[-1]).all()


def refused(state: pantheon.State, path: Path, data: bytes, error: type[Exception]) -> str:
    """The message with which loading these bytes is refused; it must name the file."""
    path.write_bytes(data)
    with pytest.raises(error) as caught:
        state.load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_the_second_implementation_reads_the_file(model: pantheon.Model, saved: bytes) -> None:
    parts = sections(saved, model.info.kv_bytes_per_token)
    assert joined(parts) == saved
    assert saved.startswith(MAGIC)
    assert np.frombuffer(parts[1], "<u4").tolist() == IDS
    assert (np.frombuffer(parts[3], "<f4") == model.logits(IDS)[-1]).all()


@pytest.mark.parametrize("length", [0, 1, 7, 8, 100, HEADER, HEADER + 7, HEADER + 8, 300, -2000, -9, -8, -1])
def test_a_file_cut_short_is_refused(state: pantheon.State, saved: bytes, length: int, tmp_path: Path) -> None:
    refused(state, tmp_path / "cut", saved[:length], DamagedFileError)


def test_a_file_with_bytes_added_is_refused(state: pantheon.State, saved: bytes, tmp_path: Path) -> None:
    refused(state, tmp_path / "long", saved + b"\0", DamagedFileError)


def test_a_changed_byte_is_refused_wherever_it_is(state: pantheon.State, saved: bytes, tmp_path: Path) -> None:
    for at in {*range(0, len(saved), 251), len(saved) - 1}:
        data = bytearray(saved)
        data[at] ^= 1 << at % 8
        refused(state, tmp_path / "changed", bytes(data), (SavedFileError, UnsupportedError))  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"GGUF" + bytes(200), b"{}", b"PNSTATe\n" + bytes(400), bytes(1000)])
def test_another_kind_of_file_is_refused(state: pantheon.State, data: bytes, tmp_path: Path) -> None:
    assert "is not a saved state" in refused(state, tmp_path / "foreign", data, NotSavedFileError)


def test_a_newer_version_of_the_format_is_refused(
    model: pantheon.Model, state: pantheon.State, saved: bytes, tmp_path: Path
) -> None:
    parts = sections(saved, model.info.kv_bytes_per_token)
    parts[0] = parts[0][:8] + struct.pack("<I", 2) + parts[0][12:]
    assert "version 2" in refused(state, tmp_path / "newer", joined(parts), UnsupportedError)


@pytest.mark.parametrize("count", [2**20, 2**40, 2**63, 2**64 - 1])
def test_a_huge_count_is_refused_without_memory(
    model: pantheon.Model, state: pantheon.State, saved: bytes, count: int, tmp_path: Path
) -> None:
    parts = sections(saved, model.info.kv_bytes_per_token)
    header = bytearray(parts[0])
    struct.pack_into("<Q", header, 24, count)
    data = bytes(header) + struct.pack("<Q", digest(bytes(header))) + saved[HEADER + 8 :]
    assert str(count) in refused(state, tmp_path / "huge", data, ContextError)


def test_a_forged_cache_of_nan_is_an_error_and_no_crash(model: pantheon.Model, saved: bytes, tmp_path: Path) -> None:
    parts = sections(saved, model.info.kv_bytes_per_token)
    parts[2] = b"\xff" * len(parts[2])
    (tmp_path / "forged").write_bytes(joined(parts))
    with model.state() as state:
        state.load(tmp_path / "forged")
        with pytest.raises(NumericError):
            state.eval([1])


def test_a_window_that_is_too_small_is_refused(model: pantheon.Model, saved: bytes, tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(saved)
    with model.state(39) as state, pytest.raises(ContextError, match=r"40 tokens.*window is 39"):
        state.load(tmp_path / "state")
    with model.state(40) as state:
        state.load(tmp_path / "state")
        assert len(state) == 40
        assert state.window == 40


def test_the_other_rotary_factors_are_refused(tmp_path: Path) -> None:
    original = 64
    factors = {"long_factors": (3.0,) * 8, "short_factors": (1.0,) * 8}
    scaling = (("original_context_length", original),)
    path = write_family(tmp_path / "phi3.gguf", "phi3", scaling=scaling, **factors)
    with pantheon.load(path, threads=1) as model:
        assert original < model.context_length
        with model.state(original) as short, model.state() as long:
            short.eval([1, 2, 3])
            short.save(tmp_path / "short")
            with pytest.raises(ContextError, match="rotary factors"):
                long.load(tmp_path / "short")
            long.eval([1, 2, 3])
            long.save(tmp_path / "long")
            with pytest.raises(ContextError, match="rotary factors"):
                short.load(tmp_path / "long")
            with model.state(original - 1) as shorter:  # the same factors
                shorter.load(tmp_path / "short")
                assert (shorter.eval([4]) == model.logits([1, 2, 3, 4], window=original)[-1]).all()


def test_another_model_is_refused_and_a_copy_is_not(
    tiny_model: str, state: pantheon.State, saved: bytes, tmp_path: Path
) -> None:
    (tmp_path / "state").write_bytes(saved)
    write_model(tmp_path / "other.gguf", seed=1)
    with pantheon.load(tmp_path / "other.gguf", threads=1) as other, other.state() as its:
        with pytest.raises(OtherModelError, match="another model"):
            its.load(tmp_path / "state")
        assert len(its) == 0
    (tmp_path / "copy.gguf").write_bytes(Path(tiny_model).read_bytes())
    with pantheon.load(tmp_path / "copy.gguf", threads=2, mmap=False) as copy, copy.state() as its:
        its.load(tmp_path / "state")
        assert its.tokens.tolist() == IDS


@pytest.mark.parametrize("path", ["/", "/dev/null", "/no/such/folder/state", ""])
def test_paths_that_are_no_files_are_refused(state: pantheon.State, path: str) -> None:
    for call in (state.load, state.save):
        with pytest.raises((FileError, pantheon.ArgumentError)):
            call(path)
    with pytest.raises(pantheon.ArgumentError):
        state.save("a\0b")


def test_a_folder_that_takes_no_files_is_refused(state: pantheon.State, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    folder = Path("/proc") if os.geteuid() == 0 else tmp_path  # root may write anywhere else
    with pytest.raises(FileError, match="cannot create"):
        state.save(folder / "state")
    tmp_path.chmod(0o700)
