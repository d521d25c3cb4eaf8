"""`brokerd.read`: a bounded part of a topic as a stream of Arrow batches, for whatever reads Arrow: DuckDB, Polars, pandas.

Its ends are fixed when it is made; each stream of it then reads the same records, with a connection of its own that ends with it.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from brokerd.arguments import checked_int, checked_partition
from brokerd.client.blocking import BlockingClient
from brokerd.client.consumer.fetcher import PartitionFetcher
from brokerd.client.consumer.offsets import OffsetAndTimestamp, OffsetSpec, Wanted
from brokerd.client.consumer.positions import FetchRange
from brokerd.clock import Clock, SystemClock
from brokerd.config.client import ConsumerConfig
from brokerd.config.durations import UNITS_MS
from brokerd.config.settings import INT64_MAX, by_name, from_mapping
from brokerd.consumer.core.records import CONSUMED_SCHEMA, to_arrow
from brokerd.errors import ConfigError, WireError
from brokerd.ids import TopicIdPartition, TopicPartition

Bound = str | int | datetime.datetime
_AGO = re.compile(r"-(\d{1,15})(ms|s|m|h|d)")
_HOW = "earliest, latest, a time ago such as '-10m' (ms, s, m, h, d), a datetime with a time zone, or milliseconds since 1970"


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
    """The records of a topic from `start` (the first one) up to `end` (where it ends now), as an object that everything reads that
    reads Arrow streams (`__arrow_c_stream__`): DuckDB, Polars, pandas, `pa.table(...)`.

        duckdb.sql("SELECT key, count(*) FROM events GROUP BY key")   # events = brokerd.read("events", start="-10m")

    `start` and `end`: earliest, latest, a time ago ("-10m"; ms, s, m, h, d), a datetime with a time zone, or milliseconds since
    1970; from the first record at or after that time, up to the one before it. `columns`: some of key, value, topic, partition,
    offset, timestamp, timestampType, headers. `partitions`: some of its partitions. `config` and keywords: settings of a reader.

    Asks the broker where the records lie, and reads none. Raises ConfigError, ValueError, UnknownTopicOrPartitionError,
    BrokerUnreachableError.
    """
    schema = _schema(columns)
    reader = _config(config, settings)
    now_ms = (clock if clock is not None else SystemClock()).wall_ms()
    wanted_start, wanted_end = _wanted("start", start, now_ms), _wanted("end", end, now_ms)
    checked_partition((topic, 0))
    with BlockingClient(reader, clock) as client:
        info = client.metadata([topic]).topic(topic)
        numbers = range(info.partition_count) if partitions is None else [checked_int(one, "partition") for one in partitions]
        tps = [TopicIdPartition(info.topic_id, number) for number in dict.fromkeys(numbers)]
        lasts = _offsets(client, topic, dict.fromkeys(tps, OffsetSpec.LATEST), reader)
        starts = _offsets(client, topic, dict.fromkeys(tps, wanted_start), reader)
        ends = _offsets(client, topic, dict.fromkeys(tps, wanted_end), reader)
    ranges = []
    for tp in tps:
        first, until = (last if last >= 0 else lasts[tp] for last in (starts[tp], ends[tp]))  # -1: no record is that late
        ranges.append(FetchRange(tp, min(first, until), until, str(TopicPartition(topic, tp.partition))))
    return TopicReader(topic, ranges, schema, reader)


class TopicReader:
    """Part of a topic, to be read any number of times. Records of one partition come in the order of their offsets."""

    def __init__(self, topic: str, ranges: Sequence[FetchRange], schema: pa.Schema, config: ConsumerConfig) -> None:
        self.schema = schema
        self._topic = topic
        self._ranges = tuple(ranges)
        self._config = config

    @property
    def offsets(self) -> dict[TopicPartition, tuple[int, int]]:
        """The first offset of each partition, and the one behind the last."""
        names = {one: TopicPartition(self._topic, one.tp.partition) for one in self._ranges}
        return {names[one]: (one.start_offset, _until(one)) for one in self._ranges}

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """A stream for Arrow's C interface."""
        stream: object = self.to_reader().__arrow_c_stream__(requested_schema)
        return stream

    def to_reader(self) -> pa.RecordBatchReader:
        """A stream of Arrow batches. Reading it raises BrokerUnreachableError, OffsetOutOfRangeError (retention has passed the
        first record), UnknownTopicIdError, LogDamagedError, CorruptMessageError."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        ranges = [one for one in self._ranges if one.start_offset < _until(one)]
        names = {one.tp: TopicPartition(self._topic, one.tp.partition) for one in ranges}
        if not ranges:
            return
        with BlockingClient(self._config) as client, PartitionFetcher(client, ranges, self._config) as fetcher:
            for batch in fetcher:
                rows = to_arrow(batch, names[batch.tp], 0, batch.record_count)
                yield rows if self.schema is CONSUMED_SCHEMA else rows.select(self.schema.names)


def _until(one: FetchRange) -> int:
    assert one.until_offset is not None
    return one.until_offset


def _config(config: Mapping[str, object] | ConsumerConfig | None, settings: Mapping[str, object]) -> ConsumerConfig:
    if isinstance(config, ConsumerConfig):
        if settings:
            raise ConfigError("settings by keyword go with a mapping, not with a ConsumerConfig")
        return config
    return from_mapping(ConsumerConfig, by_name(config, settings))


def _schema(columns: Sequence[str] | None) -> pa.Schema:
    if columns is None:
        return CONSUMED_SCHEMA
    known = CONSUMED_SCHEMA.names
    unknown = [name for name in columns if name not in known]
    if isinstance(columns, str) or unknown or not columns or len(set(columns)) < len(columns):
        raise ValueError(f"columns must be some of {', '.join(known)}, each once, not {columns!r:.200}")
    return pa.schema([CONSUMED_SCHEMA.field(name) for name in columns])


def _wanted(name: str, bound: Bound, now_ms: int) -> Wanted:
    """A bound as an offset query. Raises ValueError."""
    if bound in ("earliest", "latest"):
        return OffsetSpec(bound)
    if isinstance(bound, datetime.datetime) and bound.tzinfo is not None:
        return checked_int(int(bound.timestamp() * 1_000), name)
    if isinstance(bound, int) and not isinstance(bound, bool) and 0 <= bound <= INT64_MAX:
        return bound
    ago = _AGO.fullmatch(bound) if isinstance(bound, str) else None
    if ago is None:
        raise ValueError(f"{name} must be {_HOW}, not {bound!r:.200}")
    return max(0, now_ms - int(ago[1]) * UNITS_MS[ago[2]])


def _offsets(
    client: BlockingClient, topic: str, wanted: Mapping[TopicIdPartition, Wanted], config: ConsumerConfig
) -> dict[TopicIdPartition, int]:
    """The offset of each partition; -1 = no record is at or after that time. Raises the broker's errors."""
    results: Mapping[TopicIdPartition, OffsetAndTimestamp | WireError] = client.list_offsets(wanted, config.isolation_level)
    offsets = {}
    for tp, result in results.items():
        if isinstance(result, WireError):
            result.message = f"{topic}-{tp.partition}: {result.message}"
            raise result
        offsets[tp] = result.offset
    return offsets
