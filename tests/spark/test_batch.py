"""df.write and spark.read with a real Spark and a real broker: rows read equal rows written."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from brokerd.client.blocking import BlockingClient
from brokerd.client.metadata import id_of
from brokerd.client.offsets import OffsetSpec
from tests.spark.conftest import NewTopic
from tests.spark.pipelines import by_key, flights, flights_of_file, frame_of, in_log_order, pairs_of, read, write
from tests.support.daemon import DaemonProcess

FLIGHTS = os.environ.get("BROKERD_TEST_FLIGHTS")  # a JSON file of flights, instead of generated ones
HEADERS_DDL = "array<struct<key:string,value:binary>>"


def test_round_trip_keeps_every_byte_and_the_order_of_each_key(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic
) -> None:
    given = flights_of_file(Path(FLIGHTS)) if FLIGHTS else flights(20_000)
    topic = new_topic(4)
    write(frame_of(spark, given, tasks=4), daemon.address, topic)
    rows = read(spark, daemon.address, topic).collect()
    assert len(rows) == len(given)
    assert by_key(pairs_of(rows)) == by_key(given)
    partitions_of_key: dict[bytes, set[int]] = {}
    for row in rows:
        partitions_of_key.setdefault(bytes(row["key"]), set()).add(row["partition"])
    assert all(len(partitions) == 1 for partitions in partitions_of_key.values())
    for partition in range(4):
        offsets = [row["offset"] for row in in_log_order(rows) if row["partition"] == partition]
        assert offsets == list(range(len(offsets)))


def test_all_columns_come_back(spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC)
    frame = spark.createDataFrame(
        [("k", "v", 2, moment, [("a", bytearray(b"1")), ("a", None)]), (None, None, None, None, None), ("k2", "", 0, moment, [])],
        f"key string, value string, partition int, timestamp timestamp, headers {HEADERS_DDL}",
    )
    write(frame.coalesce(1), daemon.address, topic)
    read_frame = read(spark, daemon.address, topic, includeHeaders="true")
    assert read_frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    rows = {row["key"] and bytes(row["key"]): row for row in read_frame.collect()}
    first = rows[b"k"]
    assert (first["topic"], first["partition"], first["offset"], first["timestampType"]) == (topic, 2, 0, 0)
    assert bytes(first["value"]) == b"v"
    assert first["timestamp"].timestamp() == moment.timestamp()
    assert [(name, value and bytes(value)) for name, value in first["headers"]] == [("a", b"1"), ("a", None)]
    assert rows[None]["value"] is None
    assert rows[None]["headers"] is None
    assert read_frame.where("headers IS NULL").count() == 2
    assert abs(rows[None]["timestamp"].timestamp() - datetime.datetime.now(datetime.UTC).timestamp()) < 600
    assert (rows[b"k2"]["partition"], bytes(rows[b"k2"]["value"])) == (0, b"")


def test_topic_column_parts_rows_and_a_topic_copies_to_another_as_it_is(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic
) -> None:
    left, right, copy = new_topic(1), new_topic(1), new_topic(1)
    frame = spark.range(100).selectExpr("string(id) AS value", f"if(id % 3 = 0, '{left}', '{right}') AS topic").coalesce(1)
    write(frame, daemon.address)
    assert [value for _, value in pairs_of(read(spark, daemon.address, left).collect())] == [b"%d" % n for n in range(0, 100, 3)]
    write(read(spark, daemon.address, f"{left},{right}"), daemon.address, copy)
    assert read(spark, daemon.address, copy).count() == 100


def test_where_reads_what_it_describes_whatever_columns_are_asked_for(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    rows = "string(id) AS value, int(id % 2) AS partition, timestamp_seconds(1767225600 + id div 2 * 60) AS timestamp"
    write(spark.range(1000).selectExpr(*rows.split(", ")).coalesce(1), daemon.address, topic)
    where = "timestamp >= '2026-01-01 01:00:00Z' AND timestamp < '2026-01-01 10:00:00+09:00' AND offset < 400"
    assert read(spark, daemon.address, topic, where=where).count() == 0
    where = f"topic = '{topic}' AND partition IN (1, 7) AND timestamp BETWEEN '2026-01-01 01:00:00Z' AND '2026-01-01 02:00:00Z'"
    reader = spark.read.format("brokerd").options(subscribe=topic, where=where).option("bootstrap.servers", daemon.address)
    values = [bytes(row["value"]) for row in reader.schema("value BINARY").load().collect()]
    assert values == [b"%d" % (2 * minute + 1) for minute in range(60, 121)]
    with pytest.raises(Exception, match="where is not understood at 'OR partition = 2': expected AND or the end"):
        read(spark, daemon.address, topic, where="partition = 1 OR partition = 2").collect()


def test_reads_from_a_time(spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    for hour in range(3):
        write(
            spark.sql(f"SELECT '{hour}' AS value, timestamp_seconds({1_767_225_600 + 3600 * hour}) AS timestamp"),
            daemon.address,
            topic,
        )
    rows = read(spark, daemon.address, topic, startingTimestamp=(1_767_225_600 + 1800) * 1000).collect()
    assert [value for _, value in pairs_of(rows)] == [b"1", b"2"]


def test_empty_writes_and_reads(spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    write(spark.range(0).selectExpr("string(id) AS value"), daemon.address, topic)
    assert read(spark, daemon.address, topic).collect() == []


def test_rows_of_a_mebibyte_pass(spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    frame = spark.range(24).selectExpr("string(id % 5) AS key", "repeat(string(id % 10), 1048576) AS value").coalesce(1)
    write(frame, daemon.address, topic)
    sizes = read(spark, daemon.address, topic).selectExpr("length(value) AS size").collect()
    assert [row["size"] for row in sizes] == [1_048_576] * 24


def test_a_record_that_is_too_large_names_key_and_limit(spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic) -> None:
    topic = new_topic(1, **{"max.message.bytes": "1024"})
    with pytest.raises(Exception, match=r"max\.message\.bytes"):
        write(spark.sql("SELECT 'the-key' AS key, repeat('x', 5000) AS value"), daemon.address, topic)


@pytest.mark.parametrize(
    ("columns", "options", "mode", "sentence"),
    [
        ("string(id) AS value", {"topics": "x"}, "append", "unknown option 'topics' .*did you mean 'topic'?"),
        ("string(id) AS value", {}, "overwrite", r"a log cannot be overwritten: write with \.mode\(\"append\"\)"),
        ("string(id) AS v", {}, "append", "column 'value' is missing"),
        ("string(id) AS value", {"topic": "no-such-topic"}, "append", "topic 'no-such-topic' does not exist: create it"),
    ],
)
def test_wrong_writes_fail_on_the_driver_with_a_sentence(
    spark: SparkSession,
    daemon: DaemonProcess,
    new_topic: NewTopic,
    client: BlockingClient,
    columns: str,
    options: dict[str, str],
    mode: str,
    sentence: str,
) -> None:
    topic = new_topic(1)
    writer = spark.range(3).selectExpr(*columns.split(", ")).write.format("brokerd").option("bootstrap.servers", daemon.address)
    with pytest.raises(AnalysisException, match=sentence):
        writer.option("topic", topic).options(**options).mode(mode).save()
    tp = id_of(client.metadata([topic]).topic(topic), 0)
    end = client.list_offsets({tp: OffsetSpec.LATEST})[tp]
    assert not isinstance(end, Exception)
    assert end.offset == 0


def test_wrong_reads_fail_with_a_sentence(spark: SparkSession, daemon: DaemonProcess) -> None:
    with pytest.raises(Exception, match="topic 'no-such-topic' does not exist"):
        read(spark, daemon.address, "no-such-topic").collect()
    for reader in (spark.read, spark.readStream):
        with pytest.raises(AnalysisException, match="exactly one of subscribe, subscribePattern and assign is needed"):
            reader.format("brokerd").option("bootstrap.servers", "127.0.0.1:1").load()


def test_a_column_that_stands_twice_in_a_schema_is_named(spark: SparkSession) -> None:
    reader = spark.read.format("brokerd").option("bootstrap.servers", "127.0.0.1:1").option("subscribe", "a")
    with pytest.raises(Exception, match="column 'value' is given twice"):
        reader.schema("value binary, value binary").load().collect()


def test_unreachable_broker_says_address_and_how_long_it_tried(spark: SparkSession) -> None:
    options = {"default.api.timeout.ms": 300}
    with pytest.raises(Exception, match=r"127\.0\.0\.1:9"):
        read(spark, "127.0.0.1:9", "any", **options).collect()
    with pytest.raises(Exception, match=r"127\.0\.0\.1:9"):
        write(spark.sql("SELECT 'v' AS value"), "127.0.0.1:9", "any", **options)
