"""The state of one partition as recovery finds it, and its entries in the checkpoint and the clean-shutdown mark. Values only; the
files are written in datadir/checkpoint.py and datadir/node_state.py.
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


@dataclass(slots=True)
class LogState:
    """The state of a log as recovery found it, or of a new one."""

    segments: list[Segment]
    producers: ProducerStates
    epochs: LeaderEpochs
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    damaged: list[DamagedRange] = field(default_factory=list)
    read_only_reason: str = ""
    snapshot_offsets: list[int] = field(default_factory=list)
    # The end of what other replicas are known to have; None = there are no others, and all of the log counts.
    high_watermark: int | None = None
    unwritten_snapshot: Snapshot | None = None  # the one at the log end, if it could not be written
