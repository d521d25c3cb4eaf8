"""Seeded random kills of a continuous pipeline's driver, Python workers and broker.

In the end its output is compared with an undisturbed run's, and with everything that read_committed readers saw meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig, ProducerConfig
from brokerd.producer.producer import Producer
from tests.spark.exactly_once.pipeline import TOO_BUSY
from tests.spark.exactly_once.victims import Driver
from tests.support.daemon import DaemonProcess
from tests.support.reading import EagerReader, by_key, committed_rows
from tests.support.several_nodes import SeveralNodes
from tests.support.wait import wait_until

KINDS = ("driver", "worker", "broker")
QUERIES = ("clean", "counts")
_SHARES = ("driver", "worker", "broker", "worker", "broker")
_PARTITIONS = 4
_KEYS = 17
_ROUND_S, _ROUND_ROWS = 0.2, 10
_FAR = 1_000_000  # event time of the last row, which closes all windows
_MAX_OFFSETS = 1_000
_PROGRESS_S, _DRAIN_S = 600, 900
_LOOK_S, _READER_PAUSE_S = 0.02, 0.05
_NEVER = ("ProducerFencedError", "ReplayMismatchError", "TxnConflictError")


class Kill(NamedTuple):
    """One planned kill."""

    kind: str
    after_progress: bool  # wait until both queries have committed a batch since the last kill
    pause_s: float
    choice: float  # selects a worker
    away_s: float  # seconds until the broker restarts


def planned(seed: int, count: int) -> list[Kill]:
    """The kills of a seed. Drivers are killed half as often as workers or brokers, since each kill costs a JVM start."""
    rng = random.Random(seed)
    kinds = [_SHARES[number % len(_SHARES)] for number in range(count)]
    rng.shuffle(kinds)
    kills = []
    for kind in kinds:
        after_progress = rng.random() < 0.3
        kills.append(Kill(kind, after_progress, rng.uniform(0, 2 if after_progress else 6), rng.random(), rng.uniform(0, 1)))
    return kills


class Feeder:
    """Appends numbered rows continuously, in its own thread; at the end, one row with a far later time."""

    def __init__(self, servers: str, topic: str) -> None:
        self._servers = servers
        self._topic = topic
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="feeder")
        self._run_of_thread: Future[None] | None = None
        self.count = 0

    def __enter__(self) -> Self:
        self._run_of_thread = self._pool.submit(self._run)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._is_over.set()
        assert self._run_of_thread is not None
        self._run_of_thread.result()
        self._pool.shutdown()

    def _run(self) -> None:
        with Producer(ProducerConfig(bootstrap_servers=self._servers)) as producer:
            while not self._is_over.wait(_ROUND_S):
                for number in range(self.count, self.count + _ROUND_ROWS):
                    self._send(producer, number)
                _flush(producer)  # keeps partitions within one round of each other
            self._send(producer, self.count + _FAR)
            _flush(producer)

    def _send(self, producer: Producer, number: int) -> None:
        producer.send(self._topic, json.dumps({"number": number}), f"K{number * 7 % _KEYS}")
        self.count += 1


def _flush(producer: Producer) -> None:
    producer.flush()
    if producer.first_error is not None:
        raise producer.first_error


class RestlessPipeline:
    """kills_job.py on a broker, both killed repeatedly. The query `foreach` writes inside foreachBatch, or both use append_to."""

    def __init__(self, daemon: DaemonProcess | SeveralNodes, directory: Path, *, foreach: str) -> None:
        self._daemon = daemon
        self._directory = directory
        self._foreach = foreach
        self._driver = Driver("tests.spark.exactly_once.kills_job", directory)
        self._workers_killed = self._failures_seen = 0  # in this run of the driver
        self._began_s = time.monotonic()
        self.killed: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.log: list[str] = []
        with BlockingClient(ClientConfig(bootstrap_servers=daemon.address)) as client:
            for topic in ("source", *QUERIES, *map(_calm, QUERIES)):
                client.create_topic(topic, _PARTITIONS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.kill()

    def endure(self, seed: int, count: int) -> str:
        """Carries out the plan of a seed and compares; returns the figures. Raises AssertionError with a log of the kills."""
        try:
            figures = self._endure(planned(seed, count))
        except Exception as error:
            kills = "\n".join(self.log)
            raise AssertionError(f"seed {seed}, {self._killed()}: {type(error).__name__}: {error}\n{kills}") from error
        return f"seed {seed}, {self._killed()}: {figures}"

    def _endure(self, kills: Sequence[Kill]) -> str:
        with contextlib.ExitStack() as stack:
            readers = {
                query: stack.enter_context(EagerReader(self._daemon.address, query, pause_s=_READER_PAUSE_S)) for query in QUERIES
            }
            with Feeder(self._daemon.address, "source") as feeder:
                self._start()
                for kill in kills:
                    self._carry_out(kill)
                self._wait_for_progress()
            self._take_stock()
            self._driver.kill()
            self._driver.run(timeout_s=_DRAIN_S, **self._settings(), drain=True)
        self._driver.run(timeout_s=_DRAIN_S, **self._calm_settings(), drain=True)
        return f"{feeder.count} rows; {'; '.join(self._compare(query, readers[query], feeder.count) for query in QUERIES)}"

    def _killed(self) -> str:
        killed = ", ".join(f"{kind} {count}" for kind, count in sorted(self.killed.items()))
        failures = ", ".join(f"{error} {count}" for error, count in self.failures.most_common()) or "none"
        seconds = time.monotonic() - self._began_s
        return f"{len(self.log)} kills ({killed}), {self._driver.starts} driver starts, {seconds:.0f} s; failed queries: {failures}"

    def _settings(self) -> dict[str, Any]:
        return {
            "servers": self._daemon.address,
            "source": "source",
            **{query: query for query in QUERIES},
            "checkpoints": str(self._directory / "checkpoints"),
            "foreach": self._foreach,
            "max_offsets": _MAX_OFFSETS,
        }

    def _calm_settings(self) -> dict[str, Any]:
        settings = self._settings() | {query: _calm(query) for query in QUERIES}
        del settings["max_offsets"]
        return settings | {"checkpoints": str(self._directory / "calm")}

    def _start(self) -> None:
        self._workers_killed = self._failures_seen = 0
        self._driver.start(**self._settings())

    def _take_stock(self) -> None:
        """Checks the failures of this run of the driver: a query may fail only if a worker was killed or Spark was too busy."""
        failures = self._driver.failures()
        for failure in failures[self._failures_seen :]:
            assert self._workers_killed or TOO_BUSY in failure, f"a query failed by itself: {failure}"
            assert not any(error in failure for error in _NEVER), failure
            self.failures[last_error(failure)] += 1
        self._failures_seen = len(failures)
        assert self._driver.exit_code is None, f"the driver ended by itself:\n{self._driver.said()}"

    def _carry_out(self, kill: Kill) -> None:
        if kill.after_progress:
            self._wait_for_progress()
        threading.Event().wait(kill.pause_s)
        self._take_stock()
        what = getattr(self, f"_kill_{kill.kind}")(kill)
        self.killed[what] += 1
        when = "after progress" if kill.after_progress else "anywhere"
        self.log.append(f"{len(self.log) + 1}. {what}, {when}, {kill.pause_s:.2f} s, batches {self._batches()}")
        print(self.log[-1], flush=True)

    def _kill_driver(self, _kill: Kill) -> str:
        self._take_stock()
        self._driver.kill()
        self._start()
        return "driver"

    def _kill_worker(self, kill: Kill) -> str:
        for _ in range(100):
            wait_until(self._has_worker, pause_s=_LOOK_S, what="a Python worker")
            workers = self._driver.workers()
            chosen = workers[int(kill.choice * len(workers))] if workers else None
            if chosen is not None and chosen.kill():
                self._workers_killed += 1
                return f"worker {chosen.module}"
        raise AssertionError("each Python worker was gone before it could be killed")

    def _has_worker(self) -> bool:
        return bool(self._driver.workers())

    def _kill_broker(self, kill: Kill) -> str:
        self._daemon.kill()
        threading.Event().wait(kill.away_s)
        self._daemon.restart()
        return "broker"

    def _wait_for_progress(self) -> None:
        before = self._batches()

        def has_moved() -> bool:
            assert self._driver.exit_code is None, f"the driver ended by itself:\n{self._driver.said()}"
            return all(now > then for now, then in zip(self._batches(), before, strict=True))

        what = f"both queries have committed a batch after {before}"
        wait_until(has_moved, deadline_s=_PROGRESS_S, pause_s=_LOOK_S, what=what)

    def _batches(self) -> list[int]:
        """The last batch that Spark has noted, for each query; -1 = none."""
        return [last_batch(self._directory / "checkpoints" / query / "commits") for query in QUERIES]

    def _compare(self, query: str, reader: EagerReader, fed: int) -> str:
        rows, calm = (committed_rows(self._daemon.address, topic) for topic in (query, _calm(query)))
        vanished = reader.seen.items() - rows.items()
        assert not vanished, f"{len(vanished)} rows of {query} were seen and are not there: {sorted(vanished)[:5]}"
        found, expected = by_key(rows), by_key(calm)
        differing = [key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)]
        assert not differing, f"{query}: {len(rows)} rows, {len(calm)} undisturbed; {_first_difference(differing, found, expected)}"
        assert len(rows) == (fed if query == "clean" else len(found)) > 0, f"{len(rows)} rows of {query}, {len(found)} keys"
        return f"{query} {len(rows)} rows, {len(reader.seen)} of them seen in {reader.looks} looks"


def _calm(query: str) -> str:
    return f"calm-{query}"


def last_batch(folder: Path) -> int:
    """The highest number in a checkpoint's `commits` or `offsets`; -1 = none."""
    return max((int(path.name) for path in folder.glob("[0-9]*")), default=-1)


def last_error(failure: str) -> str:
    """The reason why a query failed: its last named error, or else Spark's own message."""
    if TOO_BUSY in failure:
        return "a worker that Spark waited for too shortly"
    found = re.findall(r"\b([A-Z]\w*(?:Error|Exception))\b", failure) or re.findall(r"terminated with exception: ([^.:]+)", failure)
    return found[-1] if found else failure


def _first_difference(keys: list[bytes | None], found: Any, expected: Any) -> str:
    key = keys[0]
    return f"{len(keys)} keys differ; {key!r}: {found.get(key, [])[:5]} instead of {expected.get(key, [])[:5]}"
