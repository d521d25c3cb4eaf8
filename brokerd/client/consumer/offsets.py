"""Offsets as values: which one is wanted, what was answered. No calls are made here."""

from __future__ import annotations

import enum
from typing import NamedTuple, TypeAlias

from brokerd.client.io.answers import checked_offset, timestamp_or_none
from brokerd.errors import ConfigError
from brokerd.ids import TopicIdPartition
from brokerd.wire.v1 import fetch_pb2, offsets_pb2

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"


class OffsetSpec(enum.Enum):
    """Which offset of a partition is wanted, where it is not the one at a timestamp."""

    EARLIEST = "earliest"
    LATEST = "latest"  # the high watermark, or the last stable offset with read_committed
    MAX_TIMESTAMP = "max_timestamp"  # of the record with the largest timestamp


Wanted: TypeAlias = OffsetSpec | int  # an int is a timestamp, ms since 1970: the first record at or after it


class OffsetAndTimestamp(NamedTuple):
    """An offset that was asked for; `offset` -1 = no record matches, `timestamp` (ms) and `leader_epoch` -1 = not known."""

    offset: int
    timestamp: int = -1
    leader_epoch: int = -1


def read_offset(result: offsets_pb2.PartitionListOffsetsResult) -> OffsetAndTimestamp:
    """An answer without an error. Raises UnknownServerError if it is no offset."""
    return OffsetAndTimestamp(
        checked_offset("ListOffsets", result.offset), timestamp_or_none(result.timestamp), max(-1, result.leader_epoch)
    )


_SPECS = {
    OffsetSpec.EARLIEST: offsets_pb2.OFFSET_SPEC_EARLIEST,
    OffsetSpec.LATEST: offsets_pb2.OFFSET_SPEC_LATEST,
    OffsetSpec.MAX_TIMESTAMP: offsets_pb2.OFFSET_SPEC_MAX_TIMESTAMP,
}


def isolation_to_proto(isolation: str) -> fetch_pb2.IsolationLevel:
    """isolation.level as it travels. Raises ConfigError."""
    if isolation == READ_COMMITTED:
        return fetch_pb2.ISOLATION_LEVEL_READ_COMMITTED
    if isolation == READ_UNCOMMITTED:
        return fetch_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED
    raise ConfigError(f"isolation.level must be {READ_COMMITTED} or {READ_UNCOMMITTED}, not '{isolation}'")


def partition_request(tp: TopicIdPartition, wanted: Wanted) -> offsets_pb2.PartitionListOffsets:
    """One partition's question as it travels."""
    request = offsets_pb2.PartitionListOffsets(topic_id=tp.topic_id, partition=tp.partition, current_leader_epoch=-1)
    if isinstance(wanted, OffsetSpec):
        request.spec = _SPECS[wanted]
    else:
        request.spec = offsets_pb2.OFFSET_SPEC_TIMESTAMP
        request.timestamp = wanted
    return request
