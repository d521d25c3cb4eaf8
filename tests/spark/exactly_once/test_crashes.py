"""Exactly once through Spark, whatever dies: each line of the crash table with a real driver, real tasks and a real broker.

Each time: the rows that are committed in the end are those of the input, each once, in order per key; and no reader of committed
records ever saw a row that was not there later.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig, ProducerConfig
from brokerd.producer.producer import Producer
from tests.spark.exactly_once.reading import EagerReader, by_key, committed_rows, values_of
from tests.spark.pipelines import Pairs, flights
from tests.support.daemon import DaemonProcess
from tests.support.wait import wait_until

ROOT = Path(__file__).resolve().parents[3]
ROWS = 6_000
PARTITIONS = 4
JOB_TIMEOUT_S = 300


class Pipeline:
    """From topic `source` to topic `target`, by job.py; run as often as it takes."""

    def __init__(self, daemon: DaemonProcess, directory: Path, given: Pairs) -> None:
        self.daemon = daemon
        self.given = given
        self.checkpoint = directory / "checkpoint"
        self._marks = directory / "marks"
        self._marks.mkdir()
        self._pid_file = directory / "broker.pid"
        with BlockingClient(ClientConfig(bootstrap_servers=daemon.address)) as client:
            client.create_topic("source", PARTITIONS)
            client.create_topic("target", PARTITIONS)
        with Producer(ProducerConfig(bootstrap_servers=daemon.address)) as producer:
            for key, value in given:
                producer.send("source", value, key)

    def run(self, fault: str = "", **settings: Any) -> subprocess.CompletedProcess[str]:
        """One driver until it ends, however it does."""
        self._pid_file.write_text(str(self.daemon.pid))
        given = {
            "servers": self.daemon.address,
            "source": "source",
            "target": "target",
            "checkpoint": str(self.checkpoint),
            "fault": fault,
            "marks": str(self._marks),
            "broker_pid_file": str(self._pid_file),
            **settings,
        }
        return subprocess.run(
            [sys.executable, "-m", "tests.spark.exactly_once.job", json.dumps(given)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=JOB_TIMEOUT_S,
            check=False,
        )

    def happened(self, fault: str) -> bool:
        """True if the accident has been."""
        return (self._marks / fault).exists()

    def forget(self, mark: str) -> None:
        """Lets it happen again."""
        (self._marks / mark).unlink(missing_ok=True)

    def lose_last_commit(self) -> None:
        """Removes Spark's own note of the last batch, with its checksum."""
        last = max((self.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink()

    def is_exact(self) -> None:
        """The rows that are committed are those that were given."""
        rows = committed_rows(self.daemon.address, "target")
        assert sum(values_of(rows).values()) == len(self.given)
        assert by_key(rows) == by_key(dict(enumerate_places(self.given)))


def enumerate_places(pairs: Pairs) -> Iterator[tuple[tuple[int, int], tuple[bytes | None, bytes | None]]]:
    """Pairs at places, in their order."""
    for number, pair in enumerate(pairs):
        yield (0, number), pair


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    """A pipeline with its own broker, and a reader that looks all the time."""
    with DaemonProcess(tmp_path / "data") as daemon:
        made = Pipeline(daemon, tmp_path, flights(ROWS))
        with EagerReader(daemon.address, "target") as reader:
            yield made
        rows = committed_rows(daemon.address, "target")
        assert reader.seen.items() <= rows.items(), "a row was seen that is not there any more"


# A stream or foreachBatch. One test of each kind is in `make test`; the others take their minutes.
STREAM, FOREACH_BATCH = False, True
long = pytest.mark.long


@pytest.mark.parametrize(
    ("fault", "foreach"),
    [
        pytest.param("driver-killed-before-commit", STREAM, marks=long),
        pytest.param("driver-killed-in-commit", STREAM, marks=pytest.mark.slow),
        pytest.param("driver-killed-after-commit", STREAM, marks=long),
        pytest.param("driver-killed-before-commit", FOREACH_BATCH, marks=long),
        pytest.param("driver-killed-in-commit", FOREACH_BATCH, marks=long),
        pytest.param("driver-killed-after-commit", FOREACH_BATCH, marks=long),
    ],
)
def test_driver_killed_around_its_commit(pipeline: Pipeline, fault: str, foreach: bool) -> None:
    assert pipeline.run(fault, foreach=foreach).returncode != 0
    assert pipeline.happened(fault)
    done = pipeline.run(fault, foreach=foreach)
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
@pytest.mark.parametrize("fault", ["broker-killed-before-commit", "broker-killed-in-commit"])
def test_broker_killed_around_a_commit(pipeline: Pipeline, fault: str) -> None:
    options = {"default.api.timeout.ms": "3000"}
    pipeline.run(fault, options=options)
    assert pipeline.happened(fault)
    pipeline.daemon.kill()  # by now it is dead: this takes the exit status
    pipeline.daemon.restart()
    done = pipeline.run(fault, options=options)
    assert done.returncode == 0, done.stderr[-3000:]
    pipeline.is_exact()


@long
@pytest.mark.parametrize("foreach", [STREAM, FOREACH_BATCH], ids=["stream", "foreachBatch"])
def test_sparks_last_commit_file_is_lost(pipeline: Pipeline, foreach: bool) -> None:
    assert pipeline.run(foreach=foreach).returncode == 0
    pipeline.lose_last_commit()
    done = pipeline.run(foreach=foreach)
    assert done.returncode == 0, done.stderr[-3000:]
    pipeline.is_exact()


@long
def test_replay_with_other_partitions(pipeline: Pipeline) -> None:
    fault = "driver-killed-after-commit"
    assert pipeline.run(fault).returncode != 0
    done = pipeline.run(fault, partitions=5)
    assert done.returncode == 0, done.stderr[-3000:]
    pipeline.is_exact()


@long
def test_copied_checkpoint_whose_batches_hold_other_rows_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    assert pipeline.run(max_offsets=1_000).returncode == 0
    copied = tmp_path / "copied"
    shutil.copytree(pipeline.checkpoint, copied)
    for kind in ("offsets", "commits"):
        for pattern in ("[3-9]*", ".[3-9]*.crc"):
            for path in (copied / kind).glob(pattern):
                path.unlink()
    done = pipeline.run(checkpoint=str(copied), max_offsets=1_500)
    assert done.returncode != 0
    assert "other rows" in done.stderr or "REPLAY_MISMATCH" in done.stderr, done.stderr[-3000:]
    pipeline.is_exact()


@long
def test_batch_write_is_visible_at_once_or_not_at_all(pipeline: Pipeline) -> None:
    fault = "driver-killed-before-commit"
    options = {"transaction.timeout.ms": "5000"}
    assert pipeline.run(fault, batch=True, options=options).returncode != 0
    assert committed_rows(pipeline.daemon.address, "target") == {}
    done = pipeline.run(fault, batch=True, options=options)
    assert done.returncode == 0, done.stderr[-3000:]
    # The dead job has an id of its own, which no other commit ends: until it expires, readers stand before its rows.
    wait_until(lambda: len(committed_rows(pipeline.daemon.address, "target")) == ROWS, what="the dead job has expired")
    pipeline.is_exact()
