"""Goal: whatever an application does between two polls (seeks, pauses, another assignment), and whatever happens at the broker
(streams that end, transient errors, retention), each poll returns the records after its positions, of assigned partitions that are
not paused; in the end, all of them.

Method: seeded random plans against a broker in memory. A model knows the visible offsets of each partition and the application's
positions.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter

import pyarrow as pa
import pytest

from brokerd import Consumer, TopicPartition
from brokerd.errors import NotLeaderError, NotReadyError
from brokerd.record.header import Attributes
from tests.support.fake_broker import FakeBroker, Partition, fake_broker
from tests.support.records import key_values, new_batch
from tests.support.scale import TEST_SCALE
from tests.support.seeds import run_seeds
from tests.support.wait import DEADLINE_S

SEEDS = 40 * TEST_SCALE
STEPS = 60
PARTITIONS = 4
LONG_MS = int(DEADLINE_S * 1000)


class Log:
    """A partition, and the offsets that a read_committed reader sees."""

    def __init__(self, partition: Partition, number: int) -> None:
        self.partition = partition
        self.tp = TopicPartition("t", number)
        self.visible: list[int] = []

    def append(self, rng: random.Random) -> None:
        """Appends records, records after a gap, a marker, or an aborted transaction with its marker."""
        partition, count = self.partition, rng.randint(1, 12)
        kind = rng.choice(("records", "records", "records", "gap", "marker", "aborted"))
        if kind == "marker":
            self._marker()
        elif kind == "aborted":
            first = partition.end_offset
            partition.aborted.append((7, first, first + count))  # before the batch can be fetched
            partition.put(self._batch(first, count, attributes=int(Attributes.TRANSACTIONAL), producer_id=7))
            self._marker()
        else:
            at = partition.end_offset + (rng.randint(1, 5) if kind == "gap" else 0)
            partition.put(self._batch(at, count), at=at)
            self.visible += range(at, at + count)

    def _batch(self, at: int, count: int, **fields: int) -> pa.Buffer:
        return new_batch(key_values([b"%d" % (at + i) for i in range(count)]), "none", self.partition.tp, **fields)

    def _marker(self) -> None:
        attributes = int(Attributes.CONTROL | Attributes.TRANSACTIONAL)
        self.partition.put(new_batch(key_values([b"m"]), tp=self.partition.tp, attributes=attributes))

    def following(self, offset: int, count: int) -> list[int]:
        """The next visible offsets."""
        first = bisect_left(self.visible, offset)
        return self.visible[first : first + count]


class Plan:
    """One application."""

    def __init__(self, seed: int, broker: FakeBroker) -> None:
        self.rng = rng = random.Random(seed)
        self.facts: Counter[str] = Counter()
        self.broker = broker
        self.logs = {log.tp: log for log in (Log(one, number) for number, one in enumerate(broker.create("t", PARTITIONS)))}
        for log in self.logs.values():
            for _ in range(rng.randint(0, 20)):
                log.append(rng)
        settings = {
            "bootstrap.servers": f"127.0.0.1:{broker.port}",
            "auto.offset.reset": "earliest",
            "retry.backoff.ms": 1,
            "retry.backoff.max.ms": 2,
            "fetch.max.wait.ms": 5,
            "fetch.max.bytes": rng.choice((1, 2_000, 1_000_000)),
            "max.partition.fetch.bytes": rng.choice((1, 2_000, 1_000_000)),
        }
        self.consumer = Consumer(settings)
        self.at: dict[TopicPartition, int] = {}  # the application's positions
        self.paused: set[TopicPartition] = set()

    def run(self) -> Counter[str]:
        """Random steps, then reads all remaining records."""
        with self.consumer:
            self._assign()
            steps = (self._poll, self._poll_arrow, self._next, self._seek, self._pause, self._resume, self._assign, self._append)
            for _ in range(STEPS):
                self.rng.choices((*steps, self._trouble), (12, 4, 3, 3, 4, 5, 1, 4, 2))[0]()
                self._check_positions()
            self._read_all()
        return self.facts

    def _some(self) -> list[TopicPartition]:
        return self.rng.sample(sorted(self.at), self.rng.randint(0, len(self.at)))

    def _assign(self) -> None:
        chosen = self.rng.sample(sorted(self.logs), self.rng.randint(1, PARTITIONS))
        self.consumer.assign(chosen)
        self.at = {tp: self.at.get(tp, 0) for tp in chosen}
        self.paused &= set(chosen)
        assert self.consumer.paused() == self.paused
        self.facts["assignments"] += 1

    def _append(self) -> None:
        self.rng.choice(list(self.logs.values())).append(self.rng)

    def _trouble(self) -> None:
        if self.rng.random() < 0.5:
            self.broker.cut_fetch_after.append(self.rng.randint(0, 3))
        else:
            self.broker.errors.setdefault("Fetch", []).append(self.rng.choice((NotReadyError("no"), NotLeaderError("moved"))))
        self.facts["troubles"] += 1

    def _seek(self) -> None:
        for tp in self._some()[:2]:
            if self.rng.random() < 0.2:
                self.consumer.seek_to_end(tp)
                self.at[tp] = self.logs[tp].partition.end_offset
                assert self.consumer.position(tp) == self.at[tp]
            else:
                self.at[tp] = self.rng.randint(0, self.logs[tp].partition.end_offset)
                self.consumer.seek(tp, self.at[tp])
            self.facts["seeks"] += 1

    def _pause(self) -> None:
        chosen = self._some()
        self.consumer.pause(chosen)
        self.paused |= set(chosen)

    def _resume(self) -> None:
        chosen = self._some()
        self.consumer.resume(chosen)
        self.paused -= set(chosen)

    # --- records

    def _poll(self) -> None:
        limit = self.rng.choice((1, 3, 10, 500))
        records = self.consumer.poll(self.rng.choice((0, 5)), limit)
        assert len(records) <= limit
        assert all(record.value == b"%d" % record.offset for record in records)
        self._handed_over([(record.topic_partition, record.offset) for record in records])

    def _poll_arrow(self) -> None:
        rows = self.consumer.poll_arrow(5, self.rng.choice((None, 2)))
        named = zip(rows.column("topic").to_pylist(), rows.column("partition").to_pylist(), strict=True)
        self._handed_over(list(zip((TopicPartition(*one) for one in named), rows.column("offset").to_pylist(), strict=True)))

    def _next(self) -> None:
        if any(self.logs[tp].following(offset, 1) for tp, offset in self.at.items() if tp not in self.paused):
            record = next(self.consumer)
            self._handed_over([(record.topic_partition, record.offset)])

    def _handed_over(self, records: list[tuple[TopicPartition, int]]) -> None:
        for tp in {tp for tp, _ in records}:
            assert tp in self.at
            assert tp not in self.paused
            got = [offset for one, offset in records if one == tp]
            assert got == self.logs[tp].following(self.at[tp], len(got))
            self.at[tp] = got[-1] + 1
            self.facts["records"] += len(got)

    def _check_positions(self) -> None:
        """Each position lies after the last returned record and not after the next visible one."""
        for tp, offset in self.at.items():
            position = self.consumer.position(tp)
            assert offset <= position <= self.logs[tp].partition.end_offset
            assert self.logs[tp].following(position, 1) == self.logs[tp].following(offset, 1)

    def _read_all(self) -> None:
        self.consumer.resume(self.paused)
        self.paused = set()
        while any(self.logs[tp].following(offset, 1) for tp, offset in self.at.items()):
            records = self.consumer.poll(LONG_MS)
            assert records
            self._handed_over([(record.topic_partition, record.offset) for record in records])
        for tp in self.at:
            while self.consumer.position(tp) < self.logs[tp].partition.end_offset:
                assert self.consumer.poll(5) == []


def run_plan(seed: int) -> Counter[str]:
    """Runs one plan; returns the counts of events."""
    with fake_broker() as broker:
        return Plan(seed, broker).run()


@pytest.mark.slow
def test_each_record_is_handed_over_where_its_turn_is() -> None:
    facts = run_seeds(run_plan, 0, SEEDS)
    assert facts["records"] > 50 * SEEDS
    assert min(facts["seeks"], facts["troubles"], facts["assignments"]) > 2 * SEEDS, facts
