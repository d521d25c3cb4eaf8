"""DescribeTransaction: one transactional id in depth: what it committed last, and who is open and where.

Behaviour
- Members are listed in the order in which they were opened, at most 1,000 of them, with 10,000 partitions; the rest is counted.
"""

from __future__ import annotations

from itertools import islice

from brokerd.errors import WireError
from brokerd.server.broker import Broker
from brokerd.server.requests import check_id
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.server.transactions.views import find, listing, open_partition
from brokerd.server.waiting.pauses import Pauses
from brokerd.transaction.transactional_id import MEMBER_EPOCH
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import transaction_pb2
from brokerd.wire.v1.transaction_log_pb2 import MemberOpened

MEMBERS_MAX = 1_000
PARTITIONS_MAX = 10_000


def check(request: transaction_pb2.DescribeTransactionRequest) -> None:
    """Checks the request as received. Raises MalformedError."""
    check_id("transactional_id", request.transactional_id)


async def handle(
    broker: Broker, authorizer: TopicAuthorizer, request: transaction_pb2.DescribeTransactionRequest
) -> transaction_pb2.DescribeTransactionResponse:
    """The id, or its error."""
    response = transaction_pb2.DescribeTransactionResponse()
    try:
        state = find(broker, authorizer, request.transactional_id)
    except WireError as error:
        response.error.CopyFrom(to_proto(error))
        return response
    response.listing.CopyFrom(listing(broker, state))
    if state.last is not None:
        response.last_execution_id, response.last_run_id = state.last.execution_id, state.last.run_id
        response.last_totals.CopyFrom(state.last.totals)
    pauses = Pauses(broker.turns)
    listed_partitions = 0
    for member in list(islice(state.members.values(), MEMBERS_MAX)):
        if listed_partitions >= PARTITIONS_MAX:
            break
        described = _member(broker, authorizer, member)
        if described is not None:  # not ended meanwhile
            response.members.append(described)
            listed_partitions += len(described.partitions)
            await pauses.after(1 + len(described.partitions))
    response.more_members = max(len(state.members) - len(response.members), 0)
    return response


def _member(broker: Broker, authorizer: TopicAuthorizer, member: MemberOpened) -> transaction_pb2.OpenMember | None:
    coordinator = broker.transactions.coordinator
    known = coordinator.open_members.get(member.producer_id)
    if known is None:
        return None
    now_ms = broker.clock.monotonic_ms()
    held = broker.transactions.leaders.open_data(member.producer_id)
    return transaction_pb2.OpenMember(
        member_id=member.member_id,
        producer_id=member.producer_id,
        producer_epoch=MEMBER_EPOCH,
        txn_version=member.txn_version,
        execution_id=member.execution_id,
        run_id=member.run_id,
        owner=member.owner,
        age_ms=now_ms - known.opened_ms,
        expires_in_ms=max(coordinator.expires_at(known.execution) - now_ms, 0),
        partitions=[open_partition(authorizer, replica, data.first_offset) for replica, data in held.items()],
    )
