"""Administrative work, one operation at a time: state changes run in the event loop, disk I/O in a thread."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from brokerd.datadir.steps import Steps, drive
from brokerd.errors import Fate, NotReadyError
from brokerd.server.tasks import forget_end

T = TypeVar("T")
STOPPING = "the broker is stopping: try again, it or another one will be available"


class Admin:
    """A queue of operations; belongs to one event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._is_stopping = False

    async def run(self, steps: Steps[T]) -> T:
        """Runs all steps. A caller that stops waiting does not interrupt them. Raises whatever the steps raise."""
        task = asyncio.create_task(self._run(steps))
        forget_end(task)
        return await asyncio.shield(task)

    def begin_stop(self) -> None:
        """Lets the running operation finish; refuses queued and later ones with NotReadyError."""
        self._is_stopping = True

    async def drain(self) -> None:
        """Returns once no operation is running."""
        async with self._lock:
            return

    async def _run(self, steps: Steps[T]) -> T:
        async with self._lock:
            if self._is_stopping:  # hundreds may be queued, and a shutdown has no time for them
                raise NotReadyError(STOPPING, fate=Fate.NOT_APPENDED)
            return await drive(steps, asyncio.to_thread)
