"""Bytes of the transaction log's records: golden, and every event there and back."""

from __future__ import annotations

import pytest

from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.groups.model import CommittedOffset, OffsetsCommitted
from brokerd.groups.model import LogEntry as GroupEntry
from brokerd.transaction.log_records import decode_entry, encode_entry
from brokerd.transaction.model import (
    CommitCompleted,
    CommitPrepared,
    Event,
    Execution,
    Forgotten,
    HeldBack,
    LogEntry,
    Member,
    MemberOpened,
    MembersAborted,
    StateBegins,
    StateEnds,
    StateEvent,
    Totals,
    VersionRepeated,
)
from brokerd.wire.v1 import transaction_log_pb2 as log_pb2
from tests.support.transaction_bench import partition

EXECUTION = Execution(5, "e1", "r1")
MEMBER = Member(b"0123456789abcdef", 7, EXECUTION, "task 1", 900_000)
PREPARED = CommitPrepared(EXECUTION, (7, 1 << 40), (8,), (partition(0), partition(2)), Totals(3, 12, 30, (1 << 64) - 1))
HOLDING = CommitPrepared(EXECUTION, (7,), (), (), Totals(1, 0, 0, 0), (HeldBack(partition(0), 0), HeldBack(partition(2), 1 << 40)))
ONE_WRITE = CommitPrepared(Execution(0, "e", ""), (), (), (), Totals(0, 0, 0, 0), is_one_write=True)
OFFSETS = GroupEntry("g", "p", OffsetsCommitted({partition(0): CommittedOffset(7, -1, "m", 5)}), 3)
WITH_OFFSETS = CommitPrepared(EXECUTION, (7,), (), (), Totals(1, 0, 0, 0), group_offsets=OFFSETS)
GOLDEN: list[tuple[Event | StateEvent, str]] = [
    (
        MemberOpened(MEMBER),
        "08011201781a017020012a2a0a103031323334353637383961626364656610071805220265312a02723132067461736b203138a0f736",
    ),
    (MembersAborted((7, 8)), "08011201781a0170200132040a020708"),
    (
        PREPARED,
        (
            "08011201781a017020013a510805120265311a0272312207078080808080202a010832120a1074000000000000000000000000000000"
            "32140a107400000000000000000000000000000010023a0f0803100c181e21ffffffffffffffff"
        ),
    ),
    (
        HOLDING,
        (
            "08011201781a017020013a420805120265311a0272312201073a02080142120a1074000000000000000000000000000000421b0a1074"
            "000000000000000000000000000000100218808080808020"
        ),
    ),
    (ONE_WRITE, "08011201781a017020013a071201653a004801"),
    (
        WITH_OFFSETS,
        (
            "08031201781a017020013a450805120265311a0272312201073a020801523208011201671a017022260a240a1074000000000000000000"
            "000000000000180720ffffffffffffffffff012a016d30053803"
        ),
    ),
    (CommitCompleted(5), "08011201781a0170200142020805"),
    (VersionRepeated(Execution(5, "e", "r")), "08011201781a017020016a0808051201651a0172"),
    (Forgotten(), "08011201781a017020014a00"),
    (StateBegins(), "08011201781a017020015200"),
    (StateBegins(in_pieces=True), "08021201781a0170200152020801"),
    (StateEnds(3), "08011201781a017020015a020803"),
]


def entry(event: Event | StateEvent) -> LogEntry:
    return LogEntry("x", "p", 1, event)


@pytest.mark.parametrize(("event", "data"), GOLDEN, ids=lambda value: type(value).__name__)
def test_golden_bytes(event: Event | StateEvent, data: str) -> None:
    assert encode_entry(entry(event)).hex() == data
    there_and_back(event)


def test_golden_bytes_of_a_part_of_a_state() -> None:
    part = entry(CommitCompleted(5))._replace(in_state=True)
    assert encode_entry(part).hex() == "08011201781a01702001420208056001"
    assert decode_entry(encode_entry(part)) == part


@pytest.mark.parametrize(
    "event",
    [MembersAborted(()), CommitCompleted(0), StateEnds(0), CommitPrepared(Execution(0, "", ""), (), (), (), Totals(0, 0, 0, 0))],
)
def test_empty_events_there_and_back(event: Event | StateEvent) -> None:
    there_and_back(event)


def there_and_back(event: Event | StateEvent) -> None:
    decoded = decode_entry(encode_entry(entry(event)))
    assert decoded == entry(event)
    assert type(decoded.event) is type(event)  # empty tuples of whatever type are equal


def test_an_unknown_version_is_refused() -> None:
    data = log_pb2.TransactionLogRecord(version=4, forgotten=log_pb2.TransactionalIdForgotten()).SerializeToString()
    with pytest.raises(UnsupportedVersionError, match="has version 4; this broker reads 1 to 3"):
        decode_entry(data)
    with pytest.raises(UnsupportedVersionError, match="has version 0"):
        decode_entry(b"")


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff",
        log_pb2.TransactionLogRecord(version=1).SerializeToString(),
        log_pb2.TransactionLogRecord(
            version=1, state_begins=log_pb2.StateBegins(), state_ends=log_pb2.StateEnds()
        ).SerializeToString(),
    ],
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptMessageError, match="transaction log"):
        decode_entry(data)
