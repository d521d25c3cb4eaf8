"""The header of a record batch: 96 bytes, little-endian. ARCHITECTURE.md has the table of fields.

The broker reads and stamps headers and never decodes records, so the header carries everything that its decisions depend on.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

import google_crc32c
import pyarrow as pa

from brokerd.errors import CorruptMessageError, InvalidRequestError, UnsupportedVersionError
from brokerd.ids import MEMBER_BIT, TopicIdPartition

MARK = b"\x89bkd"
MAGIC = 1
HEADER_SIZE = 96
HEADER_WORDS = HEADER_SIZE // 8
SEQUENCE_MAX = 2**31 - 1

_HEADER = struct.Struct("<4sBBHIIqqiIqihHiiqqiIIi")
_CRC_AT = 12
_ZERO_CRC = b"\0\0\0\0"
_STAMP_TIME = struct.Struct("<qqi")
_STAMP_FLAGS_AT = 6
_STAMP_AT = 16
_EPOCH_ID_AT = 88
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_STAMP_EPOCH_ID = struct.Struct("<Ii")  # and clock_ahead_s
_SEED = struct.Struct("<16si")


class StampFlags(enum.IntFlag):
    """Flags set by the leader's stamp."""

    LOG_APPEND_TIME = 1


class Attributes(enum.IntFlag):
    """Properties of the batch, set when it is built. Bits 3-5 hold the payload kind."""

    TRANSACTIONAL = 1
    CONTROL = 2


PAYLOAD_KIND_SHIFT = 3
PAYLOAD_KIND_MASK = 0b111 << PAYLOAD_KIND_SHIFT
PAYLOAD_KIND_ARROW = 0
# A plain int: the complement of an IntFlag holds only bits that the class defines, so unknown bits would pass.
KNOWN_ATTRIBUTES = int(Attributes.TRANSACTIONAL | Attributes.CONTROL) | PAYLOAD_KIND_MASK


# Plain ints: one operation on an IntFlag takes longer than the rest of a check.
_TRANSACTIONAL = int(Attributes.TRANSACTIONAL)
_CONTROL = int(Attributes.CONTROL)
_LOG_APPEND_TIME = int(StampFlags.LOG_APPEND_TIME)


class BatchHeader(NamedTuple):
    """All fields, in byte order. S = stamped by the leader, zero in a client's batch."""

    mark: bytes
    magic: int
    header_words: int
    stamp_flags: int  # S
    batch_length: int  # bytes after the header, multiple of 8
    header_crc: int  # S
    base_offset: int  # S
    append_timestamp: int  # S, ms
    leader_epoch: int  # S
    payload_crc: int
    producer_id: int  # -1 = not idempotent
    base_sequence: int
    producer_epoch: int
    attributes: int
    last_offset_delta: int
    record_count: int
    base_timestamp: int  # ms
    max_timestamp: int  # ms
    schema_id: int
    uncompressed_bytes: int
    leader_epoch_id: int  # S, random, drawn by each leader: never shared by an earlier or restored state of this log
    clock_ahead_s: int  # S: how far append_timestamp is ahead of the log time, which retention uses

    @property
    def log_time(self) -> int:
        """The time of the append that retention uses, ms."""
        return self.append_timestamp - 1_000 * self.clock_ahead_s

    @property
    def is_log_append_time(self) -> bool:
        """True if `append_timestamp` replaces the records' timestamps."""
        return bool(self.stamp_flags & _LOG_APPEND_TIME)

    @property
    def readers_timestamp(self) -> int:
        """The largest timestamp as readers see it, ms."""
        return self.append_timestamp if self.stamp_flags & _LOG_APPEND_TIME else self.max_timestamp

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset after the last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; wraps from 2^31-1 to 0."""
        return add_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def header_size(self) -> int:
        """Bytes of this header; a later version may have a longer one."""
        return self.header_words * 8

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.header_words * 8 + self.batch_length

    @property
    def is_control(self) -> bool:
        """True for a control batch, written by the broker."""
        return bool(self.attributes & _CONTROL)

    @property
    def is_transactional(self) -> bool:
        """True if the batch belongs to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_of_member(self) -> bool:
        """True if the producer id was issued for a transaction."""
        return self.producer_id > 0 and bool(self.producer_id & MEMBER_BIT)

    @property
    def payload_kind(self) -> int:
        """0 = Arrow."""
        return (self.attributes & PAYLOAD_KIND_MASK) >> PAYLOAD_KIND_SHIFT


