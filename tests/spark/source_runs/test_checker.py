"""The checker finds each fabricated violation and nothing in correct histories; each planted bug still has its place. No Spark."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.spark.source_runs.checker import Batches, Row, ViolationsError, Written, violations, violations_so_far
from tests.spark.source_runs.planted import EXPECTED
from tests.spark.source_runs.planted_source import BUGS
from tests.spark.source_runs.ways import BY_DRIVER, BY_SINK, BY_TASKS, COPIED_OTHERWISE, READ_OTHERWISE, WITH_PLAN, ways_missed

# Offsets 2 to 4 of partition 0 are two aborted rows and their marker.
WRITTEN = Written(
    committed={Row(0, 0, "a"), Row(0, 1, "b"), Row(0, 5, "c"), Row(0, 6, "d"), Row(1, 0, "e"), Row(1, 1, "f")}, aborted={"x", "y"}
)
A, B, C, D, E, F = sorted(WRITTEN.committed)
RIGHT: dict[int, list[Row]] = {0: [A, E], 1: [], 2: [B, C], 3: [F, D]}


def wrong_kinds(batches: Batches, low: int = 0) -> list[str]:
    return [one.kind for one in violations(batches, WRITTEN, lambda partition, offset: offset >= low)]


def test_a_right_history_has_gaps_empty_batches_and_partitions_side_by_side() -> None:
    assert wrong_kinds(RIGHT) == []
    assert wrong_kinds({0: [C, D]}, low=5) == []


@pytest.mark.parametrize(
    ("batches", "kinds"),
    [
        (RIGHT | {0: [E]}, ["missing"]),
        (RIGHT | {3: [F]}, ["missing"]),
        (RIGHT | {3: [B, C, F, D]}, ["doubled", "disorder"]),
        (RIGHT | {2: [B, C, C]}, ["doubled"]),
        (RIGHT | {0: [A, E, B], 2: [C]}, []),
        (RIGHT | {2: [C, B]}, ["disorder"]),
        (RIGHT | {1: [C], 2: [B]}, ["disorder"]),
        (RIGHT | {2: [B, Row(0, 2, "x"), C]}, ["aborted"]),
        (RIGHT | {2: [B, Row(0, 3, "z"), C]}, ["unexpected"]),
        (RIGHT | {2: [B, C._replace(value="d")]}, ["missing", "unexpected"]),
        (RIGHT | {2: [B, C._replace(offset=4)]}, ["missing", "unexpected"]),
        (RIGHT | {2: [B, C._replace(partition=1)]}, ["disorder", "missing", "unexpected"]),
        ({0: [A, E], 2: [B, C], 3: [F, D]}, ["lost-batch"]),
        ({}, ["missing"]),
    ],
)
def test_a_wrong_history_is_named(batches: Batches, kinds: list[str]) -> None:
    assert wrong_kinds(batches) == kinds


def test_a_row_that_the_filter_leaves_out_is_not_expected() -> None:
    assert wrong_kinds({0: [B, C, D]}, low=5) == ["unexpected"]


def test_nothing_is_missing_while_rows_are_still_written() -> None:
    assert violations_so_far({0: [A]}, WRITTEN.aborted) == []
    assert [one.kind for one in violations_so_far({1: [Row(0, 2, "x")]}, WRITTEN.aborted, [0])] == [
        "aborted",
        "lost-batch",
        "other-rows",
    ]


def test_any_row_left_out_or_doubled_anywhere_is_found() -> None:
    rng = random.Random(1)
    for _ in range(1_000):
        number = rng.choice([batch for batch, rows in RIGHT.items() if rows])
        at = rng.randrange(len(RIGHT[number]))
        rows = list(RIGHT[number])
        assert "missing" in wrong_kinds({**RIGHT, number: [*rows[:at], *rows[at + 1 :]]})
        later = rng.choice([batch for batch in RIGHT if batch >= number])
        assert "doubled" in wrong_kinds({**RIGHT, later: [*RIGHT[later], rows[at]]})


def test_violations_are_told_in_short() -> None:
    found = violations({0: [A, A, E]}, WRITTEN, lambda _partition, offset: offset < 1)
    error = ViolationsError("t", found)
    assert str(error) == "t: 1 doubled: (0, 0)"
    assert error.kinds == {"doubled"}


def test_few_batches_need_not_go_every_way() -> None:
    assert ways_missed(Counter({BY_TASKS: 40, WITH_PLAN: 0, READ_OTHERWISE: 0, BY_SINK: 20})) == []
    counts = Counter({BY_TASKS: 120, WITH_PLAN: 0, READ_OTHERWISE: 1, BY_SINK: 20, BY_DRIVER: 40})
    assert ways_missed(counts) == [WITH_PLAN, COPIED_OTHERWISE]


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_still_has_its_place(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch.setattr)
    assert EXPECTED[bug]
