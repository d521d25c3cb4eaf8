"""Consumer groups' offsets: commit, fetch, describe, list and delete."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

from brokerd.coordinator.group_table import METADATA_MAX_BYTES, Group
from brokerd.errors import (
    LogTruncationError,
    NotLeaderError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    counted,
)
from brokerd.ids import LogPosition, TopicIdPartition
from brokerd.partition.partition import Partition
from brokerd.server.broker import BrokerParts
from brokerd.server.failures import fails_with, malformed
from brokerd.server.handlers.list_offsets import left_to_read
from brokerd.server.paging import LISTED_MAX, Pauses, list_page
from brokerd.server.requests import (
    check_id,
    check_not_negative,
    check_text,
    partition_after,
    partitions_of,
    reads_committed,
    topic_id_partition,
)
from brokerd.server.security.topic_authorizer import Right, TopicAuthorizer
from brokerd.wire.v1 import offsets_pb2, transaction_pb2
from brokerd.wire.v1.coordinator_log_pb2 import CommittedOffset
from brokerd.wire.v1.offsets_pb2 import FetchGroupOffsetsRequest as Request
from brokerd.wire.v1.offsets_pb2 import FetchGroupOffsetsResponse as Response

_NONE = -1


Entry = offsets_pb2.PartitionGroupOffset | transaction_pb2.TransactionGroupOffset
DESCRIBED_MAX = 1_000


# CommitGroupOffsets


def check_entry(field: str, entry: Entry) -> TopicIdPartition:
    """The partition named in an entry. Raises MalformedError."""
    tp = topic_id_partition(field, entry.topic_id, entry.partition)
    check_not_negative(f"{field}.offset", entry.offset)
    if entry.leader_epoch < _NONE:
        raise malformed(f"{field}.leader_epoch", f"is {entry.leader_epoch}, but must be an epoch, or -1 if it is unknown")
    return tp


async def commit_group_offsets(
    broker: BrokerParts, authorizer: TopicAuthorizer, request: offsets_pb2.CommitGroupOffsetsRequest
) -> offsets_pb2.CommitGroupOffsetsResponse:
    """Commits offsets of a group.

    - Partitions are checked independently: unknown partitions, offsets beyond the high watermark, and metadata that is too long are
      errors of their partition. All others are recorded in one batch of the coordinator's log: all or none, durable before the
      response.
    - An offset must be one that a reader can reach: not negative, and not beyond the high watermark. (Kafka accepts any number; a
      mistake shows up much later, as negative lag or as a reader that starts elsewhere.) It may be below the log start, since
      retention may pass it while records are being processed, and below the group's previous offset.
    - The last commit to arrive wins: readers without membership do not fence each other.
    - The first commit creates the group, which counts towards its principal's limit.
    - A commit without offsets creates no group.
    """
    check_id("group_id", request.group_id)
    tps = [check_entry("offsets", entry) for entry in request.offsets]
    response = offsets_pb2.CommitGroupOffsetsResponse()
    with fails_with(response, f"commit of group {request.group_id!r}"):
        authorizer.require_group(request.group_id)
        groups = broker.groups  # of this coordinator: the next one may know a newer commit
        if not request.offsets:
            await groups.renew(request.group_id)
            return response
        async with groups.turn(request.group_id):
            await check_deleted(broker, tps)
            offsets = await _checked(broker, authorizer, request, response)
        if offsets:  # recorded before the next turn begins, since nothing is awaited until then; durable together with others
            await groups.commit(request.group_id, authorizer.principal, offsets)
    if response.HasField("error"):
        del response.results[:]  # none of them is recorded
    return response


async def _checked(
    broker: BrokerParts,
    authorizer: TopicAuthorizer,
    request: offsets_pb2.CommitGroupOffsetsRequest,
    response: offsets_pb2.CommitGroupOffsetsResponse,
) -> list[CommittedOffset]:
    """The offsets to record; adds all results to the response."""
    now_ms, ahead_ms = broker.time.stamp_ms()
    offsets: list[CommittedOffset] = []
    pauses, knows = Pauses(broker.turns), True
    for entry in request.offsets:
        await pauses.after()
        result = response.results.add()
        _fill(result, TopicIdPartition(entry.topic_id, entry.partition), None)
        with fails_with(result, "an offset to commit"):
            authorizer.require_id(Right.READ, entry.topic_id)
            knows = knows and await knows_end(broker, entry)  # after one failed confirmation, the store is not asked again
            offsets.append(checked_offset(broker, entry, now_ms, ahead_ms, knows_end=knows))
            result.offset, result.leader_epoch, result.commit_timestamp = entry.offset, entry.leader_epoch, now_ms
    return offsets


async def knows_end(broker: BrokerParts, entry: Entry) -> bool:
    """False if this node would refuse the offset, and cannot confirm that it still leads the partition: it may lack records that
    were read from a new leader."""
    tp = TopicIdPartition(entry.topic_id, entry.partition)
    with contextlib.suppress(UnknownTopicIdError, UnknownTopicOrPartitionError):
        partition = led_here(broker, tp)
        try:
            _check_reached(partition, entry)
        except (LogTruncationError, OffsetOutOfRangeError):
            return partition is not None and await broker.cluster.is_confirmed_leader(tp, partition.leader_epoch)
    return True


def _check_reached(partition: Partition | None, entry: Entry) -> None:
    if partition is None:
        return
    partition.check_history(LogPosition(entry.offset, entry.leader_epoch_id))
    # A new leader's high watermark may still lag; everything in the log when its epoch began may have been read before.
    end_offset = max(partition.ends.high_watermark, partition.epoch_start_offset)
    if entry.offset > end_offset:
        raise OffsetOutOfRangeError(
            f"offsets.offset is {entry.offset}, beyond the high watermark {end_offset} of {partition.name}: commit the offset of "
            "the next record to read"
        )


def checked_offset(broker: BrokerParts, entry: Entry, now_ms: int, ahead_ms: int, *, knows_end: bool = True) -> CommittedOffset:
    """The offset to record. It is checked against the log only if this node leads the partition and `knows_end`: a consumer may
    know more about other partitions than the coordinator. Raises UnknownTopicIdError and others for the partition,
    LogTruncationError, OffsetOutOfRangeError, OffsetMetadataTooLargeError."""
    tp = TopicIdPartition(entry.topic_id, entry.partition)
    partition = led_here(broker, tp)
    partition = partition if knows_end else None
    _check_reached(partition, entry)
    size_bytes = len(entry.metadata.encode()) if entry.metadata else 0
    if size_bytes > METADATA_MAX_BYTES:
        raise OffsetMetadataTooLargeError(
            f"offsets.metadata of {broker.groups.name_of(tp)} has {size_bytes} bytes, more than the {METADATA_MAX_BYTES} allowed"
        )
    leader_epoch, epoch_id = entry.leader_epoch, entry.leader_epoch_id
    before = partition.epoch_before(entry.offset) if partition is not None else None
    if before is not None and not epoch_id and leader_epoch in (_NONE, before.epoch):
        leader_epoch, epoch_id = before.epoch, before.id
    committed = CommittedOffset()  # set by field: half the time of keyword arguments, for thousands of offsets
    committed.topic_id, committed.partition, committed.offset = entry.topic_id, entry.partition, entry.offset
    committed.leader_epoch, committed.leader_epoch_id, committed.metadata = leader_epoch, epoch_id, entry.metadata
    committed.timestamp, committed.clock_ahead_ms = now_ms, ahead_ms
    return committed


async def check_deleted(broker: BrokerParts, tps: Sequence[TopicIdPartition]) -> None:
    """Checks that the partitions that this node, the coordinator, does not know are deleted, and not too new to be known. Raises
    NotReadyError, NotCoordinatorError, CoordinatorLoadInProgressError."""
    unknown = {
        tp for tp in tps if tp.partition >= broker.topics.count_of(tp.topic_id) and not broker.members.has_deleted(tp.topic_id)
    }
    if unknown and broker.groups:  # raises if this node is not the coordinator
        broker.members.deleted(await broker.cluster.check_deleted(unknown))


def led_here(broker: BrokerParts, tp: TopicIdPartition) -> Partition | None:
    """The partition if this node leads it, None if another node does. Raises UnknownTopicIdError, UnknownTopicOrPartitionError."""
    try:
        return broker.partitions.leader(tp)
    except NotLeaderError:
        return None


# FetchGroupOffsets


async def fetch_group_offsets(broker: BrokerParts, authorizer: TopicAuthorizer, request: Request) -> Response:
    """A group's committed offsets. All of them are durable: waits for decisions that are being recorded."""
    check_id("group_id", request.group_id)
    asked = partitions_of("partitions", request.partitions)
    after = partition_after(request.after_topic_id, request.after_partition)
    response = Response()
    with fails_with(response, f"offsets of group {request.group_id!r}"):
        authorizer.require_group(request.group_id)
        await check_deleted(broker, asked)
        async with broker.groups.settled() as table:
            group = table.groups.get(request.group_id)
            if asked:
                await _add_asked(broker, authorizer, asked, group, response)
            elif group is not None:
                _add_page(authorizer, group, after, response)
    return response


