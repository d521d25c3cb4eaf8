"""Whole record batches: checked by the broker before an append, iterated over by a reader.

Bytes are held as pa.Buffer, whose slices are not copies and which google-crc32c accepts. header.py stamps headers, payload.py
encodes columns.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from brokerd.errors import CorruptMessageError, InvalidRequestError, MessageTooLargeError, UnsupportedVersionError
from brokerd.record.header import HEADER_SIZE, PAYLOAD_KIND_ARROW, PAYLOAD_KIND_MASK, BatchHeader, decode_header, produced_header
from brokerd.record.payload import decode_payload, payload_crc
from brokerd.record.schema import SCHEMAS
from brokerd.record.whole import NO_OFFSET_LIMIT, Bytes, walk_whole

_producer_id = struct.Struct("<40xq").unpack_from
MAX_DECOMPRESSED_BYTES = 268_435_456  # default limit of readers


class RecordBatch(NamedTuple):
    """The decoded header of a batch, and all its bytes, header included."""

    header: BatchHeader
    data: pa.Buffer

    @property
    def header_bytes(self) -> bytes:
        """The header's bytes."""
        return self.data.slice(0, self.header.header_words * 8).to_pybytes()  # type: ignore[no-any-return]

    @property
    def payload(self) -> pa.Buffer:
        """The payload's bytes; a view."""
        return self.data.slice(self.header.header_words * 8)

    def to_arrow(self, *, max_uncompressed_bytes: int, check_crc: bool = True) -> pa.RecordBatch:
        """The records as columns of the batch's schema (plus `offset_delta` if sparse).

        Raises CorruptMessageError if CRC, counts or lengths disagree, and UnsupportedVersionError; both name the base offset.
        """
        header = self.header
        payload = self.payload
        try:
            if check_crc and payload_crc(payload) != header.payload_crc:
                raise CorruptMessageError("payload_crc does not match")
            if header.payload_kind != PAYLOAD_KIND_ARROW:
                raise UnsupportedVersionError(f"payload kind {header.payload_kind} is not known")
            return decode_payload(
                payload,
                schema_id=header.schema_id,
                record_count=header.record_count,
                uncompressed_bytes=header.uncompressed_bytes,
                max_uncompressed_bytes=max_uncompressed_bytes,
                is_sparse=header.has_sparse_offsets,
            )
        except (CorruptMessageError, UnsupportedVersionError) as error:
            raise type(error)(f"batch at offset {header.base_offset}: {error.message}") from None


def check_produced(
    data: pa.Buffer, seed: int, *, max_message_bytes: int, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
) -> RecordBatch:
    """Checks a client's batch before the broker appends it. Allocates nothing of a size that the batch claims.

    Raises MessageTooLargeError, CorruptMessageError, UnsupportedVersionError, InvalidRequestError.
    """
    if data.size > max_message_bytes:
        raise MessageTooLargeError(
            f"a record batch of {data.size} bytes exceeds the topic's max.message.bytes ({max_message_bytes}): "
            "lower the producer's batch.size, or raise max.message.bytes"
        )
    header = produced_header(data, seed)
    schema = SCHEMAS.get(header.schema_id)
    if header.attributes & PAYLOAD_KIND_MASK or schema is None:
        known = " or ".join(map(str, SCHEMAS))
        raise InvalidRequestError(
            f"payload kind {header.payload_kind} with schema_id {header.schema_id} is not accepted; 0 and {known} are"
        )
    batch = RecordBatch(header, data)
    payload = batch.payload
    schema.check(memoryview(payload), record_count=header.record_count, uncompressed_bytes=header.uncompressed_bytes)
    if header.uncompressed_bytes > max_decompressed_bytes:
        raise MessageTooLargeError(
            f"a record batch of {header.uncompressed_bytes} bytes decompressed exceeds message.max.decompressed.bytes "
            f"({max_decompressed_bytes}): lower the producer's batch.size, or raise that setting"
        )
    if payload_crc(payload) != header.payload_crc:
        raise CorruptMessageError("record batch refused: payload_crc does not match, the bytes changed in transit")
    return batch


def producer_ids_in(data: Bytes) -> set[int]:
    """The producer ids of whole batches read from a log. Decodes no header."""
    positions: list[int] = []
    walk_whole(data, 0, NO_OFFSET_LIMIT, None, None, positions=positions)
    return {_producer_id(data, position)[0] for position in positions}


def begun_below(data: Bytes, until_offset: int) -> tuple[int, int]:
    """Bytes of the whole batches in `data`, read from a log, that begin below `until_offset`, and the offset after them."""
    walk = walk_whole(data, 0, NO_OFFSET_LIMIT, None, None, until_offset=until_offset)
    if walk.reached_until:
        header = decode_header(bytes(memoryview(data)[walk.end : walk.end + HEADER_SIZE]))
        if header.base_offset < until_offset:
            return walk.end + header.size, header.next_offset
    return walk.end, walk.next_offset


def walk_batches(data: pa.Buffer, seed: int | None = None) -> Iterator[RecordBatch]:
    """Iterates over the whole batches in `data`; skips a truncated last one. With `seed`, checks header CRCs. Offsets may have
    gaps, since a broker skips batches that an operator has removed.

    Raises CorruptMessageError, UnsupportedVersionError.
    """
    positions: list[int] = []
    walk = walk_whole(memoryview(data), 0, NO_OFFSET_LIMIT, seed, None, positions=positions)
    for position, end in itertools.pairwise((*positions, walk.end)):
        header = decode_header(data.slice(position, HEADER_SIZE).to_pybytes())
        yield RecordBatch(header, data.slice(position, end - position))
    if walk.is_newer:
        raise UnsupportedVersionError(walk.problem or "")
    if walk.problem is not None:
        raise CorruptMessageError(f"no whole batch stands at byte {walk.end} of what the broker sent: {walk.problem}")
