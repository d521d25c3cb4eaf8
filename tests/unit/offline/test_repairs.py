"""Repairs by an operator and their effects: no offset is reused, and every loss is reported."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brokerd.errors import DataDirectoryError, LogDamagedError
from brokerd.offline import doctor
from brokerd.offline.doctor import accept_damaged, check_data_dir, give_up_damaged, rebuild_checkpoint
from brokerd.offline.partition_check import Severity
from brokerd.offline.rebuild import rebuild_lost
from brokerd.partition.partition import Partition
from brokerd.storage.files import RealFiles
from tests.support.build import append, delete_records, first_log, open_log, open_manager, read_batches, readable
from tests.support.clock import START_WALL_MS
from tests.support.files import Killed, MemoryFiles
from tests.support.findings import errors_in, flip
from tests.support.log_manager import LogManager

SMALL: dict[str, Any] = {"log_segment_bytes": 4_096, "log_index_interval_bytes": 300}
COUNT = 40
SIZE = 96 + 304


def _append(log: Partition) -> int:
    return append(log, b"%04d" % log.ends.log_end_offset * 76)


def _open(root: Path, **settings: object) -> tuple[LogManager, Partition]:
    return open_log(RealFiles(str(root)), **{**SMALL, **settings})


def _fill(log: Partition, count: int = COUNT) -> None:
    for _ in range(count):
        _append(log)
    log.flush()


def _old_checkpoint(root: Path, more: Callable[[], None]) -> None:
    """Runs `more`, then restores the earlier checkpoint, as if a kill came within the second before the next."""
    checkpoint = (root / "checkpoint").read_bytes()
    more()
    (root / "checkpoint").write_bytes(checkpoint)
    (root / "clean-shutdown").unlink(missing_ok=True)


@pytest.mark.parametrize("is_restarted", [True, False])
def test_offsets_that_were_given_up_are_never_given_again(tmp_path: Path, is_restarted: bool) -> None:
    manager, log = _open(tmp_path)
    _fill(log)
    manager.write_checkpoint()

    def more() -> None:
        _fill(log, 15)
        manager.close()

    _old_checkpoint(tmp_path, more)
    first, end = log.segments[1].base_offset, COUNT + 15
    flip(tmp_path / log.segments[1].path, 20)
    assert [(note.partition, note.offset) for note in give_up_damaged(str(tmp_path))] == [("t-0", first)]
    if not is_restarted:
        (tmp_path / "checkpoint").unlink()
        rebuild_checkpoint(str(tmp_path))
    manager, log = _open(tmp_path)
    assert (log.damage, log.ends.log_end_offset) == (None, end)
    with pytest.raises(LogDamagedError, match=rf"offsets {first} to {end - 1} .* continues at offset {end}") as told:
        list(read_batches(log, first))
    assert told.value.resume_offset == end
    assert _append(log) == end
    log.flush()
    assert [batch.header.base_offset for batch in read_batches(log, end)] == [end]
    manager.close()
    assert not errors_in(tmp_path)
    assert give_up_damaged(str(tmp_path)) == []


def test_damage_at_the_end_of_a_segment_says_nothing_of_its_index(tmp_path: Path) -> None:
    manager, log = _open(tmp_path)
    _fill(log, 6)
    manager.close()
    last = tmp_path / log.segments[-1].path
    flip(last, last.stat().st_size - 10)
    assert [Path(finding.path).suffix for finding in check_data_dir(str(tmp_path))] == [".log"]


@pytest.mark.parametrize("is_lost", [True, False], ids=["cut", "rotten"])
def test_a_clean_stop_without_a_checkpoint_says_what_was_durable(tmp_path: Path, is_lost: bool) -> None:
    manager, log = _open(tmp_path)
    _fill(log)
    manager.write_checkpoint()
    checkpoint = (tmp_path / "checkpoint").read_bytes()
    _fill(log, 15)
    manager.close()
    (tmp_path / "checkpoint").write_bytes(checkpoint)  # a full disk had room for the clean-shutdown mark only
    last = tmp_path / log.segments[-1].path
    if is_lost:
        last.write_bytes(last.read_bytes()[:-SIZE])
    else:
        flip(last, last.stat().st_size - SIZE + 20)
    assert [f.offset for f in check_data_dir(str(tmp_path)) if f.severity is Severity.ERROR] == [COUNT + 14]
    if not is_lost:
        last_snapshot = last.parent / f"{COUNT + 15:020d}.snapshot"
        last_snapshot.unlink()
    manager, log = _open(tmp_path)
    assert log.damage is not None
    assert log.ends.log_end_offset == COUNT + 15
    manager.close()
    accept_damaged(str(tmp_path))
    manager, log = _open(tmp_path)
    assert _append(log) == COUNT + 15
    manager.close()


@pytest.mark.parametrize("before", ["nothing", "a start", "the node epoch is lost too"])
@pytest.mark.parametrize("harm", ["rotten batch", "missing segment", "missing segments"])
@pytest.mark.parametrize("proof", ["clean mark", "snapshot"])
def test_a_rebuilt_checkpoint_takes_no_damage_for_a_torn_tail(tmp_path: Path, proof: str, harm: str, before: str) -> None:
    manager, log = _open(tmp_path)
    _fill(log)
    manager.close()
    (tmp_path / "checkpoint").unlink()
    last = tmp_path / log.segments[-1].path
    if proof == "snapshot":
        (tmp_path / "clean-shutdown").unlink()
    else:
        for path in last.parent.glob("*.snapshot"):
            path.unlink()
    if harm == "rotten batch":
        flip(last, last.stat().st_size - 20)
    for segment in log.segments[-1:] if harm == "missing segment" else log.segments if harm == "missing segments" else ():
        (tmp_path / segment.path).unlink()
    written = _bytes_of_logs(tmp_path)
    if before == "a start":
        manager, log = _open(tmp_path)
        assert log.damage is not None
        assert log.ends.log_end_offset == COUNT
        manager.close()
    if before == "the node epoch is lost too":  # as docs/backup.md says
        (tmp_path / "node-epoch").unlink()
        rebuild_lost(str(tmp_path), {})

    (error,) = (finding for finding in errors_in(tmp_path) if finding.path != "checkpoint")
    assert not [finding for finding in check_data_dir(str(tmp_path)) if "torn tail" in finding.message]
    (note,) = rebuild_checkpoint(str(tmp_path))
    assert f"its next record gets offset {COUNT}; it is damaged" in note.message
    assert [finding.offset for finding in errors_in(tmp_path)] == [error.offset]
    manager, log = _open(tmp_path)
    assert log.damage is not None
    assert log.ends.log_end_offset == COUNT
    with pytest.raises(LogDamagedError):
        _append(log)
    manager.close()
    assert _bytes_of_logs(tmp_path) == written, "nothing is cut"
    accept_damaged(str(tmp_path))
    manager, log = _open(tmp_path)
    assert _append(log) == COUNT
    manager.close()


def test_a_tail_for_which_nothing_vouches_is_cut_and_that_is_said(tmp_path: Path) -> None:
    manager, log = _open(tmp_path)
    _fill(log, 3)
    manager.close()
    for path in (tmp_path / "checkpoint", tmp_path / "clean-shutdown", *tmp_path.glob(f"*/{3:020d}.snapshot")):
        path.unlink()
    flip(tmp_path / log.segments[0].path, 2 * SIZE + 20)
    (note,) = rebuild_checkpoint(str(tmp_path))
    assert f"gets offset 2; the next start cuts {SIZE} bytes there, since nothing tells whether they were durable" in note.message
    manager, log = _open(tmp_path)
    assert (log.damage, log.ends.log_end_offset) == (None, 2)
    manager.close()


def _bytes_of_logs(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.glob("*/*.log"))}


@pytest.mark.parametrize("retained", [0, 30], ids=["whole log", "first segments removed"])
@pytest.mark.parametrize("known", [0, COUNT], ids=["empty", "with records"])
def test_older_files_of_the_directory_take_nothing_from_a_newer_log(tmp_path: Path, retained: int, known: int) -> None:
    manager, log = _open(tmp_path)
    _fill(log, known)
    manager.write_checkpoint()
    older = {name: (tmp_path / name).read_bytes() for name in ("checkpoint", "node-epoch")}
    for _ in range(3):
        _fill(log)
        if retained:
            delete_records(manager, log, retained)
            manager.retention_pass()
        manager.close()
        manager, log = _open(tmp_path)
    begin, end = log.ends.log_start_offset, log.ends.log_end_offset
    manager.close()
    for name, data in older.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "clean-shutdown").unlink()
    written = _bytes_of_logs(tmp_path)

    assert errors_in(tmp_path)
    for _ in range(2):
        manager, log = _open(tmp_path)
        assert log.damage is not None
        with pytest.raises(LogDamagedError, match="older than the log"):
            _append(log)
        manager.close()
        assert _bytes_of_logs(tmp_path) == written, "nothing is cut"
    if not retained:  # otherwise the missing segments can be accepted as lost
        for repair in (accept_damaged, give_up_damaged):
            with pytest.raises(DataDirectoryError, match="older than the log: put the newer ones back"):
                repair(str(tmp_path))
        assert _bytes_of_logs(tmp_path) == written

    for name in older:  # as docs/backup.md says
        (tmp_path / name).unlink()
    rebuild_lost(str(tmp_path), {})
    rebuild_checkpoint(str(tmp_path))
    manager, log = _open(tmp_path)
    assert (log.damage, log.ends.log_end_offset) == (None, end)
    assert log.ends.log_start_offset <= begin
    assert len(readable(log)) == end - log.ends.log_start_offset
    assert _append(log) == end
    manager.close()


@pytest.mark.parametrize("harm", ["missing segment", "rotten batch"])
def test_no_cut_of_a_log_that_is_newer_than_its_checkpoint_is_announced(tmp_path: Path, harm: str) -> None:
    """The batches after the gap or the bad batch have a later leader epoch, so they are not the torn tail of a crash."""
    manager, log = _open(tmp_path)
    manager.write_checkpoint()
    older = {name: (tmp_path / name).read_bytes() for name in ("checkpoint", "node-epoch")}
    _fill(log)
    harmed = tmp_path / log.segments[-1].path
    manager.close()
    manager, log = _open(tmp_path)
    _fill(log)
    manager.close()
    for name, data in older.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "clean-shutdown").unlink()
    if harm == "missing segment":
        harmed.unlink()
    else:
        flip(harmed, 20)
    findings = check_data_dir(str(tmp_path))
    assert not [one for one in findings if one.severity is Severity.WARNING and one.path.endswith(".log")]
    assert [one for one in findings if one.severity is Severity.ERROR and "older than the log" in one.message]


def test_accepted_damage_takes_nothing_from_a_topic_that_is_not_in_the_checkpoint(tmp_path: Path) -> None:
    """Its batches have several leader epochs: several runs wrote them, and none could write a checkpoint."""
    manager, log = _open(tmp_path)
    _fill(log, 3)
    manager.write_checkpoint()
    checkpoint = (tmp_path / "checkpoint").read_bytes()
    for _ in range(3):
        _append(first_log(manager, "later"))
        epoch = first_log(manager, "later").leader_epoch
        manager.close()
        (tmp_path / "checkpoint").write_bytes(checkpoint)
        (tmp_path / "clean-shutdown").unlink()
        manager, _ = _open(tmp_path)
    manager.close()
    (tmp_path / "checkpoint").write_bytes(checkpoint)
    (tmp_path / "clean-shutdown").unlink()
    flip(tmp_path / log.segments[0].path, 20)
    accept_damaged(str(tmp_path))
    manager, _ = _open(tmp_path)
    later = first_log(manager, "later")
    assert len(readable(later)) == 3
    assert later.leader_epoch > epoch
    manager.close()


def test_what_stands_behind_accepted_damage_above_a_late_checkpoint_stays(tmp_path: Path) -> None:
    manager, log = _open(tmp_path)
    _fill(log, 2)
    manager.write_checkpoint()
    checkpoint = (tmp_path / "checkpoint").read_bytes()
    _fill(log, 7)
    manager.close()
    (tmp_path / "checkpoint").write_bytes(checkpoint)
    path = tmp_path / log.segments[0].path
    data = path.read_bytes()
    path.write_bytes(data[: 6 * SIZE] + bytes(120) + data[6 * SIZE + 120 :])
    assert accept_damaged(str(tmp_path))
    manager, log = _open(tmp_path)
    assert list(readable(log)) == [0, 1, 2, 3, 4, 5, 7, 8]
    assert _append(log) == 9
    manager.close()


def test_to_give_up_what_follows_takes_nothing_from_before_it(tmp_path: Path) -> None:
    manager, log = _open(tmp_path)
    _fill(log, 8)
    manager.close()
    path = tmp_path / log.segments[0].path
    data = path.read_bytes()
    path.write_bytes(data[: 2 * SIZE] + bytes(120) + data[2 * SIZE + 120 :])
    assert accept_damaged(str(tmp_path))
    flip(path, 6 * SIZE + 120)
    assert give_up_damaged(str(tmp_path))
    for _ in range(2):
        manager, log = _open(tmp_path)
        assert log.damage is None
        assert [offset for offset in readable(log) if offset < 8] == [0, 1, 3, 4, 5]
        assert _append(log) >= 8
        manager.close()


@pytest.mark.parametrize("harm", ["unlink", "rot"])
@pytest.mark.parametrize("missing_bytes", [SIZE, SIZE // 2])
@pytest.mark.parametrize("at", [1, -1], ids=["in the middle", "at the end"])
def test_batches_that_are_gone_count_again_once_the_holes_are_lost(tmp_path: Path, at: int, missing_bytes: int, harm: str) -> None:
    manager, log = _open(tmp_path)
    _fill(log)
    segment = log.segments[at]
    manager.close()
    (tmp_path / "clean-shutdown").unlink()
    path = tmp_path / segment.path
    path.write_bytes(path.read_bytes()[:-missing_bytes])
    lost = segment.next_offset - 1
    accept_damaged(str(tmp_path))
    for _ in range(2):
        manager, log = _open(tmp_path)
        _fill(log, 30)
        manager.close()
    holes = next(tmp_path.glob("*/holes"))
    if harm == "unlink":
        holes.unlink()
    else:
        holes.write_bytes(b"nonsense")
    manager, log = _open(tmp_path)
    assert log.damage is not None
    with pytest.raises(LogDamagedError):
        log.look_ups.offset_for_timestamp(START_WALL_MS + 1)
    with pytest.raises(LogDamagedError):
        list(read_batches(log, lost))
    manager.close()


@pytest.mark.parametrize("is_power_cut", [False, True], ids=["kill", "power cut"])
@pytest.mark.parametrize("repair", [accept_damaged, give_up_damaged])
def test_a_repair_that_is_killed_anywhere_can_be_repeated(monkeypatch: pytest.MonkeyPatch, repair: Any, is_power_cut: bool) -> None:
    whole = MemoryFiles()
    manager, log = open_log(whole, **SMALL)
    _fill(log)
    manager.write_checkpoint()
    checkpoint = whole.read_file("checkpoint")
    _fill(log, 15)
    manager.close()
    whole.write_file("checkpoint", checkpoint)
    for offset in (13, 50):
        segment = next(segment for segment in reversed(log.segments) if segment.base_offset <= offset)
        whole.flip_bit(segment.path, ((offset - segment.base_offset) * SIZE + 20) * 8)
    for number in range(1, 200):
        files = whole.copy()
        monkeypatch.setattr(doctor, "RealFiles", lambda path, must_exist, files=files: files)
        is_through = not _killed(files, number, lambda: repair(""))
        if is_power_cut:
            files.power_cut(random.Random(number), any_subset=True)
        else:
            files.kill()
        if number % 2:  # a broker ran in between
            manager, _ = open_manager(files, **SMALL)
            assert first_log(manager).ends.log_end_offset == COUNT + 15
            files.kill()
        for _ in range(2):
            repair("")
            files.kill()
        log = first_log(open_manager(files, **SMALL)[0])
        assert (log.damage, log.ends.log_end_offset, _append(log)) == (None, COUNT + 15, COUNT + 15)
        log.flush()
        lost = {13, 50} if repair is accept_damaged else set(range(13, COUNT + 15))
        assert list(readable(log)) == [n for n in range(COUNT + 16) if n not in lost]
        if is_through:
            return
    raise AssertionError("the repair has no end")


def _killed(files: MemoryFiles, number: int, call: Callable[[], object]) -> bool:
    left = [number]

    def hook(operation: str, path: str) -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise Killed

    files.hook = hook
    try:
        call()
    except Killed:
        return True
    finally:
        files.hook = None
    return False
