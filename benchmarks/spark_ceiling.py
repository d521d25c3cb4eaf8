"""Ceiling of Spark: `format("discard")` takes Arrow batches and discards them, `format("invent")` generates rows. Any Python sink
or source costs at least this much. Must not contain brokerd code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

ROWS_PER_BATCH = 10_000


class Discarded(WriterCommitMessage):
    """The empty commit message of a task of the sink."""


class _Discard(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return Discarded()

    def commit(self, messages: Any, batchId: int | None = None) -> None:
        return

    def abort(self, messages: Any, batchId: int | None = None) -> None:
        return


class DiscardSource(DataSource):
    """The sink that discards."""

    @classmethod
    def name(cls) -> str:
        return "discard"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _Discard()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return _Discard()


class _Share(InputPartition):
    """The rows that one task generates."""

    def __init__(self, rows: int, value_bytes: int) -> None:
        super().__init__(None)
        self.rows = rows
        self.value_bytes = value_bytes


def _invent(share: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(share, _Share)
    keys = pa.array([b"k%07d" % row for row in range(ROWS_PER_BATCH)], pa.binary())
    values = pa.array([b"v" * share.value_bytes] * ROWS_PER_BATCH, pa.binary())
    whole = pa.record_batch([keys, values], names=["key", "value"])
    for start in range(0, share.rows, ROWS_PER_BATCH):
        yield whole.slice(0, min(ROWS_PER_BATCH, share.rows - start))


class _InventBatch(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._shares = _shares(options)

    def partitions(self) -> list[InputPartition]:
        return list(self._shares)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _invent(partition)


class _InventStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream from offset 0 to offset 1: AvailableNow reads everything in one batch."""

    def __init__(self, options: dict[str, str]) -> None:
        self._shares = _shares(options)

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        return

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, int]:
        return {"at": 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return list(self._shares)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _invent(partition)

    def commit(self, end: dict[str, Any]) -> None:
        return

    def stop(self) -> None:
        return


class InventSource(DataSource):
    """The source that generates `rows` rows in `partitions` tasks, with values of `valueBytes`."""

    @classmethod
    def name(cls) -> str:
        return "invent"

    def schema(self) -> str:
        return "key binary, value binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _InventBatch(dict(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _InventStream(dict(self.options))


def _shares(options: dict[str, str]) -> list[_Share]:
    # Spark passes option names in lower case.
    given = {name.lower(): int(value) for name, value in options.items() if name.lower() in ("rows", "partitions", "valuebytes")}
    rows, partitions = given["rows"], given["partitions"]
    return [_Share(rows // partitions + (number < rows % partitions), given["valuebytes"]) for number in range(partitions)]
