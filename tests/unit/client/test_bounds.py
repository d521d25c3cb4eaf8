"""Goal: the bounds of a command are parsed as documented, and resolved to an offset of each partition."""

from __future__ import annotations

import pytest

from brokerd.client.blocking import BlockingClient
from brokerd.client.bounds import Bound, LogBounds, log_bounds, offset_of, parse_bound, parse_timestamp, ranges_of
from brokerd.client.fetching import NO_END
from brokerd.client.offsets import READ_COMMITTED, GivenOffset, LastRecords, OffsetSpec
from brokerd.config.settings import INT64_MAX
from brokerd.errors import ConfigError
from tests.support.consumers import fill
from tests.support.fake_broker import FakeBroker, Partition

NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", OffsetSpec.EARLIEST),
        ("latest", OffsetSpec.LATEST),
        ("0", GivenOffset(0)),
        ("42", GivenOffset(42)),
        ("0" * 30 + "42", GivenOffset(42)),
        (str(INT64_MAX), GivenOffset(INT64_MAX)),
        ("-10", LastRecords(10)),
        ("-10m", NOW_MS - 10 * MINUTE_MS),
        ("-1500ms", NOW_MS - 1_500),
        ("-99999d", 0),
        ("@1700000000000", 1_700_000_000_000),
        ("@1969-12-31T00:00:00Z", 0),
        ("@2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("@2023-11-14T23:13:20.250+01:00", 1_700_000_000_250),
    ],
)
def test_a_bound_is_read(text: str, expected: Bound) -> None:
    assert parse_bound("--offset", text, now_ms=NOW_MS) == expected


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "begin",
            "beginning",
            "end",
            "1.5",
            "--3",
            "-",
            "@",
            "@yesterday",
            "+5",
            "1e3",
            "²",
            "-5w",
            "-10 m m",
            "2026-13-01",
            "@-",
            "-m",
        ),
        *(
            "9" * 19,
            "-" + "9" * 19,
            "@" + "9" * 19,
            "9" * 5_000,
            "@" + "9" * 5_000,
            "-" + "9" * 5_000 + "d",
        ),
    ],
)
def test_a_bound_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--end "):
        parse_bound("--end", text, now_ms=NOW_MS)


def test_a_time_alone_has_no_offsets() -> None:
    assert parse_timestamp("--to-timestamp", "1005", now_ms=NOW_MS) == 1_005
    assert parse_timestamp("--to-timestamp", "-1s", now_ms=NOW_MS) == NOW_MS - 1_000
    with pytest.raises(ConfigError, match=r"--to-timestamp takes ms since 1970, a time ago such as -10m, or ISO 8601"):
        parse_timestamp("--to-timestamp", "-1000", now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("bound", "log", "expected"),
    [
        (OffsetSpec.EARLIEST, LogBounds(10, 50), 10),
        (OffsetSpec.LATEST, LogBounds(10, 50), 50),
        (LastRecords(5), LogBounds(10, 50, found=44), 44),
        (GivenOffset(99), LogBounds(10, 50), 99),
        (1_000, LogBounds(10, 50, found=33), 33),
        (1_000, LogBounds(10, 50), 50),
    ],
)
def test_a_bound_is_an_offset_of_each_partition(bound: Bound, log: LogBounds, expected: int) -> None:
    assert offset_of(bound, log) == expected


@pytest.fixture
def growing(broker: FakeBroker) -> Partition:
    """A partition with ten records, and ten more after each call of ListOffsets."""
    (partition,) = broker.create("t")
    fill(partition, [10])
    broker.after["ListOffsets"] = lambda: fill(partition, [10])
    return partition


@pytest.mark.parametrize(
    ("start", "end", "offsets"),
    [
        (LastRecords(3), OffsetSpec.LATEST, (7, 10)),
        (LastRecords(3), None, (7, NO_END)),
        (LastRecords(0), OffsetSpec.LATEST, (10, 10)),
        (LastRecords(5), LastRecords(2), (5, 8)),
        (OffsetSpec.EARLIEST, LastRecords(2), (0, 8)),
        (OffsetSpec.LATEST, LastRecords(2), (10, 8)),
        (1_000, OffsetSpec.LATEST, (10, 10)),
        (1_000, 2_000, (10, 10)),
    ],
)
def test_all_bounds_are_of_one_end_of_a_log_that_is_written(
    client: BlockingClient, growing: Partition, start: Bound, end: Bound | None, offsets: tuple[int, int]
) -> None:
    growing.first_in_time = 15  # appended after the end was looked up
    (one,) = ranges_of(client, {growing.tp: "t"}, start, end, READ_COMMITTED)
    assert (one.start_offset, one.until_offset) == offsets


def test_the_newest_records_of_a_log_that_was_empty_are_none(client: BlockingClient, growing: Partition) -> None:
    growing.end_offset = 0
    assert log_bounds(client, {growing.tp: "t"}, LastRecords(3), READ_COMMITTED) == {growing.tp: LogBounds(0, 0, found=0)}
