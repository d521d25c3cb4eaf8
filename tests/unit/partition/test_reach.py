"""How far a number of bytes reaches, beside a plain count of the batches that are there."""

from __future__ import annotations

import random

import pytest

from brokerd.errors import StorageError
from brokerd.partition.partition import Partition
from tests.support.build import append, first_log, open_manager, read_batches
from tests.support.clock import START_WALL_MS
from tests.support.files import MemoryFiles
from tests.support.random_log import unreadable_log, written_then_reopened


def plain(log: Partition, begin: int, until: int, max_bytes: int) -> tuple[int, int]:
    """The end of the last batch that fits, and what the batches up to there take."""
    end, size_bytes = until, 0
    for batch in read_batches(log):
        header = batch.header
        if header.next_offset <= max(begin, log.ends.log_start_offset) or header.base_offset >= until:
            continue
        if size_bytes and size_bytes + header.size > max_bytes:
            return end, size_bytes
        end, size_bytes = min(header.next_offset, until), size_bytes + header.size
    return until, size_bytes


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_end_of_the_last_batch_that_fits(seed: int) -> None:
    rng = random.Random(seed)
    for log in written_then_reopened(rng):
        for _ in range(400):
            begin = rng.randrange(log.ends.log_end_offset)
            until = rng.randrange(begin + 1, log.ends.log_end_offset + 1)
            max_bytes = rng.choice((0, 1, rng.randrange(2_000), rng.randrange(log.core.size_bytes), 2**40))
            assert log.look_ups.reach(begin, until, max_bytes) == plain(log, begin, until, max_bytes), (begin, until, max_bytes)


def test_nothing_lies_between_an_offset_and_itself() -> None:
    manager, _ = open_manager(MemoryFiles())
    log = first_log(manager)
    append(log, b"v" * 64)
    log.flush()
    assert log.look_ups.reach(1, 1, 10) == (1, 0)
    assert log.look_ups.reach(1, 0, 10) == (0, 0)


def test_nothing_above_the_high_watermark_counts() -> None:
    manager, _ = open_manager(MemoryFiles())
    log = first_log(manager)
    append(log, b"durable.")
    log.flush()
    size_bytes = log.core.size_bytes
    append(log, b"not yet.")
    assert log.look_ups.reach(0, 2, 2**40) == (2, size_bytes)


def test_a_damaged_batch_is_passed_with_its_bytes() -> None:
    files = MemoryFiles()
    manager, _ = open_manager(files)
    log = first_log(manager)
    for number in range(4):
        append(log, b"v" * 64, now_ms=START_WALL_MS + number)
    log.flush()
    path, batch_bytes = log.segments[0].path, log.core.size_bytes // 4
    files.flip_bit(path, (batch_bytes + 20) * 8)
    assert log.look_ups.reach(0, 4, 3 * batch_bytes) == (3, 3 * batch_bytes)
    assert log.look_ups.reach(0, 4, batch_bytes) == (1, batch_bytes)
    assert log.look_ups.reach(1, 4, 0) == (3, batch_bytes), "from the damaged one on, the next that can be read"


def test_a_file_that_cannot_be_read_is_a_storage_error() -> None:
    with pytest.raises(StorageError):
        unreadable_log(2).look_ups.reach(1, 2, 0)
