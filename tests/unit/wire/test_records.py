"""The hand-written codec of the records field writes the same bytes as generated code, and reads and refuses the same messages."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from brokerd.errors import InvalidRequestError
from brokerd.wire.records import MAX_FIELDS, RECORDS_FIELD, encode_varint, join_records, split_records
from brokerd.wire.v1 import fetch_pb2, produce_pb2

Request = produce_pb2.ProduceRequest
_partitions = st.builds(
    produce_pb2.PartitionProduce,
    topic_id=st.binary(max_size=16),
    partition=st.integers(-(2**31), 2**31 - 1),
    current_leader_epoch=st.integers(-1, 5),
)
_hellos = st.none() | st.builds(produce_pb2.Hello, instance_id=st.binary(max_size=16), incarnation=st.integers(0, 2**63 - 1))
requests = st.builds(
    Request,
    correlation_id=st.integers(-(2**63), 2**63 - 1),
    acks=st.integers(-1, 1),
    transactional_id=st.text(max_size=5),
    hello=_hellos,
    partitions=st.lists(_partitions, max_size=4),
    records=st.lists(st.binary(max_size=300), max_size=4),
)
# Legal parts of a message: known fields, records, unknown fields of each wire type, non-canonical tags, groups.
_pieces = st.sampled_from(
    [
        b"\x08\x05",
        b"\x10\x01",
        b"\x3a\x02\x10\x07",
        b"\x32\x02\x10\x09",
        b"\x7a\x01r",
        b"\x7a\x00",
        b"\xfa\x00\x01s",
        b"\xfa\x80\x80\x00\x01t",
        b"\x78\x05",
        b"\xa0\x06\x01",
        b"\xa1\x06" + b"8" * 8,
        b"\xa5\x06" + b"4" * 4,
        b"\xa2\x06\x03abc",
        b"\xa3\x06\x08\x01\x7a\x01g\xa4\x06",
        b"\x7b\x08\x01\x7c",
    ]
)


def expected(data: bytes) -> tuple[Request, list[bytes]] | None:
    """The result of generated code: the message without its records, and the records; None if it refuses `data`."""
    message = Request()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return None
    records = list(message.records)
    message.ClearField("records")
    return message, records


def agrees(data: bytes) -> None:
    """Asserts that our codec reads or refuses `data` as generated code does."""
    truth = expected(data)
    if truth is None:
        with pytest.raises(InvalidRequestError, match="ProduceRequest"):
            split_records(Request, data)
        return
    message, records = split_records(Request, data)
    assert (message, [entry.to_pybytes() for entry in records]) == truth


@given(requests)
def test_what_is_written_is_what_generated_code_writes(request: Request) -> None:
    head = Request()
    head.CopyFrom(request)
    head.ClearField("records")
    assert join_records(head, [[entry] for entry in request.records]) == request.SerializeToString()
    halves = [[entry[: len(entry) // 2], pa.py_buffer(entry[len(entry) // 2 :])] for entry in request.records]
    assert join_records(head, halves) == request.SerializeToString()


@given(requests)
def test_what_generated_code_writes_is_read(request: Request) -> None:
    agrees(request.SerializeToString())


def test_records_are_slices_of_the_message_and_not_copies() -> None:
    data = join_records(Request(correlation_id=1), [[b"x" * 100], [b"y" * 200]])
    _, records = split_records(Request, data)
    base = pa.py_buffer(data).address
    assert [entry.address - base for entry in records] == [4, len(data) - 200]
    assert [entry.size for entry in records] == [100, 200]


@given(st.lists(_pieces, max_size=8))
def test_legal_odd_orders_are_read_alike(pieces: list[bytes]) -> None:
    agrees(b"".join(pieces))


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_alike(data: bytes) -> None:
    agrees(data)


@given(requests, st.integers(0, 2**32), st.integers(1, 4))
def test_mutated_requests_are_read_or_refused_alike(request: Request, seed: int, changes: int) -> None:
    data = bytearray(request.SerializeToString())
    rng = random.Random(seed)
    for _ in range(changes if data else 0):
        data[rng.randrange(len(data))] = rng.randrange(256)
    agrees(bytes(data))


@given(requests, st.integers(0, 400))
def test_cut_requests_are_read_or_refused_alike(request: Request, length: int) -> None:
    agrees(request.SerializeToString()[:length])


def test_a_fetch_answer_is_written_and_read_the_same_way() -> None:
    head = fetch_pb2.FetchResponse(correlation_id=3, results=[fetch_pb2.PartitionFetchResult(partition=1, record_chunks=2)])
    whole = fetch_pb2.FetchResponse()
    whole.CopyFrom(head)
    whole.records.extend([b"ab", b"c" * 1_000])
    data = join_records(head, [[b"a", b"b"], [b"c" * 1_000]])
    assert data == whole.SerializeToString()
    message, records = split_records(fetch_pb2.FetchResponse, data)
    assert message == head
    assert [entry.to_pybytes() for entry in records] == [b"ab", b"c" * 1_000]


def test_the_records_field_is_the_last_and_the_one_of_the_contract() -> None:
    for message in (Request, fetch_pb2.FetchResponse):
        assert max(field.number for field in message.DESCRIPTOR.fields) == RECORDS_FIELD
        assert message.DESCRIPTOR.fields_by_name["records"].number == RECORDS_FIELD


@pytest.mark.parametrize("piece", [b"\x3a\x00", b"\x7a\x00", b"\x08\x01", b"\xa3\x06\xa4\x06"])
def test_a_message_of_very_many_fields_is_refused_before_it_is_parsed(piece: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="more than 1000 fields"):
        split_records(Request, piece * 1_001, max_fields=1_000)
    with pytest.raises(InvalidRequestError, match=f"more than {MAX_FIELDS} fields"):
        split_records(Request, piece * (MAX_FIELDS + 1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: b"\x7a\xff\xff\xff\xff\x07",
        lambda: b"\x7a" + b"\xff" * 9 + b"\x01",
        lambda: b"\x7a" + b"\xff" * 11,
        lambda: b"\x3a\x80",
        lambda: b"\xff",
        lambda: b"\x00\x00",
    ],
)
def test_lengths_beyond_the_message_are_refused(make: Callable[[], bytes]) -> None:
    agrees(make())
    assert expected(make()) is None


@given(st.integers(0, 2**63))
def test_varints_are_the_shortest(value: int) -> None:
    out = encode_varint(value)
    assert sum((byte & 0x7F) << 7 * i for i, byte in enumerate(out)) == value
    assert len(out) == max(1, -(-value.bit_length() // 7))


@pytest.mark.parametrize("odd", [b"\x78\x01", b"\x7d\0\0\0\0", b"\xfa\x00\x01x", b"\x7a\x01x\x10\x01"])
def test_a_message_without_the_field_takes_its_number_for_an_unknown_field(odd: bytes) -> None:
    read, _ = split_records(fetch_pb2.FetchRequest, b"\x08\x05" + odd)
    assert read.correlation_id == 5
