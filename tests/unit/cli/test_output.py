"""Goal: tables align, sizes and durations are readable."""

from __future__ import annotations

import pytest

from brokerd.cli.output import duration_text, not_counted, size_text, sum_text, table
from brokerd.errors import counted


def test_table_aligns_numbers_right_and_text_left() -> None:
    assert table(("NAME", "N"), [("a", 1), ("bcdef", 1000)], indent=" ").splitlines() == [
        " NAME      N",
        " a         1",
        " bcdef  1000",
    ]


def test_table_without_rows_is_its_headings() -> None:
    assert table(("A", "B"), []) == "A  B"


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 30, "1.0 GiB"), (1 << 60, "1048576.0 TiB")]
)
def test_size(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (61_999, "1 min 1 s"),
        (3_600_000, "1 h"),
        (3_605_000, "1 h"),
        (90_061_000, "1 d 1 h"),
        (2**31 - 1, "24 d 20 h"),
    ],
)
def test_duration(duration_ms: int, text: str) -> None:
    assert duration_text(duration_ms) == text


def test_a_sum_says_what_it_does_not_count() -> None:
    assert [sum_text(values) for values in ([1, 2], [1, -1], [-1, -1])] == [3, "1+", "-"]
    assert sum_text([1024, -1], size_text) == "1.0 KiB+"
    assert [not_counted(values) for values in ([0, 2], [1, -1])] == ["", ", not counting 1 unknown partition"]


def test_counted() -> None:
    assert [counted(count, "record") for count in (0, 1, 2)] == ["0 records", "1 record", "2 records"]
