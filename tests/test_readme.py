"""README's table of what runs: it is what the package says, and each name in it has a test with an oracle."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Mapping

import pytest
from test_layers import ROOT, load_tool

from pantheon._core import ffi, lib

what_runs = load_tool("what_runs")

# The lists that tests with an oracle (somebody else's results) run over: module and attribute, names in it.
LISTS: dict[str, list[tuple[str, str]]] = {
    "architectures": [("reference_families", "FAMILIES")],
    "types": [("gguf_bytes", "READABLE")],
    "matrix_types": [("tiny_gguf", "MULTIPLIABLE"), ("tiny_families", "TYPES")],
    "targets": [("test_quantize", "FILE_TYPES")],
    "tokenizers": [],
    "pretokenizers": [("test_pretokenizers", "FAMILIES")],
    "styles": [("chat_worlds", "FAMILIES")],
}
# Names that have a module of tests to themselves, or stand in it one by one.
ALONE: dict[str, dict[str, str]] = {
    "architectures": {"llama": "test_forward"},
    "targets": dict.fromkeys(("q4_k", "q4_k_m", "q5_k", "q5_k_m", "q6_k"), "test_quantize_k"),
    "tokenizers": {"gpt2": "test_tokenizer", "llama": "test_spm"},
    "pretokenizers": {"smollm": "test_tokenizer", "gpt-2": "test_tokenizer"},
    "styles": {"chatml": "test_templates", "passthrough": "test_styles"},
}


def exists(module: str) -> bool:
    """Whether there is such a module of tests."""
    return importlib.util.find_spec(module) is not None


def names_of(module: str, attribute: str) -> set[str]:
    """The names in a list of a module."""
    names: Iterable[object] = getattr(importlib.import_module(module), attribute)
    return {str(getattr(name, "name", name)).lower() for name in names}


def covered(key: str) -> set[str]:
    """The names of a list, in small letters, that some test with an oracle runs over."""
    alone = {name for name, module in ALONE.get(key, {}).items() if exists(module)}
    return alone.union(*(names_of(module, attribute) for module, attribute in LISTS[key] if exists(module)))


def untested(lists: Mapping[str, Iterable[str]]) -> list[str]:
    """What no test holds against an oracle: "types: Q9_K"."""
    return [f"{key}: {name}" for key, names in lists.items() for name in names if name.lower() not in covered(key)]


@pytest.mark.skipif(not (ROOT / "README.md").is_file(), reason="there is no README.md: not a source tree")
def test_the_table_is_what_the_package_says() -> None:
    assert what_runs.main(["--check"]) == 0, "run: python tools/what_runs.py"


def test_every_name_in_the_table_has_a_test_with_an_oracle() -> None:
    lists = what_runs.known()
    assert set(lists) == set(LISTS)
    assert all(lists.values())
    assert untested(lists) == []


@pytest.mark.parametrize("key", LISTS)
def test_a_name_that_no_test_knows_is_seen(key: str) -> None:
    assert untested({key: ["of-tomorrow"]}) == [f"{key}: of-tomorrow"]


def test_a_list_that_does_not_exist_is_empty() -> None:
    for number in (-1, 6, 2**31 - 1):
        assert lib.pn_known(number, 0) == ffi.NULL
    for number in range(6):
        assert lib.pn_known(number, 2**64 - 1) == ffi.NULL


def test_a_changed_table_is_seen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lists = {**what_runs.known(), "architectures": ["llama", "of-tomorrow"]}
    monkeypatch.setattr(what_runs, "known", lambda: lists)
    assert what_runs.main(["--check"]) == 1
    assert "python tools/what_runs.py" in capsys.readouterr().out


def test_a_list_that_says_nothing_new_is_left_out() -> None:
    lists = {key: ["a"] for key in what_runs.ROWS}
    assert "for matrices" not in what_runs.table(lists)
    assert "for matrices | `b` |" in what_runs.table({**lists, "matrix_types": ["b"]})
