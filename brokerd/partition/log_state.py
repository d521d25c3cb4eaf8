"""The parts that a partition's log is built from: its state after recovery, and the resources that all logs of a data directory
share. No behaviour."""

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
    """A log as the checkpoint sees it."""

    tp: TopicIdPartition

    def checkpoint_entry(self) -> CheckpointEntry:
        """This log's entry for the next checkpoint."""


@dataclass(slots=True)
class LogResources:
    """The resources that all logs of a data directory share."""

    files: Files
    spares: SpareFiles
    open_files: OpenFiles
    max_producer_ids: int
    # Writes the checkpoint durably, with the log starts as they are now. Raises OSError.
    write_checkpoint: Callable[[], None]
    # Logs whose entry in the checkpoint has changed.
    moved: set[Checkpointed] = field(default_factory=set)


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
