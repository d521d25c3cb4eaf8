"""Damaged ranges: offsets of a log that cannot be served, because durable bytes are corrupt, missing or unreadable.

Damage stops appends and removals, unless it lies below the log start or an operator has accepted the range (holes.py). No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from brokerd.errors import Fate, LogDamagedError

PAYLOAD_CHANGED = "payload_crc does not match"


class DamagedRange(NamedTuple):
    """Damaged offsets in [`first_offset`, `until_offset`). The log continues at byte `resume_position` of the segment with base
    offset `resume_segment` (-1: not known to continue)."""

    first_offset: int
    until_offset: int
    reason: str
    resume_segment: int = -1
    resume_position: int = 0
    is_accepted: bool = False
    is_taken_out: bool = False  # accepted, and readers skip it
    place: str = ""  # file and byte position where it begins, for the broker's log

    def is_live(self, log_start_offset: int) -> bool:
        """True if some of the range lies at or above the log start."""
        return self.until_offset > log_start_offset

    def stops(self, log_start_offset: int) -> bool:
        """True if this range stops appends and removals."""
        return self.is_live(log_start_offset) and not self.is_accepted


def first_that_stops(ranges: Iterable[DamagedRange], log_start_offset: int) -> DamagedRange | None:
    """The first range that stops the log, clipped at the log start; None if there is none."""
    for damaged in ranges:
        if damaged.stops(log_start_offset):
            return damaged._replace(first_offset=max(damaged.first_offset, log_start_offset))
    return None


def damage_error(name: str, damaged: DamagedRange, *, fate: Fate = Fate.UNSPECIFIED) -> LogDamagedError:
    """The error for a read of the range, or for an append to the log."""
    advice = f"accepted as lost, the log continues at offset {damaged.until_offset}"
    if not damaged.is_accepted:
        advice = "run `brokerd doctor` for details"
    return LogDamagedError(
        f"{name}: offsets {damaged.first_offset} to {damaged.until_offset - 1} were durable and are damaged ({damaged.reason}); "
        f"{advice}",
        fate=fate,
        resume_offset=damaged.until_offset,
    )


def damage_at(ranges: tuple[DamagedRange, ...], offset: int) -> DamagedRange | None:
    """The range that contains `offset`, or None."""
    return next((damaged for damaged in ranges if damaged.first_offset <= offset < damaged.until_offset), None)


def past_taken_out(ranges: Iterable[DamagedRange], offset: int) -> int:
    """The first offset from `offset` on that is not taken out."""
    for damaged in ranges:
        if damaged.is_taken_out and damaged.first_offset <= offset < damaged.until_offset:
            offset = damaged.until_offset
    return offset
