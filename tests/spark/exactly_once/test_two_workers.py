"""Exactly once on a cluster, a standalone master with two workers: a speculative twin, and an executor that dies.

Only a cluster speculates: two attempts of a task then write at the same time, on two hosts. Here one of them continues to write
after the batch was committed without it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.exactly_once.standalone import HOSTS
from tests.spark.exactly_once.faulty_sink import TaskEvent
from tests.spark.exactly_once.pipeline import ROOT, Pipeline
from tests.spark.standalone import Cluster, standalone_cluster

CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
}
SPECULATION = {
    **CONF,
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.python.task.killTimeout": "60s",  # for the attempt that lost
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Workers that can import the tests."""
    with standalone_cluster(tmp_path, Path(sys.executable), PYTHONPATH=str(ROOT)) as made:
        yield made


def attempts_at_once(events: list[TaskEvent]) -> list[TaskEvent]:
    """The events of a slow attempt and its twin: the slow one waits, its twin begins meanwhile, the slow one goes on after the
    commit. Raises AssertionError if there was no twin."""
    waits, goes_on = (next(event for event in events if event.what == what) for what in ("waits", "goes on"))
    twins = [
        event
        for event in events
        if event.what == "begins" and event[1:4] == waits[1:4] and event.attempt != waits.attempt and event.host != waits.host
    ]
    assert len(twins) == 1, events
    return [waits, twins[0], goes_on]


@pytest.mark.long
@pytest.mark.parametrize("foreach", [False, True], ids=["stream", "foreachBatch"])
def test_rows_of_a_speculative_twin_are_there_once(pipeline: Pipeline, cluster: Cluster, foreach: bool) -> None:
    done = pipeline.run("slow-twin", environment=cluster.environment, master=cluster.master, conf=SPECULATION, foreach=foreach)
    assert done.returncode == 0, done.stderr[-3000:]
    assert pipeline.happened("slow-twin")
    slow, twin, late = attempts_at_once(pipeline.events())
    assert slow.at_s < twin.at_s < late.at_s
    assert {slow.host, twin.host} == set(HOSTS)
    pipeline.is_exact()


@pytest.mark.long
@pytest.mark.parametrize("foreach", [False, True], ids=["stream", "foreachBatch"])
def test_executor_killed_in_the_middle_of_its_rows(pipeline: Pipeline, cluster: Cluster, foreach: bool) -> None:
    fault = "jvm-killed-mid-write"
    done = pipeline.run(fault, environment=cluster.environment, master=cluster.master, conf=CONF, foreach=foreach)
    assert done.returncode == 0, done.stderr[-3000:]
    assert pipeline.happened(fault)
    pipeline.is_exact()
