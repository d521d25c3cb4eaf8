"""Files derived from one partition's log: snapshots and the leader epochs. A scan of the log rebuilds them.

A snapshot spares recovery a replay of the whole log, and preserves the producer state of batches that retention has removed.
recovery.py decides which one is valid. Trailing empty parts are omitted: the body ends after the producers, the forgotten numbers
or the aborted transactions.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any

from brokerd.partition.leader_epochs import EpochEntry
from brokerd.partition.log_state import Snapshot
from brokerd.partition.producer_state import WINDOW_BATCHES, AbortedTransaction, BatchMetadata, ProducerStateEntry
from brokerd.storage.checksummed_file import DocumentError, DocumentKind, read_document, write_document
from brokerd.storage.files import Files
from brokerd.storage.names import LEADER_EPOCHS, SNAPSHOT_SUFFIX, offset_file, offsets_of
from brokerd.storage.spare_files import SpareFiles

SNAPSHOT_KIND = DocumentKind("producer-snapshot", 3)
_HEAD = struct.Struct("<IqII")
_PRODUCER = struct.Struct("<qhBBq")
_BATCH = struct.Struct("<iiqqqi?")
# One struct per number of batches: packs a producer in one call. A roll may snapshot a hundred thousand producers.
_WHOLE = [struct.Struct(_PRODUCER.format + _BATCH.format[1:] * count) for count in range(WINDOW_BATCHES + 1)]
_COUNT = struct.Struct("<I")  # number of entries that follow; omitted with a trailing empty part
_FORGOTTEN = struct.Struct("<iq")
_ABORTED = struct.Struct("<qqqq")
EPOCHS_KIND = DocumentKind("leader-epochs", 1)
_EPOCH = struct.Struct("<iqI")
_EPOCHS_SEED = struct.Struct("<I")


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The body of a snapshot file."""
    parts = [
        _HEAD.pack(snapshot.seed, snapshot.offset, len(snapshot.epochs), len(snapshot.producers)),
        encode_epochs(snapshot.epochs),
    ]
    for producer_id, entry in snapshot.producers.items():
        count = len(entry.batches)
        fields = chain.from_iterable(entry.batches) if count > 1 else entry.batches[0]
        parts.append(_WHOLE[count].pack(producer_id, entry.epoch, entry.has_wrapped, count, entry.txn_first_offset, *fields))
    if snapshot.forgotten or snapshot.aborted:
        parts.append(_COUNT.pack(len(snapshot.forgotten)))
        parts.extend([_FORGOTTEN.pack(*entry) for entry in snapshot.forgotten.items()])
    if snapshot.aborted:
        parts.append(_COUNT.pack(len(snapshot.aborted)))
        parts.extend([_ABORTED.pack(*entry) for entry in snapshot.aborted])
    return b"".join(parts)


def decode_snapshot(body: bytes) -> Snapshot:
    """Decodes the body of a snapshot file. Raises DocumentError."""
    try:
        seed, offset, epoch_count, producer_count = _HEAD.unpack_from(body)
        at = _HEAD.size
        epochs, at = decode_epochs(body, at, epoch_count)
        producers: dict[int, ProducerStateEntry] = {}
        for _ in range(producer_count):
            producer_id, epoch, has_wrapped, batch_count, txn_first_offset = _PRODUCER.unpack_from(body, at)
            at += _PRODUCER.size
            if not 1 <= batch_count <= WINDOW_BATCHES:
                raise DocumentError(f"a producer has {batch_count} batches in the snapshot, not 1 to {WINDOW_BATCHES}")
            batches = tuple(BatchMetadata(*_BATCH.unpack_from(body, at + n * _BATCH.size)) for n in range(batch_count))
            at += batch_count * _BATCH.size
            producers[producer_id] = ProducerStateEntry(epoch, batches, bool(has_wrapped), txn_first_offset)
        forgotten, at = _decode_counted(body, at, _FORGOTTEN)
        aborted, at = _decode_counted(body, at, _ABORTED)
    except struct.error:
        raise DocumentError("the snapshot is shorter than it says") from None
    if at != len(body):
        raise DocumentError("the snapshot is longer than it says")
    return Snapshot(seed, offset, epochs, producers, dict(forgotten), tuple(AbortedTransaction(*entry) for entry in aborted))


