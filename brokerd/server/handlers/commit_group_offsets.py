"""CommitGroupOffsets: record how far a group has read.

Behaviour
- Partitions are checked independently: unknown ones, offsets beyond the high watermark, and long metadata are that partition's
  error. All others are recorded in one batch of the log of group offsets: durable before the response, all of them or none.
- An offset must be one that a reader can have come to: not negative, and not beyond the high watermark. (Kafka takes any number;
  a mistake then shows much later, as a lag that is negative, or as a reader that starts somewhere else.) Below the log start it
  may lie: retention may have passed it while records were in work. It may also go back.
- An offset of another history than the log is refused: LOG_TRUNCATION. One that says of no history is taken for this log's.
- The last commit counts: readers without membership do not fence one another.
- The first commit makes the group, and it counts for that principal.
- A commit of no offset is a sign of life of a reader: the group is kept as if it had committed. It makes no group.
- A generation or a member is refused: groups have no members.
"""

from __future__ import annotations

from brokerd.errors import OffsetMetadataTooLargeError, OffsetOutOfRangeError, UnsupportedVersionError, WireError
from brokerd.groups.group_table import METADATA_MAX_BYTES
from brokerd.ids import LogPosition, TopicIdPartition
from brokerd.server.broker import Broker
from brokerd.server.failures import malformed
from brokerd.server.groups.views import offset_result
from brokerd.server.requests import check_id, check_not_negative, topic_id_partition
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.server.waiting.pauses import Pauses
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import offsets_pb2, transaction_pb2
from brokerd.wire.v1.group_log_pb2 import CommittedOffset

_NONE = -1

Entry = offsets_pb2.PartitionGroupOffset | transaction_pb2.TransactionGroupOffset


def check(request: offsets_pb2.CommitGroupOffsetsRequest) -> None:
    """Checks the request as received. Raises MalformedError."""
    check_id("group_id", request.group_id)
    for entry in request.offsets:
        check_entry("offsets", entry)


def check_entry(field: str, entry: Entry) -> None:
    """Raises MalformedError."""
    topic_id_partition(field, entry.topic_id, entry.partition)
    check_not_negative(f"{field}.offset", entry.offset)
    if entry.leader_epoch < _NONE:
        raise malformed(f"{field}.leader_epoch", f"is {entry.leader_epoch}, but must be an epoch, or -1 if it is unknown")


async def handle(
    broker: Broker, authorizer: TopicAuthorizer, request: offsets_pb2.CommitGroupOffsetsRequest
) -> offsets_pb2.CommitGroupOffsetsResponse:
    """One result per partition, in the same order."""
    response = offsets_pb2.CommitGroupOffsetsResponse()
    try:
        authorizer.require_group(request.group_id)
        _check_no_member(request)
        if not request.offsets:
            await broker.groups.renew(request.group_id)
        offsets = await _checked(broker, request, response)
        if offsets:
            await broker.groups.commit(request.group_id, authorizer.principal, offsets)
    except WireError as error:
        return offsets_pb2.CommitGroupOffsetsResponse(
            error=to_proto(error),
            results=[_refused(TopicIdPartition(one.topic_id, one.partition), error) for one in request.offsets],
        )
    return response


def _check_no_member(request: offsets_pb2.CommitGroupOffsetsRequest) -> None:
    if request.generation != _NONE or request.member_id:
        raise UnsupportedVersionError(
            f"generation is {request.generation} and member_id {request.member_id[:40]!a}, but groups have no members here: "
            "send -1 and none, and assign partitions yourself"
        )


async def _checked(
    broker: Broker, request: offsets_pb2.CommitGroupOffsetsRequest, response: offsets_pb2.CommitGroupOffsetsResponse
) -> list[CommittedOffset]:
    """The offsets to record; all results are in the response."""
    now_ms, ahead_ms = broker.logs.time.stamp_ms()
    offsets: list[CommittedOffset] = []
    pauses = Pauses(broker.turns)
    for entry in request.offsets:
        await pauses.after()
        try:
            offsets.append(checked_offset(broker, entry, now_ms, ahead_ms))
        except WireError as error:
            response.results.append(_refused(TopicIdPartition(entry.topic_id, entry.partition), error))
            continue
        result = response.results.add()
        result.topic_id, result.partition = entry.topic_id, entry.partition
        result.offset, result.leader_epoch, result.commit_timestamp = entry.offset, entry.leader_epoch, now_ms
    return offsets


def checked_offset(broker: Broker, entry: Entry, now_ms: int, ahead_ms: int) -> CommittedOffset:
    """The offset to record. Raises UnknownTopicIdError and others for the partition, LogTruncationError, OffsetOutOfRangeError,
    OffsetMetadataTooLargeError."""
    partition = broker.partitions.leader(TopicIdPartition(entry.topic_id, entry.partition))
    partition.check_history(LogPosition(entry.offset, entry.leader_epoch_id))
    end_offset = partition.ends.high_watermark
    if entry.offset > end_offset:
        raise OffsetOutOfRangeError(
            f"offsets.offset is {entry.offset}, beyond the high watermark {end_offset} of {partition.name}: commit the offset of "
            "the next record to read"
        )
    size_bytes = len(entry.metadata.encode()) if entry.metadata else 0
    if size_bytes > METADATA_MAX_BYTES:
        raise OffsetMetadataTooLargeError(
            f"offsets.metadata of {partition.name} has {size_bytes} bytes, more than the {METADATA_MAX_BYTES} allowed"
        )
    leader_epoch, epoch_id = entry.leader_epoch, entry.leader_epoch_id
    before = partition.epoch_before(entry.offset)
    if before is not None and not epoch_id and leader_epoch in (_NONE, before.epoch):
        leader_epoch, epoch_id = before.epoch, before.id
    committed = CommittedOffset()  # and field by field: half the time of keywords, where there are thousands
    committed.topic_id, committed.partition, committed.offset = entry.topic_id, entry.partition, entry.offset
    committed.leader_epoch, committed.leader_epoch_id, committed.metadata = leader_epoch, epoch_id, entry.metadata
    committed.timestamp, committed.clock_ahead_ms = now_ms, ahead_ms
    return committed


def _refused(tp: TopicIdPartition, error: WireError) -> offsets_pb2.PartitionGroupOffset:
    result = offset_result(tp, None)
    result.error.CopyFrom(to_proto(error))
    return result
