"""The checkpoint of a data directory: the durable end of every partition.

It is written after the fdatasync that it records, never before. So everything below `durable_end` was on disk, and a bad batch
there is damage, while one above it is a torn tail.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping

from brokerd.ids import TopicIdPartition
from brokerd.partition.entries import CheckpointEntry
from brokerd.storage.checksummed_file import DocumentError, read_document, write_document
from brokerd.storage.files import Files
from brokerd.storage.names import CHECKPOINT
from brokerd.storage.spare_files import SpareFiles

CHECKPOINT_KIND = "checkpoint"
CHECKPOINT_VERSION = 1
_ENTRY = struct.Struct("<16siqqq")
Entries = Mapping[TopicIdPartition, CheckpointEntry]


class CheckpointFile:
    """Writes the file, from any thread; an older state never replaces a newer one."""

    def __init__(self, files: Files, spares: SpareFiles | None = None) -> None:
        self._files = files
        self._spares = spares
        self._lock = threading.Lock()
        self._captured = 0
        self._written = 0
        self.written: Entries = {}  # the file's content, as written since this start

    def capture(self) -> int:
        """Numbers the state being captured now; pass the number to `write`."""
        self._captured += 1
        return self._captured

    def write(self, entries: Entries, number: int, *, makes_room: bool = False) -> None:
        """Replaces the file, durably on return. Raises OSError, leaving the old file in place. With `makes_room` the write also
        succeeds on a full disk, as long as there are spare files.
        """
        with self._lock:
            if number > self._written:
                body = encode_checkpoint(entries)
                spares = self._spares if makes_room else None
                write_document(self._files, CHECKPOINT, CHECKPOINT_KIND, CHECKPOINT_VERSION, body, spares=spares)
                if self._spares is not None:
                    self._spares.note_document(len(body))
                self._written = number
                self.written = entries

    @property
    def is_behind(self) -> bool:
        """True if a captured state has not been written yet."""
        return self._written < self._captured


def encode_checkpoint(entries: Entries) -> bytes:
    """The body of the file."""
    return b"".join([_ENTRY.pack(tp.topic_id, tp.partition, *entry) for tp, entry in entries.items()])


def decode_checkpoint(body: bytes) -> dict[TopicIdPartition, CheckpointEntry]:
    """The inverse of encode_checkpoint. Raises DocumentError."""
    if len(body) % _ENTRY.size:
        raise DocumentError("the checkpoint is not a whole number of entries")
    return {
        TopicIdPartition(topic_id, partition): CheckpointEntry(recovery_point, durable_end, log_start_offset)
        for topic_id, partition, recovery_point, durable_end, log_start_offset in _ENTRY.iter_unpack(body)
    }


def read_checkpoint(files: Files) -> dict[TopicIdPartition, CheckpointEntry] | None:
    """The entries, or None if the file is missing or damaged. Raises OSError, DataDirectoryError."""
    try:
        return decode_checkpoint(read_document(files, CHECKPOINT, CHECKPOINT_KIND, CHECKPOINT_VERSION))
    except (FileNotFoundError, DocumentError):
        return None
