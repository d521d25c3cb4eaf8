"""ListTransactions: transactional ids, in the order of their names.

Behaviour
- The caller's own; all of them, if the caller has ADMIN on every topic.
- At most 1,000 in one response: `more` says that there are others after the last one.
"""

from __future__ import annotations

from brokerd.server.broker import Broker
from brokerd.server.failures import malformed
from brokerd.server.requests import check_text
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.server.transactions.views import listing, seen_by, state_of
from brokerd.server.waiting.pauses import Pauses, page_of
from brokerd.wire.v1 import transaction_pb2


def check(request: transaction_pb2.ListTransactionsRequest) -> None:
    """Checks the request as received. Raises MalformedError."""
    if request.state not in transaction_pb2.TransactionState.values():
        raise malformed("state", f"is {request.state}, but must be one of TransactionState")
    check_text("prefix", request.prefix)
    check_text("after", request.after)


async def handle(
    broker: Broker, authorizer: TopicAuthorizer, request: transaction_pb2.ListTransactionsRequest
) -> transaction_pb2.ListTransactionsResponse:
    """One page."""
    states, pauses = seen_by(broker, authorizer), Pauses(broker.turns)
    page = await page_of(
        states,
        prefix=request.prefix,
        after=request.after,
        pauses=pauses,
        is_wanted=lambda state: request.state in (0, state_of(state)),
    )
    response = transaction_pb2.ListTransactionsResponse(more=page.more)
    for name in page.names:
        await pauses.after()
        state = states.get(name)
        if state is not None:  # not gone meanwhile
            response.transactions.append(listing(broker, state))
    return response