def add_sequence(sequence: int, count: int) -> int:
    """Advances a sequence by `count`; wraps from 2^31-1 to 0, like Kafka's DefaultRecordBatch.incrementSequence."""
    return (sequence + count) & SEQUENCE_MAX


def crc_seed(tp: TopicIdPartition) -> int:
    """The initial value of this partition's header CRCs, so that a batch of another partition never passes."""
    seed: int = google_crc32c.value(_SEED.pack(tp.topic_id, tp.partition))
    return seed


def decode_header(data: bytes) -> BatchHeader:
    """Decodes the first 96 bytes of `data` without verifying them (see `header_problem`). Raises CorruptMessageError if `data` is
    shorter."""
    if len(data) < HEADER_SIZE:
        raise CorruptMessageError(f"a batch header has {HEADER_SIZE} bytes, but only {len(data)} were given")
    return BatchHeader._make(_HEADER.unpack_from(data))


def header_size_claimed(data: bytes) -> int:
    """The size that the header claims, at least 96 bytes; a later version may be longer. `data` holds at least 12 bytes."""
    return max(HEADER_SIZE, data[5] * 8)


def header_crc(data: bytes, seed: int) -> int:
    """CRC32C of a whole header, starting from `seed`, with the CRC field itself taken as zero."""
    crc: int = google_crc32c.extend(seed, data[:_CRC_AT] + _ZERO_CRC + data[_CRC_AT + 4 :])
    return crc


def header_problem(header: BatchHeader, data: bytes, seed: int) -> str | None:
    """Why these bytes are not a valid header of this partition, or None. `data` is the whole header, of the size that it claims.

    Raises UnsupportedVersionError for an intact header of an unknown version; a wrong CRC takes precedence.
    """
    if header.mark != MARK:
        return "the mark is missing"
    if header.header_words < HEADER_WORDS:
        return f"header_words is {header.header_words}, less than {HEADER_WORDS}"
    if len(data) != header.header_size:
        return f"the header has {header.header_size} bytes, but only {len(data)} were given"
    if header.header_crc != header_crc(data, seed):
        return "header_crc does not match"
    if header.magic != MAGIC:
        raise UnsupportedVersionError(f"record batch version {header.magic} is not known; this version reads {MAGIC}")
    return None


def produced_header(data: pa.Buffer, seed: int) -> BatchHeader:
    """Returns the header of a client's whole batch, with all checks but that of the payload kind. Raises CorruptMessageError,
    UnsupportedVersionError, InvalidRequestError.
    """
    prefix = data.slice(0, min(HEADER_SIZE, data.size)).to_pybytes()
    header = decode_header(prefix)
    size = header_size_claimed(prefix)
    whole = prefix if size == HEADER_SIZE else data.slice(0, min(size, data.size)).to_pybytes()
    problem = header_problem(header, whole, seed)
    if problem:
        raise CorruptMessageError(f"record batch refused: {problem}")
    if header.size != data.size:
        raise CorruptMessageError(f"batch_length makes {header.size} bytes, but {data.size} were received")
    _check_client_fields(header)
    return header


