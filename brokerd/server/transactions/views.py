"""Transactions as callers see them: their own, or all if they have ADMIN on every topic. Others do not exist for them."""

from __future__ import annotations

from collections.abc import Mapping

from brokerd.errors import InvalidRequestError
from brokerd.partition.partition import Partition
from brokerd.server.broker import Broker
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.transaction.transactional_id import TransactionalIdState
from brokerd.wire.v1 import transaction_pb2

_NONE = -1


def seen_by(broker: Broker, authorizer: TopicAuthorizer) -> Mapping[str, TransactionalIdState]:
    """The transactional ids that are the caller's, or the caller's business."""
    coordinator = broker.transactions.coordinator
    return coordinator.states if authorizer.rights.administers_everything else coordinator.states_of(authorizer.principal)


def may_see(authorizer: TopicAuthorizer, state: TransactionalIdState) -> bool:
    """True if the transactional id is the caller's, or the caller's business."""
    return state.principal == authorizer.principal or authorizer.rights.administers_everything


def find(broker: Broker, authorizer: TopicAuthorizer, transactional_id: str) -> TransactionalIdState:
    """The state of an id. Raises InvalidRequestError if there is none that the caller may see."""
    state = broker.transactions.coordinator.states.get(transactional_id)
    if state is None or not may_see(authorizer, state):
        raise InvalidRequestError(
            f"there is no transactional id {transactional_id!r}, or it is another principal's: ListTransactions names yours"
        )
    return state


def state_of(state: TransactionalIdState) -> transaction_pb2.TransactionState:
    """A prepared commit comes before open members: it is what others wait for."""
    if state.is_prepared:
        return transaction_pb2.TRANSACTION_STATE_PREPARED
    return transaction_pb2.TRANSACTION_STATE_OPEN if state.members else transaction_pb2.TRANSACTION_STATE_EMPTY


def listing(broker: Broker, state: TransactionalIdState) -> transaction_pb2.TransactionListing:
    """One transactional id, in short."""
    members = state.members.values()
    versions = [member.txn_version for member in members]
    if state.is_prepared:
        versions.append(state.last_version)
    opened_ms = [broker.transactions.coordinator.open_members[producer_id].opened_ms for producer_id in state.members]
    return transaction_pb2.TransactionListing(
        transactional_id=state.transactional_id,
        state=state_of(state),
        last_version=state.last_version,
        txn_version=max(versions, default=_NONE),
        open_members=len(state.members),
        age_ms=broker.clock.monotonic_ms() - min(opened_ms) if opened_ms else _NONE,
        owner=state.owner,
    )


def open_partition(authorizer: TopicAuthorizer, partition: Partition, first_offset: int) -> transaction_pb2.OpenPartition:
    """Where a member holds data; the topic's name only if the caller may see it."""
    return transaction_pb2.OpenPartition(
        topic=partition.topic if authorizer.rights.sees(partition.topic) else "",
        topic_id=partition.tp.topic_id,
        partition=partition.tp.partition,
        first_offset=first_offset,
        last_stable_offset=partition.ends.last_stable_offset,
    )
