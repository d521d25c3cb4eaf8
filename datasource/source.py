"""BrokerdDataSource: the class behind format("brokerd"). Wiring only; no other module imports both source and sink.

Spark also imports this module in processes that do not use brokerd, to learn the format's name, so pyarrow, numpy and grpc are
imported where they are used.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import ArrayType, StructField, StructType

if TYPE_CHECKING:
    import pyarrow as pa

# Spark creates the same objects in several of its worker processes, for different purposes.
_COMMIT_OR_ABORT = "python_streaming_sink_runner"  # creates a stream's writer again for each commit and abort
_PUSHDOWN = "data_source_pushdown_filters"  # runs only if filter push-down is on


class BrokerdDataSource(DataSource):
    """`spark.read/readStream/write/writeStream.format("brokerd")`. The options are in sink/options.py and
    datasource/options.py."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "brokerd"

    def schema(self) -> str:
        """The source's columns, those of Spark's Kafka source. Raises ConfigError for invalid options."""
        from brokerd.datasource.options import check_at_load
        from brokerd.datasource.schema import spark_ddl

        return spark_ddl(include_headers=check_at_load(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of spark.read. With spark.sql.python.filterPushdown.enabled=false, the default, Spark refuses a reader that
        has `pushFilters`, so one is returned only if filter push-down is on."""
        from brokerd.clock import SystemClock
        from brokerd.datasource.batch_reader import BrokerdBatchReader, PushdownReader
        from brokerd.datasource.options import parse_source_options

        kind = PushdownReader if _runs_in(_PUSHDOWN) else BrokerdBatchReader
        return kind(parse_source_options(self.options, is_streaming=False), _arrow_schema(schema), SystemClock())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """The reader of spark.readStream. Each query starts a process for it, which adds to the time to the first row."""
        from brokerd.allocator import tune_spark_worker

        tune_spark_worker()  # before the imports: they would trigger a full collection
        from pyspark.sql.pandas.types import from_arrow_schema

        from brokerd.clock import SystemClock
        from brokerd.datasource.options import parse_source_options
        from brokerd.datasource.stream_reader import BrokerdStreamReader

        options, columns = parse_source_options(self.options, is_streaming=True), _arrow_schema(schema)
        # Spark refuses rows that travel with a plan if its schema has metadata, such as a column's comment, which Arrow's lacks.
        return BrokerdStreamReader(options, columns, SystemClock(), takes_rows=from_arrow_schema(columns) == schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of df.write."""
        from brokerd.sink.writer import BrokerdBatchWriter, plan_write

        return BrokerdBatchWriter(plan_write(self.options, _names_and_types(schema), overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter | DataSourceStreamWriter:  # noqa: N802
        """The writer of df.writeStream. Spark creates another writer to commit or abort. That writer does not look up the topic: an
        error of the look-up would replace the error that caused the abort."""
        from brokerd.sink.writer import BrokerdStreamWriter, plan_write

        columns, is_planned = _names_and_types(schema), _runs_in(_COMMIT_OR_ABORT)
        plan = plan_write(self.options, columns, overwrite=overwrite, is_streaming=True, is_planned=is_planned)
        return BrokerdStreamWriter(plan)


def _runs_in(worker: str) -> bool:
    """True in a process of this worker, whether it is forked by PySpark's daemon or started on its own."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return f"pyspark.sql.worker.{worker}" in (*sys.argv[-1:], getattr(main, "name", None))


def _arrow_schema(schema: StructType) -> pa.Schema:
    """Refuses a wrong .schema(...) on the driver."""
    from brokerd.datasource.schema import arrow_schema

    return arrow_schema((field.name, field.dataType.simpleString(), _is_nullable(field)) for field in schema.fields)


def _is_nullable(field: StructField) -> bool:
    """False if the column, or a part of it, is NOT NULL."""
    nested = field.dataType
    if not isinstance(nested, ArrayType):
        return field.nullable
    return field.nullable and nested.containsNull and all(part.nullable for part in getattr(nested.elementType, "fields", ()))


def _names_and_types(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]
