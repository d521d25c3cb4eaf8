"""Fetches that found too little data and wait for more, and the queue of responses to those that are done. Independent of gRPC and
the wire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from brokerd.partition.log_ends import LogEnd
from brokerd.partition.partition import Partition
from brokerd.purgatory import Completion, DelayedOperation
from brokerd.sharing import Caller, RoundRobin

_AT_ONCE = 16
_PATIENCE_S = 0.005

StartResponse = Callable[[], "asyncio.Task[None]"]


class ParkedPartition(NamedTuple):
    """One partition of a parked fetch, as of the time of parking."""

    partition: Partition
    leader_epoch: int  # at the time of the read
    fetch_offset: int
    found_bytes: int  # bytes that the read found
    counted_bytes: int  # the bytes of the partition's batches up to there; those of later ones are added
    # The offset up to which it was read, if the bytes above cannot be counted: they are undecided, or from before the start. When
    # the end moves past it, the partition counts in full.
    uncounted_above: int | None
    max_bytes: int  # the most that it counts for


def park(partition: Partition, fetch_offset: int, read_until: int, *, found_bytes: int, max_bytes: int) -> ParkedPartition:
    """A partition of a fetch that was read up to `read_until`."""
    ends = partition.ends
    has_uncounted = read_until < max(ends.high_watermark, ends.counted_from)
    return ParkedPartition(
        partition=partition,
        leader_epoch=partition.leader_epoch,
        fetch_offset=fetch_offset,
        found_bytes=found_bytes,
        counted_bytes=ends.bytes_below(read_until),
        uncounted_above=read_until if has_uncounted else None,
        max_bytes=max_bytes,
    )


class DelayedFetch(DelayedOperation):
    """A fetch that found too little data and waits for more. It holds no data: the response reads it again.

    It completes when one of these holds:

    A. The readable bytes reach min_bytes; each partition counts for at most its partition_max_bytes.
    B. A fetch offset is out of range: the log start has moved past it. (An offset between high watermark and log end is in
       range: its fetch waits.)
    C. A topic was deleted, or this node no longer leads a partition in the epoch of the read.
    D. Its deadline passes (max_wait_ms).
    E. The next request arrived on its stream, or the broker is stopping: forced.
    F. The client is gone: cancelled, never answered.

    Unlike in Kafka, rolling a segment is not a case: bytes are counted as they are appended, not by positions in a segment, and a
    read crosses segments. Bytes are kept per partition, so that updating one costs the same however many others are fetched.
    """

    __slots__ = ("_available_bytes", "_log_end", "_min_bytes", "_on_done", "_partition_bytes", "_partitions")

    def __init__(
        self, expiry_ms: int, partitions: list[ParkedPartition], *, end: LogEnd, min_bytes: int, on_done: Callable[[], None]
    ) -> None:
        super().__init__(expiry_ms, [parked.partition.waiters[end] for parked in partitions])
        self._partitions = partitions
        self._log_end = end
        self._min_bytes = min_bytes
        self._on_done = on_done
        self._partition_bytes = [0] * len(partitions)  # counted for each
        self._available_bytes = 0  # their sum

    @property
    def partition_count(self) -> int:
        """The number of partitions that it waits for."""
        return len(self._partitions)

    def is_satisfied(self, place: int) -> bool:
        """Cases A to C."""
        parked = self._partitions[place]
        if parked.fetch_offset < parked.partition.ends.log_start_offset:  # case B
            return True
        if parked.partition.health.is_deleted or not parked.partition.leads_in(parked.leader_epoch):  # case C
            return True
        readable_bytes = self._readable_bytes(parked)
        self._available_bytes += readable_bytes - self._partition_bytes[place]
        self._partition_bytes[place] = readable_bytes
        return self._available_bytes >= self._min_bytes  # case A

    def _readable_bytes(self, parked: ParkedPartition) -> int:
        ends = parked.partition.ends
        end_offset = ends.of(self._log_end)
        if end_offset <= parked.fetch_offset:
            return 0
        if parked.uncounted_above is not None and end_offset > parked.uncounted_above:
            return parked.max_bytes
        gained_bytes = ends.bytes_below_end(self._log_end) - parked.counted_bytes
        return min(parked.found_bytes + gained_bytes, parked.max_bytes)

    def on_complete(self, completion: Completion) -> None:  # noqa: ARG002 - all cases are answered alike
        """Cases A to E: the data is read and the response sent."""
        self._on_done()


class ResponseQueue:
    """Starts queued responses, a few at once, and the next few once those are written: one append may complete ten thousand
    fetches, and producers must not wait for all of them. Owners and their connections take turns; otherwise one with ten thousand
    fetches would be served before all others.

    Starting all of them, or a few in each iteration of the event loop, would not work: gRPC reads from its sockets only when no
    finished operation is left to deliver, so a producer's request was read only after ten thousand responses were out (3 s). A
    slow response (a cold read, a client that reads slowly) delays those after it by a few milliseconds.
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
                await asyncio.wait(started, timeout=_PATIENCE_S)
        finally:
            self._server = None
