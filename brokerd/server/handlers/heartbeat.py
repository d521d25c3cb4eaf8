"""Heartbeat: a sign of life of a member, which counts for its whole execution.

Behaviour
- A member that is not open has INVALID_TXN_STATE: it expired, was aborted, or its version is decided. That is final.
"""

from __future__ import annotations

from brokerd.errors import WireError
from brokerd.server.broker import Broker
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.server.transactions.fields import check_execution, check_member_id
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import transaction_pb2


def check(request: transaction_pb2.HeartbeatRequest) -> None:
    """Checks the request as received. Raises MalformedError."""
    check_execution(request)
    check_member_id(request.member_id)


async def handle(
    broker: Broker, authorizer: TopicAuthorizer, request: transaction_pb2.HeartbeatRequest
) -> transaction_pb2.HeartbeatResponse:
    """Whether the member is open still."""
    try:
        await broker.transactions.heartbeat(authorizer.principal, request)
    except WireError as error:
        return transaction_pb2.HeartbeatResponse(error=to_proto(error))
    return transaction_pb2.HeartbeatResponse()
