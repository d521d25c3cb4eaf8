"""The limits on a request's entries, and on duplicates, are one rule for all methods, applied before anything else.

The table is compared with the descriptors of all requests. Each field is tested at its limit, beyond it, and with a duplicate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from brokerd.config.broker import BrokerConfig
from brokerd.errors import InvalidRequestError
from brokerd.server.failures import MalformedError
from brokerd.server.requests import REPEATED, Repeated, Requests, first_double
from brokerd.wire.methods import UNARY, UNARY_REQUEST_MAX_BYTES

CONFIG = BrokerConfig(max_topics=50, max_partitions_per_request=40, max_partitions_per_topic=30)
REQUESTS = Requests(CONFIG)
FIELDS = [(name, repeated) for name, fields in REPEATED.items() for repeated in fields]
IDS = [f"{name}-{repeated.field}" for name, repeated in FIELDS]


def limit_of(repeated: Repeated) -> int:
    limit = repeated.limit
    return limit if isinstance(limit, int) else int(getattr(CONFIG, limit.replace(".", "_")))


def request_of(name: str, repeated: Repeated, numbers: Iterator[int] | range) -> Any:
    """A request with one entry for each number; equal numbers are equal entries."""
    request: Any = UNARY[name].request()
    field = request.DESCRIPTOR.fields_by_name[repeated.field]
    entries = getattr(request, repeated.field)
    for number in numbers:
        if hasattr(entries, "items"):
            entries[f"n{number}"] = ""
        elif field.message_type is None:
            entries.append(f"n{number}" if field.type == field.TYPE_STRING else number.to_bytes(16, "big"))
        elif "name" in field.message_type.fields_by_name:
            entries.add(name=f"n{number}")
        elif "topic_id" in field.message_type.fields_by_name:
            entries.add(topic_id=bytes(16), partition=number)
        else:
            entries.add()
    return request


def parsed(name: str, request: Any) -> Any:
    return REQUESTS.parse(name, request.SerializeToString())


def repeated_fields(descriptor: Any, above: str = "") -> Iterator[str]:
    for field in descriptor.fields:
        if field.is_repeated:
            yield above + field.name
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            yield from repeated_fields(field.message_type, f"{above}{field.name}.")


def listed_fields(table: tuple[Repeated, ...], above: str = "") -> Iterator[str]:
    for repeated in table:
        yield above + repeated.field
        yield from listed_fields(repeated.inside, f"{above}{repeated.field}.")


@pytest.mark.parametrize("name", UNARY)
def test_the_table_has_every_repeated_field(name: str) -> None:
    assert sorted(listed_fields(REPEATED.get(name, ()))) == sorted(repeated_fields(UNARY[name].request.DESCRIPTOR))


@pytest.mark.parametrize(("name", "repeated"), FIELDS, ids=IDS)
def test_a_request_at_its_limit_is_read_and_one_beyond_is_refused(name: str, repeated: Repeated) -> None:
    limit = limit_of(repeated)
    right = request_of(name, repeated, range(limit))
    assert parsed(name, right) == right
    with pytest.raises(MalformedError, match=rf"^{repeated.field}: has {limit + 1} entries, more than the {limit} allowed"):
        parsed(name, request_of(name, repeated, range(limit + 1)))


@pytest.mark.parametrize(("name", "repeated"), FIELDS, ids=IDS)
def test_what_is_named_twice_is_answered_once_or_refused(name: str, repeated: Repeated) -> None:
    double = request_of(name, repeated, iter((1, 2, 1)))
    if repeated.names is None:
        assert parsed(name, double) == double
    elif repeated.is_answered_once:
        assert parsed(name, double) == request_of(name, repeated, iter((1, 2)))
    else:
        with pytest.raises(MalformedError, match=rf"^{repeated.field}: name .* twice in one request: once is allowed"):
            parsed(name, double)


@pytest.mark.parametrize("name", UNARY)
def test_nothing_is_built_out_of_too_many_fields(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty entry grows from two bytes to a hundred: a request full of a field, known or not, is refused before it is built."""
    method = UNARY[name]
    fields = {field.number for field in method.request.DESCRIPTOR.fields} | {99}

    class Unbuilt:
        DESCRIPTOR = method.request.DESCRIPTOR

        @staticmethod
        def FromString(data: bytes) -> None:  # noqa: N802 - protobuf's name
            raise AssertionError("built")

    monkeypatch.setitem(UNARY, name, method._replace(request=Unbuilt))  # type: ignore[arg-type]
    for number in sorted(fields):
        tag = bytes([number << 3 | 2]) if number < 16 else bytes([(number << 3 | 2) & 0x7F | 0x80, number >> 4])
        with pytest.raises(InvalidRequestError, match=r"has more than"):
            REQUESTS.parse(name, (tag + b"\0") * (UNARY_REQUEST_MAX_BYTES // 4))


def test_what_entries_repeat_is_bounded_too() -> None:
    entry = {"configs": {str(number): "" for number in range(101)}}
    with pytest.raises(MalformedError, match=r"^topics\.configs: has 101 entries, more than"):
        parsed("CreateTopics", UNARY["CreateTopics"].request(topics=[entry]))


@pytest.mark.parametrize("data", [b"\x0a\x05abc", b"\x0a", b"\xff" * 20, b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x0f"])
def test_bytes_that_are_no_message_are_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError, match="the bytes cannot be parsed"):
        REQUESTS.parse("Metadata", data)
    with pytest.raises(MalformedError, match="more than 2097152"):
        REQUESTS.parse("Metadata", bytes(UNARY_REQUEST_MAX_BYTES + 1))


def test_the_first_double_is_found_among_many() -> None:
    assert first_double([]) is None
    assert first_double(range(100_000)) is None
    assert first_double([*range(100_000), 7]) == 7
