"""The programs of benchmarks/ find what they import. What they measure is theirs; no speed is asserted."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
PROGRAMS = sorted(path.stem for path in BENCHMARKS.glob("*.py"))


def test_there_are_programs() -> None:
    assert "compare" in PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_can_be_imported_without_running(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module(name)
    assert Path(module.__file__ or "").parent == BENCHMARKS
    assert callable(module.main)
