"""The log of one partition: asks the core (core.py), moves the bytes, and tells it what became of them.

Everything here runs in the event loop but `read`, the look-ups by time and FlushTask.run. What is read back after a crash is
recovery's business (recovery.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from brokerd.config.topic import TopicConfig
from brokerd.errors import LogDamagedError, OffsetOutOfRangeError, StorageError, UnknownTopicIdError
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.partition.append_error import append_error
from brokerd.partition.core import Append, PartitionCore
from brokerd.partition.entries import CheckpointEntry
from brokerd.partition.flush_task import FlushTask
from brokerd.partition.log_ends import Moved
from brokerd.partition.log_state import LogResources, LogState
from brokerd.partition.producer_state import BatchMetadata
from brokerd.partition.retention_rules import must_close_last, removable_count
from brokerd.partition.timestamps import OffsetAndTimestamp, find_by_timestamp, find_max_timestamp
from brokerd.record.batch import RecordBatch
from brokerd.record.header import crc_seed, stamp
from brokerd.storage.damage import damage_error
from brokerd.storage.files import Buffer
from brokerd.storage.log_reader import FetchDataInfo, LogReader
from brokerd.storage.segment import Segment

logger = logging.getLogger(__name__)

_RETRY_AFTER_MS = 200


class LogAppendInfo(NamedTuple):
    """Where a batch stands. It is durable once high_watermark > last_offset, also if `is_duplicate`."""

    base_offset: int
    last_offset: int
    append_timestamp: int
    is_duplicate: bool
    log_start_offset: int


class PartitionLog:
    """See the module. What is known of the partition is the core's, and here only what requests ask for."""

    def __init__(
        self,
        tp: TopicIdPartition,
        topic: str,
        config: TopicConfig,
        resources: LogResources,
        state: LogState,
        *,
        leader_epoch: int,
    ) -> None:
        self.tp = tp
        self.topic = topic
        self.name = str(TopicPartition(topic, tp.partition))
        self._seed = crc_seed(tp)
        self._resources = resources
        self.core = PartitionCore(self.name, self._seed, config, state, leader_epoch=leader_epoch)
        self._reader = LogReader(
            self.name,
            self._seed,
            resources.open_files,
            index_interval_bytes=config.index_interval_bytes,
            on_damage=self.core.damage_found,
        )
        self._reader.segments = tuple(state.segments)
        self._reader.damaged = tuple(state.damaged)
        resources.moved.add(self)

    # What it is

    @property
    def config(self) -> TopicConfig:
        """The topic's settings."""
        return self.core.config

    @property
    def log_start_offset(self) -> int:
        """Where it begins for readers."""
        return self.core.log_start_offset

    @property
    def last_stable_offset(self) -> int:
        """End of what is decided."""
        return self.core.last_stable_offset

    @property
    def high_watermark(self) -> int:
        """End of what is durable, and may be read."""
        return self.core.high_watermark

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self.core.log_end_offset

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Oldest first; the last one is appended to."""
        return self._reader.segments

    @property
    def is_deleted(self) -> bool:
        """True if its topic is gone."""
        return self.core.health.is_deleted

    @property
    def damage(self) -> LogDamagedError | None:
        """Why appends are refused, if something that was durable is no longer whole, and nobody has accepted that."""
        stopping = self.core.health.first_damage(self.core.log_start_offset)
        return damage_error(self.name, stopping) if stopping is not None else None

    # Append

    def append(self, batch: RecordBatch, *, now_wall_ms: int, is_open_member: bool = False) -> LogAppendInfo:
        """Writes a batch that `check_produced` let pass. `is_open_member`: its producer is a member of an open transaction.

        Nothing is waited for but the write into the page cache. Raises WireErrors that say their fate.
        """
        header, core = batch.header, self.core
        decided = core.append_as_leader(header, now_wall_ms, is_open_member=is_open_member)
        if isinstance(decided, BatchMetadata):
            return LogAppendInfo(decided.base_offset, decided.last_offset, decided.timestamp, True, core.log_start_offset)
        stamped = stamp(
            batch.header_bytes,
            base_offset=decided.base_offset,
            append_timestamp=now_wall_ms,
            leader_epoch=decided.leader_epoch,
            is_log_append_time=core.config.message_timestamp_type == "LogAppendTime",
            seed=self._seed,
        )
        self._write(decided, (stamped, memoryview(batch.data)[header.header_size :]))
        return LogAppendInfo(decided.base_offset, decided.next_offset - 1, now_wall_ms, False, core.log_start_offset)

    def _write(self, append: Append, buffers: Sequence[Buffer]) -> None:
        try:
            if append.must_roll:
                self._roll()
            segment = self._reader.segments[-1]
            segment.append(buffers, append.size_bytes)
        except OSError as error:
            # Bytes that could not be cut off again may come back as a whole batch after a crash.
            raise append_error(self.name, error, is_unknown=self.segments[-1].has_excess_bytes) from error
        segment.note_position(append.base_offset, self.core.config.index_interval_bytes)
        self.core.written(append)

    def _roll(self) -> None:
        resources = self._resources
        self.segments[-1].cut_excess()
        segment = Segment(resources.files, resources.open_files, self.tp.directory_name, self.core.log_end_offset, self._seed)
        segment.create()
        self.core.rolled(segment)
        self._reader.segments = (*self.segments, segment)

    # Flush

    def prepare_flush(self) -> FlushTask | None:
        """What a flush has to do now; None if nothing is dirty or one is under way."""
        plan = self.core.begin_flush()
        if plan is None:
            return None
        resources = self._resources
        segments = self.segments[-1 - len(plan.sealed) :]
        return FlushTask(resources.files, resources.spares, self.tp.directory_name, self._seed, plan, segments)

    def complete_flush(self, task: FlushTask) -> Moved:
        """After `task.run()` returned. Which ends have moved."""
        task.release(self._resources.open_files)
        moved = self.core.flushed(task.plan, task.outcome)
        if task.derived_error is not None and not self.is_deleted:  # of a deleted one they are gone, and not missed
            logger.warning(
                "%s: could not write index or snapshot (%s); a restart reads more of the log instead", self.name, task.derived_error
            )
        self._resources.moved.add(self)
        return moved

    def fail_flush(self, task: FlushTask, error: OSError) -> None:
        """After `task.run()` raised: the log has stopped. Its readers go on."""
        task.release(self._resources.open_files)
        self.core.flush_failed(task.plan, error)
        self._release_dirty()

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

    # Forgetting, and the end

    def set_log_start(self, offset: int) -> Moved:
        """Moves the log start; it holds once the checkpoint has been written."""
        self._resources.moved.add(self)
        return self.core.set_log_start(offset)

    def roll_if_expired(self, now_wall_ms: int, earliest_append_ms: int) -> bool:
        """Closes the last segment if retention waits for that. True if a flush is due before it can go on. Raises OSError."""
        if must_close_last(self.core, now_wall_ms, earliest_append_ms):
            self._roll()
        return bool(self.core.flushes.sealed) or self.core.snapshots.has_waiting

    def take_removable(self, durable_start: int) -> Sequence[Segment]:
        """Segments that lie below the log start, which the checkpoint on the disk has as `durable_start`. They are no longer
        known here: their files are for the caller to remove.
        """
        count = removable_count(self.core, durable_start)
        removable = self.segments[:count]
        if removable:
            self.core.retired(count)
            self._reader.segments = self.segments[count:]
            self._reader.forget_hints()
        return removable

    def checkpoint_entry(self) -> CheckpointEntry:
        """What the checkpoint says of this log from now on."""
        return self.core.checkpoint_entry()

    def mark_deleted(self) -> None:
        """The topic is gone: appends are refused from now on, descriptors are given back when nobody uses them."""
        self.core.deleted()
        self._release_dirty()
        for segment in self.segments:
            self._resources.open_files.drop(segment.path)

    def _release_dirty(self) -> None:
        for segment in self.segments:
            segment.release_dirty()
