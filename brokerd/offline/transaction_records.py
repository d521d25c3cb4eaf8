"""Records of the coordinator's log as `brokerd dump-log` shows and `brokerd doctor` checks them. Read-only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from brokerd.datadir.topic_store import TRANSACTION_STATE
from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.ids import TopicIdPartition
from brokerd.record.batch import MAX_DECOMPRESSED_BYTES, RecordBatch
from brokerd.record.header import BatchHeader, crc_seed, decode_header
from brokerd.storage.files import File, Files
from brokerd.storage.names import LOG_SUFFIX, offset_file, parse_offset_file, parse_partition_directory
from brokerd.storage.segment_walk import whole_batches
from brokerd.transaction.log_records import decode_entry
from brokerd.transaction.model import LogEntry

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
    described = []
    for place, entry in enumerate(_entries(batch)):
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


def read_entries(files: Files, tp: TopicIdPartition, log_start_offset: int) -> list[LogEntry]:
    """All entries of the coordinator's log that can be read, oldest first, as a start reads them. Raises OSError."""
    entries: list[LogEntry] = []
    for file, position, header in batches_of(files, tp):
        if header.next_offset <= log_start_offset:
            continue
        batch = RecordBatch(header, pa.py_buffer(bytes(file.pread(header.size, position))))
        with contextlib.suppress(CorruptMessageError, UnsupportedVersionError):
            entries.extend(_entries(batch))
    return entries


def batches_of(files: Files, tp: TopicIdPartition) -> Iterator[tuple[File, int, BatchHeader]]:
    """All whole batches of a partition: the open file, the position in it and the header. Payloads are not read. Raises OSError."""
    directory = tp.directory_name
    names = files.listdir(directory) if directory in files.listdir() else []
    bases = sorted(parsed[0] for parsed in map(parse_offset_file, names) if parsed is not None and parsed[1] == LOG_SUFFIX)
    for base in bases:
        file = files.open(f"{directory}/{offset_file(base, LOG_SUFFIX)}")
        try:
            for position, header in whole_batches(file, crc_seed(tp), base):
                yield file, position, header
        finally:
            file.close()


def _entries(batch: RecordBatch) -> list[LogEntry]:
    """Raises CorruptMessageError, UnsupportedVersionError."""
    values = batch.to_arrow(max_uncompressed_bytes=MAX_DECOMPRESSED_BYTES).column("value")
    return [decode_entry(value.as_py() or b"") for value in values]


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
