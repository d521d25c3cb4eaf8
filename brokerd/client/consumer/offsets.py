"""Offset queries and their results, as values. Makes no calls."""

from __future__ import annotations

import enum
from typing import NamedTuple, TypeAlias

from brokerd.client.io.response_checks import checked_offset, timestamp_or_none
from brokerd.errors import ConfigError
from brokerd.ids import TopicIdPartition
from brokerd.wire.v1 import fetch_pb2, offsets_pb2

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"


class OffsetSpec(enum.Enum):
    """The offset wanted of a partition, if not by timestamp."""

    EARLIEST = "earliest"
    LATEST = "latest"  # the high watermark, or the last stable offset with read_committed
    MAX_TIMESTAMP = "max_timestamp"  # of the record with the largest timestamp


class AfterBytes(NamedTuple):
    """How far `max_bytes` reach, in whole batches from the one that holds `from_offset` on: the end of the last one that fits, of
    the first one at least, and at most `until_offset`. Brokers with feature OFFSET_AFTER_BYTES know it.
    """

    from_offset: int
    until_offset: int
    max_bytes: int


OFFSET_AFTER_BYTES = "offset_after_bytes"

Wanted: TypeAlias = OffsetSpec | AfterBytes | int  # an int is a timestamp, ms since 1970: the first record at or after it


class OffsetAndTimestamp(NamedTuple):
    """The result of an offset query; `offset` -1 = no record matches, `timestamp` (ms) and `leader_epoch` -1 = unknown.
    `size_bytes`: of AfterBytes, what lies before `offset`."""

    offset: int
    timestamp: int = -1
    leader_epoch: int = -1
    size_bytes: int = 0


def read_offset(result: offsets_pb2.PartitionListOffsetsResult) -> OffsetAndTimestamp:
    """Reads a result without an error. Raises UnknownServerError if it holds no valid offset."""
    return OffsetAndTimestamp(
        checked_offset("ListOffsets", result.offset),
        timestamp_or_none(result.timestamp),
        max(-1, result.leader_epoch),
        max(0, result.size_bytes),
    )


_SPECS = {
    OffsetSpec.EARLIEST: offsets_pb2.OFFSET_SPEC_EARLIEST,
    OffsetSpec.LATEST: offsets_pb2.OFFSET_SPEC_LATEST,
    OffsetSpec.MAX_TIMESTAMP: offsets_pb2.OFFSET_SPEC_MAX_TIMESTAMP,
}


def isolation_to_proto(isolation: str) -> fetch_pb2.IsolationLevel:
    """The wire form of isolation.level. Raises ConfigError."""
    if isolation == READ_COMMITTED:
        return fetch_pb2.ISOLATION_LEVEL_READ_COMMITTED
    if isolation == READ_UNCOMMITTED:
        return fetch_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED
    raise ConfigError(f"isolation.level must be {READ_COMMITTED} or {READ_UNCOMMITTED}, not '{isolation}'")


def partition_request(tp: TopicIdPartition, wanted: Wanted) -> offsets_pb2.PartitionListOffsets:
    """The wire form of one partition's query."""
    request = offsets_pb2.PartitionListOffsets(topic_id=tp.topic_id, partition=tp.partition, current_leader_epoch=-1)
    if isinstance(wanted, OffsetSpec):
        request.spec = _SPECS[wanted]
    elif isinstance(wanted, AfterBytes):
        request.spec = offsets_pb2.OFFSET_SPEC_AFTER_BYTES
        request.from_offset, request.until_offset, request.max_bytes = wanted
    else:
        request.spec = offsets_pb2.OFFSET_SPEC_TIMESTAMP
        request.timestamp = wanted
    return request
