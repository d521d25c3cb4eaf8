"""spark.read: the same source once, between two bounds that are resolved when the read is planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from brokerd.client.cache import lease_client
from brokerd.datasource.data_loss import report_losses
from brokerd.datasource.offset_reader import OffsetReader
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
            require_topics(snapshot)
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
