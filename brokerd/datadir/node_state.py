"""Files that describe a data directory: identity, node epoch, clean-shutdown mark, decided members.

The node epoch numbers the lives of a directory: each start takes a new number, durable before anything else is written. A life
without a checkpoint writes nothing, and leaves its number to the next.

A node alone leads all its partitions, and each life is an election: it raises the leader epoch of every partition by one. One small
write makes all new epochs durable: the checkpoint holds each partition's leader epoch and the node epoch in which it was written,
and a start adds the number of lives since then (checkpoint.py). In a cluster, the controller elects.

`node-epoch` has two slots, overwritten in place by turns, so a start succeeds on a full disk too. A slot holds a document
(storage/checksummed_file.py) and padding. A write torn by a crash leaves the other slot intact. A damaged slot held an epoch that
was never used, or was damaged later; in both cases the next start skips a number.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection
from contextlib import closing
from typing import NamedTuple

from brokerd.errors import DataDirectoryError
from brokerd.ids import TopicIdPartition
from brokerd.partition.log_state import CleanLog, CleanSegment
from brokerd.storage.checksummed_file import (
    DocumentError,
    DocumentKind,
    damaged_if_unreadable,
    decode_document,
    encode_document,
    read_json,
    write_json,
)
from brokerd.storage.files import Files, write_all, write_whole
from brokerd.storage.names import CLEAN_SHUTDOWN, DECIDED_MEMBERS, META, NODE_EPOCH, is_foreign, parse_partition_directory
from brokerd.storage.spare_files import SpareFiles

META_KIND = DocumentKind("data-directory", 2)  # 1: transactions and group offsets in two logs
CLEAN_KIND = DocumentKind("clean-shutdown", 2)
DECIDED_KIND = DocumentKind("decided-members", 1)
NODE_EPOCH_KIND = DocumentKind("node-epoch", 1)
_SLOT_BYTES = 4_096  # two slots never share a block
_COUNT = 2
_UNUSED, _ROTTEN = -1, -2  # in place of a slot's epoch
_FILLING = b" "  # not zeros: a file system may store those as holes


class ClusterIdentity(NamedTuple):
    """A cluster of several nodes: the name that its operator chose, and its random id."""

    name: str
    id: str


class Meta(NamedTuple):
    """The directory's identity, written once, on first use."""

    cluster_id: str
    node_id: int
    directory_id: str
    cluster_name: str  # "" = a node alone


CleanLogs = dict[TopicIdPartition, CleanLog]


def read_meta(files: Files) -> Meta | None:
    """The directory's identity; None if it is new. Raises DataDirectoryError if the format version is unknown."""
    try:
        value = read_json(files, META, META_KIND)
    except FileNotFoundError:
        return None
    except DocumentError as error:
        raise damaged(META, error) from None
    return Meta(value["cluster_id"], value["node_id"], value["directory_id"], value.get("cluster_name", ""))


def check_not_foreign(files: Files) -> None:
    """Checks that a directory not yet used by brokerd is empty: a mistyped path must not mix logs with other files. Writes nothing.
    Raises DataDirectoryError, OSError.
    """
    names = files.listdir()
    is_ours = META in names or any(parse_partition_directory(name) for name in names)
    foreign = [] if is_ours else [name for name in names if is_foreign(name)]
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise DataDirectoryError(
            f"the data directory is not brokerd's: it holds {foreign[0]!r}{more}, but no file 'meta'; "
            "name an empty or a new directory"
        )


def create_meta(files: Files, node_id: int, cluster: ClusterIdentity | None = None) -> Meta:
    """Writes the identity of a new directory. Call it last, once all other files exist. Raises OSError."""
    name, cluster_id = cluster if cluster is not None else ("", str(uuid.uuid4()))
    meta = Meta(cluster_id, node_id, str(uuid.uuid4()), name)
    write_json(files, META, META_KIND, meta._asdict())
    return meta


def join_cluster(files: Files, node_id: int, cluster_name: str) -> None:
    """Turns the directory of a node alone into a cluster's. The cluster has the directory's cluster id. Raises OSError."""
    meta = read_meta(files)
    assert meta is not None, "it is in use"
    joined = meta._replace(node_id=node_id, cluster_name=cluster_name)
    write_json(files, META, META_KIND, joined._asdict())


