"""Converts fetched columns to records, and to Arrow batches with the Spark source's columns. Makes no Arrow scalar per record."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import NamedTuple

import pyarrow as pa

from brokerd.client.columns import CONSUMED_SCHEMA, FetchedBatch
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.record.schema import HEADERS, KEY, TIMESTAMP, VALUE

Headers = tuple[tuple[str, bytes | None], ...]
NO_TIMESTAMP = -1
# Rows converted to records at once, even if fewer are requested: converting them one by one costs more.
_ROWS_AT_ONCE = 500
_US_PER_MS = 1_000


class ConsumerRecord(NamedTuple):
    """A record. `timestamp` in ms since 1970, -1 = none; `timestamp_type` 0 = the producer's time, 1 = the broker's. A null value
    is a tombstone. `headers`: pairs of name and value."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def topic_partition(self) -> TopicPartition:
        """The record's partition."""
        return TopicPartition(self.topic, self.partition)


_new_tuple: Callable[[type[ConsumerRecord], tuple[object, ...]], ConsumerRecord] = tuple.__new__


class Run:
    """The records of one batch that are not yet handed over, in offset order."""

    def __init__(self, batch: FetchedBatch, name: TopicPartition) -> None:
        self.tp: TopicIdPartition = batch.tp
        self.name = name
        self._batch = batch
        self._offsets = batch.offsets.to_numpy()
        self.row_bytes = max(1, batch.header.uncompressed_bytes // max(1, batch.header.record_count))
        self._row = 0  # of the next record
        self._made: list[ConsumerRecord] = []  # converted rows, from `_made_from` on
        self._made_from = 0

    @property
    def left(self) -> int:
        """Number of records left."""
        return len(self._offsets) - self._row

    @property
    def is_begun(self) -> bool:
        """True if records were taken."""
        return self._row > 0

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, as received."""
        return self._batch.header.batch_length

    @property
    def next_offset(self) -> int:
        """The offset after the last record taken; requires that one was taken."""
        return int(self._offsets[self._row - 1]) + 1

    def take(self, count: int) -> list[ConsumerRecord]:
        """Takes the next records, at most `count`."""
        first, until = self._row, min(self._row + count, len(self._offsets))
        if until > self._made_from + len(self._made):
            self._made = to_records(self._batch, self.name, first, max(until - first, _ROWS_AT_ONCE))
            self._made_from = first
        self._row = until
        at = first - self._made_from
        return self._made[at : at + until - first]

    def take_arrow(self, count: int) -> pa.RecordBatch:
        """As `take`, but returns columns, without copying the batch's."""
        first, self._row = self._row, min(self._row + count, len(self._offsets))
        self._made = []
        self._made_from = self._row
        return to_arrow(self._batch, self.name, first, self._row - first)


def to_records(batch: FetchedBatch, name: TopicPartition, first: int, count: int) -> list[ConsumerRecord]:
    """Rows of a batch as records."""
    columns = batch.arrow_batch.slice(first, count)
    timestamps = columns.column(TIMESTAMP.index).view(pa.int64())
    if timestamps.null_count:
        timestamps = timestamps.fill_null(NO_TIMESTAMP * _US_PER_MS)
    rows = zip(
        repeat(name.topic),
        repeat(name.partition),
        batch.offsets.slice(first, count).to_numpy().tolist(),
        (timestamps.to_numpy() // _US_PER_MS).tolist(),
        repeat(batch.timestamp_type),
        _binaries(columns.column(KEY.index)),
        _binaries(columns.column(VALUE.index)),
        _headers(columns.column(HEADERS.index)),
        strict=False,
    )
    # A third faster than calling the class: runs no Python code per record.
    return list(map(_new_tuple, repeat(ConsumerRecord), rows))


def to_arrow(batch: FetchedBatch, name: TopicPartition, first: int, count: int) -> pa.RecordBatch:
    """Rows of a batch in the columns of CONSUMED_SCHEMA."""
    columns = batch.arrow_batch.slice(first, count)
    return pa.RecordBatch.from_arrays(
        [
            columns.column(KEY.index),
            columns.column(VALUE.index),
            pa.repeat(pa.scalar(name.topic, pa.string()), count),
            pa.repeat(pa.scalar(name.partition, pa.int32()), count),
            batch.offsets.slice(first, count),
            columns.column(TIMESTAMP.index),
            pa.repeat(pa.scalar(batch.timestamp_type, pa.int32()), count),
            columns.column(HEADERS.index),
        ],
        schema=CONSUMED_SCHEMA,
    )


def _binaries(column: pa.Array) -> list[bytes | None]:
    if column.null_count == len(column):
        return [None] * len(column)
    values: list[bytes | None] = column.to_numpy(zero_copy_only=False).tolist()
    return values


def _headers(column: pa.Array) -> list[Headers]:
    """The headers of each row; null and empty both become the empty tuple."""
    if column.null_count == len(column):
        return [()] * len(column)
    ends = column.value_lengths().fill_null(0).to_numpy().cumsum().tolist()
    pairs = column.flatten()  # of rows that are not null, in their order
    flat = list(zip(pairs.field(0).to_pylist(), _binaries(pairs.field(1)), strict=True))
    return [tuple(flat[first:end]) for first, end in zip([0, *ends], ends, strict=False)]
