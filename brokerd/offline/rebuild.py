"""Rebuilds lost files of a data directory from its logs: topics, node epoch, and meta (cluster id and node id).

Runs only at an operator's request, and only on files that are missing or damaged; a damaged file is kept as `<name>.damaged`.
Epochs, which must never be reused, continue far above the largest found. Topic names and settings are not in the logs: they are
lost, except in a cluster, where etcd has them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from brokerd.datadir.checkpoint import CHECKPOINT_KIND, Entries, decode_checkpoint
from brokerd.datadir.node_state import (
    CLEAN_KIND,
    META_KIND,
    create_meta,
    create_node_epoch,
    find_node_epoch,
    read_meta,
    take_clean_mark,
    write_clean_mark,
)
from brokerd.datadir.topic_store import COORDINATOR, TOPICS_KIND, Topic, TopicStore
from brokerd.errors import DataDirectoryError
from brokerd.ids import TopicIdPartition, topic_name_problem
from brokerd.offline.doctor import locked
from brokerd.offline.partition_check import Finding, Severity
from brokerd.partition.log_state import GIVEN_UP
from brokerd.storage.checksummed_file import DocumentError, read_document, read_json
from brokerd.storage.files import Files
from brokerd.storage.names import (
    CHECKPOINT,
    CLEAN_SHUTDOWN,
    META,
    NODE_EPOCH,
    TOPICS,
    parse_partition_directory,
)

# Above the largest epoch found: starts that wrote nothing leave no trace.
EPOCH_MARGIN = 1_000_000
_DAMAGED_SUFFIX = ".damaged"
_FILES: dict[str, Callable[[Files], object]] = {
    META: lambda files: read_json(files, META, META_KIND),
    TOPICS: lambda files: read_json(files, TOPICS, TOPICS_KIND),
    NODE_EPOCH: find_node_epoch,
}


def rebuild_lost(path: str, names: Mapping[str, str]) -> list[Finding]:
    """Rebuilds the files that are missing or damaged. `names` gives topic names by id (32 hex digits) if the topics file is lost;
    other topics are called recovered-<id>. Returns notes on what it wrote.

    Raises DataDirectoryError, changing nothing, if nothing is lost, if a file has a newer format, or if a name is invalid. May be
    repeated after a crash.
    """
    with locked(path) as files:
        partitions = [tp for tp in map(parse_partition_directory, files.listdir()) if tp is not None]
        if not partitions:
            raise DataDirectoryError(
                f"{path} holds no partitions: there is nothing to rebuild from; an empty directory needs no rebuilding"
            )
        lost = [name for name, read in _FILES.items() if _is_lost(files, read)]
        if not lost:
            raise DataDirectoryError(
                "the topics, the node epoch and the directory's ids are in order; for the checkpoint use "
                "--rebuild-checkpoint, for damaged records --accept-damaged"
            )
        if names and TOPICS not in lost:
            raise DataDirectoryError(f"the file {TOPICS} is in order: names can be given only while it is lost")
        meta = read_meta(files) if META not in lost else None
        is_partial = meta is not None and bool(meta.cluster_name)
        topics = _topics(files, partitions, names, is_partial=is_partial) if TOPICS in lost else []
        seen_epoch = _largest_epoch(files)
        for name in set(lost) & set(files.listdir()):
            files.rename(name, name + _DAMAGED_SUFFIX)
        files.sync_dir()
        return _write(files, lost, topics, seen_epoch)


def _is_lost(files: Files, read: Callable[[Files], object]) -> bool:
    try:
        read(files)
    except (FileNotFoundError, DocumentError):
        return True
    return False


def _topics(files: Files, partitions: list[TopicIdPartition], names: Mapping[str, str], *, is_partial: bool) -> list[Topic]:
    """`is_partial`: the node belongs to a cluster, so other nodes may have the partitions that are missing here. Partitions in the
    checkpoint were here. If their logs are lost, they stay listed, as damaged: otherwise the node would create them again, empty,
    and could lead them.
    """
    here: dict[bytes, list[int]] = {}
    known = _read_checkpoint(files)[1]
    if is_partial and not known:
        raise DataDirectoryError(
            "the topics are lost, and the checkpoint with them: nothing tells which partitions this node had. If other nodes have "
            "copies, start it with an empty directory; or restore it from a backup"
        )
    lost = {tp for tp, entry in known.items() if entry.recovery_point != GIVEN_UP} if is_partial else set()
    for tp in sorted({*partitions, *lost}):
        here.setdefault(tp.topic_id, []).append(tp.partition)
    ids = here.keys() - {COORDINATOR.id}
    unknown = sorted(set(names) - {topic_id.hex() for topic_id in ids})
    if unknown:
        raise DataDirectoryError(
            f"there is no partition of a topic with id {unknown[0]}: ids are the first 32 digits of directories"
        )
    counts: dict[bytes, int] = {}
    for tp in (*partitions, *known):
        if tp.topic_id in ids:
            counts[tp.topic_id] = max(counts.get(tp.topic_id, 0), tp.partition + 1)
    topics = [Topic(names.get(topic_id.hex(), f"recovered-{topic_id.hex()}"), topic_id, counts[topic_id], {}) for topic_id in ids]
    for topic in topics:
        problem = topic_name_problem(topic.name)
        if problem:
            raise DataDirectoryError(f"'{topic.name}' cannot be a topic's name: {problem}")
    if len({topic.name for topic in topics}) != len(topics):
        raise DataDirectoryError("two topics would have the same name: give each its own")
    if COORDINATOR.id in here:
        topics.append(COORDINATOR)
    return sorted(topic._replace(held=tuple(here[topic.id])) if is_partial else topic for topic in topics)


def _write(files: Files, lost: list[str], topics: list[Topic], seen_epoch: int) -> list[Finding]:
    notes: list[tuple[str, str]] = []
    if TOPICS in lost:
        TopicStore(files).create(topics)
        for topic in topics:
            if topic.id != COORDINATOR.id:  # it has a fixed name and settings
                count = f"{topic.partition_count} partition(s)"
                notes.append((TOPICS, f"topic {topic.id.hex()} is called '{topic.name}' and has {count}; settings are lost"))
    if NODE_EPOCH in lost:
        epoch = max(seen_epoch, 0) + EPOCH_MARGIN
        if clean := take_clean_mark(files, seen_epoch, keep=True):  # maybe the only file with the latest durable ends
            write_clean_mark(files, epoch, clean)
        create_node_epoch(files, epoch)
        notes.append((NODE_EPOCH, f"the node epoch continues at {epoch}; the last one known is {seen_epoch}"))
    if META in lost:
        meta = create_meta(files, 0)
        notes.append((META, f"the cluster has a new id, {meta.cluster_id}, and this is its only node, {meta.node_id}"))
    return [Finding(Severity.NOTE, name, text) for name, text in notes]


def _largest_epoch(files: Files) -> int:
    """The largest node epoch found; -1 = none."""
    node_epoch = _read_checkpoint(files)[0]
    with contextlib.suppress(FileNotFoundError, DocumentError):  # missing after an unclean shutdown
        node_epoch = max(node_epoch, int(read_json(files, CLEAN_SHUTDOWN, CLEAN_KIND)["node_epoch"]))
    return node_epoch


def _read_checkpoint(files: Files) -> tuple[int, Entries]:
    """The node epoch in which the checkpoint was written, and its partitions; (-1, {}) if it is lost too."""
    try:
        return decode_checkpoint(read_document(files, CHECKPOINT, CHECKPOINT_KIND))
    except (FileNotFoundError, DocumentError):
        return -1, {}