def _check_client_fields(header: BatchHeader) -> None:
    """Checks that the leader's fields are zero, counts agree and no unknown bits are set. Raises InvalidRequestError."""
    if (
        header.stamp_flags
        or header.base_offset
        or header.append_timestamp
        or header.leader_epoch
        or header.leader_epoch_id
        or header.clock_ahead_s
    ):
        raise InvalidRequestError(
            "stamp_flags, base_offset, append_timestamp, leader_epoch, leader_epoch_id and clock_ahead_s must be 0 in a client's "
            "batch"
        )
    if header.attributes & ~KNOWN_ATTRIBUTES:
        raise InvalidRequestError(f"attributes {header.attributes:#06x} has bits that are not known")
    if header.attributes & _CONTROL:
        raise InvalidRequestError("control batches are written by the broker only")
    if header.batch_length % 8 or header.batch_length == 0:
        raise InvalidRequestError(f"batch_length is {header.batch_length}, not a positive multiple of 8")
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise InvalidRequestError(
            f"record_count {header.record_count} and last_offset_delta {header.last_offset_delta} must be n and n - 1, n at least 1"
        )
    is_idempotent = header.producer_id >= 0 and header.producer_epoch >= 0 and 0 <= header.base_sequence <= SEQUENCE_MAX
    is_plain = header.producer_id == -1 and header.producer_epoch == -1 and header.base_sequence == -1
    if not is_idempotent and not is_plain:
        raise InvalidRequestError(
            f"producer_id {header.producer_id}, producer_epoch {header.producer_epoch} and base_sequence {header.base_sequence} "
            "must be all -1 or all at least 0"
        )
    if header.attributes & _TRANSACTIONAL and not is_idempotent:
        raise InvalidRequestError("attributes has the transactional bit, but producer_id is -1: a transaction needs a producer id")
    if header.base_timestamp < 0 or header.max_timestamp < 0:
        raise InvalidRequestError(
            f"base_timestamp {header.base_timestamp} and max_timestamp {header.max_timestamp} must not be negative (ms since 1970)"
        )


def encode_header(header: BatchHeader, seed: int) -> bytes:
    """Encodes the header in 96 bytes. Computes header_crc and ignores the field's value."""
    data = _HEADER.pack(*header._replace(header_crc=0))
    return data[:_CRC_AT] + _U32.pack(header_crc(data, seed)) + data[_CRC_AT + 4 :]


def stamp(data: bytes | pa.Buffer, header: BatchHeader, seed: int) -> bytes:
    """The header of a client's batch (`data` begins with it), with the stamp of `header` and a new header_crc. Takes about 1 µs."""
    stamped = bytearray(memoryview(data)[: header.header_size])
    _U16.pack_into(stamped, _STAMP_FLAGS_AT, header.stamp_flags)
    _STAMP_TIME.pack_into(stamped, _STAMP_AT, header.base_offset, header.append_timestamp, header.leader_epoch)
    _STAMP_EPOCH_ID.pack_into(stamped, _EPOCH_ID_AT, header.leader_epoch_id, header.clock_ahead_s)
    _U32.pack_into(stamped, _CRC_AT, 0)
    _U32.pack_into(stamped, _CRC_AT, google_crc32c.extend(seed, bytes(stamped)))
    return bytes(stamped)


def new_header(
    *,
    batch_length: int,
    payload_crc: int,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    uncompressed_bytes: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
    schema_id: int = 0,
) -> BatchHeader:
    """An unstamped header with dense offsets, as clients send it. Timestamps in ms."""
    return BatchHeader(
        mark=MARK,
        magic=MAGIC,
        header_words=HEADER_WORDS,
        stamp_flags=0,
        batch_length=batch_length,
        header_crc=0,
        base_offset=0,
        append_timestamp=0,
        leader_epoch=0,
        payload_crc=payload_crc,
        producer_id=producer_id,
        base_sequence=base_sequence,
        producer_epoch=producer_epoch,
        attributes=attributes,
        last_offset_delta=record_count - 1,
        record_count=record_count,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        schema_id=schema_id,
        uncompressed_bytes=uncompressed_bytes,
        leader_epoch_id=0,
        clock_ahead_s=0,
    )