def check_cluster(meta: Meta, cluster: ClusterIdentity | None) -> None:
    """Checks that a directory belongs to this cluster; None: to a node alone. Raises DataDirectoryError."""
    if cluster is None:
        if meta.cluster_name:
            raise DataDirectoryError(
                f"the data directory belongs to node {meta.node_id} of cluster '{meta.cluster_name}': start it with "
                f"cluster.name = {meta.cluster_name}, node.id = {meta.node_id}, and coordination.servers, the cluster's etcd"
            )
    elif not meta.cluster_name:
        raise DataDirectoryError(
            f"the data directory belongs to a node alone, not to cluster '{cluster.name}': leave cluster.name out, or name a new "
            "directory; `brokerd cluster adopt` makes it the first node of a new cluster, with its topics"
        )
    elif meta.cluster_id != cluster.id:
        raise DataDirectoryError(
            f"the data directory belongs to cluster '{meta.cluster_name}' with id {meta.cluster_id}, but etcd says that cluster "
            f"'{cluster.name}' has id {cluster.id}: check data.dir, cluster.name and coordination.servers; if etcd has lost its "
            "data, restore its backup"
        )


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
    found, rotten = [], DocumentError("it is empty")
    with closing(files.open(NODE_EPOCH)) as file:
        for at in range(0, _SLOT_BYTES * _COUNT, _SLOT_BYTES):
            try:
                with damaged_if_unreadable():
                    document = bytes(file.pread(_SLOT_BYTES, at)).rstrip(_FILLING)
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


def take_clean_mark(files: Files, node_epoch: int, *, keep: bool = False) -> CleanLogs:
    """The logs that the life with this node epoch closed cleanly; empty after a crash. Removes the mark, unless `keep`: in a
    read-only directory it stays valid. Raises OSError.
    """
    try:
        value = read_json(files, CLEAN_SHUTDOWN, CLEAN_KIND)
    except FileNotFoundError:
        return {}
    except DocumentError:
        value = {}
    if not keep:
        files.unlink(CLEAN_SHUTDOWN)
        files.sync_dir()
    if value.get("node_epoch") != node_epoch:
        return {}
    logs: CleanLogs = {}
    for name, (end, segments) in value["partitions"].items():
        tp = parse_partition_directory(name)
        if tp is not None:
            logs[tp] = CleanLog(end, tuple(CleanSegment(*segment) for segment in segments))
    return logs


def write_clean_mark(files: Files, node_epoch: int, logs: CleanLogs, spares: SpareFiles | None = None) -> None:
    """Records that these logs are flushed and closed. The last write of a life. Raises OSError."""
    partitions = {tp.directory_name: (log.log_end_offset, log.segments) for tp, log in logs.items()}
    write_json(files, CLEAN_SHUTDOWN, CLEAN_KIND, {"node_epoch": node_epoch, "partitions": partitions}, spares=spares)


class DecidedMembers(NamedTuple):
    """An operator's decisions on members whose markers are lost and whose outcome the logs do not show: producer ids that committed
    or aborted. `brokerd doctor` writes them, and the next start applies them. Producer ids are never reused, so a decision already
    applied does no harm.
    """

    committed: Collection[int] = ()
    aborted: Collection[int] = ()


def read_decided(files: Files) -> DecidedMembers:
    """The decisions; none if the file is missing or damaged, so that the operator must decide again. Raises OSError,
    DataDirectoryError.
    """
    try:
        value = read_json(files, DECIDED_MEMBERS, DECIDED_KIND)
    except (FileNotFoundError, DocumentError):
        return DecidedMembers()
    try:
        return DecidedMembers(*(frozenset(map(int, value[field])) for field in DecidedMembers._fields))
    except (KeyError, TypeError, ValueError):
        text = f"{DECIDED_MEMBERS} is whole, but holds no decisions: put it back from a copy, or remove it"
        raise DataDirectoryError(text) from None


def write_decided(files: Files, decided: DecidedMembers) -> None:
    """Replaces the decisions, durably on return. Raises OSError."""
    value = {field: sorted(producer_ids) for field, producer_ids in decided._asdict().items()}
    write_json(files, DECIDED_MEMBERS, DECIDED_KIND, value)


def missing(name: str) -> DataDirectoryError:
    """The error for a missing file. A start without the file would reuse epochs or lose topics."""
    return DataDirectoryError(
        f"the file {name} of the data directory is missing; restore it from a copy before the next start, or run `brokerd doctor`"
    )


def damaged(name: str, error: DocumentError) -> DataDirectoryError:
    """The error for a file whose content is damaged."""
    return DataDirectoryError(
        f"the file {name} of the data directory is damaged ({error.message}); run `brokerd doctor` for advice"
    )
