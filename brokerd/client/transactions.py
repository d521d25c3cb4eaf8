"""Calls about transactions and producer ids, and their values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from brokerd.client.broker_client import BrokerClient
from brokerd.client.response_checks import checked_identity, made_plain, page_after, senseless
from brokerd.errors import (
    Action,
    AuthenticationError,
    BrokerdError,
    BrokerUnreachableError,
    ConfigError,
    CoordinatorLoadInProgressError,
    Fate,
    InvalidRequestError,
    ProducerFencedError,
    TxnAbortedError,
    UnknownServerError,
    WireError,
)
from brokerd.ids import NO_PRODUCER, ProducerIdAndEpoch, TopicIdPartition
from brokerd.producer.core.membership import ONE_WRITE_KEPT_MS, MemberReport, Membership, TransactionEnd
from brokerd.wire.methods import UNARY_REQUEST_MAX_BYTES
from brokerd.wire.v1 import transaction_pb2 as pb

# Upper bound of the size of one member or partition in a request.
_ENTRY_BYTES = 48
_TAG_BYTES = 8  # upper bound of an entry's tag and length
STATES = {
    "empty": pb.TRANSACTION_STATE_EMPTY,
    "open": pb.TRANSACTION_STATE_OPEN,
    "prepared": pb.TRANSACTION_STATE_PREPARED,
}
_STATE_NAMES: dict[int, str] = {number: name for name, number in STATES.items()}
NO_VERSION = -1
_NOTHING_DONE = (AuthenticationError, CoordinatorLoadInProgressError)


# --- calls


async def init_producer_id(client: BrokerClient, current: ProducerIdAndEpoch = NO_PRODUCER) -> ProducerIdAndEpoch:
    """A new producer id, or `current` with its epoch increased. Raises the broker's error."""
    request = pb.InitProducerIdRequest(producer_id=current.producer_id, producer_epoch=current.epoch)
    response = await client.call(request, pb.InitProducerIdResponse)
    return checked_identity(response.producer_id, response.producer_epoch)


async def init_member(client: BrokerClient, membership: Membership) -> ProducerIdAndEpoch:
    """The producer id of a member of a transaction; repeated calls return the same id. Raises the broker's error."""
    request = pb.InitProducerIdRequest(
        transactional_id=membership.transactional_id,
        txn_version=membership.txn_version,
        execution_id=membership.execution_id,
        run_id=membership.run_id,
        owner=membership.owner,
        member_id=membership.member_id,
        timeout_ms=membership.timeout_ms,
        producer_id=-1,
        producer_epoch=-1,
    )
    response = await client.call(request, pb.InitProducerIdResponse)
    identity = checked_identity(response.producer_id, response.producer_epoch)
    if identity.epoch != 0:
        raise senseless("InitProducerId", f"a member with producer_epoch {identity.epoch}, which is always 0")
    return identity


async def heartbeat(client: BrokerClient, membership: Membership) -> None:
    """Keeps a member alive. Raises InvalidTxnStateError if it is not open."""
    request = pb.HeartbeatRequest(
        transactional_id=membership.transactional_id,
        txn_version=membership.txn_version,
        execution_id=membership.execution_id,
        member_id=membership.member_id,
    )
    await client.call(request, pb.HeartbeatResponse)


async def end_transaction(client: BrokerClient, end: TransactionEnd, *, timeout_ms: int | None = None) -> None:
    """Commits or aborts members of a transaction. Idempotent, and retried until `timeout_ms` (default.api.timeout.ms).

    Raises TxnAbortedError (a member was no longer open: nothing was committed), ReplayMismatchError, ProducerFencedError,
    TxnConflictError, AlreadyCommittedError (an abort came too late). The outcome is unknown after BrokerUnreachableError or a
    retriable error, and after ProducerFencedError whose fate is not NOT_APPENDED: an attempt without a response may have committed
    a transaction that the broker has since forgotten. After any other error nothing was committed.
    """
    asked_ms = client.clock.boot_ms()
    failed: list[BrokerdError] = []  # attempts before the last one

    async def send(address: str, left_ms: int) -> None:
        entries_max = await client.partitions_per_request(address)
        pages = end_requests(end, request_bytes_max=UNARY_REQUEST_MAX_BYTES, entries_max=entries_max)
        for request in pages:  # each attempt starts with the first page: the broker may have restarted
            await client.call_once(address, request, pb.EndTransactionResponse, left_ms)

    try:
        await client.retried(lambda left_ms: client.at_coordinator(send, left_ms), failures=failed, timeout_ms=timeout_ms)
    except BrokerdError as error:
        may_be_done = not all(isinstance(one, _NOTHING_DONE) for one in failed)
        if isinstance(error, ProducerFencedError) and not may_be_done:
            error.fate = Fate.NOT_APPENDED
        asked_for_ms = client.clock.boot_ms() - asked_ms
        if isinstance(error, TxnAbortedError) and end.is_one_write and asked_for_ms >= ONE_WRITE_KEPT_MS:
            raise _forgotten(end, asked_for_ms) from error
        if end.is_commit and _leaves_open(error, may_be_done=may_be_done, is_one_write=end.is_one_write):
            advice = "; look for its rows in the topic before you write them again" if end.is_one_write else ""
            raise BrokerUnreachableError(
                f"version {end.txn_version} of transactional id {end.transactional_id!r} may be committed or not{advice}: no "
                f"answer says which; the last one is: {error}"
            ) from error
        raise


