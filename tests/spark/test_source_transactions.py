"""A stream from a topic with transactions: open ones hold it back, aborted ones are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from brokerd.config.client import ProducerConfig
from brokerd.producer.producer import Producer
from tests.spark.conftest import NewTopic
from tests.spark.pipelines import read_stream, rows_in_files, run, start_to_files
from tests.support.daemon import DaemonProcess

PARTITIONS = 2


class GivenUpError(Exception):
    """Ends a transaction without a commit."""


@pytest.fixture
def plain(daemon: DaemonProcess) -> Iterator[Producer]:
    """A producer without transactions."""
    with Producer(ProducerConfig(bootstrap_servers=daemon.address)) as producer:
        yield producer


@pytest.fixture
def transactional(daemon: DaemonProcess, request: pytest.FixtureRequest) -> Iterator[Producer]:
    """A producer whose transactional id is the test's name."""
    name = request.node.name[:100]
    with Producer(ProducerConfig(bootstrap_servers=daemon.address, transactional_id=name)) as producer:
        yield producer


def send(producer: Producer, topic: str, first: int, end: int, *, batches: int = 1) -> None:
    """Sends numbers, spread over the partitions, in `batches` batches per partition."""
    step = -(-(end - first) // batches)
    for begin in range(first, end, step):
        for number in range(begin, min(begin + step, end)):
            producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
        producer.flush()
    assert producer.first_error is None


def aborted(producer: Producer, topic: str, first: int, end: int, *, batches: int = 1) -> None:
    """Sends numbers in a transaction that is aborted."""
    with suppress(GivenUpError), producer.transaction():
        send(producer, topic, first, end, batches=batches)
        raise GivenUpError


def numbers_in(directory: Path) -> list[int]:
    """The numbers that a query wrote."""
    return sorted(int(row["value"]) for row in rows_in_files(directory))


def test_available_now_ends_before_an_open_transaction(
    spark: SparkSession,
    daemon: DaemonProcess,
    new_topic: NewTopic,
    plain: Producer,
    transactional: Producer,
    tmp_path: Path,
) -> None:
    topic, out, checkpoint = new_topic(PARTITIONS), tmp_path / "out", tmp_path / "checkpoint"
    frame = read_stream(spark, daemon.address, topic, maxOffsetsPerTrigger=10)
    send(plain, topic, 0, 30)
    with transactional.transaction():
        send(transactional, topic, 30, 50)
        send(plain, topic, 50, 60)
        assert run(start_to_files(frame, out, checkpoint)) == [10, 10, 10]
        assert run(start_to_files(frame, out, checkpoint)) == []
    sizes = run(start_to_files(frame, out, checkpoint))
    assert max(sizes) <= 10
    assert sum(sizes) == 30
    assert numbers_in(out) == list(range(60))


def test_limit_smaller_than_an_aborted_stretch_still_moves(
    spark: SparkSession,
    daemon: DaemonProcess,
    new_topic: NewTopic,
    plain: Producer,
    transactional: Producer,
    tmp_path: Path,
) -> None:
    topic, out, checkpoint = new_topic(PARTITIONS), tmp_path / "out", tmp_path / "checkpoint"
    send(plain, topic, 0, 10)
    aborted(transactional, topic, 1_000, 1_100)
    send(plain, topic, 10, 20)
    aborted(transactional, topic, 1_100, 1_200, batches=10)
    frame = read_stream(spark, daemon.address, topic, maxOffsetsPerTrigger=30)
    sizes = run(start_to_files(frame, out, checkpoint))
    assert (sum(sizes), numbers_in(out)) == (20, list(range(20)))

    # A running query sees the records after another such stretch.
    query = frame.writeStream.format("memory").queryName("stretch").option("checkpointLocation", str(tmp_path / "memory")).start()
    try:
        query.processAllAvailable()
        aborted(transactional, topic, 1_200, 1_300, batches=10)
        send(plain, topic, 20, 30)
        query.processAllAvailable()
        assert sorted(int(row.value) for row in spark.table("stretch").collect()) == list(range(30))
        assert sum(progress.numInputRows for progress in query.recentProgress) == 30
    finally:
        query.stop()
