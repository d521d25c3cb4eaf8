"""A system that is attacked: how it is started, and how Spark writes and reads it. Knows no attack. Here is brokerd."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import brokerd
from benchmarks.environment import Broker

_TAIL_LINES = 15


class System(ABC):
    """One of them, from `with` to its end."""

    name = ""
    has_versions = True
    asks_for_versions = False  # of a write inside foreachBatch, which is written again without them

    def __init__(self, directory: Path, peers: Path) -> None:
        """Its data goes below `directory`; interpreters and jars are below `peers`, and are put there if they are missing."""
        self.directory = directory
        self.peers = peers

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def missing(self) -> list[str]:
        """The things that it needs and this machine lacks, each with what to do."""
        return [] if shutil.which("java") else ["no `java` on the path: Spark needs Java 17 or later"]

    def start(self) -> None:  # noqa: B027 - not every system has a process
        """Until it serves. Raises RuntimeError."""

    def stop(self) -> None:  # noqa: B027
        """Until its process has ended."""

    def create(self, topic: str) -> None:  # noqa: B027
        """Makes a topic, where that is not done by itself."""

    @property
    @abstractmethod
    def python(self) -> str:
        """The interpreter with its PySpark."""

    @property
    def settings(self) -> dict[str, str]:
        """Spark's, beside those that all have."""
        return {}

    @abstractmethod
    def sink(self, topics: Sequence[str]) -> dict[str, Any]:
        """The arguments of a step that writes: to one topic, or each row to the one that its column names."""

    @abstractmethod
    def reads(self, topics: Sequence[str], *, committed: bool = True) -> list[dict[str, Any]]:
        """The reads of a step, for all committed rows of these topics; for the others too, where they can be read."""

    @property
    @abstractmethod
    def version(self) -> str:
        """For the head of the table."""


class Brokerd(System):
    """This checkout, with default settings."""

    name = "brokerd"

    def missing(self) -> list[str]:
        absent = [module for module in ("pyspark", "pandas") if importlib.util.find_spec(module) is None]
        return super().missing() + [f"no {each} in {sys.executable}: `pip install {each}`" for each in absent]

    def start(self) -> None:
        path = self.directory / "brokerd.log"
        with path.open("w") as log:
            try:
                self._broker = Broker(str(self.directory), {}, log=log.fileno())
            except RuntimeError as error:
                raise RuntimeError(f"{error}: {tail(path)}") from None

    def stop(self) -> None:
        self._broker.__exit__(None, None, None)

    def create(self, topic: str) -> None:
        with self._broker.client() as client:
            client.create_topic(topic, 4)

    @property
    def python(self) -> str:
        return sys.executable

    def sink(self, topics: Sequence[str]) -> dict[str, Any]:
        return sink_of_topics("brokerd", {"bootstrap.servers": self._broker.address}, topics)

    def reads(self, topics: Sequence[str], *, committed: bool = True) -> list[dict[str, Any]]:
        options = {"bootstrap.servers": self._broker.address, "subscribe": ",".join(topics)}
        uncommitted = {"isolation.level": "read_uncommitted"}
        return [{"format": "brokerd", "options": options if committed else options | uncommitted, "topic": "topic"}]

    @property
    def version(self) -> str:
        return f"brokerd {brokerd.__version__}"


def sink_of_topics(form: str, options: dict[str, str], topics: Sequence[str]) -> dict[str, Any]:
    """See System.sink, for sinks that know the option and the column `topic`."""
    if len(topics) == 1:
        return {"format": form, "options": {**options, "topic": topics[0]}, "columns": ["key", "value"]}
    return {"format": form, "options": options, "columns": ["key", "value", "topic"]}


def tail(log: Path) -> str:
    """The end of a log, which goes with its directory."""
    return "\n".join(["the end of its log is", *log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]])
