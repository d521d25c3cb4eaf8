"""The shell of one partition: carries out the decisions of its core (core.py) on files, reports the results to the core, and wakes
operations that wait for a moved log end.

Everything runs in the event loop, except FlushTask.run, `read` and the look-ups, which may run in any thread. recovery.py rebuilds
the state after a crash.
"""

from __future__ import annotations

import errno
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar, cast

import pyarrow as pa

from brokerd.clock import SystemClock, stopwatch_ns
from brokerd.config.topic import TopicConfig
from brokerd.errors import (
    CorruptMessageError,
    Fate,
    LogDamagedError,
    NotEnoughReplicasError,
    NotReadyError,
    OffsetOutOfRangeError,
    ResourceExhaustedError,
    StorageError,
)
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.partition.core import ALONE, Append, InSync, PartitionCore, Role, Truncation
from brokerd.partition.derived_files import write_leader_epochs, write_snapshot
from brokerd.partition.flush_state import FlushOutcome, FlushPlan
from brokerd.partition.log_ends import LogEnd, Moved
from brokerd.partition.log_state import CleanLog, CleanSegment, LogState, Snapshot
from brokerd.partition.look_up import LookUps
from brokerd.partition.markers import marker_of
from brokerd.partition.producer_state import NO_OFFSET, BatchMetadata, ProducerStates
from brokerd.partition.reader import NO_LIMIT, FetchDataInfo, PartitionReader
from brokerd.purgatory import Waiters
from brokerd.record.batch import RecordBatch, walk_batches
from brokerd.record.header import BatchHeader, crc_seed, header_problem, stamp
from brokerd.record.schema import payload_crc
from brokerd.sharing import Caller
from brokerd.storage.damage import PAYLOAD_CHANGED, damage_error
from brokerd.storage.files import Buffer, Files, is_no_space, is_too_many_open
from brokerd.storage.open_files import Handle, OpenFiles
from brokerd.storage.refusals import Refusals
from brokerd.storage.segment import Segment
from brokerd.storage.spare_files import SpareFiles

logger = logging.getLogger(__name__)

T = TypeVar("T")
_RETRY_AFTER_MS = 200
NOBODY = Caller("", "")


def _ignore(*_: object) -> None:
    pass


class LogAppendInfo(NamedTuple):
    """The place of a batch in the log. The batch, even a duplicate, is durable once high_watermark > last_offset."""

    base_offset: int
    last_offset: int
    append_timestamp: int
    is_log_append_time: bool  # append_timestamp replaces the records' own timestamps
    is_duplicate: bool
    leader_epoch: int  # the current one, even if the original of a duplicate was appended in an earlier epoch


@dataclass(slots=True)
class LogResources:
    """The resources shared by all partitions of a data directory."""

    files: Files
    spares: SpareFiles
    open_files: OpenFiles
    max_producer_ids: int
    # Partitions whose checkpoint entry has changed. Threads that find damage add to it.
    moved: set[Partition] = field(default_factory=set)
    # Queues a partition for a flush, in the appending caller's turn.
    flush_soon: Callable[[Partition, Caller], object] = _ignore
    # Adds to the unsynced bytes of all partitions.
    count_unsynced: Callable[[int], object] = _ignore
    # Tracks whether the disk fails appends, syncs or reads.
    refusals: Refusals = field(default_factory=lambda: Refusals("", SystemClock()))


