"""Transaction requests of producers and drivers: producer ids, heartbeats, decisions."""

from __future__ import annotations

from typing import Protocol

from brokerd.coordinator.group_table import NO_OFFSET
from brokerd.coordinator.transactional_id import MEMBER_EPOCH
from brokerd.errors import TxnAbortedError, UnknownTopicIdError, UnknownTopicOrPartitionError
from brokerd.ids import NO_PRODUCER, PRODUCER_EPOCH_MAX, ProducerIdAndEpoch, TopicIdPartition, is_member_producer_id
from brokerd.server.broker import BrokerParts
from brokerd.server.coordinator.groups import AskedOffsets
from brokerd.server.coordinator.producer_ids import ProducerIds
from brokerd.server.failures import fails_with, malformed
from brokerd.server.handlers.groups import check_deleted, check_entry, checked_offset, knows_end
from brokerd.server.requests import check_id, check_id_bytes, check_not_negative, check_text, partitions_of
from brokerd.server.security.topic_authorizer import Right, TopicAuthorizer
from brokerd.wire.v1 import transaction_pb2
from brokerd.wire.v1.coordinator_log_pb2 import CommittedOffset

_NOT_GIVEN = ((-1, -1), (0, 0))
_DECISIONS = (transaction_pb2.TRANSACTION_DECISION_COMMIT, transaction_pb2.TRANSACTION_DECISION_ABORT)


# InitProducerId


def _check_init_producer_id(request: transaction_pb2.InitProducerIdRequest) -> None:
    """Raises MalformedError."""
    producer_id, epoch = request.producer_id, request.producer_epoch
    if request.transactional_id:
        _check_execution(request)
        check_text("run_id", request.run_id)
        check_text("owner", request.owner)
        check_id_bytes("member_id", request.member_id)
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
    if not 0 <= epoch <= PRODUCER_EPOCH_MAX:
        raise malformed("producer_epoch", f"is {epoch}, but must be between 0 and {PRODUCER_EPOCH_MAX}")


async def init_producer_id(
    broker: BrokerParts, authorizer: TopicAuthorizer, request: transaction_pb2.InitProducerIdRequest
) -> transaction_pb2.InitProducerIdResponse:
    """Issues a producer id, for idempotence or for a member of a transaction.

    - Ids are reserved in the coordinator's log and never reused.
    - Without a transactional id: for producer_id = producer_epoch = -1, a new id with epoch 0. Otherwise the given id with its
      epoch incremented; a new id replaces an id at epoch 32,767, a member's id and, with authentication, another principal's
      (security/topic_authorizer.py).
    - With a transactional id: the caller becomes a member of an execution of a version, with a new id and epoch 0, durable when
      answered. Repeating a member_id returns the same id. A version already committed is ALREADY_COMMITTED or PRODUCER_FENCED
      (brokerd/coordinator/transactional_id.py has the table).
    """
    _check_init_producer_id(request)
    authorizer.require_somewhere(Right.WRITE)
    response = transaction_pb2.InitProducerIdResponse()
    with fails_with(response, "issuing a producer id"), authorizer.noting_refusals():
        transactions = broker.transactions  # only the coordinator issues ids, even without a transactional id
        if request.transactional_id:
            member = await transactions.init_member(authorizer.principal, request, authorizer.own_producer_id)
            response.producer_id, response.producer_epoch = member.producer_id, MEMBER_EPOCH
        else:
            current = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
            response.producer_id, response.producer_epoch = await _grant(transactions.producer_ids, authorizer, current)
    return response


