"""Goal: in whatever order records finish, and whenever the process dies, every committed offset lies at or below the first
unfinished record; each lane handles one record at a time, in order; and no record waits for ever.

Method: seeded random schedules of `process`'s state machine, with workers that finish in any order, beside a model. After a death,
reading resumes at the committed offsets.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from brokerd.consumer.core.records import ConsumerRecord
from brokerd.consumer.processing.dedup import DedupWindow
from brokerd.consumer.processing.schedule import ORDERS, Schedule, Task
from brokerd.ids import TopicPartition
from tests.support.scale import TEST_SCALE
from tests.support.seeds import run_seeds

SCHEDULES = 1_000 * TEST_SCALE
PARTITIONS = 3


def schedule_of(order: str, ready: list[Task]) -> Schedule:
    """For records without ids, so none is skipped as a duplicate."""
    none: list[ConsumerRecord] = []
    return Schedule(ORDERS[order], None, DedupWindow(1), begin=ready.append, pass_over=none.remove)


class Life:
    """Records in work between a start and a death."""

    def __init__(self, rng: random.Random, order: str, committed: dict[int, int]) -> None:
        self.rng = rng
        self.order = order
        self.ready: list[Task] = []
        self.schedule = schedule_of(order, self.ready)
        self.at = dict(committed)  # next offsets to take
        self.running: list[Task] = []
        self.unfinished: set[tuple[int, int]] = set()

    def lane(self, record: ConsumerRecord) -> object:
        """The model's own lane of a record: one record of a lane runs at a time."""
        if self.order == "none":
            return (record.partition, record.offset)
        return record.partition if self.order == "partition" or record.key is None else record.key

    def step(self, log: dict[int, list[bytes | None]], handled: list[ConsumerRecord]) -> None:
        """One of three random steps."""
        choice = self.rng.randrange(5)
        if choice == 0:
            self.begin(log)
        elif choice <= 2:
            self.run()
        else:
            self.finish(handled)

    def begin(self, log: dict[int, list[bytes | None]]) -> None:
        """Takes the next records of a partition."""
        partition = self.rng.randrange(PARTITIONS)
        first = self.at[partition]
        keys = log[partition][first:][: self.rng.randint(1, 4)]
        if not keys:
            return
        records = [ConsumerRecord("t", partition, first + i, 0, 0, key, b"", ()) for i, key in enumerate(keys)]
        self.at[partition] += len(records)
        self.schedule.add(TopicPartition("t", partition), records)
        self.unfinished |= {(partition, record.offset) for record in records}

    def run(self) -> None:
        """A worker begins a record."""
        if self.ready:
            task = self.ready.pop(0)
            assert self.lane(task.record) not in [self.lane(other.record) for other in self.running]
            self.running.append(task)

    def finish(self, handled: list[ConsumerRecord]) -> None:
        """A worker finishes a record."""
        if self.running:
            task = self.running.pop(self.rng.randrange(len(self.running)))
            record = task.record
            self.schedule.end(task, is_handled=True)
            self.unfinished.discard((record.partition, record.offset))
            handled.append(record)

    def committable(self) -> dict[int, int]:
        """The offsets that may be committed; they must be the model's, too."""
        offsets = {}
        for partition in range(PARTITIONS):
            first = self.schedule.first_unfinished(TopicPartition("t", partition))
            expected = min((offset for one, offset in self.unfinished if one == partition), default=None)
            assert first == expected
            offsets[partition] = self.at[partition] if first is None else first
        return offsets


def run_schedule(seed: int) -> Counter[str]:
    """Several lives over one log; returns the counts of events."""
    rng = random.Random(seed)
    order = rng.choice(sorted(ORDERS))
    keys = [None, *(b"%d" % number for number in range(rng.randint(1, 5)))]
    # Equal keys share a partition.
    log = {partition: [rng.choice([key for key in keys if key is None or int(key) % PARTITIONS == partition]) for _ in range(20)]
           for partition in range(PARTITIONS)}  # fmt: skip
    committed = dict.fromkeys(range(PARTITIONS), 0)
    handled: list[ConsumerRecord] = []
    deaths = rng.randint(0, 3)
    for death in range(deaths + 1):
        life = Life(rng, order, committed)
        first_of_life = len(handled)
        steps = rng.randint(0, 60) if death < deaths else 10_000
        while steps and (min(committed.values()) < 20 or life.unfinished):
            steps -= 1
            life.step(log, handled)
            if rng.random() < 0.2:
                committed = life.committable()
                done = {(record.partition, record.offset) for record in handled}
                assert all((partition, offset) in done for partition, end in committed.items() for offset in range(end))
        check_order(life, handled[first_of_life:])
    assert committed == dict.fromkeys(range(PARTITIONS), 20)
    return Counter(deaths=deaths, repeats=len(handled) - 20 * PARTITIONS)


def check_order(life: Life, handled: list[ConsumerRecord]) -> None:
    """Within a life, the records of a lane finish in their order."""
    by_lane: dict[object, list[int]] = {}
    for record in handled:
        by_lane.setdefault((record.partition, life.lane(record)), []).append(record.offset)
    for offsets in by_lane.values():
        assert offsets == sorted(offsets)


@pytest.mark.slow
def test_what_is_committed_lies_below_everything_that_is_not_finished() -> None:
    facts = run_seeds(run_schedule, 0, SCHEDULES)
    assert facts["deaths"] > SCHEDULES
    assert facts["repeats"] > SCHEDULES


def test_offsets_that_begin_again_wait_for_nothing_of_the_log_before() -> None:
    ready: list[Task] = []
    schedule, tp = schedule_of("none", ready), TopicPartition("t", 0)

    def add(*offsets: int) -> None:
        ready.clear()
        schedule.add(tp, [ConsumerRecord("t", 0, offset, 0, 0, None, b"", ()) for offset in offsets])

    def end(task: Task) -> None:
        schedule.end(task, is_handled=True)

    add(5, 6, 7)
    old = ready.copy()
    end(old[1])
    add(6, 7)
    assert schedule.first_unfinished(tp) == 6
    end(old[0])
    end(old[2])
    assert schedule.first_unfinished(tp) == 6
    end(ready[0])
    assert schedule.first_unfinished(tp) == 7
    end(ready[1])
    assert schedule.first_unfinished(tp) is None


def test_what_ends_behind_an_unfinished_record_takes_no_memory() -> None:
    ready: list[Task] = []
    schedule = schedule_of("none", ready)
    tp = TopicPartition("t", 0)
    schedule.add(tp, [ConsumerRecord("t", 0, offset, 0, 0, None, b"", ()) for offset in range(1_000)])
    for task in ready[1:]:
        schedule.end(task, is_handled=True)
    assert schedule.first_unfinished(tp) == 0
    assert len(schedule._newest[tp].unfinished) == 1
    schedule.end(ready[0], is_handled=True)
    assert schedule.first_unfinished(tp) is None
