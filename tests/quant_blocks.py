"""Random rows of any element type that the core reads, byte for byte as a file holds them.

The `gguf` package writes only some of the block types, and what a good quantizer writes never comes near the ends of
the format. Here the codes are random bytes, the scales of groups reach both ends of their range (0 and 63, -32 and 31,
-128 and 127, as the layout allows), the scales of blocks have both signs where the layout has no minimum, and yet the
values are fit to be weights: near a mean of zero, with the standard deviation that was asked for, without NaN.

The one thing to know first: a block is a list of fields in the order of the file, see `LAYOUTS`; scales of groups are
packed by functions written here from the description of the format, never from the C.
"""

from __future__ import annotations

from collections.abc import Callable

import gguf
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Rng = np.random.Generator
Codes = npt.NDArray[np.int64]

# What stands for the two halves of a block while it is made.
SCALE, MINIMUM = "scale", "minimum"


def _ends(rng: Rng, n_blocks: int, n_groups: int, low: int, high: int) -> Codes:
    """Random integers [n_blocks, n_groups] from low to high, one in eight of them at an end."""
    middle = rng.integers(low, high + 1, (n_blocks, n_groups))
    return np.where(rng.random(middle.shape) < 1 / 8, rng.choice([low, high], middle.shape), middle)


def _beside(rng: Rng, scales: Codes, high: int) -> Codes:
    """Minima that mostly follow the scales, so that groups have a mean near zero; some at an end."""
    near = np.clip(scales + rng.integers(-high // 8, high // 8 + 1, scales.shape), 0, high)
    return np.where(rng.random(scales.shape) < 1 / 8, rng.choice([0, high], scales.shape), near)


def _q2_k(rng: Rng, n_blocks: int) -> Bytes:
    """Sixteen scales of 4 bits (low halves), sixteen minima (high halves)."""
    scales = _ends(rng, n_blocks, 16, 0, 15)
    return (scales | _beside(rng, scales, 15) << 4).astype(np.uint8)


def _q3_k(rng: Rng, n_blocks: int) -> Bytes:
    """Sixteen signed scales of 6 bits, kept with 32 added: eight bytes of low halves, four bytes of high quarters."""
    scales = _ends(rng, n_blocks, 16, -32, 31) + 32
    low, high = scales & 15, scales >> 4
    packed = [low[:, :8] | low[:, 8:] << 4]
    packed += [high[:, 0:4] | high[:, 4:8] << 2 | high[:, 8:12] << 4 | high[:, 12:16] << 6]
    return np.concatenate(packed, axis=1).astype(np.uint8)


def _q4_k(rng: Rng, n_blocks: int) -> Bytes:
    """Eight scales and eight minima of 6 bits: the first four of each whole, with the high bits of the others on top;
    then the low halves of the others, scale below minimum."""
    scales = _ends(rng, n_blocks, 8, 0, 63)
    minima = _beside(rng, scales, 63)
    tops = [first[:, :4] | first[:, 4:] >> 4 << 6 for first in (scales, minima)]
    return np.concatenate([*tops, scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4], axis=1).astype(np.uint8)


def _q6_k(rng: Rng, n_blocks: int) -> Bytes:
    """Sixteen signed bytes."""
    return _ends(rng, n_blocks, 16, -128, 127).astype(np.int8).view(np.uint8)


def _iq4_xs(rng: Rng, n_blocks: int) -> Bytes:
    """Eight signed scales of 6 bits, kept with 32 added: u16 of high quarters, four bytes of low halves."""
    scales = _ends(rng, n_blocks, 8, -32, 31) + 32
    high = ((scales >> 4) << np.arange(0, 16, 2)).sum(axis=1).astype("<u2").reshape(-1, 1).view(np.uint8)
    return np.concatenate([high, (scales[:, ::2] & 15 | (scales[:, 1::2] & 15) << 4).astype(np.uint8)], axis=1)


Field = str | int | Callable[[Rng, int], Bytes]
# Fields in the order of the file: random bytes (how many), a half, or packed scales; and minimum / scale, which makes
# the mean of a block zero: minus the middle code where the minimum is added, plus where it is taken away.
LAYOUTS: dict[str, tuple[float, tuple[Field, ...]]] = {
    "Q8_0": (0, (SCALE, 32)),
    "Q4_0": (0, (SCALE, 16)),
    "Q4_1": (-7.5, (SCALE, MINIMUM, 16)),
    "Q5_0": (0, (SCALE, 4, 16)),
    "Q5_1": (-15.5, (SCALE, MINIMUM, 4, 16)),
    "IQ4_NL": (0, (SCALE, 16)),
    "Q2_K": (1.5, (_q2_k, 64, SCALE, MINIMUM)),
    "Q3_K": (0, (32, 64, _q3_k, SCALE)),
    "Q4_K": (7.5, (SCALE, MINIMUM, _q4_k, 128)),
    "Q5_K": (15.5, (SCALE, MINIMUM, _q4_k, 32, 128)),
    "Q6_K": (0, (128, 64, _q6_k, SCALE)),
    "IQ4_XS": (0, (SCALE, _iq4_xs, 128)),
}
NUMBERS = ("F32", "F16", "BF16")
READABLE = (*NUMBERS, *LAYOUTS)
"""Every type that `random_rows` makes: those that the core reads."""


def _halves(values: npt.NDArray[np.float64]) -> Bytes:
    """[n_blocks, 2]: each as a half; values too small for one become the smallest normal half, never zero."""
    tiny = np.finfo(np.float16).tiny
    kept = np.where(np.abs(values) < 2.0**-24, np.copysign(tiny, values), values)
    return kept.astype("<f2").reshape(-1, 1).view(np.uint8)


def _floats(raw: Bytes, dtype_name: str) -> npt.NDArray[np.float32]:
    dtype = gguf.GGMLQuantizationType[dtype_name]
    return np.asarray(gguf.quants.dequantize(np.ascontiguousarray(raw), dtype), np.float32)


def random_rows(dtype_name: str, n_rows: int, n_cols: int, seed: int, std: float = 1.0) -> Bytes:
    """The bytes [n_rows, bytes of a row] of a random matrix of `n_cols` elements a row (whole blocks).

    The dequantized values have about the standard deviation `std`, a mean near zero and no NaN or infinity. The same
    arguments give the same bytes.
    """
    dtype = gguf.GGMLQuantizationType[dtype_name]
    rng = np.random.default_rng([seed, int(dtype)])
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[dtype]
    assert n_cols % block_len == 0, f"{n_cols} elements are no whole blocks of {dtype_name}"
    if dtype_name in NUMBERS:
        values = (rng.standard_normal((n_rows, n_cols)) * std).astype(np.float32)
        return np.ascontiguousarray(gguf.quants.quantize(values, dtype)).view(np.uint8).reshape(n_rows, -1)
    ratio, fields = LAYOUTS[dtype_name]
    n_blocks = n_rows * n_cols // block_len
    parts: list[Bytes | None] = []
    for field in fields:
        if isinstance(field, int):
            parts.append(rng.integers(0, 256, (n_blocks, field), dtype=np.uint8))
        else:
            parts.append(None if isinstance(field, str) else field(rng, n_blocks))
    scales = rng.uniform(0.5, 1.5, n_blocks)
    if not ratio:
        scales *= rng.choice([-1.0, 1.0], n_blocks)

    def block_bytes_of(factor: float) -> Bytes:
        halves = {SCALE: _halves(scales * factor), MINIMUM: _halves(scales * factor * ratio)}
        chosen = [halves[str(field)] if part is None else part for field, part in zip(fields, parts, strict=True)]
        return np.concatenate(chosen, axis=1)

    spread = float(_floats(block_bytes_of(1.0), dtype_name).std(dtype=np.float64))
    raw = block_bytes_of(std / (spread or 1.0))
    assert raw.shape[1] == block_bytes
    return np.ascontiguousarray(raw).reshape(n_rows, n_cols // block_len * block_bytes)
