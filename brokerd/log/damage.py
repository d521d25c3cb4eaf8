"""Ranges of a log that can not be served, because what was durable there is no longer whole."""

from __future__ import annotations

from typing import NamedTuple

from brokerd.errors import Fate, LogDamagedError


class DamagedRange(NamedTuple):
    """Offsets from `first_offset` up to, not including, `until_offset`. The log goes on at byte `resume_position` of the
    segment `resume_segment` (its base offset), if it goes on."""

    first_offset: int
    until_offset: int
    reason: str
    resume_segment: int
    resume_position: int


def damage_error(name: str, damaged: DamagedRange, *, fate: Fate = Fate.UNSPECIFIED) -> LogDamagedError:
    """The error for a read in the range, or for an append to its log."""
    return LogDamagedError(
        f"{name}: offsets {damaged.first_offset} to {damaged.until_offset - 1} were durable and are damaged ({damaged.reason}); "
        "`brokerd doctor` tells more",
        fate=fate,
    )


def damage_at(ranges: tuple[DamagedRange, ...], offset: int) -> DamagedRange | None:
    """The range that holds `offset`."""
    return next((damaged for damaged in ranges if damaged.first_offset <= offset < damaged.until_offset), None)
