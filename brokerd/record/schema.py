"""The columns of a batch's records, the nodes and buffers of each column in the Arrow message, and their encoding.

Everything that depends on the columns is derived here, so a new schema needs only an entry in SCHEMAS. Nodes and
buffers are numbered as in Arrow's columnar format: a column's own node, then its children's; the validity bitmap first, then
offsets or data.

A payload is one Arrow IPC encapsulated record batch message, without a schema: `schema_id` in the batch header selects it.
Compression is Arrow's own, so a reader decodes uncompressed columns without copying.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import google_crc32c
import pyarrow as pa

from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.record.arrow_metadata import ArrowMetadata, read_arrow_metadata, uncompressed_lengths

TIMESTAMP_NAME = "timestamp"
TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")
_PADDING_MAX_BYTES = 128
_WRITE_OPTIONS = {
    "lz4": pa.ipc.IpcWriteOptions(compression="lz4"),
    "zstd": pa.ipc.IpcWriteOptions(compression="zstd"),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a schema. Its buffers, including its children's, are numbered `first_buffer` to `end_buffer` (exclusive)."""

    name: str
    type: pa.DataType
    index: int
    node: int
    first_buffer: int
    end_buffer: int
    _no_items: pa.Array | None  # for a list: its empty child

    def nulls(self, count: int) -> pa.Array:
        """`count` nulls. A list takes 4 bytes per row; `pa.nulls` takes 12, since it also fills the offsets of the children."""
        if self._no_items is None:
            return pa.nulls(count, self.type)
        zeros = pa.py_buffer(bytes(4 * count + 4))
        return pa.ListArray.from_buffers(self.type, count, [zeros, zeros], children=[self._no_items])


