"""A scripted run, killed before or during every file operation; recovery is killed likewise, twice."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.support.build import append, delete_records, first_log, open_log, open_manager, payloads
from tests.support.clock import ManualClock
from tests.support.files import Killed, MemoryFiles
from tests.support.kill_points import ENDINGS, kill_at, leave, operations_of

SETTINGS: dict[str, Any] = {"log_segment_bytes": 4_096, "log_index_interval_bytes": 512, "log_checkpoint_interval_ms": 1_000}


class History:
    """The responses to the script: payloads by offset, those acknowledged and all that were sent."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, bytes] = {}
        self.sent: dict[int, bytes] = {}
        self.log_start = 0
        self.topics: set[str] = set()


def _script(files: MemoryFiles, history: History) -> None:
    """Create, append over several segments, flush, checkpoint, delete records, delete a topic, close; and once more."""
    for life in range(2):
        clock = ManualClock()
        manager, log = open_log(files, clock, **SETTINGS)
        history.topics.add("t")
        for step in range(9):
            for n in range(2):
                payload = f"{life} {step} {n} ".encode() * 60
                payload += bytes(-len(payload) % 8)
                history.sent[log.ends.log_end_offset] = payload
                append(log, payload)
            if step % 2:
                log.flush()
                history.acknowledged |= {at: payload for at, payload in history.sent.items() if at < log.ends.high_watermark}
            if step == 4:
                clock.advance(2_000)
                manager.write_checkpoint_if_due(clock.monotonic_ms())
            if step == 6:
                history.log_start = log.ends.high_watermark - 3
                delete_records(manager, log, history.log_start)
                manager.retention_pass()
        manager.create_topic(f"gone-{life}", 2, {})
        manager.delete_topic(f"gone-{life}")
        manager.close()
        history.acknowledged = dict(history.sent)


@pytest.mark.parametrize("ending", ENDINGS)
def test_killed_at_every_operation_the_acknowledged_is_all_there(ending: str) -> None:
    operations = operations_of(lambda files: _script(files, History()))
    kinds = {operation.split()[0] for operation in operations}
    assert {"pwritev", "fdatasync", "rename", "create", "unlink", "sync_dir", "mkdir", "rmdir"} <= kinds
    rng = random.Random(3)
    for number in range(1, len(operations) + 1):
        files, history = MemoryFiles(), History()
        files.hook = kill_at(number)
        with pytest.raises(Killed):
            _script(files, history)
        leave(files, ending, number, rng)
        for attempt in (rng.randint(1, 30), rng.randint(1, 30), 0):
            if _opens(files, attempt, ending, rng):
                _check(files, history, number)
                break


def _opens(files: MemoryFiles, killed_at: int, ending: str, rng: random.Random) -> bool:
    """Recovers, killed at the given operation; True if recovery finished (`killed_at` is 0, or there are fewer operations)."""
    files.hook = kill_at(killed_at) if killed_at else None
    try:
        manager, _ = open_manager(files, **SETTINGS)
    except Killed:
        leave(files, ending, killed_at, rng)
        return False
    files.hook = None
    files.kill()
    del manager
    return True


def _check(files: MemoryFiles, history: History, number: int) -> None:
    manager, report = open_manager(files, **SETTINGS)
    assert not report.damaged, number
    assert not report.read_only_reason
    assert not report.unknown_directories
    if not manager.topics.has("t"):
        assert "t" not in history.topics
        return
    log = first_log(manager)
    found = payloads(log)
    offsets = range(log.ends.high_watermark - len(found), log.ends.high_watermark)
    for offset, payload in zip(offsets, found, strict=True):
        assert history.sent[offset] == payload, (number, offset)
    missing = [at for at in history.acknowledged if at >= max(history.log_start, log.ends.log_start_offset) and at not in offsets]
    assert not missing, (number, missing)
    append(log, b"more")
    manager.close()
