"""A Schema derives the buffer layout from its columns, as Arrow writes it. A second schema passes through producer, broker and
reader without further code.
"""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.client.columns import LOG_APPEND_TIME, BatchSlice, decode_slice
from brokerd.errors import CorruptMessageError, InvalidRequestError, UnsupportedVersionError
from brokerd.ids import TopicPartition
from brokerd.producer.columns import encode_batch_header, encode_pieces, split_rows
from brokerd.producer.core.accumulator import Piece, ProducerBatch
from brokerd.record.arrow_metadata import read_arrow_metadata
from brokerd.record.batch import RecordBatch, check_produced
from brokerd.record.schema import SCHEMA_0, SCHEMAS, TIMESTAMP_TYPE, Schema, encode_payload
from tests.support.build import first_log, open_manager, read_batches
from tests.support.clock import START_WALL_MS
from tests.support.files import MemoryFiles
from tests.support.records import MAX_BYTES, SEED, TP, header_of, reseal

CODECS = ["none", "lz4", "zstd"]
TYPED = Schema(
    1,
    pa.schema(
        [
            pa.field("timestamp", TIMESTAMP_TYPE),
            pa.field("device", pa.int64()),
            pa.field("is_ok", pa.bool_()),
            pa.field("readings", pa.list_(pa.float32())),
            pa.field("place", pa.struct([pa.field("x", pa.int16()), pa.field("name", pa.large_string())])),
            pa.field("digest", pa.binary(16)),
        ]
    ),
)
ROWS = pa.RecordBatch.from_arrays(
    [
        pa.array([(START_WALL_MS + row * 10) * 1_000 for row in range(20)], TIMESTAMP_TYPE),
        pa.array(range(20), pa.int64()),
        pa.array([row % 3 == 0 if row % 5 else None for row in range(20)], pa.bool_()),
        pa.array([[0.5] * (row % 4) for row in range(20)], pa.list_(pa.float32())),
        pa.array([{"x": row, "name": "é" * row} for row in range(20)], TYPED.column("place").type),
        pa.array([bytes([row]) * 16 for row in range(20)], pa.binary(16)),
    ],
    schema=TYPED.arrow,
)


@pytest.fixture
def _is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMAS, TYPED.id, TYPED)


def produced(compression: str) -> pa.Buffer:
    """A batch of ROWS as the producer sends it, encoded from two pieces."""
    batch = ProducerBatch(TopicPartition("t", TP.partition), 0)
    pieces = [Piece(ROWS.slice(0, 12), 12, 1, 0), Piece(ROWS.slice(12), 8, 1, 0)]
    batch.encoded = encode_pieces(pieces, compression, TYPED)
    return pa.py_buffer(encode_batch_header(batch, TP) + batch.encoded.payload.data.to_pybytes())


@pytest.mark.usefixtures("_is_known")
@pytest.mark.parametrize("codec", CODECS)
def test_a_second_schema_goes_from_producer_to_reader(codec: str) -> None:
    log = first_log(open_manager(MemoryFiles())[0])
    data = produced(codec)
    for number in range(3):
        batch = check_produced(data, SEED, max_message_bytes=MAX_BYTES)
        assert batch.header.schema_id == TYPED.id
        log.append(batch, now_wall_ms=START_WALL_MS)
        assert log.ends.log_end_offset == 20 * (number + 1)
    log.flush()
    for row in range(20):
        time = START_WALL_MS + row * 10
        assert log.look_ups.offset_for_timestamp(time - 9 if row else time) == (row, time)
    for number, batch in enumerate(read_batches(log)):
        piece = BatchSlice(log.tp, batch, 20 * number + 3, 20 * number + 20)
        fetched = decode_slice(piece, max_uncompressed_bytes=MAX_BYTES, check_crc=True)
        assert fetched is not None
        assert fetched.arrow_batch.equals(ROWS.slice(3))
        assert fetched.offsets.to_pylist() == list(range(20 * number + 3, 20 * number + 20))


