"""The log of one partition: asks the core (core.py), moves the bytes, and reports back to it.

Everything here runs in the event loop but FlushTask.run and `reader` (partition_reader.py). recovery.py reads the log back after a
crash.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from brokerd.config.topic import TopicConfig
from brokerd.errors import LogDamagedError
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.partition.append_error import append_error
from brokerd.partition.core import Append, PartitionCore
from brokerd.partition.entries import CheckpointEntry
from brokerd.partition.flush_task import FlushTask
from brokerd.partition.log_ends import Moved
from brokerd.partition.log_state import LogResources, LogState
from brokerd.partition.markers import marker_of
from brokerd.partition.partition_reader import PartitionReader
from brokerd.partition.producer_state import BatchMetadata, ProducerStates
from brokerd.partition.retention_rules import must_close_last, removable_count
from brokerd.partition.truncation import LogCut
from brokerd.record.batch import RecordBatch
from brokerd.record.header import crc_seed, stamp
from brokerd.storage.damage import damage_error
from brokerd.storage.files import Buffer
from brokerd.storage.segment import Segment

logger = logging.getLogger(__name__)


class LogAppendInfo(NamedTuple):
    """The place of a batch in the log. It is durable once high_watermark > last_offset, also if `is_duplicate`."""

    base_offset: int
    last_offset: int
    append_timestamp: int
    is_duplicate: bool
    log_start_offset: int


class PartitionLog:
    """The shell around a PartitionCore, which holds the state. Properties are those that requests need."""

    def __init__(
        self,
        tp: TopicIdPartition,
        topic: str,
        config: TopicConfig,
        resources: LogResources,
        state: LogState,
        *,
        leader_epoch: int,
        leader_epoch_id: int = 0,
    ) -> None:
        self.tp = tp
        self.topic = topic
        self.name = str(TopicPartition(topic, tp.partition))
        self._seed = crc_seed(tp)
        self._directory = tp.directory_name
        self._resources = resources
        self.core = PartitionCore(self.name, self._seed, config, state, leader_epoch=leader_epoch, leader_epoch_id=leader_epoch_id)
        self.reader = PartitionReader(self.core, self._seed, resources.open_files)
        self.reader.log.segments = tuple(state.segments)
        resources.moved.add(self)

    # State

    @property
    def config(self) -> TopicConfig:
        """The topic's settings."""
        return self.core.config

    @property
    def log_start_offset(self) -> int:
        """The first offset that readers may have."""
        return self.core.ends.log_start_offset

    @property
    def last_stable_offset(self) -> int:
        """Readers of committed records see all below this offset."""
        return self.core.ends.last_stable_offset

    @property
    def high_watermark(self) -> int:
        """All below this offset is durable, and may be read."""
        return self.core.ends.high_watermark

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self.core.log_end_offset

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Segments, oldest first; the last one is appended to."""
        return self.reader.segments

    @property
    def is_deleted(self) -> bool:
        """True if the topic is deleted."""
        return self.core.health.is_deleted

    @property
    def damage(self) -> LogDamagedError | None:
        """The error with which appends are refused because of damage that no operator has accepted; None without such damage."""
        stopping = self.core.health.first_damage(self.core.ends.log_start_offset)
        return damage_error(self.name, stopping) if stopping is not None else None

    # Append

    def append(
        self, batch: RecordBatch, *, now_wall_ms: int, clock_ahead_ms: int = 0, is_open_member: bool = False
    ) -> LogAppendInfo:
        """Writes a batch that has passed `check_produced`. `is_open_member`: its producer is in an open transaction.
        `clock_ahead_ms`: how far the wall clock is ahead of the log time.

        Waits for nothing but the write into the page cache. Raises WireErrors with their fate.
        """
        core = self.core
        decided = core.append_as_leader(batch.header, now_wall_ms, clock_ahead_ms=clock_ahead_ms, is_open_member=is_open_member)
        if isinstance(decided, BatchMetadata):
            return LogAppendInfo(decided.base_offset, decided.last_offset, decided.timestamp, True, core.ends.log_start_offset)
        self._write_stamped(decided, batch)
        return LogAppendInfo(decided.base_offset, decided.next_offset - 1, now_wall_ms, False, core.ends.log_start_offset)

    def append_marker(self, batch: RecordBatch, *, now_wall_ms: int, clock_ahead_ms: int = 0) -> LogAppendInfo:
        """Writes a control batch, which ends transactions here. Raises WireErrors with their fate."""
        marker = marker_of(batch)
        assert marker is not None, "a control batch"
        decided = self.core.append_marker(batch.header, now_wall_ms, marker, clock_ahead_ms=clock_ahead_ms)
        self._write_stamped(decided, batch)
        return LogAppendInfo(decided.base_offset, decided.next_offset - 1, now_wall_ms, False, self.core.ends.log_start_offset)

    def append_as_follower(self, batch: RecordBatch) -> None:
        """Writes the next batch of this log byte for byte as its leader has it. Raises WireErrors with their fate."""
        self._write(self.core.append_as_follower(batch.header, marker=marker_of(batch)), (batch.data,))

    def _write_stamped(self, append: Append, batch: RecordBatch) -> None:
        stamped = stamp(
            batch.header_bytes,
            base_offset=append.base_offset,
            append_timestamp=append.append_timestamp,
            leader_epoch=append.leader_epoch,
            leader_epoch_id=append.leader_epoch_id,
            clock_ahead_s=(append.append_timestamp - append.log_time) // 1_000,
            is_log_append_time=self.core.config.message_timestamp_type == "LogAppendTime",
            seed=self._seed,
        )
        self._write(append, (stamped, memoryview(batch.data)[len(stamped) :]))

    def _write(self, append: Append, buffers: Sequence[Buffer]) -> None:
        try:
            if append.must_roll:
                self._roll()
            segment = self.reader.log.segments[-1]
            segment.append(buffers, append.size_bytes)
        except OSError as error:
            # Bytes that could not be cut off again may come back as a whole batch after a crash.
            raise append_error(self.name, error, is_unknown=self.segments[-1].has_excess_bytes) from error
        segment.note_position(append.base_offset, self.core.config.index_interval_bytes)
        self.core.written(append)

    def _roll(self) -> None:
        resources = self._resources
        self.segments[-1].cut_excess()
        segment = Segment(resources.files, resources.open_files, self._directory, self.core.log_end_offset, self._seed)
        segment.create()
        self.core.rolled(segment)
        self.reader.log.segments = (*self.segments, segment)

    # Flush

    def prepare_flush(self) -> FlushTask | None:
        """Begins a flush, to be run in a thread; None if nothing is dirty or one is under way."""
        plan = self.core.begin_flush()
        if plan is None:
            return None
        resources = self._resources
        segments = self.reader.log.segments[-1 - len(plan.sealed) :]
        return FlushTask(resources.files, resources.spares, self._directory, self._seed, plan, segments)

    def complete_flush(self, task: FlushTask) -> Moved:
        """Ends a flush whose `task.run()` has returned. Returns which ends have moved."""
        task.release(self._resources.open_files)
        moved = self.core.flushed(task.plan, task.outcome)
        if task.derived_error is not None and not self.is_deleted:  # a deleted one needs no files
            logger.warning(
                "%s: could not write index or snapshot (%s); a restart reads more of the log instead", self.name, task.derived_error
            )
        self._resources.moved.add(self)
        return moved

    def fail_flush(self, task: FlushTask, error: OSError) -> None:
        """Ends a flush whose `task.run()` has raised: the log has stopped. Reads continue."""
        task.release(self._resources.open_files)
        self.core.flush_failed(task.plan, error)
        self._release_dirty()

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

    # Retention, truncation, deletion

    def set_log_start(self, offset: int) -> Moved:
        """Moves the log start. It is durable once the checkpoint has been written."""
        self._resources.moved.add(self)
        return self.core.ends.set_log_start(offset)

    def roll_if_expired(self, now_ms: int) -> bool:
        """Closes the last segment if retention needs that. True if retention has to wait for a flush first. Raises OSError."""
        if must_close_last(self.core, now_ms):
            self._roll()
        return bool(self.core.flushes.sealed) or self.core.snapshots.has_waiting

    def take_removable(self, durable_start: int) -> Sequence[Segment]:
        """Takes the segments below the log start out of the log; the caller removes their files. `durable_start`: the log start in
        the checkpoint on the disk.
        """
        count = removable_count(self.core, durable_start)
        removable = self.segments[:count]
        if removable:
            self.core.retired(count)
            self.reader.log.segments = self.segments[count:]
            self.reader.log.forget_hints()
        return removable

    def checkpoint_entry(self) -> CheckpointEntry:
        """This log's entry for the next checkpoint."""
        return self.core.checkpoint_entry()

    def truncate_to(self, offset: int) -> None:
        """Cuts the log where the batch begins that holds `offset`, or ends there, waiting for the disk. No flush may be under way.

        Raises ValueError below the high watermark; StorageError if nothing could be cut; OSError: then the log has stopped.
        """
        self.flush()
        core, resources = self.core, self._resources
        segments, directory = self.segments, self._directory
        truncation = core.truncate_to(offset)
        cut = LogCut(resources.files, resources.open_files, directory, self._seed, segments, truncation)
        producers = ProducerStates(self.name, limit=resources.max_producer_ids)
        cut.read(producers, core.config.index_interval_bytes)
        core.truncated(truncation, cut.last, producers)
        self.reader.log.segments = (*segments[: truncation.kept - 1], cut.last)
        self.reader.log.forget_hints()
        resources.moved.add(self)
        try:
            # First of all, so that a start does not miss what is about to be removed.
            resources.write_checkpoint()
            cut.make(core.epochs.entries)
        except OSError as error:
            core.failed(error)
            raise

    def mark_deleted(self) -> None:
        """Refuses appends from now on, since the topic is deleted, and closes files when they are no longer in use."""
        self.core.deleted()
        self._release_dirty()
        for segment in self.segments:
            self._resources.open_files.drop(segment.path)

    def _release_dirty(self) -> None:
        for segment in self.segments:
            segment.release_dirty()
