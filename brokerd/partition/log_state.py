"""Values stored for one partition besides its log (snapshots, entries in the checkpoint and the clean-shutdown mark), and its state
after recovery. No I/O: derived_files.py, datadir/checkpoint.py and datadir/node_state.py write the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from brokerd.partition.leader_epochs import EpochEntry, LeaderEpochs
from brokerd.partition.producer_state import AbortedTransaction, ProducerStateEntry, ProducerStates
from brokerd.record.batch import NO_EPOCH_LIMIT
from brokerd.storage.damage import DamagedRange
from brokerd.storage.segment_bounds import SegmentBounds


class Snapshot(NamedTuple):
    """Producer state, leader epochs and aborted transactions after all batches below `offset`. Holds a copy of the state, which the
    flush encodes later: copying takes a tenth of the time of encoding.
    """

    seed: int  # CRC seed of the partition
    offset: int
    epochs: tuple[EpochEntry, ...]
    producers: Mapping[int, ProducerStateEntry]  # least recent writer first
    forgotten: Mapping[int, int] = {}  # see producer_state.py
    aborted: tuple[AbortedTransaction, ...] = ()  # in the order of their markers


def snapshot_of(seed: int, offset: int, epochs: tuple[EpochEntry, ...], producers: ProducerStates) -> Snapshot:
    """A snapshot at `offset`, with a copy of the producers' state."""
    return Snapshot(seed, offset, epochs, dict(producers.entries), dict(producers.forgotten), producers.aborted.entries)


class CheckpointEntry(NamedTuple):
    """A log's entry in the checkpoint, the input of recovery: offsets, none above `durable_end`, and the leader epoch."""

    recovery_point: int  # recovery checks payloads from here on
    durable_end: int  # a bad batch below is damage, a bad batch above is a torn tail
    log_start_offset: int  # recovery and retention remove segments below
    leader_epoch: int  # the highest one, never given to another leader; to recovery, a batch with a higher epoch is damage
    high_watermark: int = 0  # initial value for one of several replicas, which cannot tell alone what is committed
    announced_stable_offset: int = 0  # last stable offset announced by a leader; initial value for one of several replicas

    def known_durable(self, *ends: int) -> CheckpointEntry:
        """The entry with `durable_end` raised to other offsets known to be durable, since a checkpoint may lag behind."""
        return self._replace(durable_end=max(self.durable_end, *ends))


FIRST_EPOCH = 1
# A partition is created in the first epoch, so that epoch becomes durable together with the partition.
NEW_PARTITION = CheckpointEntry(0, 0, 0, FIRST_EPOCH)
GIVEN_UP = -1  # in place of a recovery point: the files are being removed, and the next start completes the removal
# For a partition without an entry: recovery accepts batches of every epoch. The entry may have been lost, and with NEW_PARTITION
# recovery would then take acknowledged batches for damage.
LOST_ENTRY = NEW_PARTITION._replace(leader_epoch=NO_EPOCH_LIMIT)


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

    segments: Sequence[SegmentBounds]  # in a Partition, Segments
    producers: ProducerStates
    epochs: LeaderEpochs
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    leader_epoch: int = 0  # the highest that this partition has had
    damaged: list[DamagedRange] = field(default_factory=list)
    read_only_reason: str = ""
    is_outdated: bool = False  # the checkpoint and the node epoch are older than the log, so the log counts as damaged
    snapshot_offsets: list[int] = field(default_factory=list)
    high_watermark: int | None = None  # None = no other replicas: the log end offset
    announced_stable_offset: int = 0
    unwritten_snapshot: Snapshot | None = None  # the snapshot at the log end, if it could not be written
    cut_bytes: int = 0  # of a torn tail
