"""Topic changes that fail half-way: they leave nothing behind and do not harm later changes or records."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from brokerd.datadir.topic_store import Topic
from brokerd.errors import Fate, StorageError, UnknownTopicIdError
from brokerd.ids import TopicIdPartition
from tests.support.build import append, first_log, open_log, open_manager, payloads
from tests.support.files import MemoryFiles
from tests.support.log_manager import LogManager
from tests.support.steps import run_here


@pytest.fixture
def manager(files: MemoryFiles) -> LogManager:
    manager, _ = open_manager(files)
    append(first_log(manager), b"kept")
    first_log(manager).flush()
    return manager


def _fail(files: MemoryFiles, operation: str, path: str) -> None:
    """Makes the next such operation fail."""

    def hook(called: str, on: str) -> None:
        if called == operation and on.endswith(path):
            files.hook = None
            raise OSError(errno.EIO, "Input/output error")

    files.hook = hook


def test_a_topic_that_could_not_grow_and_then_did_keeps_what_is_appended(files: MemoryFiles, manager: LogManager) -> None:
    _fail(files, "create", "topics.tmp")
    with pytest.raises(StorageError):
        manager.create_partitions("t", 2)
    manager.create_partitions("t", 2)
    log = first_log(manager, "t", 1)
    append(log, b"acknowledged all")
    log.flush()
    assert files.read_file(log.segments[0].path)
    files.kill()
    assert payloads(first_log(open_manager(files)[0], "t", 1)) == [b"acknowledged all"]


@pytest.mark.parametrize(("operation", "path"), [("create", "topics.tmp"), ("fdatasync", "-2/" + "0" * 20 + ".log")])
def test_changes_that_fail_keep_no_descriptors(files: MemoryFiles, manager: LogManager, operation: str, path: str) -> None:
    before = files.open_count
    changes: list[Callable[[], object]] = [
        lambda: manager.create_topic("u", 3, {}),
        lambda: manager.create_partitions("t", 3),
    ]
    for change in changes:
        _fail(files, operation, path)
        with pytest.raises(StorageError):
            change()
        assert files.hook is None
        assert files.open_count == before


def test_growing_into_records_that_nobody_knows_leaves_them_alone(files: MemoryFiles, manager: LogManager) -> None:
    tp = TopicIdPartition(manager.topics.by_name("t").id, 1)
    small = files.read_file("topics")
    manager.create_partitions("t", 2)
    append(first_log(manager, "t", 1), b"acknowledged all")
    first_log(manager, "t", 1).flush()
    manager.write_checkpoint()
    files.kill()
    grown = files.read_file("topics")
    files.write_file("topics", small)  # restored from an old copy
    manager, report = open_manager(files)
    assert report.unknown_directories == [tp.directory_name]
    with pytest.raises(StorageError):
        manager.create_partitions("t", 3)
    assert not any(path.startswith(f"{tp.topic_id.hex()}-2/") for path in files.paths())
    files.kill()
    files.write_file("topics", grown)
    assert payloads(first_log(open_manager(files)[0], "t", 1)) == [b"acknowledged all"]


def _fail_to_sync_topics(files: MemoryFiles) -> None:
    """Makes the directory sync after the next rename of the topics file fail."""
    names: list[str] = []

    def hook(called: str, on: str) -> None:
        if called == "rename":
            names.append(on)
        elif called == "sync_dir" and "topics" in names:
            files.hook = None
            raise OSError(errno.EIO, "Input/output error")

    files.hook = hook


def _crash(files: MemoryFiles, seed: int) -> LogManager:
    """Kills the broker (seed 0) or cuts the power, then starts it again."""
    if seed:
        files.power_cut(random.Random(seed))
    else:
        files.kill()
    manager, report = open_manager(files)
    assert not report.damaged
    assert not report.unknown_directories
    return manager


def test_a_deletion_of_unknown_fate_takes_no_more_records_and_loses_none_of_what_is_back() -> None:
    outcomes = set()
    for seed in range(30):
        files = MemoryFiles()
        manager, log = open_log(files)
        append(log, b"kept all along..")
        log.flush()
        manager.write_checkpoint()
        _fail_to_sync_topics(files)
        deleted: list[Topic] = []
        with pytest.raises(StorageError, match="may bring it back") as failed:
            run_here(manager.changes.delete("t", deleted.append))
        assert failed.value.fate is Fate.UNKNOWN
        assert [topic.id for topic in deleted] == [log.tp.topic_id], "whoever waits for it is told"
        with pytest.raises(UnknownTopicIdError):
            append(log, b"it may be removed")
        if seed % 3 == 0:
            manager.write_checkpoint()
        manager = _crash(files, seed)
        outcomes.add(manager.topics.has("t"))
        if manager.topics.has("t"):
            assert payloads(first_log(manager)) == [b"kept all along.."]
        else:
            assert not any(log.tp.directory_name in path for path in files.paths())
    assert outcomes == {True, False}


def test_a_deletion_of_unknown_fate_that_was_settled_lasts() -> None:
    for seed in range(20):
        files = MemoryFiles()
        manager, _ = open_manager(files)
        append(first_log(manager), b"kept")
        _fail_to_sync_topics(files)
        with pytest.raises(StorageError):
            manager.delete_topic("t")
        _fail_to_sync_topics(files)
        with pytest.raises(StorageError, match="a power cut may bring an older one back") as failed:
            run_here(manager.changes.settle())
        assert failed.value.fate is Fate.UNKNOWN
        run_here(manager.changes.settle())
        assert not _crash(files, seed).topics.has("t")


def test_after_a_deletion_of_unknown_fate_the_name_is_free(files: MemoryFiles, manager: LogManager) -> None:
    old = manager.topics.by_name("t")
    _fail_to_sync_topics(files)
    with pytest.raises(StorageError):
        manager.delete_topic("t")
    append(first_log(manager), b"another")
    first_log(manager).flush()
    manager = _crash(files, 7)
    assert payloads(first_log(manager)) == [b"another\0"]
    assert not any(old.id.hex() in path for path in files.paths())


def test_an_addition_of_unknown_fate_takes_no_records() -> None:
    outcomes = set()
    for seed in range(30):
        files = MemoryFiles()
        manager, _ = open_manager(files)
        append(first_log(manager), b"kept")
        first_log(manager).flush()
        change = manager.changes.grow("t", 2) if seed % 2 else manager.changes.create("u", 2, {})
        _fail_to_sync_topics(files)
        with pytest.raises(StorageError, match="may appear after a restart") as failed:
            run_here(change)
        assert failed.value.fate is Fate.UNKNOWN
        assert [(topic.name, topic.partition_count) for topic in manager.topics.list()] == [("t", 1)]
        after = _crash(files, seed)
        outcomes.add((seed % 2, len(after.partitions.of_clients())))
        assert payloads(first_log(after)) == [b"kept\0\0\0\0"]
        for log in after.partitions.of_clients()[1:]:
            append(log, b"works")
            log.flush()
    assert outcomes == {(0, 1), (0, 3), (1, 1), (1, 2)}


def test_settings_of_unknown_fate_are_as_before_and_harm_nothing_if_they_show() -> None:
    outcomes = set()
    for seed in range(30):
        files = MemoryFiles()
        manager, log = open_log(files)
        before = log.config
        append(log, b"larger than what is to be allowed" * 40)
        log.flush()
        _fail_to_sync_topics(files)
        with pytest.raises(StorageError, match="may appear after a restart") as failed:
            manager.alter_topic("t", {"max.message.bytes": "1100", "retention.bytes": "1"}, ())
        assert failed.value.fate is Fate.UNKNOWN
        assert log.config == before, "nobody is held to what was not acknowledged"
        assert manager.topics.by_name("t").configs == {}
        append(log, b"acknowledged....")
        log.flush()
        if seed % 3 == 0:
            manager.alter_topic("t", {"segment.bytes": "5000"}, ())  # the next change settles the fate
        after = _crash(files, seed)
        log = first_log(after)
        outcomes.add((seed % 3 == 0, tuple(sorted(after.topics.by_name("t").configs))))
        assert payloads(log)[1:] == [b"acknowledged...."]
        append(log, b"works...")
        log.flush()
        assert log.ends.high_watermark == 3
    assert outcomes == {(True, ("segment.bytes",)), (False, ()), (False, ("max.message.bytes", "retention.bytes"))}
