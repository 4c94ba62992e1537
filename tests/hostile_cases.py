"""Models with one thing wrong, and what the refusal must be and say: the form of the cases of test_hostile_*.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tiny_gguf import OMIT, VType

import pantheon
from pantheon.errors import CorruptFileError, MetadataError, PantheonError

U32, F32, STRING, I32, BOOL = VType.UINT32, VType.FLOAT32, VType.STRING, VType.INT32, VType.BOOL
NAN, INF = float("nan"), float("inf")

Kinds = type[PantheonError] | tuple[type[PantheonError], ...]


@dataclass(frozen=True)
class Case:
    """A model with one thing wrong: the classes of its error and what the message must hold, in any case of letters."""

    error: Kinds
    says: tuple[str, ...]
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)
    shape: dict[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """What write_model() or write_family() makes the file of."""
        return {"metadata": self.metadata, "tensors": self.tensors, **self.shape}


def meta(key: str, value: Any, kind: VType, *says: str, error: Kinds = MetadataError, **shape: Any) -> Case:
    """One metadata entry replaced; the message must hold the key."""
    return Case(error, (key, *says), metadata={key: (value, kind)}, shape=shape)


def without(key: str, error: Kinds = MetadataError) -> Case:
    """One metadata entry left out."""
    return Case(error, (key,), metadata={key: OMIT})


def tensor(name: str, value: Any, *says: str, error: Kinds = CorruptFileError, **shape: Any) -> Case:
    """One tensor replaced, added or left out; the message must hold its name."""
    return Case(error, (name, *says), tensors={name: value}, shape=shape)


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def check_refused(path: str, case: Case) -> None:
    """Loading it raises exactly the case's error, in one printable sentence that says what it must."""
    with pytest.raises(PantheonError) as caught:
        pantheon.load(path)
    kinds = case.error if isinstance(case.error, tuple) else (case.error,)
    assert type(caught.value) in kinds, caught.value
    message = str(caught.value)
    for part in case.says:
        assert part.lower() in message.lower(), (part, message)
    assert message.isprintable(), message
    assert len(message) < 600, message