class FlushTask:
    """One flush. The core plans it, a thread runs it, and the event loop reports its outcome to the core. Call `run` once."""

    def __init__(self, resources: LogResources, directory: str, seed: int, plan: FlushPlan, segments: Sequence[Segment]) -> None:
        """`segments`: the plan's sealed segments, then the active one. The task takes over their dirty handles."""
        self._resources = resources
        self._directory = directory
        self._seed = seed
        self._sealed = segments[:-1]
        self.plan = plan
        self.handles: list[Handle] = []
        for segment in segments:
            if segment.dirty_handle is not None:
                self.handles.append(segment.dirty_handle)
                segment.dirty_handle = None
        self.outcome = FlushOutcome(has_snapshots=False)  # valid if `run` did not raise
        self.duration_ns = 0  # set if `run` synced everything

    def run(self) -> None:
        """Syncs data files in order, then the directory if a segment was sealed, then writes the derived files. Raises OSError if
        a sync failed; the log must then stop, since the kernel may have dropped its dirty pages.
        """
        started_ns = stopwatch_ns()
        for handle in self.handles:
            handle.file.fdatasync()
        if self._sealed:
            try:
                self._resources.files.sync_dir(self._directory)
            except OSError as error:
                if not is_too_many_open(error):
                    raise
                self.outcome.untried_error = error
                return
        if self._sealed or self.plan.snapshots or self.plan.epochs is not None:
            try:
                self._write_derived()
            except OSError as error:
                self.outcome.derived_error = error
        self.duration_ns = stopwatch_ns() - started_ns

    def release(self) -> None:
        """Releases the file handles. Call it once, after the flush."""
        for handle in self.handles:
            self._resources.open_files.release(handle)
        self.handles = []

    def _write_derived(self) -> None:
        files, directory, plan = self._resources.files, self._directory, self.plan
        for snapshot in plan.snapshots:
            write_snapshot(files, directory, snapshot, self._resources.spares)
        if plan.snapshots:
            files.sync_dir(directory)
            self.outcome.has_snapshots = True
        if plan.epochs is not None:
            write_leader_epochs(files, directory, plan.epochs, self._seed)
        for segment in self._sealed:
            segment.write_index()
        files.sync_dir(directory)


