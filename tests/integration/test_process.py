"""Goal: two consumers of one group, whose handlers run in eight threads each, whose handlers fail, and whose broker is killed and
restarted, handle every record at least once; no two records of a key at the same time, and none out of order.

Method: each process of the group is a thread with lives: a handler that fails ends one, and another consumer begins where the
group has got to.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict

from brokerd import Consumer, ConsumerRecord
from brokerd.testing import Broker, Topic
from tests.support.wait import DEADLINE_S

PARTITIONS = 4
RECORDS = 3_000
KEYS = 50
FAILURES = 6  # of each reader


class Reader:
    """A process of the group: its own partitions, and lives."""

    def __init__(self, settings: dict[str, object], partitions: list[int], seed: int, is_written: threading.Event) -> None:
        self._settings = settings
        self._is_written = is_written
        self._partitions = partitions
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._at_work: set[bytes | None] = set()
        self.failures_left = FAILURES
        self.handled: list[dict[bytes, list[int]]] = []  # numbers by key, of each life
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            while not self._live():
                pass
        except BaseException as error:
            self.error = error

    def _live(self) -> bool:
        """One life; True if it found everything handled."""
        self.handled.append(defaultdict(list))
        consumer = Consumer(self._settings)
        consumer.assign([("t", number) for number in self._partitions])
        try:
            consumer.process(self._handle, workers=8, timeout_ms=500)
        except LookupError:
            return False
        finally:
            consumer.close()
        if not self._is_written.is_set():
            return False
        with Consumer(self._settings) as consumer:
            ends = consumer.end_offsets([("t", number) for number in self._partitions])
            committed = consumer.committed(list(ends))
        return ends == {tp: one.offset for tp, one in committed.items() if one is not None}

    def _handle(self, record: ConsumerRecord) -> None:
        assert record.key is not None
        assert record.value is not None
        with self._lock:
            assert record.key not in self._at_work, "two of a key at a time"
            self._at_work.add(record.key)
            has_failed = self.failures_left > 0 and self._rng.random() < 0.01
            self.failures_left -= has_failed
        try:
            if has_failed:
                raise LookupError("told to fail")
            with self._lock:
                self.handled[-1][record.key].append(int(record.value))
        finally:
            with self._lock:
                self._at_work.discard(record.key)


def append(topic: Topic, rows: list[tuple[bytes, int]]) -> None:
    topic.append((key, b"%d" % number) for key, number in rows)


def test_two_consumers_of_a_group_handle_everything_over_failures_and_kills() -> None:
    with Broker() as broker:
        topic = broker.create_topic("t", PARTITIONS)
        rows = [(b"key-%d" % (number % KEYS), number) for number in range(RECORDS)]
        third = RECORDS // 3
        settings = {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 10,
            "retry.backoff.ms": 1,
            "retry.backoff.max.ms": 20,
        }
        append(topic, rows[:third])
        is_written = threading.Event()
        readers = [Reader(settings, [0, 1], 1, is_written), Reader(settings, [2, 3], 2, is_written)]
        broker.kill()
        broker.start()
        append(topic, rows[third : 2 * third])
        broker.restart()
        append(topic, rows[2 * third :])
        is_written.set()
        for reader in readers:
            reader.thread.join(DEADLINE_S)
            assert not reader.thread.is_alive()
            assert reader.error is None
    assert sum(FAILURES - reader.failures_left for reader in readers) >= FAILURES, "handlers failed"
    for key in {key for key, _ in rows}:
        wanted = [number for one, number in rows if one == key]
        lives = [life[key] for reader in readers for life in reader.handled if life[key]]
        assert all(numbers_of_life == sorted(set(numbers_of_life)) for numbers_of_life in lives), "in order, each once in a life"
        seen = [number for numbers_of_life in lives for number in numbers_of_life]
        assert list(dict.fromkeys(seen)) == wanted, "each at least once, the first time in order"
