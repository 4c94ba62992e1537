"""Replies for asyncio: the work happens in a thread, the loop never waits for it.

Rank 3: imports errors. asyncio is imported with it, so import it where it is used.
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
        self._make: Callable[[], ReplyStream] | None = make
        self._stream: ReplyStream | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pantheon-reply")
        self._stopped = False
        self._over = False

    @property
    def reply(self) -> Reply | None:
        """The whole reply once it has ended, else None."""
        return None if self._stream is None else self._stream.reply

    def __aiter__(self) -> AsyncReplyStream:
        return self

    async def __anext__(self) -> str:
        piece = None if self._over else await self._run(self._next)
        if piece is None:
            self._end()
            raise StopAsyncIteration
        return piece

    async def finish(self) -> Reply:
        """Read the rest and return the whole reply."""
        if not self._over:
            await self._run(self._finish)
            self._end()
        if self.reply is None:
            raise ClosedError("this reply was closed before it began")
        return self.reply

    async def aclose(self) -> None:
        """End the reply here. Idempotent."""
        if not self._over:
            self._stop()
            await self._run(self._close)
            self._end()

    async def __aenter__(self) -> AsyncReplyStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # ---- in the thread

    def _begin(self) -> ReplyStream | None:
        """The stream; None if it ended before it began."""
        make, self._make = self._make, None
        if make is not None and not self._stopped:
            self._stream = make()
            if self._stopped:  # whoever stopped it meanwhile found no stream
                self._stream.cancel()
        return self._stream

    def _next(self) -> str | None:
        stream = self._begin()
        return None if stream is None else next(stream, None)

    def _finish(self) -> None:
        stream = self._begin()
        if stream is not None:
            stream.finish()

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    # ---- between the two

    async def _run(self, work: Callable[[], T]) -> T:
        """Have work done in the thread. If the task is cancelled meanwhile, the reply is, and its end waited for."""
        future = asyncio.wrap_future(self._thread.submit(work))
        try:
            await asyncio.wait([future])  # which, cancelled, leaves the future alone
        except asyncio.CancelledError:
            self._stop()
            closed = asyncio.wrap_future(self._thread.submit(self._close))
            while not closed.done():
                with contextlib.suppress(asyncio.CancelledError):  # cancelled once more: it ends as soon as it can
                    await asyncio.wait([closed])
            self._end()
            future.exception()  # the thread did one after the other, so it is done; what it says came too late
            raise
        return future.result()

    def _stop(self) -> None:
        """Ask for the end, whether the reply has begun or not."""
        self._stopped = True  # first: whoever makes the stream looks here afterwards
        if self._stream is not None:
            self._stream.cancel()

    def _end(self) -> None:
        self._over = True
        self._thread.shutdown(wait=False)
