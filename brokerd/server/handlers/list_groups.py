"""ListGroups: groups, in the order of their ids.

Behaviour
- The caller's own; all of them, if the caller has ADMIN on every topic.
- At most 1,000 in one response: `more` says that there are others after the last one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from brokerd.errors import WireError
from brokerd.groups.group import Group
from brokerd.groups.group_table import Caller, may_see
from brokerd.server.broker import Broker
from brokerd.server.fields import check_text
from brokerd.server.groups.views import caller_of, listing
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.server.waiting.pauses import Pauses
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import offsets_pb2

LISTED_MAX = 1_000


def check(request: offsets_pb2.ListGroupsRequest) -> None:
    """Checks the request as received. Raises MalformedError."""
    check_text("prefix", request.prefix)
    check_text("after", request.after)


async def handle(
    broker: Broker, authorizer: TopicAuthorizer, request: offsets_pb2.ListGroupsRequest
) -> offsets_pb2.ListGroupsResponse:
    """One page."""
    broker.require_ready()
    try:
        async with broker.groups.settled() as table:
            return await _page(table.groups, caller_of(authorizer), request)
    except WireError as error:
        return offsets_pb2.ListGroupsResponse(error=to_proto(error))


async def _page(
    groups: Mapping[str, Group], caller: Caller, request: offsets_pb2.ListGroupsRequest
) -> offsets_pb2.ListGroupsResponse:
    response = offsets_pb2.ListGroupsResponse()
    group_ids = sorted(group_id for group_id in groups if group_id.startswith(request.prefix))
    pauses = Pauses()
    for group_id in group_ids[bisect_right(group_ids, request.after) :]:
        await pauses.after()
        group = groups.get(group_id)
        if group is None or not may_see(group, caller):
            continue
        if len(response.groups) == LISTED_MAX:
            response.more = True
            break
        response.groups.append(listing(group))
    return response
