"""Goal: columns and offsets agree row by row, in whole and in cut batches; invalid batches are refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from brokerd.client.columns import CREATE_TIME, LOG_APPEND_TIME, BatchSlice, FetchedBatch, decode_slice
from brokerd.errors import CorruptMessageError
from brokerd.record.batch import RecordBatch
from brokerd.record.schema import SCHEMA_0
from tests.support.records import SAMPLE, TIMESTAMP_MS, TP, header_of, key_values, new_batch, spoilt

VALUES = [b"v%d" % number for number in range(6)]
MAX_BYTES = 1 << 20


def piece(data: pa.Buffer, from_offset: int, until_offset: int, *, base_offset: int = 100, stamp_flags: int = 0) -> BatchSlice:
    header = header_of(data)._replace(base_offset=base_offset, stamp_flags=stamp_flags, append_timestamp=TIMESTAMP_MS + 9_999)
    return BatchSlice(TP, RecordBatch(header, data), from_offset, until_offset)


def decoded(one: BatchSlice) -> FetchedBatch:
    batch = decode_slice(one, max_uncompressed_bytes=MAX_BYTES, check_crc=True)
    assert batch is not None
    return batch


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_whole_batch(compression: str) -> None:
    batch = decoded(piece(new_batch(SAMPLE, compression), 100, 104))
    assert batch.arrow_batch == SAMPLE
    assert batch.offsets.to_pylist() == [100, 101, 102, 103]
    assert batch.timestamp_type == CREATE_TIME
    assert batch.record_count == 4


@pytest.mark.parametrize(("from_offset", "until_offset"), [(100, 106), (102, 106), (100, 101), (103, 105)])
def test_cut_batch_keeps_rows_and_offsets_together(from_offset: int, until_offset: int) -> None:
    batch = decoded(piece(new_batch(key_values(VALUES)), from_offset, until_offset))
    assert batch.offsets.to_pylist() == list(range(from_offset, until_offset))
    assert batch.arrow_batch.column("value").to_pylist() == VALUES[from_offset - 100 : until_offset - 100]


def test_log_append_time_replaces_all_timestamps() -> None:
    batch = decoded(piece(new_batch(key_values(VALUES)), 100, 106, stamp_flags=1))
    assert batch.timestamp_type == LOG_APPEND_TIME
    assert batch.arrow_batch.schema == SCHEMA_0.arrow
    assert batch.arrow_batch.column("timestamp").cast(pa.int64()).to_pylist() == [(TIMESTAMP_MS + 9_999) * 1_000] * 6


def test_dense_batch_whose_offsets_and_rows_disagree_is_refused() -> None:
    with pytest.raises(CorruptMessageError, match="last_offset_delta 9"):
        decoded(piece(new_batch(key_values(VALUES), last_offset_delta=9), 100, 110))


def test_flipped_bit_in_the_payload_is_refused_and_names_the_offset() -> None:
    with pytest.raises(CorruptMessageError, match="batch at offset 100: payload_crc"):
        decoded(piece(spoilt(new_batch(key_values(VALUES))), 100, 106))


@pytest.mark.parametrize("append_timestamp", [2**63 - 1, -(2**63), 2**63 // 1_000 + 1])
def test_a_time_that_no_record_can_carry_is_refused(append_timestamp: int) -> None:
    whole = piece(new_batch(SAMPLE), 100, 104, stamp_flags=1)
    header = whole.batch.header._replace(append_timestamp=append_timestamp)
    with pytest.raises(CorruptMessageError, match="is not a time in ms since 1970"):
        decoded(whole._replace(batch=RecordBatch(header, whole.batch.data)))


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_batch_that_claims_more_than_a_reader_holds_is_refused(compression: str) -> None:
    one = piece(new_batch(SAMPLE, compression), 100, 104)
    size = one.batch.header.uncompressed_bytes
    assert decode_slice(one, max_uncompressed_bytes=size, check_crc=True) is not None
    with pytest.raises(CorruptMessageError, match=str(size)):
        decode_slice(one, max_uncompressed_bytes=size - 1, check_crc=True)
