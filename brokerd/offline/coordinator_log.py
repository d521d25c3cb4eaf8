"""Reads the coordinator's log, of transactions and of group offsets, for `brokerd dump-log` and `brokerd doctor`. Read-only."""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa
from google.protobuf.message import Message

from brokerd.coordinator.records import decode
from brokerd.datadir.topic_store import COORDINATOR
from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.ids import TopicIdPartition
from brokerd.record.batch import RecordBatch, values_of
from brokerd.record.header import crc_seed
from brokerd.storage.files import Files
from brokerd.storage.holes import holes_end, is_covered, read_holes
from brokerd.storage.segment_walk import batches_of
from brokerd.wire.v1.coordinator_log_pb2 import CoordinatorRecord

IF_UNUSABLE = (
    "this is the coordinator's log, of transactions and of group offsets: the broker does not start until all of it is readable, "
    "since without a record a commit could be lost or repeated. Restore the whole directory from a copy. Without a copy, the "
    "records that the repairs above discard are lost: rows of members that were opened there are void, a version that was "
    "committed there may be written a second time, and groups that committed there continue from earlier commits, or begin as new "
    "groups; producer ids go on far above all that are known. Compare the last batch of each query with `brokerd transactions "
    "describe`, and the positions of readers with `brokerd groups describe`, before you restart them; correct positions with "
    "`brokerd groups reset`"
)


def is_coordinator_log(tp: TopicIdPartition) -> bool:
    """True if the partition is the coordinator's log."""
    return tp.topic_id == COORDINATOR.id


def describe_records(batch: RecordBatch) -> list[dict[str, Any]]:
    """The records of a batch, one dict each. Raises CorruptMessageError, UnsupportedVersionError."""
    base_offset, timestamp = batch.header.base_offset, batch.header.base_timestamp
    offsets = range(base_offset, batch.header.next_offset)
    return [
        {"offset": offset, "timestamp": timestamp, **_described(decode(value))}
        for offset, value in zip(offsets, values_of(batch), strict=True)
    ]


def _described(record: CoordinatorRecord) -> dict[str, Any]:
    """A record's ids, the name and fields of its event, then its other fields; `version` is left out."""
    name = record.WhichOneof("event") or ""
    event: Message = getattr(record, name)
    own = {key: value for key, value in fields_of(record).items() if key not in ("version", name)}
    ids: dict[str, Any] = {key: own.pop(key) for key in ("timestamp", "transactional_id", "group_id", "principal") if own[key]}
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
    if isinstance(value, Message):
        return fields_of(value)
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, int | str) else [_plain(part) for part in value]


def read_records(files: Files, tp: TopicIdPartition, log_start_offset: int) -> list[CoordinatorRecord | None]:
    """The readable records as a start of the broker reads them, oldest first; None marks each place where records are lost. Raises
    OSError, DataDirectoryError.
    """
    holes = read_holes(files, tp.directory_name, crc_seed(tp))
    lost = [hole for hole in holes if not hole.is_taken_out]
    records: list[CoordinatorRecord | None] = []
    expected = log_start_offset
    for file, position, header in batches_of(files, tp):
        if header.next_offset <= expected or is_covered(holes, header.base_offset, header.next_offset):
            continue
        if any(hole.first_offset < header.base_offset and expected < hole.until_offset for hole in lost):
            records.append(None)
        expected = header.next_offset
        batch = RecordBatch(header, pa.py_buffer(bytes(file.pread(header.size, position))))
        with contextlib.suppress(CorruptMessageError, UnsupportedVersionError):
            records += map(decode, values_of(batch))
    if holes_end(lost) > expected:
        records.append(None)
    return records
