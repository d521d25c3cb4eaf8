"""To which offsets `brokerd groups reset` sets a group."""

from __future__ import annotations

import pytest

from brokerd.cli.groups import Bounds, NewOffset, Target, new_offset, parse_selection
from brokerd.client.offsets import OffsetSpec
from brokerd.errors import ConfigError

BOUNDS = Bounds(10, 50, committed=20)
EARLIEST, LATEST = Target(OffsetSpec.EARLIEST), Target(OffsetSpec.LATEST)


@pytest.mark.parametrize(
    ("target", "bounds", "expected"),
    [
        (EARLIEST, BOUNDS, NewOffset(10, 10)),
        (LATEST, BOUNDS, NewOffset(50, 50)),
        (Target(exact=30), BOUNDS, NewOffset(30, 30)),
        (Target(exact=5), BOUNDS, NewOffset(10, 5)),
        (Target(exact=51), BOUNDS, NewOffset(50, 51)),
        (Target(shift=7), BOUNDS, NewOffset(27, 27)),
        (Target(shift=-7), BOUNDS, NewOffset(13, 13)),
        (Target(shift=-11), BOUNDS, NewOffset(10, 9)),
        (Target(shift=0), BOUNDS, NewOffset(20, 20)),
        (Target(wanted=1_000), BOUNDS._replace(at_time=33), NewOffset(33, 33)),
        (Target(wanted=1_000), BOUNDS, NewOffset(50, 50)),
        (EARLIEST, Bounds(0, 0), NewOffset(0, 0)),
    ],
)
def test_the_nearest_offset_of_the_log_is_set(target: Target, bounds: Bounds, expected: NewOffset) -> None:
    assert new_offset("t-0", target, bounds) == expected


def test_there_is_nothing_to_shift_without_a_committed_offset() -> None:
    with pytest.raises(ConfigError, match=r"^t-0 has no committed offset that --shift-by could move"):
        new_offset("t-0", Target(shift=1), Bounds(0, 5))


def test_topics_and_partitions_are_selected() -> None:
    assert parse_selection("events") == ("events", None)
    assert parse_selection("events:3") == ("events", (3,))
    assert parse_selection("events:1,0,1") == ("events", (1, 0))


@pytest.mark.parametrize("text", [":1", "events:", "events:x", "events:1,,2", "events:-1", "events:" + "9" * 5000])
def test_a_selection_that_is_none_says_how_one_looks(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--topic takes TOPIC or TOPIC:PARTITION"):
        parse_selection(text)