@pytest.mark.usefixtures("_is_known")
def test_the_leader_s_time_replaces_the_column_of_times_wherever_it_stands() -> None:
    data = produced("none")
    header = header_of(data)._replace(stamp_flags=1, append_timestamp=7)
    piece = BatchSlice(TP, RecordBatch(header, data), 0, 20)
    fetched = decode_slice(piece, max_uncompressed_bytes=MAX_BYTES, check_crc=True)
    assert fetched is not None
    assert fetched.timestamp_type == LOG_APPEND_TIME
    assert fetched.arrow_batch.column("timestamp").cast(pa.int64()).to_pylist() == [7_000] * 20
    assert fetched.arrow_batch.drop_columns(["timestamp"]).equals(ROWS.drop_columns(["timestamp"]))


@pytest.mark.usefixtures("_is_known")
def test_a_batch_of_a_second_schema_is_split() -> None:
    batch = ProducerBatch(TopicPartition("t", 0), 0)
    nothing_read = ROWS.set_column(3, ROWS.schema.field(3), pa.nulls(20, ROWS.schema.field(3).type))
    batch.encoded = encode_pieces([Piece(nothing_read, 20, 1, 0)], "lz4", TYPED)
    batch.uncompressed_bytes = batch.encoded.payload.uncompressed_bytes
    pieces = split_rows(batch, batch.uncompressed_bytes // 2)
    assert len(pieces) >= 2
    assert all("readings" not in piece.data.schema.names for piece in pieces)
    again = encode_pieces(pieces, "none", TYPED)
    assert again.payload.data.equals(encode_payload(nothing_read, "none", TYPED).data)


def test_a_schema_that_is_not_known_is_refused_by_broker_and_reader() -> None:
    data = produced("none")
    with pytest.raises(InvalidRequestError, match="schema_id 1 is not accepted; 0 and 0 are"):
        check_produced(data, SEED, max_message_bytes=MAX_BYTES)
    with pytest.raises(UnsupportedVersionError, match="schema_id 1 is not known; this version reads 0"):
        RecordBatch(header_of(data), data).to_arrow(max_uncompressed_bytes=MAX_BYTES)


def test_a_look_up_by_time_answers_where_the_schema_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    log = first_log(open_manager(MemoryFiles())[0])
    with monkeypatch.context() as later_version:
        later_version.setitem(SCHEMAS, TYPED.id, TYPED)
        log.append(check_produced(produced("none"), SEED, max_message_bytes=MAX_BYTES), now_wall_ms=START_WALL_MS)
    log.flush()
    assert log.look_ups.offset_for_timestamp(START_WALL_MS + 50) == (0, START_WALL_MS + 190)


@pytest.mark.usefixtures("_is_known")
def test_columns_of_another_schema_are_refused() -> None:
    data = produced("none")
    for schema_id, text in ((0, "schema 0 has 7 and 17"), (1, "records")):
        payload = (ROWS if schema_id == 0 else ROWS.slice(1)).serialize().to_pybytes()
        with pytest.raises(CorruptMessageError, match=text):
            check_produced(reseal(header_of(data)._replace(schema_id=schema_id), payload), SEED, max_message_bytes=MAX_BYTES)


def test_schema_0_lies_where_it_always_did() -> None:
    assert (SCHEMA_0.nodes, SCHEMA_0.buffers) == (7, 17)
    assert [(c.name, c.index, c.node, c.first_buffer, c.end_buffer) for c in SCHEMA_0.columns] == [
        ("key", 0, 0, 0, 3),
        ("value", 1, 1, 3, 6),
        ("headers", 2, 2, 6, 15),
        ("timestamp", 3, 6, 15, 17),
    ]


_leaves = st.sampled_from(
    [
        pa.int8(),
        pa.uint64(),
        pa.float16(),
        pa.bool_(),
        pa.date32(),
        pa.duration("ms"),
        pa.decimal128(20, 3),
        pa.binary(),
        pa.large_binary(),
        pa.string(),
        pa.large_string(),
        pa.binary(5),
        pa.timestamp("ns"),
    ]
)
_types = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        st.lists(inner, min_size=1, max_size=3).map(lambda kinds: pa.struct([(f"f{i}", kind) for i, kind in enumerate(kinds)])),
    ),
    max_leaves=5,
)


