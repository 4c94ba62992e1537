"""What tests of equal bits share: how models are loaded for them, and the comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import pantheon
from pantheon import _native

Logits = npt.NDArray[np.float32]

ISAS = tuple(_native.isa_available())
"""The instruction sets that this machine can run, best first."""


def load(path: str, **options: Any) -> pantheon.Model:
    """Without BLAS, whose sums no one here orders."""
    return pantheon.load(path, blas=False, **options)


def same(got: Logits | None, want: Logits) -> bool:
    """Equal bits; 0.0 and -0.0 are not the same."""
    return got is not None and got.shape == want.shape and got.tobytes() == want.tobytes()
