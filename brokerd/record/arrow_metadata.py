"""Parses the metadata of one Arrow IPC encapsulated message, without pyarrow and without touching a column.

The broker needs the row count and checks that all lengths add up, since a client may send anything. A reader needs the
decompressed size before it allocates. Layout: Arrow's Message.fbs and the flatbuffers binary format.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from brokerd.errors import CorruptMessageError

_CONTINUATION = 0xFFFFFFFF
_VERSION_5 = 4  # MetadataVersion.V5, written by every Arrow since 1.0
_RECORD_BATCH = 3  # MessageHeader.RecordBatch
_BUFFER_METHOD = 0  # BodyCompressionMethod.BUFFER
_METADATA_MAX_BYTES = 65_536
_U16 = struct.Struct("<H")
_I16 = struct.Struct("<h")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_I64 = struct.Struct("<q")
_PREFIX = struct.Struct("<Ii")
_NOT_COMPRESSED = -1  # as a buffer's length prefix
_CODECS = {0: "lz4", 1: "zstd"}


class ArrowMetadata(NamedTuple):
    """The metadata of an Arrow record batch message. Lengths in bytes; positions are within the payload."""

    rows: int
    body_at: int
    node_lengths: tuple[int, ...]
    buffers: tuple[tuple[int, int], ...]  # (offset in the body, length)
    compression: str  # none, lz4 or zstd


def read_arrow_metadata(payload: memoryview) -> ArrowMetadata:
    """Returns the metadata of the record batch message that fills `payload`. Raises CorruptMessageError on anything else.

    Checks everything that the metadata alone can show: every length fits its container, buffers lie inside the body, and the
    message fills the payload exactly.
    """
    try:
        return _read(payload)
    except (struct.error, IndexError, OverflowError):
        raise CorruptMessageError("the Arrow metadata of the batch points outside itself") from None


def uncompressed_lengths(metadata: ArrowMetadata, payload: memoryview) -> list[int]:
    """The decompressed size that each buffer claims, in bytes: the upper bound of Arrow's allocation.

    Raises CorruptMessageError if a claim is negative or cannot be read.
    """
    if metadata.compression == "none":
        return [length for _, length in metadata.buffers]
    lengths = []
    for offset, length in metadata.buffers:
        if length == 0:
            lengths.append(0)
            continue
        if length <= _I64.size:
            raise CorruptMessageError(f"a compressed Arrow buffer has {length} bytes: nothing behind its length prefix")
        claimed: int = _I64.unpack_from(payload, metadata.body_at + offset)[0]
        if claimed < _NOT_COMPRESSED:
            raise CorruptMessageError(f"a compressed Arrow buffer claims {claimed} bytes")
        lengths.append(length - _I64.size if claimed == _NOT_COMPRESSED else claimed)
    return lengths


def _read(payload: memoryview) -> ArrowMetadata:
    continuation, metadata_length = _PREFIX.unpack_from(payload, 0)
    if continuation != _CONTINUATION:
        raise CorruptMessageError("the payload is not an Arrow IPC message: its first four bytes are not ff ff ff ff")
    body_at = _PREFIX.size + metadata_length
    if not 0 < metadata_length <= min(_METADATA_MAX_BYTES, len(payload) - _PREFIX.size) or body_at % 8:
        raise CorruptMessageError(f"the Arrow metadata claims {metadata_length} bytes, more than fit or not aligned")
    flat = payload[_PREFIX.size : body_at]
    message = _indirect(flat, 0)
    version_at, kind_at, header_at, length_at, custom_at = _fields(flat, message, 5)
    _refuse_what_arrow_reads_differently(flat, version_at, custom_at)
    if not kind_at or not header_at or flat[kind_at] != _RECORD_BATCH:
        raise CorruptMessageError("the payload is an Arrow message, but not a record batch")
    body_length = _i64(flat, length_at)
    if body_length < 0 or body_at + body_length != len(payload):
        raise CorruptMessageError(f"the Arrow body claims {body_length} bytes where {len(payload) - body_at} are")
    batch = _indirect(flat, header_at)
    rows_at, nodes_at, buffers_at, compression_at, views_at = _fields(flat, batch, 5)
    nodes, buffers = _pairs(flat, nodes_at), _pairs(flat, buffers_at)
    for offset, length in buffers:
        if offset < 0 or length < 0 or offset % 8 or offset + length > body_length:
            raise CorruptMessageError(f"an Arrow buffer at {offset} of {length} bytes lies outside its body of {body_length}")
    if views_at:
        raise CorruptMessageError("view columns are not accepted")
    lengths = tuple(length for length, _ in nodes)
    for length, null_count in nodes:
        if length < 0 or not 0 <= null_count <= length:
            raise CorruptMessageError(f"an Arrow column claims {length} rows and {null_count} nulls")
    return ArrowMetadata(_i64(flat, rows_at), body_at, lengths, buffers, _compression(flat, compression_at))


def _refuse_what_arrow_reads_differently(flat: memoryview, version_at: int, custom_at: int) -> None:
    """Refuses metadata versions other than 5, and custom metadata. Arrow honours a codec in the custom metadata of a version 4
    message (the format before 1.0), and would decompress without bound buffers that this module takes for uncompressed.
    """
    version = _I16.unpack_from(flat, version_at)[0] if version_at else 0
    if version != _VERSION_5:
        raise CorruptMessageError(f"the Arrow message has metadata version {version + 1}; only version {_VERSION_5 + 1} is read")
    if custom_at:
        raise CorruptMessageError("the Arrow message has custom metadata, which is not accepted")


def _compression(flat: memoryview, at: int) -> str:
    if not at:
        return "none"
    codec_at, method_at = _fields(flat, _indirect(flat, at), 2)
    codec = flat[codec_at] if codec_at else 0
    if codec not in _CODECS:
        raise CorruptMessageError(f"Arrow compression codec {codec} is not known")
    if method_at and flat[method_at] != _BUFFER_METHOD:
        raise CorruptMessageError(f"Arrow compression method {flat[method_at]} is not known")
    return _CODECS[codec]


def _indirect(flat: memoryview, at: int) -> int:
    target: int = at + _U32.unpack_from(flat, at)[0]
    if not 0 <= target < len(flat):
        raise IndexError(target)
    return target


def _fields(flat: memoryview, table: int, count: int) -> list[int]:
    """Positions of a table's first `count` fields; 0 for an absent field."""
    vtable = table - _I32.unpack_from(flat, table)[0]
    if vtable < 0:
        raise IndexError(vtable)
    size = _U16.unpack_from(flat, vtable)[0]
    held = min(max(0, (size - 4) // 2), count)
    offsets = struct.unpack_from(f"<{held}H", flat, vtable + 4)
    return [table + offset if offset else 0 for offset in offsets] + [0] * (count - held)


def _i64(flat: memoryview, at: int) -> int:
    value: int = _I64.unpack_from(flat, at)[0] if at else 0
    return value


def _pairs(flat: memoryview, at: int) -> tuple[tuple[int, int], ...]:
    """Reads a vector of structs of two int64 each."""
    if not at:
        return ()
    vector = _indirect(flat, at)
    count = _U32.unpack_from(flat, vector)[0]
    if vector + 4 + 16 * count > len(flat):
        raise IndexError(count)
    return tuple(struct.iter_unpack("<qq", flat[vector + 4 : vector + 4 + 16 * count]))
