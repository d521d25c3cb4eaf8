"""Views and administration of transactions, for operators and owners of transactional ids; other callers do not see them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from itertools import islice

from brokerd.coordinator.transaction_coordinator import TransactionCoordinator
from brokerd.coordinator.transactional_id import MEMBER_EPOCH, TransactionalIdState
from brokerd.errors import InvalidRequestError, TransactionalIdAuthorizationFailedError, counted
from brokerd.internode.v1.internode_pb2 import HangingPartition, OpenMemberData
from brokerd.server.broker import BrokerParts
from brokerd.server.failures import fails_with, malformed
from brokerd.server.paging import LISTED_MAX, Pauses, list_page
from brokerd.server.requests import check_id, check_not_negative, check_text
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.wire.v1 import transaction_pb2
from brokerd.wire.v1.coordinator_log_pb2 import MemberOpened

MEMBERS_MAX = 1_000
PARTITIONS_MAX = 10_000
_NONE = -1


# ListTransactions


async def list_transactions(
    broker: BrokerParts, authorizer: TopicAuthorizer, request: transaction_pb2.ListTransactionsRequest
) -> transaction_pb2.ListTransactionsResponse:
    """Lists transactional ids by name: the caller's own, or all if the caller has ADMIN on every topic."""
    if request.state not in transaction_pb2.TransactionState.values():
        raise malformed("state", f"is {request.state}, but must be one of TransactionState")
    check_text("prefix", request.prefix)
    check_text("after", request.after)
    response = transaction_pb2.ListTransactionsResponse()
    with fails_with(response, "the list of transactional ids"):
        coordinator, states = broker.transactions.coordinator, _seen_by(broker, authorizer)
        async with broker.transactions.log.settled():
            response.more = await list_page(
                states,
                prefix=request.prefix,
                after=request.after,
                pauses=Pauses(broker.turns),
                is_wanted=lambda state: request.state in (0, _state_of(state)),
                add=lambda state: response.transactions.append(_listing(coordinator, state, broker.clock.monotonic_ms())),
            )
    return response


# DescribeTransaction


async def describe_transaction(
    broker: BrokerParts, authorizer: TopicAuthorizer, request: transaction_pb2.DescribeTransactionRequest
) -> transaction_pb2.DescribeTransactionResponse:
    """One transactional id in detail: its last commit, and its open members with their partitions.

    - Members are listed in the order in which they were opened, at most 1,000 with 10,000 partitions; the rest is counted.
    - Partitions whose leader does not answer are left out.
    """
    check_id("transactional_id", request.transactional_id)
    response = transaction_pb2.DescribeTransactionResponse()
    with fails_with(response, f"description of transactional id {request.transactional_id!r}"):
        async with broker.transactions.log.settled():
            state = _find(broker, authorizer, request.transactional_id)
            response.listing.CopyFrom(_listing(broker.transactions.coordinator, state, broker.clock.monotonic_ms()))
            if state.last is not None:
                response.last_execution_id, response.last_run_id = state.last.execution_id, state.last.run_id
                response.last_totals.CopyFrom(state.last.totals)
        members = list(islice(state.members.values(), MEMBERS_MAX))
        data: dict[int, list[OpenMemberData]] = {}
        for one in await broker.transactions.leaders.open_data([member.producer_id for member in members], PARTITIONS_MAX):
            data.setdefault(one.producer_id, []).append(one)
        pauses = Pauses(broker.turns)
        listed_partitions = 0
        for member in members:
            if listed_partitions >= PARTITIONS_MAX:
                break
            described = _member(broker, authorizer, member, data.get(member.producer_id, []))
            if described is not None:  # None: ended meanwhile
                response.members.append(described)
                listed_partitions += len(described.partitions)
                await pauses.after(1 + len(described.partitions))
        response.more_members = max(len(state.members) - len(response.members), 0)
    return response