class Partition:
    """The shell around a PartitionCore, which holds the state. `ends`, `health`, `epochs` and `config` are read-only."""

    def __init__(
        self,
        tp: TopicIdPartition,
        topic: str,
        config: TopicConfig,
        resources: LogResources,
        state: LogState,
    ) -> None:
        self.tp = tp
        self.topic = topic
        self.name = str(TopicPartition(topic, tp.partition))
        self.crc_seed = crc_seed(tp)
        self.config = config
        self.core = core = PartitionCore(self.name, self.crc_seed, config, state)
        self.ends, self.health, self.epochs = core.ends, core.health, core.epochs
        # Delegated to the core.
        self.latest_offset, self.check_history, self.epoch_before = core.latest_offset, core.check_history, core.epoch_before
        self.aborted_transactions, self.open_data = core.aborted_transactions, core.open_data
        self.deletion_target, self.retained_from = core.deletion_target, core.retained_from
        self.checkpoint_entry = core.checkpoint_entry
        self.waiters: defaultdict[LogEnd, Waiters] = defaultdict(Waiters)  # operations waiting for an end to move
        on_damage = partial(resources.moved.add, self)
        self._reader = PartitionReader(self.core, self.crc_seed, resources.open_files, resources.refusals, on_damage)
        self.look_ups = LookUps(self._reader)
        self._directory = tp.directory_name
        self.resources = resources
        self._is_refused = False  # the disk refused the last append
        resources.moved.add(self)

    # State

    def configure(self, config: TopicConfig) -> None:
        """Applies new topic settings."""
        self.config = self.core.config = config
        if self.is_leader:
            self.set_in_sync(self.core.in_sync)

    @property
    def leader_epoch(self) -> int:
        """The current leader epoch."""
        return self.core.leader_epoch

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Segments, oldest first; the last one is appended to."""
        return cast("tuple[Segment, ...]", self.core.segments)  # this class passes only Segments to its core

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return self.core.size_bytes

    @property
    def is_stopped(self) -> bool:
        """True if nothing may be appended to or removed from the log."""
        return self.core.is_stopped

    @property
    def is_refused(self) -> bool:
        """True if the disk has been refusing writes for some seconds, and refused the last append to this partition."""
        return self._is_refused and self.resources.refusals.is_lasting

    @property
    def damage(self) -> LogDamagedError | None:
        """The LogDamagedError that appends get; None unless the log has damage that no operator has accepted."""
        stopping = self.health.first_damage(self.ends.log_start_offset)
        return damage_error(self.name, stopping) if stopping is not None else None

    def wake(self, moved: Moved = (LogEnd.LOG_START,)) -> None:
        """Wakes the operations that wait for these ends. If the log start is among them (the default), wakes all operations."""
        for end in moved if LogEnd.LOG_START not in moved else tuple(self.waiters):
            waiters = self.waiters.get(end)
            if waiters is not None:
                waiters.wake()

    # Role and epoch

    @property
    def is_leader(self) -> bool:
        """True if this node leads the partition. Only the leader answers clients' requests."""
        return self.core.role is Role.LEADER

    @property
    def role(self) -> Role:
        """This node's role."""
        return self.core.role

    def has_tenure(self, role: Role, epoch: int) -> bool:
        """True if this node has this role in this epoch."""
        return self.core.tenure == (role, epoch)

    @property
    def epoch_start_offset(self) -> int:
        """The log end when this node began to lead."""
        return self.core.epoch_start_offset

    def set_cut_off(self, is_cut_off: bool) -> None:
        """Marks a leader that reaches neither another in-sync replica nor the coordination store. Meanwhile it refuses acks=all
        appends and fetches at the log end, since another node may already lead."""
        self.core.is_cut_off = is_cut_off

    def check_not_cut_off(self) -> None:
        """Raises NotReadyError while this leader is cut off."""
        if self.core.is_cut_off:
            raise NotReadyError(
                f"{self.name}: its leader reaches neither another replica nor the coordination store",
                fate=Fate.NOT_APPENDED,
                retry_after_ms=_RETRY_AFTER_MS,
            )

    def leads_in(self, epoch: int) -> bool:
        """True if this node leads in this epoch. Work begun in another epoch is never acknowledged."""
        return self.core.role is Role.LEADER and self.core.leader_epoch == epoch

    def lead(self, epoch: int, in_sync: InSync = ALONE, *, epoch_id: int = 0) -> Moved:
        """Makes this node the leader in a new, durable epoch. Wakes all waiting operations, so that those of an earlier epoch end
        before anything else happens. Raises FencedLeaderEpochError.
        """
        moved = self.core.lead(epoch, in_sync, epoch_id=epoch_id)
        self.wake()
        return moved

    def follow(self, epoch: int) -> None:
        """Makes this node a follower in `epoch`. Wakes and raises as `lead` does."""
        self.core.follow(epoch)
        self.wake()

    def check_follows(self, epoch: int) -> None:
        """Raises NotLeaderError unless this node is a follower in this epoch."""
        self.core.check_tenure((Role.FOLLOWER, epoch))

    def resign(self) -> None:
        """Resets this node's role to NONE, and wakes all waiting operations."""
        self.core.resign()
        self.wake()

    def replica_fetched(self, node: int, durable_end: int) -> Moved:
        """Records the durable end that a follower's fetch reports. It may advance the high watermark, the lowest durable end of the
        in-sync replicas. Ignored unless this node leads and the follower is in sync.
        """
        moved = self.ends.replica_at(node, durable_end)
        self.wake(moved)
        return moved

    def leader_told(self, high_watermark: int, last_stable_offset: int, log_start_offset: int) -> None:
        """Adopts the leader's log ends, as far as this log reaches. Ignored unless this node follows."""
        if self.core.role is Role.FOLLOWER:
            self.resources.moved.add(self)
            self.wake(self.ends.leader_at(high_watermark, last_stable_offset, log_start_offset))

    def set_in_sync(self, in_sync: InSync) -> None:
        """Sets the in-sync set. Leader only."""
        self.wake(self.core.set_in_sync(in_sync))

    @property
    def has_enough_in_sync(self) -> bool:
        """False on a leader that refuses acks=all because fewer replicas are in sync than min.insync.replicas."""
        return self.core.has_enough_in_sync

    @property
    def may_be_succeeded(self) -> bool:
        """True on a leader that may have been replaced without knowing it, because another replica is, or may be, in sync. Only
        this leader adds replicas to the in-sync set."""
        return bool(self.core.in_sync.followers)

    def check_enough_in_sync(self) -> None:
        """Raises NotEnoughReplicasError or NotReadyError if acks=all appends must be refused."""
        self.check_not_cut_off()
        if not self.has_enough_in_sync:
            raise NotEnoughReplicasError(
                f"{self.name}: {self.core.in_sync.members} of {self.core.in_sync.replicas} replicas are in sync, fewer than "
                f"min.insync.replicas ({self.config.min_insync_replicas}): start the nodes that are missing",
                fate=Fate.NOT_APPENDED,
                retry_after_ms=_RETRY_AFTER_MS,
            )

    # Append

    def append(
        self,
        batch: RecordBatch,
        *,
        now_wall_ms: int,
        clock_ahead_ms: int = 0,
        is_open_member: bool = False,
        caller: Caller = NOBODY,
    ) -> LogAppendInfo:
        """Writes a batch to the page cache and queues its flush in the turn of `caller`. For a duplicate, returns the place of the
        original. A client's batch must have passed `check_produced`. `is_open_member`: the producer is a member of an open
        transaction. `clock_ahead_ms`: how far the wall clock is ahead of the log time. Raises WireErrors with their fate.
        """
        decided = self.core.append_as_leader(
            batch.header, now_wall_ms, clock_ahead_ms=clock_ahead_ms, is_open_member=is_open_member
        )
        if isinstance(decided, BatchMetadata):
            if self.ends.high_watermark <= decided.last_offset:
                self.resources.flush_soon(self, caller)
            return self._append_info(decided, is_duplicate=True)
        return self._append_stamped(decided, batch, caller)

    def append_marker(
        self, batch: RecordBatch, *, now_wall_ms: int, clock_ahead_ms: int = 0, caller: Caller = NOBODY
    ) -> LogAppendInfo:
        """Like `append`, for a control batch, which ends transactions in this partition. Raises WireErrors with their fate."""
        marker = marker_of(batch)
        assert marker is not None, "a control batch"
        decided = self.core.append_marker(batch.header, now_wall_ms, marker, clock_ahead_ms=clock_ahead_ms)
        return self._append_stamped(decided, batch, caller)

    def append_as_follower(self, batch: RecordBatch) -> None:
        """Checks both CRCs of a batch from the leader and appends it byte for byte. Raises WireErrors with their fate."""
        problem = header_problem(batch.header, batch.header_bytes, self.crc_seed)
        if problem is None and payload_crc(batch.payload) != batch.header.payload_crc:
            problem = PAYLOAD_CHANGED
        if problem is not None:
            raise CorruptMessageError(f"{self.name}: the batch at offset {batch.header.base_offset} has changed: {problem}")
        self._write(self.core.append_as_follower(batch.header, marker=marker_of(batch)), (batch.data,), NOBODY)

    def _append_stamped(self, append: Append, batch: RecordBatch, caller: Caller) -> LogAppendInfo:
        stamped = stamp(batch.data, append.header, self.crc_seed)
        self._write(append, (stamped, memoryview(batch.data)[len(stamped) :]), caller)
        return self._append_info(append.header, is_duplicate=False)

    def _append_info(self, batch: BatchHeader | BatchMetadata, *, is_duplicate: bool) -> LogAppendInfo:
        return LogAppendInfo(
            batch.base_offset, batch.last_offset, batch.append_timestamp, batch.is_log_append_time, is_duplicate, self.leader_epoch
        )

    def _write(self, append: Append, buffers: Sequence[Buffer], caller: Caller) -> None:
        try:
            if append.must_roll:
                self._roll()
            segment = self.segments[-1]
            segment.append(buffers, append.size_bytes)
        except OSError as error:
            if not is_too_many_open(error):
                self._is_refused = True
                self.resources.refusals.refused(error)
            raise self._append_error(error) from error
        self._is_refused = False
        if self.resources.refusals.since_ms is not None:
            self.resources.refusals.worked()
        segment.note_position(append.header.base_offset, self.config.index_interval_bytes)
        moved = self.core.written(append)
        self.resources.flush_soon(self, caller)
        self.resources.count_unsynced(append.size_bytes)
        self.wake(moved)

    def _append_error(self, error: OSError) -> StorageError | ResourceExhaustedError:
        # After a crash, recovery may find a whole batch in excess bytes that could not be truncated.
        fate = Fate.UNKNOWN if self.segments[-1].has_excess_bytes else Fate.NOT_APPENDED
        if is_too_many_open(error):
            return ResourceExhaustedError(f"{self.name}: too many open files", fate=fate, retry_after_ms=_RETRY_AFTER_MS)
        what = "the disk is full" if is_no_space(error) else f"the write failed ({error.strerror})"
        return StorageError(f"{self.name}: {what}", fate=fate, retry_after_ms=_RETRY_AFTER_MS)

    def _roll(self) -> None:
        resources = self.resources
        self.segments[-1].cut_excess()
        segment = Segment(resources.files, resources.open_files, self._directory, self.ends.log_end_offset, self.crc_seed)
        segment.create()
        self.core.rolled(segment)

    # Read, in any thread

    def read(
        self, offset: int, *, below: LogEnd, max_bytes: int, cached_only: bool, first_batch_max_bytes: int = NO_LIMIT
    ) -> FetchDataInfo:
        """Reads whole batches below a log end, starting with the one that contains `offset`: about `max_bytes`, but a larger first
        batch up to `first_batch_max_bytes`. Consumers read below the high watermark or the last stable offset.

        Empty if there is nothing to read yet. Raises OffsetOutOfRangeError, LogDamagedError, StorageError; NotLeaderError if role
        or epoch change during a read above the high watermark; NeedsRoom if the first batch is too large; with `cached_only`
        WouldBlock if the read would wait for the disk: repeat it in a thread, with cached_only=False.
        """
        self.check_in_range(offset)
        tenure, high_watermark, until_offset = self.core.tenure, self.ends.high_watermark, self.ends.of(below)
        if offset >= until_offset:
            return FetchDataInfo([], 0, offset, offset, until_offset)
        try:
            found = self._reader.read(
                offset,
                max_bytes=max_bytes,
                until_offset=until_offset,
                cached_only=cached_only,
                first_batch_max_bytes=first_batch_max_bytes,
            )
        except FileNotFoundError:
            # Removed during the read. Deletion, retention and cuts update the log's state before the files, so these checks see it.
            self.health.check_exists()
            self.core.check_tenure(tenure)
            self.check_in_range(offset)
            raise StorageError(f"{self.name}: a file of the log that holds offset {offset} is missing") from None
        if found.next_offset > high_watermark:
            self.core.check_tenure(tenure)
        return found

    def read_checked(self, offset: int, *, below: LogEnd, max_bytes: int, first_batch_max_bytes: int = NO_LIMIT) -> FetchDataInfo:
        """Like `read`, in a thread, but also checks payload CRCs: the data may be old, or has reached a client with a wrong CRC. A
        mismatch stops the log and raises LogDamagedError, or NotLeaderError if another replica will lead.
        """
        tenure = self.core.tenure
        found = self.read(offset, below=below, max_bytes=max_bytes, cached_only=False, first_batch_max_bytes=first_batch_max_bytes)
        for chunk in found.chunks:
            for batch in walk_batches(pa.py_buffer(chunk)):
                if payload_crc(batch.payload) != batch.header.payload_crc:
                    self.core.check_tenure(tenure)  # a new leader may have had these bytes cut
                    raise self._reader.payload_changed(batch.header)
        return found

    def check_in_range(self, offset: int) -> None:
        """Raises OffsetOutOfRangeError unless log start <= offset <= log end."""
        ends = self.ends
        if not ends.log_start_offset <= offset <= ends.log_end_offset:
            raise OffsetOutOfRangeError(
                f"there is no offset {offset} in {self.name}: it starts at offset {ends.log_start_offset}, and its next record "
                f"gets offset {ends.log_end_offset}",
                log_start_offset=ends.log_start_offset,
            )

    # Transactions

    @property
    def producers(self) -> ProducerStates:
        """The producer state, open transactions included. Outside this package only `expire` and `bound_forgotten` change it."""
        return self.core.producers

    def hold_back(self, commit: str, first_offset: int) -> None:
        """Keeps the last stable offset at or below `first_offset`, where the commit's data begins, until `release`."""
        self.wake(self.ends.hold_back(commit, first_offset))

    def release(self, commit: str) -> Moved:
        """Lets the markers of a commit take effect. The caller wakes waiting operations, after all partitions are released."""
        return self.ends.release(commit)

    def snapshot_at(self, offset: int) -> Snapshot:
        """The snapshot for a copy whose log begins with the batch at `offset`: it has each producer's last batches below `offset`,
        so that the copy recognises their retries as duplicates and returns the original offsets.
        """
        entries = self.producers.entries
        before = {producer_id: entry for producer_id, entry in entries.items() if entry.batches[0].last_offset < offset}
        split = {producer_id: entry for producer_id, entry in before.items() if entry.batches[-1].last_offset >= offset}
        for producer_id, entry in split.items():
            batches = tuple(batch for batch in entry.batches if batch.last_offset < offset)
            first_offset = entry.txn_first_offset if entry.txn_first_offset < offset else NO_OFFSET
            before[producer_id] = entry._replace(batches=batches, txn_first_offset=first_offset)
        if split:  # entries are ordered by last write, which is now earlier for these producers
            before = dict(sorted(before.items(), key=lambda known: known[1].batches[-1].last_offset))
        epochs = self.core.epochs.below(offset)
        return Snapshot(self.crc_seed, offset, epochs, before, dict(self.producers.forgotten))

    # Flush

    @property
    def is_dirty(self) -> bool:
        """True if bytes wait for a flush."""
        return self.ends.appended_bytes > self.core.flushes.flushed_bytes

    @property
    def has_unsynced(self) -> bool:
        """True while a cut must wait for a flush that is due or under way."""
        return self.core.flushes.has_unsynced

    def prepare_flush(self) -> FlushTask | None:
        """Begins a flush, for a thread to run. None under the conditions of PartitionCore.begin_flush."""
        plan = self.core.begin_flush()
        if plan is None:
            return None
        return FlushTask(self.resources, self._directory, self.crc_seed, plan, self.segments[-1 - len(plan.sealed) :])

    def complete_flush(self, task: FlushTask) -> Moved:
        """Ends a flush whose `task.run()` has returned. Returns the log ends that it moved."""
        outcome, before_bytes = task.outcome, self.core.flushes.flushed_bytes
        task.release()
        moved = self.core.flushed(task.plan, outcome)
        if outcome.derived_error is not None and not self.health.is_deleted:
            text = "%s: could not write index or snapshot (%s); a restart reads more of the log instead"
            logger.warning(text, self.name, outcome.derived_error)
        self.resources.moved.add(self)
        self.resources.count_unsynced(before_bytes - self.core.flushes.flushed_bytes)
        self.wake(moved)
        return moved

    def fail_flush(self, task: FlushTask, error: BaseException) -> None:
        """Ends a flush whose `task.run()` has raised, and stops the log: after any error it is unknown which bytes are durable.
        Reads continue.
        """
        if not isinstance(error, OSError):
            logger.error("%s: internal error in a flush", self.name, exc_info=error)
            error = OSError(errno.EIO, f"internal error: {type(error).__name__}")
        elif not self.health.is_deleted:  # a deleted log's files may be removed during a flush
            self.resources.refusals.refused(error)
        task.release()
        before_bytes = self.core.flushes.flushed_bytes
        self.core.flush_failed(task.plan, error)
        self._give_up(before_bytes)

    def flush(self) -> None:
        """Flushes everything, waiting for the disk. Raises OSError. The log has then stopped, except after an `untried_error`."""
        task = self.prepare_flush()
        if task is not None:
            try:
                task.run()
            except OSError as error:
                self.fail_flush(task, error)
                raise
            self.complete_flush(task)
            if task.outcome.untried_error is not None:
                raise task.outcome.untried_error

    def _give_up(self, before_bytes: int) -> None:
        """Releases the dirty bytes of a stopped log, and wakes all operations. `before_bytes`: `flushed_bytes` before the stop."""
        for segment in self.segments:
            segment.release_dirty()
        self.resources.count_unsynced(before_bytes - self.core.flushes.flushed_bytes)
        self.wake()

    # Retention, truncation, deletion

    def set_log_start(self, offset: int) -> Moved:
        """Moves the log start, which is durable after the next checkpoint."""
        self.resources.moved.add(self)
        moved = self.ends.set_log_start(offset)
        self.wake(moved)
        return moved

    def roll_if_expired(self, now_ms: int) -> bool:
        """Rolls the active segment if it has passed retention. True if retention must wait for a flush. Raises OSError."""
        if self.is_stopped:
            return False
        if self.core.must_close_last(now_ms):
            self._roll()
        return bool(self.core.flushes.sealed) or bool(self.core.snapshots.waiting)

    def take_removable(self, durable_start: int) -> tuple[Sequence[Segment], Sequence[int]]:
        """Drops segments below the log start and unneeded snapshots from the state and returns them; the caller removes the files.
        `durable_start`: the log start in the checkpoint on disk.
        """
        count = self.core.removable_count(durable_start)
        removable = self.segments[:count]
        if removable:
            self.core.retired(count)
            self._reader.forget_hints()
        return removable, self.core.take_old_snapshots()

    def begin_cut(self, truncation: Truncation, last: Segment, producers: ProducerStates) -> None:
        """Makes `last` the final segment and `producers` the producer state. Reads no longer see the cut records. Raises
        NotLeaderError if role or epoch have changed since the decision.
        """
        moved = self.core.truncated(truncation, last, producers)
        self._reader.forget_hints()
        self.resources.moved.add(self)
        self.wake(moved)

    def write_end(self) -> CleanLog | None:
        """Writes the active segment's index and a snapshot at the log end, if missing, to spare the next start a scan; a failure
        only makes that start slower. Call it once everything is flushed, in any thread. Returns the entry for the clean-shutdown
        mark; None if the log did not end cleanly.
        """
        ends = self.ends
        if self.is_stopped or ends.durable_end != ends.log_end_offset:
            return None
        last = self.segments[-1]  # exists: only a stopped log may have no segments
        files, has_snapshot = self.resources.files, ends.log_end_offset in self.core.snapshots.durable
        if not (has_snapshot and last.has_written_index):
            try:
                if not last.has_written_index:
                    last.write_index()
                if not has_snapshot:
                    write_snapshot(files, self._directory, self.core.snapshot())
                files.sync_dir(self._directory)
            except OSError as error:
                reason = error.strerror
                logger.warning(
                    "%s: could not write index or snapshot (%s): the next start reads more of the log", self.name, reason
                )
        if any(segment.has_excess_bytes for segment in self.segments):
            return None
        segments = tuple(CleanSegment(segment.base_offset, segment.size_bytes) for segment in self.segments)
        return CleanLog(ends.log_end_offset, segments)

    def mark_deleted(self) -> None:
        """Stops the log because its files are about to be removed."""
        before_bytes = self.core.flushes.flushed_bytes
        self.core.deleted()
        self._give_up(before_bytes)
