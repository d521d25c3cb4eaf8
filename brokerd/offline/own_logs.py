"""Reads the broker's internal logs, of transactions and of group offsets, for `brokerd dump-log` and `brokerd doctor`.
Read-only."""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa
from google.protobuf.message import Message

from brokerd.datadir.topic_store import GROUP_OFFSETS, OWN_TOPICS, TRANSACTION_STATE
from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.groups import records as group_records
from brokerd.ids import TopicIdPartition
from brokerd.record.batch import RecordBatch, values_of
from brokerd.record.header import crc_seed
from brokerd.storage.files import Files
from brokerd.storage.holes import holes_end, is_covered, read_holes
from brokerd.storage.segment_walk import batches_of
from brokerd.transaction import records as transaction_records
from brokerd.wire.v1.group_log_pb2 import GroupLogRecord
from brokerd.wire.v1.transaction_log_pb2 import TransactionLogRecord

_IF_UNUSABLE = {
    TRANSACTION_STATE.id: (
        "this is the transaction log: the broker does not start until all of it is readable, since without an entry a commit could "
        "be lost or repeated. Restore the whole directory from a copy. Without a copy, the entries that the repairs above discard "
        "are lost: rows of members that were opened there are void, and a version that was committed there may be written a second "
        "time. Compare the last batch of each query with `brokerd transactions describe` before you restart it"
    ),
    GROUP_OFFSETS.id: (
        "this is the log of group offsets: the broker starts, but refuses all requests about groups until all of it is readable, "
        "and so refuses commits of transactions that hold offsets of groups and leaves decided ones unfinished. The entries that "
        "the repairs above discard are lost: groups that committed there continue from earlier commits, or begin as new groups. "
        "Compare `brokerd groups describe` with the positions of readers before you restart them, and "
        "correct it with `brokerd groups reset`"
    ),
}


def is_own_log(tp: TopicIdPartition) -> bool:
    """True if the partition is one of the broker's internal logs."""
    return tp.topic_id in OWN_TOPICS


def is_transaction_log(tp: TopicIdPartition) -> bool:
    """True if the partition is the transaction log."""
    return tp.topic_id == TRANSACTION_STATE.id


def if_unusable(tp: TopicIdPartition) -> str | None:
    """What a damaged internal log leads to, as a sentence; None for other partitions."""
    return _IF_UNUSABLE.get(tp.topic_id)


def describe_records(tp: TopicIdPartition, batch: RecordBatch) -> list[dict[str, Any]]:
    """The records of a batch of an internal log, one dict each. Raises CorruptMessageError, UnsupportedVersionError."""
    records = group_records if tp.topic_id == GROUP_OFFSETS.id else transaction_records
    base_offset, timestamp = batch.header.base_offset, batch.header.base_timestamp
    offsets = range(base_offset, batch.header.next_offset)
    return [
        {"offset": offset, "timestamp": timestamp, **_described(records.decode(value))}
        for offset, value in zip(offsets, values_of(batch), strict=True)
    ]


def problem_of(tp: TopicIdPartition, batch: RecordBatch) -> str | None:
    """Why a batch of an internal log cannot be decoded, or None."""
    try:
        describe_records(tp, batch)
    except (CorruptMessageError, UnsupportedVersionError) as error:
        return error.message
    return None


def _described(record: TransactionLogRecord | GroupLogRecord) -> dict[str, Any]:
    """A record's ids, the name and fields of its event, then its other fields; `version` is left out."""
    name = record.WhichOneof("event") or ""
    event: Message = getattr(record, name)
    own = {key: value for key, value in fields_of(record).items() if key not in ("version", name)}
    ids: dict[str, Any] = {key: own.pop(key) for key in ("timestamp", "transactional_id", "group_id", "principal") if key in own}
    return {**ids, "event": type(event).__name__, **fields_of(event), **{key: value for key, value in own.items() if value}}


def fields_of(message: Message) -> dict[str, Any]:
    """All fields of a message except unset submessages, as JSON values; bytes become hex."""
    fields: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if not isinstance(value, Message) or message.HasField(field.name):
            fields[field.name] = _plain(value)
    return fields


def _plain(value: Any) -> Any:
    if isinstance(value, GroupLogRecord):
        return _described(value)
    if isinstance(value, Message):
        return fields_of(value)
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, int | str) else [_plain(part) for part in value]


def read_records(files: Files, tp: TopicIdPartition, log_start_offset: int) -> list[TransactionLogRecord | None]:
    """The readable records of the transaction log, oldest first, with None wherever others are lost, as a start reads them. Raises
    OSError, DataDirectoryError.
    """
    holes = read_holes(files, tp.directory_name, crc_seed(tp))
    lost = [hole for hole in holes if not hole.is_taken_out]
    records: list[TransactionLogRecord | None] = []
    expected = log_start_offset
    for file, position, header in batches_of(files, tp):
        if header.next_offset <= expected or is_covered(holes, header.base_offset, header.next_offset):
            continue
        if any(hole.first_offset < header.base_offset and expected < hole.until_offset for hole in lost):
            records.append(None)
        expected = header.next_offset
        batch = RecordBatch(header, pa.py_buffer(bytes(file.pread(header.size, position))))
        with contextlib.suppress(CorruptMessageError, UnsupportedVersionError):
            records += [transaction_records.decode(value) for value in values_of(batch)]
    if holes_end(lost) > expected:
        records.append(None)
    return records
