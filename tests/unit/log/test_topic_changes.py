"""Changes of topics that fail half-way: nothing of them is left, and what comes afterwards is not harmed by them."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from brokerd.errors import StorageError
from brokerd.ids import TopicIdPartition
from brokerd.log.log_manager import LogManager
from tests.support.build import append, first_log, open_manager, payloads
from tests.support.files import MemoryFiles


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def manager(files: MemoryFiles) -> LogManager:
    manager, _ = open_manager(files)
    append(first_log(manager), b"kept")
    first_log(manager).flush()
    return manager


def _fail(files: MemoryFiles, operation: str, path: str) -> None:
    """The next such operation fails, once."""

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
    files.write_file("topics", small)  # an old copy, put back
    manager, report = open_manager(files)
    assert report.unknown_directories == [tp.directory_name]
    with pytest.raises(StorageError):
        manager.create_partitions("t", 3)
    assert not any(path.startswith(f"{tp.topic_id.hex()}-2/") for path in files.paths())
    files.kill()
    files.write_file("topics", grown)
    assert payloads(first_log(open_manager(files)[0], "t", 1)) == [b"acknowledged all"]
