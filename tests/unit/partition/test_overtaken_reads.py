"""Reads whose files disappear after they began: removed by retention, with a deleted topic, or by hand."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from brokerd.errors import OffsetOutOfRangeError, StorageError, UnknownTopicIdError, WireError
from brokerd.partition.log_ends import LogEnd
from brokerd.partition.partition import Partition
from brokerd.storage.files import File
from tests.support.build import append, delete_records, first_log, open_manager
from tests.support.files import MemoryFiles
from tests.support.log_manager import LogManager


@pytest.fixture
def manager(files: MemoryFiles) -> LogManager:
    return open_manager(files, log_segment_bytes=4_096)[0]


@pytest.fixture
def log(manager: LogManager) -> Partition:
    log = first_log(manager)
    for _ in range(60):
        append(log, b"x" * 200)
    log.flush()
    manager.write_checkpoint()
    log.resources.open_files.close()  # no file is open, so a read must open it
    return log


def _overtaken(log: Partition, by: Callable[[], object], read: Callable[[], object]) -> WireError:
    """The error of a read if `by` runs after it looked up the segment and before it opens the file."""
    use = log.resources.open_files.use

    def overtaken(path: str) -> AbstractContextManager[File]:
        log.resources.open_files.use = use  # type: ignore[method-assign]
        by()
        return use(path)

    log.resources.open_files.use = overtaken  # type: ignore[method-assign,assignment]
    with pytest.raises(WireError) as raised:
        read()
    return raised.value


def test_a_read_overtaken_by_retention_is_told_where_the_log_begins(manager: LogManager, log: Partition) -> None:
    def retire() -> None:
        delete_records(manager, log, -1)
        manager.retention_pass()

    error = _overtaken(log, retire, lambda: log.read(0, below=LogEnd.HIGH_WATERMARK, max_bytes=1_000, cached_only=False))
    assert isinstance(error, OffsetOutOfRangeError)
    assert error.log_start_offset == 60


def test_a_read_overtaken_by_a_deletion_is_told_that(manager: LogManager, log: Partition) -> None:
    def read() -> object:
        return log.read(0, below=LogEnd.HIGH_WATERMARK, max_bytes=1_000, cached_only=False)

    error = _overtaken(log, lambda: manager.delete_topic("t"), read)
    assert isinstance(error, UnknownTopicIdError)


def test_a_look_up_overtaken_may_be_asked_again(manager: LogManager, log: Partition) -> None:
    def retire() -> None:
        delete_records(manager, log, -1)
        manager.retention_pass()

    error = _overtaken(log, retire, lambda: log.look_ups.offset_for_timestamp(0))
    assert isinstance(error, StorageError)
    assert error.retriable


def test_a_file_that_somebody_took_is_no_end_of_the_log(files: MemoryFiles, log: Partition) -> None:
    files.remove_file(log.segments[0].path)
    with pytest.raises(StorageError, match="a file of the log that holds offset 3 is missing"):
        log.read(3, below=LogEnd.HIGH_WATERMARK, max_bytes=1_000, cached_only=False)


def test_what_lies_before_a_file_that_somebody_took_is_read(files: MemoryFiles, log: Partition) -> None:
    base = log.segments[1].base_offset
    files.remove_file(log.segments[1].path)
    assert log.read(0, below=LogEnd.HIGH_WATERMARK, max_bytes=100_000, cached_only=False).next_offset == base
    with pytest.raises(StorageError, match=f"a file of the log that holds offset {base} is missing"):
        log.read(base, below=LogEnd.HIGH_WATERMARK, max_bytes=100_000, cached_only=False)
