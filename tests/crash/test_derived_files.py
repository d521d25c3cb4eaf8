"""Snapshots, indexes and epoch files that are missing, short, rotten or stale: recovery equals a scan of the whole log."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from brokerd.partition import flush_state
from brokerd.partition.partition import Partition
from brokerd.record.batch import RecordBatch
from brokerd.record.header import encode_header
from tests.support.build import append, arrow_batch, first_log, open_log, open_manager, payloads
from tests.support.clock import START_WALL_MS, ManualClock
from tests.support.files import MemoryFiles
from tests.support.scale import TEST_SCALE

DERIVED = (".snapshot", ".index", "leader-epochs")
SETTINGS: dict[str, Any] = {"log_segment_bytes": 4_096, "log_index_interval_bytes": 300}


def _fill(log: Partition, rng: random.Random, sequences: dict[int, int], count: int) -> None:
    """Appends batches of a few producers, whose times mostly increase."""
    for _ in range(count):
        producer_id = rng.randrange(4)
        records = rng.randint(1, 3)
        values = [rng.randbytes(rng.randint(1, 100)) for _ in range(records)]
        times_ms = [START_WALL_MS + 100 * log.ends.log_end_offset + rng.randrange(500) for _ in range(records)]
        unsent = arrow_batch(values, times_ms)
        header = unsent.header._replace(producer_id=producer_id, producer_epoch=0, base_sequence=sequences.get(producer_id, 0))
        data = pa.py_buffer(encode_header(header, 0) + unsent.payload.to_pybytes())
        log.append(RecordBatch(header, data), now_wall_ms=START_WALL_MS)
        sequences[producer_id] = sequences.get(producer_id, 0) + records
        if rng.random() < 0.2:
            log.flush()


def _history(rng: random.Random, ending: str) -> tuple[MemoryFiles, list[MemoryFiles]]:
    """A directory after several lives, the last with this `ending`, and earlier copies, whose derived files are stale.

    The last lives are short, so that a segment spans several of them; each clean stop rewrites its index.
    """
    files, clock, stale = MemoryFiles(), ManualClock(), []
    sequences: dict[int, int] = {}
    for count, end in ((25, "closed"), (25, "killed"), (25, "killed"), *[(2, "closed")] * 5, (2, ending)):
        stale.append(files.copy())
        manager, log = open_log(files, clock, **SETTINGS)
        _fill(log, rng, sequences, count)
        log.flush()
        manager.write_checkpoint()
        if end == "closed":
            manager.close()
        files.kill()
    return files, stale


def _view(files: MemoryFiles) -> tuple[Any, ...]:
    manager, report = open_manager(files, **SETTINGS)
    log = first_log(manager)
    assert not report.damaged
    assert not report.cut_bytes
    found = payloads(log)
    by_offset = [payloads(log, offset)[0] for offset in range(0, log.ends.high_watermark, 7)]
    times_ms = range(START_WALL_MS, START_WALL_MS + 100 * log.ends.high_watermark + 1_000, 2_000)
    by_time = [log.look_ups.offset_for_timestamp(time_ms) for time_ms in times_ms]
    append(log, b"x")
    return log.ends.log_end_offset, found, by_offset, by_time, dict(log.core.producers.entries), list(log.core.epochs.entries)[:-1]


def _without_derived(files: MemoryFiles) -> MemoryFiles:
    bare = files.copy()
    for path in bare.paths():
        if path.endswith(DERIVED) or path == "clean-shutdown":
            bare.remove_file(path)
    return bare


def _harm(rng: random.Random, files: MemoryFiles, stale: list[MemoryFiles], path: str, kind: str) -> bool:
    """Harms a file; True if its content changed. The index of a closed segment, for example, is never stale."""
    data = files.read_file(path)
    if kind == "deleted":
        files.remove_file(path)
    elif kind == "truncated":
        files.write_file(path, data[: rng.randrange(len(data))])
    elif kind == "flipped":
        files.flip_bit(path, rng.randrange(len(data) * 8))
    elif kind == "extended":
        files.write_file(path, data + rng.randbytes(8))
    elif kind == "stale":
        older = [copy.read_file(path) for copy in stale if path in copy.paths()]
        files.write_file(path, rng.choice([one for one in older if one != data] or [data]))
    else:
        suffix = next(suffix for suffix in DERIVED if path.endswith(suffix))
        others = [other for other in files.paths() if other.endswith(suffix) and other != path]
        files.write_file(path, files.read_file(rng.choice(others or [path])))
    return kind == "deleted" or files.read_file(path) != data


@pytest.mark.parametrize("kind", ["deleted", "truncated", "flipped", "extended", "stale", "another's"])
@pytest.mark.parametrize("ending", ["killed", "closed"])
def test_recovery_equals_a_full_scan_whatever_happened_to_derived_files(
    kind: str, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush_state, "RECOVERY_WINDOW_BYTES", 3_000)
    rng = random.Random(f"{kind} {ending}")
    harmed_suffixes: set[str] = set()
    for _ in range(TEST_SCALE):
        files, stale = _history(rng, ending)
        wanted = _view(_without_derived(files))
        assert _view(files.copy())[:5] == wanted[:5]
        derived = [path for path in files.paths() if path.endswith(DERIVED)]
        assert len(derived) > 8
        # The short run takes every other file, and always the only one of its kind.
        one_by_one = [path for n, path in enumerate(derived) if TEST_SCALE > 1 or n % 2 or path.endswith("leader-epochs")]
        for paths in [[path] for path in one_by_one] + [rng.sample(derived, len(derived) // 2) for _ in range(3)]:
            harmed = files.copy()
            for path in paths:
                if _harm(rng, harmed, stale, path, kind):
                    harmed_suffixes.update(suffix for suffix in DERIVED if path.endswith(suffix))
            found = _view(harmed)
            assert found[:5] == wanted[:5], paths
            assert [entry.start_offset for entry in found[5]] == [entry.start_offset for entry in wanted[5]], paths
    # Producer state at an offset never changes, so no snapshot is stale; and a directory has only one epoch file.
    spared = {"stale": ".snapshot", "another's": "leader-epochs"}.get(kind)
    assert harmed_suffixes == set(DERIVED) - {spared}


def test_snapshots_newer_than_a_torn_log_are_removed() -> None:
    files = MemoryFiles()
    _, log = open_log(files, **SETTINGS)
    _fill(log, random.Random(5), {}, 40)
    log.flush()
    files.kill()
    last = [path for path in files.paths() if path.endswith(".log")][-1]
    files.remove_file(last)
    _, log = open_log(files, **SETTINGS)
    assert log.core.snapshots.durable[-1] == log.ends.log_end_offset
    assert max(entry.batches[-1].last_offset for entry in log.core.producers.entries.values()) < log.ends.log_end_offset