async def _add_asked(
    broker: BrokerParts, authorizer: TopicAuthorizer, asked: Sequence[TopicIdPartition], group: Group | None, response: Response
) -> None:
    pauses = Pauses(broker.turns)
    for tp, committed in [(tp, group.offset(tp) if group is not None else None) for tp in asked]:  # a snapshot, before any await
        await pauses.after()
        result = response.results.add()
        _fill(result, tp, None)
        with fails_with(result, "a committed offset"):
            authorizer.require_id(Right.READ, tp.topic_id)
            _fill(result, tp, committed)
            try:
                _check_history(led_here(broker, tp), committed)
            except LogTruncationError:
                if await broker.cluster.is_confirmed_leader(tp, broker.partitions.leader(tp).leader_epoch):
                    raise


def _add_page(authorizer: TopicAuthorizer, group: Group, after: TopicIdPartition | None, response: Response) -> None:
    for tp in group.partitions(after, is_wanted=partial(authorizer.allows_id, Right.READ)):
        if len(response.results) == LISTED_MAX:
            response.more = True
            break
        _fill(response.results.add(), tp, group.offset(tp))


# DescribeGroup


async def describe_group(
    broker: BrokerParts, authorizer: TopicAuthorizer, request: offsets_pb2.DescribeGroupRequest
) -> offsets_pb2.DescribeGroupResponse:
    """A group's committed offsets, and how much it has left to read.

    - Partitions of its topics without an offset are included, with everything left to read: they may have been added later, and
      have no reader in the group.
    - Offsets need no file access. Bytes left, and the age of the next record, are read from indexes and headers in a thread, one
      partition at a time; if that fails, they are unknown.
    - Log start and end of a partition that another node leads are unknown (-1): ask its leader.
    - A reader beyond the end at its isolation level (it may have read uncommitted records) has nothing left.
    """
    check_id("group_id", request.group_id)
    is_committed = reads_committed(request.isolation_level)
    after = partition_after(request.after_topic_id, request.after_partition)
    response = offsets_pb2.DescribeGroupResponse()
    page: list[tuple[TopicIdPartition, CommittedOffset | None]] = []
    with fails_with(response, f"description of group {request.group_id!r}"):
        authorizer.require_group(request.group_id)
        async with broker.groups.settled() as table:
            group = table.required(request.group_id)
            response.group.CopyFrom(listing(group))
            page = _page(authorizer, group, after, broker.topics.count_of)
    pauses = Pauses(broker.turns)
    for tp, committed in page:
        if len(response.partitions) == DESCRIBED_MAX:
            response.more = True
            break
        await pauses.after()
        await _describe(broker, tp, committed, response.partitions.add(), is_committed=is_committed)
    return response


