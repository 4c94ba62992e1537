#!/usr/bin/env python3
"""Files, functions and lines only grow unless something says when: a line for each that is over its limit.

    python tools/check_sizes.py            exit code 1 if a file or function is over one and a half times its limit, or
                                           a line over its width

Limits count lines with comments: they are a reason to look for a second room, not a style. Generated files are exempt.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

WIDTH = 120  # of C, whose comments no formatter breaks, and of prose; ruff sees to Python
PROSE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md", "docs/*.md")
FILE_LIMIT = 500
FUNCTION_LIMIT = 70
GENERATED = {"csrc/unicode_tables.h", "csrc/normalize_tables.h"}
# A file that is large for a reason: its own limit.
FILE_LIMITS = {"csrc/gguf.c": 560}

# A C function as clang-format leaves it: its head begins in the first column, its end is a lone brace there.
C_FUNCTION = re.compile(
    r"^(?!typedef|struct|enum|union|static const|const)[A-Za-z_][^;{}=]*?(\w+)\([^;{}]*\) \{$", re.M
)


def functions_of(path: Path, text: str) -> Iterator[tuple[str, int, int]]:
    """(name, first line, number of lines) of each function."""
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None:
                yield node.name, node.lineno, node.end_lineno - node.lineno + 1
        return
    for match in C_FUNCTION.finditer(text):
        end = text.find("\n}", match.end())
        first = text.count("\n", 0, match.start()) + 1
        yield match.group(1), first, text.count("\n", match.start(), end) + 2


def check(root: Path) -> Iterator[tuple[str, float]]:
    """(sentence, size as a multiple of the limit) of everything that is over its limit."""
    paths = [*(root / "csrc").rglob("*.[ch]"), *(root / "pantheon").rglob("*.py"), *(root / "tools").glob("*.py")]
    for path in sorted(paths):
        name = path.relative_to(root).as_posix()
        if name in GENERATED:
            continue
        text = path.read_text(encoding="utf-8")
        n_lines, limit = text.count("\n"), FILE_LIMITS.get(name, FILE_LIMIT)
        if n_lines > limit:
            yield f"{name}: {n_lines} lines, the limit is {limit}", n_lines / limit
        for function, first, length in functions_of(path, text):
            if length > FUNCTION_LIMIT:
                yield (
                    f"{name}:{first}: {function} has {length} lines, the limit is {FUNCTION_LIMIT}",
                    length / FUNCTION_LIMIT,
                )


def prose_of(text: str) -> Iterator[tuple[int, str]]:
    """(number, line) of Markdown outside of tables and blocks of code."""
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not line.lstrip().startswith("|") and not line.startswith("    "):
            yield number, line


def check_width(root: Path) -> Iterator[str]:
    """A sentence for each line that is too wide."""
    for path in sorted([*(root / "csrc").rglob("*.[ch]"), *(root / "tests" / "c").glob("*.[ch]")]):
        lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        yield from too_wide(path.relative_to(root).as_posix(), lines)
    for path in sorted(path for pattern in PROSE for path in root.glob(pattern)):
        yield from too_wide(path.relative_to(root).as_posix(), prose_of(path.read_text(encoding="utf-8")))


def too_wide(name: str, lines: Iterable[tuple[int, str]]) -> Iterator[str]:
    """A sentence for each of these lines of a file that is too wide."""
    for number, line in lines:
        if len(line) > WIDTH:
            yield f"{name}:{number}: {len(line)} columns, the limit is {WIDTH}"


def main(arguments: list[str]) -> int:
    """Exit code 0: no file or function is far over its limit, and no line over its width."""
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    worst = 0.0
    for sentence, multiple in check(root):
        print(sentence)
        worst = max(worst, multiple)
    wide = list(check_width(root))
    print(*wide, sep="\n", end="\n" if wide else "")
    return 1 if worst > 1.5 or wide else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
