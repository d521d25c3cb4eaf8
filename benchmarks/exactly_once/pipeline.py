"""One attack's pipeline: its rows in files, its checkpoints, its topics, and the driver, which is started again after its death."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.exactly_once.systems import System

ROWS_PER_FILE = 500
_JOB = Path(__file__).with_name("job.py")
_WATCH_S = 0.0005


class DriverDiedError(Exception):
    """The driver ended in the middle of a step."""


class DriverProcess:
    """job.py with the interpreter of a system; starts when it is needed."""

    def __init__(self, system: System, log: Path) -> None:
        self._system = system
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self.spark = ""
        self._jvm_pid = 0

    def step(self, do: str, **arguments: Any) -> dict[str, Any]:
        """One step's response. Raises DriverDiedError."""
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

    def kill_jvm(self) -> None:
        """SIGKILL."""
        os.kill(self._jvm_pid, signal.SIGKILL)

    def stop(self) -> None:
        """Ends it, with its JVM."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            if not self._is_jvm_dead():
                self.kill_jvm()  # an orderly end takes its time, and nothing is kept
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
        python, settings = self._system.python, {**_settings(self._system.directory), **self._system.settings}
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK", "JAVA_TOOL"))
        }
        path = f"{Path(python).parent}{os.pathsep}{clean['PATH']}"
        own = {"PATH": path, "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
        with self._log.open("a") as log:
            process = subprocess.Popen(
                [python, str(_JOB), json.dumps(settings)],
                env={**clean, **own},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the driver of {self._system.name} did not start: see {self._log}")
        ready = json.loads(line)
        self._process, self.spark, self._jvm_pid = process, ready["spark"], ready["jvm_pid"]
        return process


def _settings(directory: Path) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }


class Pipeline:
    """Files of rows to a sink. Row n has the value "n"; with two topics, even rows go to one and odd rows to the other."""

    def __init__(self, system: System, driver: DriverProcess, name: str, *, two_topics: bool = False) -> None:
        self._system = system
        self._driver = driver
        self.directory = system.directory / name
        self._source = self.directory / "source"
        self._source.mkdir(parents=True)
        self.topics = [f"{name}-even", f"{name}-odd"] if two_topics else [name]
        for topic in self.topics:
            system.create(topic)
        self._two_topics = two_topics
        self.checkpoint = self.directory / "checkpoint"
        self._files = 0
        self.given: set[tuple[str, str]] = set()

    def add_files(self, count: int) -> None:
        """More input."""
        for _ in range(count):
            self._write(self._source / f"{self._files:03}.json")

    def _write(self, path: Path) -> None:
        lines = []
        for number in range(self._files * ROWS_PER_FILE, (self._files + 1) * ROWS_PER_FILE):
            topic = self.topics[number % len(self.topics)]
            lines.append(json.dumps({"key": f"k{number % 97}", "value": str(number), "topic": topic, "number": number}))
            self.given.add((topic, str(number)))
        path.write_text("\n".join(lines) + "\n")
        os.utime(path, (1_000_000_000 + self._files, 1_000_000_000 + self._files))  # Spark takes files by their time
        self._files += 1

    def run(self, *, checkpoint: Path | None = None, files: int = 1, accident: str = "", from_file: int = 0) -> str:
        """A query until nothing is left; its error. Raises DriverDiedError."""
        made = {"kind": accident, "from": from_file * ROWS_PER_FILE, "mark": str(self.directory / "mark")}
        sink = self._system.sink(None if self._two_topics else self.topics[0])
        response = self._driver.step(
            "stream",
            source=str(self._source),
            checkpoint=str(checkpoint or self.checkpoint),
            files=files,
            accident=made if accident else None,
            **sink,
        )
        return str(response.get("error", ""))

    def write_version(self, version: int) -> str:
        """A batch write of new rows under a version; its error."""
        path = self.directory / f"version-{version}.json"
        self._write(path)
        sink = self._system.sink(self.topics[0])
        sink["options"] |= {"txnAppId": self.topics[0], "txnVersion": str(version)}
        return str(self._driver.step("batch", source=str(path), **sink).get("error", ""))

    def happened(self) -> bool:
        """True if the accident has been."""
        return (self.directory / "mark").exists()

    def lose_last_commit(self) -> None:
        """Deletes the newest `commits/N`, and its checksum."""
        last = max((self.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink()

    def copy_checkpoint(self) -> Path:
        """A copy of it as it is now."""
        copied = self.directory / "copied"
        shutil.copytree(self.checkpoint, copied)
        return copied

    def run_and_kill_before_commits(self, batch: int) -> bool:
        """Runs, and kills the JVM when Spark begins to write `commits/<batch>`, after the sink has returned. False if too late."""
        folder = self.checkpoint / "commits"
        begun = re.compile(rf"\.+{batch}\..*tmp")
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.is_set():
                if folder.exists() and any(begun.match(name) for name in os.listdir(folder)):
                    self._driver.kill_jvm()
                    return
                time.sleep(_WATCH_S)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            self.run()
        except DriverDiedError:
            return not (folder / str(batch)).exists()
        finally:
            is_over.set()
            thread.join()
        return False

    def counts(self) -> dict[str, int]:
        """Rows that a reader of committed records sees twice, and rows of the input that it does not see."""
        response = self._driver.step("read", **self._system.reading(self.topics))
        if "error" in response:
            raise RuntimeError(response["error"])
        found = Counter((topic, value) for topic, value in response["rows"])
        strange = found.keys() - self.given
        if strange:
            raise RuntimeError(f"rows that nobody wrote: {sorted(strange)[:5]}")
        return {"there": len(found), "missing": len(self.given - found.keys()), "doubled": found.total() - len(found)}
