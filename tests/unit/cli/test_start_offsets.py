"""Goal: --offset is read as it is documented."""

from __future__ import annotations

import pytest

from brokerd.cli.start_offsets import StartOffset, parse_offset
from brokerd.client.consumer.offsets import OffsetSpec
from brokerd.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", StartOffset(OffsetSpec.EARLIEST)),
        ("earliest", StartOffset(OffsetSpec.EARLIEST)),
        ("end", StartOffset(OffsetSpec.LATEST)),
        ("latest", StartOffset(OffsetSpec.LATEST)),
        ("0", StartOffset(OffsetSpec.EARLIEST, exact=0)),
        ("42", StartOffset(OffsetSpec.EARLIEST, exact=42)),
        ("-10", StartOffset(OffsetSpec.LATEST, shift=-10)),
        ("@1700000000000", StartOffset(1_700_000_000_000)),
        ("@1969-12-31T00:00:00Z", StartOffset(0)),
        ("@2023-11-14T22:13:20Z", StartOffset(1_700_000_000_000)),
        ("@2023-11-14T23:13:20.250+01:00", StartOffset(1_700_000_000_250)),
    ],
)
def test_offset(text: str, expected: StartOffset) -> None:
    assert parse_offset(text) == expected


@pytest.mark.parametrize(
    "text", ["", "begin", "1.5", "--3", "-", "@", "@yesterday", "+5", "1e3", "9" * 19, "-" + "9" * 19, "@" + "9" * 19]
)
def test_offset_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--offset"):
        parse_offset(text)
