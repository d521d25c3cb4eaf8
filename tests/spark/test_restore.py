"""Goal: after a restore from a copy, a query reports that its checkpoint is of the lost history, and skips nothing of the new one.
Method: a broker whose data directory is restored; queries that continue from their checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.pipelines import read_stream, rows_in_files, run, start_to_files
from tests.support.restored import Restored

BACKED_UP, LOST, NEW = 100, 100, 150


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[Restored]:
    one = Restored(tmp_path)
    yield one
    one.daemon.kill()


class Query:
    """A query into files, restarted on one checkpoint."""

    def __init__(self, spark: SparkSession, restored: Restored, path: Path) -> None:
        self.spark, self.restored, self.path = spark, restored, path

    def run(self, name: str, **options: Any) -> list[int]:
        """Runs the query with an output directory of that name; returns the values in offset order."""
        frame = self.frame(**options)
        run(start_to_files(frame, self.path / name, self.path / "checkpoint"))
        return [int(row["value"]) for row in sorted(rows_in_files(self.path / name), key=lambda row: row["offset"])]

    def frame(self, **options: Any) -> DataFrame:
        return read_stream(self.spark, self.restored.daemon.address, "t", **options)


@pytest.fixture
def query(spark: SparkSession, restored: Restored, tmp_path: Path) -> Query:
    return Query(spark, restored, tmp_path)


def test_a_checkpoint_of_the_lost_history_is_data_loss(query: Query, restored: Restored) -> None:
    restored.write(BACKED_UP)
    restored.back_up(is_running=False)
    restored.write(LOST, begin=BACKED_UP)
    assert query.run("before") == list(range(BACKED_UP + LOST))
    restored.restore()
    restored.write(NEW, begin=1_000)
    with pytest.raises(Exception, match=r"t-0: offset 200 is of another history .*failOnDataLoss=false"):
        query.run("after")
    new = list(range(1_000, 1_000 + NEW))
    # The point of divergence is unknown: the copy ends before the epoch that the checkpoint has seen.
    assert query.run("after", failOnDataLoss=False) == [*range(BACKED_UP), *new]
    restored.write(5, begin=2_000)
    assert query.run("later") == list(range(2_000, 2_005))


def test_a_batch_that_was_planned_in_the_lost_history_reads_none_of_the_new_one(query: Query, restored: Restored) -> None:
    """The broker goes away during a batch; Spark replays the batch with its offsets."""
    restored.write(BACKED_UP)
    assert query.run("before") == list(range(BACKED_UP))
    restored.write(20, begin=BACKED_UP)
    restored.back_up(is_running=True)
    restored.write(LOST, begin=BACKED_UP + 20)

    def fail(_frame: DataFrame, _number: int) -> None:
        raise ValueError("no place for it")

    writer = query.frame().writeStream.foreachBatch(fail).option("checkpointLocation", str(query.path / "checkpoint"))
    with pytest.raises(Exception, match="no place for it"):
        run(writer.trigger(availableNow=True).start())
    restored.restore()
    restored.write(NEW, begin=1_000)
    with pytest.raises(Exception, match=r"t-0: offset 220 is of another history .*offsets 100 to 219 were to be read"):
        query.run("before")
    read = query.run("before", failOnDataLoss=False)
    assert read == [*range(BACKED_UP + 20), *range(1_000, 1_000 + NEW)]
