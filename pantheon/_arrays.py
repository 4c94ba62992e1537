"""Arrays of token ids and logits on their way to C and back: uint32 and float32, contiguous.

Rank 0: imports errors. numpy takes longer to import than all of this package, so it is imported where a numpy array is
made or taken, and nowhere else: a chat does without it. Its ids are array.array("I"), which C reads as they are.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from pantheon import errors

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Ids: TypeAlias = "npt.NDArray[np.uint32]"
Floats: TypeAlias = "npt.NDArray[np.float32]"
IdBuffer: TypeAlias = "array[int]"
"""Token ids, 4 bytes each."""

ID_CODE = "I" if array("I").itemsize == 4 else "L"


def as_ids(ids: Sequence[int] | npt.ArrayLike) -> Ids:
    """A new contiguous array uint32[n] of token ids; ArgumentError names the first value that is not one.

    Always a copy: C reads it while other threads run, and one of them may own what the caller gave.
    """
    import numpy as np

    if isinstance(ids, np.ndarray) and ids.dtype == np.uint32 and ids.ndim == 1:
        return np.array(ids, np.uint32, order="C")
    try:
        values = np.array(ids)
    except (ValueError, OverflowError, TypeError):
        raise errors.ArgumentError("token ids must be a flat sequence of integers") from None
    if values.ndim != 1:
        raise errors.ArgumentError(f"token ids must be a flat sequence, got {values.ndim} dimensions")
    if values.size == 0:
        return np.empty(0, np.uint32)
    if values.dtype.kind not in "iu":
        raise errors.ArgumentError(f"token ids must be integers, got {values.dtype}")
    bad = np.flatnonzero((values < 0) | (values > 0xFFFFFFFF))
    if bad.size:
        raise errors.ArgumentError(f"token id {values[bad[0]]} at index {bad[0]} is not in 0..4294967295")
    return np.ascontiguousarray(values, np.uint32)


def id_buffer(ids: Sequence[int] | npt.ArrayLike | IdBuffer) -> Ids | IdBuffer:
    """as_ids() for C alone: the same values and errors, without numpy where the ids are plain integers."""
    if isinstance(ids, array) and ids.typecode == ID_CODE:
        return ids[:]
    if isinstance(ids, (list, tuple)) and all(type(token) is int for token in ids):
        with contextlib.suppress(OverflowError):  # as_ids says which one
            return array(ID_CODE, ids)
    return as_ids(ids)


def shared_prefix(a: IdBuffer, b: IdBuffer) -> int:
    """With how many equal ids both begin."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)


def check_rows(rows: Floats, shape: tuple[int, int]) -> None:
    """C writes into it without knowing its size."""
    import numpy as np

    if not isinstance(rows, np.ndarray) or rows.dtype != np.float32 or rows.shape != shape:
        raise errors.ArgumentError(f"the logits need an array float32[{shape[0]}, {shape[1]}]")
    if not (rows.flags.c_contiguous and rows.flags.writeable and rows.flags.aligned):
        raise errors.ArgumentError("the array for the logits must be contiguous, aligned and writable")
