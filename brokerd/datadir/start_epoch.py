"""The leader epoch of a start: a small file of two slots, overwritten in place by turns.

A start must make its epoch durable before it appends. On a full disk there may be no space for a new file, so this one has its
final size from the beginning. A slot holds a document (storage/checksummed_file.py) and padding. A write torn by a crash leaves the
other slot intact. A damaged slot held an epoch never used, or one damaged later: in both cases the next epoch skips one.
"""

from __future__ import annotations

import json

from brokerd.datadir.node_state import damaged, missing
from brokerd.storage.checksummed_file import DocumentError, decode_document, encode_document
from brokerd.storage.files import Files, read_whole, write_all
from brokerd.storage.names import LEADER_EPOCH, TEMPORARY_SUFFIX

EPOCH_KIND = "leader-epoch"
_VERSION = 1
_SLOT_BYTES = 4_096  # two slots never share a block
_COUNT = 2
_UNUSED, _ROTTEN = -1, -2  # in place of a slot's epoch
_FILLING = b" "  # not zeros: a file system may store those as holes


def create_epoch(files: Files, epoch: int = 0) -> None:
    """Creates the file, durably on return. Raises OSError."""
    temporary = LEADER_EPOCH + TEMPORARY_SUFFIX
    if temporary in files.listdir():
        files.unlink(temporary)
    file = files.create(temporary)
    try:
        write_all(file, [_slot(epoch).ljust(_SLOT_BYTES * _COUNT, _FILLING)], 0, _SLOT_BYTES * _COUNT)
        file.fdatasync()
    finally:
        file.close()
    files.rename(temporary, LEADER_EPOCH)
    files.sync_dir()


def write_epoch(files: Files, epoch: int) -> None:
    """Overwrites the older epoch, durably on return and without allocating space. Raises OSError, DocumentError."""
    known = _slots(files)
    at = known.index(min(known))
    file = files.open(LEADER_EPOCH, writable=True)
    try:
        write_all(file, [_slot(epoch)], at * _SLOT_BYTES, _SLOT_BYTES)
        file.fdatasync()
    finally:
        file.close()


def read_epoch(files: Files) -> int:
    """The highest epoch that any start may have used. Raises OSError, DataDirectoryError."""
    try:
        return find_epoch(files)
    except FileNotFoundError:
        raise missing(LEADER_EPOCH) from None
    except DocumentError as error:
        raise damaged(LEADER_EPOCH, error) from None


def find_epoch(files: Files) -> int:
    """Like `read_epoch`, but raises FileNotFoundError or DocumentError if the file is lost."""
    known = _slots(files)
    return max(known) + (_ROTTEN in known)


def _slots(files: Files) -> list[int]:
    """The epochs in the slots. Raises DocumentError if neither holds one."""
    data, found, rotten = read_whole(files, LEADER_EPOCH), [], DocumentError("it is empty")
    for at in range(0, _SLOT_BYTES * _COUNT, _SLOT_BYTES):
        document = data[at : at + _SLOT_BYTES].rstrip(_FILLING)
        try:
            is_used = bool(document)
            found.append(int(json.loads(decode_document(document, EPOCH_KIND, _VERSION))["leader_epoch"]) if is_used else _UNUSED)
        except DocumentError as error:
            rotten = error
            found.append(_ROTTEN)
    if max(found) < 0:
        raise rotten
    return found


def _slot(epoch: int) -> bytes:
    document = encode_document(EPOCH_KIND, _VERSION, json.dumps({"leader_epoch": epoch}).encode() + b"\n")
    return document.ljust(_SLOT_BYTES, _FILLING)
