"""The pipeline of one attack: its rows in files, its checkpoints and its topics."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.exactly_once.processes import DriverProcess
from benchmarks.exactly_once.relay import Relay
from benchmarks.exactly_once.systems import System

ROWS_PER_FILE = 500
_LATE_S = 10


class Pipeline:
    """Writes files of rows to a sink. Row n has the value "n"; with two topics, even rows go to one and odd rows to the other.
    With job groups, each writes a part of every micro-batch; the parts have equal numbers of rows, keys and bytes."""

    def __init__(
        self, system: System, driver: DriverProcess, name: str, *, two_topics: bool = False, groups: Sequence[str] = ()
    ) -> None:
        self.system = system  # the attacked system
        self._driver = driver
        self.directory = system.directory / name
        self._source = self.directory / "source"
        self._source.mkdir(parents=True)
        self.topics = [f"{name}-even", f"{name}-odd"] if two_topics else [name]
        for topic in self.topics:
            system.create(topic)
        self.checkpoint = self.directory / "checkpoint"
        self._followed = self.directory / "followed"
        self._groups = groups
        self._files = 0
        self.given: set[tuple[str, str]] = set()

    def add_files(self, count: int) -> None:
        """Adds input."""
        for _ in range(count):
            self._write(self._source / f"{self._files:03}.json")

    def _write(self, path: Path) -> None:
        lines = []
        for number in range(self._files * ROWS_PER_FILE, (self._files + 1) * ROWS_PER_FILE):
            topic = self.topics[number % len(self.topics)]
            key = number // max(1, len(self._groups)) % 97
            lines.append(json.dumps({"key": f"k{key}", "value": str(number), "topic": topic, "number": number}))
            self.given.add((topic, str(number)))
        path.write_text("\n".join(lines) + "\n")
        os.utime(path, (1_000_000_000 + self._files, 1_000_000_000 + self._files))  # Spark reads files in order of time
        self._files += 1

    def run(self, *, checkpoint: Path | None = None, files: int = 1, accident: str = "", from_file: int = 0) -> str:
        """Runs a query that writes all input; returns its error. Raises DriverDiedError."""
        made = {
            "kind": accident,
            "from": from_file * ROWS_PER_FILE,
            "until": (from_file + 1) * ROWS_PER_FILE,
            "mark": str(self.directory / "mark"),
            "commits": str(self.checkpoint / "commits"),
        }
        response = self._driver.step(
            "stream",
            source=str(self._source),
            checkpoint=str(checkpoint or self.checkpoint),
            files=files,
            accident=made if accident else None,
            groups=list(self._groups),
            versions=self.system.asks_for_versions,
            **self.system.sink(self.topics),
        )
        return str(response.get("error", ""))

    def write_version(self, version: int) -> str:
        """Writes a batch with a version: new rows, or those that the version had before; returns the error."""
        path = self.directory / f"version-{version}.json"
        if not path.exists():
            self._write(path)
        return self._write_batch(path, {"txnAppId": self.topics[0], "txnVersion": str(version)})

    def write_rows(self) -> str:
        """Writes a batch of new rows; returns the error."""
        path = self.directory / f"rows-{self._files}.json"
        self._write(path)
        return self._write_batch(path, {})

    def _write_batch(self, path: Path, options: dict[str, str]) -> str:
        sink = self.system.sink(self.topics)
        sink["options"] |= options
        return str(self._driver.step("batch", source=str(path), **sink).get("error", ""))

    def expect(self, values: Iterable[str]) -> None:
        """Sets the values that a program writes to the topic."""
        self.given = {(self.topics[0], value) for value in values}

    def follow(self) -> str:
        """Runs a query that reads the topic to its end; returns its error."""
        read = self.system.follows(self.topics[0])
        step = {"read": read, "checkpoint": str(self.checkpoint), "path": str(self._followed)}
        return str(self._driver.step("follow", **step).get("error", ""))

    def restore(self) -> None:
        """Replaces the system's data with its backup, while Spark is stopped."""
        self._driver.stop()
        self.system.restore()

    @contextmanager
    def behind(self, relay: Relay) -> Iterator[None]:
        """Puts the relay before the system until the block ends. Spark is stopped then: its clients keep the relay's address."""
        try:
            with self.system.behind(relay):
                yield
        finally:
            self._driver.stop()

    def followed(self) -> Counter[str]:
        """The values that `follow` has read."""
        read = {"format": "text", "options": {"path": str(self._followed)}, "topic": "''"}
        return Counter(value for _, value in self._rows([read]))

    def happened(self) -> bool:
        """True if the accident has happened."""
        return (self.directory / "mark").exists()

    def hosts_at_once(self) -> tuple[str, str] | None:
        """The hosts of the slow attempt and its twin; None if the slow one was not running after the commit."""
        mark, twin, late = (self.directory / name for name in ("mark", "mark.twin", "mark.late"))
        deadline = time.monotonic() + _LATE_S
        while not (twin.exists() and late.exists()):
            if time.monotonic() > deadline:
                return None
            time.sleep(0.05)
        return mark.read_text(), twin.read_text()

    def lose_last_commit(self) -> None:
        """Deletes the newest `commits/N` and its checksum."""
        last = max((self.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink()

    def copy_checkpoint(self) -> Path:
        """Copies the checkpoint; returns the path of the copy."""
        copied = self.directory / "copied"
        shutil.copytree(self.checkpoint, copied)
        return copied

    def is_noted(self, batch: int) -> bool:
        """True if `commits/<batch>` exists."""
        return (self.checkpoint / "commits" / str(batch)).exists()

    def counts(self, *, committed: bool = True) -> dict[str, int]:
        """The numbers of distinct rows that a reader sees, of input rows missing, and of duplicates."""
        found = Counter(self._rows(self.system.reads(self.topics, committed=committed)))
        strange = found.keys() - self.given
        if strange:
            raise RuntimeError(f"rows that nobody wrote: {sorted(strange)[:5]}")
        return {"there": len(found), "missing": len(self.given - found.keys()), "doubled": found.total() - len(found)}

    def _rows(self, reads: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
        response = self._driver.step("read", reads=reads)
        if "error" in response:
            raise RuntimeError(response["error"])
        return [(topic, value) for topic, value in response["rows"]]
