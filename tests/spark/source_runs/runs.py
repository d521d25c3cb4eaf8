"""Rounds of real queries under kills: `python -m tests.spark.source_runs.runs --runs 50 --seed 1`.

A round runs some queries in one driver, on one broker to which writer.py writes continuously, partly in transactions. Limits,
splits and filters are random; limits and splits change at each restart. Some queries copy their rows to another topic. Driver and
broker are killed after a random number of micro-batches, and topics get partitions before that. In the end each query must have
read each committed record that its filter accepts once, in offset order (checker.py), and have copied each once. planted.py shows
that the runs find bugs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig
from tests.spark.exactly_once.victims import Driver
from tests.spark.source_runs.checker import Row, Violation, ViolationsError, Written, violations, violations_so_far
from tests.spark.source_runs.ways import ways_missed, ways_taken
from tests.spark.source_runs.writer import Writer, wait_until_decided
from tests.support.daemon import DaemonProcess
from tests.support.reading import committed_rows
from tests.support.wait import wait_until

QUERIES_PER_ROUND = 5
KILLS = ("driver", "broker", "broker")
_PROGRESS_S, _DRAIN_S = 600, 900


@dataclass
class Query:
    """One query of a round, and the rows that it must read."""

    topic: str
    partitions: int
    directory: Path
    where: str
    is_wanted: Callable[[int, int], bool]  # takes a partition and an offset
    copy: str  # the topic that it copies its rows to, "" if none

    def settings(self, rng: random.Random, servers: str, *, drain: bool) -> dict[str, Any]:
        """Settings for a driver's start, random except for the filter. The last start reads the rest, in larger micro-batches."""
        possible: dict[str, Any] = {
            "maxOffsetsPerTrigger": rng.randrange(100, 400) if drain else rng.randrange(1, 80),
            "maxBytesPerTrigger": rng.choice((20_000, 200_000)) if drain else rng.choice((1, 2_000, 20_000)),
            "minOffsetsPerTrigger": 1,
        }
        splits = {
            "minPartitions": rng.randrange(1, 7),
            "maxRecordsPerPartition": rng.randrange(20, 200),  # each task costs some ten milliseconds
            "taskPerPartition": "true",
        }
        if rng.random() < 0.5:  # otherwise small ranges share a task, or the plan carries their rows
            possible |= splits
        chosen = {name: str(value) for name, value in possible.items() if rng.random() < 0.6}
        given = {"bootstrap.servers": servers, "subscribe": self.topic, "startingOffsets": "earliest", **chosen}
        if self.where:
            given["where"] = self.where
        places = {name: str(self.directory / name) for name in ("checkpoint", "out")}
        return {"options": given, "copy": self.copy, **places}

    @property
    def batches(self) -> list[Path]:
        """The files of the micro-batches so far."""
        return sorted((self.directory / "out").glob("*.jsonl"))

    def check_so_far(self, aborted: Container[str]) -> None:
        """Raises ViolationsError if it has read forbidden rows so far. Writer and query may still be running."""
        refuse(self.topic, violations_so_far(self._read(), aborted, self._came_otherwise()))

    def check(self, written: Written) -> int:
        """The number of rows that it read. Raises ViolationsError if they are not exactly the expected ones."""
        read = self._read()
        refuse(self.topic, violations(read, written, self.is_wanted, self._came_otherwise()))
        return sum(map(len, read.values()))

    def check_copy(self, servers: str) -> int:
        """The number of rows in its copy. Raises ViolationsError if they are not the rows that it read, each once."""
        if not self.copy:
            return 0
        values = [(value or b"").decode().split(" ", 2) for _, value in committed_rows(servers, self.copy).values()]
        copied = sorted(Row(int(partition), int(offset), value) for partition, offset, value in values)
        read = {row for rows in self._read().values() for row in rows}
        refuse(self.copy, violations({0: copied}, Written(read), lambda *_: True))
        return len(copied)

    def _read(self) -> dict[int, list[Row]]:
        return {int(path.stem): [Row(*json.loads(line)) for line in path.read_text().splitlines()] for path in self.batches}

    def _came_otherwise(self) -> list[int]:
        return [int(path.stem) for path in (self.directory / "out").glob("*.differs")]


