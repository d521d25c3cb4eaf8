"""Requests that wait for many partitions: a change of one partition costs one look at it, and the running sum equals a recount."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from types import SimpleNamespace
from typing import cast

import pytest

from brokerd.errors import ErrorCode
from brokerd.partition import log_ends
from brokerd.partition.log_ends import LogEnd, LogEnds, Moved
from brokerd.partition.partition import Partition
from brokerd.purgatory import Completion, Purgatory, Waiters
from brokerd.server.delayed_produce import Appended, DelayedProduce
from brokerd.server.handlers.fetch import DelayedFetch, ParkedPartition, park
from tests.support.scale import TEST_SCALE

WIDE = 2_000
BATCH_BYTES = 100
EXPIRY_MS = 1_000


class Moving:
    """A partition whose ends the test moves; counts the reads of its ends."""

    def __init__(self) -> None:
        self.looks = 0
        self.topic = "t"
        self.health = SimpleNamespace(is_deleted=False, failure=None)
        self.waiters: defaultdict[LogEnd, Waiters] = defaultdict(Waiters)
        self.leader_epoch = 1
        self.name = "t-0"
        self._ends = LogEnds(0, 0, 0, {})
        self._ends.lead()

    @property
    def ends(self) -> LogEnds:
        self.looks += 1
        return self._ends

    @property
    def partition(self) -> Partition:
        return cast("Partition", self)

    def leads_in(self, epoch: int) -> bool:
        return epoch == self.leader_epoch

    def append(self, size_bytes: int = BATCH_BYTES) -> None:
        self._ends.written(self._ends.log_end_offset + 1, size_bytes)

    def append_all(self, count: int) -> None:
        for _ in range(count):
            self.append()
        self.flush()

    def flush(self) -> None:
        self.wake(self._ends.durable_to(self._ends.log_end_offset))

    def wake(self, moved: Moved = (LogEnd.LOG_START,)) -> None:
        Partition.wake(self.partition, moved)

    def parked(self, *, max_bytes: int = 2**20) -> ParkedPartition:
        """The partition parked at its high watermark, with nothing left to read."""
        return ParkedPartition(
            self.partition, self.leader_epoch, self._ends.high_watermark, 0, self._ends.readable_bytes, None, max_bytes
        )


def fetch_of(partitions: list[ParkedPartition], *, min_bytes: int, end: LogEnd = LogEnd.HIGH_WATERMARK) -> DelayedFetch:
    return DelayedFetch(EXPIRY_MS, partitions, end=end, min_bytes=min_bytes, on_done=lambda: None)


def looks_at(partitions: list[Moving]) -> int:
    looks = sum(partition.looks for partition in partitions)
    for partition in partitions:
        partition.looks = 0
    return looks


def test_an_append_looks_at_one_partition_of_each_wide_fetch_that_waits() -> None:
    partitions, purgatory = [Moving() for _ in range(WIDE)], Purgatory()
    narrow = fetch_of([partitions[7].parked()], min_bytes=3 * BATCH_BYTES)
    assert not purgatory.try_complete_else_watch(narrow)
    looks_at(partitions)
    partitions[7].append()
    partitions[7].flush()
    cost = looks_at(partitions)
    wide = [fetch_of([partition.parked() for partition in partitions], min_bytes=3 * BATCH_BYTES) for _ in range(4)]
    assert not any(purgatory.try_complete_else_watch(fetch) for fetch in wide)
    looks_at(partitions)
    partitions[7].append()
    partitions[7].flush()
    assert looks_at(partitions) <= 5 * cost, "each costs what the fetch of that partition alone does"
    for number in (8, 9):
        partitions[number].append()
        partitions[number].flush()
    assert all(fetch.completion is Completion.CONDITION for fetch in wide), "the sum is over all partitions"
    assert not narrow.is_completed


async def test_a_flush_settles_one_batch_of_a_wide_produce_request() -> None:
    partitions, purgatory = [Moving() for _ in range(WIDE)], Purgatory()
    for partition in partitions:
        partition.append()
    awaited = {place: Appended(partition.partition, last_offset=0, leader_epoch=1) for place, partition in enumerate(partitions)}
    produce = DelayedProduce(EXPIRY_MS, awaited, asyncio.get_running_loop().create_future())
    assert not purgatory.try_complete_else_watch(produce)
    partitions[3].health.is_deleted = True
    looks_at(partitions)
    for partition in partitions:
        assert not produce.is_completed
        partition.flush() if partition is not partitions[3] else partition.wake()
    assert looks_at(partitions) <= 4 * WIDE
    assert produce.completion is Completion.CONDITION
    assert {place: error.code for place, error in produce.errors.items()} == {3: ErrorCode.UNKNOWN_TOPIC_ID}
    assert produce.settled.done()


async def test_what_is_not_settled_at_the_deadline_has_an_error_in_its_place() -> None:
    partitions, purgatory = [Moving() for _ in range(3)], Purgatory()
    for partition in partitions:
        partition.append()
    awaited = {
        10 + place: Appended(partition.partition, last_offset=0, leader_epoch=1) for place, partition in enumerate(partitions)
    }
    produce = DelayedProduce(EXPIRY_MS, awaited, asyncio.get_running_loop().create_future())
    purgatory.try_complete_else_watch(produce)
    partitions[1].flush()
    purgatory.advance(now_ms=EXPIRY_MS)
    assert {place: error.code for place, error in produce.errors.items()} == dict.fromkeys((10, 12), ErrorCode.REQUEST_TIMED_OUT)


@pytest.mark.parametrize("parks_first", [True, False])
def test_a_fetch_does_not_wait_for_batches_that_were_too_many_to_count(monkeypatch: pytest.MonkeyPatch, parks_first: bool) -> None:
    monkeypatch.setattr(log_ends, "_COUNTED_MAX", 4)
    log, purgatory = Moving(), Purgatory()
    log.ends.in_sync([7])
    if not parks_first:
        log.append_all(10)
    fetch = fetch_of([park(log.partition, 0, 0, found_bytes=0, max_bytes=2**20)], min_bytes=1)
    purgatory.try_complete_else_watch(fetch)
    if parks_first:
        log.append_all(10)
    assert not fetch.is_completed
    log.wake(log.ends.replica_at(7, 1))
    assert fetch.is_completed


def is_due(partitions: list[ParkedPartition], end: LogEnd, min_bytes: int) -> bool:
    """True if a fetch must be answered, determined by a look at all of its partitions."""
    available_bytes = 0
    for parked in partitions:
        ends = parked.partition.ends
        if parked.fetch_offset < ends.log_start_offset or parked.partition.health.is_deleted:
            return True
        if ends.of(end) <= parked.fetch_offset:
            continue
        available_bytes += min(parked.found_bytes + ends.readable_bytes - parked.counted_bytes, parked.max_bytes)
    return available_bytes >= min_bytes


@pytest.mark.parametrize("seed", range(40 * TEST_SCALE))
def test_the_sum_is_that_of_a_look_at_all_partitions(seed: int) -> None:
    rng = random.Random(seed)
    partitions, purgatory = [Moving() for _ in range(5)], Purgatory()
    fetches: list[tuple[DelayedFetch, list[ParkedPartition], LogEnd, int]] = []

    def park() -> None:
        asked = [partition.parked(max_bytes=rng.randrange(1, 400)) for partition in rng.sample(partitions, rng.randrange(1, 5))]
        end, min_bytes = rng.choice([LogEnd.HIGH_WATERMARK, LogEnd.LAST_STABLE_OFFSET]), rng.randrange(1, 800)
        fetch = fetch_of(asked, min_bytes=min_bytes, end=end)
        is_complete = is_due(asked, end, min_bytes)
        assert purgatory.try_complete_else_watch(fetch) == is_complete
        fetches.append((fetch, asked, end, min_bytes))

    def delete_records() -> None:
        partition = rng.choice(partitions)
        partition.wake(partition.ends.set_log_start(rng.randrange(partition.ends.last_stable_offset + 1)))

    for _ in range(300):
        step = rng.random()
        if step < 0.3:
            park()
        elif step < 0.6:
            rng.choice(partitions).append(rng.randrange(1, 200))
        elif step < 0.95:
            rng.choice(partitions).flush()
        else:
            delete_records()
        for fetch, asked, end, min_bytes in fetches:
            assert fetch.is_completed or not is_due(asked, end, min_bytes), "a wake-up was lost"
        fetches = [one for one in fetches if not one[0].is_completed]
