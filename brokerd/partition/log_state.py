"""What is stored of one partition besides its log: snapshots, its entries in the checkpoint and the clean-shutdown mark; and its
state after recovery. Values only: derived_files.py, datadir/checkpoint.py and datadir/node_state.py write the files.
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
    """Producer state, leader epochs and aborted transactions after all batches below `offset`. Holds a copy of the state; the flush
    encodes it later, since copying takes a tenth of the time of encoding.
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
    """What a start must know of a log: offsets, none above `durable_end`, and the leader epoch."""

    recovery_point: int  # recovery checks payloads from here on
    durable_end: int  # recovery takes a bad batch below for damage, above for a torn tail
    log_start_offset: int  # recovery and retention remove segments below
    leader_epoch: int  # the highest one: recovery takes no batch of a higher one for part of the log, and no leader has it again
    high_watermark: int = 0  # where one of several replicas begins, which cannot tell by itself what is committed
    announced_stable_offset: int = 0  # by the leader, this node or another: where one of several replicas begins

    def known_durable(self, *ends: int) -> CheckpointEntry:
        """The entry, with `durable_end` raised to other offsets known to be durable: a checkpoint may lag behind."""
        return self._replace(durable_end=max(self.durable_end, *ends))


FIRST_EPOCH = 1
# A partition is made in the first epoch, so that epoch is durable with the partition itself.
NEW_PARTITION = CheckpointEntry(0, 0, 0, FIRST_EPOCH)
GIVEN_UP = -1  # as recovery point: the files are being removed, and a start goes on with that
# For a partition without an entry: recovery takes batches of every epoch. It would cut acknowledged ones if it took the partition
# for a new one whose entry is in fact lost.
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
    is_outdated: bool = False  # the checkpoint and the node epoch are older than the log, which is damaged therefore
    snapshot_offsets: list[int] = field(default_factory=list)
    high_watermark: int | None = None  # None = no other replicas: the log end offset
    announced_stable_offset: int = 0
    unwritten_snapshot: Snapshot | None = None  # the snapshot at the log end, if it could not be written
    cut_bytes: int = 0  # of a torn tail
