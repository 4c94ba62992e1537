"""Models of Hugging Face's hub, "hf:owner/repo/file.gguf": found in the hub's own cache, or fetched into it.

Rank 1: imports errors; huggingface_hub where it is used. A name of one part of a split model stands for all of them.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from pantheon.errors import NoModelError, PullError

_PART = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf")
_PARTS_MAX = 65535  # the file's own number has 16 bits


def _split(name: str) -> tuple[str, str]:
    parts = name.removeprefix("hf:").split("/")
    if len(parts) < 3 or not all(parts) or ".." in parts:
        raise NoModelError(f"{name!r} is not of the form hf:owner/repo/file.gguf")
    return "/".join(parts[:2]), "/".join(parts[2:])


def _need(name: str) -> None:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise NoModelError(f"{name} needs the package huggingface_hub: pip install 'pantheon[hub]'")


def _part_names(name: str) -> Iterator[str]:
    """The names of all files of a model: one, or NAME-00001-of-00003.gguf and so on, given any of them."""
    match = _PART.fullmatch(name)
    if match is None or not 1 <= int(match["number"]) <= int(match["count"]) <= _PARTS_MAX:
        yield name
        return
    for number in range(1, int(match["count"]) + 1):
        yield f"{match['stem']}-{number:05}-of-{match['count']}.gguf"


def first_part(name: str) -> str:
    """The name of the first file of a model, given any of its files: which files of a folder are one model."""
    return next(_part_names(name))


def resolve(name: str) -> Path:
    """The file in the hub's cache; NoModelError, with the command that helps, if it or another part is not there."""
    repo, file = _split(name)
    _need(name)
    from huggingface_hub import try_to_load_from_cache

    found: dict[str, str] = {}
    for part in _part_names(file):  # no further than to the first that is not there: a name may speak of 65,535
        path = try_to_load_from_cache(repo, part)
        if not isinstance(path, str):
            which = "" if part == file and not found else f" ({part} is missing)"
            raise NoModelError(f"{name} is not here yet{which}; fetch it with: pantheon pull {name}")
        found[part] = path
    return Path(found[file])


def pull(name: str, report: Callable[[Literal["download"], float], object]) -> Path:
    """Fetch a file and, if it is a part of a split model, all others. Parts that are here already cost nothing."""
    repo, file = _split(name)
    _need(name)
    from huggingface_hub import hf_hub_download

    paths: dict[str, Path] = {}
    parts = list(_part_names(file))
    for index, part in enumerate(parts):
        report("download", index / len(parts))
        try:
            paths[part] = Path(hf_hub_download(repo, part))
        except Exception as error:  # a foreign library's network code: many causes, one sentence
            lines = str(error).strip().splitlines() or [type(error).__name__]
            which = "" if part == file else f", of which {part} is a part,"
            raise PullError(f"{name}{which} cannot be fetched: {lines[0]}") from error
    report("download", 1.0)
    if len({path.parent for path in paths.values()}) > 1:  # a folder for each revision of the repository
        raise PullError(f"{name} was changed by its owner while its {len(parts)} parts were fetched; pull it again")
    return paths[file]
