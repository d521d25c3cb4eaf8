"""InitProducerId: a producer id, for idempotence or for a member of a transaction.

Behaviour
- Ids come from a durable counter and are never reused.
- Without a transactional id. producer_id = producer_epoch = -1: a new id with epoch 0. Otherwise the given id with its epoch
  increased by one; an epoch of 32,767 cannot be increased, so a new id is assigned. A member's id leads to a new one too, and with
  authentication another principal's (security/topic_authorizer.py).
- With one: the caller becomes a member of an execution of a version, with an id of its own and epoch 0, durable when answered. The
  same member_id again gets the same id. What is committed already is ALREADY_COMMITTED or PRODUCER_FENCED, with the last version,
  execution and run (brokerd/transaction/transactional_id.py has the table).
"""

from __future__ import annotations

from brokerd.errors import WireError
from brokerd.ids import NO_PRODUCER, ProducerIdAndEpoch, is_member_producer_id
from brokerd.server.broker import Broker
from brokerd.server.failures import malformed
from brokerd.server.requests import check_text
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.server.transactions.fields import check_execution, check_member_id
from brokerd.transaction.transactional_id import MEMBER_EPOCH
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import transaction_pb2

EPOCH_MAX = 2**15 - 1
_NOT_GIVEN = ((-1, -1), (0, 0))


def check(request: transaction_pb2.InitProducerIdRequest) -> None:
    """Checks the request as received, before rights may replace its ids. Raises MalformedError."""
    producer_id, epoch = request.producer_id, request.producer_epoch
    if request.transactional_id:
        check_execution(request)
        check_text("run_id", request.run_id)
        check_text("owner", request.owner)
        check_member_id(request.member_id)
        if (producer_id, epoch) not in _NOT_GIVEN:
            raise malformed("producer_id", f"is {producer_id}, but must be -1 with a transactional_id: each member gets a new one")
        return
    for name in ("txn_version", "execution_id", "run_id", "owner", "member_id", "timeout_ms"):
        if getattr(request, name):
            raise malformed(name, "must be empty without a transactional_id")
    if (producer_id, epoch) == NO_PRODUCER:
        return
    if producer_id < 0:
        raise malformed("producer_id", f"is {producer_id}, but must be an id, or -1 together with producer_epoch")
    if not 0 <= epoch <= EPOCH_MAX:
        raise malformed("producer_epoch", f"is {epoch}, but must be between 0 and {EPOCH_MAX}")


async def handle(
    broker: Broker, authorizer: TopicAuthorizer, request: transaction_pb2.InitProducerIdRequest
) -> transaction_pb2.InitProducerIdResponse:
    """A producer id and epoch."""
    if request.transactional_id:
        return await _member(broker, authorizer, request)
    granted = await _grant(broker, authorizer, ProducerIdAndEpoch(request.producer_id, request.producer_epoch))
    return transaction_pb2.InitProducerIdResponse(producer_id=granted.producer_id, producer_epoch=granted.epoch, last_version=-1)


async def _grant(broker: Broker, authorizer: TopicAuthorizer, current: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
    is_usable = current != NO_PRODUCER and current.epoch < EPOCH_MAX and not is_member_producer_id(current.producer_id)
    if is_usable and authorizer.owns_producer(current.producer_id):
        return ProducerIdAndEpoch(current.producer_id, current.epoch + 1)
    ids = broker.logs.producer_ids
    while not ids.has_next:
        await broker.producer_ids.run(ids.reserve())
    # No await from here on: the id is known to be the caller's before any other request can run.
    return ProducerIdAndEpoch(authorizer.own_producer_id(ids.take()), 0)


async def _member(
    broker: Broker, authorizer: TopicAuthorizer, request: transaction_pb2.InitProducerIdRequest
) -> transaction_pb2.InitProducerIdResponse:
    response = transaction_pb2.InitProducerIdResponse(last_version=-1)
    try:
        member = await broker.transactions.init_member(authorizer.principal, request, authorizer.own_producer_id)
    except WireError as error:
        response.error.CopyFrom(to_proto(error))
    else:
        response.producer_id, response.producer_epoch = member.producer_id, MEMBER_EPOCH
    state = broker.transactions.coordinator.states.get(request.transactional_id)
    if state is not None and state.principal == authorizer.principal and state.last is not None:
        last = state.last
        response.last_version, response.last_execution_id, response.last_run_id = last.txn_version, last.execution_id, last.run_id
    return response