async def _grant(ids: ProducerIds, authorizer: TopicAuthorizer, current: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
    is_usable = current != NO_PRODUCER and current.epoch < PRODUCER_EPOCH_MAX and not is_member_producer_id(current.producer_id)
    if is_usable and authorizer.owns_producer(current.producer_id):
        return ProducerIdAndEpoch(current.producer_id, current.epoch + 1)
    while not ids.has_next:
        await ids.reserve()
    # No await from here on: no other request may run before the id is the caller's.
    return ProducerIdAndEpoch(authorizer.own_producer_id(ids.take()), 0)


# Heartbeat


async def heartbeat(
    broker: BrokerParts, authorizer: TopicAuthorizer, request: transaction_pb2.HeartbeatRequest
) -> transaction_pb2.HeartbeatResponse:
    """A member's heartbeat, which counts for its whole execution.

    - INVALID_TXN_STATE if the member is not open: it expired, was aborted, or its version is decided. The error is final.
    """
    _check_execution(request)
    check_id_bytes("member_id", request.member_id)
    authorizer.require_somewhere(Right.WRITE)
    response = transaction_pb2.HeartbeatResponse()
    with fails_with(response, "a heartbeat"), authorizer.noting_refusals():
        await broker.transactions.heartbeat(authorizer.principal, request)
    return response


# EndTransaction


def _check_end_transaction(request: transaction_pb2.EndTransactionRequest) -> list[TopicIdPartition]:
    """The partitions named in the request. Raises MalformedError."""
    _check_execution(request)
    check_text("run_id", request.run_id)
    if request.decision not in _DECISIONS:
        raise malformed("decision", f"is {request.decision}, but must be 1 (commit) or 2 (abort)")
    for member in request.members:
        check_not_negative("members.producer_id", member.producer_id)
        check_not_negative("members.records", member.records)
        if not 0 <= member.producer_epoch <= PRODUCER_EPOCH_MAX:
            raise malformed("members.producer_epoch", f"is {member.producer_epoch}, but must be between 0 and {PRODUCER_EPOCH_MAX}")
    tps = partitions_of("partitions", request.partitions)
    for name in ("rows", "key_bytes", "value_bytes"):
        check_not_negative(f"totals.{name}", getattr(request.totals, name))
    check_not_negative("page", request.page)
    if request.group_id or request.group_offsets:
        tps += _check_offsets(request)
    return tps


def _check_offsets(request: transaction_pb2.EndTransactionRequest) -> list[TopicIdPartition]:
    if request.decision != transaction_pb2.TRANSACTION_DECISION_COMMIT or request.more_pages:
        raise malformed("group_offsets", "must be in the last page of a commit")
    check_id("group_id", request.group_id)
    for entry in request.group_offsets:
        if entry.expected_offset < NO_OFFSET:
            raise malformed("group_offsets.expected_offset", f"is {entry.expected_offset}, but must be an offset, or -1 for none")
    return [check_entry("group_offsets", entry) for entry in request.group_offsets]


async def end_transaction(
    broker: BrokerParts, authorizer: TopicAuthorizer, request: transaction_pb2.EndTransactionRequest
) -> transaction_pb2.EndTransactionResponse:
    """Commits or aborts the listed members' data.

    - COMMIT is answered once the version is durable and all its partitions are released, in one step at each leader. Rows behind
      another open transaction become visible when that transaction ends. A client that lost the response repeats the request and
      gets the same response.
    - The last committed version gets OK if the totals are equal, else REPLAY_MISMATCH; TXN_CONFLICT for another write of a known
      run. An older version gets OK for the execution that committed it while that is remembered, else PRODUCER_FENCED, whose fate
      says whether nothing of it is visible or whether that is unknown. A version that cannot be committed gets TXN_ABORTED, which
      changes nothing (brokerd/coordinator/transactional_id.py has the table).
    - A retriable error means that the decision is unknown, or unfinished and the broker continues: repeat the request to find out.
    - ABORT voids the data of those listed members that are open; it never undoes a commit.
    - A COMMIT may include offsets of a group, recorded atomically with it. Each must be valid for CommitGroupOffsets, on a topic
      that the caller may READ. The group must have the expected offsets when the version is decided: PRODUCER_FENCED means that
      another program has continued from them. An offset of a deleted topic is TXN_ABORTED.
    - A decision may be split into pages, from 0 on; nothing is decided before the last. Pages are kept for a minute; NOT_READY
      means that all must be sent again.
    """
    tps = _check_end_transaction(request)
    authorizer.require_somewhere(Right.WRITE)
    response = transaction_pb2.EndTransactionResponse()
    principal = authorizer.principal
    with fails_with(response, f"the decision on transactional id {request.transactional_id!r}"), authorizer.noting_refusals():
        transactions = broker.transactions
        if request.decision == transaction_pb2.TRANSACTION_DECISION_COMMIT:
            await check_deleted(broker, tps)  # a commit writes no markers to deleted partitions, so their deletion must be certain
        _drop_deleted(broker, request)
        asked = transactions.pages.add(principal, request, broker.clock.monotonic_ms())
        if asked is not None and asked.decision == transaction_pb2.TRANSACTION_DECISION_COMMIT:
            offsets = await _offsets(broker, authorizer, request) if request.group_offsets else None
            await transactions.commit(principal, asked, offsets)
        elif asked is not None:
            await transactions.abort(principal, asked)
    return response


def _drop_deleted(broker: BrokerParts, request: transaction_pb2.EndTransactionRequest) -> None:
    """Keeps one partition of deleted topics, which stands for all of them, so that the work of a page is limited by the number of
    existing partitions."""
    kept: list[transaction_pb2.TransactionPartition] = []
    is_any_missing = False
    for entry in request.partitions:
        is_missing = not broker.topics.count_of(entry.topic_id)
        if not (is_missing and is_any_missing):
            kept.append(entry)
        is_any_missing |= is_missing
    if len(kept) < len(request.partitions):
        del request.partitions[:]
        request.partitions.extend(kept)


async def _offsets(broker: BrokerParts, authorizer: TopicAuthorizer, asked: transaction_pb2.EndTransactionRequest) -> AskedOffsets:
    entries = {TopicIdPartition(one.topic_id, one.partition): one for one in asked.group_offsets}
    knows = True
    async with broker.groups.turn(asked.group_id):  # a commit that arrived before would overwrite these offsets
        for entry in asked.group_offsets:
            knows = knows and await knows_end(broker, entry)

    def checked() -> list[CommittedOffset]:
        # Checked only at the decision: a repeated commit learns that it is committed even if the rights have changed.
        authorizer.require_group(asked.group_id)
        now_ms, ahead_ms = broker.time.stamp_ms()
        offsets: list[CommittedOffset] = []
        for tp, entry in entries.items():
            try:
                authorizer.require_id(Right.READ, tp.topic_id)
                offsets.append(checked_offset(broker, entry, now_ms, ahead_ms, knows_end=knows))
            except (UnknownTopicIdError, UnknownTopicOrPartitionError) as error:
                raise TxnAbortedError(
                    f"group {asked.group_id!r}: its offsets cannot be committed: {error.message}; the transaction is void"
                ) from error
        return offsets

    expected = {tp: one.expected_offset for tp, one in entries.items()}
    return AskedOffsets(asked.group_id, authorizer.principal, checked, expected)


class _NamesExecution(Protocol):
    """A request that names an execution."""

    transactional_id: str
    txn_version: int
    execution_id: str


def _check_execution(request: _NamesExecution) -> None:
    """Checks the fields that name the execution."""
    check_id("transactional_id", request.transactional_id)
    check_not_negative("txn_version", request.txn_version)
    check_id("execution_id", request.execution_id)
