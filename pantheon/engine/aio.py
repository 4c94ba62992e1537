"""Replies for asyncio: the work happens in a thread, the loop never waits for it.

Rank 3: imports errors. asyncio is imported with this module, so import it where it is used.

The one thing to know first: the thread works on a _Work, never on the AsyncReplyStream. So nothing but the caller holds
the stream, and a `break` ends the reply at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from pantheon.errors import ClosedError

if TYPE_CHECKING:
    from pantheon.engine.generate import Reply, ReplyStream

T = TypeVar("T")


class AsyncReplyStream:
    """A reply in the making, for `async for`; afterwards `reply` holds it whole.

    The next piece is computed when it is asked for, in a thread of this stream's own. Leaving the loop, aclose(), or a
    cancelled task ends the reply there, in the prompt phase too; its text stays as after any other cut.
    """

    def __init__(self, make: Callable[[], ReplyStream]) -> None:
        """Internal: use Chat.astream(), or `async for` on a ReplyStream. `make` runs in the thread, once."""
        self._work = _Work(make)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pantheon-reply")
        self._waiting = False
        self._over = False

    @property
    def reply(self) -> Reply | None:
        """The whole reply once it has ended, else None."""
        return None if self._work.stream is None else self._work.stream.reply

    def __aiter__(self) -> AsyncReplyStream:
        return self

    async def __anext__(self) -> str:
        piece = None if self._over else await self._run(self._work.next)
        if piece is None:
            self._end()
            raise StopAsyncIteration
        return piece

    async def finish(self) -> Reply:
        """Read the rest and return the whole reply. ClosedError if it was closed before it began."""
        if not self._over:
            await self._run(self._work.finish)
            self._end()
        if self.reply is None:
            raise ClosedError("this reply was closed before it began")
        return self.reply

    async def aclose(self) -> None:
        """End the reply here. Idempotent."""
        if not self._over:
            self._work.stop()
            await self._run(self._work.close)
            self._end()

    async def __aenter__(self) -> AsyncReplyStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        """Left in the middle: that is the end of the reply."""
        if not self._over:
            self._work.stop()
            if not self._waiting:  # else the thread is at it, and whoever waited is gone with the loop
                self._work.close()
            self._end()

    async def _run(self, work: Callable[[], T]) -> T:
        """Have work done in the thread. If the task is cancelled meanwhile, the reply is, and its end waited for."""
        future = asyncio.wrap_future(self._thread.submit(work))
        self._waiting = True
        try:
            await asyncio.wait([future])  # which, cancelled, leaves the future alone
        except asyncio.CancelledError:
            self._work.stop()
            closed = asyncio.wrap_future(self._thread.submit(self._work.close))
            while not closed.done():
                with contextlib.suppress(asyncio.CancelledError):  # cancelled once more: it ends as soon as it can
                    await asyncio.wait([closed])
            self._end()
            future.exception()  # the thread did one after the other, so it is done; what it says came too late
            raise
        self._waiting = False
        return future.result()

    def _end(self) -> None:
        self._over = True
        self._thread.shutdown(wait=False)


class _Work:
    """What the thread does, one thing after the other; stop() comes from elsewhere."""

    def __init__(self, make: Callable[[], ReplyStream]) -> None:
        self._make: Callable[[], ReplyStream] | None = make
        self._stopped = False
        self.stream: ReplyStream | None = None

    def _begun(self) -> ReplyStream | None:
        """The stream; None if it ended before it began."""
        make, self._make = self._make, None
        if make is not None and not self._stopped:
            self.stream = make()
            if self._stopped:  # whoever stopped it meanwhile found no stream
                self.stream.cancel()
        return self.stream

    def next(self) -> str | None:
        """The next piece, None at the end."""
        stream = self._begun()
        return None if stream is None else next(stream, None)

    def finish(self) -> None:
        """All of them."""
        stream = self._begun()
        if stream is not None:
            stream.finish()

    def close(self) -> None:
        """The end, here."""
        if self.stream is not None:
            self.stream.close()

    def stop(self) -> None:
        """Ask for the end, whether the reply has begun or not."""
        self._stopped = True  # first: whoever makes the stream looks here afterwards
        if self.stream is not None:
            self.stream.cancel()
