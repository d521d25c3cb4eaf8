"""Batches that the broker refuses at produce. The error names the field that a client may not set."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from brokerd.errors import (
    CorruptMessageError,
    InvalidRequestError,
    MessageTooLargeError,
    UnsupportedVersionError,
    WireError,
)
from brokerd.record.batch import check_produced
from brokerd.record.header import Attributes, crc_seed, encode_header
from tests.support.records import HEADER_BYTES, MAX_BYTES, SAMPLE, SEED, TIMESTAMP_MS, TP, header_of, key_values, new_batch, reseal


def refused(data: pa.Buffer, *, max_message_bytes: int = MAX_BYTES) -> WireError:
    """The error with which `data` is refused."""
    with pytest.raises(WireError) as caught:
        check_produced(data, SEED, max_message_bytes=max_message_bytes)
    return caught.value


def batch_with(fields: dict[str, Any]) -> pa.Buffer:
    """A batch with these header fields and correct CRCs."""
    return new_batch(**fields)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_good_batch_passes(compression: str) -> None:
    data = new_batch(compression=compression)
    batch = check_produced(data, SEED, max_message_bytes=data.size)
    assert batch.header.record_count == SAMPLE.num_rows
    assert batch.data.address == data.address
    assert batch.to_arrow(max_uncompressed_bytes=MAX_BYTES).equals(SAMPLE)


def test_an_idempotent_and_a_transactional_batch_pass() -> None:
    member = {"producer_id": 0, "producer_epoch": 0, "base_sequence": 0}
    check_produced(batch_with(member), SEED, max_message_bytes=MAX_BYTES)
    check_produced(batch_with({**member, "attributes": Attributes.TRANSACTIONAL}), SEED, max_message_bytes=MAX_BYTES)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stamp_flags", 1),
        ("base_offset", 1),
        ("base_offset", -1),
        ("append_timestamp", 1),
        ("leader_epoch", 1),
        ("leader_epoch", -1),
        ("leader_epoch_id", 1),
        ("clock_ahead_s", -1),
        ("attributes", 1 << 6),
        ("attributes", 1 << 15),
        ("schema_id", 1),
        ("schema_id", -1),
        ("record_count", 0),
        ("record_count", -1),
        ("record_count", 5),
        ("last_offset_delta", 4),
        ("last_offset_delta", -1),
        ("producer_id", 0),
        ("producer_id", -2),
        ("producer_epoch", 0),
        ("base_sequence", 0),
        ("base_timestamp", -1),
        ("max_timestamp", -1),
    ],
)
def test_a_forbidden_value_is_refused_by_the_name_of_its_field(field: str, value: int) -> None:
    error = refused(batch_with({field: value}))
    assert type(error) is InvalidRequestError
    assert field in error.message


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        (Attributes.CONTROL, "control"),
        (Attributes.TRANSACTIONAL, "transactional"),
        (1 << 3, "payload kind 1"),
        (7 << 3, "payload kind 7"),
    ],
)
def test_a_forbidden_attribute_is_refused_by_its_name(attributes: int, words: str) -> None:
    error = refused(new_batch(attributes=int(attributes)))
    assert type(error) is InvalidRequestError
    assert words in error.message


@pytest.mark.parametrize("missing", ["producer_id", "producer_epoch", "base_sequence"])
def test_half_a_producer_is_refused(missing: str) -> None:
    fields = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, missing: -1}
    assert missing in refused(batch_with(fields)).message


def test_the_size_limit_is_inclusive_and_named() -> None:
    data = new_batch()
    check_produced(data, SEED, max_message_bytes=data.size)
    error = refused(data, max_message_bytes=data.size - 1)
    assert type(error) is MessageTooLargeError
    for word in ("max.message.bytes", str(data.size), str(data.size - 1), "batch.size"):
        assert word in error.message


def test_a_batch_of_another_partition_is_refused() -> None:
    for other in (TP._replace(partition=4), TP._replace(topic_id=bytes(16))):
        with pytest.raises(CorruptMessageError, match="header_crc"):
            check_produced(new_batch(), crc_seed(other), max_message_bytes=MAX_BYTES)


@pytest.mark.parametrize("size", [0, 1, 11, 12, 95])
def test_less_than_a_header_is_refused(size: int) -> None:
    assert type(refused(new_batch().slice(0, size))) is CorruptMessageError


@pytest.mark.parametrize("size", [96, 104, 2_048])
def test_zeros_are_refused(size: int) -> None:
    assert "mark" in refused(pa.py_buffer(bytes(size))).message


def test_a_cut_or_longer_batch_is_refused_with_both_lengths() -> None:
    data = new_batch()
    for changed in (data.slice(0, data.size - 8), pa.py_buffer(data.to_pybytes() + bytes(8))):
        error = refused(changed)
        assert "batch_length" in error.message
        assert str(data.size) in error.message
        assert str(changed.size) in error.message


@pytest.mark.parametrize("size", [8, 672])
def test_a_payload_of_zeros_is_refused(size: int) -> None:
    assert type(refused(reseal(header_of(new_batch()), bytes(size)))) is CorruptMessageError


def test_an_empty_payload_or_an_odd_length_is_refused() -> None:
    assert "batch_length is 0" in refused(reseal(header_of(new_batch()), b"")).message
    odd = new_batch().to_pybytes()[HEADER_BYTES:] + b"\0"
    assert "multiple of 8" in refused(reseal(header_of(new_batch()), odd)).message


def test_a_changed_payload_byte_is_refused() -> None:
    data = bytearray(new_batch().to_pybytes())
    data[-1] ^= 1
    assert "payload_crc" in refused(pa.py_buffer(bytes(data))).message


def test_counts_that_disagree_with_the_payload_are_refused() -> None:
    error = refused(new_batch(record_count=5, last_offset_delta=4))
    assert "counts 5 records" in error.message
    assert "4 rows" in error.message


@pytest.mark.parametrize("delta", [-1, 1, 2**31])
def test_an_untrue_uncompressed_size_is_refused(delta: int) -> None:
    truth = header_of(new_batch()).uncompressed_bytes
    assert "uncompressed_bytes" in refused(new_batch(uncompressed_bytes=truth + delta)).message


def test_an_unknown_version_is_named_only_under_a_right_crc() -> None:
    data = new_batch(magic=9).to_pybytes()
    assert type(refused(pa.py_buffer(data))) is UnsupportedVersionError
    assert type(refused(pa.py_buffer(data[:95] + b"\1" + data[96:]))) is CorruptMessageError


def test_the_crc_covers_a_longer_header_too() -> None:
    data = new_batch().to_pybytes()
    header = header_of(pa.py_buffer(data))._replace(header_words=14)
    plain = encode_header(header, SEED)
    assert "header_crc" in refused(pa.py_buffer(plain + bytes(16) + data[HEADER_BYTES:])).message


def test_timestamps_at_both_ends_pass() -> None:
    for value in (0, TIMESTAMP_MS, 2**63 - 1):
        check_produced(new_batch(base_timestamp=0, max_timestamp=value), SEED, max_message_bytes=MAX_BYTES)


def test_a_batch_that_claims_more_than_readers_should_hold_is_refused() -> None:
    data = new_batch(key_values([bytes(100_000)]), "zstd")
    limit = header_of(data).uncompressed_bytes
    assert data.size < 2_000
    check_produced(data, SEED, max_message_bytes=MAX_BYTES, max_decompressed_bytes=limit)
    with pytest.raises(MessageTooLargeError, match=r"message\.max\.decompressed\.bytes"):
        check_produced(data, SEED, max_message_bytes=MAX_BYTES, max_decompressed_bytes=limit - 1)
