"""Two writes to one topic inside one foreachBatch, with equal numbers of rows, keys and bytes, and one write in a replayed batch.
Whatever the user's program sets, the second write is never taken for a replay of the first, nor a replay for a second write.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import InheritableThread, SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import NewTopic
from tests.spark.exactly_once.pipeline import Pipeline, lose_last
from tests.spark.pipelines import Pairs, pairs_of, read, run, write
from tests.support.daemon import DaemonProcess
from tests.support.reading import committed_rows, values_of

ROWS = 100
CONFLICT = "another write of the same micro-batch"
NO_TAG = r"sc\.clearJobTags\(\)"


def numbered(spark: SparkSession, first: int) -> DataFrame:
    """A hundred rows with the same keys and lengths as any other hundred."""
    columns = ("string(id % 7) AS key", f"string(id + {1_000 + first}) AS value")
    return spark.range(ROWS).selectExpr(*columns).coalesce(1)


def run_one_batch(spark: SparkSession, directory: Path, save: Callable[[DataFrame, int], None]) -> None:
    """Runs a query with one micro-batch to its end."""
    source = directory / "source"
    source.mkdir(exist_ok=True)
    (source / "a").write_text("a row\n")
    writer = spark.readStream.text(str(source)).writeStream.foreachBatch(save)
    run(writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start())


def values(pairs: Pairs) -> Counter[int]:
    return Counter(int(value or b"") for _, value in pairs)


def given(*first: int) -> Counter[int]:
    return Counter(number + 1_000 + start for start in first for number in range(ROWS))


def own_groups(context: SparkContext, number: int) -> None:
    context.setJobGroup(f"write {number}", "a group for each write")


def one_group(context: SparkContext, _number: int) -> None:
    context.setJobGroup("nightly", "one group for all writes")


def own_properties(context: SparkContext, number: int) -> None:
    for name in ("spark.jobGroup.id", "spark.sql.execution.query.id", "brokerd.run"):
        context.setLocalProperty(name, f"mine-{number}")


def no_tags(context: SparkContext, number: int) -> None:
    if number:
        context.clearJobTags()


def in_this_thread(_spark: SparkSession, act: Callable[[], None]) -> None:
    act()


def in_a_thread_that_inherits(spark: SparkSession, act: Callable[[], None]) -> None:
    done: Future[None] = Future()

    def target() -> None:
        try:
            spark.createDataFrame([(1,)], "a int")  # makes this the thread's session; without one Spark finds no Python source
            done.set_result(act())  # type: ignore[func-returns-value]
        except Exception as error:
            done.set_exception(error)

    InheritableThread(target=target).start()
    done.result()


# What a program sets before each write, the thread that writes, and the second write's error. The last case clears the tag that
# identifies the micro-batch's run.
WAYS = (
    (one_group, in_this_thread, CONFLICT),
    (own_properties, in_this_thread, CONFLICT),
    (own_groups, in_a_thread_that_inherits, CONFLICT),
    (no_tags, in_this_thread, NO_TAG),
)


def test_second_write_to_a_topic_is_refused_in_every_run_whatever_the_program_sets(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    targets = [new_topic(2) for _ in WAYS]
    is_refused: list[bool] = []

    def save(_rows: DataFrame, _batch_id: int) -> None:
        for (sets, runs, error), target in zip(WAYS, targets, strict=True):
            sets(spark.sparkContext, 0)
            runs(spark, partial(write, numbered(spark, 0), daemon.address, target))
            sets(spark.sparkContext, 1)
            with pytest.raises(Exception, match=error):
                runs(spark, partial(write, numbered(spark, ROWS), daemon.address, target))
            is_refused.append(True)
        raise ValueError("the batch fails, as it does for a user")

    for _ in range(2):  # the first run, and the replay
        is_refused.clear()
        with pytest.raises(StreamingQueryException, match="the batch fails"):
            run_one_batch(spark, tmp_path, save)
        assert is_refused == [True] * len(WAYS)
        for target in targets:
            assert values(pairs_of(read(spark, daemon.address, target).collect())) == given(0)


def test_second_write_is_refused_by_a_broker_that_has_started_since_the_first(
    spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    """The write is as durable as the commit."""
    target = new_topic(2)

    def save(_rows: DataFrame, _batch_id: int) -> None:
        for number in range(2):
            write(numbered(spark, number * ROWS), daemon.address, target)
            daemon.kill()
            daemon.restart()

    for _ in range(2):  # the first run, and the replay
        with pytest.raises(StreamingQueryException, match=CONFLICT):
            run_one_batch(spark, tmp_path, save)
        assert values(pairs_of(read(spark, daemon.address, target).collect())) == given(0)


def test_advice_leads_to_each_write_once(spark: SparkSession, daemon: DaemonProcess, new_topic: NewTopic, tmp_path: Path) -> None:
    """The refused write gets a label; the other is unchanged."""
    target = new_topic(2)
    label: dict[str, str] = {}

    def save(_rows: DataFrame, _batch_id: int) -> None:
        write(numbered(spark, 0), daemon.address, target)
        write(numbered(spark, ROWS), daemon.address, target, **label)

    with pytest.raises(StreamingQueryException, match="give this write a txnLabel of its own, and leave the first as it is"):
        run_one_batch(spark, tmp_path, save)
    label["txnLabel"] = "second"
    for _ in range(2):
        run_one_batch(spark, tmp_path, save)
        assert values(pairs_of(read(spark, daemon.address, target).collect())) == given(0, ROWS)
        shutil.rmtree(tmp_path / "checkpoint" / "commits", ignore_errors=True)


@pytest.mark.long
@pytest.mark.parametrize("groups", [["nightly"], [None]], ids=["one job group", "job group cleared"])
def test_batch_that_comes_again_under_one_job_group_is_a_replay(pipeline: Pipeline, groups: list[str | None]) -> None:
    for _ in range(2):
        done = pipeline.run(foreach=True, groups=groups)
        assert done.returncode == 0, done.stderr[-3000:]
        pipeline.is_exact()
        lose_last(pipeline.checkpoint / "commits")


@pytest.mark.long
@pytest.mark.parametrize("groups", [["first", "second"], ["nightly", "nightly"]], ids=["a job group each", "one job group"])
def test_second_write_is_refused_when_the_driver_died_between_the_two(pipeline: Pipeline, groups: list[str]) -> None:
    settings: dict[str, Any] = {"foreach": True, "groups": groups, "max_offsets": 20_000}
    killed = pipeline.run("driver-killed-in-commit", **settings)
    assert killed.returncode != 0
    assert pipeline.happened("driver-killed-in-commit")
    pipeline.is_exact()
    done = pipeline.run("driver-killed-in-commit", **settings)
    assert done.returncode != 0
    assert "TxnConflictError" in done.stderr, done.stderr[-3000:]
    pipeline.is_exact()
    done = pipeline.run(labels=["", "second"], **settings)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = values_of(committed_rows(pipeline.daemon.address, "target"))
    assert rows == Counter([value for _, value in pipeline.given] * 2)