def _member(
    broker: BrokerParts, authorizer: TopicAuthorizer, member: MemberOpened, data: Iterable[OpenMemberData]
) -> transaction_pb2.OpenMember | None:
    coordinator = broker.transactions.coordinator
    known = coordinator.open_members.get(member.producer_id)
    if known is None:
        return None
    now_ms = broker.clock.monotonic_ms()
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
        partitions=[
            _open_partition(broker, authorizer, one) for one in sorted(data, key=lambda one: (one.topic_id, one.partition))
        ],
    )


# AbortTransaction


async def abort_transaction(
    broker: BrokerParts, authorizer: TopicAuthorizer, request: transaction_pb2.AbortTransactionRequest
) -> transaction_pb2.AbortTransactionResponse:
    """Aborts open members, of one execution or of all.

    - Allowed for the owner of the transactional id and with ADMIN on every topic. Commits are not undone.
    - The members' tasks fail at their next batch; the next execution of the version begins with new members.
    """
    check_id("transactional_id", request.transactional_id)
    check_text("execution_id", request.execution_id)
    response = transaction_pb2.AbortTransactionResponse()
    with fails_with(response, f"abort of transactional id {request.transactional_id!r}"):
        _find(broker, authorizer, request.transactional_id)
        execution = f" in execution {request.execution_id!a}" if request.execution_id else ""
        of = f"of transactional id {request.transactional_id!a}{execution}"
        with broker.audit.change(f"aborted members {of}") as change:
            count = await broker.transactions.abort_all(request.transactional_id, request.execution_id)
            change.what = f"aborted {counted(count, 'member')} {of}" if count else ""
        response.aborted_members = count
    return response


# ForgetTransactionalId


async def forget_transactional_id(
    broker: BrokerParts, authorizer: TopicAuthorizer, request: transaction_pb2.ForgetTransactionalIdRequest
) -> transaction_pb2.ForgetTransactionalIdResponse:
    """Forgets a transactional id, so that any principal may use it from then on.

    - Needs ADMIN on every topic; without it, another principal's id is answered like an unknown one.
    - INVALID_TXN_STATE while members are open or a commit is unfinished.
    - The last committed version is forgotten too: a replay of it or an older one would be written again.
    """
    check_id("transactional_id", request.transactional_id)
    name = request.transactional_id
    response = transaction_pb2.ForgetTransactionalIdResponse(last_version=_NONE)
    with fails_with(response, f"forgetting transactional id {name!r}"), authorizer.noting_refusals():
        principal = _find(broker, authorizer, name).principal
        if not authorizer.rights.administers_everything:
            raise TransactionalIdAuthorizationFailedError(
                f"to have transactional id {name!r} forgotten needs ADMIN on every topic: ask an operator"
            )
        with broker.audit.change(f"forgot transactional id {name!a} of principal {principal!a}") as change:
            response.last_version = last_version = await broker.transactions.forget(name)
            change.what += f", last committed: {'none' if last_version < 0 else f'version {last_version}'}"
        response.principal = principal
    return response


# FindHangingTransactions


async def find_hanging_transactions(
    broker: BrokerParts, authorizer: TopicAuthorizer, request: transaction_pb2.FindHangingTransactionsRequest
) -> transaction_pb2.FindHangingTransactionsResponse:
    """Finds transactions that hold back the last stable offset of partitions, longest idle first.

    - One entry per partition held back: its first open member, if silent there for `idle_ms`, or an unfinished commit decided at
      least that long ago, one of whose partitions accepts no marker.
    - Lists the caller's own transactions; with ADMIN on every topic, all, including members unknown to the coordinator.
    """
    check_not_negative("idle_ms", request.idle_ms)
    found = []
    pauses = Pauses(broker.turns)
    for partition in await broker.transactions.leaders.hanging():
        await pauses.after()
        hanging = _hanging(broker, authorizer, partition)
        if hanging is not None and hanging.idle_ms >= request.idle_ms:
            found.append(hanging)
    oldest = heapq.nlargest(LISTED_MAX, found, key=lambda hanging: hanging.idle_ms)
    return transaction_pb2.FindHangingTransactionsResponse(transactions=oldest, more=len(found) > LISTED_MAX)


