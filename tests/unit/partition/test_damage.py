"""Damage stops a log unless it lies below the log start or was accepted. The batches after it stay readable.

Most logs here have 40 batches of one record in several segments. Rot is one flipped bit or a range of zeroed bytes.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from brokerd.datadir.checkpoint import CHECKPOINT_KIND, decode_checkpoint
from brokerd.errors import LogDamagedError, StorageError
from brokerd.offline import doctor
from brokerd.offline.doctor import accept_damaged, check_data_dir, give_up_damaged, rebuild_checkpoint
from brokerd.offline.partition_check import Severity
from brokerd.partition.log_ends import LogEnd
from brokerd.partition.partition import Partition
from brokerd.storage.checksummed_file import read_document
from brokerd.storage.damage import DamagedRange
from brokerd.storage.files import Buffer, RealFiles
from brokerd.storage.resync import Resync
from brokerd.storage.segment import Segment
from tests.support.build import (
    append,
    damaged_ranges,
    delete_records,
    first_log,
    open_log,
    open_manager,
    payloads,
    read_batches,
    readable,
)
from tests.support.files import MemoryFile, MemoryFiles, failing
from tests.support.findings import errors_in, flip
from tests.support.log_manager import LogManager
from tests.support.wait import DEADLINE_S

SMALL: dict[str, Any] = {"log_segment_bytes": 4_096, "log_index_interval_bytes": 300}
COUNT = 40
SIZE = 96 + 304


def _payload(n: int) -> bytes:
    return b"%04d" % n * 76


def _filled(files: MemoryFiles | RealFiles, **settings: object) -> tuple[LogManager, Partition]:
    manager, log = open_log(files, **{**SMALL, **settings})
    for n in range(COUNT):
        append(log, _payload(n))
    log.flush()
    manager.write_checkpoint()
    return manager, log


def _place(log: Partition, offset: int) -> tuple[str, int]:
    segment = next(segment for segment in reversed(log.segments) if segment.base_offset <= offset)
    return segment.path, (offset - segment.base_offset) * SIZE


def _rot(files: MemoryFiles, log: Partition, offset: int, at: int = 120) -> None:
    path, position = _place(log, offset)
    files.flip_bit(path, (position + at) * 8)


def _rot_file(root: Path, log: Partition, offset: int, at: int = 120) -> None:
    path, position = _place(log, offset)
    flip(root / path, position + at)


@pytest.mark.parametrize("at", [9, 20, 120], ids=["length", "base offset", "payload"])
@pytest.mark.parametrize("start", [15, 19, 20, 23])
def test_rot_below_the_log_start_is_no_damage(files: MemoryFiles, start: int, at: int) -> None:
    manager, log = _filled(files)
    delete_records(manager, log, start)
    for offset in (11, 13, 14):
        _rot(files, log, offset, at)
    files.kill()
    manager, report = open_manager(files, **SMALL)
    log = first_log(manager)
    assert not report.damaged
    assert (log.ends.log_start_offset, log.ends.high_watermark) == (start, COUNT)
    assert list(readable(log)) == list(range(start, COUNT))
    assert append(log, b"goes on") == COUNT
    log.flush()
    manager.retention_pass()
    assert log.segments[0].base_offset == start // 10 * 10


def test_rot_below_the_log_start_is_met_by_readers_of_a_clean_start_and_is_none(files: MemoryFiles) -> None:
    manager, log = _filled(files)
    manager.close()
    manager, log = open_log(files, **SMALL)
    delete_records(manager, log, 15)
    for offset in (11, 13):
        _rot(files, log, offset, 20)
    for segment in log.segments:
        segment.index = None
        segment.remove_index()
    assert list(readable(log)) == list(range(15, COUNT))
    assert log.look_ups.offset_for_timestamp(0) is not None
    assert append(log, b"goes on") == COUNT


def test_damage_that_the_log_start_passes_stops_nothing_any_more(files: MemoryFiles) -> None:
    _, log = _filled(files)
    _rot(files, log, 13, 20)
    log.segments[1].index = None
    log.segments[1].remove_index()
    with pytest.raises(LogDamagedError):
        payloads(log, 13)
    assert log.damage is not None
    assert list(readable(log)) == [n for n in range(COUNT) if n != 13]
    log.set_log_start(14)
    assert append(log, b"goes on") == COUNT


def test_damage_that_the_log_start_cuts_is_said_from_there_on(files: MemoryFiles) -> None:
    manager, log = open_log(files, **SMALL)
    for n in range(8):
        append(log, _payload(n), count=10)
    log.flush()
    delete_records(manager, log, 25)
    files.flip_bit(log.segments[0].path, (2 * SIZE + 20) * 8)
    files.kill()
    log = first_log(open_manager(files, **SMALL)[0])
    assert "offsets 25 to 29 were durable" in str(log.damage)
    with pytest.raises(LogDamagedError):
        payloads(log, 25)
    assert len(payloads(log, 30)) == 5


@pytest.mark.parametrize("offsets", [(13, 13), (13, 23)], ids=["the same", "two"])
def test_damage_that_two_threads_find_at_once_is_known_once_each(offsets: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    _, log = _filled(files := MemoryFiles())
    for offset in set(offsets):
        _rot(files, log, offset, 20)
    both_search, both_report = threading.Barrier(2), threading.Barrier(2)
    find, damage_found = Resync.find, log.core.damage_found
    meetings: list[DamagedRange] = []

    def search(*args: Any) -> Any:
        both_search.wait(DEADLINE_S)
        return find(*args)

    def report(damaged: DamagedRange) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            both_report.wait(0.1)
            meetings.append(damaged)
        damage_found(damaged)

    monkeypatch.setattr(Resync, "find", search)
    monkeypatch.setattr(log.core, "damage_found", report)
    with ThreadPoolExecutor(2) as pool:
        for error in [found.exception() for found in [pool.submit(payloads, log, offset) for offset in offsets]]:
            assert isinstance(error, LogDamagedError)
    assert not meetings, "two reports at once may lose one"
    assert sorted(damaged.first_offset for damaged in log.health.damaged) == sorted(set(offsets))


@pytest.mark.parametrize("at", range(0, 96, 8))
def test_neighbours_of_several_rotten_places_stay_readable(files: MemoryFiles, at: int) -> None:
    _, log = _filled(files, log_segment_bytes=1 << 20)
    rotten = [3, 4, 8, 20, 39]
    for offset in rotten:
        _rot(files, log, offset, at if offset == 8 else 120 if offset == 4 else 30)
    files.kill()
    log = first_log(open_manager(files, **SMALL)[0])
    assert list(readable(log)) == [n for n in range(COUNT) if n not in rotten]


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed segment", "active segment"])
def test_damage_is_named_on_a_file_system_that_became_read_only(files: MemoryFiles, is_closed: bool) -> None:
    """The failed removal of an index, a derived file, must not become a StorageError, which clients retry for ever."""
    _, log = _filled(files)
    offset = 13 if is_closed else log.segments[-1].base_offset + 1
    _rot(files, log, offset, 20)
    files.hook = failing("unlink", code=errno.EROFS)
    for _ in range(2):
        with pytest.raises(LogDamagedError, match=f"offsets {offset} to {offset} were durable and are damaged"):
            payloads(log, offset)
    assert log.damage is not None
    assert list(readable(log)) == [n for n in range(COUNT) if n != offset]


def test_what_stands_behind_a_page_that_is_wiped_out_is_found(files: MemoryFiles) -> None:
    _, log = _filled(files, log_segment_bytes=1 << 20)
    data = bytearray(files.read_file(log.segments[0].path))
    data[2_010:4_058] = bytes(2_048)
    data[10_010:10_100] = bytes(90)
    files.write_file(log.segments[0].path, bytes(data))
    files.kill()
    log = first_log(open_manager(files, **SMALL)[0])
    assert [damaged[:2] for damaged in damaged_ranges(log)] == [(5, 11), (25, 26)]
    assert list(readable(log)) == [n for n in range(COUNT) if n not in (5, 6, 7, 8, 9, 10, 25)]


@pytest.fixture
def bad_page(monkeypatch: pytest.MonkeyPatch) -> MemoryFiles:
    """The files of a killed broker. The disk cannot read the second page of the only segment."""
    files = MemoryFiles()
    _, log = _filled(files, log_segment_bytes=1 << 20)
    bad, read = log.segments[0].path, MemoryFile.pread
    files.kill()

    def pread(self: MemoryFile, size: int, position: int, *, nowait: bool = False) -> Buffer:
        if self._path == bad and position < 8_192 and position + size > 4_096:
            raise OSError(errno.EIO, "Input/output error")
        return read(self, size, position, nowait=nowait)

    monkeypatch.setattr(MemoryFile, "pread", pread)
    monkeypatch.setattr(doctor, "RealFiles", lambda path, must_exist: files)
    return files


def test_what_the_disk_cannot_read_is_damage_and_its_neighbours_are_served(bad_page: MemoryFiles) -> None:
    log = first_log(open_manager(bad_page, **SMALL)[0])
    assert [damaged[:2] for damaged in damaged_ranges(log)] == [(10, 21)]
    assert [batch.header.base_offset for batch in read_batches(log, 21)] == [*range(21, COUNT)]


def test_one_large_read_ends_before_what_the_disk_cannot_read(bad_page: MemoryFiles) -> None:
    log = first_log(open_manager(bad_page, **SMALL)[0])
    for known in (True, False):
        if not known:
            log.core.health.damaged = ()
        assert log.read(0, below=LogEnd.HIGH_WATERMARK, max_bytes=1 << 20, cached_only=False).next_offset == 10
        assert log.read(7, below=LogEnd.HIGH_WATERMARK, max_bytes=1 << 20, cached_only=False).next_offset == 10
        with pytest.raises(LogDamagedError if known else StorageError):
            log.read(10, below=LogEnd.HIGH_WATERMARK, max_bytes=1 << 20, cached_only=False)


def test_what_the_disk_cannot_read_is_named_and_can_be_accepted_as_lost(bad_page: MemoryFiles) -> None:
    (error,) = (finding for finding in check_data_dir("") if finding.severity is Severity.ERROR)
    assert "offsets 10 to 20 were durable and are damaged: reading failed" in error.message
    accept_damaged("")
    bad_page.kill()
    log = first_log(open_manager(bad_page, **SMALL)[0])
    assert append(log, b"goes on") == COUNT


@pytest.mark.parametrize("rotten", [[3], [13, 14], [9], [30, 38], [39], [38, 39]])
def test_what_is_accepted_is_a_hole_and_all_else_lives_on(tmp_path: Path, rotten: list[int]) -> None:
    manager, log = _filled(RealFiles(str(tmp_path)))
    manager.close()
    for offset in rotten:
        _rot_file(tmp_path, log, offset, 20)
    (tmp_path / "clean-shutdown").unlink()
    manager, report = open_manager(RealFiles(str(tmp_path)), **SMALL)
    assert report.damaged
    manager.close()
    notes = accept_damaged(str(tmp_path))
    assert [(note.severity, note.offset) for note in notes] == [
        (Severity.NOTE, offset) for offset in rotten if offset - 1 not in rotten
    ]
    for _ in range(3):
        manager, report = open_manager(RealFiles(str(tmp_path)), **SMALL)
        log = first_log(manager)
        assert not report.damaged
        assert list(readable(log)) == [n for n in range(log.ends.high_watermark) if n not in rotten]
        with pytest.raises(LogDamagedError, match="accepted as lost, the log continues at offset") as told:
            payloads(log, rotten[0])
        assert told.value.resume_offset == next(n for n in range(rotten[0], COUNT + 1) if n not in rotten)
        assert append(log, b"goes on") == log.ends.high_watermark
        log.flush()
        assert log.look_ups.offset_for_timestamp(0) is not None
        manager.close()
        assert not errors_in(tmp_path)
    assert accept_damaged(str(tmp_path)) == []
    assert log.ends.high_watermark == COUNT + 3


def test_retention_passes_a_hole(tmp_path: Path) -> None:
    manager, log = _filled(RealFiles(str(tmp_path)))
    _rot_file(tmp_path, log, 13, 20)
    manager.close()
    accept_damaged(str(tmp_path))
    manager, _ = open_manager(RealFiles(str(tmp_path)), log_retention_bytes=4_096, **SMALL)
    assert manager.retention_pass() > 1
    assert damaged_ranges(first_log(manager)) == ()
    manager.close()


@pytest.mark.parametrize("repair", [accept_damaged, give_up_damaged])
def test_a_repair_leaves_the_log_start_and_the_end_where_they_are(tmp_path: Path, repair: Any) -> None:
    manager, log = _filled(RealFiles(str(tmp_path)))
    delete_records(manager, log, 15)
    _rot_file(tmp_path, log, 11, 20)
    manager.close()
    assert repair(str(tmp_path)) == [], "below the log start there is nothing to repair"
    _rot_file(tmp_path, log, 22, 20)
    repair(str(tmp_path))
    manager, report = open_manager(RealFiles(str(tmp_path)), **SMALL)
    log = first_log(manager)
    assert not report.damaged
    assert (log.ends.log_start_offset, log.ends.high_watermark) == (15, COUNT)
    lost = range(22, 23 if repair is accept_damaged else COUNT)
    assert list(readable(log)) == [n for n in range(15, COUNT) if n not in lost]
    assert append(log, b"goes on") == COUNT
    manager.close()


@pytest.mark.parametrize("at", [9, 20, 57, 120])
def test_a_checkpoint_that_is_rebuilt_over_rot_keeps_what_stands_behind_it(tmp_path: Path, at: int) -> None:
    manager, log = _filled(RealFiles(str(tmp_path)))
    manager.close()
    for offset in (13, 33, 35):
        _rot_file(tmp_path, log, offset, at)
    (tmp_path / "checkpoint").unlink()
    rebuild_checkpoint(str(tmp_path))
    manager, report = open_manager(RealFiles(str(tmp_path)), **SMALL)
    log = first_log(manager)
    assert (bool(report.damaged), report.cut_bytes, log.ends.high_watermark) == (True, {}, COUNT)
    assert list(readable(log)) == [n for n in range(COUNT) if n not in (13, 33, 35)]
    manager.close()
    accept_damaged(str(tmp_path))
    manager, report = open_manager(RealFiles(str(tmp_path)), **SMALL)
    assert not report.damaged
    assert append(first_log(manager), b"goes on") == COUNT
    manager.close()


def test_a_hole_file_that_rots_makes_its_damage_count_again(tmp_path: Path) -> None:
    manager, log = _filled(RealFiles(str(tmp_path)))
    _rot_file(tmp_path, log, 13, 20)
    manager.close()
    accept_damaged(str(tmp_path))
    next(tmp_path.glob("*/holes")).write_bytes(b"nonsense")
    manager, report = open_manager(RealFiles(str(tmp_path)), **SMALL)
    assert len(report.damaged) == 1
    manager.close()


@pytest.mark.parametrize("is_cut", [True, False], ids=["cut", "removed"])
def test_a_tail_that_is_gone_is_said_beside_other_damage(files: MemoryFiles, is_cut: bool) -> None:
    _, log = _filled(files)
    files.kill()
    _rot(files, log, 13)
    last = log.segments[-1]
    files.write_file(last.path, files.read_file(last.path)[:-1]) if is_cut else files.remove_file(last.path)
    _, report = open_manager(files, **SMALL)
    assert report.damaged
    missing = {COUNT - 1} if is_cut else set(range(last.base_offset, COUNT))
    files.kill()
    assert list(readable(first_log(open_manager(files, **SMALL)[0]))) == [n for n in range(COUNT) if n not in {13, *missing}]


def test_a_payload_that_a_copy_shows_to_be_rotten_stops_the_log_at_the_next_start_too(
    files: MemoryFiles, caplog: pytest.LogCaptureFixture
) -> None:
    manager, log = _filled(files)
    log.core.flushes.recovery_point = COUNT  # a start does not check payloads below it
    _rot(files, log, 15)
    assert list(readable(log)) == list(range(COUNT)), "readers check it themselves"
    copy = manager.partitions.replica(log.tp)
    assert copy is not None
    assert copy.read_checked(0, below=LogEnd.LOG_END, max_bytes=SIZE).next_offset == 1, "the first batch is whole"
    for offset in (0, 15):
        with pytest.raises(LogDamagedError, match="offsets 15 to 15"):
            copy.read_checked(offset, below=LogEnd.LOG_END, max_bytes=1 << 20)
    assert len(caplog.records) == 1, "each damage is logged once"
    with pytest.raises(LogDamagedError):
        append(log, b"refused")
    assert list(readable(log)) == [offset for offset in range(COUNT) if offset != 15]
    manager.close()
    manager, report = open_manager(files, **SMALL)
    assert [str(tp) for tp in report.damaged] == ["t-0"]
    with pytest.raises(LogDamagedError):
        append(first_log(manager), b"refused")


def test_a_rotten_payload_stops_the_log_though_the_disk_does_not_tell_its_place(
    files: MemoryFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, log = _filled(files)
    _rot(files, log, 15)

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Segment, "scan", fails)
    with pytest.raises(LogDamagedError, match="offsets 15 to 15"):
        log.read_checked(15, below=LogEnd.LOG_END, max_bytes=1)
    assert log.is_stopped
    (said,) = (record.message for record in caplog.records)
    assert said.endswith("run `brokerd doctor` for details")


def test_a_payload_that_a_look_up_finds_to_be_rotten_stops_the_log(files: MemoryFiles, caplog: pytest.LogCaptureFixture) -> None:
    _, log = _filled(files)
    _rot(files, log, 0)
    for _ in range(2):
        with pytest.raises(LogDamagedError, match="offsets 0 to 0"):
            log.look_ups.offset_for_timestamp(0)
    (said,) = (record.message for record in caplog.records)
    assert f"(in {log.segments[0].path} from byte 0 on)" in said
    with pytest.raises(LogDamagedError):
        append(log, b"refused")


def test_a_rotten_payload_that_is_accepted_as_lost_stops_nothing_when_a_look_up_meets_it(tmp_path: Path) -> None:
    manager, log = _filled(RealFiles(str(tmp_path)))
    manager.close()
    _rot_file(tmp_path, log, 13)
    accept_damaged(str(tmp_path))
    manager, log = open_log(RealFiles(str(tmp_path)), **SMALL)
    delete_records(manager, log, 13)
    with pytest.raises(LogDamagedError, match="accepted as lost, the log continues at offset 14"):
        log.look_ups.offset_for_timestamp(0)
    assert append(log, b"goes on") == COUNT


@pytest.mark.parametrize("at", [20, 120], ids=["header", "payload"])
def test_what_is_accepted_as_lost_is_not_among_the_newest_records(tmp_path: Path, at: int) -> None:
    """Otherwise an operator who trims would keep fewer records than requested."""
    manager, log = _filled(RealFiles(str(tmp_path)))
    manager.close()
    for offset in (COUNT - 2, COUNT - 5):
        _rot_file(tmp_path, log, offset, at)
    accept_damaged(str(tmp_path))
    log = first_log(open_manager(RealFiles(str(tmp_path)), **SMALL)[0])
    left = [n for n in range(COUNT) if n not in (COUNT - 2, COUNT - 5)]
    assert [log.look_ups.newest_offset(count) for count in range(1, len(left) + 1)] == left[::-1]


@pytest.mark.parametrize("at", [20, 120], ids=["header", "payload"])
def test_what_a_reader_has_found_is_in_the_next_checkpoint(files: MemoryFiles, at: int) -> None:
    manager, log = _filled(files)
    log.core.flushes.recovery_point = COUNT
    manager.write_checkpoint()
    _rot(files, log, 15, at)
    with pytest.raises(LogDamagedError):
        log.read_checked(15, below=LogEnd.LOG_END, max_bytes=1)
    manager.write_checkpoint()
    _, entries = decode_checkpoint(read_document(files, "checkpoint", CHECKPOINT_KIND))
    assert entries[log.tp].recovery_point == 15, "the next start checks from there"


def test_damage_that_a_reader_finds_is_logged_once(files: MemoryFiles, caplog: pytest.LogCaptureFixture) -> None:
    _, log = _filled(files)
    _rot(files, log, 15, at=20)
    for _ in range(2):
        readable(log)
    (said,) = (record.message for record in caplog.records)
    assert said.startswith("t-0: offsets 15 to 15 were durable and are damaged")
    assert "reassign" not in said, "there is no other copy"
