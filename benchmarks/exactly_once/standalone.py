"""A standalone Spark cluster: a master and two workers on loopback addresses and free ports. Each JVM takes seconds to start."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from benchmarks.exactly_once.systems import tail

HOSTS = ("127.0.0.2", "127.0.0.3")  # of the workers; Spark runs a twin only on another host
_MASTER = "127.0.0.1"
_READY_S = 120
_PORTS = ("--port", "0", "--webui-port", "0")


@contextlib.contextmanager
def standalone(home: Path, directory: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Runs a master, and a worker of one core on each of HOSTS, whose tasks find the host in SPARK_LOCAL_IP; yields the master's
    address.

    `home` is SPARK_HOME, `directory` holds logs and work directories, `environment` is common to all. Raises RuntimeError if one
    does not start.
    """
    with contextlib.ExitStack() as stack:

        def start(host: str, *arguments: str) -> _Daemon:
            own = {**environment, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": host}
            command = [str(home / "bin" / "spark-class"), *arguments, "--host", host, *_PORTS]
            return stack.enter_context(_Daemon(command, own, directory / f"{host}.log"))

        master = start(_MASTER, "org.apache.spark.deploy.master.Master")
        address = master.awaited(r"Starting Spark master at (spark://\S+)")[1]
        size = ("--cores", "1", "--memory", "1g")
        workers = [
            start(host, "org.apache.spark.deploy.worker.Worker", address, *size, "--work-dir", str(directory / f"work-{host}"))
            for host in HOSTS
        ]
        for worker in workers:
            worker.awaited("Successfully registered with master")
        yield address


class _Daemon:
    """A process of the cluster; runs until the block ends."""

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("w") as output:
            self._process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)

    def awaited(self, ready: str) -> re.Match[str]:
        """Waits for a line of its log. Raises RuntimeError."""
        deadline = time.monotonic() + _READY_S
        while not (found := re.search(ready, self._log.read_text())):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Spark's cluster did not start: {tail(self._log)}")
            time.sleep(0.2)
        return found
