"""A log of random batches in small segments, for tests that compare what is asked about it with a plain count."""

from __future__ import annotations

import random
from collections.abc import Iterator

from brokerd.partition.partition import Partition
from tests.support.build import append, delete_records, first_log, open_manager
from tests.support.clock import START_WALL_MS
from tests.support.files import MemoryFiles, failing

_SEGMENT_BYTES = 4_096


def written_then_reopened(rng: random.Random) -> Iterator[Partition]:
    """The log as it was written, then after its first third was deleted and the directory was opened again."""
    files = MemoryFiles()
    manager, _ = open_manager(files, log_segment_bytes=_SEGMENT_BYTES, log_index_interval_bytes=rng.choice((0, 500, 65_536)))
    log = first_log(manager)
    for number in range(rng.randrange(30, 60)):
        append(log, b"v" * rng.randrange(8, 600, 8), now_ms=START_WALL_MS + number, count=rng.choice((1, 1, 4)))
    log.flush()
    assert len(log.segments) > 2
    yield log
    delete_records(manager, log, log.ends.log_end_offset // 3)
    manager.write_checkpoint()
    manager.close()
    manager, _ = open_manager(files, log_segment_bytes=_SEGMENT_BYTES)
    yield first_log(manager)


def unreadable_log(batches: int) -> Partition:
    """A log of durable batches whose files cannot be read."""
    files = MemoryFiles()
    manager, _ = open_manager(files, log_max_open_files=16)
    log = first_log(manager)
    for _ in range(batches):
        append(log, b"v" * 64)
    log.flush()
    files.hook = failing("pread", path=".log")
    return log
