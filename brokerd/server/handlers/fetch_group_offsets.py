"""FetchGroupOffsets: how far a group has read.

Behaviour
- Offset -1 for a partition that nothing is recorded of, and for all if there is no such group.
- All of a group come in pages, without topics that the caller may not read.
- An offset of another history than the log is LOG_TRUNCATION where the partition is asked for.
- What is answered is durable. What a transaction has decided about the group is waited for.
- A failed request has a result for each partition all the same.
"""

from __future__ import annotations

from brokerd.errors import WireError
from brokerd.groups.group_table import Group
from brokerd.ids import TopicIdPartition
from brokerd.server.broker import Broker
from brokerd.server.failures import malformed
from brokerd.server.groups.views import check_history, offset_result
from brokerd.server.requests import TOPIC_ID_BYTES, check_id, topic_id_partition
from brokerd.server.security.topic_authorizer import Right, TopicAuthorizer
from brokerd.server.waiting.pauses import Pauses
from brokerd.wire.errors import to_proto
from brokerd.wire.v1.offsets_pb2 import FetchGroupOffsetsRequest as Request
from brokerd.wire.v1.offsets_pb2 import FetchGroupOffsetsResponse as Response

LISTED_MAX = 1_000


def check(request: Request) -> None:
    """Checks the request as received. Raises MalformedError."""
    check_id("group_id", request.group_id)
    for entry in request.partitions:
        topic_id_partition("partitions", entry.topic_id, entry.partition)
    if len(request.after_topic_id) not in (0, TOPIC_ID_BYTES):
        raise malformed("after_topic_id", f"has {len(request.after_topic_id)} bytes, but must have {TOPIC_ID_BYTES} or none")


async def handle(broker: Broker, authorizer: TopicAuthorizer, request: Request) -> Response:
    """One result per partition asked, in the same order; or a page of all."""
    response = Response()
    try:
        authorizer.require_group(request.group_id)
        async with broker.groups.settled(request.group_id) as table:
            group = table.groups.get(request.group_id)
            if request.partitions:
                await _add_asked(broker, request, group, response)
            elif group is not None:
                _add_page(authorizer, request, group, response)
    except WireError as error:
        refused = [offset_result(TopicIdPartition(one.topic_id, one.partition), None) for one in request.partitions]
        return Response(error=to_proto(error), results=refused)
    return response


async def _add_asked(broker: Broker, request: Request, group: Group | None, response: Response) -> None:
    asked = [TopicIdPartition(one.topic_id, one.partition) for one in request.partitions]
    pauses = Pauses(broker.turns)
    for tp, committed in [(tp, group.offset(tp) if group is not None else None) for tp in asked]:  # of one moment
        await pauses.after()
        result = offset_result(tp, committed)
        try:
            check_history(broker.partitions.leader(tp), committed)
        except WireError as error:
            result.error.CopyFrom(to_proto(error))
        response.results.append(result)


def _add_page(authorizer: TopicAuthorizer, request: Request, group: Group, response: Response) -> None:
    after = TopicIdPartition(request.after_topic_id, request.after_partition) if request.after_topic_id else None
    for tp in group.partitions(after):
        if authorizer.refuse_id(Right.READ, tp.topic_id) is not None:
            continue
        if len(response.results) == LISTED_MAX:
            response.more = True
            break
        response.results.append(offset_result(tp, group.offset(tp)))
