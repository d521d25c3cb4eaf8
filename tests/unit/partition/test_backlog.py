"""The rest that a reader has left to read, beside a plain count of the batches that are there."""

from __future__ import annotations

import random

import pytest

from brokerd.errors import StorageError
from brokerd.partition.partition_log import PartitionLog
from tests.support.build import append, delete_records, first_log, open_manager, read_batches
from tests.support.clock import START_WALL_MS
from tests.support.files import MemoryFiles


def plain(log: PartitionLog, offset: int, until: int) -> tuple[int, int]:
    """Bytes from the batch that holds `offset` on, or the first one there is, and its time."""
    headers = [batch.header for batch in read_batches(log)]
    left = [header for header in headers if header.next_offset > max(offset, log.log_start_offset) and header.base_offset < until]
    return sum(header.size for header in left), left[0].append_timestamp if left else -1


@pytest.mark.parametrize("seed", range(5))
def test_it_is_what_the_batches_from_there_on_take(seed: int) -> None:
    rng = random.Random(seed)
    files = MemoryFiles()
    manager, _ = open_manager(files, log_segment_bytes=4_096, log_index_interval_bytes=rng.choice((0, 500, 65_536)))
    log = first_log(manager)
    for number in range(rng.randrange(30, 60)):
        append(log, b"v" * rng.randrange(8, 600, 8), now_ms=START_WALL_MS + number, count=rng.choice((1, 1, 4)))
    log.flush()
    assert len(log.segments) > 2
    for is_reopened in (False, True):
        if is_reopened:
            delete_records(log, log.log_end_offset // 3)
            manager.write_checkpoint()
            manager.close()
            manager, _ = open_manager(files, log_segment_bytes=4_096)
            log = first_log(manager)
        for offset in range(log.log_end_offset + 2):
            assert log.reader.backlog(offset) == plain(log, offset, log.high_watermark)


def test_nothing_above_the_high_watermark_counts() -> None:
    manager, _ = open_manager(MemoryFiles())
    log = first_log(manager)
    append(log, b"durable.", now_ms=START_WALL_MS)
    log.flush()
    size_bytes = log.core.size_bytes
    append(log, b"not yet.", now_ms=START_WALL_MS + 1)
    assert log.reader.backlog(0) == (size_bytes, START_WALL_MS)
    assert log.reader.backlog(1) == (0, -1)


def test_a_damaged_batch_is_passed() -> None:
    files = MemoryFiles()
    manager, _ = open_manager(files)
    log = first_log(manager)
    for number in range(4):
        append(log, b"v" * 64, now_ms=START_WALL_MS + number)
    log.flush()
    path, size_bytes = log.segments[0].path, log.core.size_bytes
    files.flip_bit(path, (size_bytes // 4 + 20) * 8)
    assert log.reader.backlog(1) == (size_bytes // 2, START_WALL_MS + 2)


def test_a_file_that_is_missing_is_a_storage_error() -> None:
    files = MemoryFiles()
    manager, _ = open_manager(files, log_max_open_files=16)
    log = first_log(manager)
    append(log, b"v" * 64)
    log.flush()
    files.hook = lambda operation, path: _refuse() if operation == "pread" and path.endswith(".log") else None
    with pytest.raises(StorageError):
        log.reader.backlog(0)


def _refuse() -> None:
    raise OSError(5, "Input/output error")
