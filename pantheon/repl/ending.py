"""SIGTERM and SIGHUP in a conversation: they ask it to end, and tear nothing apart.

Rank 5: imports _work for the exception that ends the program.

The one thing to know first: a request that finds the program waiting, or a reply running, ends that at once; any other
work is done to its end first, and then check() ends the conversation. So a reply that had begun is kept, the terminal
is as it was before, and no file is left half written.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

from pantheon._work import TerminatedError

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_PATIENCE = 1.0  # seconds after which a second request is one to give up whatever is being done


class Ending:
    """Whether the conversation was asked to end, and what is done about it at the moment."""

    def __init__(self) -> None:
        self.number = 0
        """The signal that asked for it; 0: none did."""
        self._asked = 0.0
        self._stop: Callable[[], object] = lambda: None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, the two signals are requests. One that somebody ignores (nohup) or handles stays as it is."""
        ours: list[int] = []
        if threading.current_thread() is threading.main_thread():
            ours = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
        for number in ours:
            signal.signal(number, self._on_signal)
        try:
            yield
        except OSError:  # a terminal that hung up cannot be written to
            self.check()
            raise
        finally:
            for number in ours:  # they often come one after the other, or twice: one is enough
                signal.signal(number, signal.SIG_IGN if self.number else signal.SIG_DFL)

    @contextlib.contextmanager
    def stopping(self, stop: Callable[[], object]) -> Iterator[None]:
        """Inside, a request calls `stop` at once; so does one that was made before."""
        before, self._stop = self._stop, stop
        try:
            if self.number:
                stop()
            yield
        finally:
            self._stop = before

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """Inside, nothing is done but wait: a request raises TerminatedError there."""
        return self.stopping(self.check)

    def check(self) -> None:
        """Raise TerminatedError if the conversation was asked to end."""
        if self.number:
            raise TerminatedError(self.number)

    def _on_signal(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if not self.number:
            self.number, self._asked = number, now
            self._stop()
        elif now - self._asked > _PATIENCE:
            self.check()
