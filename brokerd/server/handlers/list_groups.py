"""ListGroups: groups, in the order of their ids.

Behaviour
- Those that the caller may use.
- At most 1,000 in one response: `more` says that there are others after the last one.
"""

from __future__ import annotations

from brokerd.errors import WireError
from brokerd.server.broker import Broker
from brokerd.server.groups.views import listing
from brokerd.server.requests import check_text
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.server.waiting.pauses import Pauses, page_of
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import offsets_pb2


def check(request: offsets_pb2.ListGroupsRequest) -> None:
    """Checks the request as received. Raises MalformedError."""
    check_text("prefix", request.prefix)
    check_text("after", request.after)


async def handle(
    broker: Broker, authorizer: TopicAuthorizer, request: offsets_pb2.ListGroupsRequest
) -> offsets_pb2.ListGroupsResponse:
    """One page."""
    try:
        async with broker.groups.settled() as table:
            groups, pauses = table.groups if authorizer.rights.allows_groups else {}, Pauses(broker.turns)
            page = await page_of(
                groups,
                prefix=request.prefix,
                after=request.after,
                pauses=pauses,
                is_wanted=lambda group: authorizer.rights.allows_group(group.group_id),
            )
            response = offsets_pb2.ListGroupsResponse(more=page.more)
            for group_id in page.names:
                await pauses.after()
                group = groups.get(group_id)
                if group is not None:  # not gone meanwhile
                    response.groups.append(listing(group))
    except WireError as error:
        return offsets_pb2.ListGroupsResponse(error=to_proto(error))
    return response
