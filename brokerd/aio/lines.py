"""Queues tasks whose sends must wait, one queue per topic: they proceed in order of arrival, and only the first waits for the
producer's thread to make room."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Lines:
    """A FIFO queue for each topic with waiting tasks."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._counts: dict[str, int] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._counts

    @contextlib.asynccontextmanager
    async def turn(self, topic: str, timeout_ms: int) -> AsyncIterator[None]:
        """Waits for the task's turn, at most `timeout_ms`; then proceeds out of turn, so that the producer reports why there is no
        room."""
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
