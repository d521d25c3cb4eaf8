"""Offset queries and their results, as values. Makes no calls."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from brokerd.client.io.response_checks import checked_offset, timestamp_or_none
from brokerd.errors import ConfigError, WireError
from brokerd.ids import LogPosition, TopicIdPartition
from brokerd.wire.errors import from_proto
from brokerd.wire.v1 import fetch_pb2, offsets_pb2

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"


NO_POSITIONS: Mapping[TopicIdPartition, LogPosition] = {}


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


class Given(NamedTuple):
    """This offset itself, which may lie outside of the log; as a query, for what the broker knows of it."""

    offset: int


@dataclass(frozen=True, slots=True)
class LastRecords:
    """From which offset on so many records follow, up to the end; the beginning if there are no more."""

    count: int


OFFSET_AFTER_BYTES = "offset_after_bytes"

# An int is a timestamp, ms since 1970: the first record at or after it.
Wanted: TypeAlias = OffsetSpec | AfterBytes | Given | LastRecords | int


class OffsetAndTimestamp(NamedTuple):
    """The result of an offset query; `offset` -1 = no record matches, `timestamp` (ms) and `leader_epoch` -1 = unknown.
    `size_bytes`: of AfterBytes, what lies before `offset`. `leader_epoch_id`: of the record before it, 0 = unknown, with the offset
    where that epoch begins. `truncation`: why the position asked about is of another history than the log."""

    offset: int
    timestamp: int = -1
    leader_epoch: int = -1
    size_bytes: int = 0
    leader_epoch_id: int = 0
    epoch_start_offset: int = 0
    truncation: WireError | None = None

    def id_before(self, offset: int) -> int | None:
        """Id of the leader epoch of the record before `offset`, which is not above this one; 0 if the broker does not know it, None
        if it is not said here."""
        is_said = offset == self.offset or (self.leader_epoch_id and offset > self.epoch_start_offset)
        return self.leader_epoch_id if is_said else None


def read_offset(result: offsets_pb2.PartitionListOffsetsResult) -> OffsetAndTimestamp:
    """Reads a result without an error. Raises UnknownServerError if it holds no valid offset."""
    return OffsetAndTimestamp(
        checked_offset("ListOffsets", result.offset),
        timestamp_or_none(result.timestamp),
        max(-1, result.leader_epoch),
        max(0, result.size_bytes),
        result.leader_epoch_id,
        result.epoch_start_offset,
        from_proto(result.truncation) if result.HasField("truncation") else None,
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


def partition_request(tp: TopicIdPartition, wanted: Wanted, position: LogPosition | None) -> offsets_pb2.PartitionListOffsets:
    """The wire form of one partition's query, and of a position that is to be checked."""
    request = offsets_pb2.PartitionListOffsets(topic_id=tp.topic_id, partition=tp.partition, current_leader_epoch=-1)
    if position is not None:
        request.position.offset, request.position.leader_epoch_id = position
    if isinstance(wanted, OffsetSpec):
        request.spec = _SPECS[wanted]
    elif isinstance(wanted, AfterBytes):
        request.spec = offsets_pb2.OFFSET_SPEC_AFTER_BYTES
        request.from_offset, request.until_offset, request.max_bytes = wanted
    elif isinstance(wanted, Given):
        request.spec = offsets_pb2.OFFSET_SPEC_GIVEN
        request.from_offset = wanted.offset
    elif isinstance(wanted, LastRecords):
        request.spec = offsets_pb2.OFFSET_SPEC_LAST_RECORDS
        request.record_count = wanted.count
    else:
        request.spec = offsets_pb2.OFFSET_SPEC_TIMESTAMP
        request.timestamp = wanted
    return request
