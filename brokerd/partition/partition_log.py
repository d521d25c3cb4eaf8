"""The log of one partition: accept, stamp, write; flush; read; forget old segments.

    log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset

High watermark is what has been flushed. Everything here runs in the event loop but `read`, the look-ups by time and
FlushTask.run. What is read back after a crash is recovery's business (recovery.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from brokerd.config.topic import TopicConfig
from brokerd.errors import (
    Fate,
    InvalidTxnStateError,
    LogDamagedError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownTopicIdError,
)
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.partition.append_error import append_error
from brokerd.partition.entries import CheckpointEntry
from brokerd.partition.flush_task import FlushTask
from brokerd.partition.kept_snapshots import KeptSnapshots
from brokerd.partition.leader_epochs import LeaderEpochs
from brokerd.partition.log_state import LogResources, LogState
from brokerd.partition.producer_state import BatchMetadata, ProducerStateEntry
from brokerd.partition.snapshots import Snapshot, encode_snapshot
from brokerd.partition.timestamps import OffsetAndTimestamp, check_timestamps, find_by_timestamp, find_max_timestamp
from brokerd.record.batch import RecordBatch
from brokerd.record.header import crc_seed, decode_header, stamp
from brokerd.storage.damage import DamagedRange, damage_error, first_that_stops
from brokerd.storage.log_reader import FetchDataInfo, LogReader
from brokerd.storage.open_files import Handle
from brokerd.storage.segment import Segment

logger = logging.getLogger(__name__)

# A restart checks payloads of about so many durable bytes; what is older is checked when it is read, and by the doctor.
RECOVERY_WINDOW_BYTES = 64 * 1_048_576
_RETRY_AFTER_MS = 200


class LogAppendInfo(NamedTuple):
    """Where a batch stands. It is durable once high_watermark > last_offset, also if `is_duplicate`."""

    base_offset: int
    last_offset: int
    append_timestamp: int
    is_duplicate: bool
    log_start_offset: int


class PartitionLog:
    """See the module."""

    def __init__(self, tp: TopicIdPartition, topic: str, config: TopicConfig, resources: LogResources, state: LogState) -> None:
        self.tp = tp
        self.topic = topic
        self.name = str(TopicPartition(topic, tp.partition))
        self.config = config
        self.is_deleted = False
        self.log_start_offset = state.log_start_offset
        self.log_end_offset = state.log_end_offset
        self.high_watermark = state.log_end_offset
        self.recovery_point = state.recovery_point
        self.snapshots = KeptSnapshots(state.snapshot_offsets, state.unwritten_snapshot)
        self._resources = resources
        self._seed = crc_seed(tp)
        self._producers = state.producers
        self._epochs = state.epochs
        self._epochs_to_write = False
        self._open_transactions_from: int | None = state.producers.first_open_offset()
        self._read_only_reason = state.read_only_reason
        self._failure: OSError | None = None
        self._sealed: list[Segment] = []
        self._flush_under_way: FlushTask | None = None
        self._appended_bytes = 0
        self._flushed_bytes = 0
        self._recovery_mark = (state.log_end_offset, 0)  # (offset, flushed bytes) that becomes the recovery point next
        self._reader = LogReader(self.name, self._seed, resources.open_files, index_interval_bytes=config.index_interval_bytes)
        self._reader.segments = tuple(state.segments)
        self._reader.damaged = tuple(state.damaged)
        resources.moved.add(self)

    # What it is

    @property
    def leader_epoch(self) -> int:
        """The epoch that stamps what is appended now."""
        return self._resources.leader_epoch

    @property
    def last_stable_offset(self) -> int:
        """End of what is decided: below it no open transaction.

        It does not stop at damage. There it would tell a reader "nothing yet", for ever and in silence, and a batch read that
        the log ends there; so readers go on to the damaged range and are refused it.
        """
        end = self.high_watermark if self._open_transactions_from is None else self._open_transactions_from
        return max(min(self.high_watermark, end), self.log_start_offset)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Oldest first; the last one is appended to."""
        return self._reader.segments

    @property
    def segment_count(self) -> int:
        """Number of segments."""
        return len(self.segments)

    @property
    def producer_count(self) -> int:
        """Producer ids remembered."""
        return len(self._producers)

    @property
    def producers(self) -> dict[int, ProducerStateEntry]:
        """State of each producer id."""
        return self._producers.entries

    @property
    def epochs(self) -> LeaderEpochs:
        """Where each leader epoch began."""
        return self._epochs

    @property
    def dirty_bytes(self) -> int:
        """Bytes appended and not yet flushed; 0 once the log has stopped."""
        return self._appended_bytes - self._flushed_bytes

    @property
    def is_dirty(self) -> bool:
        """True if a flush has something to do."""
        return self.dirty_bytes > 0

    @property
    def failure(self) -> OSError | None:
        """The failed flush that stopped this log."""
        return self._failure

    @property
    def damaged_ranges(self) -> tuple[DamagedRange, ...]:
        """Ranges of the log that cannot be read."""
        return tuple(damaged for damaged in self._reader.damaged if damaged.is_live(self.log_start_offset))

    @property
    def damage(self) -> LogDamagedError | None:
        """Why appends are refused, if something that was durable is no longer whole, and nobody has accepted that."""
        stopping = first_that_stops(self._reader.damaged, self.log_start_offset)
        return damage_error(self.name, stopping) if stopping is not None else None

    # Append

    def append(self, batch: RecordBatch, *, now_wall_ms: int, is_open_member: bool = False) -> LogAppendInfo:
        """Writes a batch that `check_produced` let pass. `is_open_member`: its producer is a member of an open transaction.

        Nothing is waited for but the write into the page cache. Raises WireErrors that say their fate.
        """
        self._check_writable()
        header = batch.header
        if header.is_transactional and not is_open_member:
            raise InvalidTxnStateError(
                f"{self.name}: producer {header.producer_id} in epoch {header.producer_epoch} is no member of an open transaction",
                fate=Fate.NOT_APPENDED,
            )
        base_offset = self.log_end_offset
        entry: ProducerStateEntry | None = None
        if header.producer_id >= 0:
            prepared = self._producers.prepare(header, base_offset, now_wall_ms)
            if isinstance(prepared, BatchMetadata):
                return LogAppendInfo(prepared.base_offset, prepared.last_offset, prepared.timestamp, True, self.log_start_offset)
            entry = prepared
        # After the search for a repetition: what was accepted once is answered so, whatever the clock says now.
        check_timestamps(self.name, header, self.config, now_wall_ms)
        stamped = stamp(
            batch.header_bytes,
            base_offset=base_offset,
            append_timestamp=now_wall_ms,
            leader_epoch=self.leader_epoch,
            is_log_append_time=self.config.message_timestamp_type == "LogAppendTime",
            seed=self._seed,
        )
        try:
            segment = self._writable_segment(header.size, now_wall_ms)
            segment.append([stamped, memoryview(batch.data)[header.header_size :]], header.size)
        except OSError as error:
            # Bytes that could not be cut off again may come back as a whole batch after a crash.
            raise append_error(self.name, error, is_unknown=self.segments[-1].has_excess_bytes) from error
        segment.note(decode_header(stamped), self.config.index_interval_bytes)
        if entry is not None:
            self._producers.commit(header.producer_id, entry)
            if entry.txn_first_offset >= 0 and self._open_transactions_from is None:
                self._open_transactions_from = entry.txn_first_offset
        if self._epochs.assign(self.leader_epoch, base_offset):
            self._epochs_to_write = True
        self._appended_bytes += header.size
        self._resources.dirty_bytes += header.size
        self.log_end_offset = segment.next_offset
        return LogAppendInfo(base_offset, segment.next_offset - 1, now_wall_ms, False, self.log_start_offset)

    def _check_writable(self) -> None:
        if self.is_deleted:
            raise UnknownTopicIdError(f"{self.name} is deleted", fate=Fate.NOT_APPENDED)
        if self._failure is not None:
            raise StorageError(
                f"{self.name} takes no appends: a flush failed ({self._failure.strerror}); restart when the disk is well",
                fate=Fate.NOT_APPENDED,
            )
        if self._reader.damaged:
            stopping = first_that_stops(self._reader.damaged, self.log_start_offset)
            if stopping is not None:
                raise damage_error(self.name, stopping, fate=Fate.NOT_APPENDED)
        if self._read_only_reason:
            raise LogDamagedError(f"{self.name} is read-only: {self._read_only_reason}", fate=Fate.NOT_APPENDED)

    def _writable_segment(self, size: int, now_wall_ms: int) -> Segment:
        """The last segment, or a new one if the batch does not fit or the last one is old. Raises OSError."""
        active = self.segments[-1]
        if active.size_bytes == 0:
            return active
        is_full = active.size_bytes + size > self.config.segment_bytes
        is_old = now_wall_ms - active.first_append_timestamp >= self.config.segment_ms
        return self._roll() if is_full or is_old else active

    def _roll(self) -> Segment:
        active = self.segments[-1]
        active.cut_excess()
        segment = Segment(
            self._resources.files, self._resources.open_files, self.tp.directory_name, self.log_end_offset, self._seed
        )
        segment.create()
        self._sealed.append(active)
        self.snapshots.add(self._snapshot())
        self._reader.segments = (*self.segments, segment)
        return segment

    # Flush

    def prepare_flush(self) -> FlushTask | None:
        """What a flush has to do now; None if nothing is dirty or one is under way."""
        is_due = self.is_dirty or self._sealed or self.snapshots.has_waiting
        if self._flush_under_way is not None or self._failure is not None or self.is_deleted or not is_due:
            return None
        handles: list[Handle] = []
        for segment in (*self._sealed, self.segments[-1]):
            if segment.dirty_handle is not None:
                handles.append(segment.dirty_handle)
                segment.dirty_handle = None
        task = FlushTask(
            self._resources.files,
            self._resources.spares,
            self.tp.directory_name,
            self._seed,
            end_offset=self.log_end_offset,
            appended_bytes=self._appended_bytes,
            handles=handles,
            sealed=self._sealed,
            snapshots=self.snapshots.take_waiting(),
            epochs=tuple(self._epochs.entries) if self._epochs_to_write else None,
        )
        self._sealed = []
        self._epochs_to_write = False
        self._flush_under_way = task
        return task

    def complete_flush(self, task: FlushTask) -> bool:
        """After `task.run()` returned. True if the high watermark moved."""
        self._end_flush(task)
        if task.untried_error is not None:
            self._sealed = [*task.sealed, *self._sealed]
            self.snapshots.note_failed(task.snapshots)
            self._epochs_to_write = self._epochs_to_write or task.epochs is not None
            return False
        if task.has_snapshots:
            self.snapshots.note_written(task.snapshots)
        if task.derived_error is not None:
            self._epochs_to_write = True
            if not task.has_snapshots:  # the next flush tries again; retention waits for it
                self.snapshots.note_failed(task.snapshots)
                self._sealed = [*task.sealed, *self._sealed]
        if task.derived_error is not None and not self.is_deleted:  # of a deleted one they are gone, and not missed
            logger.warning(
                "%s: could not write index or snapshot (%s); a restart reads more of the log instead", self.name, task.derived_error
            )
        moved = task.end_offset > self.high_watermark
        self.high_watermark = max(self.high_watermark, task.end_offset)
        self._settle_dirty(task.appended_bytes)
        self._resources.moved.add(self)
        return moved

    def fail_flush(self, task: FlushTask, error: OSError) -> None:
        """After `task.run()` raised: the log stops, for nothing is known of those pages. Its readers go on."""
        self._end_flush(task)
        self._failure = error
        self._settle_dirty(self._appended_bytes)
        for segment in self.segments:
            segment.release_dirty()

    def flush(self) -> None:
        """Flushes all, waiting for the disk. Raises OSError: then the log has stopped, but where no sync could even be tried."""
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

    def _settle_dirty(self, appended_bytes: int) -> None:
        """Bytes up to this count are flushed, or given up."""
        if appended_bytes > self._flushed_bytes:
            self._resources.dirty_bytes -= appended_bytes - self._flushed_bytes
            self._flushed_bytes = appended_bytes

    def _end_flush(self, task: FlushTask) -> None:
        self._flush_under_way = None
        task.release(self._resources.open_files)

    # Read

    def read(self, offset: int, *, max_bytes: int, until_offset: int, cached_only: bool) -> FetchDataInfo:
        """Whole batches from the one that holds `offset` on, below `until_offset`, about `max_bytes`; the first one even if larger.

        Empty if there is nothing to read yet. Raises OffsetOutOfRangeError, LogDamagedError, StorageError, and WouldBlock with
        `cached_only` if the disk would have to be waited for: ask again in a thread, with cached_only=False.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise self._out_of_range(offset)
        until_offset = min(until_offset, self.log_end_offset)
        try:
            return self._reader.read(offset, max_bytes=max_bytes, until_offset=until_offset, cached_only=cached_only)
        except FileNotFoundError:
            # Gone while it was read; what took it has said so before.
            if self.is_deleted:
                raise UnknownTopicIdError(f"{self.name} is deleted") from None
            if offset < self.log_start_offset:
                raise self._out_of_range(offset) from None
            raise StorageError(f"{self.name}: a file of the log that holds offset {offset} is missing") from None

    def _out_of_range(self, offset: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            f"{self.name}: offset {offset} is out of range, the log has {self.log_start_offset} to {self.log_end_offset}",
            log_start_offset=self.log_start_offset,
        )

    def offset_for_timestamp(self, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """The first durable record whose timestamp is at least `timestamp_ms`; None if there is none. Reads: call it in a thread.

        Raises StorageError; LogDamagedError if the record may be one that cannot be read.
        """
        return self._look_up(lambda: find_by_timestamp(self, self._reader, self._resources.open_files, self._seed, timestamp_ms))

    def max_timestamp_offset(self) -> OffsetAndTimestamp | None:
        """The first durable record with the largest timestamp of those that are left; None if there are none. As
        offset_for_timestamp."""
        return self._look_up(lambda: find_max_timestamp(self, self._reader, self._resources.open_files, self._seed))

    def _look_up(self, find: Callable[[], OffsetAndTimestamp | None]) -> OffsetAndTimestamp | None:
        try:
            return find()
        except FileNotFoundError:
            if self.is_deleted:
                raise UnknownTopicIdError(f"{self.name} is deleted") from None
            # Retention was faster, and the next one is not likely to be.
            raise StorageError(f"{self.name}: the log start has just moved", retry_after_ms=_RETRY_AFTER_MS) from None
        except OSError as error:
            raise StorageError(f"{self.name}: reading failed ({error.strerror})", retry_after_ms=_RETRY_AFTER_MS) from error

    # Forgetting

    def delete_records(self, before_offset: int) -> int:
        """Moves the log start up to `before_offset` (-1: the high watermark), durably on return. Returns the new log start.

        Raises OffsetOutOfRangeError, StorageError.
        """
        target = self.deletion_target(before_offset)
        if target > self.log_start_offset:
            before = self.log_start_offset
            self.set_log_start(target)
            try:
                self._resources.write_checkpoint()
            except OSError as error:
                self.set_log_start(before)
                raise StorageError(f"{self.name}: the log start could not be written ({error.strerror})") from error
        return self.log_start_offset

    def deletion_target(self, before_offset: int) -> int:
        """The log start that is asked for; -1 is the high watermark. Raises OffsetOutOfRangeError; StorageError and
        LogDamagedError if the log has stopped: its checkpoint entry stays as it is, so nothing would be durable."""
        self._check_writable()
        target = self.high_watermark if before_offset == -1 else before_offset
        if not 0 <= target <= self.high_watermark:
            raise OffsetOutOfRangeError(
                f"{self.name}: cannot delete records before offset {before_offset}, the high watermark is {self.high_watermark}"
            )
        return target

    def set_log_start(self, offset: int) -> None:
        """Moves the log start; it holds once the checkpoint has been written."""
        self.log_start_offset = offset
        self._resources.moved.add(self)

    def expire_producers(self, before_ms: int) -> int:
        """Forgets producers silent since before `before_ms`; returns how many."""
        return self._producers.expire(before_ms)

    @property
    def is_retirable(self) -> bool:
        """True if retention may move its start: nothing is wrong with it."""
        return not self._is_stopped()

    def roll_if_expired(self, now_wall_ms: int) -> bool:
        """Closes the last segment once all it holds is past retention.ms, so that retention can take it after the next flush.
        True if that flush is due. Raises OSError.
        """
        active = self.segments[-1]
        is_expired = active.has_passed(self.config.retention_ms, now_wall_ms, self._resources.earliest_append_ms)
        if active.size_bytes and is_expired and not self.is_dirty and self._flush_under_way is None:
            self._roll()
        return bool(self._sealed) or self.snapshots.has_waiting

    def retained_from(self, now_wall_ms: int) -> int:
        """The log start that retention by time and size asks for: a segment's base offset, or the present log start."""
        start = self.log_start_offset
        size = self.size_bytes
        # Neither what is undecided nor damage, nor anything above it, is taken away.
        stopping = first_that_stops(self._reader.damaged, self.log_start_offset)
        limit = min(self.last_stable_offset, stopping.first_offset) if stopping is not None else self.last_stable_offset
        for segment, successor in zip(self.segments, self.segments[1:], strict=False):
            is_old = segment.has_passed(self.config.retention_ms, now_wall_ms, self._resources.earliest_append_ms)
            is_excess = self.config.retention_bytes >= 0 and size - segment.size_bytes >= self.config.retention_bytes
            if successor.base_offset > limit or not (is_old or is_excess):
                break
            size -= segment.size_bytes
            start = max(start, successor.base_offset)
        return start

    def take_removable(self, durable_start: int) -> list[Segment]:
        """Segments that lie below the log start, which the checkpoint on the disk has as `durable_start`. They are no longer
        known here: their files are for the caller to remove.
        """
        # What their producers did must be known without them, whichever life they are of.
        start = min(self.log_start_offset, durable_start, self.snapshots.newest)
        count = 0
        while count + 1 < len(self.segments) and self.segments[count + 1].base_offset <= start and not self._is_stopped():
            if self.segments[count].dirty_handle is not None:
                break
            count += 1
        removable = list(self.segments[:count])
        if removable:
            self._reader.segments = self.segments[count:]
            self._reader.forget_hints()
        return removable

    def take_old_snapshots(self) -> list[int]:
        """Offsets of snapshots that are no longer needed; their files are for the caller to remove."""
        return [] if self._is_stopped() else self.snapshots.take_old()

    def _is_stopped(self) -> bool:
        return bool(self.is_deleted or self._failure or self.damage or self._read_only_reason)

    # For the checkpoint and the end

    def checkpoint_entry(self) -> CheckpointEntry:
        """What the checkpoint says of this log from now on."""
        mark_offset, mark_bytes = self._recovery_mark
        if self._flushed_bytes - mark_bytes >= RECOVERY_WINDOW_BYTES:
            self.recovery_point = mark_offset
            self._recovery_mark = (self.high_watermark, self._flushed_bytes)
        return CheckpointEntry(min(self.recovery_point, self.high_watermark), self.high_watermark, self.log_start_offset)

    def snapshot_body(self) -> bytes:
        """Producer state and epochs at the log end, as a snapshot file has them."""
        return encode_snapshot(self._snapshot())

    def _snapshot(self) -> Snapshot:
        producers, epochs = dict(self._producers.entries), self._epochs.below(self.log_end_offset)
        return Snapshot(self._seed, self.log_end_offset, epochs, producers, self._producers.forgotten_number)

    def mark_deleted(self) -> None:
        """The topic is gone: appends are refused from now on, descriptors are given back when nobody uses them."""
        self.is_deleted = True
        self._settle_dirty(self._appended_bytes)
        for segment in self.segments:
            segment.release_dirty()
            self._resources.open_files.drop(segment.path)
