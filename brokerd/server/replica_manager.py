"""The partitions of this node: look-up, append, flush, and waking what waits for them.

Connects the log with the operations that wait for it. The rules of the log are in brokerd/partition, the conditions in
delayed_fetch.py and delayed_produce.py; gRPC is unknown here. Everything belongs to the event loop's thread.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

from brokerd.clock import Clock
from brokerd.config.broker import BrokerConfig
from brokerd.datadir.flusher import Flusher
from brokerd.datadir.log_manager import LogManager
from brokerd.errors import FencedLeaderEpochError, UnknownLeaderEpochError
from brokerd.ids import TopicIdPartition
from brokerd.partition.log_ends import LogEnd, Moved
from brokerd.partition.partition_log import LogAppendInfo, PartitionLog
from brokerd.purgatory.driver import PurgatoryDriver
from brokerd.purgatory.purgatory import Purgatory, Waiters
from brokerd.purgatory.timing_wheel import TimingWheel
from brokerd.record.batch import RecordBatch
from brokerd.record.header import crc_seed
from brokerd.server.limits.budgets import Budget
from brokerd.server.metrics.counters import Histogram
from brokerd.sharing.room import Caller

logger = logging.getLogger(__name__)

_TICK_MS = 1
_WHEEL_SIZE = 20
_DRIVER_PERIOD_MS = 1
# The owner of all dirty bytes, which are counted as the logs have them: no failure leaves any of them counted. Producers share them
# by turns, as whatever a flush frees goes to the next principal in line, and the threads that flush are shared too.
_LOGS = ""
_FLUSH_THREADS = 5  # each syncs one partition at a time; one principal has four of them at most


class PartitionProgress:
    """How many bytes of a partition are below its high watermark, as a number that never decreases: appended bytes are counted, and
    released when the high watermark passes their batch.

    A fetch that waits for min_bytes compares two readings of it: no file is touched and no offset is converted to a position.
    """

    __slots__ = ("_unflushed", "appended_bytes", "durable_bytes")

    def __init__(self) -> None:
        self.appended_bytes = 0  # since the start of the daemon
        self.durable_bytes = 0  # those of them below the high watermark
        self._unflushed: deque[tuple[int, int]] = deque()  # (next offset of a batch, appended_bytes with it)

    def append(self, *, next_offset: int, size_bytes: int) -> None:
        """A batch was appended; offsets increase from call to call."""
        self.appended_bytes += size_bytes
        self._unflushed.append((next_offset, self.appended_bytes))

    def advance(self, high_watermark: int) -> None:
        """The high watermark has moved."""
        unflushed = self._unflushed
        while unflushed and unflushed[0][0] <= high_watermark:
            self.durable_bytes = unflushed.popleft()[1]

    def bytes_below(self, offset: int) -> int:
        """The value of `durable_bytes` when the high watermark reaches `offset`, which must not be below it."""
        below = self.durable_bytes
        for next_offset, appended_bytes in self._unflushed:
            if next_offset > offset:
                break
            below = appended_bytes
        return below


class Replica:
    """One partition's log, with the server's own state for it, and who waits for its ends. `core` is the log's: what requests ask
    for stands there."""

    __slots__ = ("core", "counted_dirty_bytes", "crc_seed", "log", "progress", "waiters")

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.core = log.core
        self.crc_seed = crc_seed(log.tp)
        self.progress = PartitionProgress()
        self.counted_dirty_bytes = 0  # what of the log's dirty bytes stands in the budget
        self.waiters: defaultdict[LogEnd, Waiters] = defaultdict(Waiters)  # the operations that wait for an end to move

    def wake(self, ends: Iterable[LogEnd] = LogEnd) -> None:
        """Wakes whoever waits for these ends; for any of them after another change of the partition, as of its log start."""
        for end in ends:
            waiters = self.waiters.get(end)
            if waiters:
                waiters.wake()

    def end_offset(self, end: LogEnd) -> int:
        """The offset at which readers of that kind see the log end."""
        if end is LogEnd.LAST_STABLE_OFFSET:
            return self.core.ends.last_stable_offset
        return self.core.ends.high_watermark if end is LogEnd.HIGH_WATERMARK else self.core.log_end_offset


class ReplicaManager:
    """All partitions of this node. Create it inside the running event loop."""

    def __init__(self, logs: LogManager, config: BrokerConfig, clock: Clock) -> None:
        self.logs = logs
        self.dirty = Budget(config.log_max_dirty_bytes)
        self.flush_time = Histogram()
        self._clock = clock
        self._replicas: dict[TopicIdPartition, Replica] = {}
        self._internal: dict[TopicIdPartition, Replica] = {}  # the broker's own: requests do not find them
        self.produce_purgatory = self._new_purgatory()
        self.fetch_purgatory = self._new_purgatory()
        self.produce_driver = PurgatoryDriver(self.produce_purgatory, clock, period_ms=_DRIVER_PERIOD_MS)
        self.fetch_driver = PurgatoryDriver(self.fetch_purgatory, clock, period_ms=_DRIVER_PERIOD_MS)
        self.flusher = Flusher(
            threads=_FLUSH_THREADS,
            on_advance=self._advanced,
            on_failure=self._flush_failed,
            on_flush=self.flush_time.observe_ns,
        )

    def replica(self, tp: TopicIdPartition, *, current_leader_epoch: int = -1) -> Replica:
        """The partition. Raises UnknownTopicIdError, UnknownTopicOrPartitionError, FencedLeaderEpochError and
        UnknownLeaderEpochError; an epoch of 0 or below is not checked.
        """
        replica = self._replicas.get(tp)
        if replica is None or replica.core.health.is_deleted:
            log = self.logs.partition(tp)
            replica = self._replicas[tp] = Replica(log)
        if current_leader_epoch > 0:
            _check_leader_epoch(replica.log, current_leader_epoch)
        return replica

    def internal_replica(self, log: PartitionLog) -> Replica:
        """One of the broker's own logs, to be appended to and waited for like all others."""
        replica = self._internal[log.tp] = Replica(log)
        return replica

    def append(self, replica: Replica, batch: RecordBatch, caller: Caller, *, is_open_member: bool = False) -> LogAppendInfo:
        """Appends a batch, which check_produced let pass if it is a client's; on return it waits for its flush, in the turn of
        `caller`. `is_open_member`: its producer is a member of an open transaction.

        Raises the errors of PartitionLog.append.
        """
        try:
            now_ms, ahead_ms = self.logs.time.stamp_ms()
            info = replica.log.append(batch, now_wall_ms=now_ms, clock_ahead_ms=ahead_ms, is_open_member=is_open_member)
        finally:
            self._count_dirty(replica)
        return self._appended(replica, batch, info, caller)

    def append_marker(self, replica: Replica, batch: RecordBatch, caller: Caller) -> LogAppendInfo:
        """Appends a control batch, as `append` does. Raises the errors of PartitionLog.append_marker."""
        try:
            now_ms, ahead_ms = self.logs.time.stamp_ms()
            info = replica.log.append_marker(batch, now_wall_ms=now_ms, clock_ahead_ms=ahead_ms)
        finally:
            self._count_dirty(replica)
        return self._appended(replica, batch, info, caller)

    def release(self, commit: str, replicas: Sequence[Replica]) -> None:
        """Lets the markers of a commit count in all its partitions in one step: whoever waits is woken only then."""
        moved = [(replica, replica.core.ends.release(commit)) for replica in replicas]
        for replica, ends in moved:
            replica.wake(ends)

    def _appended(self, replica: Replica, batch: RecordBatch, info: LogAppendInfo, caller: Caller) -> LogAppendInfo:
        if not info.is_duplicate:
            replica.progress.append(next_offset=info.last_offset + 1, size_bytes=batch.data.size)
        if replica.core.ends.high_watermark <= info.last_offset:
            self.flusher.mark_dirty(replica.log, caller)
        return info

    def forget(self, tp: TopicIdPartition) -> None:
        """Handles the deletion of a partition: completes whatever waits for it."""
        replica = self._replicas.pop(tp, None)
        if replica is not None:
            self.dirty.add(_LOGS, -replica.counted_dirty_bytes)
            replica.counted_dirty_bytes = 0
            replica.wake()

    def wake(self, tp: TopicIdPartition) -> None:
        """Handles a log start that has moved."""
        replica = self._replicas.get(tp)
        if replica is not None:
            replica.wake()

    def stop_timers(self) -> None:
        """Stops the timers; waiting operations should have been completed before."""
        self.produce_driver.close()
        self.fetch_driver.close()

    def _advanced(self, log: PartitionLog, moved: Moved) -> None:
        replica = self._replicas.get(log.tp) or self._internal.get(log.tp)
        if replica is None:
            return  # deleted during its flush
        replica.progress.advance(replica.core.ends.high_watermark)
        self._count_dirty(replica)
        replica.wake(moved)

    def _flush_failed(self, log: PartitionLog) -> None:
        if log.is_deleted:
            return  # its files were removed during the flush
        logger.error("flush of %s partition %d failed: it takes no more appends until the next start", log.topic, log.tp.partition)
        replica = self._replicas.get(log.tp) or self._internal.get(log.tp)
        if replica is None:
            return
        self._count_dirty(replica)
        replica.wake()

    def _count_dirty(self, replica: Replica) -> None:
        """Updates the budget to what this log holds unflushed; a log that stopped counts nothing."""
        flushes = replica.core.flushes
        dirty_bytes = flushes.appended_bytes - flushes.flushed_bytes
        self.dirty.add(_LOGS, dirty_bytes - replica.counted_dirty_bytes)
        replica.counted_dirty_bytes = dirty_bytes

    def _new_purgatory(self) -> Purgatory:
        return Purgatory(TimingWheel(tick_ms=_TICK_MS, wheel_size=_WHEEL_SIZE, start_ms=self._clock.monotonic_ms()))


def _check_leader_epoch(log: PartitionLog, epoch: int) -> None:
    if epoch < log.core.leader_epoch:
        raise FencedLeaderEpochError(
            f"current_leader_epoch is {epoch}, but the partition's is {log.core.leader_epoch}: fetch new metadata",
            current_leader_epoch=log.core.leader_epoch,
        )
    if epoch > log.core.leader_epoch:
        raise UnknownLeaderEpochError(
            f"current_leader_epoch is {epoch}, newer than {log.core.leader_epoch}, which this node knows",
            current_leader_epoch=log.core.leader_epoch,
        )
