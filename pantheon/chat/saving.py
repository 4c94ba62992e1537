"""Conversations to files and back: a readable file of JSON for each, and if wanted the model's cache beside it.

    saved        the form of the file, and what of it is believed
    save_chat    a conversation to a file                     load_chat    a file to a conversation
    save_named, load_named, list_named, last, remove_named    the user's own folder of chats

Rank 4: imports errors, _native, catalog, and its siblings in chat/.

The one thing to know first: files appear whole or not at all, under a name of their own until they are on the disk. Two
files cannot appear at one moment, so the cache goes first and the JSON says which cache it means; a cache of another
moment is not used, and a note says so.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pantheon import _native
from pantheon.chat.messages import Turn, check_plain
from pantheon.chat.saved import SavedCache, SavedChat, from_bytes, to_text
from pantheon.errors import (
    ArgumentError,
    ContextError,
    DamagedFileError,
    FileError,
    OtherModelError,
    SavedFileError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from pantheon.chat.session import Chat
    from pantheon.engine.model import Model

MAX_BYTES = 64 * 2**20
"""The largest chat file that is read; a million tokens with their texts take about 15 MB."""
_CACHE_LINES = 200
"""The most bytes of a chat file that say which cache belongs to it."""
_NAME_BYTES = 120
_ABANDONED_S = 3600.0
AnyPath = str | bytes | os.PathLike[str]


# ---- Saving -------------------------------------------------------------------------------------------------------


def cache_path(path: AnyPath) -> Path:
    """Where the cache of a chat file lies: name.json has name.kv, others NAME have NAME.kv."""
    text = os.fsdecode(path)
    return Path((text[:-5] if text.endswith(".json") else text) + ".kv")


def save_chat(chat: Chat, path: AnyPath, *, cache: bool = False, sampling: Mapping[str, Any] | None = None) -> None:
    """See Chat.save()."""
    _native.path_bytes(path)
    sampling = dict(chat.sampling if sampling is None else sampling)
    check_plain("sampling", sampling)
    with chat._running.hold():
        saved = _saved(chat, sampling)
        text = to_text(saved)  # refuses what has no place in JSON before a file is made
        if len(text.encode("utf-8")) > MAX_BYTES - _CACHE_LINES:
            raise ArgumentError(f"the chat is too large to be loaded again: its file would have over {MAX_BYTES} bytes")
        if cache:
            chat._state.save(cache_path(path))
            saved.cache = _cache_of(chat)
            text = to_text(saved)
        chat.sampling = sampling
    write_whole(Path(os.fsdecode(path)), text.encode("utf-8"))


def _saved(chat: Chat, sampling: dict[str, Any]) -> SavedChat:
    info = chat._model.info
    return SavedChat(
        model=printable(os.path.basename(info.path)),
        architecture=info.architecture,
        fingerprint=chat._model.fingerprint,
        window=chat._window,
        reply_limit=chat._reply_limit,
        policy=chat._policy,
        fraction=chat._fraction,
        template=_template_of(chat),
        now=chat._now,
        tools=None if chat._options["tools"] is None else list(chat._options["tools"]),
        fold_system=bool(chat._options["fold_system"]),
        merge_roles=bool(chat._options["merge_roles"]),
        sampling=sampling,
        turns=chat._turns,
        dropped=chat._dropped,
    )


def printable(name: str) -> str:
    """A file's name, which may be any bytes, as text."""
    return name.encode("utf-8", "replace").decode("utf-8")


def _template_of(chat: Chat) -> str | None:
    """What `template=` must be for the same format; a template that came from a file is written out."""
    forced = chat._template
    if forced is None or chat.format.template is None or "{{" in forced or "{%" in forced:
        return forced
    return chat.format.template.source


def _cache_of(chat: Chat) -> SavedCache:
    import hashlib  # not for chats that are never saved

    ids = chat._state.token_buffer()
    return SavedCache(tokens=len(ids), digest=hashlib.sha256(ids.tobytes()).hexdigest()[:16])


def write_whole(path: Path, data: bytes) -> None:
    """A file that appears whole or not at all, over one that was there; only its owner may read it. FileError."""
    if not path.name:
        raise ArgumentError(f"{str(path)!r} names no file to write to")
    temporary = path.with_name(f".pantheon-{os.getpid():x}-{time.time_ns():x}.tmp")
    try:
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise FileError(f"cannot write {path}: it is a directory, or no regular file")
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
        _sync_folder(path.parent)
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"cannot write {path}: {error.strerror or error}; the file that was there stays") from None


