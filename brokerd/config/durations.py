"""Durations as Spark, and the command line, write them: 15m, 30s, 500ms. Nothing else."""

from __future__ import annotations

import re

from brokerd.config.settings import INT64_MAX
from brokerd.errors import ConfigError

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_FORM = re.compile(r"([0-9]{1,19})\s*([a-z]*)", re.ASCII)


def duration_ms(text: str) -> int | None:
    """Milliseconds of a duration such as 15m; a bare number is milliseconds, as in Spark. None if it is not one."""
    found = _FORM.fullmatch(text.strip().lower())
    unit_ms = UNITS_MS.get(found[2] or "ms") if found else None
    if found is None or unit_ms is None or int(found[1]) * unit_ms > INT64_MAX:
        return None
    return int(found[1]) * unit_ms


def parse_duration_ms(option: str, text: str) -> int:
    """The same for the value of an option. Raises ConfigError."""
    parsed_ms = duration_ms(text)
    if parsed_ms is None:
        raise ConfigError(
            f"{option} must be a duration such as 15m, 30s or 500ms (units: {', '.join(UNITS_MS)}), not '{text:.200}'"
        )
    return parsed_ms
