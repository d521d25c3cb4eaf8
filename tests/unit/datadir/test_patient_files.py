"""A process at its limit of open files: idle cached files are closed for rolls, DeleteRecords, topic changes and retention."""

from __future__ import annotations

import errno

import pytest

from brokerd.storage.open_files import OpenFiles, PatientFiles
from tests.support.build import append, first_log, open_log, payloads
from tests.support.files import MemoryFiles
from tests.support.log_manager import LogManager
from tests.support.steps import run_here

LIMIT = 40
_OPENING = ("open", "create", "rename", "sync_dir", "unlink")


def scarce_files() -> MemoryFiles:
    """A directory of which the process may have at most LIMIT files open."""
    files = MemoryFiles()

    def refuse(operation: str, path: str) -> None:
        if operation in _OPENING and files.open_count >= LIMIT:
            raise OSError(errno.EMFILE, "Too many open files", path)

    files.hook = refuse
    return files


@pytest.fixture
def crowded() -> LogManager:
    """A log of many segments, all of which have been read."""
    manager, log = open_log(scarce_files(), log_segment_bytes=4_096, log_max_open_files=1_000)
    for number in range(100):
        append(log, b"%d" % number * 1_500)
        log.flush()
    assert len(payloads(log)) == 100
    assert len(log.segments) > LIMIT
    return manager


def test_rolls_topics_and_their_removal_go_on(crowded: LogManager) -> None:
    log = first_log(crowded)
    before = len(log.segments)
    for number in range(20):
        append(log, b"%d" % number * 1_500)
        log.flush()
    assert len(log.segments) > before
    crowded.create_topic("other", 10, {})
    crowded.create_partitions("other", 20)
    for partition in range(20):
        append(first_log(crowded, "other", partition), b"x")
        first_log(crowded, "other", partition).flush()
    crowded.delete_topic("other")


def test_delete_records_and_retention_go_on(crowded: LogManager) -> None:
    log = first_log(crowded)
    assert run_here(crowded.retention.delete_records([(log, 50)])) == [None]
    assert log.ends.log_start_offset == 50
    crowded.retention_pass()
    assert len(payloads(log)) == 50
    crowded.close()


def test_where_nothing_can_be_closed_the_error_is_raised() -> None:
    files = scarce_files()
    handles = [files.create(f"f{number}") for number in range(LIMIT - 1)]
    cache = OpenFiles(files, limit=4)
    with cache.use("f0"), pytest.raises(OSError, match="Too many open files") as refused:
        PatientFiles(files, cache).sync_dir()
    assert refused.value.errno == errno.EMFILE
    assert len(cache) == 1
    PatientFiles(files, cache).sync_dir()
    assert len(cache) == 0
    assert files.open_count == len(handles)
