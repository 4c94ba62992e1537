#!/usr/bin/env python3
"""Say in one sentence what this machine lacks to build Pantheon; exit code 1 if anything does.

    python tools/check_machine.py cc

Runs on a Python that is too old for the rest of the project as well, to say just that.
"""

import os
import shlex
import shutil
import sys
import sysconfig


def find_missing(compiler):  # type: ignore[no-untyped-def]
    """The first thing that is missing, with its cure, or None."""
    if sys.version_info < (3, 10):  # noqa: UP036
        version = ".".join(map(str, sys.version_info[:2]))
        return f"Python 3.10 or newer is needed, {sys.executable} is {version}: name a newer one, make PYTHON=..."
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return "this Python cannot make virtual environments (Debian, Ubuntu: apt-get install python3-venv)"
    words = shlex.split(compiler)
    if not words or shutil.which(words[0]) is None:
        return f"there is no C compiler {compiler!r} (Debian, Ubuntu: apt-get install gcc), or name one: make CC=..."
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    if not os.path.exists(header):
        return f"Python's header files are missing, {header} (Debian, Ubuntu: apt-get install python3-dev)"
    return None


if __name__ == "__main__":
    reason = find_missing(sys.argv[1] if len(sys.argv) > 1 else "cc")
    if reason:
        sys.exit(f"error: {reason}")
