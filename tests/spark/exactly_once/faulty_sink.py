"""The brokerd data source with accidents: what dies, and where, is an option. The real writers do the work.

    task-fails-after-writing     the first attempt of a task has written all its rows, then raises
    worker-killed-mid-write      the first attempt's Python worker is killed by SIGKILL between two batches of rows
    driver-killed-before-commit  the JVM is killed by SIGKILL before EndTransaction is sent
    driver-killed-in-commit      it is answered, but commit has not returned
    driver-killed-after-commit   commit has returned
    broker-killed-before-commit  the broker is killed by SIGKILL (option `broker_pid_file`) before EndTransaction is sent
    broker-killed-in-commit      it is answered, but commit has not returned
    slow-twin                    the first attempt of one task waits until another attempt has been committed, and then goes on

Each accident happens once: a file in the directory `marks` says that it has.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from brokerd.datasource.source import BrokerdDataSource
from tests.support.wait import wait_until

_OWN = ("fault", "marks", "broker_pid_file")
_DYING_S = 0.2


class FaultySource(BrokerdDataSource):
    """format("faulty")."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "faulty"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer of df.write, with its accident."""
        accident = self._accident()
        return FaultyBatchWriter(super().writer(schema, overwrite), accident)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """The writer of df.writeStream, with its accident."""
        accident = self._accident()
        return FaultyStreamWriter(super().streamWriter(schema, overwrite), accident)

    def _accident(self) -> Accident:
        own = {name: self.options.pop(name) for name in _OWN if name in self.options}
        return Accident(own.get("fault", ""), own.get("marks", ""), own.get("broker_pid_file", ""))


class Accident:
    """One accident and its place. Pickled with the writer."""

    def __init__(self, fault: str, marks: str, broker_pid_file: str) -> None:
        self.fault = fault
        self._marks = marks
        self._broker_pid_file = broker_pid_file

    def rows(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A task's rows."""
        for number, batch in enumerate(iterator):
            if number == 1 and self.fault == "worker-killed-mid-write" and self._is_first():
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    def written(self) -> None:
        """A task has written its rows."""
        context = TaskContext.get()
        assert context is not None
        if self.fault == "task-fails-after-writing" and context.partitionId() == 0 and self._is_first():
            raise RuntimeError("the accident that was asked for")
        if self.fault == "slow-twin" and context.partitionId() == 0 and self._is_first():
            self._wait_for("committed")

    def commit(self, act: Callable[[], None]) -> None:
        """The driver's commit."""
        where = {"driver": _jvm_pid, "broker": self._broker_pid}
        victim, _, place = self.fault.partition("-killed-")
        if victim not in where or not place.endswith("-commit"):
            act()
            self._mark("committed")
            return
        if place == "before-commit" and self._is_first():
            _kill(where[victim]())
        act()
        if place in ("in-commit", "after-commit") and self._is_first():
            _kill(where[victim]())

    def _broker_pid(self) -> int:
        return int(Path(self._broker_pid_file).read_text())

    def _is_first(self) -> bool:
        try:
            os.close(os.open(f"{self._marks}/{self.fault}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _mark(self, name: str) -> None:
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
        message: WriterCommitMessage = self._writer.write(self._accident.rows(iterator))
        self._accident.written()
        return message


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


def _jvm_pid() -> int:
    """The JVM is an ancestor of every Python worker on the driver."""
    pid = os.getppid()
    while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    # The JVM's death ends this process too: nothing more is to happen here before, as far as can be waited for.
    threading.Event().wait(_DYING_S)
