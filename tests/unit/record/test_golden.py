"""Golden bytes: the format on today's disks and in today's clients stays readable for ever, and is written unchanged.

`golden/*.hex` were generated once and are never regenerated: a failure here means that the format has changed. Compressed bytes
may differ between versions of a codec's library, so those files are only read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from brokerd.record.batch import RecordBatch, check_produced
from brokerd.record.control import decode_control, encode_control
from brokerd.record.header import BatchHeader, decode_header, encode_header, header_problem
from brokerd.wire.v1 import control_pb2
from tests.support.records import MAX_BYTES, SAMPLE, SEED, TIMESTAMP_MS, TP, header_of, new_batch

FULL_HEADER = BatchHeader(
    mark=b"\x89bkd",
    magic=1,
    header_words=12,
    stamp_flags=1,
    batch_length=0x08070608,
    header_crc=0,
    base_offset=0x1817161514131211,
    append_timestamp=0x2827262524232221,
    leader_epoch=0x34333231,
    payload_crc=0xF4F3F2F1,
    producer_id=0x4847464544434241,
    base_sequence=0x54535251,
    producer_epoch=0x6261,
    attributes=0x7271,
    last_offset_delta=0x04838281,
    record_count=0x04838282,
    base_timestamp=0x1897969594939291,
    max_timestamp=0x28A7A6A5A4A3A2A1,
    schema_id=0x34B3B2B1,
    uncompressed_bytes=0xC4C3C2C1,
    leader_epoch_id=0xD4D3D2D1,
    clock_ahead_s=0xD8D7D6D5 - 2**32,
)
IDEMPOTENT: dict[str, Any] = {"producer_id": 4_711, "producer_epoch": 2, "base_sequence": 90}
CONTROL = control_pb2.ControlRecord(
    version=1,
    coordinator_epoch=3,
    transactional_id="spark-query",
    txn_version=17,
    committed_producer_ids=[1_000, 1_001],
    aborted_producer_ids=[999],
)


def golden(name: str) -> bytes:
    """The bytes of golden/`name`.hex."""
    return bytes.fromhex((Path(__file__).parent / "golden" / f"{name}.hex").read_text())


def test_the_header_is_written_as_ever() -> None:
    assert encode_header(FULL_HEADER, SEED).hex() == golden("header").hex()


def test_the_header_is_read_as_ever() -> None:
    data = golden("header")
    decoded = decode_header(data)
    assert decoded == FULL_HEADER._replace(header_crc=decoded.header_crc)
    assert header_problem(decoded, data, SEED) is None


def test_a_batch_is_written_as_ever() -> None:
    assert new_batch(**IDEMPOTENT).to_pybytes().hex() == golden("none").hex()


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_batch_is_read_as_ever(compression: str) -> None:
    batch = check_produced(pa.py_buffer(golden(compression)), SEED, max_message_bytes=MAX_BYTES)
    header = batch.header
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.record_count) == (4_711, 2, 90, 4)
    assert (header.base_timestamp, header.max_timestamp) == (TIMESTAMP_MS, TIMESTAMP_MS + 3)
    assert header.uncompressed_bytes == decode_header(golden("none")).uncompressed_bytes
    assert batch.to_arrow(max_uncompressed_bytes=MAX_BYTES).equals(SAMPLE)


def test_a_control_batch_is_written_as_ever() -> None:
    assert encode_control(CONTROL, TP, timestamp_ms=TIMESTAMP_MS).data.to_pybytes().hex() == golden("control").hex()


def test_a_control_batch_is_read_as_ever() -> None:
    data = pa.py_buffer(golden("control"))
    assert decode_control(RecordBatch(header_of(data), data)) == CONTROL
