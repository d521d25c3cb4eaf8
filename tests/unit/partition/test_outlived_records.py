"""Producer state outlives its records: deleted, removed by retention, given up by an operator, or lost in damaged files.

tests/model/lives.py mixes these causes; here each is tested alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brokerd.errors import InvalidProducerEpochError, OutOfOrderSequenceError, UnknownProducerIdError
from brokerd.ids import ProducerIdAndEpoch
from brokerd.offline.doctor import give_up_damaged, rebuild_checkpoint
from brokerd.partition.derived_files import read_snapshot, snapshot_path
from brokerd.partition.partition import Partition
from brokerd.record.header import crc_seed
from brokerd.storage.files import Files, RealFiles
from brokerd.storage.names import LEADER_EPOCHS
from tests.support.build import append, delete_records, first_log, open_manager
from tests.support.files import MemoryFiles, failing
from tests.support.findings import flip
from tests.support.log_manager import LogManager

SETTINGS: dict[str, Any] = {"log_segment_bytes": 4_096}
EARLY, LATE = ProducerIdAndEpoch(7, 3), ProducerIdAndEpoch(8, 0)
COUNT = 40


def _open(files: Files) -> tuple[LogManager, Partition]:
    manager, report = open_manager(files, **SETTINGS)
    assert not report.damaged
    return manager, first_log(manager)


def _fill(log: Partition) -> None:
    """EARLY writes offsets 0 to 4, LATE all others, over several segments."""
    for sequence in range(5):
        append(log, b"x", producer=EARLY, sequence=sequence)
    for sequence in range(COUNT - 5):
        append(log, b"x" * 300, producer=LATE, sequence=sequence)
    log.flush()
    assert len(log.segments) > 3


def _check(log: Partition) -> None:
    """Checks that both producers are known, although no record of EARLY is left."""
    end = log.ends.log_end_offset
    assert log.ends.log_start_offset > 5
    assert [append(log, b"x", producer=EARLY, sequence=sequence) for sequence in (0, 3)] == [0, 3]
    with pytest.raises(InvalidProducerEpochError):
        append(log, b"x", producer=EARLY._replace(epoch=2), sequence=0)
    with pytest.raises(OutOfOrderSequenceError):
        append(log, b"x", producer=EARLY, sequence=7)
    assert append(log, b"x" * 300, producer=LATE, sequence=COUNT - 6) == COUNT - 1
    assert log.ends.log_end_offset == end
    assert append(log, b"x", producer=EARLY, sequence=5) == end


def test_state_is_known_after_kill_deletion_and_kill(files: MemoryFiles) -> None:
    _, log = _open(files)
    _fill(log)
    files.kill()
    manager, log = _open(files)
    delete_records(manager, log, COUNT)
    assert manager.retention_pass() > 0
    for _ in range(3):
        files.kill()
        _, log = _open(files)
        assert len(log.segments) == 1
    _check(log)


def test_a_start_ends_a_removal_only_once_a_snapshot_holds_the_state(files: MemoryFiles) -> None:
    manager, log = _open(files)
    files.hook = failing("create", path=".snapshot")
    _fill(log)
    delete_records(manager, log, COUNT)
    manager.write_checkpoint()
    files.kill()
    files.hook = failing("create", path=".snapshot")
    _, log = _open(files)
    assert log.segments[0].base_offset == 0
    files.kill()
    _, log = _open(files)
    assert len(log.segments) == 1
    files.kill()
    _check(_open(files)[1])


@pytest.mark.parametrize("is_earlier_life", [False, True], ids=["this life's", "an earlier life's"])
def test_segments_stay_while_no_snapshot_can_be_written(files: MemoryFiles, is_earlier_life: bool) -> None:
    manager, log = _open(files)
    files.hook = failing("create", path=".snapshot")
    _fill(log)
    if is_earlier_life:
        files.kill()
        files.hook = failing("create", path=".snapshot")
        manager, log = _open(files)
    delete_records(manager, log, COUNT)
    assert manager.retention_pass() == 0
    assert log.segments[0].base_offset == 0
    files.hook = None
    # The failed snapshot (of the last roll, or of the start) is retried without any append.
    assert manager.retention_pass() > 0
    files.kill()
    _check(_open(files)[1])


@pytest.mark.parametrize("is_cut", [False, True], ids=["behind", "of what was cut"])
def test_epochs_that_could_not_be_written_refute_no_snapshot(files: MemoryFiles, is_cut: bool) -> None:
    _, log = _open(files)
    files.kill()
    manager, log = _open(files)
    _fill(log)
    delete_records(manager, log, COUNT)
    files.kill()
    if is_cut:
        # Another leader epoch: a crash takes its only batch, but its entry in leader-epochs stays.
        _, log = _open(files)
        append(log, b"x", producer=LATE, sequence=COUNT - 5)
        log.flush()
        files.kill()
        path = log.segments[-1].path
        files.write_file(path, files.read_file(path)[:-8])
    files.hook = failing("create", path=LEADER_EPOCHS)
    manager, report = open_manager(files, **SETTINGS)
    log = first_log(manager)
    assert bool(report.cut_bytes) == is_cut
    for _ in range(20):
        append(log, b"x" * 300)
    log.flush()
    delete_records(manager, log, log.segments[-1].base_offset)
    assert manager.retention_pass() > 0
    files.kill()
    files.hook = failing("create", path=LEADER_EPOCHS)
    _, log = _open(files)
    with pytest.raises(InvalidProducerEpochError):
        append(log, b"x", producer=EARLY._replace(epoch=2), sequence=0)
    assert append(log, b"x", producer=EARLY, sequence=4) == 4


def test_a_snapshot_that_cannot_be_read_makes_way_for_an_older_one(files: MemoryFiles) -> None:
    manager, log = _open(files)
    _fill(log)
    delete_records(manager, log, log.segments[2].base_offset)
    manager.close()
    newest = snapshot_path(log.tp.directory_name, COUNT)
    assert newest in files.paths()
    files.hook = failing("pread", path=newest)
    _check(_open(files)[1])


def test_a_stopped_log_gives_no_snapshot_up(files: MemoryFiles) -> None:
    manager, log = _open(files)
    _fill(log)
    manager.close()
    for _ in range(4):
        manager, log = _open(files)
        append(log, b"x")
        manager.close()
    known = [path for path in files.paths() if path.endswith(".snapshot")]
    files.flip_bit(log.segments[1].path, 100)
    files.remove_file("clean-shutdown")
    manager, report = open_manager(files, **SETTINGS)
    assert report.damaged
    manager.retention_pass()
    assert [path for path in files.paths() if path.endswith(".snapshot")] == known


def test_a_hole_below_the_log_start_is_bridged_by_a_snapshot(files: MemoryFiles) -> None:
    manager, log = _open(files)
    _fill(log)
    first, second = log.segments[:2]
    delete_records(manager, log, COUNT)
    manager.write_checkpoint()
    files.kill()
    files.remove_file(second.path)
    _, log = _open(files)
    assert first.path not in files.paths()
    _check(log)


@pytest.mark.parametrize("is_given_up", [True, False], ids=["given up", "checkpoint rebuilt"])
def test_what_an_operator_repairs_keeps_its_state(tmp_path: Path, is_given_up: bool) -> None:
    manager, log = _open(RealFiles(str(tmp_path)))
    _fill(log)
    delete_records(manager, log, log.segments[1].base_offset)
    assert manager.retention_pass() == 1
    for _ in range(2):
        for _ in range(20):
            append(log, b"x" * 300)
        manager.close()
        manager, log = _open(RealFiles(str(tmp_path)))
    manager.close()
    end = log.ends.log_end_offset
    if is_given_up:
        flip(tmp_path / log.segments[1].path, -8)
        (tmp_path / "clean-shutdown").unlink()
        assert give_up_damaged(str(tmp_path))
    else:
        (tmp_path / "checkpoint").unlink()
        assert rebuild_checkpoint(str(tmp_path))
    _, log = _open(RealFiles(str(tmp_path)))
    assert log.ends.log_end_offset == end
    assert append(log, b"x", producer=EARLY, sequence=3) == 3
    with pytest.raises(InvalidProducerEpochError):
        append(log, b"x", producer=EARLY._replace(epoch=2), sequence=0)


def test_nobody_is_new_to_a_log_whose_snapshots_rotted_with_its_records_gone(files: MemoryFiles) -> None:
    manager, log = _open(files)
    early = ProducerIdAndEpoch(0, 0)
    assert append(log, b"x", producer=early, sequence=0) == 0
    for _ in range(COUNT):
        append(log, b"x" * 300)
    log.flush()
    delete_records(manager, log, COUNT)
    assert manager.retention_pass()
    manager.close()
    for path in files.paths():
        if path.endswith(".snapshot"):
            files.flip_bit(path, 300)
    for known, given in ((-1, 1), (1, 2)):  # `given`: the coordinator's first number not issued yet
        manager, log = _open(files)
        assert manager.partitions.highest_producer_number() == known
        manager.partitions.bound_producer_numbers(given)
        with pytest.raises(UnknownProducerIdError):
            append(log, b"x", producer=early, sequence=0)
        assert append(log, b"x", producer=ProducerIdAndEpoch(given, 0), sequence=0) > COUNT
        assert manager.partitions.highest_producer_number() == given
        manager.close()


def test_a_snapshot_is_of_its_roll_though_it_is_encoded_later(files: MemoryFiles) -> None:
    _, log = _open(files)
    for sequence in range(COUNT):
        append(log, b"x" * 300, producer=LATE, sequence=sequence)
    append(log, b"x", producer=EARLY, sequence=0)
    rolled = [segment.base_offset for segment in log.segments[1:]]
    log.flush()
    for offset in rolled:
        snapshot = read_snapshot(files, log.tp.directory_name, offset, crc_seed(log.tp))
        assert snapshot is not None
        assert {producer: entry.last_sequence for producer, entry in snapshot.producers.items()} == {LATE.producer_id: offset - 1}