def _hanging(
    broker: BrokerParts, authorizer: TopicAuthorizer, partition: HangingPartition
) -> transaction_pb2.HangingTransaction | None:
    """The transaction that holds the partition back; None if the caller may not see it."""
    coordinator = broker.transactions.coordinator
    name, since_ms = partition.transactional_id, partition.last_timestamp
    if name:  # a commit that is not finished
        state = coordinator.states.get(name)
        if state is None or state.last is None or not _may_see(authorizer, state):
            return None
        since_ms = state.timestamp
    else:
        known = coordinator.open_members.get(partition.producer_id)
        if not (_may_see(authorizer, known.state) if known is not None else authorizer.rights.administers_everything):
            return None
        name = known.state.transactional_id if known is not None else ""
    return transaction_pb2.HangingTransaction(
        partition=_open_partition(broker, authorizer, partition),
        producer_id=partition.producer_id,
        transactional_id=name,
        idle_ms=max(broker.clock.wall_ms() - since_ms, 0),
    )


def _seen_by(broker: BrokerParts, authorizer: TopicAuthorizer) -> Mapping[str, TransactionalIdState]:
    """The transactional ids that the caller may see: its own or, with ADMIN on every topic, all."""
    coordinator = broker.transactions.coordinator
    return coordinator.states if authorizer.rights.administers_everything else coordinator.states_of(authorizer.principal)


def _may_see(authorizer: TopicAuthorizer, state: TransactionalIdState) -> bool:
    """True if the caller may see the transactional id: its own or, with ADMIN on every topic, any."""
    return state.principal == authorizer.principal or authorizer.rights.administers_everything


def _find(broker: BrokerParts, authorizer: TopicAuthorizer, transactional_id: str) -> TransactionalIdState:
    """The state of an id. Raises InvalidRequestError if there is none that the caller may see."""
    state = broker.transactions.coordinator.states.get(transactional_id)
    if state is None or not _may_see(authorizer, state):
        if state is not None:  # hidden from the caller, not from the audit trail
            what = f"principal '{authorizer.principal}' may not see transactional id {transactional_id!r}"
            authorizer.noted(TransactionalIdAuthorizationFailedError(what))
        raise InvalidRequestError(
            f"there is no transactional id {transactional_id!r}, or it is another principal's: ListTransactions names yours"
        )
    return state


def _state_of(state: TransactionalIdState) -> transaction_pb2.TransactionState:
    """The state to show. A prepared commit takes precedence over open members, since others wait for it."""
    if state.is_prepared:
        return transaction_pb2.TRANSACTION_STATE_PREPARED
    return transaction_pb2.TRANSACTION_STATE_OPEN if state.members else transaction_pb2.TRANSACTION_STATE_EMPTY


def _listing(coordinator: TransactionCoordinator, state: TransactionalIdState, now_ms: int) -> transaction_pb2.TransactionListing:
    """Summary of a transactional id."""
    members = state.members.values()
    versions = [member.txn_version for member in members]
    if state.is_prepared:
        versions.append(state.last_version)
    opened_ms = [coordinator.open_members[producer_id].opened_ms for producer_id in state.members]
    return transaction_pb2.TransactionListing(
        transactional_id=state.transactional_id,
        state=_state_of(state),
        last_version=state.last_version,
        txn_version=max(versions, default=_NONE),
        open_members=len(state.members),
        age_ms=now_ms - min(opened_ms) if opened_ms else _NONE,
        owner=state.owner,
    )


def _open_partition(
    broker: BrokerParts, authorizer: TopicAuthorizer, found: OpenMemberData | HangingPartition
) -> transaction_pb2.OpenPartition:
    """A partition in which a member holds data, with the topic's name only if the caller may see it."""
    name = broker.topics.by_id(found.topic_id).name if broker.topics.count_of(found.topic_id) else ""  # "": deleted meanwhile
    return transaction_pb2.OpenPartition(
        topic=name if name and authorizer.rights.sees(name) else "",
        topic_id=found.topic_id,
        partition=found.partition,
        first_offset=found.first_offset,
        last_stable_offset=found.last_stable_offset,
    )
