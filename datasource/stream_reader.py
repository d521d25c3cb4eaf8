"""spark.readStream. A thin layer over offset_reader.py and planning.py, which plan batches, and partition_reader.py, which reads.

One driver process calls everything but read() for the life of a query; read() runs in tasks, on a copy of the reader. Connections
come from the client's per-process cache.

Between latestOffset and partitions, Spark writes the batch's end into the checkpoint. Meanwhile a thread plans the batch and reads
its rows, if they are few. The result is the same: the two offsets alone determine the rows of a batch, and a plan that Spark does
not request is dropped.
"""

from __future__ import annotations

import inspect
import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

from brokerd.arguments import OffsetAndMetadata
from brokerd.client.blocking import BlockingClient, LoopCall
from brokerd.client.fetching import FetchRange
from brokerd.client.groups import commit_group_offsets
from brokerd.client.leases import lease_client
from brokerd.clock import Clock
from brokerd.datasource.offset_reader import OffsetReader, report_unread, require_topics
from brokerd.datasource.offsets import INITIAL, SourceOffset, nested, parse_source_offset
from brokerd.datasource.options import SourceOptions
from brokerd.datasource.partition_reader import read_partition, read_ranges
from brokerd.datasource.planning import (
    RangePartition,
    TopicState,
    begun_at,
    continue_from,
    limit_rows,
    ranges_between,
    report_losses,
    topic_ids_after,
)
from brokerd.errors import BrokerdError, BrokerUnreachableError, LogTruncationError, UnknownTopicIdError, WireError
from brokerd.ids import TopicIdPartition, TopicPartition

# How long latestOffset waits for new records: Spark would otherwise call it a hundred times a second.
IDLE_WAIT_MS = 300
# After an empty answer, Spark polls again within this time (every 10 ms) if no source has rows; after a batch, it takes longer.
_POLLED_AGAIN_MS = 50
# How long later batches reuse the looked-up topics and partitions; in a backlog, their end offsets too.
LOOK_UP_MS = 200
# Most rows, and decompressed bytes, that travel with the plan of a batch.
ROWS_WITH_PLAN = 5_000
BYTES_WITH_PLAN = 2_097_152
# Decay of the remembered row size per batch that tasks read: one large row must not keep all later batches from their plans.
_KEPT_OF_ROW_BYTES = 0.9
# How long a query with trigger(availableNow=True) waits at its end for its position to be recorded, before its process ends.
_FINISH_MS = 1_000
RETRY_MS = 10_000  # pause after a failed request to record positions
REFRESH_MS = 3_600_000  # interval at which all positions are sent again, so that the group does not expire

logger = logging.getLogger(__name__)


class _Plan(NamedTuple):
    """The tasks of a batch, and its rows if they were read with the plan."""

    tasks: list[RangePartition]
    rows: list[pa.RecordBatch] | None = None


class _PlanAhead(NamedTuple):
    """The plan, still being made, of the batch between two offsets."""

    start: dict[str, Any]
    end: dict[str, Any]
    plan: Future[_Plan]


class BrokerdStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches; offsets are kept in Spark's checkpoint. `takes_rows`: whether Spark accepts the rows of a batch with its
    plan."""

    def __init__(self, options: SourceOptions, schema: pa.Schema, clock: Clock, *, takes_rows: bool = True) -> None:
        self._options = options
        self._schema = schema
        self._clock = clock
        self._takes_rows = takes_rows and _TAKES_ROWS
        self._last_batch_ms: int | None = None  # monotonic; None until the first batch
        self._empty_ms: int | None = None  # monotonic; when the last call of latestOffset found no batch
        self._target: TopicState | None = None  # trigger(availableNow=True): where the query ends
        self._seen: TopicState | None = None  # the last snapshot
        self._looked_up_ms = clock.monotonic_ms()  # when its topics and partitions were looked up
        self._new_source_id = str(uuid.uuid4())  # for a checkpoint without one
        self._time_starts: dict[TopicIdPartition, int] = {}  # first offsets at or after the start time of option where
        self._progress = GroupProgress(clock)
        self._ahead: _PlanAhead | None = None  # for the next call of `partitions`
        self._rows: list[pa.RecordBatch] = []  # of the batch that was just planned
        self._row_bytes = 0.0  # of rows too large to travel with a plan, so that later batches are not read twice

    def __reduce__(self) -> tuple[type[BrokerdStreamReader], tuple[SourceOptions, pa.Schema, Clock]]:
        """Tasks get a new reader."""
        return type(self), (self._options, self._schema, self._clock)

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
        """Fixes the offsets at which this run ends. latestOffset checks for missing topics, because it knows the checkpoint."""
        with lease_client(self._options.consumer) as client:
            self._target = self._look(OffsetReader(client, self._options))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the batch that starts at `start`; `start` itself if there is no batch, after a wait of at most IDLE_WAIT_MS
        if the query is idle.

        Raises DataLossError, UnknownTopicOrPartitionError, BrokerUnreachableError, ConfigError.
        """
        self._take_plan()
        previous = parse_source_offset(start)
        with lease_client(self._options.consumer) as client:
            reader = OffsetReader(client, self._options)
            snapshot = self._current(reader, previous, limit)
            try:
                end = self._next(previous, snapshot, limit, reader)
            except LogTruncationError:  # since that snapshot; failOnDataLoss applies to losses in a new one
                snapshot = self._look(reader, previous) if self._target is None else reader.checked(self._target, previous)
                end = self._next(previous, snapshot, limit, reader)
            if end is None:
                self._record(client, previous, is_last=self._target is not None)
            if end is None and self._target is None and self._is_idle():
                reader.wait_for_records(snapshot, timeout_ms=IDLE_WAIT_MS)
                snapshot = self._look(reader, previous)
                end = self._next(previous, snapshot, limit, reader)
            if end is None:
                self._empty_ms = self._clock.monotonic_ms()
                return start
        self._last_batch_ms = self._clock.monotonic_ms()
        found = end.to_json()
        self._ahead = _PlanAhead(start, found, _in_thread(lambda: self._prepared(previous, end)))
        return found

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The readable end of each partition, regardless of limits, for the query's progress report."""
        return None if self._seen is None else nested(self._seen.latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges of each task. The two offsets alone determine the rows, so a replayed batch has the same rows, even if tasks
        now read what this process read before, or the other way round."""
        ahead = self._take_plan()
        if ahead is not None and ahead.start == start and ahead.end == end:
            plan = ahead.plan.result()
        else:
            plan = self._planned(parse_source_offset(start), parse_source_offset(end))
        if plan.rows is not None:
            self._rows = plan.rows
            self.__class__ = _ReaderWithRows
        return plan.tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task's ranges."""
        return read_partition(partition, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: offsets are in Spark's checkpoint, and Spark calls this one batch late and never for the last batch."""

    def stop(self) -> None:
        """Does nothing: connections belong to the process, which Spark ends."""

    def _is_idle(self) -> bool:
        """True if no source of the query had rows at Spark's last poll. Otherwise another source may have rows now, and Spark polls
        the sources in turn before it plans a batch."""
        return self._empty_ms is not None and self._clock.monotonic_ms() - self._empty_ms <= _POLLED_AGAIN_MS

    def _recent(self, previous: SourceOffset) -> TopicState | None:
        """The last snapshot, if its look-up is recent and found exactly the topics and partitions of `previous`. A missing topic
        may be hidden or deleted, and only a new look-up can tell which."""
        seen = self._seen
        if seen is None or self._clock.monotonic_ms() - self._looked_up_ms > LOOK_UP_MS:
            return None
        is_same = seen.topic_ids == previous.topic_ids and seen.latest.keys() == previous.offsets.keys()
        return seen if is_same else None

    def _take_plan(self) -> _PlanAhead | None:
        """Waits for the plan that was made ahead, and returns it. Only one thread at a time may use the state that plans share."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.plan.exception()
        return ahead

    def _prepared(self, start: SourceOffset, end: SourceOffset) -> _Plan:
        """Runs while Spark writes the batch's end: records its start as the group's offsets, and plans the batch."""
        with lease_client(self._options.consumer) as client:
            self._record(client, start)
        return self._planned(start, end)

    def _record(self, client: BlockingClient, position: SourceOffset, *, is_last: bool = False) -> None:
        group_id = self._options.group_id_of(position.source_id)
        if group_id is not None:
            self._progress.record(client, group_id, position)
            if is_last:
                self._progress.finish(client, group_id, timeout_ms=_FINISH_MS)

    def _current(self, reader: OffsetReader, previous: SourceOffset, limit: ReadLimit) -> TopicState:
        """The snapshot to plan a batch from."""
        if self._target is not None:
            if not previous.offsets.keys() <= self._target.latest.keys():
                # An earlier run read partitions that are gone, or that the node that answered does not know yet.
                self._target = self._look(reader, previous)
            return reader.checked(self._target, previous)
        seen = self._recent(previous)
        return seen if seen is not None and self._suffices(seen, previous, limit) else self._look(reader, previous)

    def _suffices(self, seen: TopicState, previous: SourceOffset, limit: ReadLimit) -> bool:
        """True if a recent snapshot has as many rows as the limit allows: a backlog needs no look-up for each batch. The reads
        report records that were lost since."""
        if not isinstance(limit, ReadMaxRows) or self._options.max_bytes_per_trigger is not None:
            return False
        return not seen.truncations and self._waiting(previous.offsets, seen) >= limit.max_rows

    def _look(self, reader: OffsetReader, previous: SourceOffset = INITIAL) -> TopicState:
        """The current topics and offsets. Warns if options name others."""
        known = self._recent(previous)
        if known is None:
            self._looked_up_ms = self._clock.monotonic_ms()
        snapshot = reader.snapshot(previous, known)
        report_unread(self._options, snapshot, self._seen)
        self._seen = snapshot
        return snapshot

    def _next(self, previous: SourceOffset, snapshot: TopicState, limit: ReadLimit, reader: OffsetReader) -> SourceOffset | None:
        """The end of the next batch; None if there is nothing new, or too little (minOffsetsPerTrigger)."""
        require_topics(snapshot, self._options.subscription.option, previous.topic_ids)
        if previous.is_initial:
            begins = reader.resolve(self._options.starting, snapshot, now_ms=self._clock.wall_ms())
            begins, losses = begun_at(begins, snapshot, self._options.where.reads)
            starts = begins
        else:
            reader.require_not_hidden(previous.topic_ids, snapshot)
            known = reader.with_log_ends(snapshot, previous.offsets)
            begins, starts, losses = continue_from(previous, known, self._options.where.reads)
        report_losses(losses, fail=self._options.fail_on_data_loss)
        if losses:
            self._time_starts.clear()  # a log that has lost its tail assigns the same offsets to other records
        ends = self._limited(begins, snapshot, limit, reader)
        source_id = previous.source_id or self._new_source_id
        kept = {tp: one for tp, one in previous.epochs.items() if tp not in starts and ends.get(tp) == previous.offsets[tp]}
        moved = {tp: end for tp, end in ends.items() if tp not in kept}
        epochs = kept | reader.epochs_before(snapshot, moved, previous)
        end = SourceOffset(ends, topic_ids_after(previous, snapshot, begins), starts, source_id=source_id, epochs=epochs)
        is_same = not previous.is_initial and not starts and end.offsets == previous.offsets
        # A loss alone makes a batch: without one, each call would report the loss again.
        return None if is_same or (not losses and self._is_too_small(begins, snapshot)) else end

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

    def _planned(self, start: SourceOffset, end: SourceOffset) -> _Plan:
        """The plan of a batch, with its rows if it is small."""
        with lease_client(self._options.consumer) as client:
            reader = OffsetReader(client, self._options)
            ranges = reader.cut(ranges_between(start, end), self._time_starts)
            rows = self._rows_of(client, ranges) if self._options.shares_tasks else None
            return _Plan(reader.tasks(ranges)) if rows is None else _Plan([RangePartition(ranges)], rows)

    def _rows_of(self, client: BlockingClient, ranges: Sequence[FetchRange]) -> list[pa.RecordBatch] | None:
        """The rows of a small batch; None if tasks must read it. If the read fails, tasks read the batch and report the error.
        Raises BrokerUnreachableError: tasks would only wait for the broker again."""
        count = sum(one.size for one in ranges)
        if not self._takes_rows or not 0 < count <= ROWS_WITH_PLAN:
            return None
        if count * self._row_bytes > BYTES_WITH_PLAN:
            self._row_bytes *= _KEPT_OF_ROW_BYTES
            return None
        rows: list[pa.RecordBatch] = []
        size_bytes = 0
        try:
            for arrow_batch in read_ranges(client, ranges, self._options, self._schema):
                rows.append(arrow_batch)
                size_bytes += arrow_batch.nbytes
                if size_bytes > BYTES_WITH_PLAN:
                    self._row_bytes = size_bytes / sum(one.num_rows for one in rows)
                    return None
        except BrokerUnreachableError:
            raise
        except BrokerdError as error:
            logger.info("tasks read this batch, because it could not be read with its plan: %s", error)
            return None
        return rows

    def _wanted(self, begins: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The partitions that option `where` does not exclude."""
        return {tp: begin for tp, begin in begins.items() if self._options.where.reads(tp)}

    def _is_too_small(self, begins: Mapping[TopicPartition, int], snapshot: TopicState) -> bool:
        """True if the batch must wait for more records. With a target, at which the query ends, any number of records is read."""
        if self._options.min_offsets_per_trigger is None or self._target is not None or self._last_batch_ms is None:
            return False
        waited_ms = self._clock.monotonic_ms() - self._last_batch_ms
        is_delayed = waited_ms >= self._options.max_trigger_delay_ms
        return not is_delayed and self._waiting(begins, snapshot) < self._options.min_offsets_per_trigger

    def _waiting(self, begins: Mapping[TopicPartition, int], snapshot: TopicState) -> int:
        """Number of offsets of the snapshot that are still to read."""
        return sum(max(0, snapshot.latest[tp] - begin) for tp, begin in self._wanted(begins).items())


class GroupProgress:
    """Commits a query's positions as offsets of a group, so that the broker shows its lag like that of any consumer. Not
    thread-safe.

    The checkpoint decides where a query resumes; the group is for monitoring only. Recording therefore never delays or fails a
    query: at most one request is in flight, only changes are sent, and errors are logged as warnings. The recorded position is the
    start of the next batch: Spark requests a batch when the previous one is done and checkpointed.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._under_way: LoopCall[dict[TopicIdPartition, WireError]] | None = None
        self._offered: dict[TopicIdPartition, OffsetAndMetadata] = {}
        self._done: dict[TopicIdPartition, OffsetAndMetadata] = {}  # recorded, or refused for good
        self._retry_at_ms = clock.monotonic_ms()
        self._refresh_at_ms = clock.monotonic_ms() + REFRESH_MS
        self._has_warned = False

    def record(self, client: BlockingClient, group_id: str, position: SourceOffset) -> None:
        """Sends the positions changed since the last request, unless one is in flight; returns at once and raises nothing."""
        self._settle(group_id)
        now_ms = self._clock.monotonic_ms()
        if self._under_way is not None or now_ms < self._retry_at_ms:
            return
        if now_ms >= self._refresh_at_ms:
            self._done, self._refresh_at_ms = {}, now_ms + REFRESH_MS
        offsets = {
            TopicIdPartition(position.topic_ids[tp.topic], tp.partition): OffsetAndMetadata(
                offset, leader_epoch_id=position.epochs.get(tp, 0)
            )
            for tp, offset in position.offsets.items()
        }
        self._offered = {tp: one for tp, one in offsets.items() if self._done.get(tp) != one}
        if self._offered:
            self._under_way = client.loop_thread.submit(commit_group_offsets(client.broker_client, group_id, self._offered))

    def finish(self, client: BlockingClient, group_id: str, *, timeout_ms: int) -> None:
        """Waits for the request in flight when a query ends; raises nothing."""
        if self._under_way is not None and not self._under_way.has_ended:
            client.loop_thread.run(self._under_way.ended(timeout_ms))
        self._settle(group_id)

    def _settle(self, group_id: str) -> None:
        """Handles the outcome of the request in flight, if it has ended."""
        under_way = self._under_way
        if under_way is None or not under_way.has_ended:
            return
        self._under_way = None
        try:
            refused = under_way.outcome()
        except CancelledError:  # an idle client was closed
            return
        except Exception as error:  # no error may stop the query
            self._retry_at_ms = self._clock.monotonic_ms() + RETRY_MS
            self._warn(group_id, error)
            return
        self._done |= self._offered
        refusals = [error for error in refused.values() if not isinstance(error, UnknownTopicIdError)]  # planning reports it
        if refusals:
            self._warn(group_id, refusals[0])

    def _warn(self, group_id: str, error: Exception) -> None:
        if not self._has_warned:
            logger.warning("cannot record the positions of this query as group '%s'; reading continues: %s", group_id, error)
        self._has_warned = True


def _in_thread(make: Callable[[], _Plan]) -> Future[_Plan]:
    """Runs `make` in a thread of its own."""
    future: Future[_Plan] = Future()

    def run() -> None:
        try:
            future.set_result(make())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="brokerd-plan", daemon=True).start()
    return future


class _ReaderWithRows(BrokerdStreamReader, _SimpleStreamReaderWrapper):
    """The reader's class from the end of `partitions` until Spark has taken the rows that were read there.

    PySpark takes rows with a plan only from its own wrapper of simple readers, which reports no latestOffset for the query's
    progress and has no limits. So the reader becomes that wrapper for this one step, which follows `partitions` in the same
    function (partitions_func of python_streaming_source_runner). Spark's block manager keeps the rows; a task that does not find
    them there reads the planned ranges.
    """

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:  # noqa: ARG002, N802 (Spark's signature)
        """The rows of the batch that `partitions` has just planned."""
        self.__class__ = BrokerdStreamReader  # type: ignore[assignment]
        rows, self._rows = self._rows, []
        return iter(rows)


# False if another version of PySpark does this differently; then tasks read every batch.
_TAKES_ROWS = list(inspect.signature(getattr(_SimpleStreamReaderWrapper, "getCache", len)).parameters) == ["self", "start", "end"]
