"""Includes and imports go one way; the tool that says so sees it when they do not."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


def load_tool(name: str) -> ModuleType:
    """A module of tools/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


layers = load_tool("check_layers")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources that a test may spoil."""
    for folder in ("csrc", "pantheon"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return tmp_path


def offences(root: Path) -> list[str]:
    return [*layers.check_c(root), *layers.check_python(root)]


def new_offences(tree: Path) -> list[str]:
    """What the test has brought about, whatever else stands in the tree."""
    before = offences(ROOT)
    return [offence for offence in offences(tree) if offence not in before]


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


def prepend(path: Path, text: str) -> None:
    path.write_text(text + path.read_text(encoding="utf-8"), encoding="utf-8")


def test_the_tree_keeps_the_direction() -> None:
    assert offences(ROOT) == []


@pytest.mark.parametrize(
    ("file", "line", "complaint"),
    [
        ("csrc/gguf.c", '#include "model.h"\n', "csrc/gguf.c (rank 3): may not include model.h (rank 8)"),
        ("csrc/kv.h", '#  include  "scratch.h"\n', "csrc/kv.h (rank 6): may not include scratch.h (rank 6)"),
        ("csrc/kernels/portable.c", '#include "gguf.h"\n', "may not include gguf.h (rank 3)"),
        ("csrc/kernels/portable.c", '#include "../model.h"\n', "may not include ../model.h (rank 8)"),
        ("csrc/map.c", '#include "nowhere.h"\n', "csrc/map.c: includes nowhere.h, which is not in csrc/"),
        ("pantheon/errors.py", "import pantheon\n", "pantheon.errors (rank 0) may not import pantheon (rank 7)"),
        ("pantheon/_native/base.py", "from pantheon import chat\n", "may not import pantheon.chat (rank 4)"),
        ("pantheon/_native/base.py", "from .. import catalog\n", "may not import pantheon.catalog (rank 2)"),
        ("pantheon/engine/state.py", "from ..chat import session\n", "may not import pantheon.chat.session (rank 4)"),
        ("pantheon/engine/state.py", "def f():\n    import pantheon.cli\n", "may not import pantheon.cli (rank 6)"),
        ("pantheon/cli/root.py", "from pantheon._core import lib\n", "only _native/base.py may import"),
        ("pantheon/_native/model.py", "from pantheon._core import lib\n", "only _native/base.py may import"),
        ("pantheon/engine/sampling.py", "import pantheon.engine.model\n", "these import each other in a circle"),
    ],
)
def test_a_line_against_the_direction_is_named(tree: Path, file: str, line: str, complaint: str) -> None:
    append(tree / file, "\n" + line)
    found = new_offences(tree)
    assert len(found) == 1, found
    assert found[0].startswith(file if "circle" not in complaint else "pantheon/")
    assert complaint in found[0]


def test_a_new_file_needs_a_rank(tree: Path) -> None:
    (tree / "csrc" / "newcomer.c").write_text('#include "common.h"\n')
    (tree / "pantheon" / "newcomer.py").write_text("")
    found = new_offences(tree)
    assert [line.partition(":")[0] for line in found] == ["csrc/newcomer.c", "pantheon/newcomer.py"]
    assert all("has no rank" in line for line in found)


def test_a_rank_in_a_comment_must_be_the_one_of_the_table(tree: Path) -> None:
    prepend(tree / "csrc" / "map.c", "/* map.c - (rank 5) */\n")
    prepend(tree / "pantheon" / "errors.py", '"""Rank 4."""\n')
    found = new_offences(tree)
    assert found == [
        "csrc/map.c: its opening comment says rank 5, the table says 1",
        "pantheon/errors.py: its opening comment says rank 4, the table says 0",
    ]


def test_imports_for_the_type_checker_and_the_named_exception_are_free(tree: Path) -> None:
    append(tree / "pantheon" / "engine" / "state.py", "\nif TYPE_CHECKING:\n    import pantheon.cli\n")
    append(tree / "pantheon" / "engine" / "model.py", "\ndef f():\n    from pantheon.chat import session\n")
    assert new_offences(tree) == []


def test_the_named_exception_holds_inside_functions_alone(tree: Path) -> None:
    append(tree / "pantheon" / "engine" / "model.py", "\nfrom pantheon.chat import session\n")
    assert any("may not import pantheon.chat.session" in line for line in new_offences(tree))


def test_the_table_names_every_file_once() -> None:
    for table in (layers.C_RANKS, layers.PYTHON_RANKS):
        names = [name for _, words, _ in table for name in words.split()]
        assert len(names) == len(set(names))
    printed = layers.table()
    assert "| 3 | `gguf`" in printed
    assert "| 3 | `engine` |" in printed


def test_a_wide_line_is_named_but_for_tables_and_code(tmp_path: Path) -> None:
    sizes = load_tool("check_sizes")
    wide = "x" * 121
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "a.c").write_text(f"\n/* {wide[7:]} */\n/* {wide[6:]} */\n")
    (tmp_path / "README.md").write_text(f"{wide[1:]}\n| {wide} |\n```\n{wide}\n```\n\n    {wide}\n\n- {wide}\n")
    found = list(sizes.check_width(tmp_path))
    assert [sentence.rpartition(": ")[0] for sentence in found] == ["csrc/a.c:3", "README.md:9"]
    assert sizes.main([str(tmp_path)]) == 1
