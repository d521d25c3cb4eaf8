"""`brokerd.read`: a bounded part of a topic as a stream of Arrow batches, for any Arrow reader: DuckDB, Polars, pandas.

Its offsets are fixed at creation, so each stream reads the same records, over its own connection, which closes with the stream.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from brokerd.arguments import checked_int, checked_partition
from brokerd.client import bounds
from brokerd.client.blocking import BlockingClient
from brokerd.client.columns import CONSUMED_SCHEMA
from brokerd.client.fetching import FetchRange, PartitionFetcher
from brokerd.client.metadata import id_of
from brokerd.clock import Clock, SystemClock
from brokerd.config.client import ConsumerConfig
from brokerd.config.settings import given_config
from brokerd.consumer.core.records import to_arrow
from brokerd.ids import TopicPartition

Bound = str | int | datetime.date


def read(
    topic: str,
    *,
    start: Bound = "earliest",
    end: Bound = "latest",
    columns: Sequence[str] | None = None,
    partitions: Sequence[int] | None = None,
    config: Mapping[str, object] | ConsumerConfig | None = None,
    clock: Clock | None = None,
    **settings: object,
) -> TopicReader:
    """The records of a topic from `start` (default: the first) up to `end` (default: the current end), as an object for any reader
    of Arrow streams (`__arrow_c_stream__`): DuckDB, Polars, pandas, `pa.table(...)`.

        duckdb.sql("SELECT key, count(*) FROM events GROUP BY key")   # events = brokerd.read("events", start="-10m")

    `start` (inclusive) and `end` (exclusive): "earliest", "latest", an offset N, -N (the newest N records of each partition),
    "-10m" (10 minutes ago; ms, s, m, h, d), or a time: a datetime, "2026-01-31T12:00:00Z", or "@MS" (ms since 1970); a time without
    a zone is local. `columns`: a subset of key, value, topic, partition, offset, timestamp, timestampType, headers. `partitions`: a
    subset of the topic's. `config` and keywords: settings of a reader.

    Looks up the offsets, but reads no records. Raises ConfigError, ValueError, UnknownTopicOrPartitionError,
    BrokerUnreachableError.
    """
    if not isinstance(topic, str):
        raise TypeError(
            f"topic must be the name of one topic, not {topic!r:.200}; several as one table: "
            "pa.concat_tables(pa.table(brokerd.read(topic)) for topic in topics)"
        )
    schema = _schema(columns)
    reader = given_config(ConsumerConfig, config, settings)
    now_ms = (clock if clock is not None else SystemClock()).wall_ms()
    first, last = (bounds.parse_bound(name, _text(name, bound), now_ms=now_ms) for name, bound in (("start", start), ("end", end)))
    checked_partition((topic, 0))
    with BlockingClient(reader, clock) as client:
        info = client.metadata([topic]).topic(topic)
        numbers = range(info.partition_count) if partitions is None else [checked_int(one, "partition") for one in partitions]
        named = {id_of(info, number): topic for number in numbers}
        ranges = bounds.ranges_of(client, named, first, last, reader.isolation_level)
    return TopicReader([one._replace(start_offset=min(one.start_offset, one.until_offset)) for one in ranges], schema, reader)


class TopicReader:
    """Part of a topic, readable any number of times. Records of one partition come in offset order."""

    def __init__(self, ranges: Sequence[FetchRange], schema: pa.Schema, config: ConsumerConfig) -> None:
        self.schema = schema
        self._ranges = tuple(ranges)
        self._config = config

    @property
    def offsets(self) -> dict[TopicPartition, tuple[int, int]]:
        """Start (inclusive) and end (exclusive) offset of each partition."""
        return {one.name: (one.start_offset, one.until_offset) for one in self._ranges}

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """A stream for Arrow's C stream interface."""
        stream: object = self.to_reader().__arrow_c_stream__(requested_schema)
        return stream

    def to_reader(self) -> pa.RecordBatchReader:
        """A stream of Arrow batches. Reading it raises BrokerUnreachableError, OffsetOutOfRangeError (retention deleted the first
        record), UnknownTopicIdError, LogDamagedError, CorruptMessageError."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        ranges = [one for one in self._ranges if one.size > 0]
        names = {one.tp: one.name for one in ranges}
        if not ranges:
            return
        with BlockingClient(self._config) as client, PartitionFetcher(client, ranges, self._config) as fetcher:
            for batch in fetcher:
                rows = to_arrow(batch, names[batch.tp], 0, batch.record_count)
                yield rows if self.schema is CONSUMED_SCHEMA else rows.select(self.schema.names)


def _schema(columns: Sequence[str] | None) -> pa.Schema:
    if columns is None:
        return CONSUMED_SCHEMA
    known = CONSUMED_SCHEMA.names
    unknown = [name for name in columns if name not in known]
    if isinstance(columns, str) or unknown or not columns or len(set(columns)) < len(columns):
        raise ValueError(f"columns must be some of {', '.join(known)}, each once, not {columns!r:.200}")
    return pa.schema([CONSUMED_SCHEMA.field(name) for name in columns])


def _text(name: str, bound: Bound) -> str:
    """The bound in the command line's syntax. Raises TypeError."""
    if isinstance(bound, bool) or not isinstance(bound, (str, int, datetime.date)):
        raise TypeError(f"{name} must be text, an offset or a datetime, not {bound!r:.200}")
    return bound.isoformat() if isinstance(bound, datetime.date) else str(bound)
