"""SQL over topics: tables, views, and when a read is planned. Also states what Spark does not support."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from brokerd.client.blocking import BlockingClient
from brokerd.ids import TopicIdPartition
from tests.spark.conftest import NewTopic
from tests.spark.pipelines import frame_of, read, write
from tests.support.daemon import DaemonProcess
from tests.support.java_patterns import SAME_AS_JAVA, TOPICS

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def rows(spark: SparkSession, topic: str, servers: str, count: int) -> None:
    write(frame_of(spark, [(None, b"v")] * count), servers, topic)


def test_a_table_takes_its_options_where_it_is_created_and_where_it_is_used(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    options = f"`kafka.bootstrap.servers` '{daemon.address}', subscribe '{topic}', topic '{topic}'"
    spark.sql(f"CREATE TABLE events USING brokerd OPTIONS ({options}) COMMENT 'rows of a topic'")
    try:
        assert spark.table("events").columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
        at_use = f"`bootstrap.servers` = '{daemon.address}', subscribe = '{topic}', topic = '{topic}'"
        spark.sql(f"INSERT INTO events WITH ({at_use}) (key, value) VALUES (X'6B', X'76'), (NULL, X'77')")
        query = f"SELECT count(*) AS n FROM events WITH ({at_use})"
        assert spark.sql(query).collect()[0]["n"] == 2
        rows(spark, topic, daemon.address, 3)
        assert spark.sql(query).collect()[0]["n"] == 5, "each statement plans a table again"
        assert spark.read.options(**{"bootstrap.servers": daemon.address, "subscribe": topic}).table("events").count() == 5
        with pytest.raises(Exception, match=r"option 'bootstrap.servers' is missing .*after the table's name in WITH \(\.\.\.\)"):
            spark.sql("SELECT * FROM events").collect()
    finally:
        spark.sql("DROP TABLE events")


def test_a_mistyped_option_of_a_table_is_refused_when_it_is_created(spark: SparkSession, daemon: DaemonProcess) -> None:
    with pytest.raises(Exception, match=r"unknown option 'subscribed' .*did you mean 'subscribe'\?"):
        spark.sql(f"CREATE TABLE wrong USING brokerd OPTIONS (`bootstrap.servers` '{daemon.address}', subscribed 'x')")


def test_a_view_keeps_its_options_and_is_planned_once(spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    rows(spark, topic, daemon.address, 5)
    definition = (
        f"CREATE OR REPLACE TEMPORARY VIEW seen USING brokerd OPTIONS (`bootstrap.servers` '{daemon.address}', subscribe '{topic}')"
    )
    spark.sql(definition)
    assert spark.table("seen").count() == 5
    rows(spark, topic, daemon.address, 2)
    assert spark.table("seen").count() == 5
    spark.sql(definition)
    assert spark.table("seen").count() == 7


def test_a_dataframe_is_planned_once_and_loading_it_again_sees_what_is_new(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, client: BlockingClient
) -> None:
    topic = new_topic(1)
    rows(spark, topic, daemon.address, 5)
    frame = read(spark, daemon.address, topic)
    assert frame.count() == 5
    rows(spark, topic, daemon.address, 5)
    assert frame.count() == 5
    assert read(spark, daemon.address, topic).count() == 10
    topic_id = client.metadata([topic]).topic(topic).topic_id
    client.delete_records({TopicIdPartition(topic_id, 0): 3})
    with pytest.raises(
        Exception, match=r"3 records of .* are gone.*keeps the offsets that its first action found: load\(\) it again"
    ):
        frame.count()
    assert read(spark, daemon.address, topic).count() == 7


def test_with_filter_pushdown_every_action_that_filters_is_planned_anew(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, client: BlockingClient
) -> None:
    topic = new_topic(2)
    rows(spark, topic, daemon.address, 5)
    spark.conf.set(PUSHDOWN, "true")
    try:
        frame = read(spark, daemon.address, topic)
        fresh = frame.where("offset >= 0")
        fresh.createOrReplaceTempView("fresh")
        assert (fresh.count(), spark.table("fresh").count()) == (5, 5)
        rows(spark, topic, daemon.address, 5)
        assert (fresh.count(), spark.table("fresh").count()) == (10, 10)
        topic_id = client.metadata([topic]).topic(topic).topic_id
        ends = {
            row["partition"]: row["n"]
            for row in fresh.groupBy("partition").agg({"offset": "count"}).toDF("partition", "n").collect()
        }
        client.delete_records({TopicIdPartition(topic_id, partition): 1 for partition in ends})
        assert fresh.count() == 10 - len(ends), "an earliest start is resolved again too"
        assert frame.where("partition = 0").count() == ends.get(0, 1) - 1
        assert frame.count() == 10 - len(ends), "no filter is left in the plan of an action without one"
        both = frame.where("partition = 0").unionAll(frame.where("partition = 1"))
        assert both.count() == 10 - len(ends), "nor that of one side in the plan of the other"
    finally:
        spark.conf.unset(PUSHDOWN)


def test_javas_own_patterns_match_what_ours_are_said_to_match(spark: SparkSession) -> None:
    assert spark._jvm is not None
    compile_in_java = spark._jvm.java.util.regex.Pattern.compile
    matched = {
        pattern: tuple(topic for topic in TOPICS if compile_in_java(pattern).matcher(topic).find()) for pattern in SAME_AS_JAVA
    }
    assert matched == SAME_AS_JAVA
