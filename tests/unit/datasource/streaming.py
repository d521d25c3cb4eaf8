"""Test helpers that drive a stream reader as Spark does: offsets pass through JSON."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from brokerd.clock import Clock, SystemClock
from brokerd.datasource.planning import RangePartition
from brokerd.datasource.stream_reader import BrokerdStreamReader
from tests.support.fake_broker import FakeBroker
from tests.unit.datasource.reading import ALL_COLUMNS, options_for

Offset: TypeAlias = dict[str, Any]


def reader_for(broker: FakeBroker, **options: Any) -> BrokerdStreamReader:
    return clocked_reader(broker, SystemClock(), **options)


def clocked_reader(broker: FakeBroker, clock: Clock, **options: Any) -> BrokerdStreamReader:
    return BrokerdStreamReader(options_for(broker, is_streaming=True, **options), ALL_COLUMNS, clock)


def latest(reader: BrokerdStreamReader, start: Offset, limit: ReadLimit | None = None) -> Offset:
    """Calls latestOffset as Spark does, through JSON text."""
    offset: Offset = json.loads(json.dumps(reader.latestOffset(json.loads(json.dumps(start)), limit or ReadAllAvailable())))
    return offset


def ranges(reader: BrokerdStreamReader, start: Offset, end: Offset) -> list[tuple[int, int, int]]:
    planned = []
    for partition in reader.partitions(start, end):
        assert isinstance(partition, RangePartition)
        planned += [(one.tp.partition, one.start_offset, one.until_offset) for one in partition.ranges]
    return planned


def rows_of(reader: BrokerdStreamReader, start: Offset, end: Offset) -> int:
    return sum(batch.num_rows for partition in reader.partitions(start, end) for batch in reader.read(partition))


def user_offsets(offset: Offset) -> Offset:
    return {topic: partitions for topic, partitions in offset.items() if topic != "@brokerd"}
