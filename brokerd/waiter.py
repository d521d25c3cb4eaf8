"""Lets a task wait for a signal from another thread.

Uses no lock, so an exception at any point on either side (KeyboardInterrupt, a signal handler's) leaves no lock held.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from typing import Any


class Waiter:
    """Create and await it in one event loop; signal it from any thread, any number of times."""

    __slots__ = ("_future", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    def tell(self) -> None:
        """Ends the wait; thread-safe."""
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def __await__(self) -> Generator[Any, None, None]:
        yield from self._future.__await__()