def refuse(topic: str, found: Sequence[Violation]) -> None:
    """Raises ViolationsError if there are violations."""
    if found:
        raise ViolationsError(topic, found)


def plain_reader_violations(servers: str, topic: str, written: Written) -> list[Violation]:
    """Violations of a read_committed reader without Spark."""
    rows = committed_rows(servers, topic)
    return violations({0: [Row(*place, (rows[place][1] or b"").decode()) for place in sorted(rows)]}, written, lambda *_: True)


class Round:
    """One broker, and one driver with some queries."""

    def __init__(self, seed: int, directory: Path, queries: int, *, kills: Sequence[str] = KILLS, planted: str = "") -> None:
        """`planted`: a bug of planted_source.py."""
        self._rng = random.Random(seed)
        self._directory = directory
        self._planned_kills = list(kills)
        self._planted = planted
        self.queries = [self._query(number) for number in range(queries)]
        self.writer = Writer({query.topic: query.partitions for query in self.queries}, self._rng.random())
        self.kills: Counter[str] = Counter()
        self.grown = 0
        self.rows = self.copied = 0
        self._ways = directory / "ways"
        self._ways.mkdir()

    def _query(self, number: int) -> Query:
        rng, partitions = self._rng, self._rng.randrange(1, 5)
        directory = self._directory / f"query-{number}"
        (directory / "out").mkdir(parents=True)
        chosen, low, high = rng.randrange(partitions), rng.randrange(40), rng.randrange(60, 200)
        where, is_wanted = rng.choice(
            (
                ("", lambda _partition, _offset: True),
                ("", lambda _partition, _offset: True),
                (f"partition = {chosen}", lambda partition, _offset: partition == chosen),
                (f"offset BETWEEN {low} AND {high}", lambda _partition, offset: low <= offset <= high),
                (f"offset >= {low} AND timestamp > '2020-01-01Z'", lambda _partition, offset: offset >= low),
            )
        )
        where = where.replace("2020-01-01Z", "2020-01-01 00:00:00Z")
        return Query(f"topic-{number}", partitions, directory, where, is_wanted, rng.choice(("", f"copy-{number}")))

    @property
    def ways(self) -> Counter[str]:
        """The number of batches that went each way."""
        return ways_taken(self._ways)

    def run(self) -> None:
        """The whole round. Raises AssertionError."""
        daemon = DaemonProcess(self._directory / "data", settings={"log.segment.bytes": 65_536})
        driver = Driver("tests.spark.source_runs.job", self._directory)
        is_over = threading.Event()
        with daemon, ThreadPoolExecutor(1) as pool:
            with BlockingClient(ClientConfig(bootstrap_servers=daemon.address)) as client:
                for query in self.queries:
                    client.create_topic(query.topic, query.partitions)
                    if query.copy:
                        client.create_topic(query.copy, 2)
            writing = pool.submit(self.writer.run, daemon.address, is_over)
            try:
                driver.start(**self._settings(daemon))
                self._rng.shuffle(self._planned_kills)
                for kill in self._planned_kills:
                    self._wait_for_progress(driver)
                    self._grow(daemon.address)
                    self._kill(kill, driver, daemon)
                self._wait_for_progress(driver)
                is_over.set()
                writing.result()
                driver.kill()
                wait_until_decided(daemon.address, [query.topic for query in self.queries])
                driver.run(timeout_s=_DRAIN_S, drain=True, **self._settings(daemon, drain=True))
                self._check(daemon.address)
            finally:
                is_over.set()
                driver.kill()

    def _settings(self, daemon: DaemonProcess, *, drain: bool = False) -> dict[str, Any]:
        queries = [query.settings(self._rng, daemon.address, drain=drain) for query in self.queries]
        return {"queries": queries, "ways": str(self._ways), "planted": self._planted}

    def _check(self, servers: str) -> None:
        """Checks that a plain read_committed reader sees what was written, and that each query has read its part of it."""
        for query in self.queries:
            written = self.writer.written[query.topic]
            refuse(query.topic, plain_reader_violations(servers, query.topic, written))
            self.rows += query.check(written)
            self.copied += query.check_copy(servers)

    def _wait_for_progress(self, driver: Driver) -> None:
        """Waits until each query has progressed, and all together by a random number of micro-batches."""
        before = [len(query.batches) for query in self.queries]
        until = sum(before) + self._rng.randrange(1, 6 * len(self.queries))

        def has_progress() -> bool:
            assert driver.exit_code is None, f"the driver ended by itself:\n{driver.said()}"
            now = [len(query.batches) for query in self.queries]
            return sum(now) >= until and all(map(int.__lt__, before, now))

        wait_until(has_progress, deadline_s=_PROGRESS_S, pause_s=0.02, what="micro-batches")
        for query in self.queries:
            query.check_so_far(self.writer.written[query.topic].aborted)

    def _grow(self, servers: str) -> None:
        """Adds a partition to some topics. A kill follows, so that a query finds records in a partition that is new to it."""
        with BlockingClient(ClientConfig(bootstrap_servers=servers)) as client:
            for query in self.queries:
                if self._rng.random() < 0.5:
                    query.partitions += 1
                    client.create_partitions(query.topic, query.partitions)
                    self.writer.partitions[query.topic] = query.partitions
                    self.grown += 1

    def _kill(self, kind: str, driver: Driver, daemon: DaemonProcess) -> None:
        self.kills[kind] += 1
        if kind == "driver":
            driver.kill()
            driver.start(**self._settings(daemon))
        else:
            daemon.kill()
            daemon.restart()


