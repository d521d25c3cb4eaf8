"""A standalone Spark cluster: a master and two workers on loopback addresses, with free ports. Each JVM takes its seconds."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyspark

from tests.support.wait import wait_until

SPARK_HOME = Path(pyspark.__file__).parent
HOSTS = ("127.0.0.2", "127.0.0.3")


class Cluster(NamedTuple):
    """The master's address, and the environment of a driver."""

    master: str
    environment: Mapping[str, str]


@contextlib.contextmanager
def standalone_cluster(directory: Path, python: Path, **environment: str) -> Iterator[Cluster]:
    """Workers of one core each, on two hosts, that run `python`, with `environment` added to theirs; PLACE is "<host> "."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))}
    common = {**clean, "SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1", **environment}
    with contextlib.ExitStack() as stack:
        master = ("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        stack.enter_context(_jvm(directory / "master", common, *master))
        address = _awaited(directory / "master", r"Starting Spark master at (spark://\S+)")[1]
        for host in HOSTS:
            own = {**common, "SPARK_LOCAL_IP": host, "PLACE": f"{host} "}
            size = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(directory / f"work-{host}"))
            worker = ("org.apache.spark.deploy.worker.Worker", "--host", host, *size, address)
            stack.enter_context(_jvm(directory / host, own, *worker))
        for host in HOSTS:
            _awaited(directory / host, "Successfully registered with master")
        yield Cluster(address, common)


@contextlib.contextmanager
def _jvm(log: Path, environment: Mapping[str, str], *arguments: str) -> Iterator[None]:
    """A daemon of Spark's, until it is no longer needed."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(SPARK_HOME / "bin" / "spark-class"), *arguments], env=environment, stdout=output, stderr=output
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


def _awaited(log: Path, pattern: str) -> re.Match[str]:
    """The line of a daemon's log that says that it is ready."""
    wait_until(lambda: re.search(pattern, log.read_text()) is not None, what=f"{pattern} in {log}")
    match = re.search(pattern, log.read_text())
    assert match is not None
    return match
