"""The state of one partition after recovery, and its entries in the checkpoint and the clean-shutdown mark. Value types only;
datadir/checkpoint.py and datadir/node_state.py write the files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from brokerd.partition.leader_epochs import LeaderEpochs
from brokerd.partition.producer_state import ProducerStates
from brokerd.partition.snapshots import Snapshot
from brokerd.storage.damage import DamagedRange
from brokerd.storage.segment import Segment


class CheckpointEntry(NamedTuple):
    """Offsets, none above `durable_end`. A restart checks payloads from `recovery_point` on."""

    recovery_point: int
    durable_end: int
    log_start_offset: int

    def known_durable(self, *ends: int) -> CheckpointEntry:
        """The entry, with `durable_end` raised to other offsets known to be durable: a checkpoint may lag behind."""
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


@dataclass(slots=True)
class LogState:
    """The state of a log after recovery, or of a new log."""

    segments: list[Segment]
    producers: ProducerStates
    epochs: LeaderEpochs
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    damaged: list[DamagedRange] = field(default_factory=list)
    read_only_reason: str = ""
    snapshot_offsets: list[int] = field(default_factory=list)
    high_watermark: int | None = None  # None = no other replicas: the log end offset
    unwritten_snapshot: Snapshot | None = None  # the snapshot at the log end, if it could not be written
