"""The processes of an attack: Spark's driver, programs without Spark, and the master and workers of a cluster. They end with
this process."""

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
    "spark.python.authenticate.socketTimeout": "120s",  # Python workers start slowly on a busy machine
}
_OF_A_CLUSTER = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.speculation": "true",
    "spark.speculation.minTaskRuntime": "10s",  # no twins except the accident's
    "spark.speculation.quantile": "0.5",
    "spark.python.task.killTimeout": "60s",  # the losing attempt is still there when the micro-batch is committed
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50",  # rows reach the sink while their task still runs
    "spark.buffer.size": "1024",  # bytes; for the same reason
}


class DriverDiedError(Exception):
    """The driver died during a step."""


class DriverProcess:
    """Runs job.py with the interpreter of a system; starts it when needed, and again after it died."""

    def __init__(self, system: System, log: Path, master: str = "") -> None:
        """`master`: the address of a cluster, used with speculation; by default one process with one core, which retries tasks."""
        self._system = system
        self._log = log
        self._master = master
        self._process: subprocess.Popen[str] | None = None
        self.spark = ""
        self._jvm_pid = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def step(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Runs a step; returns its response. Raises DriverDiedError, and RuntimeError if the driver does not start."""
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
        """Stops the driver and its JVM."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            if self._jvm_pid and not self._is_jvm_dead():
                os.kill(self._jvm_pid, signal.SIGKILL)  # an orderly end is slow and saves nothing here
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
                start_new_session=True,  # Ctrl-C is for this program only
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
    """Runs program.py with the interpreter of a system until the block ends."""

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

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def said(self) -> list[str]:
        """The lines that it has printed."""
        return self._said.read_text().splitlines()

    def error(self) -> str:
        """Its last line (an error's name) once it has ended, otherwise "". Raises RuntimeError for an exit status other than 0."""
        if self.process.poll():
            raise RuntimeError(f"{_PROGRAM.name} ended with status {self.process.poll()}: {tail(self._log)}")
        return "" if self.process.poll() is None else self.said()[-1]

    def proceed(self) -> None:
        """Sends the line that it waits for."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def wait_for_lines(self, count: int) -> list[str]:
        """Waits until it has printed `count` lines; returns all. Raises RuntimeError."""
        deadline = time.monotonic() + _TOLD_S
        while len(said := self.said()) < count:
            if time.monotonic() > deadline or self.process.poll() not in (None, 0):
                raise RuntimeError(f"a program of {_PROGRAM.name} said {said}; {tail(self._log)}")
            time.sleep(0.05)
        return said


@contextlib.contextmanager
def cluster(system: System) -> Iterator[str]:
    """Runs a standalone master with two workers; yields its address."""
    directory = system.directory / "cluster"
    directory.mkdir()
    asked = "import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)"
    home = subprocess.run([system.python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    environment = {**_environment(system), "SPARK_LOCAL_DIRS": str(directory / "local")}
    with standalone(Path(home), directory, environment) as address:
        yield address


def _environment(system: System) -> dict[str, str]:
    """The environment of children, without this process's settings for Python, Spark and Java."""
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
