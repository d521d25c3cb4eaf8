"""One attack's pipeline: its rows in files, its checkpoints and its topics."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.exactly_once.processes import DriverProcess
from benchmarks.exactly_once.systems import System

ROWS_PER_FILE = 500
_LATE_S = 10


class Pipeline:
    """Files of rows to a sink. Row n has the value "n"; with two topics, even rows go to one and odd rows to the other.
    With job groups, a part of each micro-batch is written in each: parts of as many rows, keys and bytes."""

    def __init__(
        self, system: System, driver: DriverProcess, name: str, *, two_topics: bool = False, groups: Sequence[str] = ()
    ) -> None:
        self._system = system
        self._driver = driver
        self.directory = system.directory / name
        self._source = self.directory / "source"
        self._source.mkdir(parents=True)
        self.topics = [f"{name}-even", f"{name}-odd"] if two_topics else [name]
        for topic in self.topics:
            system.create(topic)
        self.checkpoint = self.directory / "checkpoint"
        self._groups = groups
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
            key = number // max(1, len(self._groups)) % 97
            lines.append(json.dumps({"key": f"k{key}", "value": str(number), "topic": topic, "number": number}))
            self.given.add((topic, str(number)))
        path.write_text("\n".join(lines) + "\n")
        os.utime(path, (1_000_000_000 + self._files, 1_000_000_000 + self._files))  # Spark takes files by their time
        self._files += 1

    def run(self, *, checkpoint: Path | None = None, files: int = 1, accident: str = "", from_file: int = 0) -> str:
        """A query until nothing is left; its error. Raises DriverDiedError."""
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
            versions=self._system.asks_for_versions,
            **self._system.sink(self.topics),
        )
        return str(response.get("error", ""))

    def write_version(self, version: int) -> str:
        """A batch write of new rows under a version; its error."""
        path = self.directory / f"version-{version}.json"
        self._write(path)
        sink = self._system.sink(self.topics)
        sink["options"] |= {"txnAppId": self.topics[0], "txnVersion": str(version)}
        return str(self._driver.step("batch", source=str(path), **sink).get("error", ""))

    def happened(self) -> bool:
        """True if the accident has been."""
        return (self.directory / "mark").exists()

    def hosts_at_once(self) -> tuple[str, str] | None:
        """The host of the attempt that did not end, and that of its twin, if the first was still there after the commit."""
        mark, twin, late = (self.directory / name for name in ("mark", "mark.twin", "mark.late"))
        deadline = time.monotonic() + _LATE_S
        while not (twin.exists() and late.exists()):
            if time.monotonic() > deadline:
                return None
            time.sleep(0.05)
        return mark.read_text(), twin.read_text()

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

    def is_noted(self, batch: int) -> bool:
        """True if `commits/<batch>` is there."""
        return (self.checkpoint / "commits" / str(batch)).exists()

    def counts(self, *, committed: bool = True) -> dict[str, int]:
        """Rows that a reader of committed records sees, those that it sees twice, and those of the input that it does not see."""
        response = self._driver.step("read", reads=self._system.reads(self.topics, committed=committed))
        if "error" in response:
            raise RuntimeError(response["error"])
        found = Counter((topic, value) for topic, value in response["rows"])
        strange = found.keys() - self.given
        if strange:
            raise RuntimeError(f"rows that nobody wrote: {sorted(strange)[:5]}")
        return {"there": len(found), "missing": len(self.given - found.keys()), "doubled": found.total() - len(found)}
