"""Checks Arrow columns of records and casts them to the stored types, splits them by partition, and encodes each batch once
(concatenate, compress, CRC). Works by column, never by record, and changes no state of the producer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from brokerd.errors import Fate, MessageTooLargeError
from brokerd.ids import TopicIdPartition
from brokerd.producer.core.accumulator import NO_TIMESTAMP, Piece, ProducerBatch
from brokerd.producer.core.partitioner import Int32s, sort_by_partition
from brokerd.producer.core.transport import ROW_OVERHEAD_BYTES
from brokerd.record.header import HEADER_SIZE, Attributes, crc_seed, encode_header, new_header
from brokerd.record.schema import HEADERS, KEY, SCHEMA_0, TIMESTAMP, VALUE, Column, Payload, Schema, decode_payload, encode_payload

# Memory overhead of a record in a chunk: list entries, a future, and the row's overhead in columns.
RECORD_OVERHEAD_BYTES = 40
# Most bytes that one round of splitting copies.
ROUND_BYTES_MAX = 8 * 1024 * 1024


class PartitionPiece(NamedTuple):
    """Rows for one partition; `first_row` is their position in the order of `split`."""

    partition: int
    piece: Piece
    first_row: int


def import_lazy_parts() -> None:
    """Triggers pyarrow's lazy imports: numpy.ma, and pandas if installed. If an exception interrupts an import, the module stays
    locked, and the sender would wait for it forever."""
    pa.array(np.zeros(1, np.int64)).to_numpy()


def normalized(data: object, max_request_size: int) -> list[pa.RecordBatch]:
    """The rows of a batch or table as normalized batches, none empty. Raises TypeError, ValueError and MessageTooLargeError."""
    if not isinstance(data, (pa.RecordBatch, pa.Table)):
        raise TypeError(f"data must be a RecordBatch or a Table, not {type(data).__name__}")
    given = data.to_batches() if isinstance(data, pa.Table) else [data]
    arrow_batches = [normalize(arrow_batch) for arrow_batch in given if arrow_batch.num_rows]
    for arrow_batch in arrow_batches:
        check_row_sizes(arrow_batch, max_request_size)
    return arrow_batches


def checked_partitions(partitions: object, row_count: int) -> Int32s:
    """Returns one partition per row. Raises TypeError, ValueError."""
    try:
        given = np.asarray(partitions)
        checked = given.astype(np.int32)
        is_valid = given.ndim == 1 and given.dtype.kind in "iu" and bool((checked == given).all())
    except (TypeError, ValueError, OverflowError):
        is_valid = False
    if not is_valid:
        raise TypeError("partitions must be whole numbers of 32 bits, one for each row, without a null")
    if len(checked) != row_count:
        raise ValueError(f"{len(checked)} partitions were given for {row_count} rows")
    return checked


def normalize(arrow_batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the batch with the columns key, value and, unless all null, headers and timestamp, in the stored types.

    Strings become their UTF-8 bytes. Raises ValueError naming an unknown or missing column, or for a timestamp before 1970, and
    TypeError naming a column of a wrong type.
    """
    names = arrow_batch.schema.names
    unknown = [name for name in names if name not in SCHEMA_0.names]
    if unknown:
        raise ValueError(f"unknown column '{unknown[0]}': a batch may have {', '.join(SCHEMA_0.names)}")
    if VALUE.name not in names:
        raise ValueError(f"column 'value' is missing: the batch has {', '.join(names) or 'no columns'}")
    count = arrow_batch.num_rows
    key = bytes_column(arrow_batch, KEY) if KEY.name in names else pa.nulls(count, KEY.type)
    columns = {KEY.name: key, VALUE.name: bytes_column(arrow_batch, VALUE)}
    if HEADERS.name in names and arrow_batch.column(HEADERS.name).null_count < count:
        columns[HEADERS.name] = _cast(arrow_batch.column(HEADERS.name), HEADERS, "a list of (key: string, value: binary)")
    if TIMESTAMP.name in names and arrow_batch.column(TIMESTAMP.name).null_count < count:
        timestamps = _cast(arrow_batch.column(TIMESTAMP.name), TIMESTAMP, "a timestamp")
        if pc.min(timestamps.view(pa.int64())).as_py() < 0:
            raise ValueError("column 'timestamp' has a time before 1970, which a log cannot hold")
        columns[TIMESTAMP.name] = timestamps
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def bytes_column(arrow_batch: pa.RecordBatch, wanted: Column) -> pa.Array:
    """Returns the column as binary with 32-bit offsets. Raises TypeError if it is neither binary nor text."""
    column = arrow_batch.column(wanted.name)
    kind = column.type
    if pa.types.is_binary(kind):
        return column
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    is_bytes = pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind)
    if is_text or is_bytes or pa.types.is_binary(kind) or pa.types.is_null(kind):
        return _cast(column, wanted, "binary or string")
    raise TypeError(f"column '{wanted.name}' is {column.type}, it must be binary or string: cast it first")


