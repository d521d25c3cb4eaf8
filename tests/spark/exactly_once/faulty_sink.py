"""The brokerd data source with faults; an option selects the fault. The real writers do the work.

    task-fails-after-writing     the first attempt of a task writes all its rows, then raises
    worker-killed-mid-write      the first attempt's Python worker is killed by SIGKILL between two batches of rows
    jvm-killed-mid-write         its JVM is killed likewise: the driver in local mode or if it writes itself, else an executor
    driver-killed-before-commit  the JVM is killed by SIGKILL before EndTransaction is sent
    driver-killed-in-commit      the JVM is killed after the response, before commit returns
    driver-killed-after-commit   some milliseconds after commit has returned, usually before Spark has written `commits/N`
    broker-killed-before-commit  the broker is killed by SIGKILL (option `broker_pid_file`) before EndTransaction is sent
    broker-killed-in-commit      the broker is killed after the response, before commit returns
    slow-twin                    the first attempt of one task waits after some rows until another attempt has been
                                 committed, and then writes the rest

Each fault happens once: a file in the directory `marks` records it. The file `attempts` there has a line for each event of a task.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from brokerd.datasource.source import BrokerdDataSource
from tests.support.wait import wait_until

_OWN = ("fault", "marks", "broker_pid_file")
VARIABLE = "BROKERD_TEST_ACCIDENT"
_AFTER_S = 0.005
_ATTEMPTS = "attempts"


class TaskEvent(NamedTuple):
    """An event of a task attempt, with a time that is comparable across the machine's processes."""

    what: str  # begins, waits, goes on, ends, fails: <error>
    run_id: str
    batch: str
    partition: int
    attempt: int
    host: str
    at_s: float


def task_events(marks: Path) -> list[TaskEvent]:
    """The events so far, in order."""
    path = marks / _ATTEMPTS
    return [TaskEvent(*json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


class FaultySource(BrokerdDataSource):
    """format("faulty")."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "faulty"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer of df.write, with its fault."""
        accident = self._accident()
        return FaultyBatchWriter(super().writer(schema, overwrite), accident)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """The writer of df.writeStream, with its fault."""
        accident = self._accident()
        return FaultyStreamWriter(super().streamWriter(schema, overwrite), accident)

    def _accident(self) -> Accident:
        own = {name: self.options.pop(name) for name in _OWN if name in self.options}
        return Accident(own.get("fault", ""), own.get("marks", ""), own.get("broker_pid_file", ""))


class FaultyBrokerd(FaultySource):
    """format("brokerd") with a fault named by the environment, since append_to passes on only the sink's own options."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "brokerd"

    def _accident(self) -> Accident:
        return Accident(**json.loads(os.environ[VARIABLE]))


class Accident:
    """A fault and where it happens. Pickled with the writer."""

    def __init__(self, fault: str, marks: str, broker_pid_file: str, kill_driver: Callable[[], None] | None = None) -> None:
        self.fault = fault
        self._marks = marks
        self._broker_pid_file = broker_pid_file
        self._kill_driver = kill_driver or _kill_jvm

    def write(
        self, act: Callable[[Iterator[pa.RecordBatch]], WriterCommitMessage], iterator: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        """A task's write."""
        self._note("begins")
        try:
            message = act(self.rows(iterator))
            if self.fault == "task-fails-after-writing" and _task().partitionId() == 0 and self._is_first():
                raise RuntimeError("the accident that was asked for")
        except BaseException as error:
            self._note(f"fails: {type(error).__name__}")
            raise
        self._note("ends")
        return message

    def rows(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of a write; the fault may end them early."""
        for number, batch in enumerate(iterator):
            if number == 1 and self.fault == "worker-killed-mid-write" and self._is_first():
                os.kill(os.getpid(), signal.SIGKILL)
            if number == 1 and self.fault == "jvm-killed-mid-write" and self._is_first():
                self._kill_driver()
            if number == 1 and self.fault == "slow-twin" and _task().partitionId() == 0 and self._is_first():
                self._note("waits")
                self._wait_for("committed")
                self._note("goes on")
            yield batch

    def _note(self, what: str) -> None:
        if not self._marks:
            return
        task = _task()
        run_id, batch = (task.getLocalProperty(name) or "" for name in ("spark.jobGroup.id", "streaming.sql.batchId"))
        host = os.environ.get("SPARK_LOCAL_IP", "")
        event = TaskEvent(what, run_id, batch, task.partitionId(), task.attemptNumber(), host, time.monotonic())
        with Path(self._marks, _ATTEMPTS).open("a") as log:
            log.write(json.dumps(event) + "\n")

    def commit(self, act: Callable[[], None]) -> None:
        """The driver's commit."""
        victim, _, place = self.fault.partition("-killed-")
        kill = {"driver": self._kill_driver, "broker": self._kill_broker}.get(victim)
        if kill is not None and place == "before-commit" and self._is_first():
            kill()
        act()
        self._mark("committed")
        if kill is not None and place == "in-commit" and self._is_first():
            kill()
        if kill is not None and place == "after-commit" and self._is_first():
            threading.Timer(_AFTER_S, kill).start()

    def _kill_broker(self) -> None:
        os.kill(int(Path(self._broker_pid_file).read_text()), signal.SIGKILL)

    def _is_first(self) -> bool:
        try:
            os.close(os.open(f"{self._marks}/{self.fault}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _mark(self, name: str) -> None:
        if self._marks:
            Path(self._marks, name).touch()

    def _wait_for(self, name: str) -> None:
        wait_until(Path(self._marks, name).exists, what=f"the mark {name}")


class _FaultyWriter:
    """The part of both writers that runs in tasks; see Accident."""

    def __init__(self, writer: Any, accident: Accident) -> None:
        self._writer = writer
        self._accident = accident

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One task's write."""
        return self._accident.write(self._writer.write, iterator)


class FaultyBatchWriter(_FaultyWriter, DataSourceArrowWriter):
    """See Accident."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """The driver's."""
        self._accident.commit(lambda: self._writer.commit(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The driver's."""
        self._writer.abort(messages)


class FaultyStreamWriter(_FaultyWriter, DataSourceStreamArrowWriter):
    """See Accident."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """The driver's."""
        self._accident.commit(lambda: self._writer.commit(messages, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """The driver's."""
        self._writer.abort(messages, batchId)


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


def _jvm_pid() -> int:
    """The JVM that is an ancestor of this Python worker: the driver's, or an executor's."""
    pid = os.getppid()
    while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def _kill_jvm() -> None:
    """Kills the JVM and this process, which would otherwise continue its work for a while."""
    os.kill(_jvm_pid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
