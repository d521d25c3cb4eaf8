"""Files that describe a data directory: identity, clean-shutdown mark, producer ids."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from brokerd.errors import DataDirectoryError, StorageError
from brokerd.ids import PRODUCER_NUMBERS, TopicIdPartition
from brokerd.partition.log_state import CleanLog, CleanSegment
from brokerd.steps import Steps
from brokerd.storage.checksummed_file import DocumentError, read_json, write_json
from brokerd.storage.files import Files
from brokerd.storage.names import CLEAN_SHUTDOWN, META, PRODUCER_IDS, is_foreign, parse_partition_directory
from brokerd.storage.spare_files import SpareFiles

FORMAT_VERSION = 2  # 1: transactions and group offsets in two logs
META_KIND = "data-directory"
CLEAN_KIND = "clean-shutdown"
PRODUCER_IDS_KIND = "producer-ids"
PRODUCER_ID_BLOCK = 1_000
PRODUCER_IDS_MAX = PRODUCER_NUMBERS  # lasts 17 years at a thousand a second


class ClusterIdentity(NamedTuple):
    """A cluster of several nodes: its name, as its operator calls it, and the id that was drawn for it."""

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
        value = read_json(files, META, META_KIND, FORMAT_VERSION)
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
    write_json(files, META, META_KIND, FORMAT_VERSION, meta._asdict())
    return meta


def join_cluster(files: Files, node_id: int, cluster_name: str) -> None:
    """Makes the directory of a node alone a cluster's, which has its cluster id. Raises OSError."""
    meta = read_meta(files)
    assert meta is not None, "it is in use"
    joined = meta._replace(node_id=node_id, cluster_name=cluster_name)
    write_json(files, META, META_KIND, FORMAT_VERSION, joined._asdict())


def check_cluster(meta: Meta, cluster: ClusterIdentity | None) -> None:
    """Checks that a directory belongs to this cluster, None being none. Raises DataDirectoryError."""
    if cluster is None:
        if meta.cluster_name:
            raise DataDirectoryError(
                f"the data directory belongs to node {meta.node_id} of cluster '{meta.cluster_name}': set cluster.name to it, and "
                "coordination to the cluster's"
            )
    elif not meta.cluster_name:
        raise DataDirectoryError(
            f"the data directory belongs to a node alone, not to cluster '{cluster.name}': leave cluster.name out, or name a new "
            "directory; `brokerd cluster adopt` makes it the first node of a new cluster, with its topics"
        )
    elif meta.cluster_id != cluster.id:
        raise DataDirectoryError(
            f"the data directory belongs to cluster '{meta.cluster_name}' with id {meta.cluster_id}, but coordination says that "
            f"cluster '{cluster.name}' has id {cluster.id}: check data.dir, cluster.name and coordination; if that has lost its "
            "data, restore its backup"
        )


def take_clean_mark(files: Files, node_epoch: int, *, keep: bool = False) -> CleanLogs:
    """The logs that the life with this node epoch closed cleanly; empty after a crash. Removes the mark, unless `keep`: in a
    read-only directory it stays valid. Raises OSError.
    """
    try:
        value = read_json(files, CLEAN_SHUTDOWN, CLEAN_KIND, FORMAT_VERSION)
    except FileNotFoundError:
        return {}
    except DocumentError:
        value = {"node_epoch": -1}
    if not keep:
        files.unlink(CLEAN_SHUTDOWN)
        files.sync_dir()
    if value["node_epoch"] != node_epoch:
        return {}
    logs: CleanLogs = {}
    for name, (end, segments) in value["partitions"].items():
        tp = parse_partition_directory(name)
        if tp is not None:
            logs[tp] = CleanLog(end, tuple(CleanSegment(*segment) for segment in segments))
    return logs


def write_clean_mark(files: Files, node_epoch: int, logs: CleanLogs, spares: SpareFiles | None = None) -> None:
    """Records that these logs are flushed and closed. The last write of a run. Raises OSError."""
    partitions = {tp.directory_name: (log.log_end_offset, log.segments) for tp, log in logs.items()}
    write_json(
        files, CLEAN_SHUTDOWN, CLEAN_KIND, FORMAT_VERSION, {"node_epoch": node_epoch, "partitions": partitions}, spares=spares
    )


class ProducerIds:
    """Assigns producer ids that are never reused, from blocks reserved durably before their first id is used."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._next = 0
        self._limit = 0
        self.read_only_reason = ""  # why nothing may be written to the directory

    @property
    def next_id(self) -> int:
        """The lowest unassigned id."""
        return self._next

    def open(self) -> None:
        """Starts at the next unused block. Raises DataDirectoryError."""
        try:
            self._next = self._limit = int(read_json(self._files, PRODUCER_IDS, PRODUCER_IDS_KIND, FORMAT_VERSION)["next_block"])
        except FileNotFoundError:
            raise missing(PRODUCER_IDS) from None
        except DocumentError as error:
            raise damaged(PRODUCER_IDS, error) from None

    def create(self, next_block: int = 0) -> None:
        """Writes a new file. Raises OSError."""
        self._write(next_block)

    @property
    def has_next(self) -> bool:
        """True if `take` may be called."""
        return self._next < self._limit

    def reserve(self) -> Steps[None]:
        """Reserves a new block if the current one is used up; one call at a time. Raises StorageError if the block could not be
        made durable, or all ids are used up."""
        if self.has_next:
            return
        limit = self._limit + PRODUCER_ID_BLOCK
        if self.read_only_reason:
            raise StorageError(f"the data directory is read-only: {self.read_only_reason}")
        if limit > PRODUCER_IDS_MAX:
            raise StorageError(f"all {PRODUCER_IDS_MAX} producer ids are used up")
        try:
            yield lambda: self._write(limit)
        except OSError as error:
            raise StorageError(f"no producer id could be reserved ({error.strerror})", retry_after_ms=200) from error
        self._limit = limit

    def take(self) -> int:
        """A new id from the reserved block."""
        assert self.has_next
        self._next += 1
        return self._next - 1

    def _write(self, limit: int) -> None:
        write_json(self._files, PRODUCER_IDS, PRODUCER_IDS_KIND, FORMAT_VERSION, {"next_block": limit})


def missing(name: str) -> DataDirectoryError:
    """The error for a missing file. Starting without it would reuse ids or epochs, or lose topics."""
    return DataDirectoryError(
        f"the file {name} of the data directory is missing; restore it from a copy before the next start, or run `brokerd doctor`"
    )


def damaged(name: str, error: DocumentError) -> DataDirectoryError:
    """The error for a file whose content is damaged."""
    return DataDirectoryError(
        f"the file {name} of the data directory is damaged ({error.message}); run `brokerd doctor` for advice"
    )