class Schema:
    """The columns of a batch's records. Every schema has a `timestamp` column, which look-ups by time read."""

    def __init__(self, schema_id: int, arrow: pa.Schema) -> None:
        """Raises ValueError for a column of a type that cannot be stored, or if `timestamp` is missing."""
        self.id = schema_id
        self.arrow = arrow
        self.columns = _columns(arrow)
        self.names = tuple(arrow.names)
        self.message = arrow.serialize()  # the schema message, with which an Arrow stream begins; payloads omit it
        self.nodes = sum(_node_count(field.type) for field in arrow)
        self.buffers = self.columns[-1].end_buffer if self.columns else 0
        self._top_nodes = tuple(column.node for column in self.columns)
        # (buffer, bits per row, extra bits): its minimum size. Arrow would read past the end of a shorter buffer.
        self._row_buffers = tuple(entry for column in self.columns for entry in _row_buffers(column))
        if TIMESTAMP_NAME not in self.names or self.column(TIMESTAMP_NAME).type != TIMESTAMP_TYPE:
            raise ValueError(f"schema {schema_id} has no column '{TIMESTAMP_NAME}' of {TIMESTAMP_TYPE}: every schema has one")
        self.timestamp = self.column(TIMESTAMP_NAME)
        self.timestamp_alone = pa.ipc.IpcReadOptions(included_fields=[self.timestamp.index], use_threads=False)

    def column(self, name: str) -> Column:
        """Returns the column named `name`. Raises KeyError."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def check(self, payload: memoryview, *, record_count: int, uncompressed_bytes: int) -> ArrowMetadata:
        """Checks that a payload has `record_count` rows of these columns and claims `uncompressed_bytes`. Touches no column.
        Raises CorruptMessageError.
        """
        metadata = read_arrow_metadata(payload)
        if len(metadata.node_lengths) != self.nodes or len(metadata.buffers) != self.buffers:
            raise CorruptMessageError(
                f"the Arrow payload has {len(metadata.node_lengths)} nodes and {len(metadata.buffers)} buffers; "
                f"schema {self.id} has {self.nodes} and {self.buffers}"
            )
        for node in self._top_nodes:
            if metadata.node_lengths[node] != record_count or metadata.rows != record_count:
                raise CorruptMessageError(f"the header counts {record_count} records, the Arrow payload {metadata.rows} rows")
        lengths = uncompressed_lengths(metadata, payload)
        claimed = sum(lengths)
        if claimed != uncompressed_bytes:
            raise CorruptMessageError(f"uncompressed_bytes is {uncompressed_bytes}, the Arrow buffers add up to {claimed}")
        for buffer, bits, bits_beyond in self._row_buffers:
            if lengths[buffer] << 3 < bits * record_count + bits_beyond:
                raise CorruptMessageError(f"the Arrow buffers are too short for {record_count} records")
        return metadata

    def check_timestamps(self, payload: memoryview, metadata: ArrowMetadata, *, record_count: int) -> None:
        """Checks that the timestamps claim no more bytes than `record_count` records need. Raises CorruptMessageError."""
        own = slice(self.timestamp.first_buffer, self.timestamp.end_buffer)
        claimed = sum(uncompressed_lengths(metadata, payload)[own])
        if claimed > (TIMESTAMP_TYPE.bit_width // 8 + 1) * record_count + _PADDING_MAX_BYTES:
            raise CorruptMessageError(f"the Arrow payload claims {claimed} bytes for {record_count} timestamps")


def known_schema(schema_id: int) -> Schema:
    """Returns the schema with this id. Raises UnsupportedVersionError."""
    schema = SCHEMAS.get(schema_id)
    if schema is None:
        known = ", ".join(map(str, SCHEMAS))
        raise UnsupportedVersionError(f"schema_id {schema_id} is not known; this version reads {known}")
    return schema


def _columns(arrow: pa.Schema) -> tuple[Column, ...]:
    columns = []
    node = buffer = 0
    for index, field in enumerate(arrow):
        _check_type(field.name, field.type)
        end = buffer + _buffer_count(field.type)
        no_items = pa.nulls(0, field.type.value_type) if pa.types.is_list(field.type) else None
        columns.append(Column(field.name, field.type, index, node, buffer, end, no_items))
        node, buffer = node + _node_count(field.type), end
    return tuple(columns)


def _children(kind: pa.DataType) -> list[pa.DataType]:
    return [kind.field(i).type for i in range(kind.num_fields)]


def _node_count(kind: pa.DataType) -> int:
    return 1 + sum(map(_node_count, _children(kind)))


def _buffer_count(kind: pa.DataType) -> int:
    return int(kind.num_buffers) + sum(map(_buffer_count, _children(kind)))


def _check_type(name: str, kind: pa.DataType) -> None:
    """Raises ValueError for types whose buffers are not laid out like those of numbers, bytes, lists and structs."""
    is_nested = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_struct(kind)
    if not (is_nested or _has_offsets(kind) or _is_fixed_width(kind)):
        raise ValueError(f"column '{name}' is {kind}: a schema has numbers, times, bytes, text, lists and structs")
    for child in _children(kind):
        _check_type(name, child)


def _is_fixed_width(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind))


def _has_offsets(kind: pa.DataType) -> bool:
    return _offset_bits(kind) > 0


def _offset_bits(kind: pa.DataType) -> int:
    if pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_list(kind):
        return 32
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) or pa.types.is_large_list(kind):
        return 64
    return 0


def _row_buffers(column: Column) -> list[tuple[int, int, int]]:
    """The buffers of a column whose minimum size follows from the row count: offsets (one more than rows), or fixed-width data."""
    behind_validity = column.first_buffer + 1
    bits = _offset_bits(column.type)
    if bits:
        return [(behind_validity, bits, bits)]
    return [(behind_validity, column.type.bit_width, 0)] if _is_fixed_width(column.type) else []


SCHEMA_0 = Schema(
    0,
    pa.schema(
        [
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("headers", pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
            pa.field(TIMESTAMP_NAME, TIMESTAMP_TYPE),
        ]
    ),
)
KEY, VALUE, HEADERS, TIMESTAMP = SCHEMA_0.columns
SCHEMAS: dict[int, Schema] = {SCHEMA_0.id: SCHEMA_0}


class Payload(NamedTuple):
    """Encoded records, and the fields of the batch header that describe them."""

    data: pa.Buffer
    crc: int
    record_count: int
    uncompressed_bytes: int
    schema_id: int = SCHEMA_0.id


def encode_payload(arrow_batch: pa.RecordBatch, compression: str = "none", schema: Schema = SCHEMA_0) -> Payload:
    """Encodes at least one row with the columns of `schema`. `compression`: none, lz4 or zstd."""
    if compression == "none":
        data = arrow_batch.serialize()
    else:
        sink = pa.BufferOutputStream()
        writer = pa.ipc.new_stream(sink, schema.arrow, options=_WRITE_OPTIONS[compression])
        writer.write_batch(arrow_batch)
        written = sink.tell() - schema.message.size
        data = sink.getvalue().slice(schema.message.size, written)
    view = memoryview(data)
    uncompressed = sum(uncompressed_lengths(read_arrow_metadata(view), view))
    return Payload(data, payload_crc(data), arrow_batch.num_rows, uncompressed, schema.id)


def payload_crc(data: pa.Buffer) -> int:
    """CRC32C of a payload, a pa.Buffer or bytes (google-crc32c takes no memoryview)."""
    crc: int = google_crc32c.value(data)
    return crc


def decode_timestamps(data: pa.Buffer, *, schema_id: int, record_count: int, uncompressed_bytes: int) -> pa.Array:
    """Decodes the timestamp column alone, and allocates little more than its size. Raises CorruptMessageError,
    UnsupportedVersionError.
    """
    schema = known_schema(schema_id)
    view = memoryview(data)
    metadata = schema.check(view, record_count=record_count, uncompressed_bytes=uncompressed_bytes)
    schema.check_timestamps(view, metadata, record_count=record_count)
    stream = pa.py_buffer(schema.message.to_pybytes() + data.to_pybytes())
    try:
        with pa.ipc.open_stream(stream, options=schema.timestamp_alone) as reader:
            arrow_batch = reader.read_next_batch()
        arrow_batch.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptMessageError(f"the Arrow payload is malformed: {error}") from None
    return arrow_batch.column(0)


def decode_payload(
    data: pa.Buffer, *, schema_id: int, record_count: int, uncompressed_bytes: int, max_uncompressed_bytes: int
) -> pa.RecordBatch:
    """Decodes a payload into columns; copies only what is compressed. Validates it fully, so that a hostile payload cannot crash
    the process, and allocates at most `max_uncompressed_bytes`. Raises CorruptMessageError, UnsupportedVersionError.
    """
    schema = known_schema(schema_id)
    if uncompressed_bytes > max_uncompressed_bytes:
        raise CorruptMessageError(
            f"the batch takes {uncompressed_bytes} bytes uncompressed, more than max.decompressed.bytes "
            f"({max_uncompressed_bytes}): raise it to read the batch"
        )
    schema.check(memoryview(data), record_count=record_count, uncompressed_bytes=uncompressed_bytes)
    try:
        arrow_batch = pa.ipc.read_record_batch(data, schema.arrow)
        arrow_batch.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptMessageError(f"the Arrow payload is malformed: {error}") from None
    return arrow_batch
