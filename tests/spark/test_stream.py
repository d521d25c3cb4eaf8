"""readStream and writeStream: restarts from a checkpoint, limits, replays, and every way in which records can be lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from brokerd.client.blocking import BlockingClient
from brokerd.client.groups import lag_of
from tests.spark.conftest import NewTopic
from tests.spark.pipelines import (
    Pairs,
    by_key,
    flights,
    frame_of,
    pairs_of,
    read,
    read_stream,
    rows_in_files,
    run,
    start_to_files,
    start_to_topic,
    write,
)
from tests.support.daemon import DaemonProcess


def numbers(first: int, end: int) -> Pairs:
    return [(b"%d" % (number % 7), b"%d" % number) for number in range(first, end)]


def test_stream_through_two_topics_and_a_restart_reads_everything_once(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    first, second = new_topic(4), new_topic(3)
    given = flights(20_000)
    for part in (given[:12_000], given[12_000:]):
        write(frame_of(spark, part), daemon.address, first)
        copied = read_stream(spark, daemon.address, first, maxOffsetsPerTrigger=5_000).select("key", "value")
        sizes = run(start_to_topic(copied, daemon.address, second, tmp_path / "copy"))
        assert sum(sizes) == len(part)
        assert max(sizes) <= 5_000
        assert len(sizes) >= len(part) // 5_000
    assert by_key(pairs_of(read(spark, daemon.address, second).collect())) == by_key(given)


def test_progress_tells_offsets_and_where_the_log_ends(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    write(frame_of(spark, numbers(0, 50)), daemon.address, topic)
    query = start_to_files(
        read_stream(spark, daemon.address, topic, maxOffsetsPerTrigger=20), tmp_path / "progress", tmp_path / "checkpoint"
    )
    assert run(query) == [20, 20, 10]
    (source,) = query.recentProgress[0].sources
    assert json.loads(source.endOffset)[topic] == {"0": 20}
    assert json.loads(source.latestOffset) == {topic: {"0": 51}}  # the transaction's marker takes an offset


def test_a_column_may_have_a_comment(spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, tmp_path: Path) -> None:
    topic = new_topic(1)
    write(frame_of(spark, numbers(0, 10)), daemon.address, topic)
    reader = spark.readStream.format("brokerd").options(subscribe=topic, startingOffsets="earliest")
    frame = reader.option("bootstrap.servers", daemon.address).schema("key binary COMMENT 'the key', value binary").load()
    assert run(start_to_files(frame, tmp_path / "rows", tmp_path / "checkpoint")) == [10]
    assert [row["value"] for row in rows_in_files(tmp_path / "rows")] == [value for _, value in numbers(0, 10)]


def test_a_limit_of_bytes_is_kept_and_a_record_batch_that_is_larger_still_goes(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    rows = spark.range(300).selectExpr("string(id) AS key", "repeat(string(id % 10), 1000) AS value").coalesce(1)
    write(rows, daemon.address, topic, **{"batch.size": 20_000})
    for limit, rows_max in ((200_000, 200), (1, 20)):
        frame = read_stream(spark, daemon.address, topic, maxBytesPerTrigger=limit, maxOffsetsPerTrigger=900)
        sizes = run(start_to_files(frame, tmp_path / f"rows-{limit}", tmp_path / f"checkpoint-{limit}"))
        assert sum(sizes) == 300
        assert max(sizes) <= rows_max
        assert len(rows_in_files(tmp_path / f"rows-{limit}")) == 300
        if limit > 1:
            assert len(sizes) <= 3, "it is used up, too"


def test_a_query_is_a_group_whose_lag_the_broker_shows(
    spark: SparkSession, daemon: DaemonProcess, client: BlockingClient, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    write(frame_of(spark, numbers(0, 50)), daemon.address, topic)
    frame = read_stream(spark, daemon.address, topic, groupIdPrefix=topic)
    query = start_to_files(frame, tmp_path / "rows", tmp_path / "checkpoint")
    assert run(query) == [50]
    write(frame_of(spark, numbers(50, 80)), daemon.address, topic)
    (group,) = client.list_groups(topic + "-")
    (source,) = query.recentProgress[0].sources
    assert group.group_id == f"{topic}-{json.loads(source.endOffset)['@brokerd']['sourceId']}"
    (partition,) = client.describe_group(group.group_id).partitions
    assert (partition.topic, partition.committed.offset, lag_of(partition)) == (topic, 51, 31)
    assert read(spark, daemon.address, topic, startingOffsets="committed", **{"group.id": group.group_id}).count() == 30
    assert read(spark, daemon.address, topic, startingOffsets="-10").count() == 10, "markers do not count"
    assert read(spark, daemon.address, topic, startingOffsets="-1h").count() == 80


def test_a_query_is_named_in_the_transactions_by_its_query_name(
    spark: SparkSession, daemon: DaemonProcess, client: BlockingClient, new_topic: NewTopic, tmp_path: Path
) -> None:
    source, streamed, by_batch = new_topic(1), new_topic(1), new_topic(1)
    write(frame_of(spark, numbers(0, 5)), daemon.address, source)
    rows = read_stream(spark, daemon.address, source, **{"group.id": f"bills of {source}"}).select("key", "value")
    sink = rows.writeStream.format("brokerd").option("bootstrap.servers", daemon.address).option("topic", streamed)
    run(sink.queryName(f"bills of {source}").option("checkpointLocation", str(tmp_path / "one")).trigger(availableNow=True).start())
    each = rows.writeStream.foreachBatch(lambda frame, _: write(frame, daemon.address, by_batch)).trigger(availableNow=True)
    run(each.queryName(f"copies of {source}").option("checkpointLocation", str(tmp_path / "two")).start())
    owners = [listing.owner for listing in client.list_transactions()]
    assert [group.group_id for group in client.list_groups(f"bills of {source}")] == [f"bills of {source}"]
    assert any(owner.startswith(f"streaming query bills of {source} (") for owner in owners)
    assert any(owner.startswith(f"streaming query copies of {source} (") for owner in owners)


def test_a_running_query_sees_what_is_appended_and_stops(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(2)
    frame = read_stream(spark, daemon.address, topic, startingOffsets="latest")
    query = frame.writeStream.format("memory").queryName("running").option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        for part in range(3):
            write(frame_of(spark, numbers(part * 10, part * 10 + 10)), daemon.address, topic)
            query.processAllAvailable()
            assert spark.table("running").count() == part * 10 + 10
    finally:
        query.stop()
    assert not query.isActive


def test_headers_and_a_new_partition_arrive_in_a_stream(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, client: BlockingClient, tmp_path: Path
) -> None:
    topic = new_topic(1)
    frame = spark.sql("SELECT 'a' AS value, array(named_struct('key', 'h', 'value', binary('1'))) AS headers, 0 AS partition")
    write(frame, daemon.address, topic, includeHeaders="true")
    assert run(
        start_to_files(
            read_stream(spark, daemon.address, topic, includeHeaders="true"), tmp_path / "grown1", tmp_path / "checkpoint"
        )
    ) == [1]
    client.create_partitions(topic, 3)
    write(spark.sql("SELECT 'b' AS value, 2 AS partition"), daemon.address, topic)
    assert run(
        start_to_files(
            read_stream(spark, daemon.address, topic, includeHeaders="true"), tmp_path / "grown2", tmp_path / "checkpoint"
        )
    ) == [1]
    assert [row["headers"] for row in rows_in_files(tmp_path / "grown1")] == [[{"key": "h", "value": b"1"}]]
    assert [(row["partition"], row["offset"], row["headers"]) for row in rows_in_files(tmp_path / "grown2")] == [(2, 0, None)]


def test_replayed_batch_reads_the_same_rows_although_the_log_has_grown(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    source, target = new_topic(2), new_topic(1)
    write(frame_of(spark, numbers(0, 30)), daemon.address, source)
    frame = read_stream(spark, daemon.address, source).select("key", "value")
    assert run(start_to_topic(frame, daemon.address, target, tmp_path)) == [30]
    # As if the driver had died after the write and before Spark recorded it.
    for name in ("0", ".0.crc"):
        (tmp_path / "commits" / name).unlink(missing_ok=True)
    write(frame_of(spark, numbers(30, 40)), daemon.address, source)
    assert run(start_to_topic(frame, daemon.address, target, tmp_path)) == [30, 10]
    # The batch was already committed: the replay reads it and writes nothing.
    rows = pairs_of(read(spark, daemon.address, target).collect())
    assert sorted(rows[:30]) == sorted(numbers(0, 30))
    assert sorted(rows[30:]) == sorted(numbers(30, 40))


def test_a_pending_batch_and_new_partitions_do_not_stop_available_now(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, client: BlockingClient, tmp_path: Path
) -> None:
    topic = new_topic(1)
    write(frame_of(spark, numbers(0, 8)), daemon.address, topic)
    batches: list[Pairs] = []
    is_broken = True

    def keep(frame: DataFrame, _batch_id: int) -> None:
        assert not is_broken, "broken"
        batches.append(pairs_of(frame.collect()))

    def once_more(limit: int) -> StreamingQuery:
        writer = read_stream(spark, daemon.address, topic, maxOffsetsPerTrigger=limit).writeStream.foreachBatch(keep)
        return writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()

    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="broken"):
            run(once_more(5))
        client.create_partitions(topic, client.metadata([topic]).topic(topic).partition_count + 1)
    write(spark.range(100, 106).selectExpr("string(id) AS value", "int(id % 3) AS partition"), daemon.address, topic)
    is_broken = False
    run(once_more(2**63 - 1))
    assert batches[0] == numbers(0, 5), "as it was planned"
    assert batches[1][:3] == numbers(5, 8)
    assert sorted(batches[1][3:]) == [(None, b"%d" % number) for number in range(100, 106)]
    assert len(batches) == 2, "the largest limit that there is limits nothing"


def test_replayed_batch_is_there_twice_at_least_once(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    source, target = new_topic(2), new_topic(1)
    write(frame_of(spark, numbers(0, 30)), daemon.address, source)
    frame = read_stream(spark, daemon.address, source).select("key", "value")
    assert run(start_to_topic(frame, daemon.address, target, tmp_path, delivery="at_least_once")) == [30]
    for name in ("0", ".0.crc"):
        (tmp_path / "commits" / name).unlink(missing_ok=True)
    assert run(start_to_topic(frame, daemon.address, target, tmp_path, delivery="at_least_once")) == [30]
    rows = pairs_of(read(spark, daemon.address, target).collect())
    assert sorted(rows[:30]) == sorted(rows[30:]) == sorted(numbers(0, 30))


def test_topic_created_anew_stops_the_query_or_is_read_from_its_start(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, client: BlockingClient, tmp_path: Path
) -> None:
    topic = new_topic(1)
    write(frame_of(spark, numbers(0, 30)), daemon.address, topic)
    assert run(start_to_files(read_stream(spark, daemon.address, topic), tmp_path / "anew1", tmp_path / "checkpoint")) == [30]
    client.delete_topics([topic])
    client.create_topic(topic, 1)
    write(frame_of(spark, numbers(100, 150)), daemon.address, topic)
    with pytest.raises(StreamingQueryException, match=f"topic '{topic}' is not the one that this query has read"):
        run(start_to_files(read_stream(spark, daemon.address, topic), tmp_path / "anew2", tmp_path / "checkpoint"))
    tolerant = read_stream(spark, daemon.address, topic, failOnDataLoss="false")
    assert run(start_to_files(tolerant, tmp_path / "anew3", tmp_path / "checkpoint")) == [50]
    assert pairs_of(rows_in_files(tmp_path / "anew3")) == numbers(100, 150)
