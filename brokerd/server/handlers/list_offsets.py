"""ListOffsets: earliest, latest, by timestamp, by bytes, or a number of records before the end.

Behaviour
- LATEST is the high watermark or, with read_committed, the last stable offset: the next offset that a reader could fetch. After
  an election it is OFFSET_NOT_AVAILABLE, and so are look-ups, until the high watermark has reached the start of the epoch.
- TIMESTAMP is the first offset below LATEST whose record has this or a later timestamp; -1 if none. Unlike in Kafka, control
  batches do not count, which are as new as the commit, however old its rows are; nor, with read_committed, aborted transactions.
- BACKLOG has the size and the age of the records left to read, as DescribeGroup does; the age is by the leader's clock.
- LAST_RECORDS does not count control batches, damaged or taken-out records and, with read_committed, aborted transactions.
- leader_epoch is that of the batch at the offset, or of the last batch before it; -1 if nothing was ever written.
- log_start_offset is read in the same step as LATEST, so that no removal falls between them.
- Look-ups by time, bytes and records read index and log in a thread, one partition at a time per call. They stop when the caller
  is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from brokerd.config.settings import INT64_MAX
from brokerd.errors import LogTruncationError
from brokerd.ids import LogPosition, TopicIdPartition
from brokerd.partition.partition import Partition
from brokerd.server.broker import BrokerParts
from brokerd.server.failures import fails_with, malformed
from brokerd.server.handlers.fetch import require_leader
from brokerd.server.paging import Pauses
from brokerd.server.requests import check_not_negative, reads_committed, topic_id_partition
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.sharing import CALLER
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import offsets_pb2

T = TypeVar("T")
_NONE = -1
_SPECS = offsets_pb2.OffsetSpec.values()


async def handle(
    broker: BrokerParts, authorizer: TopicAuthorizer, request: offsets_pb2.ListOffsetsRequest
) -> offsets_pb2.ListOffsetsResponse:
    """One result per requested partition, in the same order."""
    asked = [(_checked(entry), entry) for entry in request.partitions]
    is_committed = reads_committed(request.isolation_level)
    response = offsets_pb2.ListOffsetsResponse()
    pauses = Pauses(broker.turns)
    for tp, entry in asked:
        await pauses.after()
        response.results.append(await _answer(broker, authorizer, tp, entry, is_committed))
    return response


def _checked(entry: offsets_pb2.PartitionListOffsets) -> TopicIdPartition:
    """The partition of an entry. Raises MalformedError."""
    if entry.spec not in _SPECS or entry.spec == offsets_pb2.OFFSET_SPEC_UNSPECIFIED:
        raise malformed("partitions.spec", f"is {entry.spec}, but must be one of OffsetSpec")
    if entry.spec == offsets_pb2.OFFSET_SPEC_TIMESTAMP:
        check_not_negative("partitions.timestamp", entry.timestamp)
    if entry.spec in (offsets_pb2.OFFSET_SPEC_GIVEN, offsets_pb2.OFFSET_SPEC_BACKLOG):
        check_not_negative("partitions.from_offset", entry.from_offset)
    if entry.spec == offsets_pb2.OFFSET_SPEC_AFTER_BYTES:
        check_not_negative("partitions.from_offset", entry.from_offset)
        check_not_negative("partitions.until_offset", entry.until_offset)
        check_not_negative("partitions.max_bytes", entry.max_bytes)
    if entry.spec == offsets_pb2.OFFSET_SPEC_LAST_RECORDS:
        check_not_negative("partitions.until_offset", entry.until_offset)
        check_not_negative("partitions.record_count", entry.record_count)
    return topic_id_partition("partitions", entry.topic_id, entry.partition)


async def _answer(
    broker: BrokerParts,
    authorizer: TopicAuthorizer,
    tp: TopicIdPartition,
    entry: offsets_pb2.PartitionListOffsets,
    is_committed: bool,
) -> offsets_pb2.PartitionListOffsetsResult:
    result = offsets_pb2.PartitionListOffsetsResult(
        topic_id=tp.topic_id, partition=tp.partition, offset=_NONE, timestamp=_NONE, leader_epoch=_NONE, lag_ms=_NONE
    )
    with fails_with(result, tp):
        authorizer.require_id(None, tp.topic_id)
        log = broker.partitions.leader(tp, entry.current_leader_epoch)
        if entry.spec == offsets_pb2.OFFSET_SPEC_AFTER_BYTES:
            reach = partial(log.look_ups.reach, entry.from_offset, entry.until_offset, entry.max_bytes)
            result.offset, result.size_bytes = await _searched(broker, reach, is_committed)
            return result
        result.offset, result.timestamp = await _look_up(broker, log, entry, is_committed)
        if result.offset != _NONE:
            result.leader_epoch = log.epochs.epoch_at(result.offset)
            before = log.epoch_before(result.offset)
            if before is not None:
                result.leader_epoch_id, result.epoch_start_offset = before.id, before.start_offset
        result.log_start_offset = log.ends.log_start_offset
        if entry.spec == offsets_pb2.OFFSET_SPEC_BACKLOG:
            left = await left_to_read(broker, log, entry.from_offset, result.offset, is_committed=is_committed)
            result.size_bytes, result.lag_ms = left
        if entry.HasField("position"):
            try:
                log.check_history(LogPosition(entry.position.offset, entry.position.leader_epoch_id))
            except LogTruncationError as error:
                await require_leader(broker, log, error)
                result.truncation.CopyFrom(to_proto(error))
    return result


async def _look_up(
    broker: BrokerParts, log: Partition, entry: offsets_pb2.PartitionListOffsets, is_committed: bool
) -> tuple[int, int]:
    """Offset and timestamp (ms), each -1 if there is none."""
    if entry.spec == offsets_pb2.OFFSET_SPEC_EARLIEST:
        return log.ends.log_start_offset, _NONE
    if entry.spec in (offsets_pb2.OFFSET_SPEC_LATEST, offsets_pb2.OFFSET_SPEC_BACKLOG):
        return log.latest_offset(is_committed=is_committed), _NONE
    if entry.spec == offsets_pb2.OFFSET_SPEC_GIVEN:
        return entry.from_offset, _NONE
    if entry.spec == offsets_pb2.OFFSET_SPEC_LAST_RECORDS:
        newest = partial(log.look_ups.newest_offset, entry.record_count, entry.until_offset or INT64_MAX)
        return await _searched(broker, newest, is_committed), _NONE
    found = await _searched(broker, partial(log.look_ups.offset_for_timestamp, entry.timestamp), is_committed)
    return found if found is not None else (_NONE, _NONE)


async def left_to_read(broker: BrokerParts, log: Partition, offset: int, end_offset: int, *, is_committed: bool) -> tuple[int, int]:
    """The backlog of a reader at `offset`: bytes, and ms since its first batch was appended; -1 = none, or unknown."""
    if offset >= end_offset:
        return 0, _NONE
    found = await _searched(broker, partial(log.look_ups.backlog, offset), is_committed)
    is_known = found.append_timestamp != _NONE
    return found.size_bytes, max(0, broker.clock.wall_ms() - found.append_timestamp) if is_known else _NONE


async def _searched(broker: BrokerParts, look_up: Callable[..., T], is_committed: bool) -> T:
    return await broker.searchers.search(CALLER.get(), partial(look_up, is_committed=is_committed))
