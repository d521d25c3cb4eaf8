"""A fetch that found too little and waits for more. It holds no data: whoever answers it reads again.

gRPC and the wire are not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from brokerd.partition.log_ends import LogEnd
from brokerd.purgatory.delayed import Completion, DelayedOperation
from brokerd.server.replica_manager import Replica, WatchKey


class ParkedPartition(NamedTuple):
    """One partition of a parked fetch, as it was when it parked."""

    replica: Replica
    fetch_offset: int
    found_bytes: int  # what the read found
    counted_bytes: int  # the partition's progress up to there: what lies above comes on top
    max_bytes: int  # it counts for no more than this


class DelayedFetch(DelayedOperation):
    """Completes when one of these holds:

    A. The bytes that can be read reach min_bytes; each partition counts for at most its partition_max_bytes.
    B. A fetch offset is out of range: the log start has passed it. (An offset between high watermark and log end is in
       range: its fetch waits.)
    C. A partition is gone: its topic was deleted.
    D. Its deadline passes (max_wait_ms).
    E. The next request came on its stream, or the broker stops: forced.
    F. The client is gone: cancelled, never answered.

    A segment rolled under it is no case here, as it is in Kafka: bytes are counted as they are appended, not by positions in
    a segment, and a read goes across segments.
    """

    __slots__ = ("_log_end", "_min_bytes", "_on_done", "_partitions")

    def __init__(
        self, expiry_ms: int, partitions: list[ParkedPartition], *, end: LogEnd, min_bytes: int, on_done: Callable[[], None]
    ) -> None:
        super().__init__(expiry_ms)
        self._partitions = partitions
        self._log_end = end
        self._min_bytes = min_bytes
        self._on_done = on_done

    def keys(self) -> list[WatchKey]:
        """What it watches."""
        return [WatchKey(partition.replica.log.tp, self._log_end) for partition in self._partitions]

    def is_satisfied(self) -> bool:
        """Cases A to C."""
        available_bytes = 0
        for partition in self._partitions:
            log = partition.replica.log
            if partition.fetch_offset < log.log_start_offset:  # case B
                return True
            if log.is_deleted:  # case C
                return True
            if partition.replica.end_offset(self._log_end) <= partition.fetch_offset:
                continue
            gained_bytes = partition.replica.progress.durable_bytes - partition.counted_bytes
            available_bytes += min(partition.found_bytes + gained_bytes, partition.max_bytes)
        return available_bytes >= self._min_bytes  # case A

    def on_complete(self, completion: Completion) -> None:  # noqa: ARG002 - all cases are answered alike
        """Cases A to E: somebody reads and answers."""
        self._on_done()
