"""FindHangingTransactions: which transactions hold back the last stable offset of partitions, the oldest first.

Behaviour
- One entry for each partition that is held back: its first open member, if it has been silent there for `idle_ms`, or a commit that
  was decided so long ago and is not finished, since one of its partitions takes no marker.
- The caller's own; all of them, and those of members that nobody knows, if the caller has ADMIN on every topic.
"""

from __future__ import annotations

import heapq
from operator import itemgetter

from brokerd.partition.partition import Partition
from brokerd.server.broker import Broker
from brokerd.server.requests import check_not_negative
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.server.transactions.views import may_see, open_partition
from brokerd.server.waiting.pauses import Pauses
from brokerd.wire.v1 import transaction_pb2

LISTED_MAX = 1_000
_NO_PRODUCER_ID = -1


def check(request: transaction_pb2.FindHangingTransactionsRequest) -> None:
    """Checks the request as received. Raises MalformedError."""
    check_not_negative("idle_ms", request.idle_ms)


async def handle(
    broker: Broker, authorizer: TopicAuthorizer, request: transaction_pb2.FindHangingTransactionsRequest
) -> transaction_pb2.FindHangingTransactionsResponse:
    """The transactions, as of each partition's own moment."""
    found = []
    pauses = Pauses(broker.turns)
    for log in broker.partitions.of_clients():
        await pauses.after()
        hanging = _hanging(broker, authorizer, log)
        if hanging is not None and hanging.idle_ms >= request.idle_ms:
            found.append(hanging)
    oldest = heapq.nlargest(LISTED_MAX, found, key=lambda hanging: hanging.idle_ms)
    return transaction_pb2.FindHangingTransactionsResponse(transactions=oldest, more=len(found) > LISTED_MAX)


def _hanging(broker: Broker, authorizer: TopicAuthorizer, log: Partition) -> transaction_pb2.HangingTransaction | None:
    if log.health.is_deleted:  # meanwhile
        return None
    producer_id = next(iter(log.producers.open_transactions), None)
    data = log.open_data(producer_id) if producer_id is not None else None
    name, first_offset = min(log.ends.held_back.items(), key=itemgetter(1), default=("", 0))
    if name and (data is None or first_offset <= data.first_offset):
        return _unfinished(broker, authorizer, log, name, first_offset)
    if producer_id is None or data is None:
        return None
    known = broker.transactions.coordinator.open_members.get(producer_id)
    is_visible = may_see(authorizer, known.state) if known is not None else authorizer.rights.administers_everything
    if not is_visible:
        return None
    last_ms = log.producers.entries[producer_id].last_timestamp
    return transaction_pb2.HangingTransaction(
        partition=open_partition(authorizer, log, data.first_offset),
        producer_id=producer_id,
        transactional_id=known.state.transactional_id if known is not None else "",
        idle_ms=max(broker.clock.wall_ms() - last_ms, 0),
    )


def _unfinished(
    broker: Broker, authorizer: TopicAuthorizer, log: Partition, name: str, first_offset: int
) -> transaction_pb2.HangingTransaction | None:
    state = broker.transactions.coordinator.states.get(name)
    if state is None or state.last is None or not may_see(authorizer, state):
        return None
    return transaction_pb2.HangingTransaction(
        partition=open_partition(authorizer, log, first_offset),
        producer_id=_NO_PRODUCER_ID,
        transactional_id=name,
        idle_ms=max(broker.clock.wall_ms() - state.timestamp, 0),
    )
