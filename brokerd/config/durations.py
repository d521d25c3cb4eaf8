"""Parses durations in the notation of Spark options and the command line: 15m, 30s, 500ms."""

from __future__ import annotations

import re

from brokerd.config.settings import INT64_MAX
from brokerd.errors import ConfigError

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_FORM = re.compile(r"([0-9]{1,19})\s*([a-z]*)", re.ASCII)


def duration_ms(text: str) -> int | None:
    """A duration such as 15m in milliseconds, or None if `text` is not a duration. As in Spark, a bare number is milliseconds."""
    found = _FORM.fullmatch(text.strip().lower())
    unit_ms = UNITS_MS.get(found[2] or "ms") if found else None
    if found is None or unit_ms is None or int(found[1]) * unit_ms > INT64_MAX:
        return None
    return int(found[1]) * unit_ms


def parse_duration_ms(option: str, text: str) -> int:
    """Like `duration_ms`, for the value of an option. Raises ConfigError."""
    parsed_ms = duration_ms(text)
    if parsed_ms is None:
        raise ConfigError(
            f"{option} must be a duration such as 15m, 30s or 500ms (units: {', '.join(UNITS_MS)}), not '{text:.200}'"
        )
    return parsed_ms
