"""The source with one bug planted, which the environment names. The driver's Python workers, planners and tasks all import this
module. Each function plants one bug; its docstring states the wrong behaviour as if it were the rule.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from brokerd.client.fetching import FetchRange
from brokerd.datasource.offset_reader import OffsetReader
from brokerd.datasource.offsets import SourceOffset
from brokerd.datasource.planning import RangePartition, TopicState
from brokerd.datasource.stream_reader import BrokerdStreamReader
from tests.spark.source_runs.observed_source import ObservedSource
from tests.support.planting import Put, plant

VARIABLE = "BROKERD_TEST_PLANTED"
_TWICE_AT = 3  # this plan of a process starts at the previous one's start


class PlantedReader(BrokerdStreamReader):
    """The real reader, defined in this module so that every task imports it."""


class PlantedSource(ObservedSource):
    """format("brokerd")."""

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """The reader of spark.readStream."""
        reader = super().streamReader(schema)
        reader.__class__ = PlantedReader
        return reader


def skips_a_record_after_a_restart(put: Put) -> None:
    """A checkpoint's offset is taken for that of the last record read, not of the next one."""
    planned = BrokerdStreamReader._next

    def skip(
        self: BrokerdStreamReader, previous: SourceOffset, snapshot: TopicState, limit: ReadLimit, reader: OffsetReader
    ) -> SourceOffset | None:
        end = planned(self, previous, snapshot, limit, reader)
        if end is None:
            return None
        is_first = not vars(self).get("has_planned") and not previous.is_initial
        vars(self)["has_planned"] = True
        return replace(end, starts=_one_later(previous.offsets, end)) if is_first else end

    plant(put, BrokerdStreamReader, "_next", skip)


def _one_later(offsets: Mapping[Any, int], end: SourceOffset) -> dict[Any, int]:
    later = {tp: offset + 1 for tp, offset in offsets.items() if end.offsets.get(tp, 0) > offset}
    return {**later, **end.starts}


def plans_a_batch_twice(put: Put) -> None:
    """A plan ignores that the previous one was carried out, and begins at its start."""
    planned = BrokerdStreamReader.partitions

    def plan(self: BrokerdStreamReader, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        starts = vars(self).setdefault("starts", [])
        starts.append(start)
        return planned(self, starts[-2] if len(starts) == _TWICE_AT else start, end)

    plant(put, BrokerdStreamReader, "partitions", plan)


def ends_a_range_one_too_far(put: Put) -> None:
    """The end of a range is taken for its last offset, if another range of the partition follows."""
    planned = BrokerdStreamReader.partitions

    def plan(self: BrokerdStreamReader, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        tasks = [one.ranges for one in planned(self, start, end) if isinstance(one, RangePartition)]
        followed = {(one.tp, one.start_offset) for ranges in tasks for one in ranges}

        def longer(one: FetchRange) -> FetchRange:
            return one._replace(until_offset=one.until_offset + ((one.tp, one.until_offset) in followed))

        return [RangePartition([longer(one) for one in ranges]) for ranges in tasks]

    plant(put, BrokerdStreamReader, "partitions", plan)


def shows_aborted_rows(put: Put) -> None:
    """Plans end at the last stable offset, but tasks read with read_uncommitted."""
    read = BrokerdStreamReader.read

    def read_all(self: BrokerdStreamReader, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        consumer = replace(self._options.consumer, isolation_level="read_uncommitted")
        self._options = replace(self._options, consumer=consumer)
        return read(self, partition)

    plant(put, BrokerdStreamReader, "read", read_all)


def starts_new_partitions_at_their_end(put: Put) -> None:
    """A partition unknown to the last batch is read as in a new query with startingOffsets latest."""
    planned = BrokerdStreamReader._next

    def begin_late(
        self: BrokerdStreamReader, previous: SourceOffset, snapshot: TopicState, limit: ReadLimit, reader: OffsetReader
    ) -> SourceOffset | None:
        end = planned(self, previous, snapshot, limit, reader)
        if end is None or previous.is_initial:
            return end
        new = {tp: latest for tp, latest in snapshot.latest.items() if tp not in previous.offsets}
        return replace(end, offsets={**end.offsets, **new}, starts={**end.starts, **new})

    plant(put, BrokerdStreamReader, "_next", begin_late)


BUGS: dict[str, Callable[[Put], None]] = {
    "skips-a-record-after-a-restart": skips_a_record_after_a_restart,
    "plans-a-batch-twice": plans_a_batch_twice,
    "ends-a-range-one-too-far": ends_a_range_one_too_far,
    "starts-new-partitions-at-their-end": starts_new_partitions_at_their_end,
    "shows-aborted-rows": shows_aborted_rows,
}

if os.environ.get(VARIABLE):
    BUGS[os.environ[VARIABLE]](setattr)
