"""A small thread pool that all callers share: owners take turns, and no owner occupies all threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from brokerd.errors import NotReadyError
from brokerd.sharing import Budget, Caller

T = TypeVar("T")
_STOPS = "the broker stops"


class Threads:
    """A pool; belongs to one event loop."""

    def __init__(self, count: int, name: str) -> None:
        """A single owner gets at most four fifths of the threads, rounded down."""
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._free = Budget(count)
        self._is_stopped = False

    async def run(self, caller: Caller, work: Callable[[], T]) -> T:
        """Runs `work` in a thread; returns or raises what it does. If the caller is cancelled first, `work` is not started; once
        started, it runs to its end. Raises NotReadyError after `stop`."""
        await self._free.take(caller, 1)
        loop = asyncio.get_running_loop()

        def end(_done: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
                loop.call_soon_threadsafe(self._free.add, caller.owner, -1)

        def begin() -> T:
            if self._is_stopped:  # raised here, since cancelling in the pool would look like a cancelled caller
                raise NotReadyError(_STOPS)
            return work()

        try:
            future = self._pool.submit(begin)
        except RuntimeError as error:
            self._free.add(caller.owner, -1)  # wakes the next caller, which fails too
            raise NotReadyError(_STOPS) from error
        future.add_done_callback(end)
        return await asyncio.wrap_future(future)

    async def search(self, caller: Caller, work: Callable[..., T]) -> T:
        """Runs `work(is_wanted=...)` as `run` does. `is_wanted` is false once the caller is cancelled: the work should end then."""
        is_over = threading.Event()
        try:
            return await self.run(caller, partial(work, is_wanted=lambda: not is_over.is_set()))
        finally:
            is_over.set()

    def stop(self) -> None:
        """Starts nothing more; work under way continues."""
        self._is_stopped = True
        self._pool.shutdown(wait=False)

    def join(self) -> None:
        """Returns when no work is under way. Blocks."""
        self._pool.shutdown(wait=True)
