"""Records of the log of group offsets, and what all records of the broker's own logs have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from google.protobuf.message import DecodeError

from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.wire.v1.group_log_pb2 import CommittedOffset, GroupDeleted, GroupLogRecord, OffsetsCommitted, OffsetsDeleted
from brokerd.wire.v1.transaction_log_pb2 import TransactionLogRecord

VERSION = 1
R = TypeVar("R", GroupLogRecord, TransactionLogRecord)


def offsets_committed(group_id: str, principal: str, offsets: Iterable[CommittedOffset] = (), decision: int = 0) -> GroupLogRecord:
    """These offsets hold from now on. `decision`: the number of the transaction that they go with."""
    event = OffsetsCommitted(offsets=offsets)
    return GroupLogRecord(version=VERSION, group_id=group_id, principal=principal, offsets_committed=event, decision=decision)


def offsets_deleted(group_id: str, principal: str, deleted: OffsetsDeleted) -> GroupLogRecord:
    """These partitions have no offset any more. A group without any is gone."""
    return GroupLogRecord(version=VERSION, group_id=group_id, principal=principal, offsets_deleted=deleted)


def group_deleted(group_id: str, principal: str) -> GroupLogRecord:
    """Nothing is known of the group any more."""
    return GroupLogRecord(version=VERSION, group_id=group_id, principal=principal, group_deleted=GroupDeleted())


def decode(data: bytes) -> GroupLogRecord:
    """The record. Raises as `parse`."""
    return parse(GroupLogRecord(), data, "the log of group offsets", VERSION)


def parse(record: R, data: bytes, log: str, version: int) -> R:
    """The record, read from `data`. Raises CorruptMessageError; UnsupportedVersionError if its version is not this one."""
    try:
        record.ParseFromString(data)
    except DecodeError:
        raise CorruptMessageError(f"a record of {log} of {len(data)} bytes cannot be read") from None
    if record.version != version:
        raise UnsupportedVersionError(
            f"a record of {log} has version {record.version}; this broker reads {version}: start the newer one again"
        )
    if record.WhichOneof("event") is None:
        raise CorruptMessageError(f"a record of {log} holds no event, but must hold exactly one")
    return record
