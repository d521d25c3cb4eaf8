"""Named sources (readStream.name(...)): a query's sources change, its checkpoint stays, and every row is read once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import NewTopic
from tests.spark.pipelines import Pairs, frame_of, pairs_of, read, run, start_to_topic, write
from tests.support.daemon import DaemonProcess

_SETTING = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
_RETAINED = "spark.sql.streaming.minBatchesToRetain"
_PURGES_LATER = "spark.sql.streaming.asyncLogPurge.enabled"


@pytest.fixture
def evolving(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, with source evolution on; a test may make Spark keep fewer batches."""
    spark.conf.set(_SETTING, "true")
    yield spark
    for setting in (_SETTING, _RETAINED, _PURGES_LATER):
        spark.conf.unset(setting)


class Pipeline:
    """One query from named sources, a topic each, into one topic. Its rows name their source."""

    def __init__(self, spark: SparkSession, servers: str, new_topic: NewTopic, checkpoint: Path) -> None:
        self._spark = spark
        self._servers = servers
        self._topics = {name: new_topic(2) for name in ("left", "right", "third")}
        self._target = new_topic(1)
        self.checkpoint = checkpoint
        self.given: dict[str, Pairs] = {name: [] for name in self._topics}

    def append(self, name: str, count: int) -> None:
        """Appends `count` new rows to a source."""
        first = len(self.given[name])
        rows: Pairs = [(b"%d" % (n % 5), f"{name} {n}".encode()) for n in range(first, first + count)]
        write(frame_of(self._spark, rows), self._servers, self._topics[name])
        self.given[name] += rows

    def run(self, *names: str) -> int:
        """Runs the query to its end with these sources in this order; returns the rows that it read."""
        frame = reduce(DataFrame.union, map(self._source, names))
        return sum(run(start_to_topic(frame, self._servers, self._target, self.checkpoint)))

    def written(self) -> Pairs:
        """All rows of the target, sorted."""
        return sorted(pairs_of(read(self._spark, self._servers, self._target).collect()))

    def expected(self, *names: str) -> Pairs:
        """All rows of these sources, sorted."""
        return sorted(pair for name in names for pair in self.given[name])

    def _source(self, name: str) -> DataFrame:
        reader = self._spark.readStream.format("brokerd").name(name).option("bootstrap.servers", self._servers)
        reader = reader.options(subscribe=self._topics[name], startingOffsets="earliest", maxOffsetsPerTrigger=60)
        return reader.load().select("key", "value")


@pytest.fixture
def pipeline(evolving: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, tmp_path: Path) -> Pipeline:
    """A query that has not started."""
    return Pipeline(evolving, daemon.address, new_topic, tmp_path)


def test_sources_are_reordered_added_removed_and_come_back_on_one_checkpoint(pipeline: Pipeline) -> None:
    pipeline.append("left", 40)
    pipeline.append("right", 10)
    assert pipeline.run("left", "right") == 50
    pipeline.append("left", 5)
    pipeline.append("right", 20)
    assert pipeline.run("right", "left") == 25, "reordered"
    pipeline.append("left", 3)
    pipeline.append("third", 70)
    assert pipeline.run("third", "right", "left") == 73, "one added, before the others"
    pipeline.append("left", 4)
    pipeline.append("right", 8)
    pipeline.append("third", 2)
    assert pipeline.run("third", "right") == 10, "one removed"
    assert pipeline.run("third", "left") == 4, "it comes back, and goes on where it was"
    assert pipeline.written() == pipeline.expected("left", "right", "third")


def test_a_batch_that_is_pending_is_replayed_by_sources_in_another_order(pipeline: Pipeline) -> None:
    pipeline.append("left", 25)
    pipeline.append("right", 15)
    assert pipeline.run("left", "right") == 40
    # As if the driver had died after the write and before Spark recorded it.
    for name in ("0", ".0.crc"):
        (pipeline.checkpoint / "commits" / name).unlink(missing_ok=True)
    pipeline.append("left", 5)
    assert pipeline.run("right", "left") == 45, "batch 0 again, and what came since"
    assert pipeline.written() == pipeline.expected("left", "right"), "and written once"


def test_a_source_that_spark_has_forgotten_starts_where_its_options_say(pipeline: Pipeline, evolving: SparkSession) -> None:
    evolving.conf.set(_RETAINED, "2")
    evolving.conf.set(_PURGES_LATER, "false")
    pipeline.append("left", 10)
    pipeline.append("right", 10)
    assert pipeline.run("left", "right") == 20
    pipeline.append("left", 240)
    pipeline.append("right", 4)
    assert pipeline.run("left") == 240, "in more batches than Spark keeps"
    assert pipeline.run("left", "right") == 14, "from the earliest"
    assert len(pipeline.written()) == 20 + 240 + 14