def counted(counts: Counter[str]) -> str:
    """Counts with their names, on one line."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def run_rounds(seed: int, runs: int, say: Callable[[str], None], *, deadline_s: float = float("inf")) -> int:
    """Returns the number of rounds that ran; none begins after the deadline. Raises AssertionError with the round's seed."""
    done, number, began_s = 0, 0, time.monotonic()
    while done < runs and time.monotonic() - began_s < deadline_s:
        queries = min(QUERIES_PER_ROUND, runs - done)
        with tempfile.TemporaryDirectory(prefix="brokerd-source-runs-") as directory:
            one = Round(seed + number, Path(directory), queries)
            started_s = time.monotonic()
            try:
                one.run()
            except ViolationsError as error:
                error.add_note(f"round {number}: --seed {seed + number}")
                raise
            except Exception as error:
                raise AssertionError(f"round {number} (--seed {seed + number}): {type(error).__name__}: {error}") from error
            killed, ended = counted(one.kills), counted(one.writer.transactions)
            batches = sum(len(query.batches) for query in one.queries)
            taken_s = time.monotonic() - started_s
            did = f"{queries} runs, {batches} micro-batches ({counted(one.ways)}), {one.rows} rows, {one.copied} of them copied"
            befell = f"kills: {killed}; transactions: {ended}; new partitions: {one.grown}"
            say(f"seed {seed + number}: {did}; {befell}; {taken_s:.0f} s")
            assert not ways_missed(one.ways), f"no batch was {ways_missed(one.ways)}"
        done, number = done + queries, number + 1
    return done


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.source_runs.runs", description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no round begins later")
    given = parser.parse_args()
    done = run_rounds(given.seed, given.runs, lambda text: print(text, flush=True), deadline_s=given.seconds)
    print(f"{done} runs: each offset once and in order")
    return 0


if __name__ == "__main__":
    sys.exit(main())
