"""ForgetTransactionalId: an operator has the broker forget an id, so that any principal may use it from then on.

Behaviour
- Whoever has ADMIN on every topic may; to others the id of another principal does not exist.
- INVALID_TXN_STATE while members are open or a commit is not finished.
- The last committed version is forgotten too: a replay of it, or of an older one, would be written again.
"""

from __future__ import annotations

from brokerd.errors import TransactionalIdAuthorizationFailedError, WireError
from brokerd.server.broker import Broker
from brokerd.server.requests import check_id
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.server.transactions.views import find
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import transaction_pb2


def check(request: transaction_pb2.ForgetTransactionalIdRequest) -> None:
    """Checks the request as received. Raises MalformedError."""
    check_id("transactional_id", request.transactional_id)


async def handle(
    broker: Broker, authorizer: TopicAuthorizer, request: transaction_pb2.ForgetTransactionalIdRequest
) -> transaction_pb2.ForgetTransactionalIdResponse:
    """Its last version, and whose it was."""
    name = request.transactional_id
    try:
        principal = find(broker, authorizer, name).principal
        if not authorizer.rights.administers_everything:
            raise TransactionalIdAuthorizationFailedError(
                f"to have transactional id {name!r} forgotten needs ADMIN on every topic: ask an operator"
            )
        last_version = await broker.transactions.forget(name)
    except WireError as error:
        return transaction_pb2.ForgetTransactionalIdResponse(error=to_proto(error), last_version=-1)
    return transaction_pb2.ForgetTransactionalIdResponse(last_version=last_version, principal=principal)
