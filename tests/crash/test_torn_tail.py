"""One log, cut at every byte or flipped at every bit: the results of recovery, readers and the doctor."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from brokerd.errors import Fate, LogDamagedError
from brokerd.partition.partition import Partition
from brokerd.record.schema import payload_crc
from brokerd.storage.names import CLEAN_SHUTDOWN
from tests.support.build import append, damaged_ranges, first_log, open_log, open_manager, payloads, read_batches
from tests.support.files import MemoryFiles
from tests.support.findings import errors_in
from tests.support.scale import TEST_SCALE

PAYLOADS = [bytes([65 + n]) * size for n, size in enumerate((64, 200, 8, 320, 40))]


def _log_of_five(*, is_checkpointed: bool) -> tuple[MemoryFiles, str, list[int]]:
    """A killed broker's directory, the path of its segment, and the positions of its five batches and of their end."""
    files = MemoryFiles()
    manager, log = open_log(files)
    positions = [0]
    for payload in PAYLOADS:
        append(log, payload)
        positions.append(log.core.size_bytes)
    log.flush()
    if is_checkpointed:
        manager.write_checkpoint()
    files.kill()
    return files, log.segments[0].path, positions


def test_a_log_cut_at_every_byte_of_its_last_three_batches_recovers() -> None:
    files, path, positions = _log_of_five(is_checkpointed=False)
    data = files.read_file(path)
    for size in range(positions[2], positions[5] + 1):
        torn = files.copy()
        torn.write_file(path, data[:size])
        manager, report = open_manager(torn)
        log = first_log(manager)
        whole = sum(end <= size for end in positions[1:])
        assert payloads(log) == PAYLOADS[:whole]
        assert sum(report.cut_bytes.values()) == size - positions[whole]
        assert append(log, b"after the cut") == whole
        log.flush()
        assert payloads(log)[whole] == b"after the cut\0\0\0"


@pytest.mark.parametrize("filling", ["zeros", "garbage", "an older log"])
def test_what_stands_behind_the_tail_never_comes_back(filling: str) -> None:
    files, path, positions = _log_of_five(is_checkpointed=False)
    data = files.read_file(path)
    rng = random.Random(7)
    for size in range(positions[3], positions[5], 3):
        rest = {"zeros": bytes(700), "garbage": rng.randbytes(700), "an older log": data[positions[2] :]}[filling]
        torn = files.copy()
        torn.write_file(path, data[:size] + rest)
        manager, _ = open_manager(torn)
        whole = sum(end <= size for end in positions[1:])
        assert payloads(first_log(manager)) == PAYLOADS[:whole]


def test_a_log_cut_below_its_durable_end_is_damaged_and_left_as_it_is() -> None:
    files, path, positions = _log_of_five(is_checkpointed=True)
    data = files.read_file(path)
    for size in range(positions[2], positions[5], 7):
        torn = files.copy()
        torn.write_file(path, data[:size])
        manager, report = open_manager(torn)
        log = first_log(manager)
        whole = sum(end <= size for end in positions[1:])
        assert not report.cut_bytes
        assert damaged_ranges(log)[0].first_offset == whole
        assert damaged_ranges(log)[-1].until_offset == log.ends.high_watermark == 5
        assert log.ends.last_stable_offset == 5, "readers go on to the damage and are told"
        assert torn.read_file(path) == data[:size]
        _assert_refused(log)


def _assert_refused(log: Partition) -> None:
    with pytest.raises(LogDamagedError) as refused:
        append(log, b"no")
    assert refused.value.fate is Fate.NOT_APPENDED


def _readable(log: Partition) -> dict[int, bytes]:
    """Payloads by offset of all readable batches around damage, checked as clients check them."""
    found = {}
    at = log.ends.log_start_offset
    while at < log.ends.high_watermark:
        try:
            for batch in read_batches(log, at):
                at = batch.header.next_offset
                if payload_crc(batch.payload) == batch.header.payload_crc:
                    found[batch.header.base_offset] = batch.payload.to_pybytes()
        except LogDamagedError as error:
            found_at = str(error).startswith(f"t-0: offsets {at} to {at} ")
            at += 1 if found_at else 1_000
    return found


def _bits(positions: list[int]) -> list[int]:
    """All bits of the log in a scaled run, else every eleventh, and every fifth of each header."""
    bits = list(range(positions[-1] * 8))
    return (
        bits
        if TEST_SCALE > 1
        else sorted({*bits[::11], *(position * 8 + bit for position in positions[:-1] for bit in range(0, 768, 5))})
    )


def test_each_flipped_bit_of_a_durable_log_is_reported_and_neighbours_stay_readable() -> None:
    files, path, positions = _log_of_five(is_checkpointed=True)
    for bit in _bits(positions):
        rotten = files.copy()
        rotten.flip_bit(path, bit)
        hit = sum(end <= bit // 8 for end in positions[1:])
        manager, report = open_manager(rotten)
        log = first_log(manager)
        assert [entry[:2] for entry in damaged_ranges(log)] == [(hit, hit + 1)], bit
        assert not report.cut_bytes
        assert f"offsets {hit} to {hit}" in str(next(iter(report.damaged.values())))
        assert _readable(log) == {n: payload for n, payload in enumerate(PAYLOADS) if n != hit}
        assert log.ends.last_stable_offset == 5
        _assert_refused(log)


def test_rot_after_a_clean_shutdown_is_met_by_the_reader() -> None:
    files, path, positions = _log_of_five(is_checkpointed=True)
    manager, _ = open_manager(files)
    manager.close()
    assert CLEAN_SHUTDOWN in files.listdir()
    for bit in _bits(positions)[:: 3 if TEST_SCALE == 1 else 1]:
        rotten = files.copy()
        rotten.flip_bit(path, bit)
        hit = sum(end <= bit // 8 for end in positions[1:])
        manager, report = open_manager(rotten)
        assert report.was_clean
        assert not report.damaged
        log = first_log(manager)
        assert _readable(log) == {n: payload for n, payload in enumerate(PAYLOADS) if n != hit}, bit
        is_header = bit // 8 < positions[hit] + 96
        assert bool(log.damage) == is_header, bit
        if is_header:
            _assert_refused(log)


def test_the_doctor_reports_each_flipped_bit_with_partition_and_offset(tmp_path: Path) -> None:
    files, path, positions = _log_of_five(is_checkpointed=True)
    _write_out(files, tmp_path)
    assert not errors_in(tmp_path)
    data = files.read_file(path)
    for bit in _bits(positions)[:: 7 if TEST_SCALE == 1 else 1]:
        rotten = bytearray(data)
        rotten[bit // 8] ^= 1 << bit % 8
        (tmp_path / path).write_bytes(rotten)
        errors = errors_in(tmp_path)
        hit = sum(end <= bit // 8 for end in positions[1:])
        assert [(finding.partition, finding.offset) for finding in errors] == [("t-0", hit)], bit


def _write_out(files: MemoryFiles, root: Path) -> None:
    for path in files.paths():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_bytes(files.read_file(path))
