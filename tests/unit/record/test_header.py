"""The header codec: every field round-trips, a stamp changes only its own fields, headers of other partitions never pass."""

from __future__ import annotations

import dataclasses
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.ids import TopicIdPartition
from brokerd.record.header import (
    HEADER_SIZE,
    MARK,
    SEQUENCE_MAX,
    Attributes,
    BatchHeader,
    add_sequence,
    crc_seed,
    decode_header,
    encode_header,
    header_problem,
    new_header,
    stamp,
)
from tests.support.records import SEED, TP


@dataclasses.dataclass(frozen=True)
class Field:
    """A field's place in the header, copied from the format's table so that a slip in the codec shows."""

    at: int
    code: str
    bits: int


FIELDS = {
    "stamp_flags": Field(6, "<H", 16),
    "batch_length": Field(8, "<I", 32),
    "base_offset": Field(16, "<q", 63),
    "append_timestamp": Field(24, "<q", 63),
    "leader_epoch": Field(32, "<i", 31),
    "payload_crc": Field(36, "<I", 32),
    "producer_id": Field(40, "<q", 63),
    "base_sequence": Field(48, "<i", 31),
    "producer_epoch": Field(52, "<h", 15),
    "attributes": Field(54, "<H", 16),
    "last_offset_delta": Field(56, "<i", 31),
    "record_count": Field(60, "<i", 31),
    "base_timestamp": Field(64, "<q", 63),
    "max_timestamp": Field(72, "<q", 63),
    "schema_id": Field(80, "<i", 31),
    "uncompressed_bytes": Field(84, "<I", 32),
    "leader_epoch_id": Field(88, "<I", 32),
    "clock_ahead_s": Field(92, "<i", 31),
}


def plain() -> BatchHeader:
    return new_header(batch_length=8, payload_crc=1, record_count=3, base_timestamp=4, max_timestamp=5, uncompressed_bytes=6)


def values_of(field: Field) -> st.SearchStrategy[int]:
    lowest = 0 if field.code[1].isupper() else -(2**field.bits)
    return st.integers(lowest, 2**field.bits - 1)


headers = st.builds(lambda **fields: plain()._replace(**fields), **{name: values_of(f) for name, f in FIELDS.items()})


@given(headers)
def test_every_field_stands_where_the_table_says_and_comes_back(header: BatchHeader) -> None:
    data = encode_header(header, SEED)
    assert len(data) == HEADER_SIZE
    assert data[:6] == MARK + bytes([1, 12])
    for name, field in FIELDS.items():
        assert struct.unpack_from(field.code, data, field.at)[0] == getattr(header, name), name
    decoded = decode_header(data)
    assert decoded == header._replace(header_crc=decoded.header_crc)
    assert header_problem(decoded, data, SEED) is None


