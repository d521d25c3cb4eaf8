"""What a partition's log is made of: what recovery hands to it, and what all logs of a data directory share. No behaviour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from brokerd.ids import TopicIdPartition
from brokerd.partition.entries import CheckpointEntry
from brokerd.partition.leader_epochs import LeaderEpochs
from brokerd.partition.producer_state import ProducerStates
from brokerd.partition.snapshots import Snapshot
from brokerd.storage.damage import DamagedRange
from brokerd.storage.files import Files
from brokerd.storage.open_files import OpenFiles
from brokerd.storage.segment import Segment
from brokerd.storage.spare_files import SpareFiles


class Checkpointed(Protocol):
    """A log, as far as the checkpoint knows it."""

    tp: TopicIdPartition

    def checkpoint_entry(self) -> CheckpointEntry:
        """What the checkpoint says of this log from now on."""


@dataclass(slots=True)
class LogResources:
    """What all logs of a data directory share."""

    files: Files
    spares: SpareFiles
    open_files: OpenFiles
    max_producer_ids: int
    # Writes the checkpoint durably, with the log starts as they are now. Raises OSError.
    write_checkpoint: Callable[[], None]
    # Logs whose entry in the checkpoint is no longer what it was.
    moved: set[Checkpointed] = field(default_factory=set)


@dataclass(slots=True)
class LogState:
    """What recovery found, or what a new partition begins with."""

    segments: list[Segment]
    producers: ProducerStates
    epochs: LeaderEpochs
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    damaged: list[DamagedRange] = field(default_factory=list)
    read_only_reason: str = ""
    snapshot_offsets: list[int] = field(default_factory=list)
    # How far other replicas are known to have it; None = this one decides alone, and all of it counts.
    high_watermark: int | None = None
    unwritten_snapshot: Snapshot | None = None  # the one at the end, where it could not be written
