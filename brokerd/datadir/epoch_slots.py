"""Stores the leader epoch when the disk is full: a small file of two slots, overwritten in place alternately.

A start must make its epoch durable before it appends. There may be no room for a new file, and reserves kept for that case would
be used up after a few starts, so this file has its final size from the start. A slot holds a checksummed file body
(storage/checksummed_file.py) and padding. A write torn by a crash leaves the other slot intact; its epoch was then used by
nobody, or it rotted later: in both cases the next epoch skips one.
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
_FILLING = b" "  # not zeros: a file system may store those as holes


def make_epoch_slots(files: Files) -> None:
    """Creates the file if it is missing. Raises OSError."""
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
    """Makes the epoch durable without allocating space. Raises OSError, including FileNotFoundError if there are no slots."""
    document = encode_document(_KIND, _VERSION, json.dumps({"leader_epoch": epoch}).encode() + b"\n")
    file = files.open(EPOCH_SLOTS, writable=True)
    try:
        write_all(file, [document.ljust(_SLOT_BYTES, _FILLING)], epoch % _COUNT * _SLOT_BYTES, _SLOT_BYTES)
        file.fdatasync()
    finally:
        file.close()


def read_epoch_slots(files: Files) -> int:
    """An epoch that no start has exceeded; -1 if the slots were never written. Raises OSError, DataDirectoryError."""
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
