"""What retention and deletion of records may take, and what must be durable before they do."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.errors import LogDamagedError
from brokerd.log.partition_log import PartitionLog
from tests.support.build import append, first_log, open_manager
from tests.support.clock import START_WALL_MS
from tests.support.files import MemoryFiles

SETTINGS: dict[str, Any] = {"log_segment_bytes": 4_096}


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def _fill(log: PartitionLog, count: int = 60) -> None:
    """Several segments, flushed."""
    for _ in range(count):
        append(log, b"x" * 200)
    log.flush()


def test_nothing_at_or_above_damage_is_retired(files: MemoryFiles) -> None:
    manager, _ = open_manager(files, log_retention_bytes=4_096, **SETTINGS)
    log = first_log(manager)
    _fill(log)
    assert log.retained_from(START_WALL_MS) > log.segments[2].base_offset
    damaged = log.segments[1]
    files.flip_bit(damaged.path, 20 * 8)
    with pytest.raises(LogDamagedError):
        log.read(damaged.base_offset, max_bytes=1_000, until_offset=60, cached_only=False)
    assert log.retained_from(START_WALL_MS) == damaged.base_offset
    assert manager.retention_pass(START_WALL_MS) == 0
    assert log.last_stable_offset == log.high_watermark == 60
