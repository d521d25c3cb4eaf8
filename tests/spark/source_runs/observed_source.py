"""The source as the runs use it: plans carry few rows, so that one query reads both ways, and each batch is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.types import StructType

from brokerd.datasource import stream_reader
from brokerd.datasource.source import BrokerdDataSource
from brokerd.datasource.stream_reader import BrokerdStreamReader
from tests.spark.source_runs.ways import BY_TASKS, WITH_PLAN, note
from tests.support.planting import plant

_ROWS_WITH_PLAN = 25

_partitions = BrokerdStreamReader.partitions


class ObservedSource(BrokerdDataSource):
    """format("brokerd")."""

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """The reader of spark.readStream; Spark creates it in the planning process."""
        setattr(stream_reader, "ROWS_WITH_PLAN", _ROWS_WITH_PLAN)  # noqa: B010
        if BrokerdStreamReader.partitions is _partitions:
            plant(setattr, BrokerdStreamReader, "partitions", _noted)
        return super().streamReader(schema)


def _noted(self: BrokerdStreamReader, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
    planned = _partitions(self, start, end)
    note(WITH_PLAN if isinstance(self, _SimpleStreamReaderWrapper) else BY_TASKS, end)
    return planned
