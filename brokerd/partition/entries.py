"""What the files of a data directory say of one partition: the checkpoint, and what a clean shutdown left. Values only; how they
are written is the data directory's business (datadir/checkpoint.py, datadir/node_state.py).
"""

from __future__ import annotations

from typing import NamedTuple


class CheckpointEntry(NamedTuple):
    """Offsets of one partition, none above durable_end; recovery_point says from where on a restart checks payloads."""

    recovery_point: int
    durable_end: int
    log_start_offset: int

    def known_durable(self, *ends: int) -> CheckpointEntry:
        """The entry where something else says too that all below one of these offsets was durable: a checkpoint may be late."""
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
