"""The interface of attacked systems: how to start one, and how Spark writes and reads it. Brokerd is the first."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import brokerd
from benchmarks.environment import start_broker
from benchmarks.exactly_once.program import PARTITIONS
from benchmarks.exactly_once.relay import Relay
from benchmarks.nodes import etcd
from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig

_TAIL_LINES = 15


class System(ABC):
    """An attacked system; runs until the block ends."""

    name = ""
    lacks: tuple[str, ...] = ()  # features that attacks may need
    asks_for_versions = False  # True if writes inside foreachBatch are idempotent only with a version

    def __init__(self, directory: Path, peers: Path) -> None:
        """Data is kept in `directory`; interpreters and jars in `peers`, where missing ones are installed."""
        self.directory = directory
        self.peers = peers
        self.data = directory / "data"
        self.address = ""  # for its clients, if it has any

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def missing(self) -> list[str]:
        """What it needs and this machine lacks, each with the remedy."""
        return [] if shutil.which("java") else ["no `java` on the path: Spark needs Java 17 or later"]

    def start(self, relay: Relay | None = None) -> None:  # noqa: B027 - not every system has a process
        """Starts it on the existing data, until it serves; clients connect through the relay. Raises RuntimeError."""

    def stop(self) -> None:  # noqa: B027
        """Stops its process."""

    @contextmanager
    def behind(self, relay: Relay) -> Iterator[None]:
        """Makes its clients connect through the relay until the block ends."""
        self.stop()
        self.start(relay)
        try:
            yield
        finally:
            self.stop()
            self.start()

    def back_up(self) -> None:
        """Copies its data while it is stopped."""
        self.stop()
        shutil.copytree(self.data, self._backup)
        self.start()

    def restore(self) -> None:
        """Replaces its data with the copy."""
        self.stop()
        shutil.rmtree(self.data)
        self._backup.rename(self.data)
        self.start()

    @property
    def _backup(self) -> Path:
        return self.directory / "backup"

    def create(self, topic: str) -> None:  # noqa: B027
        """Creates a topic, unless the system creates topics itself."""

    @property
    @abstractmethod
    def python(self) -> str:
        """The interpreter that has its PySpark."""

    @property
    def settings(self) -> dict[str, str]:
        """Spark settings in addition to the common ones."""
        return {}

    @abstractmethod
    def sink(self, topics: Sequence[str]) -> dict[str, Any]:
        """The arguments of a writing step: to one topic, or to the topic in each row's column."""

    @abstractmethod
    def reads(self, topics: Sequence[str], *, committed: bool = True) -> list[dict[str, Any]]:
        """The reads of a step: all committed rows of these topics, or uncommitted ones too if possible."""

    def follows(self, topic: str) -> dict[str, Any]:
        """The read of a step: a query from the first row on."""
        (read,) = self.reads([topic])
        return {**read, "options": {**read["options"], "startingOffsets": "earliest"}}

    @property
    @abstractmethod
    def version(self) -> str:
        """Name and version, for the heading of the table."""


class Brokerd(System):
    """This checkout with default settings, except that a group's offsets expire after a minute."""

    name = "brokerd"

    def missing(self) -> list[str]:
        absent = [module for module in ("pyspark", "pandas") if importlib.util.find_spec(module) is None]
        return super().missing() + [f"no {each} in {sys.executable}: `pip install {each}`" for each in absent]

    def start(self, relay: Relay | None = None) -> None:
        path = self.directory / "brokerd.log"
        settings = {"offsets.retention.minutes": "1"}
        if relay is not None:
            settings["advertised.port"] = str(relay.port)
        with path.open("a") as log:
            try:
                self._child = start_broker(str(self.data), settings, log=log.fileno())
            except RuntimeError as error:
                raise RuntimeError(f"{error}: {tail(path)}") from None
        self.address = self._child.address
        if relay is not None:
            relay.target = int(self.address.rpartition(":")[2])
            self.address = f"127.0.0.1:{relay.port}"

    def stop(self) -> None:
        self._child.stop()

    def create(self, topic: str) -> None:
        with BlockingClient(ClientConfig(bootstrap_servers=self.address)) as client:
            client.create_topic(topic, PARTITIONS)

    @property
    def python(self) -> str:
        return sys.executable

    def sink(self, topics: Sequence[str]) -> dict[str, Any]:
        return sink_of_topics("brokerd", {"bootstrap.servers": self.address}, topics)

    def reads(self, topics: Sequence[str], *, committed: bool = True) -> list[dict[str, Any]]:
        options = {"bootstrap.servers": self.address, "subscribe": ",".join(topics)}
        uncommitted = {"isolation.level": "read_uncommitted"}
        return [{"format": "brokerd", "options": options if committed else options | uncommitted, "topic": "topic"}]

    @property
    def version(self) -> str:
        return f"brokerd {brokerd.__version__}"


class ThreeNodes(Brokerd):
    """A cluster of three nodes with an etcd, each with a copy of every partition, with the same settings."""

    name = "three-nodes"
    lacks = ("programs with a transactional id",)  # the attack relays one address

    def missing(self) -> list[str]:
        return super().missing() + ([] if shutil.which("etcd") else ["no `etcd` on the path"])

    def start(self, relay: Relay | None = None) -> None:
        self.data.mkdir(exist_ok=True)
        with ExitStack() as stack:
            settings = {"cluster.name": "attacked", "coordination.servers": f"etcd://{stack.enter_context(etcd(str(self.data)))}"}
            settings |= {"default.replication.factor": "3", "min.insync.replicas": "2", "offsets.retention.minutes": "1"}
            log = stack.enter_context((self.directory / "brokerd.log").open("a"))
            found = []
            for number in range(1, 4):
                node = start_broker(f"{self.data}/{number}", {"node.id": str(number), **settings}, log=log.fileno())
                stack.callback(node.stop)
                found.append(node.address)
            self.address = ",".join(found)
            self._running = stack.pop_all()

    def stop(self) -> None:
        self._running.close()

    @property
    def version(self) -> str:
        return f"three nodes of {super().version}"


class AppendTo(Brokerd):
    """brokerd, with micro-batches written by `append_to`, in turn by the driver and through the sink."""

    name = "append_to"
    lacks = ("programs with a transactional id", "groups", "source of its own")
    _turn = 0  # the micro-batches that the driver writes: 0 = even ones, 1 = odd ones

    def sink(self, topics: Sequence[str]) -> dict[str, Any]:
        """Each run of a query swaps the turns, so that a replay uses the other writer."""
        made = super().sink(topics)
        options = {name: value for name, value in made["options"].items() if name != "topic"}
        turn, self._turn = self._turn, 1 - self._turn
        return made | {"options": options, "append_to": {"topic": topics[0] if len(topics) == 1 else None, "turn": turn}}

    @property
    def version(self) -> str:
        return f"append_to of {super().version}"


class AppendToInverted(AppendTo):
    """The same with swapped turns."""

    name = "append_to-inverted"
    _turn = 1


def sink_of_topics(form: str, options: dict[str, str], topics: Sequence[str]) -> dict[str, Any]:
    """Implements System.sink for sinks with the option and the column `topic`."""
    if len(topics) == 1:
        return {"format": form, "options": {**options, "topic": topics[0]}, "columns": ["key", "value"]}
    return {"format": form, "options": options, "columns": ["key", "value", "topic"]}


def tail(log: Path) -> str:
    """The last lines of a log, for errors: the log is deleted with its directory."""
    return "\n".join(["the end of its log is", *log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]])
