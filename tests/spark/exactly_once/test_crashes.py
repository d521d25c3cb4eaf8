"""Exactly once through Spark, whichever process dies: the cases of the crash table with real driver, tasks and broker.

In each case the committed rows are the input, each once, in order per key, and no read_committed reader saw a row that is missing
later.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.spark.exactly_once.conftest import ROWS
from tests.spark.exactly_once.pipeline import Pipeline, lose_last
from tests.support.reading import committed_rows
from tests.support.wait import wait_until

# A stream, foreachBatch with df.write, and foreachBatch with append_to. `make test` runs one test of each; the others take minutes.
STREAM, FOREACH_BATCH, APPEND_TO = False, True, "append_to"
DRIVER, SINK = 0, 1  # turns: the writer of append_to's first micro-batch
long = pytest.mark.long


@pytest.mark.parametrize(
    ("fault", "foreach"),
    [
        pytest.param("jvm-killed-mid-write", STREAM, marks=long),
        pytest.param("driver-killed-before-commit", STREAM, marks=long),
        pytest.param("driver-killed-in-commit", STREAM, marks=pytest.mark.slow),
        pytest.param("driver-killed-after-commit", STREAM, marks=long),
        pytest.param("jvm-killed-mid-write", FOREACH_BATCH, marks=long),
        pytest.param("driver-killed-before-commit", FOREACH_BATCH, marks=long),
        pytest.param("driver-killed-in-commit", FOREACH_BATCH, marks=long),
        pytest.param("driver-killed-after-commit", FOREACH_BATCH, marks=long),
    ],
)
def test_driver_killed_around_its_commit(pipeline: Pipeline, fault: str, foreach: bool) -> None:
    replay_after(pipeline, fault, {"foreach": foreach}, {"foreach": foreach})


# The replay of the first micro-batch uses the same writer or the other one.
@pytest.mark.parametrize(
    ("fault", "way", "replayed"),
    [
        pytest.param("jvm-killed-mid-write", DRIVER, SINK, marks=long),
        pytest.param("jvm-killed-mid-write", SINK, DRIVER, marks=long),
        pytest.param("driver-killed-before-commit", DRIVER, DRIVER, marks=long),
        pytest.param("driver-killed-before-commit", DRIVER, SINK, marks=long),
        pytest.param("driver-killed-before-commit", SINK, DRIVER, marks=long),
        pytest.param("driver-killed-in-commit", DRIVER, DRIVER, marks=long),
        pytest.param("driver-killed-in-commit", DRIVER, SINK, marks=pytest.mark.slow),
        pytest.param("driver-killed-in-commit", SINK, DRIVER, marks=long),
        pytest.param("driver-killed-after-commit", DRIVER, SINK, marks=long),
        pytest.param("driver-killed-after-commit", SINK, DRIVER, marks=long),
    ],
)
def test_driver_killed_in_append_to(pipeline: Pipeline, fault: str, way: int, replayed: int) -> None:
    replay_after(pipeline, fault, {"foreach": APPEND_TO, "turn": way}, {"foreach": APPEND_TO, "turn": replayed})


def replay_after(pipeline: Pipeline, fault: str, first: dict[str, Any], second: dict[str, Any]) -> None:
    died = pipeline.run(fault, **first)
    assert died.returncode != 0
    assert pipeline.happened(fault), died.stderr[-3000:]
    done = pipeline.run(fault, **second)
    assert done.returncode == 0, done.stderr[-3000:]
    pipeline.is_exact()


@pytest.mark.parametrize(
    ("fault", "foreach"),
    [
        pytest.param("task-fails-after-writing", STREAM, marks=long),
        pytest.param("worker-killed-mid-write", STREAM, marks=long),
        pytest.param("task-fails-after-writing", FOREACH_BATCH, marks=pytest.mark.slow),
        pytest.param("worker-killed-mid-write", FOREACH_BATCH, marks=long),
    ],
)
def test_task_that_is_run_again(pipeline: Pipeline, fault: str, foreach: bool) -> None:
    done = pipeline.run(fault, foreach=foreach)
    assert done.returncode == 0, done.stderr[-3000:]
    assert pipeline.happened(fault)
    pipeline.is_exact()


@long
@pytest.mark.parametrize("foreach", [STREAM, FOREACH_BATCH, APPEND_TO], ids=["stream", "foreachBatch", "append_to"])
@pytest.mark.parametrize("fault", ["broker-killed-before-commit", "broker-killed-in-commit"])
def test_broker_killed_around_a_commit(pipeline: Pipeline, fault: str, foreach: bool | str) -> None:
    impatient = {"default.api.timeout.ms": "10000"}
    settings: dict[str, Any] = {"options": impatient, "source_options": impatient, "foreach": foreach}
    assert pipeline.run(fault, **settings).returncode != 0
    assert pipeline.happened(fault)
    pipeline.daemon.kill()  # reaps the dead broker's exit status
    pipeline.daemon.restart()
    done = pipeline.run(fault, **settings, turn=SINK)  # the sink replays the micro-batch that append_to's driver began
    assert done.returncode == 0, done.stderr[-3000:]
    pipeline.is_exact()


@long
@pytest.mark.parametrize("foreach", [STREAM, FOREACH_BATCH, APPEND_TO], ids=["stream", "foreachBatch", "append_to"])
def test_sparks_last_commit_file_is_lost(pipeline: Pipeline, foreach: bool | str) -> None:
    assert pipeline.run(foreach=foreach).returncode == 0
    lost = lose_last(pipeline.checkpoint / "commits")
    before = len(pipeline.events())
    done = pipeline.run(foreach=foreach, turn=SINK)  # append_to's last micro-batch has an even number, so the driver wrote it
    assert done.returncode == 0, done.stderr[-3000:]
    assert {event.batch for event in pipeline.events()[before:]} == {str(lost)}
    pipeline.is_exact()


@long
@pytest.mark.parametrize("foreach", [STREAM, FOREACH_BATCH], ids=["stream", "foreachBatch"])
@pytest.mark.parametrize("fault", ["driver-killed-before-commit", "driver-killed-in-commit"])
def test_replay_with_other_partitions(pipeline: Pipeline, fault: str, foreach: bool) -> None:
    settings: dict[str, Any] = {"foreach": foreach, "max_offsets": ROWS}
    assert pipeline.run(fault, **settings, partitions=2).returncode != 0
    before = pipeline.events()
    done = pipeline.run(fault, **settings, partitions=5, source_options={"minPartitions": "9"})
    assert done.returncode == 0, done.stderr[-3000:]
    tasks = [{event.partition for event in events if event.batch == "0"} for events in (before, pipeline.events()[len(before) :])]
    assert tasks == [set(range(2)), set(range(5))]
    pipeline.is_exact()


@long
def test_batch_write_is_visible_at_once_or_not_at_all(pipeline: Pipeline) -> None:
    fault = "driver-killed-before-commit"
    options = {"transaction.timeout.ms": "5000"}
    assert pipeline.run(fault, batch=True, options=options).returncode != 0
    assert committed_rows(pipeline.daemon.address, "target") == {}
    done = pipeline.run(fault, batch=True, options=options)
    assert done.returncode == 0, done.stderr[-3000:]
    # The dead job's id is its own, and no other commit ends it. Its rows hold readers back until it expires.
    wait_until(lambda: len(committed_rows(pipeline.daemon.address, "target")) == ROWS, what="the dead job has expired")
    pipeline.is_exact()
