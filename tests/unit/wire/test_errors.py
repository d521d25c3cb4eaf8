"""errors.py and error.proto list the same errors, and every error crosses the wire unchanged."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.errors import ERROR_CLASSES, Action, ErrorCode, ErrorFields, Fate, WireError, action_of, error_from_code
from brokerd.wire.errors import RETRY_AFTER_MAX_MS, TRAILER_KEY, from_proto, from_trailer, to_proto
from brokerd.wire.texts import plain_text
from brokerd.wire.v1 import error_pb2
from tests.support.contract import enum_comments

CODES = [code for code in ErrorCode if code is not ErrorCode.NONE]
_WORDS_OF_RANGE = {
    Action.FAIL: "Fatal.",
    Action.RETRY: "Retry.",
    Action.REFRESH_AND_RETRY: "Refresh",
}


def test_the_codes_are_those_of_the_contract() -> None:
    ours = {f"ERROR_CODE_{code.name}": int(code) for code in ErrorCode}
    assert ours == dict(error_pb2.ErrorCode.items())


def test_the_fates_are_those_of_the_contract() -> None:
    assert {f"FATE_{fate.name}": int(fate) for fate in Fate} == dict(error_pb2.Fate.items())


def test_every_code_has_one_class_and_every_class_a_code() -> None:
    assert set(ERROR_CLASSES) == {int(code) for code in CODES}
    assert len(WireError.__subclasses__()) == len(ERROR_CLASSES)


def test_the_fields_are_those_of_the_contract() -> None:
    assert set(ErrorFields.__annotations__) | {"code", "message", "retriable"} == set(error_pb2.Error.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_the_comment_of_a_code_agrees_with_its_range(code: ErrorCode) -> None:
    assert 1 <= code < 500
    words = _WORDS_OF_RANGE.get(action_of(code))
    comment = enum_comments("error.proto", "ErrorCode")[f"ERROR_CODE_{code.name}"]
    if words:
        assert words in comment
    else:
        assert "Fatal." not in comment


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_retriable_is_what_the_range_says(code: ErrorCode) -> None:
    error = error_from_code(code, "text")
    assert error.retriable == (100 <= code < 300)
    assert error.refresh_metadata == (200 <= code < 300)


fields = st.fixed_dictionaries(
    {},
    optional={
        "fate": st.sampled_from(Fate),
        "retry_after_ms": st.integers(0, RETRY_AFTER_MAX_MS),
        "current_leader": st.integers(-1, 2**31 - 1),
        "current_leader_epoch": st.integers(-1, 2**31 - 1),
        "log_start_offset": st.integers(-1, 2**63 - 1),
        "expected_sequence": st.integers(-1, 2**31 - 1),
        "current_epoch": st.integers(-1, 2**31 - 1),
        "resume_offset": st.integers(-1, 2**63 - 1),
    },
)


@given(st.sampled_from(CODES), st.text(), fields)
def test_an_error_crosses_the_wire_unchanged(code: ErrorCode, text: str, numbers: ErrorFields) -> None:
    error = error_from_code(code, text, **numbers)
    data = to_proto(error).SerializeToString()
    back = from_proto(error_pb2.Error.FromString(data))
    assert type(back) is type(error) is ERROR_CLASSES[code]
    assert vars(back) == vars(error) | {"message": plain_text(text)}
    assert (back.code, str(back), back.retriable) == (error.code, plain_text(text), error.retriable)


@given(st.sampled_from(CODES), fields)
def test_an_error_survives_the_way_between_spark_s_processes(code: ErrorCode, numbers: ErrorFields) -> None:
    error = error_from_code(code, "text", **numbers)
    for back in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(back) is type(error)
        assert vars(back) == vars(error)


@pytest.mark.parametrize(
    ("code", "retriable", "refresh"),
    [(99, False, False), (199, True, False), (299, True, True), (399, False, False), (500, False, False), (-1, False, False)],
)
def test_a_code_of_a_later_version_keeps_the_meaning_of_its_range(code: int, retriable: bool, refresh: bool) -> None:
    proto = error_pb2.Error(message="new")
    proto.ParseFromString(proto.SerializeToString() + b"\x08" + _varint(code))
    error = from_proto(proto)
    assert (error.retriable, error.refresh_metadata) == (retriable, refresh)
    assert str(code) in error.message


def test_a_fate_of_a_later_version_is_unknown() -> None:
    proto = error_pb2.Error.FromString(b"\x08\x02\x20\x09")
    assert from_proto(proto).fate is Fate.UNKNOWN


def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    groups = [value >> shift & 0x7F for shift in range(0, 64, 7)]
    while len(groups) > 1 and not groups[-1]:
        groups.pop()
    return bytes(group | 0x80 for group in groups[:-1]) + bytes([groups[-1]])


@pytest.mark.parametrize("code", [0, 99, 142, 250, 399, 499, 500, 12345, -1])
def test_a_code_of_a_later_version_is_repeated_if_the_broker_says_so(code: int) -> None:
    assert from_proto(error_pb2.Error(code=code, retriable=True)).retriable  # type: ignore[arg-type]


@pytest.mark.parametrize(("told", "kept"), [(2**31 - 1, RETRY_AFTER_MAX_MS), (-5, 0), (200, 200)])
def test_no_broker_holds_a_client_up_for_weeks(told: int, kept: int) -> None:
    assert from_proto(error_pb2.Error(code=102, retry_after_ms=told)).retry_after_ms == kept  # type: ignore[arg-type]


def test_a_trailer_that_cannot_be_read_is_none() -> None:
    assert from_trailer(None) is None
    assert from_trailer([("other-bin", b"")]) is None
    assert from_trailer([(TRAILER_KEY, b"\xff\xff")]) is None
    assert from_trailer([(TRAILER_KEY, "text")]) is None
