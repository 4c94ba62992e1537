"""Work that takes a while and makes a file: how far it is, and what SIGTERM does to it.

Rank 3: imports catalog; rich where bars are drawn. It does not do the work.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator

from pantheon.catalog import PullProgress


class TerminatedError(BaseException):
    """SIGTERM, or another signal that ends a program, came where something had to be brought to an end first."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__()
        self.number = number


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """While a file is being made, SIGTERM is an exception: what is half done is removed before the program ends."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # then it is somebody else's
        yield
        return

    def end(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one is enough, and must not disturb the cleaning up
        raise TerminatedError

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def progress(note: Callable[[str], None]) -> Iterator[PullProgress]:
    """Something to call with a phase and a fraction: bars on a terminal, one `note` per phase elsewhere."""
    if not sys.stderr.isatty():
        seen: set[str] = set()

        def say(phase: str, fraction: float) -> None:
            if phase not in seen:
                seen.add(phase)
                note(f"{phase} ...")

        yield say
        return
    from rich.console import Console
    from rich.progress import Progress, TaskID

    tasks: dict[str, TaskID] = {}
    with Progress(console=Console(stderr=True)) as bars:

        def draw(phase: str, fraction: float) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=1.0)
            bars.update(tasks[phase], completed=fraction)

        yield draw