def _cast(column: pa.Array, wanted: Column, words: str) -> pa.Array:
    if column.type == wanted.type:
        return column
    try:
        return column.cast(wanted.type)
    except pa.ArrowException as error:
        raise TypeError(f"column '{wanted.name}' is {column.type}, it must be {words}: {error}") from None


def copied(arrow_batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copies the rows, so that they keep no other memory alive."""
    return pa.concat_batches([arrow_batch.slice(0, 0), arrow_batch])


def check_row_sizes(arrow_batch: pa.RecordBatch, max_request_size: int) -> None:
    """Raises MessageTooLargeError if a single row exceeds max.request.size. Free for batches below that size."""
    if arrow_batch.nbytes <= max_request_size:
        return
    sizes = _row_bytes(arrow_batch)
    largest = int(sizes.argmax())
    if sizes[largest] > max_request_size:
        raise too_large(int(sizes[largest]), max_request_size)


def small_batch_bytes(rows: pa.RecordBatch) -> int:
    """The bytes that a normalized batch takes in a chunk of records."""
    size_bytes: int = rows.nbytes + rows.num_rows * (ROW_OVERHEAD_BYTES + 8) + RECORD_OVERHEAD_BYTES
    return size_bytes


def too_large(size_bytes: int, max_request_size: int) -> MessageTooLargeError:
    """The error for a record that does not fit into any request."""
    return MessageTooLargeError(
        f"a record of {size_bytes} bytes exceeds the producer's max.request.size ({max_request_size}): raise it, and the "
        "topic's max.message.bytes to at least the same, or send smaller records",
        fate=Fate.NOT_APPENDED,
    )


def rounds(arrow_batches: list[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Groups small batches and slices large ones into rounds of at most ROUND_BYTES_MAX, so that splitting never holds a second
    copy of a large batch."""
    together: list[pa.RecordBatch] = []
    size_bytes = 0
    for arrow_batch in arrow_batches:
        count = max(1, -(-arrow_batch.nbytes // ROUND_BYTES_MAX))
        rows = max(1, -(-arrow_batch.num_rows // count))
        for at in range(0, arrow_batch.num_rows, rows):
            part = arrow_batch.slice(at, rows)
            if together and size_bytes + part.nbytes > ROUND_BYTES_MAX:
                yield together
                together, size_bytes = [], 0
            together.append(part)
            size_bytes += part.nbytes
    if together:
        yield together


# Up to this many partitions, one `take` per partition is cheaper than one `take` of all rows and a copy per partition.
_TAKES_MAX = 24


class SplitRows(NamedTuple):
    """Rows by partition. `order` maps each position to its row of the input; None = the order of the input. `first_row`: the number
    of the first row within the whole send_batch."""

    pieces: list[PartitionPiece]
    order: npt.NDArray[np.intp] | None
    first_row: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all pieces."""
        return sum([part.piece.size_bytes for part in self.pieces])


def split(
    arrow_batch: pa.RecordBatch, partitions: Int32s, partition_count: int, *, batch_size: int, timestamp_ms: int
) -> SplitRows:
    """Splits rows (normalized, at least one) by partition, keeping their order, in pieces of at most batch.size (or one row).

    Pieces are copies, not slices: with slices, a few rows for a muted partition would keep a batch of 64 MiB in memory while only
    those few rows were accounted. Each partition's rows are copied by one `take`. With many partitions, or pieces larger than
    batch.size, one `take` sorts all rows and each piece is copied out of the result.
    """
    order: npt.NDArray[np.intp] | None = None
    first = int(partitions[0])
    if (partitions == first).all():
        bounds = {first: (0, arrow_batch.num_rows)}
        rows = arrow_batch
    else:
        order, ends = sort_by_partition(partitions, partition_count)
        used = np.flatnonzero(np.diff(ends)).tolist()
        if len(used) <= _TAKES_MAX:
            places = pa.array(order)
            pieces = []
            for partition in used:
                at, count = int(ends[partition]), int(ends[partition + 1] - ends[partition])
                taken = arrow_batch.take(places.slice(at, count))
                pieces.append(PartitionPiece(partition, _piece(taken, timestamp_ms), at))
            if all(part.piece.size_bytes <= batch_size for part in pieces):
                return SplitRows(pieces, order)
        rows = arrow_batch.take(pa.array(order))
        bounds = {partition: (int(ends[partition]), int(ends[partition + 1])) for partition in used}
    if rows.nbytes + rows.num_rows * ROW_OVERHEAD_BYTES <= batch_size:
        cuts = {partition: [lo, hi] for partition, (lo, hi) in bounds.items()}
    else:
        ends_bytes = np.cumsum(_row_bytes(rows))
        cuts = {partition: _cut(ends_bytes, lo, hi, batch_size) for partition, (lo, hi) in bounds.items()}
    pieces = []
    for partition, points in cuts.items():
        for lo, hi in itertools.pairwise(points):
            pieces.append(PartitionPiece(partition, _piece(copied(rows.slice(lo, hi - lo)), timestamp_ms), lo))
    return SplitRows(pieces, order)


def _piece(rows: pa.RecordBatch, timestamp_ms: int) -> Piece:
    return Piece(rows, rows.num_rows, rows.nbytes + rows.num_rows * ROW_OVERHEAD_BYTES, timestamp_ms)


def _cut(ends_bytes: Any, lo: int, hi: int, batch_size: int) -> list[int]:
    """Cut points that divide rows [lo, hi) into parts of at most `batch_size` bytes, or one row."""
    points = [lo]
    while points[-1] < hi:
        at = points[-1]
        before = int(ends_bytes[at - 1]) if at else 0
        end = int(np.searchsorted(ends_bytes[at:hi], before + batch_size, side="right")) + at
        points.append(max(at + 1, end))
    return points


def _row_bytes(arrow_batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The approximate bytes of each row; headers count as their column's average."""
    sizes = np.full(arrow_batch.num_rows, ROW_OVERHEAD_BYTES + 8, np.int64)
    for name in (KEY.name, VALUE.name):
        column = arrow_batch.column(name)
        offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
        sizes += np.diff(offsets)
    if HEADERS.name in arrow_batch.schema.names:
        sizes += -(-arrow_batch.column(HEADERS.name).nbytes // max(1, arrow_batch.num_rows))
    return sizes


class EncodedBatch(NamedTuple):
    """A batch's payload; timestamps in ms."""

    payload: Payload
    base_timestamp: int
    max_timestamp: int

    @property
    def size_bytes(self) -> int:
        """Bytes of header and payload."""
        return HEADER_SIZE + int(self.payload.data.size)


def encode_pieces(pieces: Sequence[Piece], compression: str, schema: Schema = SCHEMA_0) -> EncodedBatch:
    """Encodes all records of a batch, in order, as one payload. Records without a timestamp get their piece's; a column missing
    from a piece is null there."""
    arrays = _columns(pieces, schema)
    timestamp = arrays[schema.timestamp.index]
    for column in schema.columns:
        if arrays[column.index] is None:
            arrays[column.index] = column.nulls(len(timestamp))
    payload = encode_payload(pa.RecordBatch.from_arrays(arrays, schema=schema.arrow), compression, schema)
    micros = timestamp.view(pa.int64()).to_numpy()
    return EncodedBatch(payload, int(micros[0]) // 1000, int(micros.max()) // 1000)


def encode_batch_header(batch: ProducerBatch, tp: TopicIdPartition) -> bytes:
    """Encodes the 96-byte header. The header carries the batch's sequence, so each drain encodes a new one."""
    encoded: EncodedBatch = batch.encoded
    header = new_header(
        batch_length=encoded.payload.data.size,
        payload_crc=encoded.payload.crc,
        record_count=encoded.payload.record_count,
        base_timestamp=encoded.base_timestamp,
        max_timestamp=encoded.max_timestamp,
        uncompressed_bytes=encoded.payload.uncompressed_bytes,
        producer_id=batch.identity.producer_id,
        producer_epoch=batch.identity.epoch,
        base_sequence=batch.base_sequence,
        attributes=Attributes.TRANSACTIONAL if batch.membership is not None else 0,
        schema_id=encoded.payload.schema_id,
    )
    return encode_header(header, crc_seed(tp))


def joined(pieces: Sequence[Piece]) -> pa.RecordBatch:
    """Joins all records, in order, into one normalized batch in which each has a timestamp."""
    arrays = zip(SCHEMA_0.names, _columns(pieces, SCHEMA_0), strict=True)
    columns = {name: array for name, array in arrays if array is not None}
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _columns(pieces: Sequence[Piece], schema: Schema) -> list[Any]:
    """The columns of all pieces; None for a column that no piece has, except the timestamp, which every record gets."""
    batches = [(piece.data, piece.data.schema.names) for piece in pieces]
    held = {name for _, names in batches for name in names}
    arrays: list[Any] = [None] * len(schema.columns)
    for name, column in ((column.name, column) for column in schema.columns if column.name in held):
        # By index: pyarrow takes half as long again to find a column by name.
        parts = [batch.column(names.index(name)) if name in names else column.nulls(batch.num_rows) for batch, names in batches]
        arrays[column.index] = _concatenated(parts)
    arrays[schema.timestamp.index] = _timestamps(pieces, has_own=TIMESTAMP.name in held)
    return arrays


def _timestamps(pieces: Sequence[Piece], *, has_own: bool) -> pa.Array:
    if has_own:
        return _concatenated([_own_timestamps(piece) for piece in pieces])
    micros = np.array([piece.timestamp_ms for piece in pieces], np.int64) * 1000
    repeated = np.repeat(micros, [piece.record_count for piece in pieces])
    return pa.Array.from_buffers(TIMESTAMP.type, len(repeated), [None, pa.py_buffer(repeated)])


def _own_timestamps(piece: Piece) -> pa.Array:
    if TIMESTAMP.name not in piece.data.schema.names:
        return pa.array(np.full(piece.record_count, piece.timestamp_ms * 1000, np.int64)).view(TIMESTAMP.type)
    column = piece.data.column(TIMESTAMP.name)
    if column.null_count:
        column = column.fill_null(pa.scalar(piece.timestamp_ms * 1000, pa.int64()).cast(TIMESTAMP.type))
    return column


def _concatenated(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def split_rows(batch: ProducerBatch, size_max: int) -> list[Piece]:
    """Splits an encoded batch of two or more records, in order, into at least two pieces of equal record count. If records have
    similar sizes, a piece has at most `size_max` bytes, uncompressed (or one record)."""
    payload = batch.encoded.payload
    rows = decode_payload(
        payload.data,
        schema_id=payload.schema_id,
        record_count=payload.record_count,
        uncompressed_bytes=payload.uncompressed_bytes,
        max_uncompressed_bytes=payload.uncompressed_bytes,
    )
    # A missing column counts as null, and a list column of nulls would take memory for its children's offsets in every piece.
    rows = rows.drop_columns([name for name, column in zip(rows.schema.names, rows.columns, strict=True) if _says_nothing(column)])
    count = max(2, -(-batch.uncompressed_bytes // size_max))
    rows_each = max(1, rows.num_rows // count)
    return [_piece(copied(rows.slice(at, rows_each)), NO_TIMESTAMP) for at in range(0, rows.num_rows, rows_each)]


def _says_nothing(column: pa.Array) -> bool:
    return bool(pa.types.is_list(column.type) and column.null_count == len(column))
