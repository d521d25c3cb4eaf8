"""Entries of the log of group offsets and their bytes: one GroupLogRecord each."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.groups.model import CommittedOffset, Event, GroupDeleted, LogEntry, OffsetsCommitted, OffsetsDeleted
from brokerd.ids import TopicIdPartition
from brokerd.wire.v1 import group_log_pb2 as log_pb2

VERSION = 1


def encode_entry(entry: LogEntry) -> bytes:
    """The bytes of an entry."""
    return message_of(entry).SerializeToString()


def message_of(entry: LogEntry) -> log_pb2.GroupLogRecord:
    """An entry as a message."""
    record = log_pb2.GroupLogRecord(version=VERSION, group_id=entry.group_id, principal=entry.principal, decision=entry.decision)
    event = entry.event
    if isinstance(event, OffsetsCommitted):
        record.offsets_committed.SetInParent()
        add = record.offsets_committed.offsets.add
        for tp, committed in event.offsets.items():
            one = add()  # and field by field: half the time of keywords, where there are thousands
            one.topic_id, one.partition = tp
            one.offset, one.leader_epoch, one.metadata, one.timestamp, one.leader_epoch_id, one.clock_ahead_ms = committed
    elif isinstance(event, OffsetsDeleted):
        record.offsets_deleted.SetInParent()
        for tp in event.partitions:
            record.offsets_deleted.partitions.add(topic_id=tp.topic_id, partition=tp.partition)
    else:
        record.group_deleted.SetInParent()
    return record


def decode_entry(data: bytes) -> LogEntry:
    """The entry. Raises CorruptMessageError; UnsupportedVersionError for a version that this one does not know."""
    record = log_pb2.GroupLogRecord()
    try:
        record.ParseFromString(data)
    except DecodeError:
        raise CorruptMessageError(f"a record of the log of group offsets of {len(data)} bytes cannot be read") from None
    return entry_of(record)


def entry_of(record: log_pb2.GroupLogRecord) -> LogEntry:
    """The entry of a message. Raises as `decode_entry`."""
    if record.version != VERSION:
        raise UnsupportedVersionError(
            f"a record of the log of group offsets has version {record.version}; this broker reads {VERSION}: start the newer one "
            "again"
        )
    return LogEntry(record.group_id, record.principal, _event(record), record.decision)


def _event(record: log_pb2.GroupLogRecord) -> Event:
    kinds = [field.name for field, _ in record.ListFields() if field.message_type is not None]
    if len(kinds) != 1:
        raise CorruptMessageError(
            f"a record of the log of group offsets holds {kinds or 'no event'}, but must hold exactly one event"
        )
    match kinds[0]:
        case "offsets_committed":
            offsets = record.offsets_committed.offsets
            return OffsetsCommitted({TopicIdPartition(one.topic_id, one.partition): _committed(one) for one in offsets})
        case "offsets_deleted":
            return OffsetsDeleted(tuple(TopicIdPartition(one.topic_id, one.partition) for one in record.offsets_deleted.partitions))
        case _:
            return GroupDeleted()


def _committed(one: log_pb2.CommittedOffset) -> CommittedOffset:
    return CommittedOffset(one.offset, one.leader_epoch, one.metadata, one.timestamp, one.leader_epoch_id, one.clock_ahead_ms)
