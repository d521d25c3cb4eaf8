"""The table in ARCHITECTURE.md ("Producer state"), row by row, and its boundaries."""

from __future__ import annotations

import pytest

from brokerd.errors import (
    DuplicateSequenceError,
    Fate,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    UnknownProducerIdError,
    WireError,
)
from brokerd.ids import MEMBER_BIT, PRODUCER_NUMBERS, PRODUCER_TAG_SHIFT, ProducerIdAndEpoch
from brokerd.partition.producer_state import BatchMetadata, Marker, ProducerStates
from tests.support.build import raw_batch

MAX = 2**31 - 1


class Partition:
    """The producer states of a log in which each accepted batch is written at once."""

    def __init__(self, limit: int = 100) -> None:
        self.states = ProducerStates("t-0", limit=limit)
        self.end = 0

    def send(
        self, first: int, count: int = 1, *, epoch: int = 0, producer_id: int = 7, timestamp: int = 0, attributes: int = 0
    ) -> int:
        """Returns the base offset: a new one, or for a duplicate that of the original batch."""
        identity = ProducerIdAndEpoch(producer_id, epoch)
        header = raw_batch(b"x", count=count, producer=identity, sequence=first, attributes=attributes).header
        before = dict(self.states.entries)
        prepared = self.states.prepare(header._replace(base_offset=self.end, append_timestamp=timestamp))
        assert self.states.entries == before
        if isinstance(prepared, BatchMetadata):
            return prepared.base_offset
        self.states.commit(producer_id, prepared)
        self.end += count
        return self.end - count


def _refusal(partition: Partition, error: type[WireError], first: int, count: int = 1, **fields: int) -> WireError:
    before = dict(partition.states.entries)
    with pytest.raises(error) as refused:
        partition.send(first, count, **fields)
    assert partition.states.entries == before
    return refused.value


def test_next_in_sequence_is_appended_and_the_last_six_are_recognised() -> None:
    partition = Partition()
    offsets = [partition.send(n * 3, 3) for n in range(8)]
    assert offsets == [0, 3, 6, 9, 12, 15, 18, 21]
    assert [partition.send(n * 3, 3) for n in range(2, 8)] == offsets[2:]
    error = _refusal(partition, DuplicateSequenceError, 3, 3)
    assert (error.expected_sequence, error.current_epoch, error.fate) == (24, 0, Fate.UNSPECIFIED)
    _refusal(partition, DuplicateSequenceError, 0, 24)
    _refusal(partition, DuplicateSequenceError, 22, 2)


@pytest.mark.parametrize(("first", "count"), [(11, 1), (12, 5), (9, 2), (0, 11), (MAX, 1), (MAX, 3)])
def test_gaps_and_partial_overlaps_are_out_of_order(first: int, count: int) -> None:
    partition = Partition()
    partition.send(0, 10)
    error = _refusal(partition, OutOfOrderSequenceError, first, count)
    assert (error.expected_sequence, error.current_epoch, error.fate) == (10, 0, Fate.NOT_APPENDED)
    assert "10 is expected" in str(error)
    assert "producer 7" in str(error)
    assert partition.send(10) == 10


def test_a_lower_epoch_is_fenced_and_a_higher_one_begins_at_0() -> None:
    partition = Partition()
    partition.send(0, 5, epoch=3)
    error = _refusal(partition, InvalidProducerEpochError, 5, epoch=2)
    assert (error.current_epoch, error.fate) == (3, Fate.NOT_APPENDED)
    error = _refusal(partition, OutOfOrderSequenceError, 5, epoch=4)
    assert error.expected_sequence == 0
    assert partition.send(0, 5, epoch=4) == 5
    _refusal(partition, InvalidProducerEpochError, 0, 5, epoch=3)
    assert partition.send(0, epoch=32_767) == 10


def test_an_unknown_producer_begins_at_0() -> None:
    partition = Partition()
    error = _refusal(partition, UnknownProducerIdError, 4)
    assert error.fate is Fate.NOT_APPENDED
    assert partition.send(0) == 0


@pytest.mark.parametrize(
    ("last_batch", "next_batch", "after"),
    [
        ((MAX - 1, 1), (MAX, 1), 0),
        ((MAX, 1), (0, 1), 1),
        ((MAX - 1, 3), (1, 2), 3),
        ((MAX - 1, 2), (0, 5), 5),
        ((MAX - 4, 10), (5, 1), 6),
    ],
)
def test_sequences_wrap(last_batch: tuple[int, int], next_batch: tuple[int, int], after: int) -> None:
    partition = Partition()
    partition.send(0, last_batch[0])
    at = partition.send(*last_batch)
    assert partition.send(*next_batch) == at + last_batch[1]
    assert partition.send(*last_batch) == at
    assert partition.send(*next_batch) == at + last_batch[1]
    _refusal(partition, OutOfOrderSequenceError, after + 1)
    assert partition.send(after) == at + last_batch[1] + next_batch[1]
    _refusal(partition, DuplicateSequenceError, MAX - 100, 3)