def _leaves_open(error: BrokerdError, *, may_be_done: bool, is_one_write: bool) -> bool:
    """True if an error leaves the outcome of a commit open without saying so: the broker failed, or an earlier attempt may have
    committed and this error is not about the transaction (for example, permissions were revoked meanwhile)."""
    if isinstance(error, BrokerUnreachableError) or (isinstance(error, WireError) and error.retriable):
        # Such an error itself means "unknown". Repeating the version tells the outcome, but a repeated batch write is a new one.
        return is_one_write and (may_be_done or not isinstance(error, _NOTHING_DONE))
    is_about_it = isinstance(error, WireError) and error.action is Action.TRANSACTION_STATE
    return isinstance(error, UnknownServerError) or (may_be_done and not is_about_it)


async def list_transactions(client: BrokerClient, state: str = "", prefix: str = "") -> list[pb.TransactionListing]:
    """Transactional ids that begin with `prefix`, sorted; `state` limits them to one state (empty, open, prepared). Raises
    ConfigError for another state."""
    listings: list[pb.TransactionListing] = []
    after = ""
    while True:
        page, more = await _page(client, state, prefix, after)
        listings += page
        if not more or not page:
            return listings
        after = page_after("ListTransactions", after, page[-1].transactional_id)


async def find_transaction(
    client: BrokerClient, transactional_id: str, *, timeout_ms: int | None = None
) -> pb.TransactionListing | None:
    """One transactional id; None if it does not exist or this client may not see it. Retries until `timeout_ms`
    (default.api.timeout.ms)."""
    page, _ = await _page(client, "", transactional_id, "", timeout_ms)  # sorted: an exact match comes first
    return page[0] if page and page[0].transactional_id == transactional_id else None


async def _page(
    client: BrokerClient, state: str, prefix: str, after: str, timeout_ms: int | None = None
) -> tuple[Sequence[pb.TransactionListing], bool]:
    number = _state_number(state)
    request = pb.ListTransactionsRequest(state=number, prefix=prefix, after=after)
    response = await client.call(request, pb.ListTransactionsResponse, timeout_ms=timeout_ms)
    return made_plain(response).transactions, response.more


async def describe_transaction(client: BrokerClient, transactional_id: str) -> pb.DescribeTransactionResponse:
    """Describes one transactional id. Raises the broker's error."""
    request = pb.DescribeTransactionRequest(transactional_id=transactional_id)
    response = await client.call(request, pb.DescribeTransactionResponse)
    return made_plain(response)


async def abort_transaction(client: BrokerClient, transactional_id: str, execution_id: str = "") -> int:
    """Aborts the open members of one execution, or of the whole transactional id; returns their number, not counting those of a
    request whose response was lost."""
    request = pb.AbortTransactionRequest(transactional_id=transactional_id, execution_id=execution_id)
    failed: list[BrokerdError] = []
    try:
        response = await client.call(request, pb.AbortTransactionResponse, failures=failed)
    except InvalidRequestError:
        if all(isinstance(one, _NOTHING_DONE) for one in failed):
            raise
        return 0  # an id that never committed goes with its last member
    return response.aborted_members


async def forget_transactional_id(client: BrokerClient, transactional_id: str) -> pb.ForgetTransactionalIdResponse:
    """Deletes a transactional id, with its last committed version. Raises the broker's error; that of a retry after a lost response
    says so."""
    request = pb.ForgetTransactionalIdRequest(transactional_id=transactional_id)
    failed: list[BrokerdError] = []
    try:
        response = await client.call(request, pb.ForgetTransactionalIdResponse, failures=failed)
    except InvalidRequestError as error:
        if any(isinstance(one, BrokerUnreachableError) for one in failed):
            error.message += "; the response to an earlier attempt of this call was lost, so this call may have forgotten it"
        raise
    return made_plain(response)


