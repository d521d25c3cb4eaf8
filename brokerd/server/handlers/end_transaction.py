"""EndTransaction: commits or aborts what the listed members wrote.

Behaviour
- COMMIT is answered once the version is durable, and holds back none of its partitions any more: that is one step. Rows behind
  another transaction that is open are seen when that one ends. The same request again has the same answer: a commit whose answer
  was lost is asked about again.
- A version that is committed is OK if the totals are the same, else REPLAY_MISMATCH. An older one is OK for its committer, as
  long as that is remembered; else PRODUCER_FENCED, whose fate says whether nothing of it is visible for certain, or nobody knows.
  What cannot be committed is TXN_ABORTED, and nothing has changed (brokerd/transaction/transactional_id.py has the table).
- A retriable error says that the decision is not known, or not finished: the same request again finds out. The broker goes on.
- ABORT voids the data of the listed members that are open; it never undoes a commit.
- Offsets of a group may go with a COMMIT: they are recorded with it, in one step, or not at all. Each must be one that a plain
  commit could record, on a topic that the caller may READ, and the group must have the expected ones when the version is decided:
  PRODUCER_FENCED says that another program has gone on from there. A topic that is deleted is TXN_ABORTED.
- A decision may come in pages, from 0 on; nothing is decided before the last. A page is kept for a minute, and NOT_READY asks for
  all of them again.
"""

from __future__ import annotations

from brokerd.errors import TxnAbortedError, UnknownTopicIdError, UnknownTopicOrPartitionError, WireError
from brokerd.groups.group_table import NO_OFFSET
from brokerd.ids import TopicIdPartition
from brokerd.server.broker import Broker
from brokerd.server.failures import malformed
from brokerd.server.groups.groups import AskedOffsets
from brokerd.server.handlers.commit_group_offsets import check_entry, checked_offset
from brokerd.server.handlers.init_producer_id import EPOCH_MAX
from brokerd.server.requests import check_id, check_not_negative, check_text, topic_id_partition
from brokerd.server.security.topic_authorizer import Right, TopicAuthorizer
from brokerd.server.transactions.fields import check_execution
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import transaction_pb2
from brokerd.wire.v1.group_log_pb2 import CommittedOffset

_DECISIONS = (transaction_pb2.TRANSACTION_DECISION_COMMIT, transaction_pb2.TRANSACTION_DECISION_ABORT)


def check(request: transaction_pb2.EndTransactionRequest) -> None:
    """Checks the request as received. Raises MalformedError."""
    check_execution(request)
    check_text("run_id", request.run_id)
    if request.decision not in _DECISIONS:
        raise malformed("decision", f"is {request.decision}, but must be 1 (commit) or 2 (abort)")
    for member in request.members:
        check_not_negative("members.producer_id", member.producer_id)
        check_not_negative("members.records", member.records)
        if not 0 <= member.producer_epoch <= EPOCH_MAX:
            raise malformed("members.producer_epoch", f"is {member.producer_epoch}, but must be between 0 and {EPOCH_MAX}")
    for partition in request.partitions:
        topic_id_partition("partitions", partition.topic_id, partition.partition)
    for name in ("rows", "key_bytes", "value_bytes"):
        check_not_negative(f"totals.{name}", getattr(request.totals, name))
    check_not_negative("page", request.page)
    if request.group_id or request.group_offsets:
        _check_offsets(request)


def _check_offsets(request: transaction_pb2.EndTransactionRequest) -> None:
    if request.decision != transaction_pb2.TRANSACTION_DECISION_COMMIT or request.more_pages:
        raise malformed("group_offsets", "must stand in the last page of a commit: nothing else records them")
    check_id("group_id", request.group_id)
    for entry in request.group_offsets:
        check_entry("group_offsets", entry)
        if entry.expected_offset < NO_OFFSET:
            raise malformed("group_offsets.expected_offset", f"is {entry.expected_offset}, but must be an offset, or -1 for none")


async def handle(
    broker: Broker, authorizer: TopicAuthorizer, request: transaction_pb2.EndTransactionRequest
) -> transaction_pb2.EndTransactionResponse:
    """The decision, or why it could not be made."""
    response = transaction_pb2.EndTransactionResponse(last_version=-1)
    principal, transactions = authorizer.principal, broker.transactions
    _keep_one_deleted(broker, request)
    try:
        asked = transactions.pages.add(principal, request, broker.clock.monotonic_ms())
        if asked is not None and asked.decision == transaction_pb2.TRANSACTION_DECISION_COMMIT:
            offsets = _offsets(broker, authorizer, request) if request.group_offsets else None
            await transactions.commit(principal, asked, offsets)
        elif asked is not None:
            await transactions.abort(principal, asked)
    except WireError as error:
        response.error.CopyFrom(to_proto(error))
    state = transactions.coordinator.states.get(request.transactional_id)
    if state is not None and state.principal == principal:
        response.last_version = state.last_version
    return response


def _keep_one_deleted(broker: Broker, request: transaction_pb2.EndTransactionRequest) -> None:
    """Of the partitions whose topics are deleted, the first stands for all: no page brings the decision more work than there are
    partitions."""
    kept: list[transaction_pb2.TransactionPartition] = []
    is_any_missing = False
    for entry in request.partitions:
        tp = TopicIdPartition(entry.topic_id, entry.partition)
        is_missing = broker.partitions.get(tp) is None and not broker.logs.topics.count_of(tp.topic_id)
        if not (is_missing and is_any_missing):
            kept.append(entry)
        is_any_missing |= is_missing
    if len(kept) < len(request.partitions):
        del request.partitions[:]
        request.partitions.extend(kept)


def _offsets(broker: Broker, authorizer: TopicAuthorizer, asked: transaction_pb2.EndTransactionRequest) -> AskedOffsets:
    authorizer.require_group(asked.group_id)
    entries = {TopicIdPartition(one.topic_id, one.partition): one for one in asked.group_offsets}

    def checked() -> list[CommittedOffset]:
        now_ms, ahead_ms = broker.logs.time.stamp_ms()
        offsets: list[CommittedOffset] = []
        for tp, entry in entries.items():
            try:
                authorizer.require_id(Right.READ, tp.topic_id)
                offsets.append(checked_offset(broker, entry, now_ms, ahead_ms))
            except (UnknownTopicIdError, UnknownTopicOrPartitionError) as error:
                raise TxnAbortedError(
                    f"group {asked.group_id!r}: its offsets cannot be committed: {error.message}; nothing of the transaction counts"
                ) from error
        return offsets

    expected = {tp: one.expected_offset for tp, one in entries.items()}
    return AskedOffsets(asked.group_id, authorizer.principal, checked, expected)
