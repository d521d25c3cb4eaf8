"""A fetch that found too little data, and waits for more. Independent of gRPC and the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from brokerd.partition.log_ends import LogEnd
from brokerd.partition.partition import Partition
from brokerd.purgatory import Completion, DelayedOperation


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
