"""Records of the log of group offsets, and the parser shared by the broker's internal logs."""

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
    """The record that sets these offsets. `decision`: the decision number of their transaction."""
    event = OffsetsCommitted(offsets=offsets)
    return GroupLogRecord(version=VERSION, group_id=group_id, principal=principal, offsets_committed=event, decision=decision)


def offsets_deleted(group_id: str, principal: str, deleted: OffsetsDeleted) -> GroupLogRecord:
    """The record that removes these partitions' offsets. A group without offsets is deleted."""
    return GroupLogRecord(version=VERSION, group_id=group_id, principal=principal, offsets_deleted=deleted)


def group_deleted(group_id: str, principal: str) -> GroupLogRecord:
    """The record that deletes a group."""
    return GroupLogRecord(version=VERSION, group_id=group_id, principal=principal, group_deleted=GroupDeleted())


def decode(data: bytes) -> GroupLogRecord:
    """Decodes a record. Raises as `parse` does."""
    return parse(GroupLogRecord(), data, "the log of group offsets", VERSION)


def parse(record: R, data: bytes, log: str, version: int) -> R:
    """Parses `data` into `record` and returns it. Raises CorruptMessageError; UnsupportedVersionError if its version differs."""
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
