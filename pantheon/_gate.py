"""A gate that lets one caller in and turns the next away, whatever interrupts whom.

Rank 0: imports nothing of the package. It knows nothing of what stands behind it.
"""

from __future__ import annotations

import io
import threading
import weakref
from collections.abc import Callable


class OneAtATime:
    """Lets one caller in and turns the next away: `with gate.hold():` raises `error` where a lock would wait."""

    __slots__ = ("_error", "_holder", "_message", "_mutex")

    def __init__(self, error: type[Exception], message: str) -> None:
        self._holder: Callable[[], Hold | None] = lambda: None
        self._error = error
        self._message = message
        self._mutex = threading.RLock()

    @property
    def busy(self) -> bool:
        """True while somebody is in."""
        hold = self._holder()
        return hold is not None and not hold.closed

    def check(self) -> None:
        """Raise the error if somebody is in."""
        if self.busy:
            raise self._error(self._message)

    def hold(self) -> Hold:
        """In, until the end of the `with` that this is for."""
        hold = Hold()
        with self._mutex:
            self.check()
            self._holder = weakref.ref(hold)
        return hold


class Hold(io.BytesIO):
    """One stay behind a gate; it ends with close().

    An `__exit__` written in Python can be interrupted by Ctrl-C before its first line, and the gate would stay shut;
    that of a buffer is C's. Where Ctrl-C comes before the `with` has begun, the gate's reference, a weak one, dies.
    """

    __slots__ = ()