def _page(
    authorizer: TopicAuthorizer, group: Group, after: TopicIdPartition | None, count_of: Callable[[bytes], int]
) -> list[tuple[TopicIdPartition, CommittedOffset | None]]:
    """A page of partitions that the caller may read, plus one if there are more, with their offsets. All are durable at the time of
    this call; offsets committed while the page is described may not be.
    """
    tps = group.partitions(after, count_of, partial(authorizer.allows_id, Right.READ))
    return [(tp, group.offset(tp)) for tp in islice(tps, DESCRIBED_MAX + 1)]


async def _describe(
    broker: BrokerParts,
    tp: TopicIdPartition,
    committed: CommittedOffset | None,
    described: offsets_pb2.GroupPartitionDescription,
    *,
    is_committed: bool,
) -> None:
    described.log_start_offset = described.end_offset = described.lag_bytes = described.lag_ms = _NONE
    _fill(described.committed, tp, committed)
    with fails_with(described.committed, f"the group's backlog in {tp}"):
        described.topic = broker.topics.by_id(tp.topic_id).name
        log = led_here(broker, tp)
        if log is None:
            return
        described.log_start_offset = log.ends.log_start_offset
        described.end_offset = log.latest_offset(is_committed=is_committed)
        _check_history(log, committed)
        next_offset = committed.offset if committed is not None else log.ends.log_start_offset
        left = await left_to_read(broker, log, next_offset, described.end_offset, is_committed=is_committed)
        described.lag_bytes, described.lag_ms = left


