"""A few threads that all share: owners take turns at them, and nobody has all of them. Knows nothing of what they do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from brokerd.errors import NotReadyError
from brokerd.sharing import Budget, Caller

T = TypeVar("T")
_STOPS = "the broker stops"


class Threads:
    """Belongs to one event loop."""

    def __init__(self, count: int, name: str) -> None:
        """One owner has four fifths of them, rounded down, while others want none."""
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._free = Budget(count)
        self._is_stopped = False

    async def run(self, caller: Caller, work: Callable[[], T]) -> T:
        """Returns what `work` returns, and raises what it raises. It is not begun for a caller that is gone, but goes on
        once it is begun. Raises NotReadyError after `stop`.
        """
        await self._free.take(caller, 1)
        loop = asyncio.get_running_loop()

        def end(_done: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._free.add, caller.owner, -1)

        def begin() -> T:
            if self._is_stopped:  # cancelled by the pool, it would look as if its caller had been
                raise NotReadyError(_STOPS)
            return work()

        try:
            future = self._pool.submit(begin)
        except RuntimeError as error:
            self._free.add(caller.owner, -1)  # the next in line is told too
            raise NotReadyError(_STOPS) from error
        future.add_done_callback(end)
        return await asyncio.wrap_future(future)

    def stop(self) -> None:
        """Begins nothing more; what is under way goes on."""
        self._is_stopped = True
        self._pool.shutdown(wait=False)

    def join(self) -> None:
        """Returns when nothing is under way. Blocks."""
        self._pool.shutdown(wait=True)
