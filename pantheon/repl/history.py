"""What was typed, kept from one run to the next. Chats are kept elsewhere.

Rank 5: imports catalog for the folder; prompt_toolkit for the format of the file.

The file belongs to the user alone. Where it cannot be read or written, the history lasts as long as the run.
"""

from __future__ import annotations

import os
from pathlib import Path

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from pantheon import catalog

_MOST_CHARACTERS = 20_000  # of one entry: a pasted book is no line that anyone looks for
_MOST_BYTES = 1_000_000  # of the file, when it is opened


def history_file() -> Path:
    """`history` in PANTHEON_HOME, or in the platform's folder for what a program remembers."""
    if os.environ.get("PANTHEON_HOME"):
        return catalog.cache_folder() / "history"
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "pantheon" / "history"


def open_history() -> History:
    """The user's history, or an empty one that no file keeps."""
    try:
        path = history_file()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            os.fchmod(file.fileno(), 0o600)
            _shorten(file.fileno(), os.fstat(file.fileno()).st_size)
    except (OSError, RuntimeError):  # RuntimeError: nobody knows where the user's home is
        return InMemoryHistory()
    return _UsersHistory(path)


def _shorten(descriptor: int, size: int) -> None:
    """Keep the younger half of a file that has grown too large, from an entry's beginning on."""
    if size <= _MOST_BYTES:
        return
    data = os.pread(descriptor, size, size - _MOST_BYTES // 2)
    data = data[data.find(b"\n\n#") + 1 :] if b"\n\n#" in data else b""
    os.pwrite(descriptor, data, 0)
    os.ftruncate(descriptor, len(data))


class _UsersHistory(FileHistory):
    """A file in which each entry is a comment with the time and its lines, each behind a plus sign."""

    def store_string(self, string: str) -> None:
        """Append an entry; a full disk is no reason to end a conversation."""
        try:
            if len(string) <= _MOST_CHARACTERS:
                super().store_string(string)
        except (OSError, UnicodeError):
            pass
