"""Tasks that send to a topic and cannot at once: each has its turn in the order in which they came, so none overtakes another,
and only the first one asks the producer's thread for room."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Lines:
    """One line for each topic that has tasks waiting."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._counts: dict[str, int] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._counts

    @contextlib.asynccontextmanager
    async def turn(self, topic: str, timeout_ms: int) -> AsyncIterator[None]:
        """Waits for the task's turn, and for `timeout_ms` at most: then it goes ahead out of turn, for the producer to say why
        there is no room."""
        lock = self._locks.setdefault(topic, asyncio.Lock())
        self._counts[topic] = self._counts.get(topic, 0) + 1
        has_turn = False
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1000):
                    has_turn = await lock.acquire()
            yield
        finally:
            if has_turn:
                lock.release()
            self._counts[topic] -= 1
            if not self._counts[topic]:
                del self._counts[topic], self._locks[topic]