async def find_hanging_transactions(client: BrokerClient, idle_ms: int) -> pb.FindHangingTransactionsResponse:
    """Transactions that hold back a last stable offset and have been idle for `idle_ms`."""
    request = pb.FindHangingTransactionsRequest(idle_ms=idle_ms)
    response = await client.call(request, pb.FindHangingTransactionsResponse)
    return made_plain(response)


def _forgotten(end: TransactionEnd, asked_for_ms: int) -> BrokerUnreachableError:
    """The error for a commit that the broker may have made and forgotten. Deadlines cannot prevent that: they stop while the
    machine sleeps."""
    return BrokerUnreachableError(
        f"transactional id {end.transactional_id!r}: its commit was first asked for {asked_for_ms // 60_000} minutes ago (this "
        f"machine slept meanwhile), and brokers forget ids of one write {ONE_WRITE_KEPT_MS // 60_000} minutes after their commit. "
        "Whether the rows are committed is not known: look for them in the topic before you write them again"
    )


# --- requests


def end_requests(end: TransactionEnd, *, request_bytes_max: int, entries_max: int) -> Iterator[pb.EndTransactionRequest]:
    """Splits a commit or abort into pages of at most `entries_max` members and partitions and `request_bytes_max`; all but the
    last are marked `more_pages`. Raises InvalidRequestError if the group's offsets do not fit into one page."""
    head = _end_head(end)
    offsets = _group_offsets(end)
    room_bytes = request_bytes_max - head.ByteSize() - sum(one.ByteSize() + _TAG_BYTES for one in offsets) - _ENTRY_BYTES
    if len(offsets) > entries_max or room_bytes < _ENTRY_BYTES:
        raise InvalidRequestError(
            f"the transaction has {len(offsets)} offsets of group '{head.group_id}', but one has room for {entries_max} "
            f"(max.partitions.per.request), and for {request_bytes_max} bytes with their metadata: commit fewer of them with it"
        )
    fitting = room_bytes // _ENTRY_BYTES
    size = max(1, min(entries_max, fitting))
    entries: Sequence[MemberReport | TopicIdPartition] = [*end.members, *end.partitions]
    pages = [entries[at : at + size] for at in range(0, len(entries), size)] or [[]]
    for number, page in enumerate(pages):
        request = pb.EndTransactionRequest()
        request.CopyFrom(head)
        request.page, request.more_pages = number, number < len(pages) - 1
        if request.more_pages:
            request.group_id = ""
        else:
            request.group_offsets.extend(offsets)
        for entry in page:
            if isinstance(entry, MemberReport):
                request.members.add(producer_id=entry.producer_id, producer_epoch=entry.epoch, records=entry.records)
            else:
                request.partitions.add(topic_id=entry.topic_id, partition=entry.partition)
        yield request


def _end_head(end: TransactionEnd) -> pb.EndTransactionRequest:
    totals = end.totals
    return pb.EndTransactionRequest(
        transactional_id=end.transactional_id,
        txn_version=end.txn_version,
        execution_id=end.execution_id,
        run_id=end.run_id,
        decision=pb.TRANSACTION_DECISION_COMMIT if end.is_commit else pb.TRANSACTION_DECISION_ABORT,
        totals=pb.TransactionTotals(
            rows=totals.rows, key_bytes=totals.key_bytes, value_bytes=totals.value_bytes, key_hash_sum=totals.key_hash_sum
        ),
        any_skipped=end.any_skipped,
        one_write=end.is_one_write,
        group_id=end.group_offsets.group_id if end.group_offsets is not None else "",
    )


def _group_offsets(end: TransactionEnd) -> list[pb.TransactionGroupOffset]:
    offsets = end.group_offsets.offsets if end.group_offsets is not None else {}
    return [
        pb.TransactionGroupOffset(
            topic_id=tp.topic_id,
            partition=tp.partition,
            offset=one.offset,
            leader_epoch=one.leader_epoch,
            leader_epoch_id=one.leader_epoch_id,
            metadata=one.metadata,
            expected_offset=one.expected,
        )
        for tp, one in offsets.items()
    ]


def state_name(state: int) -> str:
    """The name of a state; "unknown" for a state of a newer broker."""
    return _STATE_NAMES.get(state, "unknown")


def _state_number(name: str) -> pb.TransactionState:
    """The state of this name; empty = any. Raises ConfigError."""
    if name and name not in STATES:
        raise ConfigError(f"state '{name}' is not a state of transactions: {', '.join(STATES)}")
    return STATES[name] if name else pb.TRANSACTION_STATE_UNSPECIFIED
