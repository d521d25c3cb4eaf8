"""A filter on topic, partition, offset and timestamp: what it says about whole partitions, ranges of offsets, and rows.

Pure. A range is cut only where no row of it can be wanted; the rows that are left are filtered by `wanted_rows`, so that the result
is exact whatever was cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from brokerd.client.fetching.columns import FetchedBatch
from brokerd.config.settings import INT64_MAX
from brokerd.datasource.planning import OffsetRange
from brokerd.ids import TopicPartition
from brokerd.record.schema import known_schema

INT64_MIN = -INT64_MAX - 1
_US_PER_MS = 1_000


@dataclass(frozen=True, slots=True)
class Values:
    """Whole numbers from `low` to `high`, both inclusive; if `among` is given, only those of them."""

    low: int = INT64_MIN
    high: int = INT64_MAX
    among: frozenset[int] | None = None

    def both(self, other: Values) -> Values:
        """The numbers that are in both."""
        among = self.among if other.among is None else other.among if self.among is None else self.among & other.among
        low, high = max(self.low, other.low), min(self.high, other.high)
        if among is not None:
            among = frozenset(one for one in among if low <= one <= high)
            low, high = min(among, default=1), max(among, default=0)
        return Values(low, high, among)

    @property
    def named(self) -> frozenset[int]:
        """The numbers that are wanted one by one; none of a range."""
        if self.among is not None:
            return self.among
        return frozenset([self.low]) if self.low == self.high else frozenset()

    def __contains__(self, number: int) -> bool:
        return self.low <= number <= self.high and (self.among is None or number in self.among)


ANY = Values()
NOTHING = Values(1, 0)


class Unmet(NamedTuple):
    """The topics and partitions that a filter wants and that are not there."""

    topics: frozenset[str]  # wanted by name
    partitions: frozenset[int]  # wanted by number, and of none of the wanted topics
    is_everything_left_out: bool  # there are partitions, and none is wanted


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The rows that are wanted; timestamps in microseconds since 1970. Without arguments: all."""

    topics: frozenset[str] | None = None
    partitions: Values = ANY
    offsets: Values = ANY
    timestamps: Values = ANY

    def reads(self, tp: TopicPartition) -> bool:
        """False if no row of a partition is wanted."""
        return (self.topics is None or tp.topic in self.topics) and tp.partition in self.partitions

    def unmet(self, partitions: Collection[TopicPartition]) -> Unmet:
        """The wants that none of these partitions meets."""
        topics = {tp.topic for tp in partitions}
        strangers = frozenset() if self.topics is None else self.topics - topics
        numbers = {tp.partition for tp in partitions if self.topics is None or tp.topic in self.topics}
        missing = self.partitions.named - numbers if numbers else frozenset()  # with no topic no number is wrong
        return Unmet(strangers, missing, bool(partitions) and not any(map(self.reads, partitions)))

    @property
    def start_time_ms(self) -> int | None:
        """No record before the first one of this time, ms since 1970, is wanted; None: nothing can be said."""
        return max(0, self.timestamps.low // _US_PER_MS) if self.timestamps.low > 0 else None

    @property
    def needs_rows(self) -> bool:
        """True if the rows of a range that is cut have to be looked at."""
        return self.timestamps != ANY or self.offsets.among is not None


ALL_ROWS = RowFilter()


def cut_ranges(
    ranges: Iterable[OffsetRange], wanted: RowFilter, time_starts: Mapping[TopicPartition, int | None]
) -> list[OffsetRange]:
    """The parts of `ranges` that must be fetched. `time_starts`: the first offset of `start_time_ms` for partitions where it was
    looked up; None if there is no such record.

    A latest time cuts nothing: records need not be in the order of their times.
    """
    left = []
    for one in ranges:
        tp = TopicPartition(one.topic, one.partition)
        first_in_time = time_starts.get(tp, one.start)
        if not wanted.reads(tp) or first_in_time is None:
            continue
        start = max(one.start, wanted.offsets.low, first_in_time)
        until = min(one.until, wanted.offsets.high + 1)
        if start < until:
            left.append(one._replace(start=start, until=until))
    return left


def wanted_rows(fetched: FetchedBatch, wanted: RowFilter) -> FetchedBatch | None:
    """The rows of a batch that are wanted; None if there are none. A record without a timestamp has no time that is wanted."""
    if not wanted.needs_rows:
        return fetched
    timestamp = known_schema(fetched.header.schema_id).timestamp
    times = fetched.arrow_batch.column(timestamp.index).view(pa.int64())
    mask = pc.and_(_mask(fetched.offsets, wanted.offsets), _mask(times, wanted.timestamps))
    count = pc.sum(mask).as_py() or 0
    if count == fetched.record_count:
        return fetched
    if not count:
        return None
    return replace(fetched, arrow_batch=fetched.arrow_batch.filter(mask), offsets=fetched.offsets.filter(mask))


def _mask(column: pa.Array, values: Values) -> pa.Array:
    mask = pc.and_(pc.greater_equal(column, values.low), pc.less_equal(column, values.high))
    if values.among is not None:
        mask = pc.and_(mask, pc.is_in(column, value_set=pa.array(sorted(values.among), pa.int64())))
    return mask
