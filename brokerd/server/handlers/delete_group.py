"""DeleteGroup: forget a group, or its offsets of some partitions.

Behaviour
- Whoever may use the group may delete it.
- UNKNOWN_GROUP if there is none. Partitions that it has no offset of are passed over. Without any offset, the group is gone.
- Readers of the group are not stopped: their next commit makes it again.
"""

from __future__ import annotations

from brokerd.errors import WireError
from brokerd.ids import TopicIdPartition
from brokerd.server.broker import Broker
from brokerd.server.requests import check_id, topic_id_partition
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import offsets_pb2


def check(request: offsets_pb2.DeleteGroupRequest) -> None:
    """Checks the request as received. Raises MalformedError."""
    check_id("group_id", request.group_id)
    for entry in request.partitions:
        topic_id_partition("partitions", entry.topic_id, entry.partition)


async def handle(
    broker: Broker, authorizer: TopicAuthorizer, request: offsets_pb2.DeleteGroupRequest
) -> offsets_pb2.DeleteGroupResponse:
    """How many offsets are gone."""
    try:
        authorizer.require_group(request.group_id)
        if request.partitions:
            tps = [TopicIdPartition(one.topic_id, one.partition) for one in request.partitions]
            count = await broker.groups.delete_offsets(request.group_id, tps)
        else:
            count = await broker.groups.delete(request.group_id)
    except WireError as error:
        return offsets_pb2.DeleteGroupResponse(error=to_proto(error))
    return offsets_pb2.DeleteGroupResponse(deleted_offsets=count)
