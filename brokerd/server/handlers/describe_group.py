"""DescribeGroup: how far a group has read, and what it has left to read.

Behaviour
- UNKNOWN_GROUP if there is none. Partitions of topics that the caller may not read are left out.
- Partitions of its topics without an offset, which nobody of the group may read (they were added later), are there too: all of
  them is left to read.
- Offsets are known without a look at any file. Bytes, and how long the next record has been there, are read from indexes and
  headers in a thread, one partition at a time; where that fails, they are unknown.
- A reader that has passed the end for its isolation level, as one of uncommitted records may have, has nothing left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from brokerd.errors import WireError
from brokerd.groups.group_table import Group
from brokerd.ids import TopicIdPartition
from brokerd.partition.look_up import Backlog
from brokerd.partition.partition import Partition
from brokerd.server.broker import Broker
from brokerd.server.failures import internal, malformed
from brokerd.server.groups.views import check_history, listing, offset_result
from brokerd.server.requests import TOPIC_ID_BYTES, check_id
from brokerd.server.security.topic_authorizer import Right, TopicAuthorizer
from brokerd.server.waiting.pauses import Pauses
from brokerd.sharing import CALLER
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import fetch_pb2, offsets_pb2
from brokerd.wire.v1.group_log_pb2 import CommittedOffset

DESCRIBED_MAX = 1_000
_NONE = -1


def check(request: offsets_pb2.DescribeGroupRequest) -> None:
    """Checks the request as received. Raises MalformedError."""
    check_id("group_id", request.group_id)
    if request.isolation_level not in fetch_pb2.IsolationLevel.values():
        raise malformed("isolation_level", f"is {request.isolation_level}, but must be 0 or 1")
    if len(request.after_topic_id) not in (0, TOPIC_ID_BYTES):
        raise malformed("after_topic_id", f"has {len(request.after_topic_id)} bytes, but must have {TOPIC_ID_BYTES} or none")


async def handle(
    broker: Broker, authorizer: TopicAuthorizer, request: offsets_pb2.DescribeGroupRequest
) -> offsets_pb2.DescribeGroupResponse:
    """One page."""
    after = TopicIdPartition(request.after_topic_id, request.after_partition) if request.after_topic_id else None
    try:
        authorizer.require_group(request.group_id)
        async with broker.groups.settled(request.group_id) as table:
            group = table.required(request.group_id)
            response = offsets_pb2.DescribeGroupResponse(group=listing(group))
            page = _page(authorizer, group, after, broker.logs.topics.count_of)
    except WireError as error:
        return offsets_pb2.DescribeGroupResponse(error=to_proto(error))
    is_committed = request.isolation_level == fetch_pb2.ISOLATION_LEVEL_READ_COMMITTED
    pauses = Pauses(broker.turns)
    for tp, committed in page:
        if len(response.partitions) == DESCRIBED_MAX:
            response.more = True
            break
        await pauses.after()
        response.partitions.append(await _described(broker, tp, committed, is_committed=is_committed))
    return response


def _page(
    authorizer: TopicAuthorizer, group: Group, after: TopicIdPartition | None, count_of: Callable[[bytes], int]
) -> list[tuple[TopicIdPartition, CommittedOffset | None]]:
    """The partitions that the caller may see, one more than fit, if there are; with their offsets, of which all are durable once
    they are told. What is committed between the descriptions may not be.
    """
    page: list[tuple[TopicIdPartition, CommittedOffset | None]] = []
    for tp in group.partitions(after, count_of):
        if authorizer.refuse_id(Right.READ, tp.topic_id) is None:
            page.append((tp, group.offset(tp)))
        if len(page) > DESCRIBED_MAX:
            break
    return page


async def _described(
    broker: Broker, tp: TopicIdPartition, committed: CommittedOffset | None, *, is_committed: bool
) -> offsets_pb2.GroupPartitionDescription:
    described = offsets_pb2.GroupPartitionDescription(
        committed=offset_result(tp, committed), log_start_offset=_NONE, end_offset=_NONE, lag_bytes=_NONE, lag_ms=_NONE
    )
    try:
        log = broker.partitions.leader(tp)
        described.topic = log.topic
        described.log_start_offset = log.ends.log_start_offset
        described.end_offset = log.ends.last_stable_offset if is_committed else log.ends.high_watermark
        check_history(log, committed)
        next_offset = committed.offset if committed is not None else log.ends.log_start_offset
        found = await _backlog(broker, log, next_offset, described.end_offset, is_committed=is_committed)
        described.lag_bytes = found.size_bytes
        if found.append_timestamp != _NONE:
            described.lag_ms = max(0, broker.clock.wall_ms() - found.append_timestamp)
    except WireError as error:
        described.committed.error.CopyFrom(to_proto(error))
    except Exception as error:
        described.committed.error.CopyFrom(to_proto(internal(f"the group's backlog in {tp}", error)))
    return described


async def _backlog(broker: Broker, log: Partition, offset: int, end_offset: int, *, is_committed: bool) -> Backlog:
    if offset >= end_offset:
        return Backlog(0, _NONE)
    is_over = threading.Event()
    work = partial(log.backlog, offset, is_committed=is_committed, is_wanted=lambda: not is_over.is_set())
    try:
        return await broker.searchers.run(CALLER.get(), work)
    finally:
        is_over.set()