def _decode_counted(body: bytes, at: int, entry: struct.Struct) -> tuple[list[tuple[Any, ...]], int]:
    """The entries at position `at` (none at the end of the body) and the position after them. Raises struct.error."""
    if at == len(body):
        return [], at
    (count,) = _COUNT.unpack_from(body, at)
    at += _COUNT.size
    end = at + count * entry.size
    if end > len(body):
        raise struct.error
    return list(entry.iter_unpack(body[at:end])), end


def write_snapshot(files: Files, directory: str, snapshot: Snapshot, spares: SpareFiles | None = None) -> None:
    """Writes a snapshot; the caller syncs the directory. Raises OSError."""
    path, body = snapshot_path(directory, snapshot.offset), encode_snapshot(snapshot)
    write_document(files, path, SNAPSHOT_KIND, body, sync_dir=False, spares=spares)


def read_snapshot(files: Files, directory: str, offset: int, seed: int) -> Snapshot | None:
    """The snapshot at `offset`, or None if it is missing, damaged or of another log. Raises OSError."""
    try:
        snapshot = decode_snapshot(read_document(files, snapshot_path(directory, offset), SNAPSHOT_KIND))
    except (DocumentError, FileNotFoundError):
        return None
    return snapshot if snapshot.seed == seed and snapshot.offset == offset else None


def snapshot_end(files: Files, directory: str, seed: int) -> int:
    """The offset of the newest intact snapshot, or 0. Everything below it was durable: a snapshot is written after the sync."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = files.listdir(directory)
    for offset in reversed(offsets_of(names, SNAPSHOT_SUFFIX)):
        with contextlib.suppress(OSError):
            if read_snapshot(files, directory, offset, seed) is not None:
                return offset
    return 0


def remove_snapshot(files: Files, directory: str, offset: int) -> None:
    """Removes a snapshot if it is there. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        files.unlink(snapshot_path(directory, offset))


def snapshot_path(directory: str, offset: int) -> str:
    """Path of the snapshot at `offset`."""
    return f"{directory}/{offset_file(offset, SNAPSHOT_SUFFIX)}"


def encode_epochs(entries: Sequence[EpochEntry]) -> bytes:
    """The entries as bytes."""
    return b"".join([_EPOCH.pack(*entry) for entry in entries])


def decode_epochs(body: bytes, at: int, count: int) -> tuple[tuple[EpochEntry, ...], int]:
    """`count` entries from position `at`, and the position after them. Raises struct.error if `body` is too short."""
    entries = tuple(EpochEntry(*_EPOCH.unpack_from(body, at + n * _EPOCH.size)) for n in range(count))
    return entries, at + count * _EPOCH.size


def write_leader_epochs(files: Files, directory: str, entries: Sequence[EpochEntry], seed: int) -> None:
    """Replaces the file; the caller syncs the directory. Raises OSError."""
    body = _EPOCHS_SEED.pack(seed) + encode_epochs(entries)
    write_document(files, f"{directory}/{LEADER_EPOCHS}", EPOCHS_KIND, body, sync_dir=False)


def remove_leader_epochs(files: Files, directory: str) -> None:
    """Removes the file if it is there. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        files.unlink(f"{directory}/{LEADER_EPOCHS}")


def read_leader_epochs(files: Files, directory: str, seed: int) -> tuple[EpochEntry, ...] | None:
    """The entries, or None if the file is missing, damaged or of another log. Raises OSError."""
    try:
        body = read_document(files, f"{directory}/{LEADER_EPOCHS}", EPOCHS_KIND)
    except (DocumentError, FileNotFoundError):
        return None
    return decode_epochs_body(body, seed)


def decode_epochs_body(body: bytes, seed: int | None = None) -> tuple[EpochEntry, ...] | None:
    """The entries of a file's body, or None if it is malformed or of another log."""
    count, rest = divmod(len(body) - _EPOCHS_SEED.size, _EPOCH.size)
    if len(body) < _EPOCHS_SEED.size or rest or (seed is not None and _EPOCHS_SEED.unpack_from(body)[0] != seed):
        return None
    return decode_epochs(body, _EPOCHS_SEED.size, count)[0]