def test_before_the_wrap_large_numbers_are_a_gap_and_after_it_the_past() -> None:
    partition = Partition()
    partition.send(0, 1_000)
    _refusal(partition, OutOfOrderSequenceError, MAX - 5, 3)
    partition.send(1_000, MAX - 1_000)
    _refusal(partition, DuplicateSequenceError, MAX - 5, 3)
    _refusal(partition, OutOfOrderSequenceError, 5)
    partition.send(MAX)
    partition.send(0, 10)
    _refusal(partition, DuplicateSequenceError, MAX - 5, 3)
    _refusal(partition, OutOfOrderSequenceError, 11)
    _refusal(partition, OutOfOrderSequenceError, 5, 6)


def test_producers_expire() -> None:
    partition = Partition(limit=2)
    partition.send(0, producer_id=1, timestamp=100)
    partition.send(0, producer_id=2, timestamp=200)
    assert partition.states.expire(150) == 1
    _refusal(partition, UnknownProducerIdError, 1, producer_id=1)
    assert partition.send(0, producer_id=1, timestamp=200) == 2
    assert partition.send(1, producer_id=2) == 3


def test_a_newcomer_has_the_one_forgotten_that_was_silent_longest() -> None:
    partition = Partition(limit=3)
    for producer_id in (1, 2, 3):
        partition.send(0, producer_id=producer_id)
    partition.send(1, producer_id=1)
    partition.send(0, producer_id=4)
    assert list(partition.states.entries) == [3, 1, 4]
    error = _refusal(partition, UnknownProducerIdError, 1, producer_id=2)
    assert error.fate is Fate.NOT_APPENDED
    error = _refusal(partition, UnknownProducerIdError, 0, producer_id=2)
    assert "may have been forgotten (max.producer.ids.per.partition)" in str(error)
    _refusal(partition, UnknownProducerIdError, 0, producer_id=2, epoch=1)
    assert partition.send(2, producer_id=1) == 5
    assert partition.send(0, producer_id=5) == 6
    assert partition.states.forgotten == {0: 3}


def test_numbers_that_a_client_makes_up_keep_out_its_own_principal_alone() -> None:
    partition = Partition(limit=1)
    tag = 5 << PRODUCER_TAG_SHIFT
    partition.send(0, producer_id=tag | PRODUCER_NUMBERS - 1)
    partition.send(0, producer_id=7)
    _refusal(partition, UnknownProducerIdError, 0, producer_id=tag | 8)
    _refusal(partition, UnknownProducerIdError, 0, producer_id=tag | MEMBER_BIT | 8)
    partition.send(0, producer_id=9)
    _refusal(partition, UnknownProducerIdError, 0, producer_id=7)
    partition.states.forget_all(free_number=20)
    for owned in (19, tag | 19, 6 << PRODUCER_TAG_SHIFT | 19):
        _refusal(partition, UnknownProducerIdError, 0, producer_id=owned)
    partition.send(0, producer_id=20)
    partition.states.bound_forgotten(10)
    partition.send(0, producer_id=tag | 10)


def test_made_up_owners_share_a_number_beyond_a_thousand() -> None:
    """Without authentication, a client can write under any owner's tag."""
    partition = Partition(limit=1)
    for tag in range(1_010):
        partition.send(0, producer_id=tag << PRODUCER_TAG_SHIFT | tag)
    assert len(partition.states.forgotten) == 1_001
    for tag in (500, 1_005, 5_000):
        _refusal(partition, UnknownProducerIdError, 0, producer_id=tag << PRODUCER_TAG_SHIFT | 1_005)
    partition.send(0, producer_id=5_000 << PRODUCER_TAG_SHIFT | 1_011)


def test_a_producer_with_an_open_transaction_is_not_forgotten() -> None:
    partition = Partition(limit=2)
    for producer_id in (1, 2):
        partition.send(0, producer_id=producer_id, attributes=1)  # transactional
    partition.send(0, producer_id=3)
    assert list(partition.states.entries) == [1, 2], "all others wait for their end, so the newcomer itself is forgotten at once"
    partition.states.end_transactions(Marker([1]), partition.end)
    partition.send(0, producer_id=4)
    assert list(partition.states.entries) == [2, 4]


def test_open_transactions_in_the_way_are_passed_over_once() -> None:
    partition = Partition(limit=4)
    for producer_id in (1, 2):
        partition.send(0, producer_id=producer_id, attributes=1)  # transactional
    for producer_id in range(3, 9):
        partition.send(0, producer_id=producer_id)
    assert set(partition.states.entries) == {1, 2, 7, 8}, "whoever wrote last, and who is in a transaction"
    assert next(iter(partition.states.entries)) not in (1, 2), "the next newcomer finds the oldest at once"
