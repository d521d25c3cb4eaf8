"""Kafka and Delta; the PySpark and the jars that they need are kept in a separate directory."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import uuid
import venv
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.environment import free_port
from benchmarks.exactly_once.program import PARTITIONS
from benchmarks.exactly_once.relay import Relay
from benchmarks.exactly_once.systems import System, sink_of_topics, tail

PYSPARK_OF_PEERS = "4.2.0"
_POM = Path(__file__).with_name("pom.xml")
_READY_S = 120
_SERVER = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://{address}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
num.partitions={partitions}
offsets.retention.minutes=1
offsets.retention.check.interval.ms=1000
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


class Peer(System):
    """A system with the PySpark version of its connector."""

    profiles: tuple[str, ...] = ()  # of pom.xml

    def missing(self) -> list[str]:
        lacks_jars = any(not (self.peers / profile).exists() for profile in self.profiles)
        needs_maven = lacks_jars and not shutil.which("mvn")
        told = f"no `mvn` on the path, which copies jars of {self.name} to {self.peers}: install Maven, or pass --peers"
        return super().missing() + ([told] if needs_maven else [])

    def prepare(self) -> None:
        """Installs the interpreter and the jars if they are missing."""
        home = self.peers / "env"
        there = (f"pyspark-{PYSPARK_OF_PEERS}.", "pandas-", "confluent_kafka-")
        if not all(list(home.glob(f"lib/python*/site-packages/{each}*")) for each in there):
            venv.create(home, with_pip=True)
            wanted = (f"pyspark=={PYSPARK_OF_PEERS}", "pyarrow", "pandas", "confluent-kafka")
            _quietly([self.python, "-m", "pip", "install", "-q", *wanted])
        for profile in self.profiles:
            folder = self.peers / profile
            if not folder.exists():
                part = folder.with_name(f"{profile}.part")
                goal = ("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={part}")
                _quietly(["mvn", "-q", "-B", "-f", str(_POM), f"-P{profile}", *goal])
                part.rename(folder)

    def start(self, relay: Relay | None = None) -> None:
        self.prepare()

    @property
    def python(self) -> str:
        return str(self.peers / "env" / "bin" / "python")

    def jars(self, profile: str) -> list[str]:
        """The jars of one profile."""
        return sorted(str(path) for path in (self.peers / profile).glob("*.jar"))

    def _version_of(self, profile: str, jar: str) -> str:
        found = next(path for path in self.jars(profile) if jar in path)
        return found.rpartition("-")[2].removesuffix(".jar")


class Kafka(Peer):
    """A single-node Kafka, Spark's connector, and Confluent's client. Offsets of an empty group expire after a minute."""

    name = "kafka"
    lacks = ("versions",)
    profiles = ("kafka", "kafka-spark")

    def start(self, relay: Relay | None = None) -> None:
        self.prepare()
        is_new = not self.data.exists()
        if is_new:
            self._ports = free_port(), free_port()
        port, controller = self._ports
        self.address = f"127.0.0.1:{port}"
        if relay is not None:
            relay.target = port
            self.address = f"127.0.0.1:{relay.port}"
        properties, path = self.directory / "server.properties", self.directory / "kafka.log"
        given = {"port": port, "controller": controller, "address": self.address, "data": self.data, "partitions": PARTITIONS}
        properties.write_text(_SERVER.format(**given))
        java = ["java", "-Xmx512m", "-cp", os.pathsep.join(self.jars("kafka"))]
        with path.open("a") as log:
            if is_new:
                id_of_cluster = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
                formatting = [*java, "kafka.tools.StorageTool", "format", f"--cluster-id={id_of_cluster}", "-c", str(properties)]
                if subprocess.run(formatting, stdout=log, stderr=log, check=False).returncode:
                    raise RuntimeError(f"Kafka's directory cannot be made: {tail(path)}")
            command = [*java, "kafka.Kafka", str(properties)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            self._wait_for_port(port, path)
        except BaseException:
            self.stop()
            raise

    def _wait_for_port(self, port: int, log: Path) -> None:
        deadline = time.monotonic() + _READY_S
        while self._process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.2)
        raise RuntimeError(f"Kafka does not listen on port {port}: {tail(log)}")

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(30)

    @property
    def settings(self) -> dict[str, str]:
        return {"spark.jars": ",".join(self.jars("kafka-spark"))}

    def sink(self, topics: Sequence[str]) -> dict[str, Any]:
        return sink_of_topics("kafka", {"kafka.bootstrap.servers": self.address}, topics)

    def reads(self, topics: Sequence[str], *, committed: bool = True) -> list[dict[str, Any]]:
        options = {
            "kafka.bootstrap.servers": self.address,
            "subscribe": ",".join(topics),
            "kafka.isolation.level": "read_committed" if committed else "read_uncommitted",
        }
        return [{"format": "kafka", "options": options, "topic": "topic"}]

    @property
    def version(self) -> str:
        return f"Kafka {self._version_of('kafka', 'kafka_2.13')}"


class Delta(Peer):
    """A Delta table for each topic, on the local disk."""

    name = "delta"
    lacks = ("groups", "programs with a transactional id")
    asks_for_versions = True
    profiles = ("delta",)

    @property
    def settings(self) -> dict[str, str]:
        return {
            "spark.jars": ",".join(self.jars("delta")),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": "2",  # enough for small tables on one core
        }

    def _table(self, topic: str) -> str:
        return str(self.data / topic)

    def sink(self, topics: Sequence[str]) -> dict[str, Any]:
        columns = ["key", "value"]
        if len(topics) == 1:
            return {"format": "delta", "options": {"path": self._table(topics[0])}, "columns": columns}
        return {"format": "delta", "options": {}, "columns": columns, "tables": {topic: self._table(topic) for topic in topics}}

    def reads(self, topics: Sequence[str], *, committed: bool = True) -> list[dict[str, Any]]:
        return [{"format": "delta", "options": {"path": self._table(topic)}, "topic": f"'{topic}'"} for topic in topics]

    @property
    def version(self) -> str:
        return f"Delta {self._version_of('delta', 'delta-spark')}"


def _quietly(command: list[str]) -> None:
    """Runs a command. Raises RuntimeError with its output if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command)}` ended with status {done.returncode}:\n{done.stdout[-3000:]}")
