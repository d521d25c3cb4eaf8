"""One partition: asks its core (core.py) what to do, moves the bytes, reports back, and wakes the operations that wait for an end
that has moved.

All of it belongs to the event loop, but FlushTask.run, `read` and the look-ups, which change nothing and may run in any thread.
recovery.py reads the log back after a crash.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, cast

from brokerd.config.topic import TopicConfig
from brokerd.errors import (
    CorruptMessageError,
    Fate,
    LogDamagedError,
    OffsetOutOfRangeError,
    ResourceExhaustedError,
    StorageError,
    UnknownTopicIdError,
)
from brokerd.ids import LogPosition, TopicIdPartition, TopicPartition
from brokerd.partition.aborted_transactions import AbortedTransaction, AbortedTransactions
from brokerd.partition.core import Append, OpenData, PartitionCore, Role
from brokerd.partition.flush_task import FlushTask
from brokerd.partition.leader_epochs import EpochEntry
from brokerd.partition.log_ends import LogEnd, Moved
from brokerd.partition.log_state import CheckpointEntry, CleanLog, CleanSegment, LogState
from brokerd.partition.look_up import Backlog, IsWanted, LookUp, Reach, find_backlog, find_newest, find_reach
from brokerd.partition.markers import marker_of
from brokerd.partition.producer_state import BatchMetadata, ProducerStates
from brokerd.partition.reader import NO_LIMIT, FetchDataInfo, PartitionReader
from brokerd.partition.snapshots import encode_snapshot, write_snapshot
from brokerd.partition.timestamps import OffsetAndTimestamp, find_by_timestamp, find_max_timestamp
from brokerd.partition.truncation import LogCut
from brokerd.purgatory.purgatory import Waiters
from brokerd.record.batch import RecordBatch
from brokerd.record.header import crc_seed, header_problem, stamp
from brokerd.record.payload import payload_crc
from brokerd.sharing import Caller
from brokerd.storage.damage import damage_error
from brokerd.storage.files import Buffer, Files, is_no_space, is_too_many_open
from brokerd.storage.open_files import OpenFiles
from brokerd.storage.segment import Segment
from brokerd.storage.spare_files import SpareFiles

logger = logging.getLogger(__name__)

T = TypeVar("T")
_RETRY_AFTER_MS = 200
_NOBODY = Caller("", "")


def _always() -> bool:
    return True


def _ignore(*_: object) -> None:
    pass


class LogAppendInfo(NamedTuple):
    """The place of a batch in the log. It is durable once high_watermark > last_offset, also if `is_duplicate`."""

    base_offset: int
    last_offset: int
    append_timestamp: int
    is_duplicate: bool
    log_start_offset: int


@dataclass(slots=True)
class LogResources:
    """The resources that all partitions of a data directory share."""

    files: Files
    spares: SpareFiles
    open_files: OpenFiles
    max_producer_ids: int
    # Writes the checkpoint durably, with the log starts as they are now. Raises OSError.
    write_checkpoint: Callable[[], None]
    # Partitions whose entry in the checkpoint has changed.
    moved: set[Partition] = field(default_factory=set)
    # Puts a partition in line for a flush, in the turn of the caller that appended to it.
    flush_soon: Callable[[Partition, Caller], object] = _ignore
    # Adds to the count of bytes, of all partitions, that are not synced.
    count_unsynced: Callable[[int], object] = _ignore


class Partition:
    """The shell around a PartitionCore, which holds the state. `ends`, `health`, `epochs` and `config` are for reading alone."""

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
        self.core = PartitionCore(self.name, self.crc_seed, config, state)
        self.config = config
        self.ends = self.core.ends
        self.health = self.core.health
        self.epochs = self.core.epochs
        self.waiters: defaultdict[LogEnd, Waiters] = defaultdict(Waiters)  # the operations that wait for an end to move
        self._reader = PartitionReader(self.core, self.crc_seed, resources.open_files)
        self._directory = tp.directory_name
        self._resources = resources
        resources.moved.add(self)

    # State

    def configure(self, config: TopicConfig) -> None:
        """Applies new settings of the topic."""
        self.config = self.core.config = config

    @property
    def leader_epoch(self) -> int:
        """The epoch in which this node leads the partition."""
        return self.core.leader_epoch

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Segments, oldest first; the last one is appended to."""
        return cast("tuple[Segment, ...]", self.core.segments)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return self.core.size_bytes

    @property
    def is_stopped(self) -> bool:
        """True if nothing may be appended to or removed from the log."""
        return self.core.is_stopped

    @property
    def damage(self) -> LogDamagedError | None:
        """The error with which appends are refused because of damage that no operator has accepted; None without such damage."""
        stopping = self.health.first_damage(self.ends.log_start_offset)
        return damage_error(self.name, stopping) if stopping is not None else None

    def wake(self, moved: Moved = (LogEnd.LOG_START,)) -> None:
        """Wakes the operations that wait for these ends; all of them if the log start has moved, or nothing will move any more."""
        for end in moved if LogEnd.LOG_START not in moved else tuple(self.waiters):
            waiters = self.waiters.get(end)
            if waiters is not None:
                waiters.wake()

    # Role and epoch

    @property
    def is_leader(self) -> bool:
        """True if this node leads the partition. Nobody else answers requests for it."""
        return self.core.role is Role.LEADER

    def leads_in(self, epoch: int) -> bool:
        """True if this node leads in this epoch. What was begun in another one is never acknowledged."""
        return self.core.role is Role.LEADER and self.core.leader_epoch == epoch

    def lead(self, epoch: int, followers: Collection[int] = (), *, epoch_id: int = 0) -> Moved:
        """Makes this node the leader, in an epoch of its own, which is durable. All that waits since another epoch is settled
        before anything else happens. Raises FencedLeaderEpochError.
        """
        moved = self.core.lead(epoch, followers, epoch_id=epoch_id)
        self.wake()
        return moved

    def follow(self, epoch: int) -> None:
        """Makes another node the leader; otherwise as `lead`."""
        self.core.follow(epoch)
        self.wake()

    def resign(self) -> None:
        """Takes this node's role away; otherwise as `lead`."""
        self.core.resign()
        self.wake()

    # Append

    def append(
        self,
        batch: RecordBatch,
        *,
        now_wall_ms: int,
        clock_ahead_ms: int = 0,
        is_open_member: bool = False,
        caller: Caller = _NOBODY,
    ) -> LogAppendInfo:
        """Writes a batch, which has passed `check_produced` if it is a client's; on return it waits for its flush, in the turn of
        `caller`. `is_open_member`: its producer is in an open transaction. `clock_ahead_ms`: how far the wall clock is ahead of the
        log time.

        Waits for nothing but the write into the page cache. Raises WireErrors with their fate.
        """
        decided = self.core.append_as_leader(
            batch.header, now_wall_ms, clock_ahead_ms=clock_ahead_ms, is_open_member=is_open_member
        )
        if isinstance(decided, BatchMetadata):
            if self.ends.high_watermark <= decided.last_offset:
                self._resources.flush_soon(self, caller)
            return LogAppendInfo(decided.base_offset, decided.last_offset, decided.timestamp, True, self.ends.log_start_offset)
        return self._append_stamped(decided, batch, caller)

    def append_marker(
        self, batch: RecordBatch, *, now_wall_ms: int, clock_ahead_ms: int = 0, caller: Caller = _NOBODY
    ) -> LogAppendInfo:
        """Writes a control batch, which ends transactions here, as `append` does. Raises WireErrors with their fate."""
        marker = marker_of(batch)
        assert marker is not None, "a control batch"
        decided = self.core.append_marker(batch.header, now_wall_ms, marker, clock_ahead_ms=clock_ahead_ms)
        return self._append_stamped(decided, batch, caller)

    def append_as_follower(self, batch: RecordBatch) -> None:
        """Writes the next batch of this log byte for byte as its leader has it, once both of its CRCs are checked. Raises
        WireErrors with their fate.
        """
        problem = header_problem(batch.header, batch.header_bytes, self.crc_seed)
        if problem is None and payload_crc(batch.payload) != batch.header.payload_crc:
            problem = "payload_crc does not match"
        if problem is not None:
            raise CorruptMessageError(f"{self.name}: the batch at offset {batch.header.base_offset} has changed: {problem}")
        self._write(self.core.append_as_follower(batch.header, marker=marker_of(batch)), (batch.data,), _NOBODY)

    def _append_stamped(self, append: Append, batch: RecordBatch, caller: Caller) -> LogAppendInfo:
        stamped = stamp(
            batch.header_bytes,
            base_offset=append.base_offset,
            append_timestamp=append.append_timestamp,
            leader_epoch=append.leader_epoch,
            leader_epoch_id=append.leader_epoch_id,
            clock_ahead_s=(append.append_timestamp - append.log_time) // 1_000,
            is_log_append_time=self.core.config.message_timestamp_type == "LogAppendTime",
            seed=self.crc_seed,
        )
        self._write(append, (stamped, memoryview(batch.data)[len(stamped) :]), caller)
        return LogAppendInfo(append.base_offset, append.next_offset - 1, append.append_timestamp, False, self.ends.log_start_offset)

    def _write(self, append: Append, buffers: Sequence[Buffer], caller: Caller) -> None:
        core = self.core
        try:
            if append.must_roll:
                self._roll()
            segment = self.segments[-1]
            segment.append(buffers, append.size_bytes)
        except OSError as error:
            raise self._append_error(error) from error
        segment.note_position(append.base_offset, core.config.index_interval_bytes)
        moved = core.written(append)
        self._resources.count_unsynced(append.size_bytes)
        self._resources.flush_soon(self, caller)
        self.wake(moved)

    def _append_error(self, error: OSError) -> StorageError | ResourceExhaustedError:
        # Bytes that could not be cut off again may come back as a whole batch after a crash.
        fate = Fate.UNKNOWN if self.segments[-1].has_excess_bytes else Fate.NOT_APPENDED
        if is_too_many_open(error):
            return ResourceExhaustedError(f"{self.name}: too many open files", fate=fate, retry_after_ms=_RETRY_AFTER_MS)
        what = "the disk is full" if is_no_space(error) else f"the write failed ({error.strerror})"
        return StorageError(f"{self.name}: {what}", fate=fate, retry_after_ms=_RETRY_AFTER_MS)

    def _roll(self) -> None:
        resources = self._resources
        self.segments[-1].cut_excess()
        segment = Segment(resources.files, resources.open_files, self._directory, self.ends.log_end_offset, self.crc_seed)
        segment.create()
        self.core.rolled(segment)

    # Read, in any thread

    def read(
        self, offset: int, *, max_bytes: int, until_offset: int, cached_only: bool, first_batch_max_bytes: int = NO_LIMIT
    ) -> FetchDataInfo:
        """Whole batches from the one that holds `offset` on, below `until_offset`, about `max_bytes`; the first one even if larger,
        but not than `first_batch_max_bytes`.

        Empty if there is nothing to read yet. Raises OffsetOutOfRangeError, LogDamagedError, StorageError, NeedsRoom if the first
        batch is too large, and WouldBlock with `cached_only` if the disk would have to be waited for: ask again in a thread, with
        cached_only=False.
        """
        self.check_in_range(offset)
        try:
            return self._reader.read(
                offset,
                max_bytes=max_bytes,
                until_offset=min(until_offset, self.ends.log_end_offset),
                cached_only=cached_only,
                first_batch_max_bytes=first_batch_max_bytes,
            )
        except FileNotFoundError:
            # Removed during the read; whatever removed it has noted that before.
            self._check_exists()
            self.check_in_range(offset)
            raise StorageError(f"{self.name}: a file of the log that holds offset {offset} is missing") from None

    def check_in_range(self, offset: int) -> None:
        """Raises OffsetOutOfRangeError if the log neither holds this offset nor gives it to its next record."""
        ends = self.ends
        if not ends.log_start_offset <= offset <= ends.log_end_offset:
            raise OffsetOutOfRangeError(
                f"there is no offset {offset} in {self.name}: it starts at offset {ends.log_start_offset}, and its next record "
                f"gets offset {ends.log_end_offset}",
                log_start_offset=ends.log_start_offset,
            )

    def offset_for_timestamp(
        self, timestamp_ms: int, *, is_committed: bool = False, is_wanted: IsWanted = _always
    ) -> OffsetAndTimestamp | None:
        """The first durable record whose timestamp is at least `timestamp_ms`, below the last stable offset if `is_committed`; None
        if there is none. Reads files: call it in a thread.

        Raises StorageError; LogDamagedError if the record may be one that cannot be read; LookUpAbandoned soon after it is not
        wanted any more.
        """
        until = self._readable_end(is_committed)
        return self._looked_up(is_wanted, lambda look_up: find_by_timestamp(look_up, timestamp_ms, until))

    def max_timestamp_offset(self, *, is_committed: bool = False, is_wanted: IsWanted = _always) -> OffsetAndTimestamp | None:
        """The first durable record with the largest timestamp of the log; None if it is empty. Otherwise as
        offset_for_timestamp.
        """
        until = self._readable_end(is_committed)
        return self._looked_up(is_wanted, lambda look_up: find_max_timestamp(look_up, until))

    def backlog(self, offset: int, *, is_committed: bool = False, is_wanted: IsWanted = _always) -> Backlog:
        """The rest that a reader at `offset` has left to read, below the last stable offset if `is_committed`. Raises
        StorageError, LookUpAbandoned; otherwise as offset_for_timestamp.
        """
        until = self._readable_end(is_committed)
        return self._looked_up(is_wanted, lambda look_up: find_backlog(look_up, offset, until))

    def reach(
        self, from_offset: int, until_offset: int, max_bytes: int, *, is_committed: bool = False, is_wanted: IsWanted = _always
    ) -> Reach:
        """How far `max_bytes` reach, in whole batches from the one that holds `from_offset` on: the end of the last one that fits,
        of the first one at least, and at most `until_offset`. Raises StorageError, LookUpAbandoned.
        """
        end = min(until_offset, self._readable_end(is_committed))
        found = self._looked_up(is_wanted, lambda look_up: find_reach(look_up, from_offset, end, max_bytes))
        return found if found.offset < end else found._replace(offset=until_offset)

    def newest_offset(self, count: int, *, is_committed: bool = False, is_wanted: IsWanted = _always) -> int:
        """From which offset on the newest `count` records follow that a reader may have; the log start if there are no more.
        Raises StorageError, LookUpAbandoned.
        """
        until = self._readable_end(is_committed)
        # A copy: the event loop changes the index meanwhile.
        aborted = AbortedTransactions(self.core.producers.aborted.entries if is_committed else ())
        return self._looked_up(is_wanted, lambda look_up: find_newest(look_up, count, until, aborted))

    def _readable_end(self, is_committed: bool) -> int:
        return self.ends.last_stable_offset if is_committed else self.ends.high_watermark

    def _looked_up(self, is_wanted: IsWanted, find: Callable[[LookUp], T]) -> T:
        try:
            return find(LookUp(self._reader, is_wanted))
        except FileNotFoundError:
            self._check_exists()
            # Retention was faster; a retry will probably succeed.
            raise StorageError(f"{self.name}: the log start has just moved", retry_after_ms=_RETRY_AFTER_MS) from None
        except OSError as error:
            raise StorageError(f"{self.name}: reading failed ({error.strerror})", retry_after_ms=_RETRY_AFTER_MS) from error

    def _check_exists(self) -> None:
        if self.health.is_deleted:
            raise UnknownTopicIdError(f"{self.name} is deleted") from None

    # Histories and transactions

    def check_history(self, position: LogPosition) -> None:
        """Raises LogTruncationError if the position is of another history than this log."""
        self.core.check_history(position)

    def epoch_before(self, offset: int) -> EpochEntry | None:
        """The epoch of the record before `offset`; None if there is none, or it cannot be known."""
        return self.core.epoch_before(offset)

    def aborted_transactions(self, from_offset: int, until_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that overlap a range which was read. Raises OffsetOutOfRangeError if the log begins behind
        `from_offset` by now.
        """
        return self.core.aborted_transactions(from_offset, until_offset)

    @property
    def producers(self) -> ProducerStates:
        """The producers that are known here, and their open transactions, for reading."""
        return self.core.producers

    def open_data(self, producer_id: int) -> OpenData | None:
        """The data of a member's open transaction here; None if it has none."""
        return self.core.open_data(producer_id)

    def first_open_offset(self, producer_ids: Collection[int]) -> int | None:
        """Where the first of these members' open transactions begins here; None if they have none."""
        return self.core.first_open_offset(producer_ids)

    def hold_back(self, commit: str, first_offset: int) -> None:
        """Keeps the last stable offset from passing the commit's data until `release`, whichever of its markers are written."""
        self.wake(self.ends.hold_back(commit, first_offset))

    def release(self, commit: str) -> Moved:
        """Lets the markers of a commit count. Wakes nobody: all partitions of the commit come first."""
        return self.ends.release(commit)

    def expire_producers(self, before_ms: int) -> int:
        """Forgets producers silent since before `before_ms`; returns how many."""
        return self.core.expire_producers(before_ms)

    # Flush

    @property
    def is_dirty(self) -> bool:
        """True if bytes wait for a flush."""
        return self.ends.appended_bytes > self.core.flushes.flushed_bytes

    def prepare_flush(self) -> FlushTask | None:
        """Begins a flush, to be run in a thread; None if nothing is dirty or one is under way."""
        plan = self.core.begin_flush()
        if plan is None:
            return None
        resources = self._resources
        segments = self.segments[-1 - len(plan.sealed) :]
        return FlushTask(resources.files, resources.spares, self._directory, self.crc_seed, plan, segments)

    def complete_flush(self, task: FlushTask) -> Moved:
        """Ends a flush whose `task.run()` has returned. Returns which ends have moved."""
        task.release(self._resources.open_files)
        before_bytes = self.core.flushes.flushed_bytes
        moved = self.core.flushed(task.plan, task.outcome)
        if task.derived_error is not None and not self.health.is_deleted:  # a deleted one needs no files
            logger.warning(
                "%s: could not write index or snapshot (%s); a restart reads more of the log instead", self.name, task.derived_error
            )
        self._resources.moved.add(self)
        self._resources.count_unsynced(before_bytes - self.core.flushes.flushed_bytes)
        self.wake(moved)
        return moved

    def fail_flush(self, task: FlushTask, error: OSError) -> None:
        """Ends a flush whose `task.run()` has raised: the log has stopped. Reads continue."""
        task.release(self._resources.open_files)
        before_bytes = self.core.flushes.flushed_bytes
        self.core.flush_failed(task.plan, error)
        self._give_up(before_bytes)

    def flush(self) -> None:
        """Flushes all, waiting for the disk. Raises OSError: the log has stopped then, unless no sync could even be tried."""
        task = self.prepare_flush()
        if task is not None:
            try:
                task.run()
            except OSError as error:
                self.fail_flush(task, error)
                raise
            self.complete_flush(task)
            if task.untried_error is not None:
                raise task.untried_error

    def _give_up(self, before_bytes: int) -> None:
        """Nothing is flushed any more, and nothing moves. `before_bytes`: what was flushed or given up before."""
        for segment in self.segments:
            segment.release_dirty()
        self._resources.count_unsynced(before_bytes - self.core.flushes.flushed_bytes)
        self.wake()

    # Retention, truncation, deletion

    def deletion_target(self, before_offset: int) -> int:
        """The log start that DeleteRecords requests. Raises OffsetOutOfRangeError, StorageError, LogDamagedError."""
        return self.core.deletion_target(before_offset)

    def retained_from(self, now_ms: int) -> int:
        """The log start by retention.ms and retention.bytes; the present one if the log has stopped."""
        return self.core.retained_from(now_ms)

    def set_log_start(self, offset: int) -> Moved:
        """Moves the log start. It is durable once the checkpoint has been written."""
        self._resources.moved.add(self)
        moved = self.ends.set_log_start(offset)
        self.wake(moved)
        return moved

    def roll_if_expired(self, now_ms: int) -> bool:
        """Closes the last segment if retention needs that. True if retention has to wait for a flush first. Raises OSError."""
        if self.is_stopped:
            return False
        if self.core.must_close_last(now_ms):
            self._roll()
        return bool(self.core.flushes.sealed) or self.core.snapshots.has_waiting

    def take_removable(self, durable_start: int) -> tuple[Sequence[Segment], Sequence[int]]:
        """Takes the segments below the log start out of the log, and the offsets of snapshots that are no longer needed; the caller
        removes their files. `durable_start`: the log start in the checkpoint on the disk.
        """
        count = self.core.removable_count(durable_start)
        removable = self.segments[:count]
        if removable:
            self.core.retired(count)
            self._reader.forget_hints()
        return removable, self.core.take_old_snapshots()

    def checkpoint_entry(self) -> CheckpointEntry:
        """This log's entry for the next checkpoint."""
        return self.core.checkpoint_entry()

    def truncate_to(self, offset: int) -> None:
        """Cuts the log where the batch begins that holds `offset`, or ends there, waiting for the disk. No flush may be under way.

        Raises ValueError below the high watermark; StorageError if nothing could be cut; OSError: then the log has stopped.
        """
        self.flush()
        core, resources = self.core, self._resources
        truncation = core.truncate_to(offset)
        cut = LogCut(resources.files, resources.open_files, self._directory, self.crc_seed, self.segments, truncation)
        producers = ProducerStates(self.name, limit=resources.max_producer_ids)
        cut.read(producers, core.config.index_interval_bytes)
        moved = core.truncated(truncation, cut.last, producers)
        self._reader.forget_hints()
        resources.moved.add(self)
        self.wake(moved)
        try:
            # First of all, so that a start does not miss what is about to be removed.
            resources.write_checkpoint()
            cut.make(core.epochs.entries)
        except OSError as error:
            core.failed(error)
            raise

    def write_end(self) -> CleanLog | None:
        """Writes the index of the last segment and a snapshot at the end, if they are missing, so that the next start reads nothing
        else; a failure only costs that start some work. In any thread, once all is flushed. Returns what to note for that start;
        None if the log did not end cleanly.
        """
        ends, last = self.ends, self.segments[-1]
        if self.is_stopped or ends.durable_end != ends.log_end_offset:
            return None
        files, has_snapshot = self._resources.files, self.core.snapshots.newest == ends.log_end_offset
        if not (has_snapshot and last.has_written_index):
            try:
                if not last.has_written_index:
                    last.write_index()
                if not has_snapshot:
                    write_snapshot(files, self._directory, encode_snapshot(self.core.snapshot()), ends.log_end_offset)
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
        """Refuses appends from now on, since the topic is deleted, and closes files when they are no longer in use."""
        before_bytes = self.core.flushes.flushed_bytes
        self.core.deleted()
        self._give_up(before_bytes)
        for segment in self.segments:
            self._resources.open_files.drop(segment.path)
