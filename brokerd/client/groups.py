"""Calls about consumer groups and their committed offsets, and their values. All calls are idempotent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from brokerd.client.broker_client import BrokerClient
from brokerd.client.io.response_checks import checked_count, checked_offset, error_in, page_after, senseless, timestamp_or_none
from brokerd.client.offsets import READ_COMMITTED, isolation_to_proto
from brokerd.errors import BrokerdError, UnknownGroupError, UnknownTopicIdError, WireError
from brokerd.ids import TopicIdPartition
from brokerd.wire.methods import UNARY_REQUEST_MAX_BYTES
from brokerd.wire.texts import plain_text
from brokerd.wire.v1 import offsets_pb2 as pb

METADATA_MAX_BYTES = 4_096
_ENTRY_BYTES = 80  # upper bound of one offset in a request, without its metadata
_HEAD_BYTES = 2_048  # upper bound of a request without its offsets
_PER_REQUEST_MAX = 1_000  # partitions of one request: their metadata must fit into a response
_TEXT_MAX_CHARACTERS = 249
_TOPIC_ID_BYTES = 16
NO_GENERATION = -1
_NO_OFFSET = -1


class OffsetAndMetadata(NamedTuple):
    """A group's committed offset of one partition: the next offset to read, and free text of at most 4096 bytes, returned as it
    was sent (not made safe to print). `leader_epoch`: of the last record read, -1 = unknown. `leader_epoch_id`: its id, which
    identifies the history of the log, 0 = unknown. `commit_timestamp`: when the broker recorded it, ms since 1970, -1 = unknown."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    commit_timestamp: int = -1
    leader_epoch_id: int = 0


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One group: the number of partitions with a committed offset, and its last commit, ms since 1970 by the broker's clock."""

    group_id: str
    principal: str
    partitions: int
    commit_timestamp: int


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A group's committed offset of one partition, and its lag; numbers are -1 where they are unknown. The offset of `committed` is
    -1 for a partition without one, of a topic that the group reads: all of the partition is left to read.

    The text of `committed` is made safe to print. `end_offset`: the end of the log at the isolation level. If `log_start_offset`
    is above the committed offset, the records between are gone. `lag_bytes`: on disk. `lag_ms`: age of the next record to read,
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


# --- calls


async def commit_group_offsets(
    client: BrokerClient, group_id: str, offsets: Mapping[TopicIdPartition, OffsetAndMetadata]
) -> dict[TopicIdPartition, WireError]:
    """Commits offsets of a group, durably on return; returns the errors of refused ones. The offsets of one request
    (max.partitions.per.request) are committed atomically. Raises GroupAuthorizationFailedError, PolicyViolationError and the
    broker's other errors.
    """
    refused: dict[TopicIdPartition, WireError] = {}
    entries_max = await client.retried(lambda _: client.partitions_per_request())
    for tps, request in commit_requests(group_id, offsets, entries_max, UNARY_REQUEST_MAX_BYTES - _HEAD_BYTES):
        response = await client.call(request, pb.CommitGroupOffsetsResponse)
        results = checked_count("CommitGroupOffsets", response.results, len(tps))
        errors = {tp: error_in(result) for tp, result in zip(tps, results, strict=True)}
        refused |= {tp: error for tp, error in errors.items() if error is not None}
    return refused


def commit_requests(
    group_id: str, offsets: Mapping[TopicIdPartition, OffsetAndMetadata], entries_max: int, request_bytes_max: int
) -> Iterator[tuple[Sequence[TopicIdPartition], pb.CommitGroupOffsetsRequest]]:
    """Splits a commit into requests within both limits; yields each with its partitions."""
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


async def renew_group(client: BrokerClient, group_id: str) -> None:
    """Renews a group's expiration as a commit would; creates no group. Raises GroupAuthorizationFailedError and the broker's other
    errors."""
    await client.call(_commit_request(group_id), pb.CommitGroupOffsetsResponse)


