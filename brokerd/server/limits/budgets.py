"""Budgets that throttle a reader instead of failing it: it waits, its stream is not read, and gRPC's flow control stops the
client. Knows nothing of gRPC.

ResponseBudget is that of fetch responses held in memory: how large the next may be, and which readers are too slow. A client that
does not read keeps its response in memory for as long as it likes, and there may be thousands. So

    one half of the limit   is shared: a response gets at most a quarter of its free part
    the other half          is for first batches: a fetch gets one however little is left
    all of it used up       fetches wait their turn, and clients that have not read their response for a second are disconnected

so that fast readers continue, with smaller responses, next to any number of slow ones. The size of a first batch is known only
once it is read: while shares are small, only a few fetches read at a time, since together they could exceed the limit by a batch
each.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Generic, TypeVar

_SHARE = 4
_SMALL_SHARE_BYTES = 1_048_576  # the default batch size of producers: a first batch may well be larger than such a share
_TURNS = 4
# No client is disconnected sooner, however many wait: this allows for a time slice of a busy event loop, or a garbage collection.
PATIENCE_MS = 1_000

W = TypeVar("W")


class ByteBudget:
    """Bytes in use against a limit. When it is used up, callers wait in order of arrival."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0  # may exceed the limit by what was admitted last
        self.is_used_up = limit_bytes <= 0  # no room: kept by `add`, as every message of every stream asks
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def waiter_count(self) -> int:
        """The number of waiting callers."""
        return len(self._waiters)

    def add(self, delta_bytes: int) -> None:
        """Takes bytes (or returns them, if negative) and wakes the first waiter if there is room."""
        self.used_bytes += delta_bytes
        self.is_used_up = self.used_bytes >= self.limit_bytes
        if self._waiters:
            self._wake_next()

    async def wait_for_room(self) -> None:
        """Returns once there is room. Does not take bytes: the caller must, before it awaits anything else."""
        loop = asyncio.get_running_loop()
        queue = self._waiters.append
        while self.is_used_up:
            waiter: asyncio.Future[None] = loop.create_future()
            queue(waiter)
            queue = self._waiters.appendleft  # woken, but the room was taken meanwhile: stays first in line
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.cancelled():
                    with contextlib.suppress(ValueError):
                        self._waiters.remove(waiter)
                else:
                    self._wake_next()  # it had its turn: pass it to the next one
                raise
        # One waiter is woken at a time, to avoid a rush; each that proceeds wakes the next.
        loop.call_soon(self._wake_next)

    def _wake_next(self) -> None:
        while self._waiters and not self.is_used_up:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


class ResponseBudget(ByteBudget, Generic[W]):
    """Bytes of responses being read or written, and since when each is being written. `W` identifies the writer."""

    def __init__(self, limit_bytes: int, *, write_timeout_ms: int) -> None:
        super().__init__(limit_bytes)
        self._write_timeout_ms = write_timeout_ms
        # For readers while shares are small: check for room and read while holding one of these.
        self.turns = asyncio.Semaphore(_TURNS)
        self._writes: dict[W, tuple[int, int]] = {}  # (start in ms, bytes), oldest first

    def share(self, wanted_bytes: int) -> int:
        """How many bytes the next response may have; a larger first batch may be returned all the same."""
        left_bytes = self.limit_bytes // 2 - self.used_bytes
        return min(wanted_bytes, max(0, left_bytes // _SHARE))

    @property
    def is_share_small(self) -> bool:
        """True while a read is likely to return one batch that exceeds its share."""
        return self.share(_SMALL_SHARE_BYTES) < _SMALL_SHARE_BYTES

    def begin_write(self, writer: W, size_bytes: int, *, now_ms: int) -> None:
        """`writer` starts to write a response. It writes one at a time."""
        self._writes[writer] = (now_ms, size_bytes)

    def end_write(self, writer: W) -> None:
        """The response is written, or never will be."""
        self._writes.pop(writer, None)

    def overdue(self, *, now_ms: int) -> list[W]:
        """The writers whose streams must end, oldest first: all beyond the timeout; while others wait for room, as many as it
        takes to free the first half.
        """
        overdue: list[W] = []
        left_bytes = self.used_bytes
        for writer, (start_ms, size_bytes) in self._writes.items():
            age_ms = now_ms - start_ms
            makes_room = self.waiter_count > 0 and age_ms >= PATIENCE_MS and left_bytes > self.limit_bytes // 2
            if age_ms < self._write_timeout_ms and not makes_room:
                break
            overdue.append(writer)
            left_bytes -= size_bytes
        return overdue
