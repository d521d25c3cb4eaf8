"""The node epoch: each life of a directory has a number of its own, durable before anything else is written. One without a
checkpoint writes nothing, and leaves the number to the next.

A node alone leads all its partitions, and each life is an election: it raises the leader epoch of every partition by one. So one
small write makes the new epochs of all partitions durable: the checkpoint holds each partition's leader epoch and the node epoch in
which it was written, and a start adds the lives since then (checkpoint.py). In a cluster, its controller elects.

The file has two slots, overwritten in place by turns, so a start succeeds on a full disk too. A slot holds a document
(storage/checksummed_file.py) and padding. A write torn by a crash leaves the other slot intact. A damaged slot held an epoch never
used, or one damaged later: in both cases the next epoch skips one.
"""

from __future__ import annotations

import json
from contextlib import closing

from brokerd.datadir.node_state import damaged, missing
from brokerd.storage.checksummed_file import DocumentError, DocumentKind, decode_document, encode_document
from brokerd.storage.files import Files, read_whole, write_all, write_whole
from brokerd.storage.names import NODE_EPOCH

NODE_EPOCH_KIND = DocumentKind("node-epoch", 1)
_SLOT_BYTES = 4_096  # two slots never share a block
_COUNT = 2
_UNUSED, _ROTTEN = -1, -2  # in place of a slot's epoch
_FILLING = b" "  # not zeros: a file system may store those as holes


def create_node_epoch(files: Files, epoch: int = 0) -> None:
    """Creates the file, durably on return. Raises OSError."""
    write_whole(files, NODE_EPOCH, _slot(epoch).ljust(_SLOT_BYTES * _COUNT, _FILLING))
    files.sync_dir()


def write_node_epoch(files: Files, epoch: int) -> None:
    """Overwrites the older epoch, durably on return and without allocating space. Raises OSError, DocumentError."""
    known = _slots(files)
    at = known.index(min(known))
    with closing(files.open(NODE_EPOCH, writable=True)) as file:
        write_all(file, [_slot(epoch)], at * _SLOT_BYTES, _SLOT_BYTES)
        file.fdatasync()


def read_node_epoch(files: Files) -> int:
    """The highest node epoch that any life may have had. Raises OSError, DataDirectoryError."""
    try:
        return find_node_epoch(files)
    except FileNotFoundError:
        raise missing(NODE_EPOCH) from None
    except DocumentError as error:
        raise damaged(NODE_EPOCH, error) from None


def find_node_epoch(files: Files) -> int:
    """Like `read_node_epoch`, but raises FileNotFoundError or DocumentError if the file is lost."""
    known = _slots(files)
    return max(known) + (_ROTTEN in known)


def _slots(files: Files) -> list[int]:
    """The epochs in the slots. Raises DocumentError if neither holds one."""
    data, found, rotten = read_whole(files, NODE_EPOCH), [], DocumentError("it is empty")
    for at in range(0, _SLOT_BYTES * _COUNT, _SLOT_BYTES):
        document = data[at : at + _SLOT_BYTES].rstrip(_FILLING)
        try:
            is_used = bool(document)
            value = json.loads(decode_document(document, NODE_EPOCH_KIND)) if is_used else {"node_epoch": _UNUSED}
            found.append(int(value["node_epoch"]))
        except DocumentError as error:
            rotten = error
            found.append(_ROTTEN)
    if max(found) < 0:
        raise rotten
    return found


def _slot(epoch: int) -> bytes:
    document = encode_document(NODE_EPOCH_KIND, json.dumps({"node_epoch": epoch}).encode() + b"\n")
    return document.ljust(_SLOT_BYTES, _FILLING)