async def group_offsets(
    client: BrokerClient, group_id: str, partitions: Sequence[TopicIdPartition] | None = None
) -> dict[TopicIdPartition, OffsetAndMetadata | WireError]:
    """Committed offsets of a group, for these partitions or for all that have one. Partitions without one are left out; those that
    do not exist have the broker's error. Raises GroupAuthorizationFailedError and the broker's other errors.
    """
    found: dict[TopicIdPartition, OffsetAndMetadata | WireError] = {}
    if partitions is None:
        found.update(await _all_offsets(client, group_id))
        return found
    size = min(_PER_REQUEST_MAX, await client.retried(lambda _: client.partitions_per_request()))
    for at in range(0, len(partitions), size):
        tps = partitions[at : at + size]
        asked = [pb.PartitionGroupOffset(topic_id=tp.topic_id, partition=tp.partition) for tp in tps]
        request = pb.FetchGroupOffsetsRequest(group_id=group_id, partitions=asked)
        response = await client.call(request, pb.FetchGroupOffsetsResponse)
        results = checked_count("FetchGroupOffsets", response.results, len(tps))
        answers = {tp: error_in(result) or _read_offset(result) for tp, result in zip(tps, results, strict=True)}
        found |= {tp: answer for tp, answer in answers.items() if answer is not None}
    return found


async def _all_offsets(client: BrokerClient, group_id: str) -> dict[TopicIdPartition, OffsetAndMetadata]:
    offsets: dict[TopicIdPartition, OffsetAndMetadata] = {}
    after: TopicIdPartition | None = None
    while True:
        request = pb.FetchGroupOffsetsRequest(group_id=group_id)
        if after is not None:
            request.after_topic_id, request.after_partition = after
        response = await client.call(request, pb.FetchGroupOffsetsResponse)
        page = _read_page(response)
        offsets |= page
        if not response.more or not page:
            return offsets
        after = page_after("FetchGroupOffsets", after, max(page))


async def list_groups(client: BrokerClient, prefix: str = "") -> list[GroupListing]:
    """Groups whose ids begin with `prefix`, sorted by id."""
    groups: list[GroupListing] = []
    after = ""
    while True:
        response = await client.call(pb.ListGroupsRequest(prefix=prefix, after=after), pb.ListGroupsResponse)
        groups += [_read_listing(listing) for listing in response.groups]
        if not response.more or not response.groups:
            return groups
        after = page_after("ListGroups", after, groups[-1].group_id)


async def describe_group(client: BrokerClient, group_id: str, isolation: str = READ_COMMITTED) -> GroupDescription:
    """Committed offsets and lag of a group. Raises UnknownGroupError, GroupAuthorizationFailedError; ConfigError for an unknown
    isolation level."""
    partitions: list[GroupPartition] = []
    after: TopicIdPartition | None = None
    while True:
        request = pb.DescribeGroupRequest(group_id=group_id, isolation_level=isolation_to_proto(isolation))
        if after is not None:
            request.after_topic_id, request.after_partition = after
        response = await client.call(request, pb.DescribeGroupResponse)
        partitions += filter(None, map(_read_partition, response.partitions))
        if not response.more or not response.partitions:
            listing = _read_listing(response.group)
            return GroupDescription(listing, tuple(sorted(partitions, key=lambda one: (one.topic, one.tp))))
        last = response.partitions[-1].committed
        after = page_after("DescribeGroup", after, TopicIdPartition(last.topic_id, last.partition))


async def delete_group(client: BrokerClient, group_id: str, partitions: Sequence[TopicIdPartition] = ()) -> int:
    """Deletes a group, or its offsets of some partitions; returns the number of offsets deleted, not counting requests whose
    response was lost. Raises UnknownGroupError and the broker's other errors.
    """
    deleted = 0
    lost: list[BrokerdError] = []
    size = await client.retried(lambda _: client.partitions_per_request())
    for at in range(0, max(1, len(partitions)), size):
        named = [pb.GroupPartition(topic_id=tp.topic_id, partition=tp.partition) for tp in partitions[at : at + size]]
        request = pb.DeleteGroupRequest(group_id=group_id, partitions=named)
        try:
            response = await client.call(request, pb.DeleteGroupResponse, failures=lost)
        except UnknownGroupError:
            if not lost and at == 0:
                raise
            break  # this call deleted its last offset, and the group with it
        deleted += response.deleted_offsets
    return deleted


# --- responses


def _read_page(response: pb.FetchGroupOffsetsResponse) -> dict[TopicIdPartition, OffsetAndMetadata]:
    """Offsets of one page; partitions of topics that are being deleted are left out."""
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


def _read_partition(described: pb.GroupPartitionDescription) -> GroupPartition | None:
    """One partition of a description; None if its topic is being deleted."""
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


def _read_listing(listing: pb.GroupListing) -> GroupListing:
    """One group of a list."""
    return GroupListing(
        group_id=plain_text(listing.group_id, _TEXT_MAX_CHARACTERS),
        principal=plain_text(listing.principal, _TEXT_MAX_CHARACTERS),
        partitions=listing.partitions,
        commit_timestamp=timestamp_or_none(listing.commit_timestamp),
    )
