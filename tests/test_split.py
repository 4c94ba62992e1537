"""Models in several files: any part opens the whole, the same to the bit; every part is checked like the first.

The files are written by the `gguf` package, which splits as it writes; hostile ones byte by byte. What the whole must
be is what the same contents in one file are.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import gguf_bytes as raw
import huggingface_hub as hub
import numpy as np
import pytest
from gguf_bytes import opened, read_floats, read_info, read_metadata, refusal

import pantheon
from pantheon import _native, catalog
from pantheon._core import ffi, lib
from pantheon.cli import run
from pantheon.engine.metadata import Metadata
from pantheon.errors import CorruptFileError, FileError, NoModelError, PantheonError, PullError

IDS = list(range(20, 60))
TEXT = "The capital of France is Paris. <|im_start|>"
U16 = 2


def split(source: str | Path, folder: Path, name: str = "m", **how: Any) -> list[Path]:
    """The contents of a file as several; how: split_max_tensors, split_max_size (bytes), small_first_shard."""
    reader = gguf.GGUFReader(source)
    folder.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(folder / f"{name}.gguf", "llama", **how)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kinds = field.types
        sub_type = kinds[-1] if kinds[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kinds[0], sub_type=sub_type)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("*.gguf"))


@pytest.fixture(scope="module")
def parts(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The tiny model in at least three files."""
    made = split(tiny_model, tmp_path_factory.mktemp("parts"), split_max_tensors=8)
    assert [part.name for part in made] == [f"m-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    return made


def logits_of(path: str | Path, **how: Any) -> Any:
    with pantheon.load(path, threads=2, **how) as model:
        return model.logits(IDS)


@pytest.fixture(scope="module")
def want(tiny_model: str) -> Any:
    return logits_of(tiny_model)


# ---- The whole


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_any_part_loads_the_model(parts: list[Path], want: Any, number: int, mmap: bool) -> None:
    assert (logits_of(parts[number - 1], mmap=mmap) == want).all()


@pytest.mark.parametrize(
    "how",
    [
        {"split_max_tensors": 1},
        {"split_max_size": 40_000},
        {"split_max_tensors": 8, "small_first_shard": True},  # a first part without a tensor
    ],
    ids=str,
)
def test_however_it_was_split_the_model_is_the_same(tiny_model: str, want: Any, tmp_path: Path, how: Any) -> None:
    made = split(tiny_model, tmp_path, **how)
    assert len(made) > 2
    for part in (made[0], made[len(made) // 2], made[-1]):
        assert (logits_of(part) == want).all()


def test_header_and_weights_are_those_of_the_single_file(tiny_model: str, parts: list[Path]) -> None:
    sizes = sum(part.stat().st_size for part in parts)
    with opened(Path(tiny_model)) as single:
        assert (lib.pn_gguf_n_parts(single), lib.pn_gguf_size(single)) == (1, os.path.getsize(tiny_model))
        for part in parts:
            with opened(part) as whole:
                assert (lib.pn_gguf_n_parts(whole), lib.pn_gguf_size(whole)) == (3, sizes)
                assert read_metadata(whole) == read_metadata(single)
                assert lib.pn_gguf_n_tensors(whole) == lib.pn_gguf_n_tensors(single)
                for index in range(lib.pn_gguf_n_tensors(single)):
                    assert (read_floats(whole, index) == read_floats(single, index)).all()


def test_each_tensor_tells_its_file_and_place(parts: list[Path]) -> None:
    listed = Metadata.from_file(parts[1]).tensors
    for number, part in enumerate(parts):
        mine = [tensor for tensor in listed if tensor.part == number]
        for tensor, theirs in zip(mine, gguf.GGUFReader(part).tensors, strict=True):
            assert (tensor.name, tensor.offset, tensor.size) == (theirs.name, theirs.data_offset, theirs.n_bytes)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_after_loading_no_part_is_open_and_the_header_is_still_there(parts: list[Path], tiny_model: str) -> None:
    with pantheon.load(parts[2]) as model:
        maps = Path("/proc/self/maps").read_text()
        links = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if _is_open(n)]
        assert not any(str(part) in maps or str(part) in links for part in parts)
        assert "split.count" not in model.metadata
        assert model.metadata["general.architecture"] == "llama"
        names = [tensor.name for tensor in model.metadata.tensors]
        assert names == [tensor.name for tensor in Metadata.from_file(tiny_model).tensors]


def _is_open(number: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{number}")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_tokenizer_comes_from_any_part(parts: list[Path], tiny_model: str, number: int) -> None:
    with pantheon.Tokenizer.from_file(tiny_model) as single, pantheon.Tokenizer.from_file(parts[number - 1]) as other:
        assert other.encode(TEXT, special=True).tolist() == single.encode(TEXT, special=True).tolist()


@pytest.mark.parametrize("kind", ["q8_0", "f16"])
def test_quantize_merges_to_the_bytes_that_the_single_file_gives(
    parts: list[Path], tiny_model: str, tmp_path: Path, kind: str
) -> None:
    seen: list[float] = []
    _native.quantize(tiny_model, tmp_path / "single.gguf", kind)
    for number, part in enumerate(parts):
        _native.quantize(part, tmp_path / f"{number}.gguf", kind, seen.append)
        assert (tmp_path / f"{number}.gguf").read_bytes() == (tmp_path / "single.gguf").read_bytes()
        assert seen[-1] == 1.0


def test_progress_counts_all_parts(parts: list[Path]) -> None:
    seen: list[float] = []
    pantheon.load(parts[1], progress=seen.append).close()
    assert seen == [1.0]


def test_the_commands_take_any_part(
    parts: list[Path], tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tokenize", "--ids", tiny_model, TEXT]) == 0
    want = capsys.readouterr().out
    assert run(["tokenize", "--ids", str(parts[2]), TEXT]) == 0
    assert capsys.readouterr().out == want
    assert run(["quantize", str(parts[1]), str(tmp_path / "one.gguf")]) == 0
    assert logits_of(tmp_path / "one.gguf").shape == (len(IDS), 512)
    capsys.readouterr()
    assert run(["info", str(parts[1])]) == 0
    assert f"{parts[1]} (of 3 files, " in capsys.readouterr().out


# ---- Where the siblings are


def test_siblings_lie_beside_the_path_not_beside_the_target_of_a_link(
    parts: list[Path], want: Any, tmp_path: Path
) -> None:
    """A hub's cache: blobs under names of their own, and a folder of links that have the right ones."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, part in enumerate(parts):
        shutil.copy(part, blobs / f"{number:064x}")
        (snapshot / part.name).symlink_to(Path("..", "..", "blobs", f"{number:064x}"))
    assert (logits_of(snapshot / parts[1].name) == want).all()
    with pytest.raises(FileError, match=r"-00002-of-00003\.gguf"):
        pantheon.load(blobs / f"{1:064x}")
    (blobs / f"{2:064x}").unlink()  # a blob that was not fetched: the link leads nowhere
    with pytest.raises(FileError, match=r"part 3 of 3 is missing: m-00003-of-00003\.gguf"):
        pantheon.load(snapshot / parts[1].name)


@pytest.mark.parametrize("name", ["größe 日本", "a-00001-of-00002.gguf", "-", "%s%n", "x" * 200])
def test_folders_of_any_name(tiny_model: str, want: Any, tmp_path: Path, name: str) -> None:
    made = split(tiny_model, tmp_path / name, "é-00001-of-00009", split_max_tensors=15)
    assert (logits_of(made[1]) == want).all()


def test_a_path_without_a_folder(parts: list[Path], want: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(parts[0].parent)
    assert (logits_of(parts[1].name) == want).all()
    assert (logits_of(f"./{parts[2].name}") == want).all()


def copied(parts: list[Path], folder: Path) -> list[Path]:
    return [Path(shutil.copy(part, folder)) for part in parts]


@pytest.mark.parametrize("given", [1, 2, 3])
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_missing_part_is_named(parts: list[Path], tmp_path: Path, given: int, lost: int) -> None:
    if given == lost:
        return
    mine = copied(parts, tmp_path)
    mine[lost - 1].unlink()
    with pytest.raises(FileError) as caught:
        pantheon.load(mine[given - 1])
    assert str(caught.value).startswith(f"{mine[given - 1]}: part {lost} of 3 is missing: {mine[lost - 1].name} must")


@pytest.mark.parametrize("name", ["two.gguf", "m-00001-of-00003.gguf", "m-2-of-3.gguf", "m-00002-of-00003.GGUF", "b"])
def test_a_part_with_another_name_is_told_what_its_name_must_be(parts: list[Path], tmp_path: Path, name: str) -> None:
    with pytest.raises(FileError, match=r"part 2 of 3 of a split model .* does not end in -00002-of-00003\.gguf"):
        pantheon.load(shutil.copy(parts[1], tmp_path / name))


def test_long_paths_leave_room_for_the_reason(parts: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 200)
    folder.mkdir()
    mine = copied(parts, folder)
    mine[2].unlink()
    for path, says in ((mine[0], "part 3 of 3 is missing: m-00003-of-00003.gguf"), (mine[2], "No such file")):
        with pytest.raises(FileError) as caught:
            pantheon.load(path)
        assert says in str(caught.value)
    mine[2].write_bytes(b"")
    with pytest.raises(PantheonError, match=r"part 3 of 3 \(m-00003-of-00003.gguf\): .* is empty"):
        pantheon.load(mine[0])


def test_a_part_that_cannot_be_read_is_named(parts: list[Path], tmp_path: Path) -> None:
    mine = copied(parts, tmp_path)
    mine[1].unlink()
    mine[1].mkdir()
    with pytest.raises(FileError, match=r"part 2 of 3 \(m-00002-of-00003\.gguf\): .* is a directory"):
        pantheon.load(mine[0])


# ---- Hostile parts


@dataclass(frozen=True)
class Part:
    """One part of a small model, byte by byte: two tensors of 32 floats each."""

    no: int
    count: int = 3
    n_tensors: int = 6
    names: tuple[str, ...] = ()
    entries: tuple[bytes, ...] = ()
    keys: tuple[bytes, ...] | None = None
    """Instead of the split keys."""

    def bytes(self) -> bytes:
        names = self.names or (f"a{self.no}", f"b{self.no}")
        keys = self.keys
        if keys is None:
            numbers = {"split.no": self.no, "split.count": self.count}
            keys = tuple(raw.entry(key, U16, value.to_bytes(2, "little")) for key, value in numbers.items())
            keys += (raw.entry("split.tensors.count", 5, self.n_tensors.to_bytes(4, "little")),)
        entries = (*self.entries, *keys)
        directory = [raw.tensor(name, [32], 0, 128 * index) for index, name in enumerate(names)]
        head = raw.pad(b"".join([raw.header(len(names), len(entries)), *entries, *directory]))
        values = np.arange(32 * len(names), dtype="<f4") + 1000 * self.no
        return head + values.tobytes()


GOOD = (Part(0, entries=(raw.entry("general.architecture", 8, raw.string("llama")),)), Part(1), Part(2))


def write_parts(folder: Path, *parts: Part) -> list[Path]:
    """Files x-00001-of-00003.gguf and so on, whatever the parts say of themselves."""
    paths = [folder / f"x-{i + 1:05}-of-{len(parts):05}.gguf" for i in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        path.write_bytes(part.bytes())
    return paths


def changed(number: int, **how: Any) -> list[Part]:
    """The good parts, with one of them changed."""
    made = list(GOOD)
    made[number] = replace(made[number], **how)
    return made


def number(key: str, kind: int, value: int, width: int) -> bytes:
    return raw.entry(key, kind, value.to_bytes(width, "little", signed=value < 0))


ARCH = "general.architecture"
DIFFERENT = "other parts want"
HOSTILE: dict[str, tuple[list[Part], int, tuple[str, ...]]] = {
    "a number that is another's": (changed(1, no=2), lib.PN_ERR_CORRUPT, ("part 2", "split.no is 2", "1")),
    "another count": (changed(2, count=4), lib.PN_ERR_CORRUPT, ("part 3", "split.count is 4", "want 3")),
    "not split": (changed(1, count=0), lib.PN_ERR_CORRUPT, ("part 2", "split.count is 0", DIFFERENT)),
    "another total": (changed(2, n_tensors=7), lib.PN_ERR_CORRUPT, ("part 3", "split.tensors.count is 7", "want 6")),
    "a total that all agree on": (
        [replace(part, n_tensors=5) for part in GOOD], lib.PN_ERR_CORRUPT, ("6 tensors", "split.tensors.count is 5"),
    ),
    "a tensor that two parts have": (changed(2, names=("a0", "b2")), lib.PN_ERR_CORRUPT, ("tensors 0 and 4", '"a0"')),
    "a tensor too many": (changed(1, names=("a1", "b1", "c1")), lib.PN_ERR_CORRUPT, ("7 tensors",)),
    "another architecture": (
        changed(1, entries=(raw.entry(ARCH, 8, raw.string("gemma")),)), lib.PN_ERR_CORRUPT, ("part 2 of 3", ARCH),
    ),
    "a key of another type": (changed(1, entries=(number(ARCH, 4, 7, 4),)), lib.PN_ERR_CORRUPT, ("part 2 of 3", ARCH)),
    "no number": (changed(1, keys=(number("split.count", U16, 3, 2),)), lib.PN_ERR_METADATA, ("part 2", "split.no")),
    "a negative number": (
        changed(1, keys=(number("split.count", U16, 3, 2), number("split.no", 3, -1, 2))),
        lib.PN_ERR_METADATA, ("part 2", "split.no is -1"),
    ),
    "a number that is text": (
        changed(1, keys=(number("split.count", U16, 3, 2), raw.entry("split.no", 8, raw.string("1")))),
        lib.PN_ERR_METADATA, ("part 2", "split.no", "string"),
    ),
    "a number beyond the count": (changed(1, no=3), lib.PN_ERR_METADATA, ("part 2", "split.no is 3")),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path, name: str) -> None:
    made, status, says = HOSTILE[name]
    paths = write_parts(tmp_path, *made)
    found, message = refusal(paths[0])
    assert found == status
    assert message.startswith(str(paths[0]))
    assert all(part in message for part in says), message
    if name != "not split":  # then it is a file of its own
        for path in paths[1:]:
            refusal(path)


@pytest.mark.parametrize("count", [65536, 2**31, 2**32 - 1])
def test_a_count_that_no_writer_can_write_is_refused_at_once(tmp_path: Path, count: int) -> None:
    keys = (number("split.count", 4, count, 4), number("split.no", 4, 0, 4), number("split.tensors.count", 4, 2, 4))
    (tmp_path / f"x-00001-of-{count:05}.gguf").write_bytes(Part(0, keys=keys).bytes())
    status, message = refusal(tmp_path / f"x-00001-of-{count:05}.gguf")
    assert status == lib.PN_ERR_METADATA
    assert str(count) in message


@pytest.mark.parametrize(("kind", "width"), [(0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (10, 8), (11, 8)])
def test_numbers_of_any_width_are_read(tmp_path: Path, kind: int, width: int) -> None:
    made = [
        replace(part, keys=tuple(
            number(key, kind, value, width)
            for key, value in (("split.no", part.no), ("split.count", 3), ("split.tensors.count", 6))
        ))
        for part in GOOD
    ]  # fmt: skip
    with opened(write_parts(tmp_path, *made)[1]) as whole:
        assert [read_floats(whole, index)[0, 0] for index in range(6)] == [0, 32, 1000, 1032, 2000, 2032]
        assert [read_info(whole, index).part for index in range(6)] == [0, 0, 1, 1, 2, 2]
        assert [key for key, _, _ in read_metadata(whole)] == [b"general.architecture"]


def test_metadata_that_a_part_repeats_is_fine(tmp_path: Path) -> None:
    with opened(write_parts(tmp_path, *changed(2, entries=GOOD[0].entries))[2]) as whole:
        assert len(read_metadata(whole)) == 1


def test_every_truncation_of_every_part_is_refused(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, *GOOD)
    for path, part in zip(paths, GOOD, strict=True):
        whole = part.bytes()
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            status, message = refusal(paths[0])
            assert status == lib.PN_ERR_TRUNCATED
            assert path is paths[0] or f"part {part.no + 1} of 3 ({path.name})" in message
        path.write_bytes(whole)
    with opened(paths[0]) as handle:
        assert lib.pn_gguf_n_tensors(handle) == 6


def damaged(whole: bytes) -> Iterator[bytes]:
    """Every byte of the header changed in three ways."""
    for at in range(len(whole) - 256):
        for bits in (0x01, 0x80, 0xFF):
            yield whole[:at] + bytes([whole[at] ^ bits]) + whole[at + 1 :]


@pytest.mark.parametrize("number", [0, 1])
def test_damage_in_any_byte_of_a_header_is_an_error_or_harmless(tmp_path: Path, number: int) -> None:
    paths = write_parts(tmp_path, *GOOD)
    for bad in damaged(GOOD[number].bytes()):
        paths[number].write_bytes(bad)
        for path in (paths[0], paths[2]):
            handle = lib.pn_gguf_open(os.fsencode(path))
            if handle == ffi.NULL:
                assert str(path) in raw.last_error()
                continue
            for index in range(lib.pn_gguf_n_tensors(handle)):
                read_floats(handle, index)
            lib.pn_gguf_free(handle)


def test_one_file_under_all_names_is_refused(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, *GOOD)
    for path in paths[1:]:
        path.unlink()
        path.symlink_to(paths[0].name)
    status, message = refusal(paths[0])
    assert status == lib.PN_ERR_CORRUPT
    assert "part 2 of 3 (x-00002-of-00003.gguf): split.no is 0" in message
    assert "part 1 of 3" in refusal(paths[2])[1]  # and its name does not say so


# ---- Alignment, and files that were cut by other means


@pytest.mark.parametrize("length", range(1, 33))
def test_an_alignment_that_only_the_first_part_names(tmp_path: Path, length: int) -> None:
    """The package aligns all parts alike and says so in the first: data that is not where it should be is refused."""
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama", split_max_tensors=1)
    writer.add_custom_alignment(64)
    names = ["a", "b" * length]  # headers of every length
    for index, name in enumerate(names):
        writer.add_tensor(name, np.full(32, index + 1, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    paths = sorted(tmp_path.glob("*.gguf"))
    handle = lib.pn_gguf_open(os.fsencode(paths[0]))
    if handle == ffi.NULL:
        assert lib.pn_last_status() == lib.PN_ERR_CORRUPT
        assert "aligned to 64" in raw.last_error()
        return
    assert [read_floats(handle, index)[0, 0] for index in (0, 1)] == [1, 2]
    lib.pn_gguf_free(handle)


def test_parts_that_were_joined_end_to_end_are_refused(parts: list[Path], tmp_path: Path) -> None:
    joined = tmp_path / "m-00001-of-00003.gguf"
    joined.write_bytes(b"".join(part.read_bytes() for part in parts))
    with pytest.raises(CorruptFileError, match="joined end to end"):
        pantheon.load(joined)


@pytest.mark.parametrize("at", [1, 2])
def test_a_piece_of_a_file_that_was_cut_by_bytes_is_named_as_such(tiny_model: str, tmp_path: Path, at: int) -> None:
    whole = Path(tiny_model).read_bytes()
    half = len(whole) // 2
    path = tmp_path / f"m.gguf.part{at}of2"
    path.write_bytes(whole[:half] if at == 1 else whole[half:])
    with pytest.raises(PantheonError, match=r"one piece of a file that was cut by bytes .*cat"):
        pantheon.load(path)
    path = tmp_path / "part1of2-m.gguf"  # says nothing
    path.write_bytes(whole[:half])
    with pytest.raises(PantheonError) as caught:
        pantheon.load(path)
    assert "one piece" not in str(caught.value)


# ---- The catalogue


def fake_hub(monkeypatch: pytest.MonkeyPatch, folder: Path, *, lacks: str = "", moved: str = "") -> list[str]:
    """A hub that "fetches" into a folder; the list gets the names that were asked for."""
    asked: list[str] = []

    def fetch(repo: str, file: str) -> str:
        asked.append(file)
        assert repo == "owner/repo"
        if file == lacks:
            raise OSError(f"404: {file}\nand more")
        path = folder / ("other" if file == moved else "revision") / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return str(path)

    def look(repo: str, file: str) -> str | None:
        path = folder / "revision" / file
        return str(path) if path.exists() else None

    monkeypatch.setattr(hub, "hf_hub_download", fetch)
    monkeypatch.setattr(hub, "try_to_load_from_cache", look)
    return asked


def test_pull_fetches_all_parts_whichever_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = fake_hub(monkeypatch, tmp_path)
    seen: list[tuple[str, float]] = []
    name = "hf:owner/repo/q4/m-00002-of-00003.gguf"
    with pytest.raises(NoModelError, match=r"pantheon pull hf:owner/repo/q4/m-00002-of-00003\.gguf"):
        catalog.resolve(name)
    path = catalog.pull(name, lambda phase, fraction: seen.append((phase, fraction)))
    assert asked == [f"q4/m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert path == tmp_path / "revision" / "q4" / "m-00002-of-00003.gguf" == catalog.resolve(name)
    assert [phase for phase, _ in seen] == ["download"] * 4
    assert [fraction for _, fraction in seen] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    (path.parent / "m-00003-of-00003.gguf").unlink()
    with pytest.raises(NoModelError, match=r"m-00003-of-00003\.gguf is missing"):
        catalog.resolve(name)


def test_pull_of_parts_that_fails_names_the_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_hub(monkeypatch, tmp_path, lacks="m-00002-of-00002.gguf")
    with pytest.raises(PullError, match=r"m-00002-of-00002\.gguf is a part, cannot be fetched: 404"):
        catalog.pull("hf:owner/repo/m-00001-of-00002.gguf")
    fake_hub(monkeypatch, tmp_path, moved="m-00002-of-00002.gguf")
    with pytest.raises(PullError, match="changed by its owner"):
        catalog.pull("hf:owner/repo/m-00001-of-00002.gguf")


@pytest.mark.parametrize(
    "name",
    [
        "m.gguf", "best-of-breed.gguf", "m-00003-of-00002.gguf", "m-00000-of-00002.gguf", "m-1-of-2.gguf",
        "m-00001-of-00002.bin", "m-00001-of-00001.gguf",
    ],
)  # fmt: skip
def test_other_names_are_files_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    asked = fake_hub(monkeypatch, tmp_path)
    catalog.pull(f"hf:owner/repo/{name}")
    assert asked == [name]


def test_a_split_model_in_the_cache_folder_is_one_model(
    parts: list[Path], want: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PANTHEON_HOME", str(tmp_path))
    mine = copied(parts, tmp_path)
    (listed,) = [model for model in catalog.list_models() if model.path.parent == tmp_path and model.here]
    assert (listed.name, listed.size) == (mine[0].name, sum(part.stat().st_size for part in parts))
    assert (logits_of(mine[1].name) == want).all()  # by its name alone
    assert catalog.remove(listed.name) == listed.size
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_speaks_of_65535_parts_costs_no_more_than_the_files_that_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PANTHEON_HOME", str(tmp_path))
    for stem, number, size in (("a", 2, 3), ("a", 65535, 4), ("b", 1, 5)):
        (tmp_path / f"{stem}-{number:05}-of-65535.gguf").write_bytes(b"x" * size)
    looked: list[Path] = []
    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda path: looked.append(path) or is_file(path))  # type: ignore[func-returns-value]
    listed = [model for model in catalog.list_models() if model.here]
    assert [(model.name, model.size) for model in listed] == [
        ("a-00002-of-65535.gguf", 7), ("b-00001-of-65535.gguf", 5),
    ]  # fmt: skip
    assert catalog.remove("a-00002-of-65535.gguf") == 7
    assert [path.name for path in tmp_path.iterdir()] == ["b-00001-of-65535.gguf"]
    assert len(looked) < 20
    asked: list[str] = []
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda repo, file: asked.append(file))
    with pytest.raises(NoModelError, match=r"m-00001-of-65535\.gguf is missing"):
        catalog.resolve("hf:owner/repo/m-65535-of-65535.gguf")
    assert asked == ["m-00001-of-65535.gguf"]
