"""InitProducerId: a producer id for idempotence.

Behaviour
- producer_id = producer_epoch = -1: a new id with epoch 0. Ids come from a durable counter and are never reused.
- Otherwise the given id with its epoch increased by one; an epoch of 32,767 cannot be increased, so a new id is assigned. With
  authentication, another principal's id also leads to a new one (security/producer_owners.py).
- Transactions are not supported: UNIMPLEMENTED.
"""

from __future__ import annotations

from brokerd.ids import NO_PRODUCER, ProducerIdAndEpoch
from brokerd.server.broker import Broker
from brokerd.server.failures import NotServedError, malformed
from brokerd.wire.v1 import transaction_pb2

EPOCH_MAX = 2**15 - 1


def check(request: transaction_pb2.InitProducerIdRequest) -> None:
    """Checks the request as received, before rights may replace its ids. Raises MalformedError, NotServedError."""
    if request.transactional_id:
        raise NotServedError(
            "transactions are not supported by this broker: leave transactional_id empty for an idempotent producer"
        )
    for name in ("txn_version", "execution_id", "run_id", "owner", "member_id"):
        if getattr(request, name):
            raise malformed(name, "must be empty without a transactional_id")
    producer_id, epoch = request.producer_id, request.producer_epoch
    if (producer_id, epoch) == NO_PRODUCER:
        return
    if producer_id < 0:
        raise malformed("producer_id", f"is {producer_id}, but must be an id, or -1 together with producer_epoch")
    if not 0 <= epoch <= EPOCH_MAX:
        raise malformed("producer_epoch", f"is {epoch}, but must be between 0 and {EPOCH_MAX}")


async def handle(broker: Broker, request: transaction_pb2.InitProducerIdRequest) -> transaction_pb2.InitProducerIdResponse:
    """A producer id and epoch."""
    broker.require_ready()
    granted = await _grant(broker, ProducerIdAndEpoch(request.producer_id, request.producer_epoch))
    return transaction_pb2.InitProducerIdResponse(producer_id=granted.producer_id, producer_epoch=granted.epoch, last_version=-1)


async def _grant(broker: Broker, current: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
    if current == NO_PRODUCER or current.epoch == EPOCH_MAX:
        while not broker.logs.has_producer_id:
            await broker.producer_ids.run(broker.logs.reserve_producer_ids())
        # No await from here on: the id is known to be the caller's before any other request can run.
        return ProducerIdAndEpoch(broker.logs.next_producer_id(), 0)
    return ProducerIdAndEpoch(current.producer_id, current.epoch + 1)
