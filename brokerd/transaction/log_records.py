"""Entries of the transaction log and their bytes: one TransactionLogRecord each."""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.groups.log_records import entry_of, message_of
from brokerd.ids import TopicIdPartition
from brokerd.transaction.model import (
    CommitCompleted,
    CommitPrepared,
    EarlierCommit,
    EntriesLost,
    Event,
    Execution,
    Forgotten,
    HeldBack,
    LogEntry,
    Member,
    MemberOpened,
    MembersAborted,
    StateBegins,
    StateEnds,
    StateEvent,
    Totals,
    VersionRepeated,
)
from brokerd.wire.v1 import transaction_log_pb2 as log_pb2
from brokerd.wire.v1 import transaction_pb2

VERSION = 1
VERSION_IN_PIECES = 2  # of a StateBegins whose state has several batches: readers of version 1 would take events for parts of it
VERSION_WITH_OFFSETS = 3  # of a CommitPrepared with offsets of a group: others would commit the rows without them


class Record(NamedTuple):
    """An entry as the log's record."""

    key: bytes
    value: bytes


def record_of(entry: LogEntry) -> Record:
    """The entry's record: its key is the transactional id."""
    return Record(entry.transactional_id.encode(), encode_entry(entry))


def encode_entry(entry: LogEntry) -> bytes:
    """The bytes of an entry."""
    event = entry.event
    record = log_pb2.TransactionLogRecord(
        version=_version(event),
        transactional_id=entry.transactional_id,
        principal=entry.principal,
        timestamp=entry.timestamp,
        in_state=entry.in_state,
    )
    if isinstance(event, MemberOpened):
        record.member_opened.CopyFrom(_opened(event))
    elif isinstance(event, MembersAborted):
        record.members_aborted.producer_ids.extend(event.producer_ids)
        record.members_aborted.SetInParent()
    elif isinstance(event, CommitPrepared):
        record.commit_prepared.CopyFrom(_prepared(event))
    elif isinstance(event, CommitCompleted):
        record.commit_completed.CopyFrom(log_pb2.CommitCompleted(txn_version=event.version))
    elif isinstance(event, VersionRepeated):
        version, execution_id, run_id = event.execution
        record.version_repeated.CopyFrom(log_pb2.VersionRepeated(txn_version=version, execution_id=execution_id, run_id=run_id))
    elif isinstance(event, Forgotten):
        record.forgotten.SetInParent()
    elif isinstance(event, StateBegins):
        record.state_begins.CopyFrom(log_pb2.StateBegins(in_pieces=event.in_pieces))
    else:
        assert not isinstance(event, EntriesLost), "it is found, not written"
        record.state_ends.CopyFrom(log_pb2.StateEnds(transactional_ids=event.transactional_ids))
    return record.SerializeToString()


def decode_entry(data: bytes) -> LogEntry:
    """The entry. Raises CorruptMessageError; UnsupportedVersionError for a version that this one does not know."""
    record = log_pb2.TransactionLogRecord()
    try:
        record.ParseFromString(data)
    except DecodeError:
        raise CorruptMessageError(f"a record of the transaction log of {len(data)} bytes cannot be read") from None
    if not VERSION <= record.version <= VERSION_WITH_OFFSETS:
        raise UnsupportedVersionError(
            f"a record of the transaction log has version {record.version}; this broker reads {VERSION} to {VERSION_WITH_OFFSETS}: "
            "start the newer one again"
        )
    return LogEntry(record.transactional_id, record.principal, record.timestamp, _event(record), record.in_state)


def _version(event: Event | StateEvent | EntriesLost) -> int:
    if isinstance(event, StateBegins) and event.in_pieces:
        return VERSION_IN_PIECES
    return VERSION_WITH_OFFSETS if isinstance(event, CommitPrepared) and event.group_offsets is not None else VERSION


def _opened(event: MemberOpened) -> log_pb2.MemberOpened:
    member = event.member
    version, execution_id, run_id = member.execution
    return log_pb2.MemberOpened(
        member_id=member.member_id,
        producer_id=member.producer_id,
        txn_version=version,
        execution_id=execution_id,
        run_id=run_id,
        owner=member.owner,
        timeout_ms=member.timeout_ms,
    )


def _prepared(event: CommitPrepared) -> log_pb2.CommitPrepared:
    version, execution_id, run_id = event.execution
    rows, key_bytes, value_bytes, key_hash_sum = event.totals
    return log_pb2.CommitPrepared(
        txn_version=version,
        execution_id=execution_id,
        run_id=run_id,
        committed_producer_ids=event.committed_ids,
        aborted_producer_ids=event.aborted_ids,
        partitions=[transaction_pb2.TransactionPartition(topic_id=tp.topic_id, partition=tp.partition) for tp in event.partitions],
        totals=transaction_pb2.TransactionTotals(
            rows=rows, key_bytes=key_bytes, value_bytes=value_bytes, key_hash_sum=key_hash_sum
        ),
        held_back=[
            log_pb2.HeldBack(topic_id=held.tp.topic_id, partition=held.tp.partition, first_offset=held.first_offset)
            for held in event.held_back
        ],
        one_write=event.is_one_write,
        group_offsets=message_of(event.group_offsets) if event.group_offsets is not None else None,
        earlier=[log_pb2.EarlierCommit(txn_version=one.version, digest=one.digest) for one in event.earlier],
    )


def _event(record: log_pb2.TransactionLogRecord) -> Event | StateBegins | StateEnds:
    kinds = [field.name for field, _ in record.ListFields() if field.message_type is not None]
    if len(kinds) != 1:
        raise CorruptMessageError(f"a record of the transaction log holds {kinds or 'no event'}, but must hold exactly one event")
    match kinds[0]:
        case "member_opened":
            opened = record.member_opened
            execution = Execution(opened.txn_version, opened.execution_id, opened.run_id)
            return MemberOpened(Member(opened.member_id, opened.producer_id, execution, opened.owner, opened.timeout_ms))
        case "members_aborted":
            return MembersAborted(tuple(record.members_aborted.producer_ids))
        case "commit_prepared":
            return _commit(record.commit_prepared)
        case "commit_completed":
            return CommitCompleted(record.commit_completed.txn_version)
        case "version_repeated":
            repeated = record.version_repeated
            return VersionRepeated(Execution(repeated.txn_version, repeated.execution_id, repeated.run_id))
        case "forgotten":
            return Forgotten()
        case "state_begins":
            return StateBegins(record.state_begins.in_pieces)
        case _:
            return StateEnds(record.state_ends.transactional_ids)


def _commit(prepared: log_pb2.CommitPrepared) -> CommitPrepared:
    totals = prepared.totals
    return CommitPrepared(
        Execution(prepared.txn_version, prepared.execution_id, prepared.run_id),
        tuple(prepared.committed_producer_ids),
        tuple(prepared.aborted_producer_ids),
        tuple(TopicIdPartition(tp.topic_id, tp.partition) for tp in prepared.partitions),
        Totals(totals.rows, totals.key_bytes, totals.value_bytes, totals.key_hash_sum),
        tuple(HeldBack(TopicIdPartition(held.topic_id, held.partition), held.first_offset) for held in prepared.held_back),
        prepared.one_write,
        entry_of(prepared.group_offsets) if prepared.HasField("group_offsets") else None,
        tuple(EarlierCommit(one.txn_version, one.digest) for one in prepared.earlier),
    )
