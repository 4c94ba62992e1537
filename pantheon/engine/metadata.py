"""What a file's header says, as a read-only mapping that makes each value only when it is asked for.

Rank 3: imports _native.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from pantheon import _native


class Metadata(Mapping[str, object]):
    """Metadata of a GGUF file in file order. Values are int, float, bool, str, numpy arrays, or lists of str.

    Any part of a model that was split over several files stands for the whole; the keys split.* are left out.
    """

    def __init__(self, handle: _native.AnyGGUF) -> None:
        """Internal: use Metadata.from_file() or model.metadata."""
        self._handle = handle
        self._index = _native.gguf_keys(handle)

    @classmethod
    def from_file(cls, path: str | bytes | os.PathLike[str]) -> Metadata:
        """Read and check the header of a file; a ModelFileError says what is wrong with it."""
        return cls(_native.GGUFHandle(path))

    def __getitem__(self, key: str) -> object:
        return _native.gguf_value(self._handle, self._index[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)

    def text(self, key: str) -> str | None:
        """The value of `key` if it is there and a string, else None."""
        value = self.get(key)
        return value if isinstance(value, str) else None

    @property
    def tensors(self) -> list[_native.Tensor]:
        """The tensor directory: name, shape (contiguous dimension first), element type, offset and size in bytes."""
        return _native.gguf_tensors(self._handle)

    @property
    def files(self) -> tuple[int, int]:
        """Of how many files the model consists (1, or more if it was split), and how many bytes they have together."""
        return _native.gguf_files(self._handle)

    def __repr__(self) -> str:
        return f"<pantheon metadata: {len(self)} keys>"
