"""A pipeline from topic to topic for tests that interrupt it: topics, a checkpoint, and a driver that can be run repeatedly."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig, ProducerConfig
from brokerd.producer.producer import Producer
from tests.spark.exactly_once.faulty_sink import TaskEvent, task_events
from tests.spark.pipelines import Pairs
from tests.support.daemon import DaemonProcess
from tests.support.reading import by_key, committed_rows, values_of

ROOT = Path(__file__).resolve().parents[3]
PARTITIONS = 4
JOB_TIMEOUT_S = 300
TOO_BUSY = "Python worker failed to connect back"  # Spark allows its processes ten seconds to start; no setting changes this
_STARTS = 3  # of a driver that Spark ends for this reason


def driver_environment(scratch: Path) -> dict[str, str]:
    """The environment of a driver on this machine. It and its workers run this Python and import the tests; their temporary files
    are in `scratch`."""
    own = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**os.environ, **own, "SPARK_LOCAL_DIRS": str(scratch)}


class Pipeline:
    """From topic `source` to topic `target` by job.py, which can be run repeatedly."""

    def __init__(self, daemon: DaemonProcess, directory: Path, given: Pairs) -> None:
        self.daemon = daemon
        self.given = given
        self.checkpoint = directory / "checkpoint"
        self._marks = directory / "marks"
        self._marks.mkdir()
        self._pid_file = directory / "broker.pid"
        self._scratch = directory / "spark"
        with BlockingClient(ClientConfig(bootstrap_servers=daemon.address)) as client:
            client.create_topic("source", PARTITIONS)
            client.create_topic("target", PARTITIONS)
        with Producer(ProducerConfig(bootstrap_servers=daemon.address)) as producer:
            for key, value in given:
                producer.send("source", value, key)

    def run(
        self, fault: str = "", *, environment: Mapping[str, str] | None = None, **settings: Any
    ) -> subprocess.CompletedProcess[str]:
        """Runs one driver until it ends, with or without an error. If Spark ends it before its first task because the machine is
        busy, it is restarted.
        """
        before = len(self.events())
        for _ in range(_STARTS):
            ended = self._run_once(fault, environment, settings)
            if TOO_BUSY not in ended.stderr or len(self.events()) > before:
                break
        return ended

    def _run_once(
        self, fault: str, environment: Mapping[str, str] | None, settings: Mapping[str, Any]
    ) -> subprocess.CompletedProcess[str]:
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
            env=driver_environment(self._scratch) if environment is None else environment,
            capture_output=True,
            text=True,
            timeout=JOB_TIMEOUT_S,
            check=False,
        )

    def happened(self, fault: str) -> bool:
        """True if the fault has happened."""
        return (self._marks / fault).exists()

    def events(self) -> list[TaskEvent]:
        """The events of all tasks so far."""
        return task_events(self._marks)

    def new_checkpoint(self) -> None:
        """Creates the checkpoint of a query that has an id and nothing else."""
        self.checkpoint.mkdir()
        (self.checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))

    def copied_checkpoint(self, name: str) -> Path:
        """Copies the checkpoint."""
        copy = self.checkpoint.with_name(name)
        shutil.copytree(self.checkpoint, copy)
        return copy

    def run_both(self, *both: dict[str, Any]) -> list[subprocess.CompletedProcess[str]]:
        """Runs two drivers with these settings; both begin once both are ready."""
        ready = [str(self._marks / f"ready-{number}") for number in range(len(both))]
        with ThreadPoolExecutor(len(both)) as pool:
            runs = [pool.submit(self.run, **settings, meet=[own, *ready]) for own, settings in zip(ready, both, strict=True)]
        return [run.result() for run in runs]

    def is_exact(self, expected: Pairs | None = None) -> None:
        """Asserts that the committed rows are the given ones, or `expected`."""
        expected = self.given if expected is None else expected
        rows = committed_rows(self.daemon.address, "target")
        assert sum(values_of(rows).values()) == len(expected)
        assert by_key(rows) == by_key(dict(enumerate_places(expected)))


def enumerate_places(pairs: Pairs) -> Iterator[tuple[tuple[int, int], tuple[bytes | None, bytes | None]]]:
    """Pairs by (partition, offset), in order."""
    for number, pair in enumerate(pairs):
        yield (0, number), pair


def lose_last(folder: Path) -> int:
    """Removes the last batch's file, with its checksum, from a checkpoint's `offsets` or `commits`; returns its number."""
    last = max(folder.glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    return int(last.name)


def cut(checkpoint: Path, batches: int) -> None:
    """Truncates a checkpoint to its first batches."""
    for kind in ("offsets", "commits"):
        while len(list((checkpoint / kind).glob("[0-9]*"))) > batches:
            lose_last(checkpoint / kind)
