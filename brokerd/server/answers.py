"""Completed fetches are answered a few at a time: one append may wake ten thousand of them, and producers must not wait
until the last is served. Knows nothing of what an answer is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

_AT_ONCE = 32


class AnswerQueue:
    """Starts queued answers in order, at most a few in one turn of the event loop.

    An answer's own time (a cold read, a client that reads slowly) does not hold back those behind it.
    """

    def __init__(self) -> None:
        self._queued: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def __len__(self) -> int:
        """How many have not been started."""
        return len(self._queued)

    def put(self, start: Callable[[], None]) -> None:
        """Has `start` called soon, after those queued before it. It must not raise."""
        self._queued.append(start)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._start_some)

    def _start_some(self) -> None:
        for _ in range(min(_AT_ONCE, len(self._queued))):
            self._queued.popleft()()
        self._is_scheduled = bool(self._queued)
        if self._is_scheduled:
            asyncio.get_running_loop().call_soon(self._start_some)
