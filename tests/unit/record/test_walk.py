"""Walking the batches of a fetch, and control batches."""

from __future__ import annotations

import pyarrow as pa
import pytest

from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.record.batch import RecordBatch, walk_batches
from brokerd.record.control import decode_control, encode_control
from brokerd.wire.v1 import control_pb2
from tests.support.records import HEADER_BYTES, SEED, TIMESTAMP_MS, TP, header_of, key_values, new_batch, reseal

FIRST = new_batch(key_values([b"a", b"b"]), base_offset=10).to_pybytes()
SECOND = new_batch(key_values([b"c"]), base_offset=12).to_pybytes()


def offsets(data: bytes, seed: int | None = SEED) -> list[int]:
    """Base offsets of the batches in `data`."""
    return [batch.header.base_offset for batch in walk_batches(pa.py_buffer(data), seed)]


def test_batches_come_one_after_the_other_as_slices() -> None:
    data = pa.py_buffer(FIRST + SECOND)
    batches = list(walk_batches(data, SEED))
    assert [batch.data.address - data.address for batch in batches] == [0, len(FIRST)]
    assert [batch.data.to_pybytes() for batch in batches] == [FIRST, SECOND]


def test_a_cut_last_batch_is_left_out_at_every_byte() -> None:
    for cut in range(len(FIRST), len(FIRST) + len(SECOND)):
        assert offsets((FIRST + SECOND)[:cut]) == [10]
    assert offsets(b"") == []


def test_what_is_no_batch_is_refused_with_its_position() -> None:
    with pytest.raises(CorruptMessageError, match=f"byte {len(FIRST)} "):
        offsets(FIRST + bytes(HEADER_BYTES))


@pytest.mark.parametrize("words", [0, 1, 11])
def test_a_header_that_is_too_short_to_be_one_never_stalls_the_walk(words: int) -> None:
    with pytest.raises(CorruptMessageError):
        offsets(FIRST[:5] + bytes([words]) + FIRST[6:], None)


def test_header_crcs_are_checked_where_a_seed_is_given() -> None:
    bad = FIRST[:20] + b"\1" + FIRST[21:]
    with pytest.raises(CorruptMessageError, match="header_crc"):
        offsets(bad)
    assert len(offsets(bad, None)) == 1


def test_an_unknown_version_is_named() -> None:
    data = new_batch(magic=2).to_pybytes()
    for seed in (SEED, None):
        with pytest.raises(UnsupportedVersionError, match="version 2"):
            offsets(data, seed)


def test_a_longer_header_is_skipped() -> None:
    data = new_batch(key_values([b"c"]), base_offset=12).to_pybytes()
    longer = data[:5] + bytes([13]) + data[6:HEADER_BYTES] + b"whatever" + data[HEADER_BYTES:]
    batches = list(walk_batches(pa.py_buffer(FIRST + longer + SECOND)))
    assert [batch.header.base_offset for batch in batches] == [10, 12, 12]
    assert batches[1].to_arrow(max_uncompressed_bytes=10_000).column(1).to_pylist() == [b"c"]
    assert len(batches[1].header_bytes) == HEADER_BYTES + 8


def control(**fields: int) -> control_pb2.ControlRecord:
    return control_pb2.ControlRecord(version=1, transactional_id="t", **fields)  # type: ignore[arg-type]


def test_a_control_record_comes_back() -> None:
    record = control(txn_version=2**40, coordinator_epoch=5)
    batch = next(walk_batches(encode_control(record, TP, timestamp_ms=TIMESTAMP_MS).data, SEED))
    assert batch.header.is_control
    assert batch.header.batch_length % 8 == 0
    assert decode_control(batch) == record


def test_a_control_record_of_a_later_version_is_refused() -> None:
    message = control_pb2.ControlRecord(version=2).SerializeToString()
    known = encode_control(control(), TP, timestamp_ms=TIMESTAMP_MS)
    data = reseal(known.header, len(message).to_bytes(4, "little") + message + bytes(2))
    with pytest.raises(UnsupportedVersionError, match="version 2"):
        decode_control(RecordBatch(header_of(data), data))


@pytest.mark.parametrize("payload", [b"\xff" * 8, b"\4\0\0\0\xff\xff\xff\xff", b"\0\0\1\0abcd", b"", b"\1"])
def test_a_control_payload_that_cannot_be_read_is_refused_with_its_offset(payload: bytes) -> None:
    good = encode_control(control(), TP, timestamp_ms=TIMESTAMP_MS)
    data = reseal(good.header._replace(base_offset=41), payload)
    with pytest.raises((CorruptMessageError, UnsupportedVersionError), match=r"offset 41|version 0"):
        decode_control(RecordBatch(header_of(data), data))


def test_a_changed_control_payload_is_refused() -> None:
    data = bytearray(encode_control(control(), TP, timestamp_ms=TIMESTAMP_MS).data)
    data[-1] ^= 1
    batch = RecordBatch(header_of(pa.py_buffer(bytes(data))), pa.py_buffer(bytes(data)))
    with pytest.raises(CorruptMessageError, match="payload_crc"):
        decode_control(batch)
