"""Aggregations into a topic: whatever the errors and docs/spark-options.md advise must work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from brokerd.client.blocking import BlockingClient
from tests.spark.conftest import NewTopic
from tests.spark.pipelines import pairs_of, read, read_stream, run, write
from tests.support.daemon import DaemonProcess
from tests.support.wait import DEADLINE_S

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "write_aggregates.py"


def readings(spark: SparkSession, servers: str, topic: str, minutes: list[int]) -> None:
    """One reading of sensor `s` in each of these minutes of 2026."""
    start = 1_767_225_600
    frame = spark.createDataFrame([(start + 60 * minute,) for minute in minutes], "seconds long")
    write(frame.selectExpr("'s' AS key", "'1' AS value", "timestamp_seconds(seconds) AS timestamp"), servers, topic)


def counts(frame: DataFrame) -> DataFrame:
    """Readings per sensor and minute, as rows of the sink."""
    return frame.selectExpr("key", "to_json(struct(minute(window.start) AS minute, count)) AS value")


def test_append_with_a_watermark_writes_each_window_once_when_it_is_over(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    source, target = new_topic(1), new_topic(1)
    for part in ([0, 0, 1], [2, 5]):
        readings(spark, daemon.address, source, part)
        windows = read_stream(spark, daemon.address, source).withWatermark("timestamp", "1 minute")
        counted = windows.selectExpr("key", "window(timestamp, '1 minute') AS window").groupBy("key", "window").count()
        writer = counts(counted).writeStream.format("brokerd").option("bootstrap.servers", daemon.address)
        writer = writer.option("topic", target).option("checkpointLocation", str(tmp_path)).outputMode("append")
        run(writer.trigger(availableNow=True).start())
    written = [json.loads(value or b"") for _, value in pairs_of(read(spark, daemon.address, target).collect())]
    assert sorted((one["minute"], one["count"]) for one in written) == [(0, 2), (1, 1), (2, 1)]


def test_update_through_foreach_batch_writes_what_each_batch_changes(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    source, target = new_topic(1), new_topic(1)
    address = daemon.address

    def save(rows: DataFrame, _batch_id: int) -> None:
        rows.write.format("brokerd").option("bootstrap.servers", address).option("topic", target).mode("append").save()

    for part in ([0, 0, 1], [1, 2]):
        readings(spark, daemon.address, source, part)
        windows = read_stream(spark, daemon.address, source).selectExpr("key", "window(timestamp, '1 minute') AS window")
        writer = counts(windows.groupBy("key", "window").count()).writeStream.outputMode("update").foreachBatch(save)
        run(writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start())
    written = [json.loads(value or b"") for _, value in pairs_of(read(spark, daemon.address, target).collect())]
    assert sorted((one["minute"], one["count"]) for one in written) == [(0, 2), (1, 1), (1, 2), (2, 1)]


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [("complete", r"a log cannot be overwritten.*\.withWatermark.*\.foreachBatch\(write\)"), ("update", "Update")],
)
def test_other_output_modes_are_refused(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, tmp_path: Path, mode: str, sentence: str
) -> None:
    topic = new_topic(1)
    frame = read_stream(spark, daemon.address, topic).groupBy("key").count().selectExpr("key", "string(count) AS value")
    writer = frame.writeStream.format("brokerd").option("bootstrap.servers", daemon.address).option("topic", topic)
    with pytest.raises(Exception, match=f"(?s){sentence}"):
        run(writer.outputMode(mode).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start())


@pytest.mark.slow
def test_ctrl_c_ends_the_example_without_a_traceback(
    daemon: DaemonProcess, client: BlockingClient, new_topic: NewTopic, tmp_path: Path
) -> None:
    for topic in ("minutes", "counts"):
        client.create_topic(topic, 1)
    with (tmp_path / "stderr").open("w+") as errors:
        example = subprocess.Popen(
            [sys.executable, str(EXAMPLE), daemon.address, new_topic(1)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "TMPDIR": str(tmp_path)},
            start_new_session=True,
        )
        with example:
            assert example.stdout is not None
            assert "stop with Ctrl-C" in example.stdout.readline(), Path(errors.name).read_text()
            os.killpg(example.pid, signal.SIGINT)  # as a terminal does: the signal reaches Spark and its workers, too
            rest, _ = example.communicate(timeout=DEADLINE_S)
        assert (example.returncode, rest.strip()) == (128 + signal.SIGINT, "stopped")
        assert "Traceback" not in Path(errors.name).read_text()