def _sync_folder(folder: Path) -> None:
    """A new name is on the disk once its folder is. Not every file system can do that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# ---- Loading ------------------------------------------------------------------------------------------------------


def read_bytes(path: AnyPath) -> bytes:
    """A chat file's bytes, at most MAX_BYTES; FileError, also for what is no regular file."""
    name = printable(os.fsdecode(_native.path_bytes(path)))
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:  # a FIFO would wait
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise FileError(f"{name} is a directory, or no regular file; a saved chat is needed")
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"cannot read {name}: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        raise FileError(f"{name} has more than {MAX_BYTES // 2**20} MiB; a saved chat is smaller")
    return data


def load_chat(
    kind: type[Chat],
    path: AnyPath,
    model: Model,
    *,
    cache: bool = True,
    ignore_model: bool = False,
    trusted: bool = False,
    **options: Any,
) -> Chat:
    """See Chat.load()."""
    from pantheon.chat.session import format_of

    name = printable(os.fsdecode(_native.path_bytes(path)))
    unknown = {*options} - {
        "window", "reply_limit", "policy", "fraction", "template", "now", "tools", "fold_system", "merge_roles",
    }  # fmt: skip
    if unknown:
        raise ArgumentError(f"load() has no option {min(unknown)!r}")
    saved = from_bytes(
        name,
        read_bytes(path),
        model.tokenizer,
        lambda template: format_of(model, options.get("template", template)).stop_ids,
        trusted,
    )
    notes = list(saved.notes)
    turns = saved.turns
    if saved.fingerprint != model.fingerprint:
        if not ignore_model:
            raise OtherModelError(
                f"{name} was saved with another model: {saved.model} ({saved.architecture}, {saved.fingerprint}); this "
                f"one is {printable(os.path.basename(model.info.path))} ({model.architecture}, {model.fingerprint}): "
                "load it into the model that it was made with, or let ignore_model=True take over the messages alone"
            )
        turns = tuple(_without_ids(turn) for turn in turns)
        notes = [f"the messages come from another model, {saved.model}: they are read again from their text"]
        saved.cache, saved.dropped = None, ()
        saved.window = min(saved.window, model.context_length)
    elif saved.window > model.context_length and options.get("window") is None:
        raise DamagedFileError(
            f"{name}: window is {saved.window}, more than the model's context length of {model.context_length}; mend "
            "it in an editor, or give another one with window="
        )
    given = {
        key: getattr(saved, key)
        for key in (
            "window", "reply_limit", "policy", "fraction", "template", "now", "tools", "fold_system", "merge_roles",
        )
    }  # fmt: skip
    chat = kind(model, **{**given, **options})
    try:
        chat._turns, chat.sampling = turns, saved.sampling
        chat._dropped = saved.dropped if chat.window <= saved.window and chat.policy != "error" else ()
        chat._notes = tuple(notes)
        if cache and saved.cache is not None:
            note = _load_cache(chat, cache_path(path), saved.cache)
            chat._notes += () if note is None else (note,)
    except BaseException:
        chat.close()
        raise
    return chat


def _without_ids(turn: Turn) -> Turn:
    versions = tuple(Turn(version.message) for version in turn.versions)
    return Turn(turn.message, versions=versions, chosen=turn.chosen)


def _load_cache(chat: Chat, path: Path, expected: SavedCache) -> str | None:
    """Fill the chat's state from its file; a note if that is left undone, None if all is well."""
    name, again = printable(str(path)), "the conversation is read again with the next reply"
    if not path.exists():
        return f"the cache {name} is not there: {again}"
    try:
        chat._state.load(path)
    except ContextError as error:
        return f"the cache is not used: {error}; {again}"
    except (SavedFileError, UnsupportedError) as error:
        cure = f"; the chat itself can be loaded with cache=False, or after {name} was deleted"
        raise type(error)(f"{error}{cure}") from None
    if _cache_of(chat) == expected:
        return None
    chat._state.reset()
    return f"the cache {name} is of another moment than the chat: {again}"


# ---- The user's own folder ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedChat:
    """A chat in the user's folder."""

    name: str
    path: Path
    changed: float
    """When it was saved, in seconds since 1970."""


def chats_folder() -> Path:
    """PANTHEON_HOME/chats, else the platform's folder for a user's own data. It may not exist yet."""
    home = os.environ.get("PANTHEON_HOME")
    if home:
        return Path(home).absolute() / "chats"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "pantheon" / "chats"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "pantheon" / "chats"


def named_path(name: str) -> Path:
    """The file of a chat of this name, which must be a plain one: no separator, no dot in front. ArgumentError."""
    plain = isinstance(name, str) and name == name.strip() and name.isprintable() and not name.startswith(".")
    if not plain or not name or any(character in name for character in "/\\:"):
        raise ArgumentError(f"a chat's name must be a word or some, without / \\ : and no dot in front, got {name!a}")
    if len(_native.text_bytes(name)) > _NAME_BYTES:
        raise ArgumentError(f"a chat's name must have at most {_NAME_BYTES} bytes, got {len(name.encode())}")
    return chats_folder() / f"{name}.json"


def save_named(chat: Chat, name: str, *, cache: bool = False, sampling: Mapping[str, Any] | None = None) -> Path:
    """Chat.save() into the user's folder, which is made if need be and which no one else may enter. The file's path."""
    path = named_path(name)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {path.parent}: {error.strerror or error}") from None
    _remove_abandoned(path.parent)
    save_chat(chat, path, cache=cache, sampling=sampling)
    return path


def _remove_abandoned(folder: Path) -> None:
    """What a process left that was killed while it saved."""
    with contextlib.suppress(OSError):
        for path in folder.glob(".pantheon-*.tmp"):
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                path.unlink(missing_ok=True)


def load_named(name: str, model: Model, **options: Any) -> Chat:
    """Chat.load() from the user's folder, which nobody else writes: its files are trusted. options: as there."""
    from pantheon.chat.session import Chat

    return load_chat(Chat, named_path(name), model, trusted=True, **options)


def list_named() -> list[NamedChat]:
    """The chats of the user's folder, the last one first. Nothing is read of them."""
    found: list[NamedChat] = []
    try:
        paths = sorted(chats_folder().glob("*.json"))
    except OSError as error:
        raise FileError(f"cannot read the folder {chats_folder()}: {error.strerror or error}") from None
    for path in paths:
        with contextlib.suppress(OSError, ArgumentError):
            if named_path(path.stem) == path and path.is_file():
                found.append(NamedChat(name=path.stem, path=path, changed=path.stat().st_mtime))
    return sorted(found, key=lambda chat: -chat.changed)


def last() -> str | None:
    """The name of the chat that was saved last, or None."""
    found = list_named()
    return found[0].name if found else None


def remove_named(name: str) -> None:
    """Delete a chat and its cache. FileError if there is none."""
    path = named_path(name)
    try:
        path.unlink()
        cache_path(path).unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"cannot remove {path}: {error.strerror or error}") from None
