"""Shared steps of the Spark tests: write rows, read rows, run queries to their end. Makes no assertions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

R = TypeVar("R", bound=Row | dict[str, Any])
Pairs = list[tuple[bytes | None, bytes | None]]

_AIRPORTS = ("ATL", "DFW", "ORD", "LAX", "PHX", "STL", "DTW", "MSP", "LAS", "BOS", "DEN", "IAH", "CLT", "SFO", "EWR", "PHL", "SEA")


def flights(rows: int) -> Pairs:
    """Keyed rows like a table of flights: (origin, JSON). The same for the same number; every value is different."""
    pairs: Pairs = []
    for number in range(rows):
        origin = _AIRPORTS[(number * 7 + number // 13) % len(_AIRPORTS)]
        value = {
            "number": number,
            "delay": number % 90 - 20,
            "distance": 100 + number * 31 % 2500,
            "origin": origin,
            "text": "é" * (number % 3),
        }
        pairs.append((origin.encode(), json.dumps(value, ensure_ascii=False).encode()))
    return pairs


def flights_of_file(path: Path) -> Pairs:
    """The rows of a JSON array, keyed by `origin`."""
    return [
        (row["origin"].encode(), json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode())
        for row in json.loads(path.read_text())
    ]


def frame_of(spark: SparkSession, pairs: Pairs, *, tasks: int = 1) -> DataFrame:
    """Rows (key, value). A key's rows are in one task, in their order, so that order per key is defined."""
    numbered = spark.createDataFrame(
        [(number, key, value) for number, (key, value) in enumerate(pairs)], "n int, key binary, value binary"
    )
    if tasks == 1:
        return numbered.coalesce(1).sortWithinPartitions("n").select("key", "value")
    return numbered.repartition(tasks, "key").sortWithinPartitions("n").select("key", "value")


def write(frame: DataFrame, servers: str, topic: str | None = None, **options: Any) -> None:
    """A batch write."""
    writer = frame.write.format("brokerd").option("bootstrap.servers", servers).options(**options)
    if topic is not None:
        writer = writer.option("topic", topic)
    writer.mode("append").save()


def read(spark: SparkSession, servers: str, topic: str, **options: Any) -> DataFrame:
    """A batch read."""
    return spark.read.format("brokerd").option("bootstrap.servers", servers).option("subscribe", topic).options(**options).load()


def read_stream(spark: SparkSession, servers: str, topic: str, **options: Any) -> DataFrame:
    """A streaming read, from the earliest record unless `startingOffsets` says otherwise."""
    reader = spark.readStream.format("brokerd").option("bootstrap.servers", servers).option("subscribe", topic)
    return reader.option("startingOffsets", "earliest").options(**options).load()


def start_to_topic(frame: DataFrame, servers: str, topic: str, checkpoint: Path, **options: Any) -> StreamingQuery:
    """Starts a streaming write that ends with the records that exist now."""
    writer = frame.writeStream.format("brokerd").option("bootstrap.servers", servers).option("topic", topic).options(**options)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def start_to_files(frame: DataFrame, directory: Path, checkpoint: Path) -> StreamingQuery:
    """Starts a streaming query into Parquet files that ends with the records that exist now."""
    writer = frame.writeStream.format("parquet").option("path", str(directory)).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def rows_in_files(directory: Path) -> list[dict[str, Any]]:
    """The rows that a query wrote to Parquet files. Read without Spark, whose file sink hides files if the query's
    first batches went to another directory."""
    tables = [pq.read_table(path) for path in sorted(directory.glob("*.parquet"))]
    return pa.concat_tables(tables).to_pylist() if tables else []


def run(query: StreamingQuery) -> list[int]:
    """Runs a query to its end; returns the number of rows of each non-empty batch. Raises the query's error."""
    try:
        query.awaitTermination()
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    finally:
        query.stop()


def in_log_order(rows: Iterable[R]) -> list[R]:
    """Rows by partition, then offset."""
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def pairs_of(rows: Iterable[Row | dict[str, Any]]) -> Pairs:
    """(key, value) of rows, in log order."""
    return [(_bytes(row["key"]), _bytes(row["value"])) for row in in_log_order(rows)]


def by_key(pairs: Pairs) -> dict[bytes | None, list[bytes | None]]:
    """Values of each key, in order."""
    values: dict[bytes | None, list[bytes | None]] = {}
    for key, value in pairs:
        values.setdefault(key, []).append(value)
    return values


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
