"""What every call into C needs: the compiled module, a status as an exception, progress, and who owns a pointer.

Rank 1: imports errors and _core; the only module that does. The other files of this folder take `ffi` and `lib` from
here, and nothing above the folder sees them.

The one thing to know first: C calls back into Python at most every 50 ms (see `Call`). Python runs pending signal
handlers when that callback starts, so Ctrl-C raises KeyboardInterrupt *inside* it; the exception is kept, C is told
to stop, and the caller gets the kept exception. That is how a long evaluation ends at once without a helper thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from pantheon import errors

try:
    from pantheon._core import ffi as ffi
    from pantheon._core import lib as lib
except ImportError as error:  # a source tree that was not built, or one that shadows the installed package
    _package = os.path.dirname(os.path.dirname(__file__))
    raise ImportError(
        f"pantheon's compiled part (pantheon._core) cannot be imported from {_package!r}: {error}. "
        "Build it (`make build`, or `pip install .`), or run outside of the source tree."
    ) from error

Progress = Callable[[float], object]
"""Called with the fraction done, 0.0 to 1.0. What it raises stops the call and reaches the caller."""

ERROR_BY_STATUS: dict[int, type[errors.PantheonError]] = {
    lib.PN_ERR_ARGUMENT: errors.ArgumentError,
    lib.PN_ERR_IO: errors.FileError,
    lib.PN_ERR_NOT_GGUF: errors.NotGGUFError,
    lib.PN_ERR_TRUNCATED: errors.TruncatedError,
    lib.PN_ERR_CORRUPT: errors.CorruptFileError,
    lib.PN_ERR_METADATA: errors.MetadataError,
    lib.PN_ERR_UNSUPPORTED: errors.UnsupportedError,
    lib.PN_ERR_MEMORY: errors.OutOfMemoryError,
    lib.PN_ERR_BUSY: errors.BusyError,
    lib.PN_ERR_CANCELLED: errors.CancelledError,
    lib.PN_ERR_CONTEXT: errors.ContextError,
    lib.PN_ERR_ISA: errors.ISAError,
    lib.PN_ERR_NUMERIC: errors.NumericError,
    lib.PN_ERR_NOT_STATE: errors.NotSavedFileError,
    lib.PN_ERR_DAMAGED: errors.DamagedFileError,
    lib.PN_ERR_OTHER_MODEL: errors.OtherModelError,
}


def last_error(status: int) -> errors.PantheonError:
    """The exception for this status, with what C last said in this thread."""
    message = bytes(ffi.string(lib.pn_last_error())).decode("utf-8", "replace")
    return ERROR_BY_STATUS.get(status, errors.PantheonError)(message)


def fail() -> NoReturn:
    """Raise what C last said in this thread: for calls that return something else than a status."""
    raise last_error(int(lib.pn_last_status()))


def check(status: int) -> None:
    """Raise the exception that stands for a non-zero pn_status; return quietly for PN_OK."""
    if status != 0:
        raise last_error(status)


# ---- Progress and Ctrl-C --------------------------------------------------------------------------------------------


class Call:
    """What one call into C carries with it: the user's progress function, and the exception that stopped it."""

    __slots__ = ("error", "progress")

    def __init__(self, progress: Progress | None) -> None:
        if progress is not None and not callable(progress):
            raise errors.ArgumentError(f"progress must be a function or None, got {type(progress).__name__}")
        self.progress = progress
        self.error: BaseException | None = None

    def check(self, ok: bool) -> None:
        """Raise what the callback raised, else C's own failure, else nothing."""
        kept, self.error = self.error, None
        if kept is not None:
            raise kept
        if not ok:
            fail()


def _keep_error(kind: type[BaseException], error: BaseException, trace: TracebackType) -> None:
    """cffi calls this instead of printing an exception that left a callback. The frame holds the callback's data."""
    ffi.from_handle(trace.tb_frame.f_locals["user_data"]).error = error


