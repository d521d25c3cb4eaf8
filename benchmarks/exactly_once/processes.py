"""The processes of an attack: Spark's driver, programs without Spark, and the master and workers of a cluster. They end with this
one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.exactly_once.standalone import standalone
from benchmarks.exactly_once.systems import System, tail

_JOB = Path(__file__).with_name("job.py")
_PROGRAM = Path(__file__).with_name("program.py")
_TOLD_S = 90
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.authenticate.socketTimeout": "120s",  # for a Python worker to start, on a busy machine
}
_OF_A_CLUSTER = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.speculation": "true",
    "spark.speculation.minTaskRuntime": "10s",  # no twins but those of the accident
    "spark.speculation.quantile": "0.5",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50",  # rows come to the sink while their task still runs
    "spark.buffer.size": "1024",  # bytes, likewise
}


class DriverDiedError(Exception):
    """The driver ended in the middle of a step."""


class DriverProcess:
    """job.py with the interpreter of a system; starts when it is needed, again after its death."""

    def __init__(self, system: System, log: Path, master: str = "") -> None:
        """On a cluster with speculation if `master` names one; otherwise in one process with one core, where a task may fail."""
        self._system = system
        self._log = log
        self._master = master
        self._process: subprocess.Popen[str] | None = None
        self.spark = ""
        self._jvm_pid = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def step(self, do: str, **arguments: Any) -> dict[str, Any]:
        """One step's response. Raises DriverDiedError, and RuntimeError if there is none to begin with."""
        process = self._process or self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line or self._is_jvm_dead():
            self.stop()
            raise DriverDiedError
        response: dict[str, Any] = json.loads(line)
        return response

    def stop(self) -> None:
        """Ends it, with its JVM."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            if self._jvm_pid and not self._is_jvm_dead():
                os.kill(self._jvm_pid, signal.SIGKILL)  # an orderly end takes its time, and nothing is kept
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.wait(60)
            process.stdout.close()

    def _is_jvm_dead(self) -> bool:
        try:
            state = Path(f"/proc/{self._jvm_pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        return state == "Z"

    def _started(self) -> subprocess.Popen[str]:
        settings = {
            **_SETTINGS,
            **(_OF_A_CLUSTER if self._master else {}),
            "spark.local.dir": str(self._system.directory / "spark"),
            "spark.sql.warehouse.dir": str(self._system.directory / "warehouse"),
            **self._system.settings,
        }
        with self._log.open("a") as log:
            process = subprocess.Popen(
                [self._system.python, str(_JOB), self._master or "local[1,4]", json.dumps(settings)],
                env=_environment(self._system),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # an interrupt from the keyboard is this program's alone
            )
        self._process, self._jvm_pid = process, 0
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            self.stop()
            raise RuntimeError(f"the driver of {self._system.name} did not start: {tail(self._log)}")
        ready = json.loads(line)
        self.spark, self._jvm_pid = ready["spark"], ready["jvm_pid"]
        return process


class Program:
    """program.py with the interpreter of a system, until the block ends."""

    def __init__(self, system: System, *arguments: str) -> None:
        name = system.directory / f"program-{uuid.uuid4().hex[:6]}"
        self._said, self._log = name.with_suffix(".out"), name.with_suffix(".log")
        command = [system.python, str(_PROGRAM), system.name, system.address, *arguments]
        with self._said.open("w") as output, self._log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                env=_environment(system),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.communicate()

    def said(self) -> list[str]:
        """All its lines so far."""
        return self._said.read_text().splitlines()

    def error(self) -> str:
        """The name of the error that ended it. Raises RuntimeError if it ended without one."""
        if self.process.poll():
            raise RuntimeError(f"{_PROGRAM.name} ended with status {self.process.poll()}: {tail(self._log)}")
        return "" if self.process.poll() is None else self.said()[-1]

    def proceed(self) -> None:
        """Gives it the line that it waits for."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def wait_for_lines(self, count: int) -> list[str]:
        """All its lines, of which there are so many. Raises RuntimeError."""
        deadline = time.monotonic() + _TOLD_S
        while len(said := self.said()) < count:
            if time.monotonic() > deadline or self.process.poll() not in (None, 0):
                raise RuntimeError(f"a program of {_PROGRAM.name} said {said}; {tail(self._log)}")
            time.sleep(0.05)
        return said


@contextlib.contextmanager
def cluster(system: System) -> Iterator[str]:
    """The address of a standalone master with two workers."""
    directory = system.directory / "cluster"
    directory.mkdir()
    asked = "import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)"
    home = subprocess.run([system.python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    environment = {**_environment(system), "SPARK_LOCAL_DIRS": str(directory / "local")}
    with standalone(Path(home), directory, environment) as address:
        yield address


def _environment(system: System) -> dict[str, str]:
    """Without what this process was told of Python and Spark."""
    alien = ("PYTHON", "PYSPARK", "SPARK", "JAVA_TOOL")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(alien)}
    scratch = system.directory / "scratch"
    scratch.mkdir(exist_ok=True)
    return {
        **clean,
        "PATH": f"{Path(system.python).parent}{os.pathsep}{clean['PATH']}",
        "PYSPARK_PYTHON": system.python,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TMPDIR": str(scratch),
        "JDK_JAVA_OPTIONS": f"-XX:TieredStopAtLevel=1 -Djava.io.tmpdir={scratch}",
    }
