"""The partitions, as the coordinator reaches them: in this process today, through other nodes some day."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from brokerd.ids import TopicIdPartition
from brokerd.wire.v1 import control_pb2


class OpenData(NamedTuple):
    """A member's data in one partition that no marker has decided."""

    records: int  # modulo 2^31
    first_offset: int
    end_offset: int
    is_durable: bool  # all of it


class Held(NamedTuple):
    """Open data of some members, by partition and producer id; a member's may be summed up under one partition."""

    data: Mapping[TopicIdPartition, Mapping[int, OpenData]]
    missing: Collection[TopicIdPartition] = ()  # asked about, but their topics are deleted


class Written(NamedTuple):
    """A durable marker that is held until it is released."""

    partition: TopicIdPartition
    offset: int


class PartitionLeaders(Protocol):
    """The leaders of all partitions. A partition of a deleted topic has nothing, and a marker for it is done."""

    def held(self, producer_ids: Collection[int], partitions: Collection[TopicIdPartition] = ()) -> Held:
        """The open data of these members in all partitions, and which of `partitions` are deleted.

        Answered at once: no member writes between this look and what is decided on it. Raises InvalidRequestError if a topic
        never had such a partition.
        """
        ...

    def write_markers(
        self, records: Mapping[TopicIdPartition, control_pb2.ControlRecord], *, is_held: bool
    ) -> Awaitable[Sequence[Written]]:
        """Writes one control batch to each partition; done when all are durable. Held ones do not move last stable offsets yet.

        Raises StorageError or LogDamagedError if one cannot be written; the others may have been.
        """
        ...

    def release(self, written: Sequence[Written]) -> None:
        """Lets held markers count, all in one step."""
        ...
