"""Group offsets as clients see them: requests and responses as plain values. The calls are in group_calls.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from brokerd.client.consumer.offsets import isolation_to_proto
from brokerd.client.io.response_checks import checked_count, checked_offset, error_in, senseless, timestamp_or_none
from brokerd.errors import UnknownTopicIdError, WireError
from brokerd.ids import TopicIdPartition
from brokerd.wire.texts import plain_text
from brokerd.wire.v1 import offsets_pb2 as pb

METADATA_MAX_BYTES = 4_096
# The bytes of one offset in a request besides its metadata, at most.
_ENTRY_BYTES = 80
_TEXT_MAX_CHARACTERS = 249
_TOPIC_ID_BYTES = 16
NO_GENERATION = -1
_NO_OFFSET = -1


class OffsetAndMetadata(NamedTuple):
    """How far a group has read one partition: the next offset to read, and a free text of at most 4096 bytes, which comes back as
    it was (not made safe to print). `leader_epoch` is that of the last record read, -1 = unknown, and `leader_epoch_id` its id,
    which says of which history of the log it is, 0 = unknown; `commit_timestamp` is when the broker recorded it, ms since 1970,
    -1 = unknown."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    commit_timestamp: int = -1
    leader_epoch_id: int = 0


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One group: how many partitions it has an offset of, and its last commit, ms since 1970 by the broker's clock."""

    group_id: str
    principal: str
    partitions: int
    commit_timestamp: int


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """How far a group has read one partition, and what it has left to read; numbers are -1 where they are unknown. The offset of
    `committed` is -1 if it has none, of a topic that it reads: all of the partition is left to read.

    The text of `committed` is made safe to print. `end_offset`: where its readers see it end. `log_start_offset` above the
    committed offset: the records between are gone. `lag_bytes`: on disk. `lag_ms`: how long the next record to read has been there,
    -1 also if there is none.
    """

    topic: str
    tp: TopicIdPartition
    committed: OffsetAndMetadata
    log_start_offset: int
    end_offset: int
    lag_bytes: int
    lag_ms: int
    error: WireError | None  # why something is unknown

    @property
    def lag(self) -> int:
        """Offsets from the committed one to the end; -1 = unknown."""
        if self.end_offset < 0:
            return -1
        return max(0, self.end_offset - max(self.committed.offset, self.log_start_offset))


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its partitions, by topic and number."""

    listing: GroupListing
    partitions: tuple[GroupPartition, ...]


# --- requests


def commit_requests(
    group_id: str, offsets: Mapping[TopicIdPartition, OffsetAndMetadata], *, entries_max: int, request_bytes_max: int
) -> Iterator[tuple[Sequence[TopicIdPartition], pb.CommitGroupOffsetsRequest]]:
    """Commits of at most so many entries and bytes each, with the partitions of each."""
    request, left_bytes = _commit_request(group_id), request_bytes_max
    tps: list[TopicIdPartition] = []
    for tp, committed in offsets.items():
        size_bytes = _ENTRY_BYTES + len(committed.metadata.encode())
        if tps and (len(tps) == entries_max or size_bytes > left_bytes):
            yield tps, request
            request, tps, left_bytes = _commit_request(group_id), [], request_bytes_max
        request.offsets.add(
            topic_id=tp.topic_id,
            partition=tp.partition,
            offset=committed.offset,
            leader_epoch=committed.leader_epoch,
            leader_epoch_id=committed.leader_epoch_id,
            metadata=committed.metadata,
        )
        tps.append(tp)
        left_bytes -= size_bytes
    if tps:
        yield tps, request


def _commit_request(group_id: str) -> pb.CommitGroupOffsetsRequest:
    return pb.CommitGroupOffsetsRequest(group_id=group_id, generation=NO_GENERATION)


def fetch_request(group_id: str, tps: Sequence[TopicIdPartition]) -> pb.FetchGroupOffsetsRequest:
    """Asks for the offsets of some partitions."""
    partitions = [pb.PartitionGroupOffset(topic_id=tp.topic_id, partition=tp.partition) for tp in tps]
    return pb.FetchGroupOffsetsRequest(group_id=group_id, partitions=partitions)


def page_request(group_id: str, after: TopicIdPartition | None) -> pb.FetchGroupOffsetsRequest:
    """Asks for the next page of all offsets."""
    if after is None:
        return pb.FetchGroupOffsetsRequest(group_id=group_id)
    return pb.FetchGroupOffsetsRequest(group_id=group_id, after_topic_id=after.topic_id, after_partition=after.partition)


def describe_request(group_id: str, isolation: str, after: TopicIdPartition | None) -> pb.DescribeGroupRequest:
    """Asks for the next page of a description. Raises ConfigError for an unknown isolation level."""
    request = pb.DescribeGroupRequest(group_id=group_id, isolation_level=isolation_to_proto(isolation))
    if after is not None:
        request.after_topic_id, request.after_partition = after
    return request


def delete_request(group_id: str, tps: Sequence[TopicIdPartition]) -> pb.DeleteGroupRequest:
    """Asks to forget a group, or some of its offsets."""
    partitions = [pb.GroupPartition(topic_id=tp.topic_id, partition=tp.partition) for tp in tps]
    return pb.DeleteGroupRequest(group_id=group_id, partitions=partitions)


# --- responses


def read_refused(tps: Sequence[TopicIdPartition], response: pb.CommitGroupOffsetsResponse) -> dict[TopicIdPartition, WireError]:
    """The errors of the offsets that were not recorded."""
    results = checked_count("CommitGroupOffsets", response.results, len(tps))
    errors = {tp: error_in(result) for tp, result in zip(tps, results, strict=True)}
    return {tp: error for tp, error in errors.items() if error is not None}


def read_asked(
    tps: Sequence[TopicIdPartition], response: pb.FetchGroupOffsetsResponse
) -> dict[TopicIdPartition, OffsetAndMetadata | WireError]:
    """The offset of each partition that has one, or its error."""
    results = checked_count("FetchGroupOffsets", response.results, len(tps))
    found = {tp: error_in(result) or _read_offset(result) for tp, result in zip(tps, results, strict=True)}
    return {tp: result for tp, result in found.items() if result is not None}


def read_page(response: pb.FetchGroupOffsetsResponse) -> dict[TopicIdPartition, OffsetAndMetadata]:
    """Offsets of a page of all; partitions of topics that are just deleted are left out."""
    offsets: dict[TopicIdPartition, OffsetAndMetadata] = {}
    for result in response.results:
        error = error_in(result)
        if error is not None and not isinstance(error, UnknownTopicIdError):
            raise error
        _check_topic_id("FetchGroupOffsets", result.topic_id)
        committed = _read_offset(result) if error is None else None
        if committed is not None:
            offsets[TopicIdPartition(result.topic_id, result.partition)] = committed
    return offsets


def _check_topic_id(what: str, topic_id: bytes) -> None:
    if len(topic_id) != _TOPIC_ID_BYTES:
        raise senseless(what, f"a topic id of {len(topic_id)} bytes")


def _read_offset(result: pb.PartitionGroupOffset) -> OffsetAndMetadata | None:
    offset = checked_offset("FetchGroupOffsets", result.offset)
    if offset < 0:
        return None
    timestamp = timestamp_or_none(result.commit_timestamp)
    return OffsetAndMetadata(offset, result.metadata, max(-1, result.leader_epoch), timestamp, result.leader_epoch_id)


def read_partition(described: pb.GroupPartitionDescription) -> GroupPartition | None:
    """One partition of a description; None if it is just deleted."""
    result = described.committed
    _check_topic_id("DescribeGroup", result.topic_id)
    error, committed = error_in(result), _read_offset(result)
    if committed is None and error is not None:
        return None
    committed = committed or OffsetAndMetadata(_NO_OFFSET)
    return GroupPartition(
        topic=plain_text(described.topic, _TEXT_MAX_CHARACTERS),
        tp=TopicIdPartition(result.topic_id, result.partition),
        committed=committed._replace(metadata=plain_text(committed.metadata, METADATA_MAX_BYTES)),
        log_start_offset=checked_offset("DescribeGroup", described.log_start_offset),
        end_offset=checked_offset("DescribeGroup", described.end_offset),
        lag_bytes=max(-1, described.lag_bytes),
        lag_ms=max(-1, described.lag_ms),
        error=error,
    )


def read_listing(listing: pb.GroupListing) -> GroupListing:
    """One group of a list."""
    return GroupListing(
        group_id=plain_text(listing.group_id, _TEXT_MAX_CHARACTERS),
        principal=plain_text(listing.principal, _TEXT_MAX_CHARACTERS),
        partitions=listing.partitions,
        commit_timestamp=timestamp_or_none(listing.commit_timestamp),
    )
