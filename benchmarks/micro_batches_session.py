"""One Spark session that runs streaming queries on request and reports how long their micro-batches took. It also runs in a peer's
interpreter, which has no brokerd and may have another PySpark version.

Requests and responses are lines of JSON, on standard input and output; the first response is Spark's version.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.spark_ceiling import DiscardSource

ROWS = 20  # of a micro-batch
_WARM_BATCHES = 10
_TIMEOUT_S = 120


class _CountingReader(SimpleDataSourceStreamReader):
    """ROWS rows for each micro-batch, read by the planning process."""

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[bytes, bytes]], dict[str, int]]:
        end = {"at": start["at"] + ROWS}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[bytes, bytes]]:
        return iter([(b"k%d" % (row % 50), b"%d" % row) for row in range(start["at"], end["at"])])

    def commit(self, end: dict[str, int]) -> None:
        return


class CountingSource(DataSource):
    """The ceiling of a source without tasks: `format("counting")` generates rows as PySpark's simple readers do."""

    @classmethod
    def name(cls) -> str:
        return "counting"

    def schema(self) -> str:
        return "key binary, value binary"

    def simpleStreamReader(self, schema: object) -> SimpleDataSourceStreamReader:
        return _CountingReader()


def _session(settings: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder.master("local[2]").appName("micro-batches").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "2g").config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.sql.streaming.numRecentProgressUpdates", "1000")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(DiscardSource)
    spark.dataSource.register(CountingSource)
    if settings.get("spark.jars") is None:
        from brokerd.datasource.source import BrokerdDataSource

        spark.dataSource.register(BrokerdDataSource)
    return spark


def _rows(spark: SparkSession, source: dict[str, str]) -> DataFrame:
    if source["format"] == "rate-micro-batch":
        rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2).load()
        return rate.selectExpr("binary(string(value % 50)) AS key", "binary(string(value)) AS value")
    return spark.readStream.format(source["format"]).options(**_options(source)).load().select("key", "value")


def _writer(rows: DataFrame, sink: dict[str, str]) -> DataStreamWriter:
    if sink["format"] != "append_to":
        return rows.writeStream.format(sink["format"]).options(**_options(sink))
    from brokerd.spark import append_to

    return rows.writeStream.foreachBatch(append_to(None, _options(sink)))


def _options(side: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in side.items() if name != "format"}


def _times_ms(query: StreamingQuery, batches: int) -> list[int]:
    """The duration of each micro-batch with rows, without the first ones."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        done = [progress for progress in query.recentProgress if progress.numInputRows > 0]
        if len(done) >= batches + _WARM_BATCHES:
            return [progress.durationMs["triggerExecution"] for progress in done[_WARM_BATCHES:][:batches]]
        if query.exception() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{len(done)} micro-batches, then: {query.exception() or 'nothing'}")
        time.sleep(0.2)


def main() -> None:
    """Answers requests {"source", "sink", "batches"} until standard input ends; the argument is the settings of the session."""
    spark = _session(json.loads(sys.argv[1]))
    print(json.dumps(spark.version), flush=True)
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        with tempfile.TemporaryDirectory(prefix="brokerd-bench-", ignore_cleanup_errors=True) as checkpoint:
            writer = _writer(_rows(spark, asked["source"]), asked["sink"])
            query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds").start()
            try:
                times = _times_ms(query, asked["batches"])
            finally:
                query.stop()
        p90 = sorted(times)[len(times) * 9 // 10]
        print(json.dumps({"median_ms": statistics.median(times), "p90_ms": p90}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
