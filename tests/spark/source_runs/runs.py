"""Rounds of real queries under kills: `python -m tests.spark.source_runs.runs --runs 50 --seed 1`.

A round is some queries in one driver, on one broker to which a producer writes all the time. Their limits, splits and filters are
random, and others after each restart. Driver and broker are killed when the queries have got a random number of micro-batches on.
In the end each query must have read each record of its topic that its filter wants, once, in the order of offsets.
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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig, ProducerConfig
from brokerd.producer.producer import Producer
from tests.spark.exactly_once.reading import committed_rows
from tests.spark.exactly_once.victims import Driver
from tests.support.daemon import DaemonProcess
from tests.support.wait import wait_until

QUERIES_PER_ROUND = 5
KILLS = ("driver", "broker", "broker")
_PAUSE_S = 0.2
_ROWS_A_ROUND = 4
_PROGRESS_S, _DRAIN_S = 600, 900


@dataclass
class Query:
    """One query of a round, and what is wanted of its topic."""

    topic: str
    partitions: int
    directory: Path
    where: str
    is_wanted: Callable[[int, int], bool]  # of a partition and an offset

    def settings(self, rng: random.Random, servers: str, *, drain: bool) -> dict[str, Any]:
        """Others at each start of the driver, but for the filter. The last one reads all that is left, in larger micro-batches."""
        possible = {
            "maxOffsetsPerTrigger": rng.randrange(100, 400) if drain else rng.randrange(1, 80),
            "maxBytesPerTrigger": rng.choice((20_000, 200_000)) if drain else rng.choice((1, 2_000, 20_000)),
            "minOffsetsPerTrigger": 1,
            "minPartitions": rng.randrange(1, 7),
            "maxRecordsPerPartition": rng.randrange(20, 200),  # each task costs some ten milliseconds
        }
        chosen = {name: str(value) for name, value in possible.items() if rng.random() < 0.6}
        given = {"bootstrap.servers": servers, "subscribe": self.topic, "startingOffsets": "earliest", **chosen}
        if self.where:
            given["where"] = self.where
        return {"options": given, "checkpoint": str(self.directory / "checkpoint"), "out": str(self.directory / "out")}

    @property
    def batches(self) -> list[Path]:
        """A file for each micro-batch so far."""
        return sorted((self.directory / "out").glob("*.jsonl"))

    def check(self, servers: str) -> int:
        """The number of rows that it has read. Raises AssertionError if they are not those that it was to read."""
        rows = committed_rows(servers, self.topic)
        wanted = {place: (value or b"").decode() for place, (_, value) in rows.items() if self.is_wanted(*place)}
        assert [int(path.stem) for path in self.batches] == list(range(len(self.batches))), (
            f"{self.topic}: a micro-batch is missing"
        )
        read = [json.loads(line) for path in self.batches for line in path.read_text().splitlines()]
        for partition in range(self.partitions):
            offsets = [offset for number, offset, _ in read if number == partition]
            expected = sorted(offset for number, offset in wanted if number == partition)
            assert offsets == expected, f"{self.topic}-{partition}: {difference(offsets, expected)}"
        assert {(number, offset): value for number, offset, value in read} == wanted, f"{self.topic}: values differ"
        return len(read)


def difference(found: Sequence[int], expected: Sequence[int]) -> str:
    """The difference of two lists of offsets, in short."""
    doubled = [offset for offset, count in Counter(found).items() if count > 1]
    missing = sorted(set(expected) - set(found))
    return f"{len(doubled)} doubled {doubled[:5]}, {len(missing)} missing {missing[:5]}, {len(found)} in all, or out of order"


class Round:
    """One broker, one driver with some queries."""

    def __init__(self, seed: int, directory: Path, queries: int) -> None:
        self._rng = random.Random(seed)
        self._directory = directory
        self.queries = [self._query(number) for number in range(queries)]
        self.kills: Counter[str] = Counter()
        self.rows = 0

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
        return Query(f"topic-{number}", partitions, directory, where, is_wanted)

    def run(self) -> None:
        """The whole round. Raises AssertionError."""
        daemon = DaemonProcess(self._directory / "data", settings={"log.segment.bytes": 65_536})
        driver = Driver("tests.spark.source_runs.job", self._directory)
        is_over = threading.Event()
        with daemon, ThreadPoolExecutor(1) as pool:
            with BlockingClient(ClientConfig(bootstrap_servers=daemon.address)) as client:
                for query in self.queries:
                    client.create_topic(query.topic, query.partitions)
            feeding = pool.submit(self._feed, daemon.address, is_over)
            try:
                driver.start(**self._settings(daemon))
                kills = list(KILLS)
                self._rng.shuffle(kills)
                for kill in kills:
                    self._wait_for_progress(driver)
                    self._kill(kill, driver, daemon)
                self._wait_for_progress(driver)
                is_over.set()
                feeding.result()
                driver.kill()
                driver.run(timeout_s=_DRAIN_S, drain=True, **self._settings(daemon, drain=True))
                self.rows = sum(query.check(daemon.address) for query in self.queries)
            finally:
                is_over.set()
                driver.kill()

    def _settings(self, daemon: DaemonProcess, *, drain: bool = False) -> dict[str, Any]:
        return {"queries": [query.settings(self._rng, daemon.address, drain=drain) for query in self.queries]}

    def _feed(self, servers: str, is_over: threading.Event) -> None:
        """Records of all sizes, some at a time, until the kills are over."""
        rng = random.Random(self._rng.random())
        sent = 0
        with Producer(ProducerConfig(bootstrap_servers=servers, batch_size=4_096)) as producer:
            while not is_over.wait(_PAUSE_S):
                for query in self.queries:
                    for _ in range(rng.randrange(_ROWS_A_ROUND)):
                        value = f"{sent}:" + "v" * rng.choice((0, 10, 1_000))
                        producer.send(query.topic, value, partition=rng.randrange(query.partitions))
                        sent += 1
                producer.flush()
                if producer.first_error is not None:
                    raise producer.first_error

    def _wait_for_progress(self, driver: Driver) -> None:
        """Each query has got on, and all together by a random number of micro-batches."""
        before = [len(query.batches) for query in self.queries]
        until = sum(before) + self._rng.randrange(1, 6 * len(self.queries))

        def has_progress() -> bool:
            assert driver.exit_code is None, f"the driver ended by itself:\n{driver.said()}"
            now = [len(query.batches) for query in self.queries]
            return sum(now) >= until and all(map(int.__lt__, before, now))

        wait_until(has_progress, deadline_s=_PROGRESS_S, pause_s=0.02, what="micro-batches")

    def _kill(self, kind: str, driver: Driver, daemon: DaemonProcess) -> None:
        self.kills[kind] += 1
        if kind == "driver":
            driver.kill()
            driver.start(**self._settings(daemon))
        else:
            daemon.kill()
            daemon.restart()


def run_rounds(seed: int, runs: int, say: Callable[[str], None], *, deadline_s: float = float("inf")) -> int:
    """The number of runs that were carried out: no round begins after the deadline. Raises AssertionError with the round's seed."""
    done, number, began_s = 0, 0, time.monotonic()
    while done < runs and time.monotonic() - began_s < deadline_s:
        queries = min(QUERIES_PER_ROUND, runs - done)
        with tempfile.TemporaryDirectory(prefix="brokerd-source-runs-") as directory:
            one = Round(seed + number, Path(directory), queries)
            started_s = time.monotonic()
            try:
                one.run()
            except Exception as error:
                raise AssertionError(f"round {number} (--seed {seed + number}): {type(error).__name__}: {error}") from error
            killed = ", ".join(f"{kind} {count}" for kind, count in sorted(one.kills.items()))
            batches = sum(len(query.batches) for query in one.queries)
            taken_s = time.monotonic() - started_s
            say(f"seed {seed + number}: {queries} runs, {batches} micro-batches, {one.rows} rows, kills: {killed}; {taken_s:.0f} s")
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
