"""Creates partition directories, durably, before their topic is visible, and removes them after it is gone. Opens no logs."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence

from brokerd.datadir.topic_store import TopicStore
from brokerd.ids import TopicIdPartition
from brokerd.storage.files import Files
from brokerd.storage.names import INDEX_SUFFIX, LOG_SUFFIX, offset_file, offsets_of, parse_offset_file, parse_partition_directory


def create_directories(files: Files, tps: Sequence[TopicIdPartition]) -> None:
    """Creates each partition's directory, durably on return, with an empty first segment, which becomes durable when the
    partition is recovered (recovery.py syncs it). On OSError some directories may remain.
    """
    for tp in tps:
        files.mkdir(tp.directory_name)
        files.create(f"{tp.directory_name}/{offset_file(0, LOG_SUFFIX)}").close()
    files.sync_dir()


def discard_directories(files: Files, tps: Sequence[TopicIdPartition]) -> None:
    """Removes the directories of a failed creation as far as possible; the next start removes the rest. Keeps directories with
    records, which are older than the creation.
    """
    for tp in tps:
        with contextlib.suppress(OSError):
            if _is_empty(files, tp.directory_name):
                remove_directory(files, tp.directory_name)


def remove_directories(files: Files, tps: Sequence[TopicIdPartition]) -> None:
    """Removes the directories of deleted partitions, durably on return. Raises OSError."""
    for tp in tps:
        with contextlib.suppress(FileNotFoundError):
            remove_directory(files, tp.directory_name)
    files.sync_dir()


def remove_logs_from_end(files: Files, tps: Sequence[TopicIdPartition]) -> None:
    """Removes the segments of partitions, newest first and each durably, so that a crash leaves the beginning of a log. Raises
    OSError."""
    for tp in tps:
        directory = tp.directory_name
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            names = files.listdir(directory)
        for base in reversed(offsets_of(names, LOG_SUFFIX)):
            files.unlink(f"{directory}/{offset_file(base, LOG_SUFFIX)}")
            files.sync_dir(directory)


def remove_directory(files: Files, directory: str) -> None:
    """Removes a partition's directory and all files in it; the caller must sync the parent. Raises OSError."""
    for is_last in (False, False, True):
        for name in files.listdir(directory):
            with contextlib.suppress(FileNotFoundError):
                files.unlink(f"{directory}/{name}")
        try:
            files.rmdir(directory)
        except OSError as error:
            # A flush in progress may still write an index or a snapshot.
            if is_last or error.errno != errno.ENOTEMPTY:
                raise
        else:
            return


def cut_log(files: Files, tp: TopicIdPartition, base_offset: int, position: int) -> None:
    """Truncates a partition's log at byte `position` of the segment at `base_offset`, durably on return. Removes later segments,
    newest first, and the segment's own index. Snapshots stay. Raises OSError.
    """
    directory = tp.directory_name
    parsed = [entry for entry in map(parse_offset_file, files.listdir(directory)) if entry is not None]
    for base, suffix in sorted(parsed, reverse=True):
        if (suffix == INDEX_SUFFIX and base >= base_offset) or (suffix == LOG_SUFFIX and base > base_offset):
            files.unlink(f"{directory}/{offset_file(base, suffix)}")
    files.sync_dir(directory)
    if (base_offset, LOG_SUFFIX) in parsed:
        with contextlib.closing(files.open(f"{directory}/{offset_file(base_offset, LOG_SUFFIX)}", writable=True)) as file:
            file.truncate(min(position, file.size()))
            file.fdatasync()


def remove_leftovers(files: Files, topics: TopicStore) -> list[str]:
    """Removes the directories of creations and deletions that a crash interrupted. Keeps and returns directories with records that
    belong to no known topic. Raises OSError.
    """
    unknown = []
    known = {topic.id: topic.partitions_here for topic in topics.all()}
    for name in files.listdir():
        tp = parse_partition_directory(name)
        if tp is None or tp.partition in known.get(tp.topic_id, ()):
            continue
        if tp.topic_id in topics.deleting or _is_empty(files, name):
            remove_directory(files, name)
        else:
            unknown.append(name)
    return unknown


def _is_empty(files: Files, directory: str) -> bool:
    """True if the directory holds no records."""
    for base in offsets_of(files.listdir(directory), LOG_SUFFIX):
        with contextlib.closing(files.open(f"{directory}/{offset_file(base, LOG_SUFFIX)}")) as file:
            if file.size():
                return False
    return True
