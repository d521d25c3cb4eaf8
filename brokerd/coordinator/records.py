"""The records of the coordinator's log: events of transactional ids and of groups, reserved producer ids, and the begin and end of
snapshots."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.wire.v1.coordinator_log_pb2 import (
    CommitCompleted,
    CommitPrepared,
    CommittedOffset,
    CoordinatorRecord,
    GroupDeleted,
    MemberOpened,
    MembersAborted,
    OffsetsCommitted,
    OffsetsDeleted,
    ProducerIdsReserved,
    StateBegins,
    StateEnds,
    TransactionalIdForgotten,
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
) -> CoordinatorRecord:
    """The record of a transactional id's event, which is copied. `timestamp`: wall clock, ms."""
    return CoordinatorRecord(
        version=VERSION,
        transactional_id=transactional_id,
        principal=principal,
        timestamp=timestamp,
        in_state=in_state,
        **{_FIELDS[type(event)]: event},  # type: ignore[arg-type]
    )


def event_of(record: CoordinatorRecord) -> Event | StateBegins | StateEnds:
    """The transactional id's event in a record."""
    event: Event | StateBegins | StateEnds = getattr(record, record.WhichOneof("event") or "")
    return event


def is_of_group(record: CoordinatorRecord) -> bool:
    """True if the record holds an event of a group."""
    return record.WhichOneof("event") in ("offsets_committed", "offsets_deleted", "group_deleted")


def offsets_committed(
    group_id: str, principal: str, offsets: Iterable[CommittedOffset], last_timestamp: int = 0, clock_ahead_ms: int = 0
) -> CoordinatorRecord:
    """The record that sets these offsets. `last_timestamp`: time of the group's last commit, if later than that of the offsets."""
    event = OffsetsCommitted(offsets=offsets, last_timestamp=last_timestamp, clock_ahead_ms=clock_ahead_ms)
    return CoordinatorRecord(version=VERSION, group_id=group_id, principal=principal, offsets_committed=event)


def offsets_deleted(group_id: str, principal: str, deleted: OffsetsDeleted) -> CoordinatorRecord:
    """The record that removes these partitions' offsets. A group without offsets is deleted."""
    return CoordinatorRecord(version=VERSION, group_id=group_id, principal=principal, offsets_deleted=deleted)


def group_deleted(group_id: str, principal: str) -> CoordinatorRecord:
    """The record that deletes a group."""
    return CoordinatorRecord(version=VERSION, group_id=group_id, principal=principal, group_deleted=GroupDeleted())


def producer_ids_reserved(limit: int) -> CoordinatorRecord:
    """The record that reserves all producer numbers below `limit`."""
    return CoordinatorRecord(version=VERSION, producer_ids_reserved=ProducerIdsReserved(limit=limit))


def decode(data: bytes) -> CoordinatorRecord:
    """Decodes a record. Raises CorruptMessageError; UnsupportedVersionError for any version but VERSION."""
    record = CoordinatorRecord()
    try:
        record.ParseFromString(data)
    except DecodeError:
        raise CorruptMessageError(f"a record of the coordinator's log of {len(data)} bytes cannot be read") from None
    if record.version != VERSION:
        raise UnsupportedVersionError(
            f"a record of the coordinator's log has version {record.version}; this broker reads {VERSION}: start the newer broker "
            "again"
        )
    if record.WhichOneof("event") is None:
        raise CorruptMessageError("a record of the coordinator's log holds no event, but must hold exactly one")
    return record
