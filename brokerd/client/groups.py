"""Calls about consumer groups and their committed offsets. All calls are idempotent. Listings and descriptions are wire messages:
-1 = unknown, and their texts are safe to print."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from brokerd.arguments import OffsetAndMetadata
from brokerd.client.broker_client import BrokerClient
from brokerd.client.offsets import READ_COMMITTED, Backlog, isolation_to_proto, list_offsets
from brokerd.client.response_checks import (
    checked_count,
    checked_offset,
    error_in,
    made_plain,
    page_after,
    senseless,
    timestamp_or_none,
)
from brokerd.errors import BrokerdError, NotLeaderError, UnknownGroupError, UnknownTopicIdError, WireError
from brokerd.ids import LogPosition, TopicIdPartition
from brokerd.wire.errors import to_proto
from brokerd.wire.methods import UNARY_REQUEST_MAX_BYTES
from brokerd.wire.v1 import offsets_pb2 as pb

_ENTRY_BYTES = 80  # upper bound of one offset in a request, without its metadata
_HEAD_BYTES = 2_048  # upper bound of a request without its offsets
_PER_REQUEST_MAX = 1_000  # partitions of one request: their metadata must fit into a response
_TOPIC_ID_BYTES = 16
_ENDS_MS = 5_000  # how long a description waits for leaders: a silent one must not hide the other partitions


def partition_of(committed: pb.PartitionGroupOffset) -> TopicIdPartition:
    """The partition of a committed offset."""
    return TopicIdPartition(committed.topic_id, committed.partition)


def lag_of(described: pb.GroupPartitionDescription) -> int:
    """Offsets from the committed one to the end of the log; -1 = unknown. Without a committed offset, the whole log counts."""
    if described.end_offset < 0:
        return -1
    return max(0, described.end_offset - max(described.committed.offset, described.log_start_offset))


# --- calls


async def commit_group_offsets(
    client: BrokerClient, group_id: str, offsets: Mapping[TopicIdPartition, OffsetAndMetadata]
) -> dict[TopicIdPartition, WireError]:
    """Commits offsets of a group, durably on return; returns the errors of refused offsets. The offsets of one request
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
    request, left_bytes = pb.CommitGroupOffsetsRequest(group_id=group_id), request_bytes_max
    tps: list[TopicIdPartition] = []
    for tp, committed in offsets.items():
        size_bytes = _ENTRY_BYTES + len(committed.metadata.encode())
        if tps and (len(tps) == entries_max or size_bytes > left_bytes):
            yield tps, request
            request, tps, left_bytes = pb.CommitGroupOffsetsRequest(group_id=group_id), [], request_bytes_max
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


async def renew_group(client: BrokerClient, group_id: str) -> None:
    """Renews a group's expiration as a commit would; creates no group. Raises GroupAuthorizationFailedError and the broker's other
    errors."""
    await client.call(pb.CommitGroupOffsetsRequest(group_id=group_id), pb.CommitGroupOffsetsResponse)


async def group_offsets(
    client: BrokerClient, group_id: str, partitions: Sequence[TopicIdPartition] | None = None
) -> dict[TopicIdPartition, OffsetAndMetadata | WireError]:
    """Committed offsets of a group, for these partitions or for all that have one. Partitions without one are left out; unknown
    partitions have the broker's error. Raises GroupAuthorizationFailedError and the broker's other errors.
    """
    if partitions is None:
        return dict(await _all_offsets(client, group_id))
    found: dict[TopicIdPartition, OffsetAndMetadata | WireError] = {}
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


async def list_groups(client: BrokerClient, prefix: str = "") -> list[pb.GroupListing]:
    """Groups whose ids begin with `prefix`, sorted by id."""
    groups: list[pb.GroupListing] = []
    after = ""
    while True:
        response = await client.call(pb.ListGroupsRequest(prefix=prefix, after=after), pb.ListGroupsResponse)
        groups += map(_checked_listing, response.groups)
        if not response.more or not response.groups:
            return groups
        after = page_after("ListGroups", after, groups[-1].group_id)


