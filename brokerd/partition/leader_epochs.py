"""The offset where each leader epoch began: a list per partition, kept in a small file that any scan of the log can rebuild."""

from __future__ import annotations

import contextlib
import struct
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from brokerd.storage.checksummed_file import DocumentError, read_document, write_document
from brokerd.storage.files import Files
from brokerd.storage.names import LEADER_EPOCHS

EPOCHS_KIND = "leader-epochs"
EPOCHS_VERSION = 1
_ENTRY = struct.Struct("<iq")
_SEED = struct.Struct("<I")
_start_offset = attrgetter("start_offset")


class EpochEntry(NamedTuple):
    """An epoch and the base offset of its first batch."""

    epoch: int
    start_offset: int


class LeaderEpochs:
    """Entries in order; epochs and offsets both rise."""

    def __init__(self, entries: Sequence[EpochEntry] = ()) -> None:
        self.entries = list(entries)

    @property
    def latest(self) -> int:
        """The epoch of the last batch; -1 if there is none."""
        return self.entries[-1].epoch if self.entries else -1

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Notes the epoch of a batch at `start_offset`; True if it is a new one."""
        if epoch <= self.latest:
            return False
        self.entries.append(EpochEntry(epoch, start_offset))
        return True

    def truncate(self, offset: int) -> None:
        """Forgets epochs that began at `offset` or above."""
        self.entries = [entry for entry in self.entries if entry.start_offset < offset]

    def below(self, offset: int) -> tuple[EpochEntry, ...]:
        """Entries that began below `offset`."""
        return tuple(entry for entry in self.entries if entry.start_offset < offset)

    def epoch_at(self, offset: int) -> int:
        """The epoch of the batch at `offset`; -1 if unknown."""
        at = bisect_right(self.entries, offset, key=_start_offset)
        return self.entries[at - 1].epoch if at else -1


def encode_epochs(entries: Sequence[EpochEntry]) -> bytes:
    """Entries as bytes, one after the other."""
    return b"".join([_ENTRY.pack(*entry) for entry in entries])


def decode_epochs(body: bytes, at: int, count: int) -> tuple[tuple[EpochEntry, ...], int]:
    """`count` entries from `at`, and where they end. Raises struct.error if they are not all there."""
    entries = tuple(EpochEntry(*_ENTRY.unpack_from(body, at + n * _ENTRY.size)) for n in range(count))
    return entries, at + count * _ENTRY.size


def write_leader_epochs(files: Files, directory: str, entries: Sequence[EpochEntry], seed: int) -> None:
    """Replaces the file; the directory is for the caller to sync. Raises OSError."""
    body = _SEED.pack(seed) + encode_epochs(entries)
    write_document(files, f"{directory}/{LEADER_EPOCHS}", EPOCHS_KIND, EPOCHS_VERSION, body, sync_dir=False)


def remove_leader_epochs(files: Files, directory: str) -> None:
    """Removes the file if it is there. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        files.unlink(f"{directory}/{LEADER_EPOCHS}")


def read_leader_epochs(files: Files, directory: str, seed: int) -> tuple[EpochEntry, ...] | None:
    """The entries, or None if the file is missing, damaged or another log's. Raises OSError."""
    try:
        body = read_document(files, f"{directory}/{LEADER_EPOCHS}", EPOCHS_KIND, EPOCHS_VERSION)
    except (DocumentError, FileNotFoundError):
        return None
    return decode_epochs_body(body, seed)


def decode_epochs_body(body: bytes, seed: int | None = None) -> tuple[EpochEntry, ...] | None:
    """The entries of a file's body, or None if it is malformed or of another log."""
    count, rest = divmod(len(body) - _SEED.size, _ENTRY.size)
    if len(body) < _SEED.size or rest or (seed is not None and _SEED.unpack_from(body)[0] != seed):
        return None
    return decode_epochs(body, _SEED.size, count)[0]
