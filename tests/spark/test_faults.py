"""The broker is killed under Spark: client retries ride over it, nothing is lost, nothing is there twice."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

from brokerd.client.blocking import BlockingClient
from brokerd.client.consumer.offsets import READ_UNCOMMITTED, OffsetSpec
from brokerd.config.client import ClientConfig
from brokerd.ids import TopicPartition
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

ROWS = 20_000
PARTITIONS = 4


@pytest.fixture
def own_daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    """A broker that may be killed."""
    with DaemonProcess(tmp_path / "data") as process:
        yield process


class Killer:
    """Kills the broker once a topic holds `rows` records, and starts it again at once, in a thread of its own. From then on there
    is a file `mark`.
    """

    def __init__(self, daemon: DaemonProcess, topic: str, rows: int, mark: Path) -> None:
        self._daemon = daemon
        self._topic = topic
        self._rows = rows
        self._mark = mark
        self._is_over = threading.Event()
        self.rows_at_kill = -1
        self._thread = threading.Thread(target=self._run, name="killer")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        with BlockingClient(ClientConfig(bootstrap_servers=self._daemon.address)) as client:
            while (rows := records_in(client, self._topic)) < self._rows:
                if self._is_over.wait(0.002):
                    return
        self._daemon.kill()
        self.rows_at_kill = rows
        self._mark.touch()
        self._daemon.restart()


def records_in(client: BlockingClient, topic: str) -> int:
    """Also those that are not committed yet: rows of a micro-batch that is being written."""
    latest = {TopicPartition(topic, number): OffsetSpec.LATEST for number in range(PARTITIONS)}
    ends = client.list_offsets_by_name(latest, READ_UNCOMMITTED)
    return sum(end.offset for end in ends.values() if not isinstance(end, Exception))


def created(daemon: DaemonProcess, *topics: str) -> None:
    with BlockingClient(ClientConfig(bootstrap_servers=daemon.address)) as client:
        for topic in topics:
            client.create_topic(topic, PARTITIONS)


def slowly(frame: DataFrame) -> DataFrame:
    """The same rows, some time between some of them, more towards the end, so that a kill falls into the middle of a task."""
    pause = f"if(n % 250 = 0, java_method('java.lang.Thread', 'sleep', if(n < {ROWS // 2}, 10L, 100L)), '') IS NOT NULL"
    return frame.where(pause).select("key", "value")


def held_back(frame: DataFrame, mark: Path) -> DataFrame:
    """The same rows, the last quarter of them only once there is a file `mark`: so a kill falls into the middle of the work,
    however fast that is.
    """
    path, first_held, looks = str(mark), ROWS * 3 // 4, 60_000

    def may_come(value: bytes) -> bool:  # in a worker, which cannot import the tests
        if json.loads(bytes(value))["number"] >= first_held:
            pause = threading.Event()
            for look in range(looks):
                if os.path.exists(path):
                    break
                assert look + 1 < looks, "the broker was not killed"
                pause.wait(0.002)
        return True

    return frame.where(udf(may_come, "boolean", useArrow=False)("value")).select("key", "value")


def numbered(spark: SparkSession, pairs: Pairs) -> DataFrame:
    rows = [(number, key, value) for number, (key, value) in enumerate(pairs)]
    return spark.createDataFrame(rows, "n int, key binary, value binary").repartition(2, "key").sortWithinPartitions("n")


@pytest.fixture
def small_arrow_batches(spark: SparkSession) -> Iterator[None]:
    """Rows reach the sink as they come, not ten thousand at a time."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(name, "500")
    yield
    spark.conf.unset(name)


def exactly_the_input(spark: SparkSession, daemon: DaemonProcess, topic: str, given: Pairs) -> None:
    rows = read(spark, daemon.address, topic).collect()
    assert len(rows) == len(given)
    assert by_key(pairs_of(rows)) == by_key(given)


@pytest.mark.usefixtures("small_arrow_batches")
def test_kill_in_the_middle_of_a_batch_write(spark: SparkSession, own_daemon: DaemonProcess, tmp_path: Path) -> None:
    given = flights(ROWS)
    created(own_daemon, "events")
    with Killer(own_daemon, "events", ROWS // 4, tmp_path / "killed") as killer:
        write(slowly(numbered(spark, given)), own_daemon.address, "events")
    assert 0 < killer.rows_at_kill < ROWS
    exactly_the_input(spark, own_daemon, "events", given)


def test_kill_in_the_middle_of_a_streaming_copy(spark: SparkSession, own_daemon: DaemonProcess, tmp_path: Path) -> None:
    given = flights(ROWS)
    created(own_daemon, "from", "to")
    write(frame_of(spark, given), own_daemon.address, "from")
    copied = held_back(read_stream(spark, own_daemon.address, "from", maxOffsetsPerTrigger=ROWS // 8), tmp_path / "killed")
    with Killer(own_daemon, "to", ROWS // 3, tmp_path / "killed") as killer:
        run(start_to_topic(copied, own_daemon.address, "to", tmp_path / "copy"))
    assert 0 < killer.rows_at_kill < ROWS
    exactly_the_input(spark, own_daemon, "to", given)


def test_broker_that_stays_away_fails_the_batch_and_a_restart_completes_it(
    spark: SparkSession, own_daemon: DaemonProcess, tmp_path: Path
) -> None:
    given = flights(1_000)
    created(own_daemon, "events")
    write(frame_of(spark, given), own_daemon.address, "events")
    own_daemon.kill()
    impatient = read_stream(spark, own_daemon.address, "events", **{"default.api.timeout.ms": 500})
    with pytest.raises(Exception, match=rf"127\.0\.0\.1:{own_daemon.port}"):
        run(start_to_files(impatient, tmp_path / "out", tmp_path / "checkpoint"))
    own_daemon.restart()
    frame = read_stream(spark, own_daemon.address, "events")
    run(start_to_files(frame, tmp_path / "out", tmp_path / "checkpoint"))
    assert by_key(pairs_of(rows_in_files(tmp_path / "out"))) == by_key(given)
