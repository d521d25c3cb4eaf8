"""AbortTransaction: an operator ends open members, of one execution or of all.

Behaviour
- The owner of the transactional id may, and whoever has ADMIN on every topic. What is committed stays so.
- Their tasks fail at their next batch; the next execution of the version begins with new members.
"""

from __future__ import annotations

from brokerd.errors import WireError
from brokerd.server.broker import Broker
from brokerd.server.requests import check_id, check_text
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.server.transactions.views import find
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import transaction_pb2


def check(request: transaction_pb2.AbortTransactionRequest) -> None:
    """Checks the request as received. Raises MalformedError."""
    check_id("transactional_id", request.transactional_id)
    check_text("execution_id", request.execution_id)


async def handle(
    broker: Broker, authorizer: TopicAuthorizer, request: transaction_pb2.AbortTransactionRequest
) -> transaction_pb2.AbortTransactionResponse:
    """How many members were aborted."""
    try:
        find(broker, authorizer, request.transactional_id)
        count = await broker.transactions.abort_all(request.transactional_id, request.execution_id)
    except WireError as error:
        return transaction_pb2.AbortTransactionResponse(error=to_proto(error))
    return transaction_pb2.AbortTransactionResponse(aborted_members=count)
