"""The systems that are attacked: how each is started, and with which options Spark writes and reads it. Knows no attack."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
import venv
from abc import ABC, abstractmethod
from base64 import urlsafe_b64encode
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import brokerd
from benchmarks.environment import Broker

PYSPARK_OF_PEERS = "4.2.0"
_POM = Path(__file__).with_name("pom.xml")
_READY_S = 120
_SERVER = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={directory}/kafka
num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


class System(ABC):
    """One of them, from `with` to its end."""

    name = ""
    has_topics = True
    has_versions = True

    def __init__(self, directory: Path, peers: Path) -> None:
        """Its data goes below `directory`; interpreters and jars are below `peers`, and are put there if they are missing."""
        self.directory = directory
        self.peers = peers

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:  # noqa: B027 - not every system has a process
        """Until it serves."""

    def stop(self) -> None:  # noqa: B027
        """Until its process has ended."""

    def create(self, topic: str) -> None:  # noqa: B027
        """Makes a topic, where that is not done by itself."""

    @property
    def python(self) -> str:
        """The interpreter with its PySpark."""
        home = self.peers / "env"
        if not home.exists():
            venv.create(home, with_pip=True)
            wanted = (f"pyspark=={PYSPARK_OF_PEERS}", "pyarrow", "pandas")
            subprocess.run([home / "bin" / "python", "-m", "pip", "install", "-q", *wanted], check=True)
        return str(home / "bin" / "python")

    def jars(self, profile: str) -> list[str]:
        """The jars of one profile of pom.xml, from Maven if they are missing."""
        folder = self.peers / profile
        if not folder.exists():
            goal = ("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}")
            subprocess.run(["mvn", "-q", "-f", str(_POM), f"-P{profile}", *goal], check=True)
        return sorted(str(path) for path in folder.glob("*.jar"))

    @property
    def settings(self) -> dict[str, str]:
        """Spark's, beside those that all have."""
        return {}

    @abstractmethod
    def sink(self, topic: str | None) -> dict[str, Any]:
        """The arguments of a step that writes: to one topic, or to those of a column."""

    @abstractmethod
    def reading(self, topics: list[str]) -> dict[str, Any]:
        """The arguments of a step that reads all committed rows of these topics."""

    @property
    @abstractmethod
    def version(self) -> str:
        """For the head of the table."""


class Brokerd(System):
    """This checkout, with default settings."""

    name = "brokerd"

    def start(self) -> None:
        self._broker = Broker(str(self.directory), {})

    def stop(self) -> None:
        self._broker.__exit__(None, None, None)

    def create(self, topic: str) -> None:
        with self._broker.client() as client:
            client.create_topic(topic, 4)

    @property
    def python(self) -> str:
        return sys.executable

    def sink(self, topic: str | None) -> dict[str, Any]:
        options = {"bootstrap.servers": self._broker.address, **({"topic": topic} if topic else {})}
        return {"format": "brokerd", "options": options, "columns": ["key", "value"] if topic else ["key", "value", "topic"]}

    def reading(self, topics: list[str]) -> dict[str, Any]:
        options = {"bootstrap.servers": self._broker.address, "subscribe": ",".join(topics)}
        return {"format": "brokerd", "options": options, "topic": "topic"}

    @property
    def version(self) -> str:
        return f"brokerd {brokerd.__version__}"


class Kafka(System):
    """A Kafka of one node, and Spark's connector for it."""

    name = "kafka"
    has_versions = False

    def start(self) -> None:
        port, controller = _free_port(), _free_port()
        self._address = f"127.0.0.1:{port}"
        properties = self.directory / "server.properties"
        properties.write_text(_SERVER.format(port=port, controller=controller, directory=self.directory))
        java = ["java", "-Xmx512m", "-cp", os.pathsep.join(self.jars("kafka"))]
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        with (self.directory / "kafka.log").open("w") as log:
            formatting = [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)]
            subprocess.run(formatting, check=True, stdout=log, stderr=log)
            self._process = subprocess.Popen([*java, "kafka.Kafka", str(properties)], stdout=log, stderr=log)
        _wait_for_port(port)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)

    @property
    def settings(self) -> dict[str, str]:
        return {"spark.jars": ",".join(self.jars("kafka-spark"))}

    def sink(self, topic: str | None) -> dict[str, Any]:
        options = {"kafka.bootstrap.servers": self._address, **({"topic": topic} if topic else {})}
        return {"format": "kafka", "options": options, "columns": ["key", "value"] if topic else ["key", "value", "topic"]}

    def reading(self, topics: list[str]) -> dict[str, Any]:
        options = {
            "kafka.bootstrap.servers": self._address,
            "subscribe": ",".join(topics),
            "kafka.isolation.level": "read_committed",
        }
        return {"format": "kafka", "options": options, "topic": "topic"}

    @property
    def version(self) -> str:
        broker = next(path for path in self.jars("kafka") if "kafka_2.13" in path)
        return f"Kafka {broker.rpartition('-')[2].removesuffix('.jar')}"


class Delta(System):
    """A Delta table for each topic, on the local disk."""

    name = "delta"
    has_topics = False

    @property
    def settings(self) -> dict[str, str]:
        return {
            "spark.jars": ",".join(self.jars("delta")),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": "2",  # of small tables, for one core
        }

    def _table(self, topic: str | None) -> str:
        return str(self.directory / "tables" / str(topic))

    def sink(self, topic: str | None) -> dict[str, Any]:
        return {"format": "delta", "options": {"path": self._table(topic)}, "columns": ["key", "value"]}

    def reading(self, topics: list[str]) -> dict[str, Any]:
        (topic,) = topics
        return {"format": "delta", "options": {"path": self._table(topic)}, "topic": f"'{topic}'"}

    @property
    def version(self) -> str:
        jar = next(path for path in self.jars("delta") if "delta-spark" in path)
        return f"Delta {jar.rpartition('-')[2].removesuffix('.jar')}"


SYSTEMS: dict[str, type[System]] = {system.name: system for system in (Brokerd, Kafka, Delta)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise RuntimeError(f"nothing listens on port {port} after {_READY_S} s: see kafka.log in the system's directory")
