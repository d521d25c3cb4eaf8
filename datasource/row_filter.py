"""A filter on topic, partition, offset and timestamp, applied to whole partitions, offset ranges, and rows.

Pure. Cutting a range removes only rows that cannot match; `wanted_rows` filters the rest, so the result is exact however much was
cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from brokerd.client.columns import FetchedBatch
from brokerd.client.fetching import FetchRange
from brokerd.config.settings import INT64_MAX
from brokerd.ids import TopicIdPartition, TopicPartition
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
        """The intersection."""
        among = self.among if other.among is None else other.among if self.among is None else self.among & other.among
        low, high = max(self.low, other.low), min(self.high, other.high)
        if among is not None:
            among = frozenset(one for one in among if low <= one <= high)
            low, high = min(among, default=1), max(among, default=0)
        return Values(low, high, among)

    @property
    def named(self) -> frozenset[int]:
        """The numbers named individually; none for a range."""
        if self.among is not None:
            return self.among
        return frozenset([self.low]) if self.low == self.high else frozenset()

    def __contains__(self, number: int) -> bool:
        return self.low <= number <= self.high and (self.among is None or number in self.among)


ANY = Values()
NOTHING = Values(1, 0)


class Unmet(NamedTuple):
    """The topics and partitions that a filter names but a query does not read."""

    topics: frozenset[str]
    partitions: frozenset[int]  # numbers that none of the matching topics has
    is_everything_left_out: bool  # there are partitions, but none matches


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A filter; timestamps in microseconds since 1970. Without arguments it matches all rows."""

    topics: frozenset[str] | None = None
    partitions: Values = ANY
    offsets: Values = ANY
    timestamps: Values = ANY

    def reads(self, tp: TopicPartition) -> bool:
        """False if no row of the partition can match."""
        return (self.topics is None or tp.topic in self.topics) and tp.partition in self.partitions

    def unmet(self, partitions: Collection[TopicPartition]) -> Unmet:
        """The topics and partitions of the filter that are not among these partitions."""
        topics = {tp.topic for tp in partitions}
        strangers = frozenset() if self.topics is None else self.topics - topics
        numbers = {tp.partition for tp in partitions if self.topics is None or tp.topic in self.topics}
        missing = self.partitions.named - numbers if numbers else frozenset()  # none is missing without a matching topic
        return Unmet(strangers, missing, bool(partitions) and not any(map(self.reads, partitions)))

    @property
    def start_time_ms(self) -> int | None:
        """No record before the first one at or after this time (ms since 1970) can match; None if there is no such bound."""
        return max(0, self.timestamps.low // _US_PER_MS) if self.timestamps.low > 0 else None

    @property
    def needs_rows(self) -> bool:
        """True if the rows of a cut range must still be filtered."""
        return self.timestamps != ANY or self.offsets.among is not None


ALL_ROWS = RowFilter()


def cut_ranges(
    ranges: Iterable[FetchRange], wanted: RowFilter, time_starts: Mapping[TopicIdPartition, int | None]
) -> list[FetchRange]:
    """The parts of `ranges` that must be fetched. `time_starts`: the first offset at or after `start_time_ms`, for partitions where
    it was looked up; None if there is no such record.

    An upper bound on the timestamp cuts nothing, because records need not be in timestamp order.
    """
    left = []
    for one in ranges:
        first_in_time = time_starts.get(one.tp, one.start_offset)
        if not wanted.reads(one.name) or first_in_time is None:
            continue
        start = max(one.start_offset, wanted.offsets.low, first_in_time)
        until = min(one.until_offset, wanted.offsets.high + 1)
        if start < until:
            left.append(one._replace(start_offset=start, until_offset=until))
    return left


def wanted_rows(fetched: FetchedBatch, wanted: RowFilter) -> FetchedBatch | None:
    """The matching rows of a batch; None if there are none. A record without a timestamp matches no time."""
    if not wanted.needs_rows:
        return fetched
    import pyarrow.compute as pc  # 30 ms, which queries without a filter do not pay

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
    import pyarrow.compute as pc

    mask = pc.and_(pc.greater_equal(column, values.low), pc.less_equal(column, values.high))
    if values.among is not None:
        mask = pc.and_(mask, pc.is_in(column, value_set=pa.array(sorted(values.among), pa.int64())))
    return mask
