"""How `brokerd dump-log` prints what stands in a file, whatever stands there."""

from __future__ import annotations

import pytest

from brokerd.cli.dump_log import _time_text


@pytest.mark.parametrize(
    ("timestamp_ms", "text"),
    [
        (1_700_000_000_123, "2023-11-14 22:13:20.123Z"),
        (-1, "1969-12-31 23:59:59.999Z"),
        (253_402_300_800_000, "253402300800000 ms"),
        (2**63 - 1, "9223372036854775807 ms"),
        (-(2**63), "-9223372036854775808 ms"),
    ],
)
def test_times_beyond_the_calendar_are_numbers(timestamp_ms: int, text: str) -> None:
    assert _time_text(timestamp_ms) == text
