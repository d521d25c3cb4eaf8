"""One lock for each transactional id that is being decided on; none is kept for the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class IdLocks:
    """The locks of one event loop."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}  # with the number of those that hold it or wait for it

    def __len__(self) -> int:
        """The number of ids that somebody decides on."""
        return len(self._locks)

    @contextlib.asynccontextmanager
    async def of(self, transactional_id: str) -> AsyncIterator[None]:
        """Holds the id's lock; in order of arrival."""
        lock, count = self._locks.get(transactional_id) or (asyncio.Lock(), 0)
        self._locks[transactional_id] = lock, count + 1
        try:
            async with lock:
                yield
        finally:
            lock, count = self._locks[transactional_id]
            if count == 1:
                del self._locks[transactional_id]
            else:
                self._locks[transactional_id] = lock, count - 1
