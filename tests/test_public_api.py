"""The public surface: names, documentation, types, and what an import costs."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

import pantheon
import pantheon.chat
import pantheon.errors

HEAVY = (
    "numpy", "click", "rich", "prompt_toolkit", "jinja2", "huggingface_hub", "asyncio", "subprocess", "zipfile",
    "secrets",
)  # fmt: skip


def test_all_is_sorted_and_complete() -> None:
    assert sorted(pantheon.__all__) == pantheon.__all__
    public = {
        name for name, value in vars(pantheon).items() if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert public | {"__version__"} == set(pantheon.__all__)


def test_every_error_class_is_public_and_derives_from_the_base() -> None:
    classes = [c for c in vars(pantheon.errors).values() if inspect.isclass(c)]
    assert classes
    for error in classes:
        assert issubclass(error, pantheon.PantheonError)
        assert error.__name__ in pantheon.__all__
        assert error.__name__ in (pantheon.errors.__doc__ or ""), "the tree in the docstring lacks a class"


def test_everything_public_is_documented_and_annotated() -> None:
    for module in (pantheon, pantheon.chat):
        for name in module.__all__:
            value = getattr(module, name)
            if not (inspect.isclass(value) or inspect.isfunction(value)):
                continue
            assert inspect.getdoc(value), f"{name} has no docstring"
            functions = [value] if inspect.isfunction(value) else _public_methods(value)
            for function in functions:
                assert inspect.getdoc(function), f"{name}.{function.__name__} has no docstring"
                assert "return" in function.__annotations__, f"{name}.{function.__name__} is not annotated"


def _public_methods(cls: type) -> list[FunctionType]:
    found: list[FunctionType] = []
    for name, value in vars(cls).items():
        if isinstance(value, (classmethod, staticmethod)):
            value = value.__func__
        if isinstance(value, property):
            value = value.fget
        if inspect.isfunction(value) and not name.startswith("_"):
            found.append(value)
    return found


def test_type_information_ships() -> None:
    assert (Path(pantheon.__file__).parent / "py.typed").is_file()


def test_the_version_is_the_cores() -> None:
    assert pantheon.__version__.count(".") == 2


def loaded_by(script: str, *arguments: str) -> list[str]:
    """Which of the heavy packages a script leaves imported that were not there when Python had started."""
    around = f"import sys; before = set(sys.modules)\n{script}\n"
    found = f"print(*[m for m in {HEAVY!r} if m in sys.modules and m not in before])"
    done = subprocess.run(
        [sys.executable, "-c", around + found, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_import_loads_none_of_the_heavy_packages() -> None:
    assert loaded_by("import pantheon") == []


def test_a_chat_needs_only_the_template_engine(tiny_model: str) -> None:
    """numpy and its BLAS threads would be a third of the time to the first token."""
    chat = "import pantheon\nnext(pantheon.load(sys.argv[1]).chat().stream('abc'), None)"
    assert loaded_by(chat, tiny_model) == ["jinja2"]


def test_a_folder_without_the_compiled_part_says_so(tmp_path: Path) -> None:
    package = tmp_path / "pantheon"
    ignore = shutil.ignore_patterns("_core.*", "__pycache__")
    shutil.copytree(Path(pantheon.__file__).parent, package, ignore=ignore)
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import sys; sys.path[:] = sys.argv[1:]; import pantheon", tmp_path, *sys.path],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "compiled part" in done.stderr
    assert str(package) in done.stderr


def test_the_signatures_that_the_documentation_promises() -> None:
    def keywords(function: object) -> list[str]:
        parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
        return [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]

    assert keywords(pantheon.load)[:3] == ["threads", "isa", "progress"]
    assert keywords(pantheon.Tokenizer.encode) == ["special", "bos", "eos", "after"]
    assert keywords(pantheon.chat.render) == ["tools", "bos_token", "eos_token", "add_generation_prompt", "now"]
    assert {"window", "reply_limit"} <= set(keywords(pantheon.Model.chat))


@pytest.mark.parametrize("base", [ValueError, OSError, MemoryError])
def test_errors_can_be_caught_by_the_built_in_class_one_would_expect(base: type[Exception]) -> None:
    by_base = {
        ValueError: pantheon.ArgumentError, OSError: pantheon.FileError, MemoryError: pantheon.OutOfMemoryError
    }  # fmt: skip
    assert issubclass(by_base[base], base)
    assert str(by_base[base]("why")) == "why"
