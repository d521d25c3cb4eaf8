"""Planning: the ranges of a batch, their splits, and losses. Random cases are checked against the rules, not against numbers."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.client.fetching import FetchRange
from brokerd.datasource.offsets import SourceOffset
from brokerd.datasource.planning import (
    TASK_BYTES,
    TopicState,
    continue_from,
    cut_ends,
    group_ranges,
    limit_rows,
    ranges_between,
    share_bytes,
    split_ranges,
)
from brokerd.errors import LogTruncationError
from brokerd.ids import TopicIdPartition, TopicPartition

OLD, NEW = bytes(16), bytes([1]) * 16
T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
U0 = TopicPartition("u", 0)


def of_t(topic_id: bytes, number: int, start_offset: int, until_offset: int) -> FetchRange:
    return FetchRange(TopicIdPartition(topic_id, number), start_offset, until_offset, "t")


def snapshot(bounds: dict[TopicPartition, tuple[int, int]], topic_id: bytes = OLD) -> TopicState:
    return TopicState(
        {tp.topic: topic_id for tp in bounds},
        {tp: earliest for tp, (earliest, _) in bounds.items()},
        {tp: latest for tp, (_, latest) in bounds.items()},
    )


PREVIOUS = SourceOffset({T0: 10, T1: 20}, {"t": OLD})


def test_case_a_batch_begins_where_the_last_one_ended() -> None:
    assert continue_from(PREVIOUS, snapshot({T0: (0, 15), T1: (20, 20)})) == ({T0: 10, T1: 20}, {}, [])


def test_case_a_what_is_not_committed_yet_is_still_in_the_log() -> None:
    now = dataclasses.replace(snapshot({T0: (0, 4), T1: (0, 25)}), log_ends={T0: 12})
    begins, starts, losses = continue_from(PREVIOUS, now)
    assert (begins, starts, losses) == ({T0: 10, T1: 20}, {}, [])
    assert limit_rows(begins, now.latest, None) == {T0: 10, T1: 25}, "never backwards"
    assert limit_rows(begins, now.latest, 2) == {T0: 10, T1: 22}


def test_case_b_retention_that_passed_the_checkpoint_is_told_with_numbers() -> None:
    begins, starts, losses = continue_from(PREVIOUS, snapshot({T0: (13, 15), T1: (0, 20)}))
    assert (begins, starts) == ({T0: 13, T1: 20}, {T0: 13})
    assert losses == ["3 records of t-0 are gone, offsets 10 to 12: retention or DeleteRecords removed them; the next offset is 13"]


@pytest.mark.parametrize(("parts_at", "expected"), [(7, 7), (-1, 2), (1, 2)])
def test_case_h_another_history_is_read_from_where_the_two_part(parts_at: int, expected: int) -> None:
    """Even if the log now ends beyond the last read offset. If the divergence is unknown or removed, from the log start."""
    other = LogTruncationError("t-0: offset 10 is of another history", resume_offset=parts_at)
    now = dataclasses.replace(snapshot({T0: (2, 15), T1: (0, 20)}), truncations={T0: other})
    begins, starts, losses = continue_from(PREVIOUS, now)
    assert (begins, starts) == ({T0: expected, T1: 20}, {T0: expected})
    assert losses == [f"{other}; records read after that offset are not in this log; the next offset is {expected}"]
    assert continue_from(PREVIOUS, now, lambda tp: tp != T0).losses == []


def test_case_c_log_that_ends_before_the_checkpoint_has_lost_its_tail() -> None:
    begins, starts, losses = continue_from(PREVIOUS, snapshot({T0: (0, 4), T1: (0, 20)}))
    assert (begins[T0], starts) == (4, {T0: 4})
    assert losses == ["t-0 ends at offset 4, but was read up to 10: the log has lost its tail"]


def test_case_d_topic_created_anew_is_told_and_begins_at_its_start() -> None:
    begins, starts, losses = continue_from(PREVIOUS, snapshot({T0: (0, 100), T1: (0, 0)}, NEW))
    assert begins == starts == {T0: 0, T1: 0}
    assert len(losses) == 1
    assert losses[0].startswith("topic 't' is not the one that this query has read")
    assert '{"0": 10, "1": 20}' in losses[0]


def test_case_e_new_partition_begins_at_zero_and_lost_records_are_told() -> None:
    begins, starts, losses = continue_from(PREVIOUS, snapshot({T0: (0, 10), T1: (0, 20), T2: (0, 7)}))
    assert (begins[T2], starts, losses) == (0, {T2: 0}, [])
    begins, starts, losses = continue_from(PREVIOUS, snapshot({T0: (0, 10), T1: (0, 20), T2: (3, 7)}))
    assert (begins[T2], starts) == (3, {T2: 3})
    assert losses == ["partition t-2 is new and starts at 3 instead of 0: 3 records are gone"]


def test_case_f_new_topic_begins_at_its_start() -> None:
    begins, starts, losses = continue_from(PREVIOUS, snapshot({T0: (0, 10), T1: (0, 20), U0: (5, 9)}))
    assert (begins[U0], starts, losses) == (5, {U0: 5}, [])


def test_case_g_partitions_that_are_gone_are_told() -> None:
    begins, starts, losses = continue_from(PREVIOUS, snapshot({T0: (0, 10)}))
    assert (begins, starts) == ({T0: 10}, {})
    assert losses == ["partitions of this query are gone or no longer subscribed to: t-1"]


def test_limit_gives_every_partition_something_and_keeps_to_the_limit() -> None:
    ends = limit_rows({T0: 0, T1: 0, U0: 5}, {T0: 1_000_000, T1: 3, U0: 5}, 1000)
    assert ends == {T0: 999, T1: 1, U0: 5}


def test_limit_larger_than_what_waits_takes_all() -> None:
    assert limit_rows({T0: 2}, {T0: 10}, 8) == {T0: 10}
    assert limit_rows({T0: 2}, {T0: 10}, None) == {T0: 10}


def test_limit_smaller_than_the_number_of_partitions_still_moves_each() -> None:
    assert limit_rows({T0: 0, T1: 0, T2: 0}, {T0: 9, T1: 9, T2: 9}, 1) == {T0: 1, T1: 1, T2: 1}


def test_limit_on_random_backlogs_never_starves_never_passes_the_end() -> None:
    rng = random.Random(7)
    for _ in range(500):
        tps = [TopicPartition("t", number) for number in range(rng.randint(1, 12))]
        begins = {tp: rng.randrange(2**62) for tp in tps}
        latest = {tp: begins[tp] + rng.choice([0, 1, rng.randrange(50), rng.randrange(2**60)]) for tp in tps}
        max_rows = rng.choice([1, 10, 1000, 2**40])
        ends = limit_rows(begins, latest, max_rows)
        waiting = [tp for tp in tps if latest[tp] > begins[tp]]
        assert all(begins[tp] <= ends[tp] <= latest[tp] for tp in tps)
        assert all(ends[tp] > begins[tp] for tp in waiting)
        assert sum(ends[tp] - begins[tp] for tp in tps) <= max(max_rows, max_rows + len(waiting))


def test_bytes_are_shared_out_in_proportion() -> None:
    assert share_bytes({T0: 900, T1: 100, T2: 0}, 100) == {T0: 90, T1: 10}
    assert share_bytes({T0: 60, T1: 40}, 100) is None


def test_a_partition_moves_whatever_the_broker_says() -> None:
    assert cut_ends({T0: 5, T1: 5, T2: 5}, {T0: 9, T1: 9, T2: 9}, {T0: 5, T1: 20}) == {T0: 6, T1: 9, T2: 9}
    assert cut_ends({T0: 5}, {T0: 5}, {}) == {T0: 5}


def test_ranges_follow_from_the_two_offsets_alone() -> None:
    start = SourceOffset({T0: 10, T1: 20}, {"t": OLD})
    end = SourceOffset({T0: 12, T1: 20, T2: 4}, {"t": NEW}, {T2: 1})
    assert ranges_between(start, end) == [
        of_t(NEW, 0, 10, 12),
        of_t(NEW, 2, 1, 4),
    ]


def test_starts_override_where_the_last_batch_ended() -> None:
    end = SourceOffset({T0: 15}, {"t": OLD}, {T0: 13})
    assert ranges_between(SourceOffset({T0: 10}, {"t": OLD}), end) == [of_t(OLD, 0, 13, 15)]


RANGES = [
    of_t(OLD, 0, 0, 1000),
    of_t(OLD, 1, 500, 600),
    of_t(OLD, 2, 7, 8),
]


def covered(ranges: list[FetchRange]) -> list[tuple[int, int]]:
    return [(one.tp.partition, offset) for one in ranges for offset in range(one.start_offset, one.until_offset)]


@pytest.mark.parametrize("min_partitions", [None, 1, 3, 4, 10, 50, 5000])
@pytest.mark.parametrize("max_records", [None, 1, 33, 100, 10**6])
def test_splitting_covers_every_offset_once_and_in_order(min_partitions: int | None, max_records: int | None) -> None:
    pieces = split_ranges(RANGES, min_partitions=min_partitions, max_records_per_partition=max_records)
    assert covered(pieces) == covered(RANGES)
    assert all(one.size > 0 for one in pieces)
    if max_records is not None:
        assert max(one.size for one in pieces) <= max_records


def sizes(given: list[int], min_partitions: int | None, max_records: int | None = None) -> list[int]:
    ranges = [of_t(OLD, number, 100, 100 + size) for number, size in enumerate(given)]
    return [one.size for one in split_ranges(ranges, min_partitions=min_partitions, max_records_per_partition=max_records)]


@pytest.mark.parametrize(
    ("given", "min_partitions", "max_records", "pieces"),
    [
        ([1000] * 8, 20, None, [333, 333, 334] * 8),  # 2.5 pieces each become 3: halves are rounded up
        ([100, 1, 1], 4, None, [50, 50, 1, 1]),  # small ranges get one piece each, the others share the rest
        ([1000, 100, 1], 11, None, [111] * 8 + [112, 100, 1]),
        ([14], 4, None, [3, 3, 4, 4]),  # the last pieces take the remainder
        ([2], 4, None, [1, 1]),
        ([5, 0, 5], 2, None, [5, 5]),
        ([5, 5], 2, None, [5, 5]),
        ([10], None, 4, [3, 3, 4]),
        ([10, 2], 5, 4, [3, 3, 4, 2]),  # a partition with a piece too small to cut is left as it is
        ([100, 100], 8, 30, [25] * 8),
        ([100], 8, 30, [12, 13] * 4),
    ],
)
def test_pieces_are_those_of_sparks_kafka_connector(
    given: list[int], min_partitions: int | None, max_records: int | None, pieces: list[int]
) -> None:
    assert sizes(given, min_partitions, max_records) == pieces


def test_no_ranges_stay_none() -> None:
    assert split_ranges([], min_partitions=5, max_records_per_partition=5) == []


@given(st.lists(st.none() | st.integers(0, 2 * TASK_BYTES) | st.integers(0, TASK_BYTES // 5), max_size=30))
def test_small_ranges_share_tasks_and_large_ones_come_first(sizes_bytes: list[int | None]) -> None:
    ranges = [of_t(OLD, number, 0, 10) for number in range(len(sizes_bytes))]
    known = {TopicIdPartition(OLD, number): size for number, size in enumerate(sizes_bytes) if size is not None}
    groups = group_ranges(ranges, known)
    assert sorted(one for group in groups for one in group) == ranges, "each once"

    def size_of(group: Sequence[FetchRange]) -> int:
        return sum(known.get(one.tp, TASK_BYTES) for one in group)

    large = [size_of(group) >= TASK_BYTES for group in groups if len(group) == 1 and group[0] not in small(ranges, known)]
    assert all(large)
    shared = groups[len(large) :]
    assert [one for group in shared for one in group] == small(ranges, known), "in order, behind the large ones"
    assert all(size_of(group) <= TASK_BYTES for group in shared)
    assert all(size_of(left) + size_of(right[:1]) > TASK_BYTES for left, right in itertools.pairwise(shared)), "no task too many"


def small(ranges: Sequence[FetchRange], known: Mapping[TopicIdPartition, int]) -> list[FetchRange]:
    return [one for one in ranges if known.get(one.tp, TASK_BYTES) < TASK_BYTES]
