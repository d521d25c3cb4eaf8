"""Columns to payload bytes and back, and payloads that a reader refuses before it allocates memory."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.record.arrow_metadata import read_arrow_metadata, uncompressed_lengths
from brokerd.record.batch import RecordBatch
from brokerd.record.schema import SCHEMA_0, decode_payload, encode_payload
from tests.support.records import MAX_BYTES, SAMPLE, header_of, key_values, new_batch

CODECS = ["none", "lz4", "zstd"]
_short = st.binary(max_size=20)
_headers = st.none() | st.lists(st.tuples(st.text(max_size=5), st.none() | _short), max_size=3)
rows = st.lists(st.tuples(st.none() | _short, st.none() | _short, _headers), min_size=1, max_size=20)


def decode(payload: pa.Buffer, batch: pa.RecordBatch, *, limit: int = MAX_BYTES, schema_id: int = 0) -> pa.RecordBatch:
    """Decodes the payload that was encoded from `batch`."""
    uncompressed = sum(uncompressed_lengths(read_arrow_metadata(memoryview(payload)), memoryview(payload)))
    return decode_payload(
        payload, schema_id=schema_id, record_count=batch.num_rows, uncompressed_bytes=uncompressed, max_uncompressed_bytes=limit
    )


@settings(deadline=None)
@given(rows, st.sampled_from(CODECS))
def test_what_goes_in_comes_out(
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]], codec: str
) -> None:
    arrow_batch = key_values([r[1] for r in records], keys=[r[0] for r in records], headers=[r[2] for r in records])
    payload = encode_payload(arrow_batch, codec)
    assert payload.data.size % 8 == 0
    assert payload.record_count == len(records)
    assert decode(payload.data, arrow_batch).equals(arrow_batch)


@pytest.mark.parametrize("codec", CODECS)
def test_a_slice_encodes_its_own_rows_only(codec: str) -> None:
    whole = key_values([b"%04d" % i * 25 for i in range(1_000)])
    part = encode_payload(whole.slice(500, 10), codec)
    assert part.data.size < 3_000
    assert decode(part.data, whole.slice(0, 10)).equals(whole.slice(500, 10))


def test_what_is_not_compressed_is_not_copied() -> None:
    data = new_batch(key_values([b"v" * 1_000] * 100))
    batch = RecordBatch(header_of(data), data)
    before = pa.total_allocated_bytes()
    columns = batch.to_arrow(max_uncompressed_bytes=MAX_BYTES)
    assert pa.total_allocated_bytes() == before
    values = columns.column(1).buffers()[2]
    assert data.address <= values.address < data.address + data.size


@pytest.mark.parametrize("codec", CODECS)
def test_the_reader_s_limit_is_inclusive_and_named(codec: str) -> None:
    payload = encode_payload(SAMPLE, codec)
    decode(payload.data, SAMPLE, limit=payload.uncompressed_bytes)
    with pytest.raises(CorruptMessageError, match=r"max\.decompressed\.bytes \(\d+\): raise it to read the batch"):
        decode(payload.data, SAMPLE, limit=payload.uncompressed_bytes - 1)


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_says_the_same_uncompressed_size(codec: str) -> None:
    assert encode_payload(SAMPLE, codec).uncompressed_bytes == encode_payload(SAMPLE).uncompressed_bytes


def test_errors_of_a_whole_batch_name_its_offset() -> None:
    data = new_batch(base_offset=77, payload_crc=1)
    with pytest.raises(CorruptMessageError, match="batch at offset 77: payload_crc"):
        RecordBatch(header_of(data), data).to_arrow(max_uncompressed_bytes=MAX_BYTES)
    data = new_batch(base_offset=77, attributes=1 << 3)
    with pytest.raises(UnsupportedVersionError, match="batch at offset 77: payload kind 1"):
        RecordBatch(header_of(data), data).to_arrow(max_uncompressed_bytes=MAX_BYTES)


@pytest.mark.parametrize("nulls", [0, 1, 7, 8, 9, 64])
@pytest.mark.parametrize("codec", CODECS)
def test_nulls_at_bitmap_edges_survive(nulls: int, codec: str) -> None:
    arrow_batch = key_values([None] * nulls + [b"x"])
    assert decode(encode_payload(arrow_batch, codec).data, arrow_batch).equals(arrow_batch)


def test_the_schema_is_the_one_of_the_format() -> None:
    assert SCHEMA_0.arrow.to_string() == (
        "key: binary\nvalue: binary\nheaders: list<item: struct<key: string, value: binary>>\n"
        "  child 0, item: struct<key: string, value: binary>\n      child 0, key: string\n      child 1, value: binary\n"
        "timestamp: timestamp[us, tz=UTC]"
    )
