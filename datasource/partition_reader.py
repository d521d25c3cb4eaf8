"""Reads ranges of offsets, usually in a task, as Arrow batches in the offset order of each partition. All operations are columnar.

Constant columns are built once and sliced; large batches are cut to a size that suits the JVM; small batches are merged, because
each batch costs Spark about as much as a thousand rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from brokerd.allocator import tune_spark_worker
from brokerd.client.blocking import BlockingClient
from brokerd.client.columns import FetchedBatch
from brokerd.client.fetching import FetchRange, PartitionFetcher
from brokerd.client.leases import lease_client
from brokerd.client.offsets import READ_UNCOMMITTED, OffsetSpec
from brokerd.datasource.offset_reader import require_not_hidden
from brokerd.datasource.options import SourceOptions
from brokerd.datasource.planning import RangePartition, range_gone, report_losses
from brokerd.datasource.where import ALL_ROWS, wanted_rows
from brokerd.errors import LogTruncationError, OffsetOutOfRangeError, UnknownTopicIdError, WireError
from brokerd.ids import TopicIdPartition
from brokerd.record.schema import HEADERS, SCHEMA_0

logger = logging.getLogger(__name__)

ROWS_PER_BATCH = 10_000
BYTES_PER_BATCH = 4_194_304
_SMALL_ROWS = 2_000
_SMALL_BYTES = 262_144
_HELD_BYTES = 67_108_864


def read_partition(partition: InputPartition, options: SourceOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of the ranges of one task; see `read_ranges`."""
    if not isinstance(partition, RangePartition):  # Spark creates a dummy partition if a batch read has none
        return
    tune_spark_worker()
    with lease_client(options.consumer) as client:
        yield from read_ranges(client, partition.ranges, options, schema)


