"""Batches that an operator takes out: readers skip them, and nothing else changes.

Each log here has 20 batches of two records in several segments, all from producer 7. One batch is poison: its CRCs are correct,
but it cannot be decoded.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from brokerd.datadir.node_state import join_cluster
from brokerd.errors import DataDirectoryError, DuplicateSequenceError
from brokerd.ids import ProducerIdAndEpoch
from brokerd.offline.doctor import accept_damaged, check_data_dir, take_out
from brokerd.offline.partition_check import Severity
from brokerd.partition.log_ends import LogEnd
from brokerd.partition.partition import Partition
from brokerd.record.batch import RecordBatch
from brokerd.storage.files import RealFiles
from tests.support.build import damaged_ranges, delete_records, first_log, open_manager, read_batches
from tests.support.clock import START_WALL_MS
from tests.support.findings import flip
from tests.support.log_manager import LogManager
from tests.support.logged import messages_of
from tests.support.records import TIMESTAMP_MS, header_of, key_values, new_batch, poisoned

SMALL: dict[str, Any] = {"log_segment_bytes": 4_096, "log_index_interval_bytes": 300}
COUNT = 20
POISON = 8  # the first offset of batch number 4
PRODUCER = ProducerIdAndEpoch(7, 0)


def _batch(log: Partition, n: int) -> RecordBatch:
    # The poison claims the newest timestamp.
    timestamp_ms = TIMESTAMP_MS + (50_000 if n == POISON // 2 else 1_000 * n)
    columns = key_values([b"%04d" % n * 20] * 2, timestamp_ms=timestamp_ms)
    fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 2 * n}
    fields |= {"base_timestamp": timestamp_ms, "max_timestamp": timestamp_ms + 1}
    data = new_batch(columns, "none", log.tp, **fields)
    if n == POISON // 2:
        data = poisoned(data, tp=log.tp)
    return RecordBatch(header_of(data), data)


def _open(root: Path) -> tuple[LogManager, Partition]:
    manager, report = open_manager(RealFiles(str(root)), **SMALL)
    assert not report.damaged
    assert not report.cut_bytes
    return manager, first_log(manager)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The data directory after a clean stop."""
    manager, log = _open(tmp_path)
    for n in range(COUNT):
        log.append(_batch(log, n), now_wall_ms=START_WALL_MS)
    log.flush()
    manager.write_checkpoint()
    manager.close()
    return tmp_path


