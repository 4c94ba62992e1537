#!/usr/bin/env python3
"""Print requirements that pyproject.toml names, one per line, as pip reads them from a file.

    python tools/list_requirements.py build run test

"build": what the build needs, "run": what the package needs, other words: an optional group. So the Makefile can
install them without building the package and without a second list of their names.
"""

from __future__ import annotations

import sys
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10: pip carries the same parser
    from pip._vendor import tomli as tomllib


def requirements(groups: list[str]) -> list[str]:
    """The requirements of the groups, in order."""
    path = Path(__file__).resolve().parent.parent / "pyproject.toml"
    with path.open("rb") as file:
        data = tomllib.load(file)
    known = {
        "build": data["build-system"]["requires"],
        "run": data["project"]["dependencies"],
        **data["project"]["optional-dependencies"],
    }
    return [requirement for group in groups for requirement in known[group]]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1:])))
