"""spark.readStream. A thin layer over offset_reader.py and planning.py, which plan batches, and partition_reader.py, which reads.

One driver process calls everything but read() for the life of a query; read() runs in tasks, on a pickled copy of the reader.
__init__ therefore keeps only picklable values, and connections come from the client's per-process cache.
"""

from __future__ import annotations

import inspect
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

from brokerd.client.blocking import BlockingClient
from brokerd.client.leases import lease_client
from brokerd.clock import Clock
from brokerd.datasource.offset_reader import OffsetReader, report_unread
from brokerd.datasource.offsets import INITIAL, SourceOffset, parse_source_offset, user_json
from brokerd.datasource.options import SourceOptions
from brokerd.datasource.partition_reader import RangePartition, read_partition, read_ranges
from brokerd.datasource.planning import (
    OffsetRange,
    TopicState,
    continue_from,
    group_ranges,
    limit_rows,
    passed_by,
    ranges_between,
    report_losses,
    require_topics,
    split_ranges,
    topic_ids_after,
)
from brokerd.datasource.progress import GroupProgress
from brokerd.datasource.row_filter import ALL_ROWS
from brokerd.errors import BrokerdError
from brokerd.ids import TopicIdPartition, TopicPartition

# How long latestOffset waits for new records: Spark would otherwise call it a hundred times a second.
IDLE_WAIT_MS = 300
# Most rows, and bytes once decompressed, that travel with the plan of a batch.
ROWS_WITH_PLAN = 5_000
BYTES_WITH_PLAN = 2_097_152
# What a batch that tasks read leaves of the size of a row: one large row must not keep all later batches from their plans.
_KEPT_OF_ROW_BYTES = 0.9
# How long a query with trigger(availableNow=True) may take at its end to record its position, before its process ends.
_FINISH_MS = 1_000


logger = logging.getLogger(__name__)


class BrokerdStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches; offsets are kept in Spark's checkpoint."""

    def __init__(self, options: SourceOptions, schema: pa.Schema, clock: Clock) -> None:
        self._options = options
        self._schema = schema
        self._clock = clock
        self._last_batch_ms: int | None = None  # monotonic; None until the first batch
        self._target: TopicState | None = None  # trigger(availableNow=True): where the query ends
        self._seen: TopicState | None = None  # the last snapshot
        self._new_source_id: str | None = None  # for a checkpoint without one
        self._time_starts: dict[TopicIdPartition, int] = {}  # the first offsets at or after the start time of option where
        self._progress = GroupProgress(clock)
        self._rows: list[pa.RecordBatch] = []  # of the batch that is being planned
        self._row_bytes = 0.0  # of rows that proved too large to be read with a plan, so that the next are not read twice

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """A symbolic offset for startingOffsets; offsets.py says why it is not resolved yet."""
        return INITIAL.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """maxOffsetsPerTrigger, else maxBytesPerTrigger, else no limit. Spark has no combined limit."""
        max_rows, max_bytes = self._options.max_offsets_per_trigger, self._options.max_bytes_per_trigger
        if max_rows is not None:
            return ReadMaxRows(max_rows)
        return ReadAllAvailable() if max_bytes is None else ReadMaxBytes(max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fixes the offsets at which this run ends. latestOffset checks for missing topics, because it gets the checkpoint."""
        with lease_client(self._options.consumer) as client:
            self._target = self._look(OffsetReader(client, self._options))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the batch that starts at `start`; `start` itself if there is no batch after a wait of at most IDLE_WAIT_MS.

        Raises DataLossError, UnknownTopicOrPartitionError, BrokerUnreachableError, ConfigError.
        """
        previous = parse_source_offset(start)
        with lease_client(self._options.consumer) as client:
            group_id = self._options.group_id_of(previous.source_id)
            if group_id is not None:
                self._progress.record(client, group_id, previous)
            reader = OffsetReader(client, self._options)
            snapshot = self._look(reader, previous) if self._target is None else reader.checked(self._target, previous)
            end = self._next(previous, snapshot, limit, reader)
            if end is None and self._target is None:
                reader.wait_for_records(snapshot, timeout_ms=IDLE_WAIT_MS)
                snapshot = self._look(reader, previous)
                end = self._next(previous, snapshot, limit, reader)
            if end is None and self._target is not None and group_id is not None:
                self._progress.finish(client, group_id, timeout_ms=_FINISH_MS)
        if end is None:
            return start
        self._last_batch_ms = self._clock.monotonic_ms()
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The readable end of each partition, regardless of limits, for the query's progress report."""
        return None if self._seen is None else user_json(self._seen.latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges of each task. The two offsets alone determine the rows, so that a replayed batch is the same; who reads them
        may differ. The rows of a small batch are read here and travel with the plan."""
        options = self._options
        ranges = ranges_between(parse_source_offset(start), parse_source_offset(end))
        sizes_bytes: dict[TopicPartition, int] = {}
        if options.where != ALL_ROWS or options.shares_tasks:
            with lease_client(options.consumer) as client:
                reader = OffsetReader(client, options)
                if options.where != ALL_ROWS:
                    ranges = reader.cut(ranges, options.where, self._time_starts)
                if options.shares_tasks:
                    if self._has_read(client, ranges):
                        return [RangePartition(ranges)]
                    sizes_bytes = reader.sizes_bytes(ranges) if len(ranges) > 1 else {}
        pieces = split_ranges(
            ranges, min_partitions=options.min_partitions, max_records_per_partition=options.max_records_per_partition
        )
        return [RangePartition(group) for group in group_ranges(pieces, sizes_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task's ranges."""
        return read_partition(partition, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: offsets are in Spark's checkpoint, and this call lags a batch and never comes for the last one."""

    def stop(self) -> None:
        """Does nothing: connections belong to the process, which Spark ends."""

    def _look(self, reader: OffsetReader, previous: SourceOffset = INITIAL) -> TopicState:
        """The current topics and offsets. Warns if options name others."""
        snapshot = reader.snapshot(previous)
        report_unread(self._options, snapshot, self._seen)
        self._seen = snapshot
        return snapshot

    def _next(self, previous: SourceOffset, snapshot: TopicState, limit: ReadLimit, reader: OffsetReader) -> SourceOffset | None:
        """The end of the next batch; None if there is nothing new, or too little (minOffsetsPerTrigger)."""
        require_topics(snapshot, self._options.subscription.option, previous.topic_ids)
        if previous.is_initial:
            begins = starts = reader.resolve(self._options.starting, snapshot, now_ms=self._clock.wall_ms())
            losses = passed_by(self._wanted(begins), snapshot)
            begins = starts = {tp: max(begin, snapshot.earliest[tp]) for tp, begin in begins.items()}
        else:
            reader.require_not_hidden(previous.topic_ids, snapshot)
            known = reader.with_log_ends(snapshot, previous.offsets)
            begins, starts, losses = continue_from(previous, known, self._options.where.reads)
        report_losses(losses, fail=self._options.fail_on_data_loss)
        if losses:
            self._time_starts.clear()  # a log that has lost its tail assigns the same offsets to other records
        ends = self._limited(begins, snapshot, limit, reader)
        source_id = previous.source_id or self._own_source_id()
        kept = {tp: one for tp, one in previous.epochs.items() if tp not in starts and ends.get(tp) == previous.offsets[tp]}
        moved = {tp: end for tp, end in ends.items() if tp not in kept}
        epochs = kept | reader.epochs_before(snapshot, moved, previous)
        end = SourceOffset(ends, topic_ids_after(previous, snapshot, begins), starts, source_id=source_id, epochs=epochs)
        is_same = not previous.is_initial and not starts and end.offsets == previous.offsets
        return None if is_same or self._is_too_small(begins, snapshot) else end

    def _limited(
        self, begins: Mapping[TopicPartition, int], snapshot: TopicState, limit: ReadLimit, reader: OffsetReader
    ) -> dict[TopicPartition, int]:
        """The end offsets of the batch, within both the row and the byte limit, unless Spark requests all available records.
        Partitions excluded by option `where` do not count towards either."""
        passed = limit_rows(begins, snapshot.latest, None)
        begins = self._wanted(begins)
        ends = limit_rows(begins, snapshot.latest, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        max_bytes = self._options.max_bytes_per_trigger
        if max_bytes is not None and not isinstance(limit, ReadAllAvailable):
            ends = reader.limit_bytes(snapshot, begins, ends, max_bytes)
        return passed | ends

    def _has_read(self, client: BlockingClient, ranges: Sequence[OffsetRange]) -> bool:
        """Reads the rows of a small batch and hands them to Spark. If that fails, tasks read the batch, and report why."""
        count = sum(one.size for one in ranges)
        if not _TAKES_ROWS or not 0 < count <= ROWS_WITH_PLAN:
            return False
        if count * self._row_bytes > BYTES_WITH_PLAN:
            self._row_bytes *= _KEPT_OF_ROW_BYTES
            return False
        rows: list[pa.RecordBatch] = []
        size_bytes = 0
        try:
            for arrow_batch in read_ranges(client, ranges, self._options, self._schema):
                rows.append(arrow_batch)
                size_bytes += arrow_batch.nbytes
                if size_bytes > BYTES_WITH_PLAN:
                    self._row_bytes = size_bytes / sum(one.num_rows for one in rows)
                    return False
        except BrokerdError as error:
            logger.info("tasks read this batch, because it could not be read with its plan: %s", error)
            return False
        self._rows = rows
        self._become(_ReaderWithRows)
        return True

    def _become(self, kind: type[BrokerdStreamReader]) -> None:
        self.__class__ = kind

    def _wanted(self, begins: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The partitions that option `where` does not exclude."""
        return {tp: begin for tp, begin in begins.items() if self._options.where.reads(tp)}

    def _own_source_id(self) -> str:
        if self._new_source_id is None:
            self._new_source_id = str(uuid.uuid4())
        return self._new_source_id

    def _is_too_small(self, begins: Mapping[TopicPartition, int], snapshot: TopicState) -> bool:
        """True if the batch must wait for more records. With a target, where the query ends, any amount up to it is read."""
        if self._options.min_offsets_per_trigger is None or self._target is not None or self._last_batch_ms is None:
            return False
        waited_ms = self._clock.monotonic_ms() - self._last_batch_ms
        waiting = sum(max(0, snapshot.latest[tp] - begin) for tp, begin in self._wanted(begins).items())
        return waiting < self._options.min_offsets_per_trigger and waited_ms < self._options.max_trigger_delay_ms


class _ReaderWithRows(BrokerdStreamReader, _SimpleStreamReaderWrapper):
    """The reader from the end of `partitions` until Spark has taken the rows that were read there.

    PySpark takes rows with a plan only from its own wrapper of simple readers, for which it knows no latestOffset in the query's
    progress and no limits. So the reader is that wrapper for this one step, which follows `partitions` in the same function
    (partitions_func of python_streaming_source_runner). Spark's block manager keeps the rows; a task that does not find them there
    reads the planned ranges.
    """

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:  # noqa: ARG002, N802 (Spark's signature)
        """The rows of the batch that `partitions` has just planned."""
        self._become(BrokerdStreamReader)
        rows, self._rows = self._rows, []
        return iter(rows)


# Another PySpark may do this otherwise; then tasks read every batch.
_TAKES_ROWS = list(inspect.signature(getattr(_SimpleStreamReaderWrapper, "getCache", len)).parameters) == ["self", "start", "end"]
