"""The source for Sail, an engine that runs PySpark DataFrames without Java. Batch reads only.

Sail finds this class by the entry point `pysail.datasources`, and uses Spark's interface for Python sources with Arrow schemas.
Sail supports neither streaming Python sources nor the task attempts that writes rely on, so both are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from brokerd.datasource.source import BrokerdDataSource
from brokerd.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceReader


class SailDataSource(BrokerdDataSource):
    """`spark.read.format("brokerd")` in a Sail session."""

    def schema(self) -> Any:
        """The source's columns as an Arrow schema. Raises ConfigError for invalid options."""
        from brokerd.datasource.options import check_at_load
        from brokerd.datasource.schema import source_schema

        return source_schema(include_headers=check_at_load(self.options))

    def reader(self, schema: pa.Schema) -> DataSourceReader:
        """The reader of spark.read. Raises ConfigError for invalid options or a column of another type."""
        from brokerd.clock import SystemClock
        from brokerd.datasource.batch_reader import BrokerdBatchReader
        from brokerd.datasource.options import parse_source_options
        from brokerd.datasource.schema import checked_schema

        return BrokerdBatchReader(parse_source_options(self.options, is_streaming=False), checked_schema(schema), SystemClock())

    def _refuse(self, *_given: object, **_named: object) -> NoReturn:
        """Raises ConfigError."""
        raise ConfigError("through Sail brokerd is read in batches only: write with Spark, or with brokerd.Producer")

    streamReader = writer = streamWriter = _refuse  # noqa: N815 (Spark's names)
