"""The values of groups. None of them changes; times are wall clock, ms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from brokerd.ids import TopicIdPartition

METADATA_MAX_BYTES = 4_096
NO_OFFSET = -1  # of a partition that the group has none of
_METADATA_BYTES_PER_SLOT = 256


class CommittedOffset(NamedTuple):
    """How far a group has read one partition."""

    offset: int  # the next one to read
    leader_epoch: int  # of the last record read; -1 = unknown
    metadata: str  # free text
    timestamp: int  # when it was committed
    leader_epoch_id: int = 0  # of the epoch of the last record read; 0 = unknown
    clock_ahead: int = 0  # how far that is ahead of the log time, by which groups expire, ms

    @property
    def slots(self) -> int:
        """Slots of max.group.offsets: one, and one more for each 256 bytes of metadata."""
        return 1 + len(self.metadata.encode()) // _METADATA_BYTES_PER_SLOT if self.metadata else 1


class OffsetsCommitted(NamedTuple):
    """These offsets hold from now on."""

    offsets: Mapping[TopicIdPartition, CommittedOffset]


class OffsetsDeleted(NamedTuple):
    """These partitions have no offset any more. A group without any is gone."""

    partitions: Sequence[TopicIdPartition]


class GroupDeleted(NamedTuple):
    """Nothing is known of the group any more."""


Event = OffsetsCommitted | OffsetsDeleted | GroupDeleted


class LogEntry(NamedTuple):
    """A record of the log of group offsets."""

    group_id: str
    principal: str  # that the group belongs to
    event: Event
    decision: int = 0  # the number of the transaction whose offsets these are; 0 = of none
