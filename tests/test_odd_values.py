"""What no sensible caller gives: each is one typed error that says what is wrong, never one of Python's own."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

import pantheon
from pantheon import SamplingParams, catalog
from pantheon.catalog import CATALOG, Entry
from pantheon.cli import run
from pantheon.errors import ArgumentError, CatalogError, NoModelError, PantheonError, PullError

HUGE = 10**400
NUMBERS = ("temperature", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty")


# ---- Numbers


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "value", [HUGE, -HUGE, 10**5000, 1e308, -1e308, "1", None, [], True], ids=lambda v: str(type(v))
)
def test_a_number_that_32_bits_cannot_hold_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=name) as caught:
        SamplingParams(**{name: value})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", ["top_k", "penalty_window", "seed"])
def test_an_integer_without_end_is_refused_by_name(name: str) -> None:
    for value in (HUGE, -(10**5000)):
        with pytest.raises(ArgumentError, match=f"{name} .*bits"):
            SamplingParams(**{name: value})


def test_what_32_bits_make_zero_is_judged_as_zero(tiny_model: str) -> None:
    for name in ("top_p", "repeat_penalty"):
        with pytest.raises(ArgumentError, match=name):
            SamplingParams(**{name: 1e-60})
    with pantheon.load(tiny_model) as model:
        assert model.generate("a", max_tokens=3, temperature=1e-60).tokens == model.generate("a", max_tokens=3).tokens


@pytest.mark.parametrize("bias", [[1], [(1, 2.0)], 5, "ab", {1: HUGE}, {1: 1e308}, {HUGE: 1.0}, {1: None}, {1: True}])
def test_a_logit_bias_that_is_none_is_refused(bias: Any) -> None:
    with pytest.raises(ArgumentError, match="logit_bias"):
        SamplingParams(logit_bias=bias)


def test_a_bias_may_forbid_a_token() -> None:
    assert SamplingParams(logit_bias={1: float("-inf")}).logit_bias == {1: float("-inf")}


@pytest.mark.parametrize("flags", [["--temperature", "1e308"], ["--repeat-penalty", "1e-60"], ["--window", "100000"]])
def test_a_flag_out_of_range_is_wrong_usage(tiny_model: str, flags: list[str], capsys: Any) -> None:
    assert run(["chat", tiny_model, *flags]) == 2
    assert "Usage" in capsys.readouterr().err


# ---- Paths


def test_a_path_that_no_file_can_have_is_refused() -> None:
    for name in ("\ud800.gguf", "/tmp/\ud800/x.gguf"):
        for use in (pantheon.load, pantheon.Tokenizer.from_file):
            with pytest.raises(ArgumentError, match="lone surrogate"):
                use(name)  # type: ignore[operator]
    with pytest.raises(NoModelError):
        pantheon.load("\ud800")
    for name in ("x" * 5000, "x" * 5000 + ".gguf"):
        with pytest.raises(PantheonError):
            pantheon.load(name)


def test_a_cache_folder_that_nobody_can_read_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PANTHEON_HOME", str(tmp_path / ("x" * 300)))  # as root, permissions do not stop a test
    for use in (catalog.list_models, lambda: catalog.resolve("smollm2"), lambda: catalog.remove("x")):
        with pytest.raises(CatalogError, match="PANTHEON_HOME"):
            use()
    (tmp_path / "file").touch()
    monkeypatch.setenv("PANTHEON_HOME", str(tmp_path / "file"))  # there, but no folder: nothing is stored in it
    with pytest.raises(NoModelError, match="pantheon pull smollm2"):
        catalog.resolve("smollm2")


# ---- Pulling


@pytest.fixture
def entry(tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Entry:
    """A model of the catalogue in a cache folder of its own."""
    monkeypatch.setenv("PANTHEON_HOME", str(tmp_path / "home"))
    size = os.path.getsize(tiny_model)
    made = Entry(
        name="tiny", title="Tiny", license="CC0", package="tiny-llm==1.0",
        wheel_sha256=hashlib.sha256(b"").hexdigest(), wheel_size=size, member="tiny_llm/tiny.gguf",
        member_sha256=hashlib.sha256(b"").hexdigest(), member_size=size,
        result="Tiny-Q8_0.gguf", result_type="q8_0", result_size=size,
    )  # fmt: skip
    monkeypatch.setitem(CATALOG, "tiny", made)
    return made


@pytest.mark.parametrize(("retries", "says"), [("1", "cannot be reached .*refused"), ("0", "is the network there")])
def test_a_pull_without_a_network_says_so(
    entry: Entry, monkeypatch: pytest.MonkeyPatch, retries: str, says: str
) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy") or name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    settings = {"CONFIG_FILE": os.devnull, "INDEX_URL": "http://127.0.0.1:9/simple", "RETRIES": retries}
    for name, value in settings.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    with pytest.raises(PullError, match=says):
        catalog.pull(entry.name)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("NewConnectionError('<a.b object at 0x7f9f59dcdc50>: Failed: [Errno 111] no')", "Failed: [Errno 111] no"),
        ("ProxyError('No proxy.', NewConnectionError('<a.b object at 0x7f>: Refused'))", "Refused"),
        ("SSLError(SSLCertVerificationError(1, '[SSL: X] failed (_ssl.c:1)'))", "[SSL: X] failed (_ssl.c:1)"),
        ("ReadTimeoutError(\"HTTPSConnectionPool(host='x.y', port=4): Read timed out.\")", "Read timed out."),
        ("Something", "Something"),
    ],
)
def test_the_cause_that_pip_shows_is_taken_out_of_its_wrapping(line: str, cause: str) -> None:
    assert catalog._innermost(line) == cause


def test_a_damaged_model_of_the_catalogue_can_be_had_again(entry: Entry, capsys: pytest.CaptureFixture[str]) -> None:
    folder = catalog.cache_folder()
    folder.mkdir()
    (folder / entry.result).write_bytes(b"GGUF\3\0\0\0")
    assert run(["chat", "tiny"]) == 1
    assert "pantheon rm tiny, then pantheon pull tiny" in capsys.readouterr().err
    assert run(["rm", "tiny"]) == 0
    assert run(["chat", "tiny"]) == 1
    assert "fetch it with: pantheon pull tiny" in capsys.readouterr().err
