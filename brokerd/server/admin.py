"""Admin runs administrative operations one at a time, round-robin over callers: state changes in the event loop, disk I/O in a
thread. Changes limits the changes in progress, whose callers may disconnect.

A cancelled call no longer counts towards `max.streams.per.connection`. Its change still runs to completion, keeps its request in
memory, and may wait long for its turn. Without a limit, calls that are cancelled at once would fill the memory, and the queue ahead
of other callers' changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from brokerd.errors import Fate, NotReadyError
from brokerd.server.failures import to_its_end
from brokerd.sharing import BROKER, CALLER, Budget, Caller, Shares
from brokerd.steps import Steps, drive_in_loop

T = TypeVar("T")
_CHANGES_MAX_BYTES = 67_108_864
_CHANGE_BYTES = 16_384  # per change, besides its request
STOPPING = "the broker is stopping: try again, it or another one will be available"


class Admin:
    """A fair queue of operations; belongs to one event loop."""

    def __init__(self) -> None:
        self._turns = Budget(1)
        self._is_stopping = False

    async def run(self, steps: Steps[T], *, at_stop: bool = False) -> T:
        """Runs all steps, even if the caller stops waiting; with `at_stop` also after `begin_stop`. Raises what the steps raise."""
        return await to_its_end(self._run(steps, CALLER.get(), at_stop))

    def begin_stop(self) -> None:
        """Lets the running operation finish; refuses queued and later ones with NotReadyError, except those with `at_stop`."""
        self._is_stopping = True

    async def drain(self) -> None:
        """Returns once no operation is running."""
        await self._turns.take(BROKER, 1)
        self._turns.add(BROKER.owner, -1)

    async def _run(self, steps: Steps[T], caller: Caller, at_stop: bool) -> T:
        await self._turns.take(caller, 1)
        try:
            if self._is_stopping and not at_stop:  # hundreds may be queued: too many to finish in a shutdown
                raise NotReadyError(STOPPING, fate=Fate.NOT_APPENDED)
            return await drive_in_loop(steps, asyncio.to_thread)
        finally:
            self._turns.add(caller.owner, -1)


class Changes:
    """The changes in progress, by the bytes of their requests."""

    def __init__(self) -> None:
        self.shares = Shares(_CHANGES_MAX_BYTES)

    async def run(self, change: Callable[[], Coroutine[Any, Any, T]], size_bytes: int = 0) -> T:
        """Runs a change of the current caller to its end, even if the caller stops waiting. Returns or raises what it does. Raises
        ResourceExhaustedError, and does nothing, if the caller has too many in progress."""
        return await to_its_end(self._run(change, size_bytes))

    async def _run(self, change: Callable[[], Coroutine[Any, Any, T]], size_bytes: int) -> T:
        with self.shares.hold(CALLER.get().owner, "bytes of changes are under way", units=_CHANGE_BYTES + size_bytes):
            return await change()
