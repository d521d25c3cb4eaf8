"""Entries about one partition in the files of its data directory: the checkpoint and the clean-shutdown mark. Values only; the
files are written in datadir/checkpoint.py and datadir/node_state.py.
"""

from __future__ import annotations

from typing import NamedTuple


class CheckpointEntry(NamedTuple):
    """Offsets of one partition, none above durable_end. A restart checks payloads from `recovery_point` on."""

    recovery_point: int
    durable_end: int
    log_start_offset: int

    def known_durable(self, *ends: int) -> CheckpointEntry:
        """The entry, with durable_end raised to other offsets that are known to have been durable: a checkpoint may be behind."""
        return self._replace(durable_end=max(self.durable_end, *ends))


NEW_PARTITION = CheckpointEntry(0, 0, 0)


class CleanSegment(NamedTuple):
    """A segment as a clean shutdown left it."""

    base_offset: int
    size_bytes: int


class CleanLog(NamedTuple):
    """A partition as a clean shutdown left it."""

    log_end_offset: int
    segments: tuple[CleanSegment, ...]
