"""The terminal's keys while a reply is written.

Rank 5: imports output, to know what the terminal can do.

The one thing to know first: settings of a terminal outlive the program that made them, so they are taken back whenever
it ends or stops; a shell need not do that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
from collections.abc import Iterator
from typing import Any

from pantheon.repl.output import is_dumb

_NOT_THERE = (OSError, ValueError, AttributeError, termios.error)
"""What is raised where stdin is no terminal, or none any more."""


@contextlib.contextmanager
def kept_apart() -> Iterator[None]:
    """Inside, keys do not disturb what is written; for the main thread, as all that changes what signals do.

    A terminal on which Ctrl-C is pressed drops what it was given and has not shown yet: it is asked not to (NOFLSH).
    What is typed ahead it would show in the midst of a reply: it is asked not to (ECHO), where the line editor draws it
    in the next prompt.
    """
    try:
        before = termios.tcgetattr(sys.stdin)
    except _NOT_THERE:
        yield
        return
    inside: list[Any] = [*before]
    inside[3] |= termios.NOFLSH
    if not is_dumb():
        inside[3] &= ~termios.ECHO
    _set(inside)
    stops = signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL

    def stop(number: int, frame: object) -> None:
        _set(before)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # here it waits for the shell's fg
        signal.signal(signal.SIGTSTP, stop)
        _set(inside)

    if stops:
        signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        if stops:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        _set(before)


def _set(settings: list[Any]) -> None:
    """Change the terminal, unless it belongs to another program now: one in the background would be stopped for it."""
    with contextlib.suppress(*_NOT_THERE):
        if os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp():
            termios.tcsetattr(sys.stdin, termios.TCSANOW, settings)
