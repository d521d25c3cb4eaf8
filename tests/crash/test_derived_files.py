"""Snapshots, indexes and epoch files that are gone, short, rotten or stale: recovery equals a scan of the whole log."""

from __future__ import annotations

import random
from typing import Any

import pytest

from brokerd.ids import ProducerIdAndEpoch
from brokerd.log import partition_log
from brokerd.log.partition_log import PartitionLog
from tests.support.build import append, first_log, open_manager, payloads
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles

DERIVED = (".snapshot", ".index", ".timeindex", "leader-epochs")
SETTINGS: dict[str, Any] = {"log_segment_bytes": 4_096, "log_index_interval_bytes": 300}


def _fill(log: PartitionLog, rng: random.Random, sequences: dict[int, int], count: int) -> None:
    for _ in range(count):
        producer_id = rng.randrange(4)
        records = rng.randint(1, 3)
        append(
            log,
            rng.randbytes(8 * rng.randint(1, 60)),
            count=records,
            producer=ProducerIdAndEpoch(producer_id, 0),
            sequence=sequences.get(producer_id, 0),
        )
        sequences[producer_id] = sequences.get(producer_id, 0) + records
        if rng.random() < 0.2:
            log.flush()


def _history(rng: random.Random) -> tuple[MemoryFiles, list[MemoryFiles]]:
    """A directory after several lives, and copies of it from before (whose derived files are stale)."""
    files, clock, stale = MemoryFiles(), ManualClock(), []
    sequences: dict[int, int] = {}
    for life in range(3):
        manager, _ = open_manager(files, clock, **SETTINGS)
        log = first_log(manager)
        _fill(log, rng, sequences, 25)
        log.flush()
        manager.write_checkpoint()
        if life == 0:
            manager.close()
        stale.append(files.copy())
        if life == 1:
            _fill(log, rng, {100: 0}, 0)
        files.kill()
    return files, stale


def _view(files: MemoryFiles) -> tuple[Any, ...]:
    manager, report = open_manager(files, **SETTINGS)
    log = first_log(manager)
    assert not report.damaged
    assert not report.cut_bytes
    found = payloads(log)
    by_offset = [payloads(log, offset)[0] for offset in range(0, log.high_watermark, 7)]
    append(log, b"x")
    return log.log_end_offset, found, by_offset, dict(log.producers), list(log.epochs.entries)[:-1]


def _without_derived(files: MemoryFiles) -> MemoryFiles:
    bare = files.copy()
    for path in bare.paths():
        if path.endswith(DERIVED) or path == "clean-shutdown":
            bare.remove_file(path)
    return bare


def _harm(rng: random.Random, files: MemoryFiles, stale: list[MemoryFiles], path: str, kind: str) -> None:
    data = files.read_file(path)
    if kind == "deleted":
        files.remove_file(path)
    elif kind == "truncated":
        files.write_file(path, data[: rng.randrange(len(data))])
    elif kind == "flipped":
        files.flip_bit(path, rng.randrange(len(data) * 8))
    elif kind == "extended":
        files.write_file(path, data + rng.randbytes(8))
    else:
        older = [copy for copy in stale if path in copy.paths()]
        if older:
            files.write_file(path, rng.choice(older).read_file(path))


@pytest.mark.parametrize("kind", ["deleted", "truncated", "flipped", "extended", "stale"])
@pytest.mark.parametrize("ending", ["killed", "closed"])
def test_recovery_equals_a_full_scan_whatever_happened_to_derived_files(
    kind: str, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_log, "RECOVERY_WINDOW_BYTES", 3_000)
    rng = random.Random(f"{kind} {ending}")
    for _ in range(3):
        files, stale = _history(rng)
        if ending == "closed":
            manager, _ = open_manager(files, **SETTINGS)
            manager.close()
        wanted = _view(_without_derived(files))
        assert _view(files.copy())[:4] == wanted[:4]
        derived = [path for path in files.paths() if path.endswith(DERIVED)]
        assert len(derived) > 8
        for paths in [[path] for path in derived] + [rng.sample(derived, len(derived) // 2) for _ in range(5)]:
            harmed = files.copy()
            for path in paths:
                _harm(rng, harmed, stale, path, kind)
            found = _view(harmed)
            assert found[:4] == wanted[:4], paths
            assert [entry.start_offset for entry in found[4]] == [entry.start_offset for entry in wanted[4]], paths


def test_snapshots_newer_than_a_torn_log_are_removed() -> None:
    files = MemoryFiles()
    manager, _ = open_manager(files, **SETTINGS)
    log = first_log(manager)
    _fill(log, random.Random(5), {}, 40)
    log.flush()
    files.kill()
    last = [path for path in files.paths() if path.endswith(".log")][-1]
    files.remove_file(last)
    manager, _ = open_manager(files, **SETTINGS)
    log = first_log(manager)
    assert max(log.snapshot_offsets) == log.log_end_offset
    assert max(entry.batches[-1].last_offset for entry in log.producers.values()) < log.log_end_offset