@ffi.def_extern(name="pn_py_progress", error=1, onerror=_keep_error)  # type: ignore[untyped-decorator]
def _on_progress(user_data: Any, fraction: float) -> int:
    progress = ffi.from_handle(user_data).progress
    if progress is not None:
        progress(fraction)
    return 0


# ---- Handles --------------------------------------------------------------------------------------------------------


class Handle:
    """Owns one C pointer. `with handle as pointer:` uses it; the collector is only the safety net.

    cffi releases the GIL during a call, so another thread may close the handle meanwhile. Then the pointer is marked
    closed at once (later use raises ClosedError) and freed when the last running call has left.
    """

    __slots__ = ("__weakref__", "_closed", "_lock", "_pointer", "_users")
    noun = "object"

    def __init__(self, pointer: Any, free: Any) -> None:
        if pointer == ffi.NULL:
            fail()
        self._pointer: Any = ffi.gc(pointer, free)
        self._users = 0
        self._closed = False
        self._lock = threading.RLock()  # a signal handler may come back to it, to cancel or to close

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._closed

    def __enter__(self) -> Any:
        with self._lock:
            self._users += 1  # first: whoever closes from a signal handler after this line leaves the pointer to us
            if self._closed:
                self._users -= 1
                raise errors.ClosedError(f"this {self.noun} is closed")
            return self._pointer

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._users -= 1
            pointer = self._take_if_unused()
        if pointer is not None:
            ffi.release(pointer)

    def close(self) -> None:
        """Free the pointer now, or as soon as the running calls have left. Idempotent, from any thread."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._stop_calls()
            pointer = self._take_if_unused()
        if pointer is not None:
            ffi.release(pointer)

    def _take_if_unused(self) -> Any:
        """With the lock held: give up the pointer if it is closed and idle (after release it would dangle)."""
        if not self._closed or self._users > 0:
            return None
        pointer, self._pointer = self._pointer, None
        return pointer

    def _stop_calls(self) -> None:
        """With the lock held: make running calls end early, where the object knows how."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {self.noun} holds memory of this process and cannot be pickled")


class Borrowed:
    """A pointer that another handle owns: using it uses the owner."""

    __slots__ = ("_get", "_owner")

    def __init__(self, owner: Handle, get: Callable[[Any], Any]) -> None:
        self._owner = owner
        self._get = get

    @property
    def closed(self) -> bool:
        """Whether the owner is closed."""
        return self._owner.closed

    def __enter__(self) -> Any:
        return self._get(self._owner.__enter__())

    def __exit__(self, *exc: object) -> None:
        self._owner.__exit__(*exc)

    def close(self) -> None:
        """Nothing: the owner closes."""


# ---- Values in and out ----------------------------------------------------------------------------------------------


def path_bytes(path: str | bytes | os.PathLike[str]) -> bytes:
    """A path as the bytes that the operating system wants."""
    try:
        name = os.fsencode(path)
    except TypeError:
        raise errors.ArgumentError(f"a path must be a str, bytes or os.PathLike, got {type(path).__name__}") from None
    except UnicodeEncodeError as error:
        raise errors.ArgumentError(
            f"a path holds a lone surrogate (U+{ord(error.object[error.start]):04X}), which no file name has: {path!a}"
        ) from None
    if b"\0" in name:
        raise errors.ArgumentError(f"a path cannot hold a NUL character: {path!r}")
    return name


def text_bytes(text: str | bytes) -> bytes:
    """UTF-8 of a str (bytes pass through); ArgumentError names the index of a lone surrogate."""
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise errors.ArgumentError(f"text must be str or bytes, got {type(text).__name__}")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise errors.ArgumentError(
            f"text holds a lone surrogate (U+{ord(text[error.start]):04X}) at index {error.start}; it has no UTF-8 form"
        ) from None


def decode(pointer: Any, length: int) -> str:
    """Bytes of C as a str; what is not UTF-8 in them becomes U+FFFD."""
    return bytes(ffi.buffer(pointer, length)).decode("utf-8", "replace")
