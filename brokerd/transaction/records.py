"""Records of the transaction log: events, keyed by transactional id, and the begin and end of snapshots."""

from __future__ import annotations

from brokerd.groups.records import parse
from brokerd.wire.v1.transaction_log_pb2 import (
    CommitCompleted,
    CommitPrepared,
    MemberOpened,
    MembersAborted,
    StateBegins,
    StateEnds,
    TransactionalIdForgotten,
    TransactionLogRecord,
    VersionRepeated,
)

VERSION = 1

Event = MemberOpened | MembersAborted | CommitPrepared | CommitCompleted | VersionRepeated | TransactionalIdForgotten
_FIELDS = {
    MemberOpened: "member_opened",
    MembersAborted: "members_aborted",
    CommitPrepared: "commit_prepared",
    CommitCompleted: "commit_completed",
    VersionRepeated: "version_repeated",
    TransactionalIdForgotten: "forgotten",
    StateBegins: "state_begins",
    StateEnds: "state_ends",
}


def record_of(
    transactional_id: str, principal: str, timestamp: int, event: Event | StateBegins | StateEnds, *, in_state: bool = False
) -> TransactionLogRecord:
    """The record of an event, which is copied. `timestamp`: wall clock, ms."""
    return TransactionLogRecord(
        version=VERSION,
        transactional_id=transactional_id,
        principal=principal,
        timestamp=timestamp,
        in_state=in_state,
        **{_FIELDS[type(event)]: event},  # type: ignore[arg-type]
    )


def event_of(record: TransactionLogRecord) -> Event | StateBegins | StateEnds:
    """The event that a record holds."""
    event: Event | StateBegins | StateEnds = getattr(record, record.WhichOneof("event") or "")
    return event


def decode(data: bytes) -> TransactionLogRecord:
    """Decodes a record. Raises CorruptMessageError; UnsupportedVersionError for any version but VERSION."""
    return parse(TransactionLogRecord(), data, "the transaction log", VERSION)
