"""A task that waits for a signal from another thread.

No lock is shared: an exception that strikes either side anywhere (KeyboardInterrupt, an alarm's) leaves nothing held.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from typing import Any


class Waiter:
    """Made and awaited in one event loop; told once, or more often, from any thread."""

    __slots__ = ("_future", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    def tell(self) -> None:
        """Ends the waiting; for any thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def __await__(self) -> Generator[Any, None, None]:
        yield from self._future.__await__()
