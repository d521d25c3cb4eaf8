"""Where a log continues after a bad batch, even if a record's value holds forged batches.

Forged batches have correct CRCs for the partition, and offsets that a client can predict. None may ever be served, wherever the
batch around them rots. All whole batches of the log must be served.
"""

from __future__ import annotations

import pytest

from brokerd.ids import TopicIdPartition
from brokerd.partition.partition import Partition
from brokerd.record.header import crc_seed, decode_header
from brokerd.storage.files import write_all
from brokerd.storage.resync import Resync
from tests.support.build import append, first_log, open_log, open_manager, raw_batch, readable
from tests.support.clock import START_WALL_MS
from tests.support.files import MemoryFiles
from tests.support.records import stamped

BEFORE, OUTER_RECORDS, BEHIND = 3, 10, 4
OUTER = BEFORE
END = BEFORE + OUTER_RECORDS + BEHIND
EVIL = b"forged!!" * 4


def forged(tp: TopicIdPartition, base_offset: int, *, count: int = 1) -> bytes:
    """A forged batch, as the broker would have stored it at this offset."""
    batch = raw_batch(EVIL, count=count)
    fields = {"base_offset": base_offset, "append_timestamp": START_WALL_MS, "leader_epoch": 1}
    return stamped(batch.header_bytes, crc_seed(tp), **fields) + EVIL


def _chain(tp: TopicIdPartition, first: int, until: int) -> bytes:
    return b"".join(forged(tp, offset) for offset in range(first, until))


FORGERIES = {
    "far ahead": lambda tp: b"x" * 64 + forged(tp, 1_000) + b"y" * 64,
    "fits, in the middle": lambda tp: b"x" * 64 + _chain(tp, OUTER + 5, OUTER + 10) + b"y" * 64,
    "fits, to the end": lambda tp: b"x" * 64 + _chain(tp, OUTER + 5, OUTER + 10),
    "instead of what follows": lambda tp: b"x" * 64 + _chain(tp, OUTER + 10, OUTER + 13) + b"y" * 64,
    "instead of all that follows": lambda tp: b"x" * 64 + _chain(tp, OUTER + 10, END),
    "one that takes all offsets": lambda tp: b"x" * 64 + forged(tp, OUTER + 1, count=END - OUTER - 1),
    "one in front": lambda tp: forged(tp, OUTER + 1, count=9) + b"y" * 640,
    "many": lambda tp: b"".join(forged(tp, OUTER + 1 + n) + b"z" * 8 for n in range(12)),
}


def _log(forgery: str, *, is_sealed: bool) -> tuple[MemoryFiles, Partition, int]:
    """The files of a killed broker, the log, and the position of the batch that contains the forged ones."""
    files = MemoryFiles()
    manager, log = open_log(files, log_segment_bytes=1 << 20)
    for n in range(BEFORE):
        append(log, b"before%02d" % n)
    position = log.core.size_bytes
    append(log, FORGERIES[forgery](log.tp), count=OUTER_RECORDS)
    for n in range(BEHIND):
        append(log, b"behind%02d" % n)
    log.flush()
    if is_sealed:
        append(log, b"new segment", now_ms=START_WALL_MS + 700_000_000)
        log.flush()
    manager.write_checkpoint()
    files.kill()
    return files, log, position


def _assert_true(files: MemoryFiles, *, is_sealed: bool, is_outer_gone: bool = True) -> None:
    log = first_log(open_manager(files, log_segment_bytes=1 << 20)[0])
    found = readable(log)
    whole = {n: b"before%02d" % n for n in range(BEFORE)}
    whole |= {BEFORE + OUTER_RECORDS + n: b"behind%02d" % n for n in range(BEHIND)}
    if is_sealed:
        whole[END] = b"new segment\0\0\0\0\0"
    if not is_outer_gone:
        found.pop(OUTER, None)
    assert found == whole
    assert log.ends.high_watermark == END + is_sealed


@pytest.mark.parametrize("is_sealed", [False, True], ids=["active", "sealed"])
@pytest.mark.parametrize("forgery", FORGERIES)
def test_no_flipped_bit_serves_what_is_forged(forgery: str, is_sealed: bool) -> None:
    files, log, position = _log(forgery, is_sealed=is_sealed)
    path = log.segments[0].path
    for bit in (*range(0, 96 * 8, 29), 66, 450, 97 * 8, 200 * 8):
        rotten = files.copy()
        rotten.flip_bit(path, position * 8 + bit)
        _assert_true(rotten, is_sealed=is_sealed)


@pytest.mark.parametrize("forgery", [name for name in FORGERIES if name != "fits, to the end"])
@pytest.mark.parametrize("is_sealed", [False, True], ids=["active", "sealed"])
def test_a_header_that_is_wiped_out_serves_nothing_that_is_forged(forgery: str, is_sealed: bool) -> None:
    files, log, position = _log(forgery, is_sealed=is_sealed)
    path = log.segments[0].path
    data = bytearray(files.read_file(path))
    data[position : position + 96] = bytes(96)
    files.write_file(path, bytes(data))
    _assert_true(files, is_sealed=is_sealed)


@pytest.mark.parametrize("forgery", FORGERIES)
def test_rot_in_two_neighbours_serves_nothing_that_is_forged(forgery: str) -> None:
    files, log, position = _log(forgery, is_sealed=False)
    path = log.segments[0].path
    behind = position + decode_header(files.read_file(path)[position : position + 96]).size
    for at in (0, 9, 20, 57, 90, 130):
        for other in (1, 9, 20, 57, 97):
            rotten = files.copy()
            rotten.flip_bit(path, (position + at) * 8)
            rotten.flip_bit(path, (behind + other) * 8)
            found = readable(first_log(open_manager(rotten)[0]))
            assert EVIL not in found.values(), (at, other)
            assert {0, 1, 2} <= set(found)


def test_a_start_after_a_clean_stop_serves_nothing_that_is_forged() -> None:
    for forgery in FORGERIES:
        files, log, position = _log(forgery, is_sealed=True)
        path = log.segments[0].path
        manager, _ = open_manager(files, log_segment_bytes=1 << 20)
        manager.close()
        for bit in range(0, 96 * 8, 53):
            rotten = files.copy()
            rotten.flip_bit(path, position * 8 + bit)
            _assert_true(rotten, is_sealed=True)


def test_only_what_the_disk_cannot_read_is_no_batch(files: MemoryFiles) -> None:
    file = files.create("log")

    def hook(_operation: str, _path: str) -> None:
        raise PermissionError

    files.hook = hook
    with pytest.raises(PermissionError):
        Resync(file, 0, end=1_000).find(0, 0)


def test_a_file_that_is_shorter_than_its_segment_has_no_next_batch(files: MemoryFiles) -> None:
    """A cut may shorten a file under its reader, or a file may have lost its end."""
    tp = TopicIdPartition(b"t" * 16, 0)
    first, second, third = (forged(tp, offset) for offset in range(3))
    rotten = bytearray(second)
    rotten[12] ^= 1  # in header_crc: the header's length is still right
    file = files.create("log")
    data = first + bytes(rotten)
    write_all(file, [data], 0, len(data))
    end = len(data) + len(third)
    search = Resync(file, crc_seed(tp), end=end)
    assert search.find(len(first), 1) is None
    write_all(file, [third], len(data), len(third))
    found = search.find(len(first), 1)
    assert found is not None
    assert found.position == len(data)
