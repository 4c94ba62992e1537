#!/usr/bin/env python3
"""The table "What runs today" in README.md, made from the tables of the package itself.

    python tools/what_runs.py              write the rows between the two markers of README.md
    python tools/what_runs.py --check      exit code 1 if they are not what the package says

A row that is added to a table of the core, or a chat style, shows here by itself. That each name has a test with an
oracle is for tests/test_readme.py to say.
"""

from __future__ import annotations

import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN = "<!-- what runs: begin (written by tools/what_runs.py) -->\n"
END = "<!-- what runs: end -->\n"

ROWS: dict[str, str] = {
    "architectures": "architectures (`general.architecture`)",
    "types": "element types",
    "matrix_types": "of these, for matrices",
    "targets": "types that `pantheon quantize` and `pn_quantize` write",
    "tokenizers": "tokenizers (`tokenizer.ggml.model`)",
    "pretokenizers": "pre-tokenizers (`tokenizer.ggml.pre`)",
    "styles": "chat styles beside the model's own template",
}
"""Key of a list, and what it is called. A list that says nothing new is left out."""


def known() -> dict[str, list[str]]:
    """Every list of what the package knows, by the keys of ROWS."""
    from pantheon import _native
    from pantheon.chat import STYLES

    lists = {key: _native.known(key) for key in ROWS if key != "styles"}
    return {**lists, "styles": list(STYLES)}


def table(lists: dict[str, list[str]]) -> str:
    """The rows in Markdown."""
    lines = ["| | here |", "| --- | --- |"]
    for key, title in ROWS.items():
        if key != "matrix_types" or lists[key] != lists["types"]:
            lines.append(f"| {title} | {', '.join(f'`{name}`' for name in lists[key])} |")
    return "\n".join(lines) + "\n"


def rewritten(text: str, rows: str) -> str:
    """The text of README.md with these rows between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{README.name} lacks one of the lines {BEGIN.strip()} and {END.strip()}")
    return before + begin + "\n" + rows + "\n" + end + after


def main(arguments: list[str]) -> int:
    """Exit code 0: the table is what the package says."""
    text = README.read_text(encoding="utf-8")
    wanted = rewritten(text, table(known()))
    if arguments == ["--check"]:
        if wanted != text:
            print("README.md: the table of what runs is not up to date: python tools/what_runs.py")
        return int(wanted != text)
    README.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