@settings(deadline=None, max_examples=60)
@given(st.lists(_types, max_size=5), st.integers(1, 70))
def test_columns_lie_where_arrow_writes_them(kinds: list[pa.DataType], rows: int) -> None:
    fields = [pa.field(f"c{number}", kind) for number, kind in enumerate(kinds)]
    schema = Schema(9, pa.schema([*fields, pa.field("timestamp", TIMESTAMP_TYPE)]))
    times = pa.array(range(rows), pa.int64()).view(TIMESTAMP_TYPE)
    batch = pa.RecordBatch.from_arrays([*(pa.nulls(rows, kind) for kind in kinds), times], schema=schema.arrow)
    payload = encode_payload(batch, "none", schema)
    view = memoryview(payload.data)
    metadata = schema.check(view, record_count=rows, uncompressed_bytes=payload.uncompressed_bytes)
    assert metadata == read_arrow_metadata(view)
    for column in schema.columns:
        assert metadata.node_lengths[column.node] == rows
    offset, length = metadata.buffers[schema.timestamp.first_buffer + 1]
    assert length >= 8 * rows
    assert view[metadata.body_at + offset :][: 8 * rows].tobytes() == times.view(pa.int64()).to_numpy().tobytes()


@pytest.mark.parametrize(
    ("name", "least_bytes"), [("timestamp", 160), ("device", 160), ("is_ok", 3), ("readings", 84), ("digest", 320)]
)
def test_a_buffer_that_is_too_short_for_its_rows_is_refused(name: str, least_bytes: int) -> None:
    """Arrow would read past the buffer's end."""
    column = TYPED.column(name)
    payload, size_bytes = _with_buffer_length(column.first_buffer + 1, least_bytes)
    TYPED.check(payload, record_count=20, uncompressed_bytes=size_bytes)
    payload, size_bytes = _with_buffer_length(column.first_buffer + 1, least_bytes - 1)
    with pytest.raises(CorruptMessageError, match="too short for 20 records"):
        TYPED.check(payload, record_count=20, uncompressed_bytes=size_bytes)


def _with_buffer_length(number: int, length: int) -> tuple[memoryview, int]:
    """ROWS as a payload whose metadata claims `length` for buffer `number`, and the sum of all claimed lengths."""
    payload = bytearray(ROWS.serialize().to_pybytes())
    buffers = list(read_arrow_metadata(memoryview(payload)).buffers)
    table = b"".join(struct.pack("<qq", *buffer) for buffer in buffers)
    buffers[number] = (buffers[number][0], length)
    changed = payload.replace(table, b"".join(struct.pack("<qq", *buffer) for buffer in buffers))
    return memoryview(changed), sum(length for _, length in buffers)


_ODD = [pa.null(), pa.binary_view(), pa.dictionary(pa.int8(), pa.string()), pa.map_(pa.string(), pa.int8())]


@pytest.mark.parametrize("kind", _ODD, ids=str)
def test_a_type_that_lies_otherwise_makes_no_schema(kind: pa.DataType) -> None:
    with pytest.raises(ValueError, match=r"column 'odd' is .*: a schema has"):
        Schema(2, pa.schema([pa.field("odd", pa.list_(kind)), pa.field("timestamp", TIMESTAMP_TYPE)]))


def test_a_schema_without_times_is_refused() -> None:
    for arrow in (pa.schema([("value", pa.binary())]), pa.schema([("timestamp", pa.int64())]), pa.schema([])):
        with pytest.raises(ValueError, match="schema 3 has no column 'timestamp'"):
            Schema(3, arrow)
