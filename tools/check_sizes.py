#!/usr/bin/env python3
"""Files and functions only grow unless something says when: a line for each that is over its limit.

    python tools/check_sizes.py            exit code 1 if anything is over one and a half times its limit

Limits count lines with comments: they are a reason to look for a second room, not a style. Generated files are exempt.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

FILE_LIMIT = 500
FUNCTION_LIMIT = 70
GENERATED = {"csrc/unicode_tables.h"}
# A file that is large for a reason: its own limit.
FILE_LIMITS = {"pantheon/_native.py": 770, "csrc/gguf.c": 700, "csrc/kernels/avx2.c": 560, "csrc/kernels/neon.c": 560}

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


def main(arguments: list[str]) -> int:
    """Exit code 0: nothing is far over its limit."""
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    worst = 0.0
    for sentence, multiple in check(root):
        print(sentence)
        worst = max(worst, multiple)
    return 1 if worst > 1.5 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
