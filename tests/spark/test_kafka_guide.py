"""Goal: the queries of Spark's Kafka integration guide run here with only format and address changed. Method: each kind of query in
the guide, with its options and columns.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.streaming.readwriter import DataStreamReader

from brokerd.client.blocking import BlockingClient
from tests.spark.conftest import NewTopic
from tests.spark.pipelines import run
from tests.support.daemon import DaemonProcess

FORMAT = "brokerd"
SERVERS = "kafka.bootstrap.servers"
ROWS = 20


class Guide:
    """Two topics as in the guide, `<name>1` with two partitions and `<name>2` with one, each with ROWS rows."""

    def __init__(self, spark: SparkSession, daemon: DaemonProcess, client: BlockingClient, name: str) -> None:
        self.spark, self.servers, self.name = spark, daemon.address, name
        self.one, self.two, self.out = f"{name}1", f"{name}2", f"out-of-{name}"
        for topic, partitions in ((self.one, 2), (self.two, 1), (self.out, 1)):
            client.create_topic(topic, partitions)
        for topic, partitions in ((self.one, 2), (self.two, 1)):
            rows = spark.range(ROWS).selectExpr("string(id) AS key", "string(id) AS value", f"int(id % {partitions}) AS partition")
            self.write(rows.coalesce(1), topic)

    def write(self, rows: DataFrame, topic: str) -> None:
        rows.write.format(FORMAT).option(SERVERS, self.servers).option("topic", topic).mode("append").save()

    def batch(self) -> DataFrameReader:
        return self.spark.read.format(FORMAT).option(SERVERS, self.servers)

    def stream(self) -> DataStreamReader:
        return self.spark.readStream.format(FORMAT).option(SERVERS, self.servers)

    def read_out(self) -> list[Row]:
        frame = self.batch().option("subscribe", self.out).load().selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)")
        return sorted(frame.collect())


@pytest.fixture
def guide(spark: SparkSession, daemon: DaemonProcess, client: BlockingClient, new_topic: NewTopic) -> Guide:
    return Guide(spark, daemon, client, new_topic(1) + "-guide")


def as_text(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)")


def test_batch_queries(guide: Guide) -> None:
    whole = as_text(guide.batch().option("subscribe", guide.one).load())
    assert sorted(int(row["value"]) for row in whole.collect()) == list(range(ROWS))
    starts = {guide.one: {"0": 3, "1": -2}, guide.two: {"0": -2}}
    ends = {guide.one: {"0": 5, "1": -1}, guide.two: {"0": -1}}
    several = (
        guide.batch()
        .option("subscribe", f"{guide.one},{guide.two}")
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .load()
    )
    counts = {(row["topic"], row["partition"]): row["count"] for row in several.groupBy("topic", "partition").count().collect()}
    assert counts == {(guide.one, 0): 2, (guide.one, 1): ROWS // 2, (guide.two, 0): ROWS}
    pattern = (
        guide.batch()
        .option("subscribePattern", f"^{guide.name}.*")
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .load()
    )
    assert as_text(pattern).count() == 2 * ROWS
    assigned = guide.batch().option("assign", json.dumps({guide.one: [1], guide.two: [0]})).load()
    assert {(row["topic"], row["partition"]) for row in assigned.collect()} == {(guide.one, 1), (guide.two, 0)}


def test_batch_queries_with_headers_and_from_a_time(guide: Guide) -> None:
    frame = guide.batch().option("subscribe", guide.one).option("includeHeaders", "true").load()
    assert frame.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", "headers").count() == ROWS
    timed = guide.batch().option("subscribe", guide.one).option("startingTimestamp", "1000").option("endingTimestamp", "2000")
    assert timed.load().count() == 0
    by_partition = json.dumps({guide.one: {"0": 1000, "1": 1000}})
    assert guide.batch().option("subscribe", guide.one).option("startingOffsetsByTimestamp", by_partition).load().count() == ROWS


def test_streaming_queries(guide: Guide, tmp_path: Path) -> None:
    readers = {
        "several": guide.stream().option("subscribe", f"{guide.one},{guide.two}").option("includeHeaders", "true"),
        "pattern": guide.stream().option("subscribePattern", f"^{guide.name}.*"),
        "assigned": guide.stream().option("assign", json.dumps({guide.one: [0]})),
    }
    expected = {"several": 2 * ROWS, "pattern": 2 * ROWS, "assigned": ROWS // 2}
    for name, reader in readers.items():
        frame = as_text(reader.option("startingOffsets", "earliest").load())
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / name / "rows"))
        query = writer.option("checkpointLocation", str(tmp_path / name / "checkpoint")).trigger(availableNow=True).start()
        assert sum(run(query)) == expected[name], name


def test_streaming_writes(guide: Guide, tmp_path: Path) -> None:
    source = as_text(guide.stream().option("subscribe", guide.two).option("startingOffsets", "earliest").load())
    to_one = source.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)").writeStream.format(FORMAT)
    run(
        to_one.option(SERVERS, guide.servers)
        .option("topic", guide.out)
        .option("checkpointLocation", str(tmp_path / "one"))
        .trigger(availableNow=True)
        .start()
    )
    by_column = source.selectExpr(f"'{guide.out}' AS topic", "CAST(key AS STRING)", "CAST(value AS STRING)").writeStream
    run(
        by_column.format(FORMAT)
        .option(SERVERS, guide.servers)
        .option("checkpointLocation", str(tmp_path / "column"))
        .trigger(availableNow=True)
        .start()
    )
    assert guide.read_out() == sorted(Row(key=str(one), value=str(one)) for one in range(ROWS) for _ in range(2))


def test_batch_writes_need_a_mode_which_spark_demands_of_every_python_source(guide: Guide) -> None:
    frame = guide.spark.range(3).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    to_one = frame.write.format(FORMAT).option(SERVERS, guide.servers).option("topic", guide.out)
    with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        to_one.save()
    to_one.mode("append").save()
    by_column = frame.selectExpr(f"'{guide.out}' AS topic", "key", "value").write.format(FORMAT).option(SERVERS, guide.servers)
    by_column.mode("append").save()
    assert guide.read_out() == sorted(Row(key=str(one), value=str(one)) for one in range(3) for _ in range(2))
