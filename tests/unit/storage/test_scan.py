"""A scan reads few bytes, wherever batches fall in its window, and can be interrupted and resumed."""

from __future__ import annotations

import random
import struct

import pytest

from brokerd.ids import TopicIdPartition
from brokerd.record.batch import NO_OFFSET_LIMIT
from brokerd.record.header import HEADER_SIZE, crc_seed, encode_header
from brokerd.storage.files import Buffer
from brokerd.storage.scan import Scan
from tests.support.build import raw_batch
from tests.support.records import stamped

SEED = crc_seed(TopicIdPartition(bytes(16), 0))
MIB = 1_048_576


def _batches(sizes: list[int], *, longer_header_bytes: int = 0) -> bytes:
    """Batches of one record with payloads of these sizes, and longer headers, as a later version might write them."""
    parts = []
    for offset, size in enumerate(sizes):
        batch = raw_batch(bytes(size))
        head = bytearray(encode_header(batch.header, SEED) + bytes(longer_header_bytes))
        head[5] += longer_header_bytes // 8
        parts += [stamped(bytes(head), SEED, base_offset=offset, append_timestamp=7, leader_epoch=1), batch.payload.to_pybytes()]
    return b"".join(parts)


class CountedFile:
    """A read-only file that counts its reads."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.reads = 0
        self.read_bytes = 0

    def pread(self, size: int, position: int, *, nowait: bool = False) -> Buffer:
        """See File."""
        self.reads += 1
        self.read_bytes += size
        return self._data[position : position + size]


def _scan(file: CountedFile, end: int, *, payload_from: int = NO_OFFSET_LIMIT) -> Scan:
    return Scan(file, SEED, position=0, end=end, next_offset=0, payload_from=payload_from)  # type: ignore[arg-type]


def test_a_file_that_ends_too_early_lacks_bytes_wherever_it_ends() -> None:
    """Even at the end of a batch: a cut may have shortened the file since the scan began."""
    data = _batches([200] * 3)
    size = len(data) // 3
    for there in (0, size - 1, size, size + 10, size + 96, 2 * size):
        scan = _scan(CountedFile(data[:there]), len(data))
        assert len(list(scan)) < 3
        assert scan.problem is not None, f"{there} bytes are there"


@pytest.mark.parametrize("payload_from", [0, NO_OFFSET_LIMIT])
def test_many_small_batches_cost_few_reads(payload_from: int) -> None:
    data = _batches([200] * 10_000)
    file = CountedFile(data)
    scan = _scan(file, len(data), payload_from=payload_from)
    assert [header.base_offset for header in scan] == list(range(10_000))
    assert scan.problem is None
    assert file.reads <= 2 + len(data) // MIB
    assert file.read_bytes < 1.01 * len(data)


def test_payloads_of_large_batches_are_read_only_to_be_checked() -> None:
    data = _batches([MIB] * 5)
    file, checked = CountedFile(data), CountedFile(data)
    assert len(list(_scan(file, len(data)))) == len(list(_scan(checked, len(data), payload_from=0))) == 5
    assert file.read_bytes < MIB / 50
    assert checked.read_bytes < 1.01 * len(data)


def test_who_looks_for_one_batch_reads_little() -> None:
    data = _batches([200] * 10_000)
    file = CountedFile(data)
    next(iter(_scan(file, len(data))))
    assert file.read_bytes < 4_096


@pytest.mark.parametrize("longer_header_bytes", [0, 8, 1_944])
def test_headers_may_fall_anywhere(longer_header_bytes: int) -> None:
    sizes = [8 * random.Random(n).choice((1, 30, 240, 2_000, 9_000, 30_000)) for n in range(300)]
    data = _batches(sizes, longer_header_bytes=longer_header_bytes)
    for payload_from in (0, 100, NO_OFFSET_LIMIT):
        scan = _scan(CountedFile(data), len(data), payload_from=payload_from)
        assert [header.batch_length for header in scan] == sizes
        assert (scan.problem, scan.position, scan.next_offset) == (None, len(data), len(sizes))


def test_a_scan_goes_on_where_it_was_left() -> None:
    data = _batches([8 * n for n in range(1, 400)], longer_header_bytes=40)
    scan = _scan(CountedFile(data), len(data), payload_from=200)
    seen = []
    while scan.position < len(data):
        for header in scan:
            seen.append(header.base_offset)
            if len(seen) % 7 == 0:
                break
    assert (seen, scan.problem) == (list(range(399)), None)


def test_the_batches_before_a_bad_payload_come_first() -> None:
    data = bytearray(_batches([200] * 30))
    size = len(data) // 30
    data[11 * size + HEADER_SIZE + 3] ^= 1
    scan = _scan(CountedFile(bytes(data)), len(data), payload_from=0)
    assert [header.base_offset for header in scan] == list(range(11))
    assert (scan.problem, scan.position, scan.next_offset) == ("payload_crc does not match", 11 * size, 11)
    assert len(list(_scan(CountedFile(bytes(data)), len(data)))) == 30


def test_a_file_that_is_shorter_than_it_should_be() -> None:
    data = _batches([200] * 30)
    size = len(data) // 30
    scan = _scan(CountedFile(data[: 20 * size + 50]), len(data))
    assert len(list(scan)) == 20
    assert (scan.problem, scan.position, scan.must_keep) == ("the header has only 50 bytes", 20 * size, False)


def test_a_newer_version_is_kept_and_what_comes_before_it_is_read() -> None:
    data = bytearray(_batches([200] * 30))
    at = len(data) // 30 * 17
    head = bytearray(data[at : at + HEADER_SIZE])
    head[4] = 9
    struct.pack_into(f"{HEADER_SIZE}s", data, at, stamped(bytes(head), SEED, base_offset=17, append_timestamp=7, leader_epoch=1))
    scan = _scan(CountedFile(bytes(data)), len(data))
    assert len(list(scan)) == 17
    assert scan.must_keep
    assert "version 9" in (scan.problem or "")
