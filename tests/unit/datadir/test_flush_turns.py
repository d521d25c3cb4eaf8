"""Goal: however many dirty logs one owner has, another owner waits for only one of them. One flush of a log serves all its waiters.

The test's steps replace the flusher's threads, so the order is the same in each run.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from queue import SimpleQueue
from typing import Any

import pytest

from brokerd.datadir.flusher import Flusher
from brokerd.partition.partition import FlushTask, Partition
from brokerd.sharing import Caller
from tests.support.build import append, open_manager
from tests.support.files import MemoryFiles
from tests.support.loop import all_wait

MANY, OTHER = Caller("many", "m1"), Caller("other", "o1")


class Steps(SimpleQueue[Any]):
    """Replaces the flusher's threads. Each `step` runs one flush and reports it."""

    def __init__(self, flusher: Flusher) -> None:
        self.flusher = flusher
        self.begun: list[tuple[Partition, FlushTask]] = []

    def put(self, item: tuple[Partition, FlushTask], *_: object) -> None:
        self.begun.append(item)

    def step(self, number: int = 0) -> None:
        """Runs one flush."""
        log, task = self.begun.pop(number)
        task.run()
        self.flusher._report(log, task, None)


class Logs:
    """The logs of one topic, and a flusher without threads."""

    def __init__(self, *, partitions: int, threads: int) -> None:
        manager, _ = open_manager(MemoryFiles())
        manager.create_topic("t", partitions, {})
        self.logs = sorted(manager.partitions.of_clients(), key=lambda log: log.tp.partition)
        self.flusher = Flusher(threads=threads, on_flush=self._flushed)
        for _ in self.flusher._threads:
            self.flusher._begun.put(None)
        for thread in self.flusher._threads:
            thread.join()
        self.flusher._begun = self.steps = Steps(self.flusher)
        self.flushes: Counter[int] = Counter()

    @property
    def started(self) -> list[int]:
        """Partitions with a flush in progress, oldest first."""
        return [log.tp.partition for log in self.flusher._under_way]

    def write(self, partition: int, caller: Caller) -> None:
        """Appends one batch."""
        append(self.logs[partition], b"x")
        self.flusher.mark_dirty(self.logs[partition], caller)

    async def step(self, number: int = 0) -> None:
        """Runs one flush and lets the next ones begin."""
        self.steps.step(number)
        await all_wait()

    async def drain(self) -> list[int]:
        """Runs the remaining flushes. Returns their partitions in order."""
        await all_wait()
        order = []
        while self.started:
            order.append(self.started[0])
            await self.step()
        await self.flusher.drain()
        return order

    def _flushed(self, log: Partition, _duration_ns: int) -> None:
        self.flushes[log.tp.partition] += 1


async def test_whoever_has_one_dirty_log_waits_for_one_flush_of_each_other_owner() -> None:
    logs = Logs(partitions=12, threads=1)
    for partition in range(10):
        logs.write(partition, MANY)
    await all_wait()
    logs.write(10, OTHER)
    logs.write(11, Caller("third", "t1"))
    await all_wait()
    assert (await logs.drain())[:4] == [0, 1, 10, 11]
    assert {log.ends.high_watermark for log in logs.logs} == {1}


async def test_nobody_has_all_threads() -> None:
    logs = Logs(partitions=10, threads=5)
    for partition in range(9):
        logs.write(partition, MANY)
    await all_wait()
    assert logs.started == [0, 1, 2, 3]
    logs.write(9, OTHER)
    await all_wait()
    assert logs.started == [0, 1, 2, 3, 9]
    await logs.step(4)
    assert (logs.started, logs.logs[9].ends.high_watermark) == ([0, 1, 2, 3], 1)
    await logs.drain()


async def test_connections_of_one_owner_take_turns() -> None:
    logs = Logs(partitions=6, threads=1)
    for partition in range(5):
        logs.write(partition, MANY)
    logs.write(5, Caller(MANY.owner, "m2"))
    await all_wait()
    assert await logs.drain() == [0, 5, 1, 2, 3, 4]


async def test_a_log_of_two_owners_goes_with_the_turn_that_comes_first() -> None:
    logs = Logs(partitions=6, threads=1)
    for partition in range(5):
        logs.write(partition, MANY)
    await all_wait()
    logs.write(4, OTHER)
    logs.write(5, OTHER)
    await all_wait()
    assert await logs.drain() == [0, 1, 4, 2, 5, 3]
    assert logs.flushes == dict.fromkeys(range(6), 1)


async def test_what_several_owners_write_during_a_flush_shares_the_next_one() -> None:
    logs = Logs(partitions=2, threads=2)
    logs.write(0, MANY)
    await all_wait()
    for _ in range(20):
        logs.write(0, MANY)
        logs.write(0, OTHER)
    await all_wait()
    assert logs.started == [0]
    assert await logs.drain() == [0, 0]
    assert (logs.logs[0].ends.high_watermark, logs.flushes[0]) == (41, 2)


async def test_a_log_written_during_its_flush_comes_after_those_that_waited_before() -> None:
    logs = Logs(partitions=3, threads=1)
    for partition in range(3):
        logs.write(partition, MANY)
    await all_wait()
    logs.write(0, MANY)
    assert await logs.drain() == [0, 1, 2, 0]


class EndsAtTheLastLook(deque[Any]):
    """The ended flushes. Another one ends just as the event loop finds none, the last moment at which it could be missed."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps

    def __len__(self) -> int:
        count = super().__len__()
        if not count and self.steps.begun:
            self.steps.step()
        return count


async def test_a_flush_that_ends_after_the_last_look_at_ended_ones_is_completed() -> None:
    logs = Logs(partitions=3, threads=5)
    logs.flusher._ended = EndsAtTheLastLook(logs.steps)
    for partition in range(3):
        logs.write(partition, MANY)
    await all_wait()
    logs.steps.step()
    await all_wait()
    assert not logs.started
    assert logs.flushes == {0: 1, 1: 1, 2: 1}


@pytest.mark.parametrize("seed", range(20))
async def test_all_is_flushed_in_turn_whatever_the_order_of_writes_and_flushes(seed: int) -> None:
    rng = random.Random(seed)
    logs = Logs(partitions=8, threads=rng.choice([1, 2, 5]))
    callers = [Caller(owner, f"{owner}{number}") for owner in "abc" for number in range(2)]
    written: Counter[int] = Counter()
    durable_at: Counter[int] = Counter()
    for _ in range(300):
        if rng.random() < 0.6 or not logs.started:
            partition = min(rng.randrange(8), rng.randrange(8))
            logs.write(partition, rng.choice(callers))
            written[partition] += 1
            if rng.random() < 0.5:
                await all_wait()
        else:
            number = rng.randrange(len(logs.started))
            partition = logs.started[number]
            await logs.step(number)
            assert logs.logs[partition].ends.high_watermark > durable_at[partition]
            durable_at[partition] = logs.logs[partition].ends.high_watermark
        assert len(set(logs.started)) == len(logs.started)
    await logs.drain()
    assert {log.tp.partition: log.ends.high_watermark for log in logs.logs if log.ends.high_watermark} == written
