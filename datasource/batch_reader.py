"""spark.read: the same source once, between two bounds that are resolved when the read is planned.

Spark plans a Python source once for the life of a DataFrame (a temporary view, the static side of a join): what was appended
after its first action is not in it. Resolving `latest` in the tasks instead, as Spark's Kafka connector does, would let a task
that runs again, or a stage whose output was lost, read more rows than the first time, and nothing of an execution but its id
reaches all of its tasks. So the plan is the truth, and a DataFrame that shall see more must be planned again: by load(), or
by each action that filters, if Spark's filter push-down for Python sources is on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from brokerd.client.leases import lease_client
from brokerd.datasource.data_loss import report_losses
from brokerd.datasource.offset_reader import OffsetReader, report_absent
from brokerd.datasource.options import SourceOptions
from brokerd.datasource.partition_reader import RangePartition, read_partition
from brokerd.datasource.planning import OffsetRange, range_gone, require_topics, split_ranges
from brokerd.datasource.schema import Column
from brokerd.errors import ConfigError


class BrokerdBatchReader(DataSourceReader):
    """Rows between startingOffsets and endingOffsets."""

    def __init__(self, options: SourceOptions, columns: Sequence[Column]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """One range or more for each partition. Raises ConfigError, DataLossError, UnknownTopicOrPartitionError."""
        options = self._options
        with lease_client(options.consumer) as client:
            reader = OffsetReader(client, options)
            snapshot = reader.snapshot()
            require_topics(snapshot, options.subscription.option)
            report_absent(snapshot, None)
            begins = reader.resolve(options.starting, snapshot)
            ends = reader.resolve(options.ending, snapshot)
        losses = [range_gone(tp, begin, snapshot.earliest[tp]) for tp, begin in begins.items() if begin < snapshot.earliest[tp]]
        report_losses(losses, fail=options.fail_on_data_loss)
        ranges = []
        for tp in sorted(begins):
            if ends[tp] < begins[tp]:
                raise ConfigError(f"the read of {tp} would end at offset {ends[tp]}, before it starts at {begins[tp]}")
            begin = max(begins[tp], snapshot.earliest[tp])
            if ends[tp] > begin:
                ranges.append(OffsetRange(tp.topic, snapshot.topic_ids[tp.topic], tp.partition, begin, ends[tp]))
        pieces = split_ranges(
            ranges, min_partitions=options.min_partitions, max_records_per_partition=options.max_records_per_partition
        )
        return [RangePartition(one) for one in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        return read_partition(partition, self._options, self._columns)


class PushdownReader(BrokerdBatchReader):
    """The same where Spark pushes filters down, which it does for each action: so each action is planned afresh.

    No filter is taken: Spark keeps the last plan for later actions, also for those that do not filter.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Leaves all filters to Spark."""
        return filters


_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def batch_reader(options: SourceOptions, columns: Sequence[Column]) -> BrokerdBatchReader:
    """The reader for the process that asks. Only the one that pushes filters down may see a reader with `pushFilters`: with
    spark.sql.python.filterPushdown.enabled=false, its default, Spark refuses every read of such a one."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    is_pushdown = _PUSHDOWN_WORKER in (*sys.argv[-1:], getattr(main, "name", None))
    return (PushdownReader if is_pushdown else BrokerdBatchReader)(options, columns)
