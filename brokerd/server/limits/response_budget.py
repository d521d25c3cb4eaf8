"""The bytes of fetch responses held in memory: limits the size of the next response, and finds readers that are too slow. Other
large responses count while they are being written. Independent of gRPC.

A client that does not read keeps its response in memory indefinitely, and there may be thousands of such clients. So

    half of the limit       is shared: a response gets at most a quarter of its free part, and nothing while others wait
    the other half          is for first batches: a fetch gets one whatever remains of the first half, if the limit has room
    when all is used up     fetches wait their turn; of the clients that hold the most, those that have not read their response
                            for a second are disconnected

and fast readers continue, with smaller responses, next to any number of slow ones. Also has the queue of responses to parked
fetches that have completed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import NamedTuple

from brokerd.sharing import Budget, Caller, RoundRobin

_SHARE = 4
# No client is disconnected sooner, however many wait: allows for a time slice of a busy event loop, or a garbage collection.
PATIENCE_MS = 1_000
FREE_BYTES = 16_384  # a response without records, up to this size, does not count: its call costs more
_AT_ONCE = 16
_WAIT_S = 0.005

StartResponse = Callable[[], "asyncio.Task[None]"]


class _Write(NamedTuple):
    """A response that is being written."""

    caller: Caller
    start_ms: int
    size_bytes: int


class ResponseBudget(Budget):
    """Bytes of responses being read or written, and the start time of each write."""

    def __init__(self, limit_bytes: int, *, write_timeout_ms: int) -> None:
        super().__init__(limit_bytes)
        self._write_timeout_ms = write_timeout_ms
        self._writes: dict[Hashable, _Write] = {}  # oldest first

    def share(self, wanted_bytes: int) -> int:
        """The bytes that the next response may take without waiting."""
        left_bytes = self.limit // 2 - self.used if not self.has_waiters else 0
        return min(wanted_bytes, max(0, left_bytes // _SHARE))

    def begin_write(self, writer: Hashable, caller: Caller, size_bytes: int, *, now_ms: int) -> None:
        """`writer` starts to write a response; it writes one at a time."""
        self._writes[writer] = _Write(caller, now_ms, size_bytes)

    def end_write(self, writer: Hashable) -> None:
        """The response of `writer` is written or given up."""
        self._writes.pop(writer, None)

    def is_writing(self, writer: Hashable) -> bool:
        """True if `writer` is writing a response."""
        return writer in self._writes

    def overdue(self, *, now_ms: int) -> list[Caller]:
        """The callers to disconnect, oldest response first: all that exceed the write timeout and, while others wait for room, as
        many of the largest owners' callers as it takes to free half of the limit and the bytes that the next waiting fetch
        requests."""
        overdue: list[Caller] = []
        left_bytes, enough_bytes = self.used, min(self.limit // 2, self.limit - self.next_units)
        for write in self._writes.values():
            age_ms = now_ms - write.start_ms
            if age_ms < min(PATIENCE_MS, self._write_timeout_ms):
                break
            is_needed = self.has_waiters and age_ms >= PATIENCE_MS and left_bytes > enough_bytes
            if age_ms >= self._write_timeout_ms or (is_needed and self.shares.has_average(write.caller.owner)):
                overdue.append(write.caller)
                left_bytes -= write.size_bytes
        return overdue


class ResponseQueue:
    """Starts queued responses a few at a time, and the next few once those are written: one append may complete ten thousand
    fetches, and producers must not wait for all of their responses. Owners and their connections take turns; otherwise a client
    with ten thousand fetches would be served before all others.

    Starting all of them, or a few in each iteration of the event loop, would not work: gRPC reads from its sockets only when no
    finished operation is left to deliver, so a producer's request was read only after ten thousand responses were out (3 s). A slow
    response (a cold read, a client that reads slowly) delays those after it by a few milliseconds.
    """

    def __init__(self) -> None:
        self._queued: RoundRobin[StartResponse] = RoundRobin()
        self._server: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """The number of responses not yet started."""
        return len(self._queued)

    def put(self, caller: Caller, start: StartResponse) -> None:
        """Queues `start` after the caller's earlier ones. It returns the task that responds, and must not raise."""
        self._queued.join(*caller, start)
        if self._server is None:
            self._server = asyncio.get_running_loop().create_task(self._serve())

    def drop(self) -> None:
        """Drops all responses not yet started."""
        self._queued.clear()

    async def _serve(self) -> None:
        try:
            while self._queued:
                started = [self._queued.pop_next()() for _ in range(min(_AT_ONCE, len(self._queued)))]
                await asyncio.wait(started, timeout=_WAIT_S)
        finally:
            self._server = None