# ListGroups


async def list_groups(
    broker: BrokerParts, authorizer: TopicAuthorizer, request: offsets_pb2.ListGroupsRequest
) -> offsets_pb2.ListGroupsResponse:
    """Lists groups that the caller may use, by id."""
    check_text("prefix", request.prefix)
    check_text("after", request.after)
    response = offsets_pb2.ListGroupsResponse()
    with fails_with(response, "the list of groups"):
        async with broker.groups.settled() as table:
            response.more = await list_page(
                table.groups if authorizer.rights.allows_groups else {},
                prefix=request.prefix,
                after=request.after,
                pauses=Pauses(broker.turns),
                is_wanted=lambda group: authorizer.rights.allows_group(group.group_id),
                add=lambda group: response.groups.append(listing(group)),
            )
    return response


# DeleteGroup


async def delete_group(
    broker: BrokerParts, authorizer: TopicAuthorizer, request: offsets_pb2.DeleteGroupRequest
) -> offsets_pb2.DeleteGroupResponse:
    """Forgets a group, or its offsets of some partitions.

    - Any principal that may use the group may delete it.
    - A group is deleted with its last offset.
    - Readers of the group are not stopped: their next commit creates it again.
    """
    check_id("group_id", request.group_id)
    tps = partitions_of("partitions", request.partitions)
    response = offsets_pb2.DeleteGroupResponse()
    with fails_with(response, f"deletion of group {request.group_id!r}"):
        authorizer.require_group(request.group_id)
        groups, what = broker.groups, f"deleted offsets of group {request.group_id!a}"
        with broker.audit.change(what) as change:
            async with groups.turn(request.group_id):
                count = await (groups.delete_offsets(request.group_id, tps) if tps else groups.delete(request.group_id))
            change.what = f"deleted {counted(count, 'offset')} of group {request.group_id!a}" if count else ""
        response.deleted_offsets = count
    return response


def listing(group: Group) -> offsets_pb2.GroupListing:
    """Summary of a group."""
    return offsets_pb2.GroupListing(
        group_id=group.group_id, principal=group.principal, partitions=group.count, commit_timestamp=group.commit_timestamp
    )


def _check_history(partition: Partition | None, committed: CommittedOffset | None) -> None:
    """Raises LogTruncationError if the offset was committed in another history of the log. None: another node leads the log."""
    try:
        if partition is not None and committed is not None:
            partition.check_history(LogPosition(committed.offset, committed.leader_epoch_id))
    except LogTruncationError as error:
        error.message += "; commit another offset for the group, or `brokerd groups reset` it"
        raise


def _fill(result: offsets_pb2.PartitionGroupOffset, tp: TopicIdPartition, committed: CommittedOffset | None) -> None:
    """Fills a response's entry with a committed offset, or none."""
    result.topic_id, result.partition = tp
    result.offset = result.leader_epoch = result.commit_timestamp = _NONE
    if committed is not None:
        result.offset, result.leader_epoch, result.commit_timestamp = committed.offset, committed.leader_epoch, committed.timestamp
        result.metadata, result.leader_epoch_id = committed.metadata, committed.leader_epoch_id