def _seen(log: Partition, offset: int | None = None) -> list[int]:
    return [batch.header.base_offset for batch in read_batches(log, offset)]


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("at", [POISON, POISON + 1])
def test_readers_go_past_a_batch_that_is_taken_out(root: Path, at: int, is_clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    if not is_clean:
        (root / "clean-shutdown").unlink()
    (note,) = take_out(str(root), "t-0", at)
    assert (note.severity, note.offset) == (Severity.NOTE, POISON)
    assert f"offsets {POISON} to {POISON + 1}" in note.message
    with caplog.at_level(logging.WARNING):
        manager, log = _open(root)
    (warning,) = messages_of(caplog, "brokerd.partition")
    assert f"t-0: offsets {POISON} to {POISON + 1} are taken out" in warning
    others = [2 * n for n in range(COUNT) if 2 * n != POISON]
    assert _seen(log) == others
    assert _seen(log, POISON) == _seen(log, POISON + 1) == [offset for offset in others if offset > POISON]
    assert (log.ends.log_start_offset, log.ends.log_end_offset) == (0, 2 * COUNT)
    with pytest.raises(DuplicateSequenceError):
        log.append(_batch(log, POISON // 2), now_wall_ms=START_WALL_MS)
    assert log.append(_batch(log, COUNT), now_wall_ms=START_WALL_MS).base_offset == 2 * COUNT
    manager.close()


def test_a_batch_at_the_end_is_waited_behind(root: Path) -> None:
    end = 2 * COUNT
    take_out(str(root), "t-0", end - 1)
    manager, log = _open(root)
    found = log.read(end - 2, below=LogEnd.HIGH_WATERMARK, max_bytes=1 << 20, cached_only=False)
    assert (found.chunks, found.next_offset) == ([], end)
    # Its retry counts as a duplicate, and its offsets are not reused.
    repeated = log.append(_batch(log, COUNT - 1), now_wall_ms=START_WALL_MS)
    assert (repeated.base_offset, repeated.is_duplicate) == (end - 2, True)
    assert log.append(_batch(log, COUNT), now_wall_ms=START_WALL_MS).base_offset == end
    log.flush()
    assert _seen(log, end - 2) == [end]
    manager.close()


def test_times_are_looked_up_among_what_is_left(root: Path) -> None:
    manager, log = _open(root)
    assert log.look_ups.offset_for_timestamp(TIMESTAMP_MS + 40_000) == (POISON, TIMESTAMP_MS + 50_000)
    manager.close()
    take_out(str(root), "t-0", POISON)
    manager, log = _open(root)
    assert log.look_ups.offset_for_timestamp(TIMESTAMP_MS + 3_500) == (POISON + 2, TIMESTAMP_MS + 5_000)
    assert log.look_ups.offset_for_timestamp(TIMESTAMP_MS + 40_000) is None
    manager.close()


@pytest.mark.parametrize("is_committed", [False, True])
def test_the_newest_records_are_counted_among_what_is_left(root: Path, is_committed: bool) -> None:
    end = 2 * COUNT
    for at in (end - 4, end - 8, end - 10):
        take_out(str(root), "t-0", at)
    manager, log = _open(root)
    left = [n for n in range(end) if n not in (end - 4, end - 3, *range(end - 10, end - 6))]
    for count in range(1, len(left) + 1):
        assert log.look_ups.newest_offset(count, is_committed=is_committed) == left[-count], count
    manager.close()


def test_retention_passes_it_and_several_can_be_taken_out(root: Path) -> None:
    take_out(str(root), "t-0", POISON)
    for _ in range(2):
        take_out(str(root), "t-0", POISON + 2)
    manager, log = _open(root)
    assert _seen(log, 4) == [4, 6, *range(POISON + 4, 2 * COUNT, 2)]
    delete_records(manager, log, 2 * COUNT - 1)
    manager.retention_pass()
    assert log.segments[0].base_offset > POISON
    manager.close()
    assert not check_data_dir(str(root))


def test_the_doctor_says_what_cannot_be_decoded_and_what_is_taken_out(root: Path) -> None:
    assert not check_data_dir(str(root))
    (found,) = check_data_dir(str(root), decodes_records=True)
    assert (found.severity, found.partition, found.offset) == (Severity.ERROR, "t-0", POISON)
    assert f"`--take-out t-0@{POISON}`" in found.message
    take_out(str(root), "t-0", POISON)
    (noted,) = check_data_dir(str(root), decodes_records=True)
    assert (noted.severity, noted.offset) == (Severity.NOTE, POISON)
    assert "taken out" in noted.message


def test_rot_in_a_batch_that_is_taken_out_is_none_and_other_damage_keeps_its_own_kind(root: Path) -> None:
    (root / "clean-shutdown").unlink()
    take_out(str(root), "t-0", POISON)
    manager, log = _open(root)
    places = [(root / segment.path, segment.base_offset) for segment in log.segments]
    size = _batch(log, 0).header.size
    manager.close()
    (root / "clean-shutdown").unlink()
    for offset in (2, POISON):
        path, base = max((place for place in places if place[1] <= offset), key=lambda place: place[1])
        flip(path, (offset - base) // 2 * size + 130)
    (accepted,) = accept_damaged(str(root))
    assert accepted.offset == 2
    manager, log = _open(root)
    assert _seen(log, 4) == [offset for offset in range(4, 2 * COUNT, 2) if offset != POISON]
    assert [damaged.is_taken_out for damaged in damaged_ranges(log) if damaged.reason == "a hole"] == [False]
    manager.close()


@pytest.mark.parametrize(
    ("partition", "offset", "said"),
    [
        ("t-1", 0, "no partition 't-1'"),
        ("u-0", 0, "no partition 'u-0'"),
        ("t-0", 2 * COUNT, f"offsets 4 to {2 * COUNT - 1}"),
        ("t-0", 3, f"offsets 4 to {2 * COUNT - 1}"),
    ],
)
def test_what_is_not_there_cannot_be_taken_out(root: Path, partition: str, offset: int, said: str) -> None:
    manager, log = _open(root)
    delete_records(manager, log, 4)
    manager.close()
    with pytest.raises(DataDirectoryError, match=said):
        take_out(str(root), partition, offset)
    assert not list(root.glob("*/holes"))


def test_in_a_cluster_nothing_is_taken_out_that_another_copy_may_have(root: Path) -> None:
    """The poison is the same in all copies, so it may be taken out."""
    files = RealFiles(str(root))
    join_cluster(files, 3, "prod")
    files.close()
    with pytest.raises(DataDirectoryError, match="copies of t-0: nothing was changed"):
        take_out(str(root), "t-0", 0)
    assert take_out(str(root), "t-0", POISON)
    assert take_out(str(root), "t-0", 0, ["t-0"])


def test_damage_cannot_be_taken_out(root: Path) -> None:
    flip(next(root.glob("*/00000000000000000000.log")), 20)
    with pytest.raises(DataDirectoryError, match="--accept-damaged"):
        take_out(str(root), "t-0", 0)
