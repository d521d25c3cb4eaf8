"""Groups as callers see them."""

from __future__ import annotations

from brokerd.errors import LogTruncationError
from brokerd.groups.group_table import Group
from brokerd.ids import LogPosition, TopicIdPartition
from brokerd.partition.partition import Partition
from brokerd.wire.v1 import offsets_pb2
from brokerd.wire.v1.group_log_pb2 import CommittedOffset

_NONE = -1


def listing(group: Group) -> offsets_pb2.GroupListing:
    """A group, in short."""
    return offsets_pb2.GroupListing(
        group_id=group.group_id, principal=group.principal, partitions=group.count, commit_timestamp=group.commit_timestamp
    )


def check_history(partition: Partition, committed: CommittedOffset | None) -> None:
    """Raises LogTruncationError if the offset was committed in another history than the log is."""
    try:
        if committed is not None:
            partition.check_history(LogPosition(committed.offset, committed.leader_epoch_id))
    except LogTruncationError as error:
        error.message += "; commit another offset for the group, or `brokerd groups reset` it"
        raise


def offset_result(tp: TopicIdPartition, committed: CommittedOffset | None) -> offsets_pb2.PartitionGroupOffset:
    """How far a group has read one partition, in a response."""
    if committed is None:
        return offsets_pb2.PartitionGroupOffset(
            topic_id=tp.topic_id, partition=tp.partition, offset=_NONE, leader_epoch=_NONE, commit_timestamp=_NONE
        )
    return offsets_pb2.PartitionGroupOffset(
        topic_id=tp.topic_id,
        partition=tp.partition,
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.timestamp,
        leader_epoch_id=committed.leader_epoch_id,
    )