@given(headers, st.integers(0, HEADER_SIZE * 8 - 1))
def test_any_flipped_bit_is_noticed(header: BatchHeader, bit: int) -> None:
    data = bytearray(encode_header(header, SEED))
    data[bit // 8] ^= 1 << bit % 8
    assert header_problem(decode_header(bytes(data)), bytes(data), SEED) is not None


@given(headers, st.binary(min_size=16, max_size=16), st.integers(-(2**31), 2**31 - 1))
def test_a_header_of_another_partition_never_passes(header: BatchHeader, topic_id: bytes, partition: int) -> None:
    other = TopicIdPartition(topic_id, partition)
    data = encode_header(header, crc_seed(other))
    problem = header_problem(decode_header(data), data, SEED)
    assert (problem is None) == (other == TP)


@pytest.mark.parametrize("other", [TP._replace(partition=2), TP._replace(topic_id=bytes(16))])
def test_the_seed_depends_on_topic_id_and_on_partition(other: TopicIdPartition) -> None:
    data = encode_header(plain(), crc_seed(other))
    assert header_problem(decode_header(data), data, SEED) == "header_crc does not match"


def test_zeros_never_pass() -> None:
    data = bytes(HEADER_SIZE)
    assert header_problem(decode_header(data), data, SEED) == "the mark is missing"
    data = MARK + bytes([1, 12]) + bytes(HEADER_SIZE - 6)
    assert header_problem(decode_header(data), data, SEED) == "header_crc does not match"


@given(headers, headers, st.integers(1, HEADER_SIZE // 8 - 1))
def test_a_header_torn_over_a_stale_one_never_passes(new: BatchHeader, stale: BatchHeader, words: int) -> None:
    data, old = encode_header(new, SEED), encode_header(stale, SEED)
    torn = data[: words * 8] + old[words * 8 :]
    assert (header_problem(decode_header(torn), torn, SEED) is None) == (torn in (data, old))


def test_fewer_words_than_the_first_version_has_are_refused() -> None:
    data = encode_header(plain()._replace(header_words=11), SEED)
    assert header_problem(decode_header(data), data, SEED) == "header_words is 11, less than 12"


def test_a_short_header_is_refused_with_its_length() -> None:
    with pytest.raises(CorruptMessageError, match="96 bytes, but only 95"):
        decode_header(bytes(95))


def test_an_unknown_version_is_told_from_rubbish_by_its_crc() -> None:
    data = encode_header(plain()._replace(magic=2), SEED)
    with pytest.raises(UnsupportedVersionError, match="version 2 is not known"):
        header_problem(decode_header(data), data, SEED)
    rubbish = data[:95] + b"\xff"
    assert header_problem(decode_header(rubbish), rubbish, SEED) == "header_crc does not match"


@given(
    headers,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.booleans(),
)
def test_a_stamp_changes_its_own_fields_and_nothing_else(
    header: BatchHeader,
    base_offset: int,
    append_timestamp: int,
    leader_epoch: int,
    epoch_id: int,
    ahead_s: int,
    is_log_append_time: bool,
) -> None:
    expected = header._replace(
        stamp_flags=int(is_log_append_time),
        base_offset=base_offset,
        append_timestamp=append_timestamp,
        leader_epoch=leader_epoch,
        leader_epoch_id=epoch_id,
        clock_ahead_s=ahead_s,
        header_crc=0,
    )
    stamped = stamp(encode_header(header, SEED), expected._replace(producer_id=77, record_count=78), SEED)
    decoded = decode_header(stamped)
    assert header_problem(decoded, stamped, SEED) is None
    assert decoded._replace(header_crc=0) == expected


def test_a_longer_header_is_stamped_and_keeps_what_is_not_known() -> None:
    extra = b"unknown!"
    data = encode_header(plain()._replace(header_words=13), SEED) + extra
    stamped = stamp(data, plain()._replace(header_words=13, base_offset=7, append_timestamp=8, leader_epoch=9), SEED)
    decoded = decode_header(stamped)
    assert header_problem(decoded, stamped, SEED) is None
    assert stamped[HEADER_SIZE:] == extra
    assert decoded.header_size == HEADER_SIZE + 8
    assert header_problem(decoded, stamped[:HEADER_SIZE], SEED) == "the header has 104 bytes, but only 96 were given"


@pytest.mark.parametrize(
    ("sequence", "count", "expected"),
    [(0, 1, 1), (SEQUENCE_MAX, 1, 0), (SEQUENCE_MAX - 1, 3, 1), (SEQUENCE_MAX, 0, SEQUENCE_MAX)],
)
def test_sequences_wrap_from_the_largest_to_zero(sequence: int, count: int, expected: int) -> None:
    assert add_sequence(sequence, count) == expected


def test_what_is_derived_from_the_fields() -> None:
    header = plain()._replace(base_offset=100, base_sequence=SEQUENCE_MAX, last_offset_delta=2, attributes=0b111_001)
    assert (header.last_offset, header.next_offset, header.last_sequence) == (102, 103, 1)
    assert (header.header_size, header.size) == (96, 104)
    assert header.is_transactional
    assert not header.is_control
    assert header.payload_kind == 7
    assert header._replace(attributes=Attributes.CONTROL).is_control
