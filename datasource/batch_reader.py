"""spark.read: reads once, between two bounds that are resolved when the read is planned.

Spark plans a Python source once per DataFrame (or temporary view, or static side of a join), so a DataFrame lacks records appended
after its first action. Spark's Kafka connector resolves `latest` in the tasks instead. Here that would let a retried task or a
recomputed stage read more rows than the first time: the only thing shared by all tasks of an execution is its id. The plan
therefore fixes the bounds. To see newer records, plan again: by load(), or by each action that filters, if Spark's filter push-down
for Python sources is on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from brokerd.client.leases import lease_client
from brokerd.clock import Clock
from brokerd.datasource.offset_reader import OffsetReader, report_unread, require_topics
from brokerd.datasource.offsets import INITIAL, SourceOffset
from brokerd.datasource.options import SourceOptions
from brokerd.datasource.partition_reader import read_partition
from brokerd.datasource.planning import begun_at, ranges_between, report_losses
from brokerd.errors import ConfigError


class BrokerdBatchReader(DataSourceReader):
    """Rows between startingOffsets and endingOffsets."""

    def __init__(self, options: SourceOptions, schema: pa.Schema, clock: Clock) -> None:
        self._options = options
        self._schema = schema
        self._clock = clock

    def partitions(self) -> Sequence[InputPartition]:
        """The ranges of each task. Raises ConfigError, DataLossError, UnknownTopicOrPartitionError."""
        options = self._options
        with lease_client(options.consumer) as client:
            reader = OffsetReader(client, options)
            snapshot = reader.snapshot()
            require_topics(snapshot, options.subscription.option)
            report_unread(options, snapshot, None)
            now_ms = self._clock.wall_ms()  # one time for both bounds
            begins = reader.resolve(options.starting, snapshot, now_ms=now_ms)
            ends = reader.resolve(options.ending, snapshot, now_ms=now_ms)
            epochs = reader.epochs_before(snapshot, ends)
            starts, losses = begun_at(begins, snapshot, options.where.reads)
            report_losses(losses, fail=options.fail_on_data_loss)
            for tp in sorted(begins):
                if ends[tp] < min(begins[tp], snapshot.latest[tp]):  # offsets beyond `latest` are not committed yet
                    raise ConfigError(f"the read of {tp} would end at offset {ends[tp]}, before it starts at {begins[tp]}")
            ranges = ranges_between(INITIAL, SourceOffset(ends, snapshot.topic_ids, starts, epochs=epochs))
            return reader.tasks(reader.cut(ranges, {}))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task's ranges."""
        return read_partition(partition, self._options, self._schema)


class PushdownReader(BrokerdBatchReader):
    """The reader for Spark's filter push-down, with which Spark plans anew for each action that filters.

    It accepts no filter, because Spark reuses the last plan for later actions without filters.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Leaves all filters to Spark."""
        return filters
