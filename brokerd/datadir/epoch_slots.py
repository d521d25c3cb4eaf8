"""The leader epoch of a start on a full disk: a small file of two slots, written over in place in turns.

A start must make its epoch durable before it appends. There may be no room for a new file, and whatever is kept for such a day is
used up after a few starts; so this has a place of its own, as large from the first day as it will ever be. A slot holds a document
(storage/checksummed_file.py) and filling. A write that a crash tears leaves the other slot; its own epoch was then used by nobody,
or rot took it later: both are met by going one further.
"""

from __future__ import annotations

import json

from brokerd.storage.checksummed_file import DocumentError, decode_document, encode_document
from brokerd.storage.files import Files, read_whole, write_all
from brokerd.storage.names import EPOCH_SLOTS, TEMPORARY_SUFFIX

_KIND = "epoch-slot"
_VERSION = 1
_SLOT_BYTES = 4_096  # two slots never share a block
_COUNT = 2
_FILLING = b" "  # no zeros: a file system may leave them out


def make_epoch_slots(files: Files) -> None:
    """Makes the file where there is none. Raises OSError."""
    if EPOCH_SLOTS in files.listdir():
        return
    temporary = EPOCH_SLOTS + TEMPORARY_SUFFIX
    if temporary in files.listdir():
        files.unlink(temporary)
    file = files.create(temporary)
    try:
        write_all(file, [_FILLING * (_SLOT_BYTES * _COUNT)], 0, _SLOT_BYTES * _COUNT)
        file.fdatasync()
    finally:
        file.close()
    files.rename(temporary, EPOCH_SLOTS)
    files.sync_dir()


def write_epoch_slot(files: Files, epoch: int) -> None:
    """Makes the epoch durable without new room. Raises OSError, also FileNotFoundError if there are no slots."""
    document = encode_document(_KIND, _VERSION, json.dumps({"leader_epoch": epoch}).encode() + b"\n")
    file = files.open(EPOCH_SLOTS, writable=True)
    try:
        write_all(file, [document.ljust(_SLOT_BYTES, _FILLING)], epoch % _COUNT * _SLOT_BYTES, _SLOT_BYTES)
        file.fdatasync()
    finally:
        file.close()


def read_epoch_slots(files: Files) -> int:
    """An epoch that no start has used more than; -1 if the slots were never written. Raises OSError, DataDirectoryError."""
    try:
        data = read_whole(files, EPOCH_SLOTS)
    except FileNotFoundError:
        return -1
    epochs, is_damaged = [-1], False
    for at in range(0, len(data), _SLOT_BYTES):
        document = data[at : at + _SLOT_BYTES].rstrip(_FILLING)
        if document:
            try:
                epochs.append(int(json.loads(decode_document(document, _KIND, _VERSION))["leader_epoch"]))
            except DocumentError:
                is_damaged = True
    return max(epochs) + is_damaged
