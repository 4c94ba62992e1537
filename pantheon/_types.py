"""The element types of a model's tensors, in words: how many there are of each, and what became of them.

Rank 2: imports _native. It converts nothing and knows no recipe: it looks at two tensor directories.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pantheon._native import Tensor

_FLOATS = frozenset(("F32", "F16", "BF16", "F64"))
_BLOCK = 32
_SUPERBLOCK = 256  # of the types whose names hold "_K"


def counted(tensors: Sequence[Tensor]) -> str:
    """ "211 Q8_0, 61 F32": the most frequent type first."""
    counts = Counter(tensor.type_name for tensor in tensors)
    return ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "no tensors"


def fallbacks(target: str, written: Sequence[Tensor]) -> str | None:
    """Which matrices could not become the type that was asked for, and why; None if all could.

    target: a name of QUANTIZE_TYPES. A row is made of whole blocks, so its length decides.
    """
    if target.upper() in _FLOATS:
        return None
    block = _SUPERBLOCK if "_K" in target.upper() else _BLOCK
    given_way = [t for t in written if len(t.shape) > 1 and t.type_name != "F32" and t.shape[0] % block]
    if not given_way:
        return None
    first = given_way[0]
    return (
        f"{counted(given_way)} instead of {target}, since their rows are no multiple of {block} "
        f"(such as {first.name}, {first.shape[0]})"
    )


def twice_quantized(source: Sequence[Tensor], written: Sequence[Tensor]) -> str | None:
    """A warning if blocks were made of blocks: what was lost in the first round is not had again in the second."""
    again = list(_again(source, written))
    if not again:
        return None
    return (
        f"{len(again)} tensors were quantized already ({counted(again)}), and quantizing twice loses more than once; "
        "if there is a file of the model in F16, BF16 or F32, quantize that"
    )


def _again(source: Sequence[Tensor], written: Sequence[Tensor]) -> Iterator[Tensor]:
    for before, after in zip(source, written, strict=False):  # one directory is a copy of the other
        if before.type_name not in _FLOATS and after.type_name not in _FLOATS and before.type_name != after.type_name:
            yield before
