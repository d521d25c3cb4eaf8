"""Committed offsets of groups, as recorded in the coordinator's log."""

from __future__ import annotations

from brokerd.ids import TopicIdPartition
from brokerd.wire.v1.coordinator_log_pb2 import CommittedOffset


def committed(
    tp: TopicIdPartition,
    offset: int = 0,
    leader_epoch: int = -1,
    metadata: str = "",
    timestamp: int = 1,
    *,
    leader_epoch_id: int = 0,
    ahead_ms: int = 0,
) -> CommittedOffset:
    """A group's committed offset of one partition."""
    return CommittedOffset(
        topic_id=tp.topic_id,
        partition=tp.partition,
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        timestamp=timestamp,
        leader_epoch_id=leader_epoch_id,
        clock_ahead_ms=ahead_ms,
    )