async def describe_group(client: BrokerClient, group_id: str, isolation: str = READ_COMMITTED) -> pb.DescribeGroupResponse:
    """A group's committed offsets and lag, sorted by topic and partition. Offset -1 = none, in a topic that the group reads.
    `end_offset` is the end of the log at the isolation level. Raises UnknownGroupError, GroupAuthorizationFailedError; ConfigError
    for an unknown isolation level."""
    partitions: list[pb.GroupPartitionDescription] = []
    after: TopicIdPartition | None = None
    while True:
        request = pb.DescribeGroupRequest(group_id=group_id, isolation_level=isolation_to_proto(isolation))
        if after is not None:
            request.after_topic_id, request.after_partition = after
        response = await client.call(request, pb.DescribeGroupResponse)
        partitions += filter(_is_described, response.partitions)
        if not response.more or not response.partitions:
            await _fill_ends(client, [one for one in partitions if _is_led_elsewhere(one)], isolation)
            partitions.sort(key=lambda one: (one.topic, partition_of(one.committed)))
            listing = _checked_listing(response.group)
            return pb.DescribeGroupResponse(group=listing, partitions=map(made_plain, partitions))
        after = page_after("DescribeGroup", after, partition_of(response.partitions[-1].committed))


async def describe_groups(client: BrokerClient, group_ids: Sequence[str]) -> list[pb.DescribeGroupResponse]:
    """As `describe_group` for several groups, without those that do not exist. Asks for all at once, since each may wait for a
    leader that does not answer."""
    answers = await asyncio.gather(*(describe_group(client, one) for one in group_ids), return_exceptions=True)
    described = []
    for answer in answers:
        if isinstance(answer, pb.DescribeGroupResponse):
            described.append(answer)
        elif isinstance(answer, BaseException) and not isinstance(answer, UnknownGroupError):
            raise answer
    return described


def _is_led_elsewhere(described: pb.GroupPartitionDescription) -> bool:
    error = error_in(described.committed)
    return described.end_offset < 0 and (error is None or isinstance(error, NotLeaderError))


async def _fill_ends(client: BrokerClient, partitions: Sequence[pb.GroupPartitionDescription], isolation: str) -> None:
    """Asks the leaders for the names, ends and backlogs of partitions that the coordinator does not lead. Values of a leader that
    does not answer within _ENDS_MS stay unknown, and the error says why."""
    if not partitions:
        return
    by_tp = {partition_of(one.committed): one for one in partitions}
    metadata = await client.metadata_by_id(sorted({tp.topic_id for tp in by_tp}))
    names = {topic.topic_id: name for name, topic in metadata.topics.items()}
    positions = {
        tp: LogPosition(one.committed.offset, one.committed.leader_epoch_id)
        for tp, one in by_tp.items()
        if one.committed.leader_epoch_id
    }
    wanted = {tp: Backlog(max(0, one.committed.offset)) for tp, one in by_tp.items()}
    timeout_ms = min(client.config.api_timeout_ms, _ENDS_MS)
    answers = await list_offsets(client, wanted, isolation, positions, timeout_ms=timeout_ms, is_partial=True)
    for tp, found in answers.items():
        one = by_tp[tp]
        one.topic = names.get(tp.topic_id, one.topic)
        error = found if isinstance(found, WireError) else found.truncation
        one.committed.ClearField("error")
        if error is not None:
            one.committed.error.CopyFrom(to_proto(error))
        if isinstance(found, WireError):
            continue
        one.end_offset, one.log_start_offset = found.offset, found.log_start_offset
        if found.truncation is None:
            one.lag_bytes, one.lag_ms = found.size_bytes, found.lag_ms


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


def _is_described(described: pb.GroupPartitionDescription) -> bool:
    """Checks one partition of a description; False if its topic is being deleted."""
    committed = described.committed
    _check_topic_id("DescribeGroup", committed.topic_id)
    for offset in (committed.offset, described.log_start_offset, described.end_offset):
        checked_offset("DescribeGroup", offset)
    committed.commit_timestamp = timestamp_or_none(committed.commit_timestamp)
    return committed.offset >= 0 or not committed.HasField("error") or _is_led_elsewhere(described)


def _checked_listing(listing: pb.GroupListing) -> pb.GroupListing:
    listing.commit_timestamp = timestamp_or_none(listing.commit_timestamp)
    return made_plain(listing)
