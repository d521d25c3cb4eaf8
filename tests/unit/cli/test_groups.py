"""`brokerd groups`: the description of a group with unknown lag, and the offsets to which a reset sets a group."""

from __future__ import annotations

import pytest

from brokerd.cli.groups import Shift, _description_lines, parse_selection, reset_of
from brokerd.client.bounds import Bound, LogBounds
from brokerd.client.offsets import GivenOffset, OffsetSpec
from brokerd.errors import ConfigError
from brokerd.wire.v1.offsets_pb2 import DescribeGroupResponse, GroupPartitionDescription


def test_a_lag_that_is_unknown_is_not_counted_as_none() -> None:
    """Lag is unknown while a partition has no leader."""
    described = DescribeGroupResponse()
    for partition, end in enumerate((10, -1, 3)):
        one = GroupPartitionDescription(topic="t", end_offset=end, log_start_offset=min(end, 0), lag_bytes=-1, lag_ms=-1)
        one.committed.partition, one.committed.offset = partition, 2
        described.partitions.append(one)
    told, _, left = list(_description_lines(described, {}))[:3]
    assert told.endswith(": 3 partitions, lag 9 and that of 1 partition whose end is unknown")
    assert left == "  0 B left to read, not counting 3 unknown partitions"


LOG = LogBounds(10, 50)
EARLIEST, LATEST = OffsetSpec.EARLIEST, OffsetSpec.LATEST


@pytest.mark.parametrize(
    ("target", "log", "expected"),
    [
        (EARLIEST, LOG, (10, 10)),
        (LATEST, LOG, (50, 50)),
        (GivenOffset(30), LOG, (30, 30)),
        (GivenOffset(5), LOG, (10, 5)),
        (GivenOffset(51), LOG, (50, 51)),
        (Shift(7), LOG, (27, 27)),
        (Shift(-7), LOG, (13, 13)),
        (Shift(-11), LOG, (10, 9)),
        (Shift(0), LOG, (20, 20)),
        (1_000, LOG._replace(found=33), (33, 33)),
        (1_000, LOG, (50, 50)),
        (EARLIEST, LogBounds(0, 0), (0, 0)),
    ],
)
def test_the_nearest_offset_of_the_log_is_set(target: Bound | Shift, log: LogBounds, expected: tuple[int, int]) -> None:
    reset = reset_of("t", 0, target, log, 20)
    assert (reset.after, reset.asked) == expected


def test_there_is_nothing_to_shift_without_a_committed_offset() -> None:
    with pytest.raises(ConfigError, match=r"^t-0 has no committed offset that --shift-by could move"):
        reset_of("t", 0, Shift(1), LogBounds(0, 5), -1)


def test_topics_and_partitions_are_selected() -> None:
    assert parse_selection("events") == ("events", None)
    assert parse_selection("events:3") == ("events", (3,))
    assert parse_selection("events:1,0,1") == ("events", (1, 0))


@pytest.mark.parametrize("text", [":1", "events:", "events:x", "events:1,,2", "events:-1", "events:" + "9" * 5000])
def test_a_selection_that_is_none_says_how_one_looks(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--topic takes TOPIC or TOPIC:PARTITION"):
        parse_selection(text)
