"""Records of the coordinator's log as `brokerd dump-log` shows and `brokerd doctor` checks them. Read-only."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa

from brokerd.datadir.topic_store import TRANSACTION_STATE
from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.ids import TopicIdPartition
from brokerd.record.batch import MAX_DECOMPRESSED_BYTES, RecordBatch
from brokerd.record.header import decode_header
from brokerd.storage.names import parse_partition_directory
from brokerd.transaction.log_records import decode_entry

IF_UNUSABLE = (
    "this is the log of the transactions: the broker does not start before it can trust all of it, since without an entry a commit "
    "could be lost or done twice. Restore the whole directory from a copy. If there is none, what the ways out above give up is "
    "forgotten: rows of members that were opened there are void, and a version that was committed there may be written a second "
    "time. Compare the last batch of each query with `brokerd transactions describe` before you start it again"
)


def is_transaction_log(tp: TopicIdPartition | None) -> bool:
    """True if the partition is the coordinator's log."""
    return tp is not None and tp.topic_id == TRANSACTION_STATE.id


def records_in(path: str, position: int, size: int) -> list[dict[str, Any]] | None:
    """The records of a batch in a segment's file, one dict each; None if the segment is not of the coordinator's log. Raises
    CorruptMessageError, UnsupportedVersionError, OSError.
    """
    if not is_transaction_log(parse_partition_directory(os.path.basename(os.path.dirname(os.path.abspath(path))))):
        return None
    with open(path, "rb") as file:
        data = os.pread(file.fileno(), size, position)
    return describe_records(RecordBatch(decode_header(data), pa.py_buffer(data)))


def describe_records(batch: RecordBatch) -> list[dict[str, Any]]:
    """The records of a batch of the coordinator's log. Raises CorruptMessageError, UnsupportedVersionError."""
    values = batch.to_arrow(max_uncompressed_bytes=MAX_DECOMPRESSED_BYTES).column("value")
    described = []
    for place, value in enumerate(values):
        entry = decode_entry(value.as_py() or b"")
        described.append(
            {
                "offset": batch.header.base_offset + place,
                "timestamp": entry.timestamp,
                "transactional_id": entry.transactional_id,
                "principal": entry.principal,
                "event": type(entry.event).__name__,
                **_plain(entry.event),
            }
        )
    return described


def problem_of(batch: RecordBatch) -> str | None:
    """The reason why a batch of the coordinator's log cannot be read, or None."""
    try:
        describe_records(batch)
    except (CorruptMessageError, UnsupportedVersionError) as error:
        return error.message
    return None


def _plain(value: Any) -> Any:
    """Values as JSON has them: named tuples by their fields, bytes in hex."""
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    if isinstance(value, bytes):
        return value.hex()
    return [_plain(part) for part in value] if isinstance(value, tuple) else value
