"""One source read more than once: joined or united with itself, or a micro-batch that several actions read."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import NewTopic
from tests.spark.pipelines import Pairs, frame_of, pairs_of, read, read_stream, write
from tests.support.daemon import DaemonProcess


def numbers(first: int, end: int) -> Pairs:
    return [(None, b"%d" % number) for number in range(first, end)]


def test_a_stream_joined_with_itself_is_one_source(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(2)
    values = read_stream(spark, daemon.address, topic).selectExpr("int(string(value)) AS value", "int(string(value)) % 5 AS key")
    joined = values.alias("l").join(values.alias("r"), "key").selectExpr("l.value AS l", "r.value AS r")
    query = joined.writeStream.format("memory").queryName("joined").option("checkpointLocation", str(tmp_path)).start()
    try:
        for part in (numbers(1, 3), numbers(3, 7)):
            write(frame_of(spark, part), daemon.address, topic)
            query.processAllAvailable()
        pairs = sorted((row["l"], row["r"]) for row in spark.table("joined").collect())
        assert pairs == sorted([(1, 1), (1, 6), (2, 2), (3, 3), (4, 4), (5, 5), (6, 1), (6, 6)])
        assert {len(progress.sources) for progress in query.recentProgress} == {1}
    finally:
        query.stop()


def test_every_action_on_a_micro_batch_sees_the_same_rows_whatever_is_appended(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    write(frame_of(spark, numbers(0, 4)), daemon.address, topic)
    seen: list[tuple[Pairs, int, Pairs]] = []

    def twice(frame: DataFrame, batch_id: int) -> None:
        before = pairs_of(frame.collect())
        if batch_id == 0:
            write(frame_of(spark, numbers(4, 9)), daemon.address, topic)
        seen.append((before, frame.count(), pairs_of(frame.collect())))

    query = read_stream(spark, daemon.address, topic).writeStream.foreachBatch(twice)
    running = query.option("checkpointLocation", str(tmp_path)).start()
    try:
        running.processAllAvailable()
    finally:
        running.stop()
    assert seen == [(numbers(0, 4), 4, numbers(0, 4)), (numbers(4, 9), 5, numbers(4, 9))]


def test_a_dataframe_united_with_itself_has_each_row_twice(spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    write(frame_of(spark, numbers(0, 20)), daemon.address, topic)
    frame = read(spark, daemon.address, topic, minPartitions=5)
    assert sorted(pairs_of(frame.union(frame).collect())) == sorted(2 * numbers(0, 20))
    assert not frame.isEmpty()
    assert len(frame.take(3)) == 3
