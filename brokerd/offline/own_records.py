"""Records of the broker's own logs, of transactions and of group offsets, as `brokerd dump-log` shows and `brokerd doctor` checks
them. Read-only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from brokerd.datadir.own_entries import values_of
from brokerd.datadir.topic_store import GROUP_OFFSETS, OWN_TOPICS, TRANSACTION_STATE
from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.groups import log_records as group_records
from brokerd.groups.model import LogEntry as GroupEntry
from brokerd.ids import TopicIdPartition
from brokerd.record.batch import RecordBatch
from brokerd.record.header import decode_header
from brokerd.storage.names import parse_partition_directory
from brokerd.transaction import log_records as transaction_records

_IF_UNUSABLE = {
    TRANSACTION_STATE.id: (
        "this is the transaction log: the broker does not start before it can trust all of it, since without an entry a "
        "commit could be lost or done twice. Restore the whole directory from a copy. If there is none, what the ways out above "
        "give up is forgotten: rows of members that were opened there are void, and a version that was committed there may be "
        "written a second time. Compare the last batch of each query with `brokerd transactions describe` before you start it again"
    ),
    GROUP_OFFSETS.id: (
        "this is the log of the offsets of groups: the broker starts, and refuses all requests about groups before it can trust "
        "all of it, since a reader that is told of no offset begins somewhere else. What the ways out above give up is forgotten: "
        "groups that committed there go on from their commits before, or begin as new ones. Compare `brokerd groups describe` with "
        "what readers have done before you start them again, and set what is wrong with `brokerd groups reset`. Until then commits "
        "of transactions that hold offsets of groups are refused, and those that are decided are not finished"
    ),
}


def is_own_log(tp: TopicIdPartition | None) -> bool:
    """True if the partition is one of the broker's own logs."""
    return tp is not None and tp.topic_id in OWN_TOPICS


def if_unusable(tp: TopicIdPartition) -> str | None:
    """The consequence of a log that cannot be trusted as a whole; None for all but the broker's own."""
    return _IF_UNUSABLE.get(tp.topic_id)


def records_in(path: str, position: int, size: int) -> list[dict[str, Any]] | None:
    """The records of a batch in a segment's file, one dict each; None if the segment is of no log of the broker's own. Raises
    CorruptMessageError, UnsupportedVersionError, OSError.
    """
    tp = parse_partition_directory(os.path.basename(os.path.dirname(os.path.abspath(path))))
    if tp is None or not is_own_log(tp):
        return None
    with open(path, "rb") as file:
        data = os.pread(file.fileno(), size, position)
    return describe_records(tp, RecordBatch(decode_header(data), pa.py_buffer(data)))


def describe_records(tp: TopicIdPartition, batch: RecordBatch) -> list[dict[str, Any]]:
    """The records of a batch of one of the broker's own logs. Raises CorruptMessageError, UnsupportedVersionError."""
    describe = _group_entry if tp.topic_id == GROUP_OFFSETS.id else _transaction_entry
    base_offset, timestamp = batch.header.base_offset, batch.header.base_timestamp
    offsets = range(base_offset, batch.header.next_offset)
    return [
        {"offset": offset, "timestamp": timestamp, **describe(value)}
        for offset, value in zip(offsets, values_of(batch), strict=True)
    ]


def problem_of(tp: TopicIdPartition, batch: RecordBatch) -> str | None:
    """The reason why a batch of one of the broker's own logs cannot be read, or None."""
    try:
        describe_records(tp, batch)
    except (CorruptMessageError, UnsupportedVersionError) as error:
        return error.message
    return None


def _transaction_entry(data: bytes) -> dict[str, Any]:
    entry = transaction_records.decode_entry(data)
    return {
        "timestamp": entry.timestamp,
        "transactional_id": entry.transactional_id,
        "principal": entry.principal,
        "event": type(entry.event).__name__,
        **({"in_state": True} if entry.in_state else {}),
        **_plain(entry.event),
    }


def _group_entry(data: bytes) -> dict[str, Any]:
    return _group_fields(group_records.decode_entry(data))


def _group_fields(entry: GroupEntry) -> dict[str, Any]:
    group_id, principal, event, decision = entry
    fields = {"group_id": group_id, "principal": principal, "event": type(event).__name__, **_plain(event)}
    return {**fields, **({"decision": decision} if decision else {})}


def _plain(value: Any) -> Any:
    """Values as JSON has them: named tuples by their fields, bytes in hex."""
    if isinstance(value, GroupEntry):
        return _group_fields(value)
    if isinstance(value, Mapping):  # of offsets, by partition
        return [{**_plain(tp), **_plain(committed)} for tp, committed in value.items()]
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    if isinstance(value, bytes):
        return value.hex()
    return [_plain(part) for part in value] if isinstance(value, tuple) else value
