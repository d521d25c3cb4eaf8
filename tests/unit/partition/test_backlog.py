"""The rest that a reader has left to read, beside a plain count of the batches that are there."""

from __future__ import annotations

import random

import pytest

from brokerd.errors import StorageError
from brokerd.partition.partition import Partition
from tests.support.build import append, first_log, open_manager, read_batches
from tests.support.clock import START_WALL_MS
from tests.support.files import MemoryFiles
from tests.support.random_log import unreadable_log, written_then_reopened


def plain(log: Partition, offset: int, until: int) -> tuple[int, int]:
    """Bytes from the batch that holds `offset` on, or the first one there is, and its time."""
    headers = [batch.header for batch in read_batches(log)]
    left = [
        header for header in headers if header.next_offset > max(offset, log.ends.log_start_offset) and header.base_offset < until
    ]
    return sum(header.size for header in left), left[0].append_timestamp if left else -1


@pytest.mark.parametrize("seed", range(5))
def test_it_is_what_the_batches_from_there_on_take(seed: int) -> None:
    for log in written_then_reopened(random.Random(seed)):
        for offset in range(log.ends.log_end_offset + 2):
            assert log.look_ups.backlog(offset) == plain(log, offset, log.ends.high_watermark)


def test_nothing_above_the_high_watermark_counts() -> None:
    manager, _ = open_manager(MemoryFiles())
    log = first_log(manager)
    append(log, b"durable.", now_ms=START_WALL_MS)
    log.flush()
    size_bytes = log.core.size_bytes
    append(log, b"not yet.", now_ms=START_WALL_MS + 1)
    assert log.look_ups.backlog(0) == (size_bytes, START_WALL_MS)
    assert log.look_ups.backlog(1) == (0, -1)


def test_a_damaged_batch_is_passed() -> None:
    files = MemoryFiles()
    manager, _ = open_manager(files)
    log = first_log(manager)
    for number in range(4):
        append(log, b"v" * 64, now_ms=START_WALL_MS + number)
    log.flush()
    path, size_bytes = log.segments[0].path, log.core.size_bytes
    files.flip_bit(path, (size_bytes // 4 + 20) * 8)
    assert log.look_ups.backlog(1) == (size_bytes // 2, START_WALL_MS + 2)


def test_a_file_that_cannot_be_read_is_a_storage_error() -> None:
    with pytest.raises(StorageError):
        unreadable_log(1).look_ups.backlog(0)
