"""The broker is killed under Spark: clients retry until it is back, and no row is lost or duplicated."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

from brokerd.testing import Broker
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

ROWS = 20_000
PARTITIONS = 4


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker that may be killed."""
    with Broker(num_partitions=PARTITIONS) as broker:
        yield broker


def numbered(spark: SparkSession, pairs: Pairs) -> DataFrame:
    rows = [(number, key, value) for number, (key, value) in enumerate(pairs)]
    frame = spark.createDataFrame(rows, "n int, key binary, value binary").repartition(2, "key").sortWithinPartitions("n")
    return frame.select("key", "value")


@pytest.fixture
def small_arrow_batches(spark: SparkSession) -> Iterator[None]:
    """Rows reach the sink as they arrive, not ten thousand at a time."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(name, "500")
    yield
    spark.conf.unset(name)


def exactly_the_input(spark: SparkSession, broker: Broker, topic: str, given: Pairs) -> None:
    rows = read(spark, broker.bootstrap_servers, topic).collect()
    assert len(rows) == len(given)
    assert by_key(pairs_of(rows)) == by_key(given)


@pytest.mark.usefixtures("small_arrow_batches")
def test_kills_between_the_first_rows_of_a_batch_write_and_its_commit(spark: SparkSession, broker: Broker) -> None:
    given = flights(ROWS)
    broker.create_topic("events")
    kills = [broker.kill_before("Produce", nth=2), broker.kill_after("Produce", nth=4)]
    many = {"batch.size": 16_384, "max.request.size": 65_536}  # makes more requests than the kills wait for
    write(numbered(spark, given), broker.bootstrap_servers, "events", **many)
    assert all(kill.has_happened for kill in kills)
    exactly_the_input(spark, broker, "events", given)


def test_kills_in_the_middle_of_a_streaming_copy(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    given = flights(ROWS)
    broker.create_topic("from").append(given)
    broker.create_topic("to")
    kills = [broker.kill_after("Produce", nth=3), broker.kill_before("Fetch", nth=5), broker.kill_after("EndTransaction", nth=3)]
    servers = broker.bootstrap_servers
    copied = read_stream(spark, servers, "from", maxOffsetsPerTrigger=ROWS // 8).select("key", "value")
    run(start_to_topic(copied, servers, "to", tmp_path / "copy"))
    assert all(kill.has_happened for kill in kills)
    exactly_the_input(spark, broker, "to", given)


def test_broker_that_stays_away_fails_the_batch_and_a_restart_completes_it(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    given = flights(1_000)
    broker.create_topic("events")
    servers = broker.bootstrap_servers
    write(frame_of(spark, given), servers, "events")
    broker.kill()
    impatient = read_stream(spark, servers, "events", **{"default.api.timeout.ms": 500})
    with pytest.raises(Exception, match=servers.replace(".", r"\.")):
        run(start_to_files(impatient, tmp_path / "out", tmp_path / "checkpoint"))
    broker.start()
    run(start_to_files(read_stream(spark, servers, "events"), tmp_path / "out", tmp_path / "checkpoint"))
    assert by_key(pairs_of(rows_in_files(tmp_path / "out"))) == by_key(given)


def test_the_user_sees_what_a_streaming_write_failed_with(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Spark creates a writer for the abort as well; an error of that writer would hide the original error."""
    broker.create_topic("events")
    pid = broker.pid

    @udf(returnType="string", useArrow=False)
    def killing(value: str) -> str:
        """Runs in a task of the first micro-batch, when the write is planned and no row has been sent."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return value

    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    rows = numbers.select(killing(numbers.value.cast("string")).alias("value"))
    impatient = {"default.api.timeout.ms": 5_000, "max.block.ms": 5_000}
    with pytest.raises(StreamingQueryException, match=f"BrokerUnreachableError: .*{broker.bootstrap_servers}"):
        run(start_to_topic(rows, broker.bootstrap_servers, "events", tmp_path / "checkpoint", **impatient))
