"""Whole record batches: checked by the broker before an append, walked in files and on the wire by one rule.

A batch is whole, and the next one in its log, if

    its header is intact: mark, length and CRC are right for this partition, and the version is known;
    its base offset is the next offset of the previous batch, and its last_offset_delta is not negative;
    its leader epoch is neither below that of the previous batch nor above the current one;
    all its bytes are present; and, where the payload is read, the payload's CRC is right.

The record count plays no part: a batch may cover offsets without records, as control batches do. Callers decide how to handle a
batch that is not whole.

Bytes are held as pa.Buffer, whose slices are not copies and which google-crc32c accepts. header.py stamps headers, schema.py
encodes columns.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import google_crc32c
import pyarrow as pa

from brokerd.errors import CorruptMessageError, InvalidRequestError, MessageTooLargeError, UnsupportedVersionError
from brokerd.record.header import (
    HEADER_SIZE,
    HEADER_WORDS,
    MAGIC,
    MARK,
    PAYLOAD_KIND_ARROW,
    PAYLOAD_KIND_MASK,
    BatchHeader,
    decode_header,
    produced_header,
)
from brokerd.record.schema import SCHEMAS, decode_payload, payload_crc

Bytes: TypeAlias = bytes | bytearray | memoryview
NO_OFFSET_LIMIT = 2**63 - 1
NO_EPOCH_LIMIT = 2**31 - 1
_NO_END = 2**64  # above the end of any batch, whatever its header says
# mark, magic, header_words, batch_length, header_crc, base_offset, leader_epoch, last_offset_delta
_unpack = struct.Struct("<4sBB2xIIq8xi20xi").unpack_from
_extend = google_crc32c.extend
_ZERO_CRC = b"\0\0\0\0"
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
        """The records as columns of the batch's schema.

        Raises CorruptMessageError if CRC, counts or lengths disagree, and UnsupportedVersionError; both name the base offset.
        """
        header = self.header
        payload = self.payload
        try:
            if check_crc and google_crc32c.value(payload) != header.payload_crc:
                raise CorruptMessageError("payload_crc does not match")
            if header.payload_kind != PAYLOAD_KIND_ARROW:
                raise UnsupportedVersionError(f"payload kind {header.payload_kind} is not known")
            return decode_payload(
                payload,
                schema_id=header.schema_id,
                record_count=header.record_count,
                uncompressed_bytes=header.uncompressed_bytes,
                max_uncompressed_bytes=max_uncompressed_bytes,
            )
        except (CorruptMessageError, UnsupportedVersionError) as error:
            raise type(error)(f"batch at offset {header.base_offset}: {error.message}") from None


def values_of(batch: RecordBatch) -> list[bytes]:
    """The values of a batch of the coordinator's log, one for each offset. Raises CorruptMessageError,
    UnsupportedVersionError.
    """
    values = batch.to_arrow(max_uncompressed_bytes=MAX_DECOMPRESSED_BYTES).column("value")
    return [value or b"" for value in values.to_pylist()]


def check_produced(
    data: pa.Buffer, seed: int, *, max_message_bytes: int, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
) -> RecordBatch:
    """Checks a client's batch before the broker appends it. Never allocates a size that the batch claims.

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


class Walk(NamedTuple):
    """The batches found in a chunk. Positions are relative to the chunk."""

    start: int  # of the batch that holds the wanted offset
    end: int  # after the last whole batch below until_offset
    first_offset: int  # base offset at `start`
    next_offset: int  # offset after `end`
    needed: int  # bytes of the batch at `end` if the chunk cuts it off, else 0
    reached_until: bool
    problem: str | None  # why the batch at `end` is not whole
    is_newer: bool  # the problem is an unknown version
    is_outdated: bool  # the batch would be the next one, but its leader epoch is above `max_epoch`


def walk_whole(
    data: Bytes,
    at: int,
    end: int,
    seed: int | None,
    offset: int | None,
    epoch: int = 0,
    max_epoch: int = NO_EPOCH_LIMIT,
    *,
    wanted: int = -1,
    until_offset: int = _NO_END,
    only_headers: bool = False,
    positions: list[int] | None = None,
) -> Walk:
    """Walks the whole batches in `data` from `at` on. The first must have base offset `offset` (None: any, and gaps are allowed).
    `start` skips batches below `wanted`; the walk ends at `until_offset`. `only_headers`: payloads need not be in `data`. `end`: of
    the log, relative to `data`. `epoch`: leader epoch of the previous batch. `seed` None: no CRC check. `positions` collects the
    batches' positions. A hot loop.
    """
    total = len(data)
    start, first_offset, next_offset, needed, problem = at, offset or 0, offset or 0, 0, None
    reached_until = is_newer = is_outdated = False
    while at < total:
        if at + HEADER_SIZE > total:
            needed, problem = _cut(HEADER_SIZE, end - at)
            break
        mark, magic, words, length, crc, base, own_epoch, delta = _unpack(data, at)
        header_size = words * 8
        if mark != MARK or words < HEADER_WORDS:
            problem = "the mark is missing" if mark != MARK else f"header_words is {words}, less than {HEADER_WORDS}"
            break
        if at + header_size > total:
            needed, problem = _cut(header_size, end - at)
            break
        if seed is not None and _extend(seed, b"".join((data[at : at + 12], _ZERO_CRC, data[at + 16 : at + header_size]))) != crc:
            problem = "header_crc does not match"
            break
        if magic != MAGIC:
            problem, is_newer = f"record batch version {magic} is not known; this version reads {MAGIC}", True
            break
        if (base != offset and offset is not None) or delta < 0 or not epoch <= own_epoch <= max_epoch:
            problem, is_outdated = _chain_problem(base, offset, delta, own_epoch, epoch, max_epoch)
            break
        size, behind = header_size + length, base + delta + 1
        reached_until = behind > until_offset
        if reached_until:
            break
        if at + size > total:
            problem = f"{at + size - end} of its {size} bytes are missing" if at + size > end else None
            needed = size if problem is None and not only_headers else 0
            if needed or problem is not None:
                break
        if positions is not None:
            positions.append(at)
        at += size
        next_offset, epoch = behind, own_epoch
        offset = None if offset is None else behind
        if next_offset <= wanted:
            start, first_offset = at, next_offset
    return Walk(start, at, first_offset, next_offset, needed, reached_until, problem, is_newer, is_outdated)


def payload_problem(payload: Bytes, length: int, crc: int) -> str | None:
    """Why these bytes are not a payload of this length and CRC, or None."""
    return None if len(payload) == length and google_crc32c.value(bytes(payload)) == crc else "payload_crc does not match"


def _cut(needed: int, there: int) -> tuple[int, str | None]:
    """The bytes needed to continue, or why they are missing."""
    return (needed, None) if there >= needed else (0, f"the header has only {there} bytes")


def _chain_problem(base: int, offset: int | None, delta: int, own_epoch: int, epoch: int, max_epoch: int) -> tuple[str, bool]:
    """Why a batch is not the next one, and `Walk.is_outdated`."""
    if base != offset and offset is not None:
        return f"base offset {base} instead of {offset}", False
    if delta < 0:
        return f"last_offset_delta is {delta}", False
    if own_epoch < epoch:
        return f"leader epoch {own_epoch} is below {epoch}, that of the batch before", False
    return f"leader epoch {own_epoch} is above {max_epoch}: the files checkpoint and node-epoch are older than the log", True


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
    gaps, since a broker skips batches that an operator took out.

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
        raise CorruptMessageError(f"no whole batch at byte {walk.end} of the broker's response: {walk.problem}")