def read_ranges(
    client: BlockingClient, ranges: Sequence[FetchRange], options: SourceOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of ranges of different partitions, in the columns of `schema`: range by range, each in offset order.

    Raises DataLossError if records are gone, LogDamagedError if they are damaged; with failOnDataLoss=false it yields the remaining
    records instead, unless the end of the damage is unknown. Raises BrokerUnreachableError, CorruptMessageError.
    """
    shapers = {one.tp: _Shaper(one, schema) for one in ranges}
    fetched = _counted(ranges, _fetched(client, ranges, options))
    batches: Iterator[FetchedBatch | None] = fetched if len(ranges) == 1 else _by_range(list(shapers), fetched)
    if options.where != ALL_ROWS:
        batches = (wanted_rows(one, options.where) for one in batches if one is not None)
    parts = (part for kept in batches if kept is not None for part in kept.parts(BYTES_PER_BATCH, ROWS_PER_BATCH))
    yield from _joined(shapers[part.tp].shape(part) for part in parts)


def _counted(ranges: Sequence[FetchRange], batches: Iterator[FetchedBatch]) -> Iterator[FetchedBatch]:
    """Passes the batches through, and logs their total size in bytes at the end."""
    size_bytes = 0
    for fetched in batches:
        size_bytes += fetched.header.size
        yield fetched
    if logger.isEnabledFor(logging.INFO):
        logger.info("%s: %d bytes of record batches were read", ", ".join(map(str, ranges)), size_bytes)


def _by_range(tps: Sequence[TopicIdPartition], batches: Iterator[FetchedBatch]) -> Iterator[FetchedBatch]:
    """Groups the batches by range, in the order of `tps`, so that a replay gives rows in the same order. Only small ranges share a
    task. If they decompress to more than _HELD_BYTES, they are passed on in several rounds: then only the order within a partition
    is the same."""
    held: dict[TopicIdPartition, list[FetchedBatch]] = {tp: [] for tp in tps}
    size_bytes = 0
    for fetched in batches:
        held[fetched.tp].append(fetched)
        size_bytes += fetched.arrow_batch.nbytes
        if size_bytes > _HELD_BYTES:
            for waiting in held.values():
                yield from waiting
                waiting.clear()
            size_bytes = 0
    for waiting in held.values():
        yield from waiting


def _fetched(client: BlockingClient, ranges: Sequence[FetchRange], options: SourceOptions) -> Iterator[FetchedBatch]:
    """The records of ranges. If one of several ranges cannot be read as planned, the rest of each is read by itself."""
    if len(ranges) == 1:
        yield from _fetched_alone(client, ranges[0], options)
        return
    with PartitionFetcher(client, ranges, options.consumer, goes_past_damage=not options.fail_on_data_loss) as fetcher:
        try:
            yield from fetcher
            return
        except (OffsetOutOfRangeError, LogTruncationError, UnknownTopicIdError):
            left = zip(ranges, fetcher.next_offsets, strict=True)
    for one, next_offset in left:
        yield from _fetched_alone(client, one._replace(start_offset=next_offset), options)


def _fetched_alone(client: BlockingClient, wanted: FetchRange, options: SourceOptions) -> Iterator[FetchedBatch]:
    """The records of one range, in offset order."""
    left = wanted
    while left.start_offset < left.until_offset:
        with PartitionFetcher(client, [left], options.consumer, goes_past_damage=not options.fail_on_data_loss) as fetcher:
            try:
                yield from fetcher
                return
            except OffsetOutOfRangeError as error:
                (next_offset,) = fetcher.next_offsets
                if error.log_start_offset <= next_offset:  # not retention: the log ends before the range does
                    log_end = client.list_offsets({left.tp: OffsetSpec.LATEST}, READ_UNCOMMITTED)[left.tp]
                    if isinstance(log_end, WireError) or log_end.offset > next_offset:  # the rest is undecided, not gone
                        raise
                    gone = f"offsets {next_offset} to {left.until_offset - 1} were to be read: the log has lost its tail"
                    _report(f"{left.name} ends at offset {log_end.offset}, but {gone}", options)
                    return
                gone_until = min(error.log_start_offset, left.until_offset)
                _report(range_gone(left.name, next_offset, gone_until), options)
                left = left._replace(start_offset=gone_until)
            except LogTruncationError as error:
                # Read only what the two histories share; planning continues from there.
                (next_offset,) = fetcher.next_offsets
                _report(f"{error.message}; offsets {next_offset} to {wanted.until_offset - 1} were to be read", options)
                shared_until = min(left.until_offset, error.resume_offset)
                left = left._replace(start_offset=next_offset, until_offset=shared_until, end=None)
            except UnknownTopicIdError:
                require_not_hidden(client, [wanted.topic])
                (next_offset,) = fetcher.next_offsets
                ended = f"topic '{wanted.topic}' was deleted, and perhaps recreated"
                loss = f"{ended}: offsets {next_offset} to {wanted.until_offset - 1} of {wanted.name} were not read"
                _report(loss, options)
                return


def _report(loss: str, options: SourceOptions) -> None:
    report_losses([loss], fail=options.fail_on_data_loss, is_planned_once=not options.is_streaming)


def _joined(arrow_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, with consecutive small batches merged. Merging never waits for new records: all offsets of a range already
    exist."""
    small: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for arrow_batch in arrow_batches:
        batch_rows, batch_bytes = arrow_batch.num_rows, arrow_batch.nbytes
        is_small = batch_rows < _SMALL_ROWS and batch_bytes < _SMALL_BYTES
        if small and (not is_small or rows + batch_rows > ROWS_PER_BATCH or size_bytes + batch_bytes > BYTES_PER_BATCH):
            yield small[0] if len(small) == 1 else pa.concat_batches(small)
            small, rows, size_bytes = [], 0, 0
        if is_small:
            small.append(arrow_batch)
            rows += batch_rows
            size_bytes += batch_bytes
        else:
            yield arrow_batch
    if small:
        yield small[0] if len(small) == 1 else pa.concat_batches(small)


class _Shaper:
    """Converts fetched records to batches of the schema that Spark expects."""

    def __init__(self, wanted: FetchRange, schema: pa.Schema) -> None:
        self._schema = schema
        rows = min(wanted.until_offset - wanted.start_offset, ROWS_PER_BATCH)
        self._constants = {
            "topic": pa.repeat(pa.scalar(wanted.topic, pa.string()), rows),
            "partition": pa.repeat(pa.scalar(wanted.tp.partition, pa.int32()), rows),
        }
        self._timestamp_types = [pa.repeat(pa.scalar(kind, pa.int32()), rows) for kind in (0, 1)]
        self._no_headers = pa.scalar(None, HEADERS.type)

    def shape(self, part: FetchedBatch) -> pa.RecordBatch:
        """At most ROWS_PER_BATCH records as rows, without copying."""
        rows = part.arrow_batch.num_rows
        arrays = []
        for name in self._schema.names:
            if name == HEADERS.name:
                arrays.append(self._headers(part.arrow_batch.column(name)))
            elif name in SCHEMA_0.names:
                arrays.append(part.arrow_batch.column(name))
            elif name == "offset":
                arrays.append(part.offsets)
            elif name == "timestampType":
                arrays.append(self._timestamp_types[part.timestamp_type].slice(0, rows))
            else:
                arrays.append(self._constants[name].slice(0, rows))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _headers(self, headers: pa.Array) -> pa.Array:
        """Replaces empty header lists by null, as in Spark's Kafka source, so that `headers IS NULL` matches every record without
        headers."""
        if headers.null_count == len(headers):
            return headers
        import pyarrow.compute as pc  # only if rows need it: the import takes 30 ms in each process that plans or reads

        is_empty = pc.equal(pc.list_value_length(headers), 0)
        return pc.if_else(is_empty, self._no_headers, headers) if pc.any(is_empty).as_py() else headers
