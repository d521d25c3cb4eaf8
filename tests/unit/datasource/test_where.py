"""Option where: what conditions mean, and that unsupported syntax is refused with its position."""

from __future__ import annotations

import pytest

from brokerd.datasource.where import ALL_ROWS, ANY, INT64_MIN, NOTHING, RowFilter, Values, parse_where
from brokerd.errors import ConfigError

MAX = 2**63 - 1
NEW_YEAR_US = 1_767_225_600_000_000  # 2026-01-01 00:00:00Z


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("partition = 1", RowFilter(partitions=Values(1, 1))),
        ("PARTITION in (3, 1)", RowFilter(partitions=Values(1, 3, frozenset([1, 3])))),
        ("`offset` >= 5", RowFilter(offsets=Values(5, MAX))),
        ("offset>5 and offset<=+9", RowFilter(offsets=Values(6, 9))),
        ("offset < 5", RowFilter(offsets=Values(INT64_MIN, 4))),
        ("offset > -1", RowFilter(offsets=Values(0, MAX))),
        ("offset < 9223372036854775807", RowFilter(offsets=Values(INT64_MIN, MAX - 1))),
        ("offset BETWEEN -9223372036854775808 AND 9223372036854775807", ALL_ROWS),
        ("offset > 9223372036854775807", RowFilter(offsets=NOTHING)),
        ("partition < -9223372036854775808", RowFilter(partitions=NOTHING)),
        ("offset BETWEEN 5 AND 7 AND partition = 0", RowFilter(partitions=Values(0, 0), offsets=Values(5, 7))),
        ("offset IN (1, 5, 9) AND offset < 9", RowFilter(offsets=Values(1, 5, frozenset([1, 5])))),
        ("offset = 1 AND offset = 2", RowFilter(offsets=Values(2, 1))),
        ("offset IN (1) AND offset IN (2)", RowFilter(offsets=Values(1, 0, frozenset()))),
        ("topic = 'a''b'", RowFilter(topics=frozenset(["a'b"]))),
        ("topic IN ('a', 'b') AND topic = 'b'", RowFilter(topics=frozenset(["b"]))),
        ("timestamp >= '2026-01-01 00:00:00Z'", RowFilter(timestamps=Values(NEW_YEAR_US, MAX))),
        ("timestamp < TIMESTAMP '2026-01-01T09:00:00.000001+09:00'", RowFilter(timestamps=Values(INT64_MIN, NEW_YEAR_US))),
        (
            "timestamp BETWEEN timestamp '2026-01-01T00:00Z' AND '2026-01-01T00:00:00.5Z' AND timestamp > '2026-01-01T00:00Z'",
            RowFilter(timestamps=Values(NEW_YEAR_US + 1, NEW_YEAR_US + 500_000)),
        ),
    ],
)
def test_a_condition_means_what_it_says(text: str, wanted: RowFilter) -> None:
    assert parse_where(text) == wanted


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "at its end: expected one of topic, partition, offset, timestamp"),
        ("value = 1", "at 'value = 1': expected one of topic"),
        ("partition = 1 OR partition = 2", "at 'OR partition = 2': expected AND or the end of the condition"),
        ("NOT partition = 1", "at 'NOT partition = 1': expected one of"),
        ("(partition = 1)", r"at '\(partition = 1\)': expected one of"),
        ("partition != 1", "at '!= 1': expected =, <, <=, >, >=, IN or BETWEEN"),
        ("partition <> 1", "at '<> 1': expected =, <"),
        ("partition == 1", "at '== 1': expected =, <"),
        ("partition NOT IN (1)", r"at 'NOT IN \(1\)': expected =, <"),
        ("partition = '1'", "at ''1'': expected a whole number"),
        ("partition = 1.5", "at '.5'"),
        ("partition = 1 2", "at '2': expected AND or the end"),
        ("partition =", "at its end: expected a whole number"),
        ("partition IN ()", r"at '\)': expected a whole number"),
        ("partition IN (1", r"at its end: expected \)"),
        ("partition IN 1", r"at '1': expected \("),
        ("offset BETWEEN 1, 2", "at ', 2': expected AND"),
        ("offset BETWEEN 1 AND", "at its end: expected a whole number"),
        ("offset < -9223372036854775809", "expected a whole number of 64 bits"),
        ("offset > 9223372036854775808", "expected a whole number of 64 bits"),
        ("offset > " + "9" * 5_000, "expected a whole number of 64 bits"),
        ("1 = offset", "at '1 = offset': expected one of"),
        ("topic > 'a'", "at '> 'a'': expected = or IN, which is all that topic takes"),
        ("topic = a", "at 'a': expected a topic's name in single quotes"),
        ("topic = 'a", "at ''a': expected a column"),
        ("timestamp > 5", "at '5': expected a time with its zone in single quotes, such as '2026-01-31 12:00:00Z'"),
        ("timestamp > '2026-01-01 00:00:00'", "the session's time zone is not known here"),
        ("timestamp > 'noon'", "expected a time with its zone"),
        ("timestamp > current_timestamp()", r"at 'current_timestamp\(\)': expected a time"),
        ("offset > 1; DROP", "at '; DROP': expected a column"),
        ("offset > 1 -- all", "at '-- all'"),
        ("x" * 70_000, "has 70000 characters, at most 65536 are allowed"),
    ],
)
def test_all_else_is_refused_with_its_place(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^where .*{sentence}"):
        parse_where(text)


def test_all_rows_is_the_default() -> None:
    assert RowFilter() == ALL_ROWS
    assert Values() == ANY
    assert ALL_ROWS.start_time_ms is None
    assert not ALL_ROWS.needs_rows
