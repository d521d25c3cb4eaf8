"""Splitting and encoding by column: no row is lost, moved or kept alive by another, and sizes are as accounted."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from brokerd.errors import MessageTooLargeError
from brokerd.producer.columns import ROUND_BYTES_MAX, check_row_sizes, encode_pieces, normalize, rounds, split
from brokerd.record.schema import SCHEMA_0, decode_payload

HEADERS = [[{"key": "h", "value": b"1"}], None, []]


def batch(count: int, value_bytes: int = 20) -> pa.RecordBatch:
    rng = random.Random(count)
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([None if i % 7 == 0 else b"k%d" % i for i in range(count)], pa.binary()),
            "value": pa.array([b"%06d" % i + b"x" * rng.randint(0, value_bytes) for i in range(count)], pa.binary()),
            "headers": pa.array([HEADERS[i % 3] for i in range(count)], SCHEMA_0.column("headers").type),
        }
    )


@pytest.mark.parametrize("partition_count", [1, 5, 300])
@pytest.mark.parametrize("batch_size", [1, 500, 1_000_000])
@pytest.mark.parametrize("start", [0, 13])
def test_split_keeps_every_row_in_order(partition_count: int, batch_size: int, start: int) -> None:
    rows = normalize(batch(400).slice(start))
    partitions = np.random.default_rng(1).integers(0, partition_count, rows.num_rows).astype(np.int32)
    parts = split(rows, partitions, partition_count, batch_size=batch_size, timestamp_ms=5)
    for partition in range(partition_count):
        pieces = [part.piece for part in parts.pieces if part.partition == partition]
        got = [row for piece in pieces for row in piece.data.to_pylist()]
        assert got == [row for row, p in zip(rows.to_pylist(), partitions.tolist(), strict=True) if p == partition]
        for piece in pieces:
            assert piece.record_count == piece.data.num_rows
            assert piece.record_count == 1 or piece.size_bytes <= batch_size * 1.2 + 200
    first_rows = [part.first_row for part in parts.pieces]
    assert first_rows == sorted(first_rows)


def test_a_piece_keeps_nothing_else_alive() -> None:
    rows = normalize(pa.RecordBatch.from_pydict({"value": [b"x" * 1000] * 1000}))
    partitions = np.zeros(1000, np.int32)
    partitions[7] = 1
    before = pa.total_allocated_bytes()
    (small,) = [p for p in split(rows, partitions, 2, batch_size=10**9, timestamp_ms=0).pieces if p.partition == 1]
    assert pa.total_allocated_bytes() - before < 10_000
    assert small.piece.record_count == 1


def test_large_batches_are_split_in_rounds() -> None:
    rows = normalize(pa.RecordBatch.from_pydict({"value": [b"x" * 100_000] * 300}))
    parts = [part for together in rounds([rows]) for part in together]
    assert len(parts) > 3
    assert all(part.nbytes <= ROUND_BYTES_MAX * 1.1 for part in parts)
    assert sum(part.num_rows for part in parts) == 300


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["é", None]),
        pa.array(["é", None], pa.large_string()),
        pa.array(["é", None], pa.string_view()),
        pa.array(["é".encode(), None], pa.large_binary()),
        pa.array(["é".encode(), None], pa.binary(2)),
        pa.array(["é", None]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_text_and_bytes_of_any_kind_are_taken(column: pa.Array) -> None:
    rows = normalize(pa.RecordBatch.from_arrays([column], ["value"]))
    assert rows.column("value").to_pylist() == ["é".encode(), None]
    assert rows.column("value").type == pa.binary()


def test_wrong_timestamps_and_headers_are_named() -> None:
    values = pa.array([b"a"])
    with pytest.raises(ValueError, match="before 1970"):
        normalize(pa.RecordBatch.from_arrays([values, pa.array([-1], pa.timestamp("ms"))], ["value", "timestamp"]))
    with pytest.raises(TypeError, match="column 'headers' is int64"):
        normalize(pa.RecordBatch.from_arrays([values, pa.array([1])], ["value", "headers"]))


def test_a_row_too_large_is_found_among_others() -> None:
    values = [b"x"] * 100 + [b"x" * 2_000]
    rows = normalize(pa.RecordBatch.from_pydict({"value": values}))
    check_row_sizes(rows, 10_000)
    with pytest.raises(MessageTooLargeError, match=r"record of 20\d\d bytes exceeds the producer's max\.request\.size \(1500\)"):
        check_row_sizes(rows, 1_500)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_pieces_of_different_columns_make_one_payload(compression: str) -> None:
    time = pa.array([None, 7_000_000], pa.timestamp("us", tz="UTC"))
    plain = normalize(pa.RecordBatch.from_pydict({"value": [b"a", b"b"]}))
    timed = normalize(pa.RecordBatch.from_arrays([pa.array([b"c", b"d"]), time], ["value", "timestamp"]))
    pieces = [
        split(rows, np.zeros(rows.num_rows, np.int32), 1, batch_size=10**6, timestamp_ms=stamp).pieces[0].piece
        for rows, stamp in ((plain, 1_000), (batch(3), 2_000), (timed, 3_000))
    ]
    encoded = encode_pieces(pieces, compression)
    payload = encoded.payload
    rows = decode_payload(
        payload.data,
        schema_id=0,
        record_count=payload.record_count,
        uncompressed_bytes=payload.uncompressed_bytes,
        max_uncompressed_bytes=10**6,
    )
    assert rows.schema == SCHEMA_0.arrow
    assert rows.column("value").to_pylist()[:2] == [b"a", b"b"]
    assert rows.column("headers").to_pylist() == [None, None, *HEADERS, None, None]
    assert [int(t.timestamp()) for t in rows.column("timestamp").to_pylist()] == [1, 1, 2, 2, 2, 3, 7]
    assert (encoded.base_timestamp, encoded.max_timestamp) == (1_000, 7_000)


def test_null_headers_are_valid_and_small() -> None:
    column = SCHEMA_0.column("headers").nulls(1000)
    column.validate(full=True)
    assert column.null_count == 1000
    assert column.equals(pa.nulls(1000, SCHEMA_0.column("headers").type))


def test_what_is_accounted_is_about_what_is_sent() -> None:
    rows = normalize(pa.RecordBatch.from_pydict({"key": [b"12345678"] * 5000, "value": [b"x" * 100] * 5000}))
    piece = split(rows, np.zeros(5000, np.int32), 1, batch_size=10**9, timestamp_ms=1).pieces[0].piece
    assert encode_pieces([piece], "none").size_bytes == pytest.approx(piece.size_bytes, rel=0.02)
