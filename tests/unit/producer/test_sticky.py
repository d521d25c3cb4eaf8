"""Rows without a key go where Kafka's built-in partitioner would send them: to one partition for a run of bytes, then to another
that accepts records, more often to one with fewer queued batches. "Random" numbers count up, so that frequencies are exact.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping

import pytest

from brokerd.ids import TopicInfo
from brokerd.producer.core.partitioner import RUN_BYTES, PartitionLoad, StickyPartitioner


class CountingRandom(random.Random):
    """Returns 0, 1, 2, ..."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()

    def getrandbits(self, _bits: int) -> int:
        return next(self._numbers)


def load_of(
    partitions: int = 3,
    *,
    leaderless: tuple[int, ...] = (),
    unwritable: tuple[int, ...] = (),
    queues: Mapping[int, int] | None = None,
    backing_off: tuple[int, ...] = (),
) -> PartitionLoad:
    leaders = tuple(-1 if partition in leaderless else 0 for partition in range(partitions))
    view = TopicInfo(b"1" * 16, leaders, dict.fromkeys(unwritable, "damaged"))
    return PartitionLoad(view, lambda: queues or {}, lambda partition: partition in backing_off)


def chosen(sticky: StickyPartitioner, load: PartitionLoad, count: int, record_bytes: int = 1) -> list[int]:
    return [sticky.assign_one(record_bytes, load) for _ in range(count)]


def test_a_partition_is_left_after_batch_size_bytes() -> None:
    sticky = StickyPartitioner(3, CountingRandom())
    assert chosen(sticky, load_of(3), 9) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert chosen(StickyPartitioner(1, CountingRandom()), load_of(1), 10) == [0] * 10


def test_a_large_batch_size_does_not_keep_rows_together_for_longer_than_kafkas() -> None:
    sticky = StickyPartitioner(2**20, random.Random(1))
    partitions = sticky.assign(5_000, 100, load_of(8)).tolist()
    assert set(partitions) == set(range(8))
    run_rows = [len(list(run)) for _, run in itertools.groupby(partitions)]
    assert max(run_rows) * 100 <= 5 * RUN_BYTES  # the same partition may be chosen several times in a row


def test_a_large_column_is_not_cut_to_pieces() -> None:
    sticky = StickyPartitioner(2**20, random.Random(1))
    partitions = sticky.assign(80_000, 100, load_of(8)).tolist()
    assert len(list(itertools.groupby(partitions))) <= 4 * 8
    assert set(partitions) == set(range(8))


@pytest.mark.parametrize("how", ["leaderless", "unwritable", "backing_off"])
def test_what_takes_no_records_is_left_out(how: str) -> None:
    def load(partitions: int, *avoided: int) -> PartitionLoad:
        return load_of(partitions, queues=dict.fromkeys(avoided, 1), **{how: avoided})

    assert Counter(chosen(StickyPartitioner(1, CountingRandom()), load(3, 1), 100)) == {0: 50, 2: 50}
    assert set(chosen(StickyPartitioner(1, CountingRandom()), load(2, 0), 100)) == {1}
    assert set(chosen(StickyPartitioner(1, CountingRandom()), load(2, 0, 1), 100)) == {0, 1}, "none is better than another"


def test_the_present_partition_is_left_at_once_when_it_takes_no_more() -> None:
    sticky = StickyPartitioner(1_000, CountingRandom())
    assert chosen(sticky, load_of(3), 2) == [0, 0]
    assert set(chosen(sticky, load_of(3, unwritable=(0,)), 5)) == {2}
    assert set(chosen(sticky, load_of(1), 5)) == {0}


def test_partitions_are_chosen_the_rarer_the_more_waits_for_them() -> None:
    queues = {0: 5, 1: 0, 2: 3, 4: 1}
    counts = Counter(chosen(StickyPartitioner(1, CountingRandom()), load_of(5, queues=queues), 2 * 21))
    assert counts == {0: 2 * 1, 1: 2 * 6, 2: 2 * 3, 3: 2 * 6, 4: 2 * 5}


def test_a_long_queue_of_an_avoided_partition_says_nothing_of_the_others() -> None:
    load = load_of(3, queues={0: 1_000, 1: 1}, unwritable=(0,))
    counts = Counter(chosen(StickyPartitioner(1, CountingRandom()), load, 30))
    assert counts == {1: 10, 2: 20}


def test_queues_of_partitions_that_are_gone_do_not_matter() -> None:
    load = load_of(2, queues={7: 9}, unwritable=(5,), backing_off=(7,))
    assert Counter(chosen(StickyPartitioner(1, CountingRandom()), load, 10)) == {0: 5, 1: 5}
