"""The program `pantheon`: the command line, behind the one `try` that also covers its imports.

It stands beside the package, not in it, because importing anything in a package runs the package's own imports first;
Ctrl-C during those would show a traceback.
"""

from __future__ import annotations

import sys

EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command line; Ctrl-C while it is still being imported ends it without a word."""
    try:
        from pantheon.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
