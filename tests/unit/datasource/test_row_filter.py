"""Row filters compared with brute force: ranges that are cut hold no wanted row, and the rest is filtered exactly."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest

from brokerd.client.columns import FetchedBatch
from brokerd.client.fetching import FetchRange
from brokerd.datasource.where import ANY, INT64_MIN, RowFilter, Values, cut_ranges, wanted_rows
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.record.header import decode_header
from tests.support.records import key_values, new_batch
from tests.support.scale import TEST_SCALE

MAX = 2**63 - 1
MS = 1_000
Log = dict[TopicPartition, list[int | None]]  # timestamp of each offset, microseconds


def id_of(tp: TopicPartition) -> TopicIdPartition:
    return TopicIdPartition(tp.topic.encode().ljust(16), tp.partition)


def random_values(rng: random.Random, size: int, unit: int) -> Values:
    """Random values, from all numbers to none."""
    numbers = [rng.randrange(size + 3) * unit + rng.choice((0, 0, unit // 2, unit - 1)) for _ in range(3)]
    return rng.choice(
        (
            ANY,
            Values(numbers[0], MAX),
            Values(INT64_MIN, numbers[0]),
            Values(min(numbers), max(numbers)),
            Values(numbers[0], numbers[0]).both(ANY),
            Values().both(Values(among=frozenset(numbers))),
            Values(numbers[1], MAX).both(Values(among=frozenset(numbers))),
        )
    )


def random_log(rng: random.Random) -> Log:
    """Timestamps that mostly rise; some are missing."""
    log: Log = {}
    for topic in ("t", "u"):
        for number in range(rng.randrange(1, 4)):
            times = [max(0, (at + rng.choice((0, 0, -9, 9))) * MS + rng.randrange(MS)) for at in range(rng.randrange(40))]
            log[TopicPartition(topic, number)] = [None if rng.random() < 0.05 else one for one in times]
    return log


def first_at(times: list[int | None], start_time_ms: int) -> int | None:
    """The broker's answer: the first offset with this timestamp or a later one, in whole milliseconds."""
    return next((at for at, one in enumerate(times) if one is not None and one >= start_time_ms * MS), None)


def batch_of(tp: TopicPartition, first: int, times: list[int | None]) -> FetchedBatch:
    """A batch as a fetch returns it."""
    rows = key_values([b"%d" % (first + number) for number in range(len(times))])
    rows = rows.set_column(3, rows.schema.field(3), pa.array(times, rows.schema.field(3).type))
    header = decode_header(new_batch().slice(0, 96).to_pybytes())
    offsets = pa.array(range(first, first + len(times)), pa.int64())
    return FetchedBatch(id_of(tp), header, rows, offsets, 0)


@pytest.mark.parametrize("case", range(10))
def test_what_is_read_is_what_is_wanted(case: int) -> None:
    rng = random.Random(case)
    for _ in range(100 * TEST_SCALE):
        log = random_log(rng)
        wanted = RowFilter(
            rng.choice((None, frozenset(["t"]), frozenset(["t", "u"]), frozenset())),
            random_values(rng, 3, 1),
            random_values(rng, 40, 1),
            random_values(rng, 40, MS),
        )
        ranges = []
        for tp, times in log.items():
            begin = rng.randrange(len(times) + 1)
            ranges.append(FetchRange(id_of(tp), begin, rng.randint(begin, len(times)), tp.topic))
        starts = {}
        if wanted.start_time_ms is not None:
            known = [tp for tp in log if rng.random() < 0.8]
            starts = {id_of(tp): first_at(log[tp], wanted.start_time_ms) for tp in known}
        read = []
        for one in cut_ranges(ranges, wanted, starts):
            tp = one.name
            for first in range(one.start_offset, one.until_offset, 7):
                kept = wanted_rows(batch_of(tp, first, log[tp][first : min(first + 7, one.until_offset)]), wanted)
                read += [(tp, offset) for offset in kept.offsets.to_pylist()] if kept is not None else []
                assert kept is None or kept.arrow_batch.column(1).to_pylist() == [b"%d" % one for one in kept.offsets.to_pylist()]
        assert read == [
            (one.name, offset)
            for one in ranges
            for offset in range(one.start_offset, one.until_offset)
            if is_wanted(wanted, one, offset, log[one.name][offset])
        ], wanted


def is_wanted(wanted: RowFilter, one: FetchRange, offset: int, time: int | None) -> bool:
    """Brute force, by the definition of each comparison."""
    return (
        (wanted.topics is None or one.topic in wanted.topics)
        and holds(wanted.partitions, one.tp.partition)
        and holds(wanted.offsets, offset)
        and (wanted.timestamps == ANY or (time is not None and holds(wanted.timestamps, time)))
    )


def holds(values: Values, number: int) -> bool:
    return values.low <= number <= values.high and (values.among is None or number in values.among)


def test_ranges_are_cut_as_far_as_can_be_said() -> None:
    one = FetchRange(id_of(TopicPartition("t", 0)), 10, 90, "t")
    assert cut_ranges([one], RowFilter(offsets=Values(20, 29)), {}) == [replace_range(one, 20, 30)]
    assert cut_ranges([one], RowFilter(offsets=Values(90, 99)), {}) == []
    assert cut_ranges([one], RowFilter(partitions=Values(1, 1)), {}) == []
    assert cut_ranges([one], RowFilter(topics=frozenset(["u"])), {}) == []
    late = RowFilter(timestamps=Values(5, 9))
    assert cut_ranges([one], late, {one.tp: 70}) == [replace_range(one, 70, 90)]
    assert cut_ranges([one], late, {one.tp: 3}) == [one]
    assert cut_ranges([one], late, {one.tp: None}) == []
    assert cut_ranges([one], late, {}) == [one], "nothing is known"


def replace_range(one: FetchRange, start: int, until: int) -> FetchRange:
    return one._replace(start_offset=start, until_offset=until)


@pytest.mark.parametrize(("low", "start_ms"), [(1, 0), (1_000, 1), (1_999, 1), (0, None), (-5, None), (INT64_MIN, None)])
def test_the_time_that_is_looked_up_is_not_later_than_the_one_wanted(low: int, start_ms: int | None) -> None:
    assert RowFilter(timestamps=Values(low, MAX)).start_time_ms == start_ms


def test_a_batch_that_is_wanted_whole_is_not_copied() -> None:
    fetched = batch_of(TopicPartition("t", 0), 5, [1, 2, 3])
    assert wanted_rows(fetched, RowFilter(offsets=Values(6, 7))) is fetched, "the range is cut, and not its rows"
    assert wanted_rows(fetched, RowFilter(timestamps=Values(1, 3))) is fetched
    assert wanted_rows(fetched, RowFilter(timestamps=Values(4, 9))) is None
    assert wanted_rows(replace(fetched), RowFilter(timestamps=Values(2, 9))) is not fetched


def test_a_record_without_a_timestamp_has_an_offset_and_matches_no_time() -> None:
    fetched = batch_of(TopicPartition("t", 0), 5, [1, None, 3])
    by_offset = Values().both(Values(among=frozenset([6, 7])))
    for wanted, offsets in ((RowFilter(offsets=by_offset), [6, 7]), (RowFilter(offsets=by_offset, timestamps=Values(0, MAX)), [7])):
        kept = wanted_rows(fetched, wanted)
        assert kept is not None
        assert kept.offsets.to_pylist() == offsets
