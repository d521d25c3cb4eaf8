"""Transactions as clients see them: requests and responses as plain values. The calls are in broker_client.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from brokerd.client.io.response_checks import checked_identity, senseless
from brokerd.errors import ConfigError, InvalidRequestError
from brokerd.ids import TopicIdPartition
from brokerd.producer.core.membership import Membership, Totals, TransactionEnd, TransactionMember
from brokerd.wire.texts import plain_text
from brokerd.wire.v1 import transaction_pb2 as pb

# The bytes of one member or partition in a request, at most.
_ENTRY_BYTES = 48
_TAG_BYTES = 8  # before an entry, at most
_TEXT_MAX_CHARACTERS = 249
TRANSACTION_OFFSETS = "transaction_offsets"  # feature of brokers that commit offsets of a group with a transaction
STATES = {
    "empty": pb.TRANSACTION_STATE_EMPTY,
    "open": pb.TRANSACTION_STATE_OPEN,
    "prepared": pb.TRANSACTION_STATE_PREPARED,
}
_STATE_NAMES = {number: name for name, number in STATES.items()}
NO_VERSION = -1


class MemberGrant(NamedTuple):
    """The producer id of a member, and the last committed transaction of its transactional id (version -1 = none)."""

    producer_id: int
    epoch: int
    last_version: int
    last_execution_id: str
    last_run_id: str


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """One transactional id."""

    transactional_id: str
    state: str  # empty, open or prepared; "unknown" if a newer broker says more
    last_version: int  # committed; -1 = none
    txn_version: int  # newest that is open or prepared; -1 = none
    open_members: int
    age_ms: int  # of the oldest open member, counted from the broker's start at the earliest; -1 = none
    owner: str


@dataclass(frozen=True, slots=True)
class OpenPartition:
    """Data of an open member in a partition. `topic` is empty if it is deleted or may not be seen."""

    topic: str
    tp: TopicIdPartition
    first_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class OpenMember:
    """An open member; times in ms."""

    member_id: bytes
    producer_id: int
    epoch: int
    txn_version: int
    execution_id: str
    run_id: str
    owner: str
    age_ms: int
    expires_in_ms: int
    partitions: tuple[OpenPartition, ...]


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """Everything about one transactional id. `more_members`: open ones beyond those listed."""

    listing: TransactionListing
    last_execution_id: str
    last_run_id: str
    last_totals: Totals
    members: tuple[OpenMember, ...]
    more_members: int


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A transaction that holds back the last stable offset of a partition. `transactional_id` is empty if its member is not known
    any more, `producer_id` is NO_PRODUCER_ID if it is decided and not finished; `idle_ms` is the time since the member's last
    record there, or since it was decided."""

    partition: OpenPartition
    producer_id: int
    transactional_id: str
    idle_ms: int


class ForgottenId(NamedTuple):
    """An id that is forgotten: its last committed version (NO_VERSION: none), and whose it was."""

    last_version: int
    principal: str


class HangingTransactions(NamedTuple):
    """The transactions that hold back partitions, the oldest first. `has_more`: the broker left out the others."""

    transactions: list[HangingTransaction]
    has_more: bool


# --- requests


def init_request(membership: Membership) -> pb.InitProducerIdRequest:
    """Asks for a member's producer id."""
    return pb.InitProducerIdRequest(
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


def heartbeat_request(membership: Membership) -> pb.HeartbeatRequest:
    """Says that a member lives."""
    return pb.HeartbeatRequest(
        transactional_id=membership.transactional_id,
        txn_version=membership.txn_version,
        execution_id=membership.execution_id,
        member_id=membership.member_id,
    )


def end_requests(end: TransactionEnd, *, request_bytes_max: int, entries_max: int) -> Iterator[pb.EndTransactionRequest]:
    """A decision in pages: of at most so many members and partitions, and of so many bytes. All but the last one say that more
    follow. Raises InvalidRequestError if the offsets of its group do not fit into one."""
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
    entries: Sequence[TransactionMember | TopicIdPartition] = [*end.members, *end.partitions]
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
            if isinstance(entry, TransactionMember):
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


def state_number(name: str) -> pb.TransactionState:
    """The state of a name; empty = any. Raises ConfigError."""
    if name and name not in STATES:
        raise ConfigError(f"state '{name}' is not a state of transactions: {', '.join(STATES)}")
    return STATES[name] if name else pb.TRANSACTION_STATE_UNSPECIFIED


# --- responses


def read_grant(response: pb.InitProducerIdResponse) -> MemberGrant:
    """The id of a member. Raises UnknownServerError."""
    identity = checked_identity(response.producer_id, response.producer_epoch)
    if identity.epoch != 0:
        raise senseless("InitProducerId", f"a member with producer_epoch {identity.epoch}, which is always 0")
    last_execution_id, last_run_id = _text(response.last_execution_id), _text(response.last_run_id)
    return MemberGrant(identity.producer_id, identity.epoch, max(NO_VERSION, response.last_version), last_execution_id, last_run_id)


def read_listing(listing: pb.TransactionListing) -> TransactionListing:
    """One transactional id of a list."""
    return TransactionListing(
        transactional_id=_text(listing.transactional_id),
        state=_STATE_NAMES.get(listing.state, "unknown"),
        last_version=listing.last_version,
        txn_version=listing.txn_version,
        open_members=listing.open_members,
        age_ms=listing.age_ms,
        owner=_text(listing.owner),
    )


def read_description(response: pb.DescribeTransactionResponse) -> TransactionDescription:
    """Everything about one transactional id."""
    totals = response.last_totals
    return TransactionDescription(
        listing=read_listing(response.listing),
        last_execution_id=_text(response.last_execution_id),
        last_run_id=_text(response.last_run_id),
        last_totals=Totals(totals.rows, totals.key_bytes, totals.value_bytes, totals.key_hash_sum),
        members=tuple(_member(member) for member in response.members),
        more_members=response.more_members,
    )


def read_forgotten(response: pb.ForgetTransactionalIdResponse) -> ForgottenId:
    """Reads what was known of an id."""
    return ForgottenId(max(NO_VERSION, response.last_version), _text(response.principal))


def read_hanging(hanging: pb.HangingTransaction) -> HangingTransaction:
    """One transaction that holds back a partition."""
    partition = _partition(hanging.partition)
    return HangingTransaction(partition, hanging.producer_id, _text(hanging.transactional_id), hanging.idle_ms)


def _member(member: pb.OpenMember) -> OpenMember:
    return OpenMember(
        member_id=member.member_id,
        producer_id=member.producer_id,
        epoch=member.producer_epoch,
        txn_version=member.txn_version,
        execution_id=_text(member.execution_id),
        run_id=_text(member.run_id),
        owner=_text(member.owner),
        age_ms=member.age_ms,
        expires_in_ms=member.expires_in_ms,
        partitions=tuple(_partition(partition) for partition in member.partitions),
    )


def _partition(partition: pb.OpenPartition) -> OpenPartition:
    tp = TopicIdPartition(partition.topic_id, partition.partition)
    return OpenPartition(_text(partition.topic), tp, partition.first_offset, partition.last_stable_offset)


def _text(value: str) -> str:
    return plain_text(value, _TEXT_MAX_CHARACTERS)
