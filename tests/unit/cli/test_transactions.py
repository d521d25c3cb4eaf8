"""Goal: output about transactions states owner, age and consequences; programs get the same as JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.cli import main, transactions
from brokerd.wire.v1.transaction_pb2 import (
    TRANSACTION_STATE_EMPTY,
    TRANSACTION_STATE_OPEN,
    TRANSACTION_STATE_PREPARED,
    DescribeTransactionResponse,
    FindHangingTransactionsResponse,
    ForgetTransactionalIdResponse,
    HangingTransaction,
    OpenMember,
    OpenPartition,
    TransactionListing,
    TransactionTotals,
)

TOPIC_ID = bytes(range(16))
EMPTY = TransactionListing(transactional_id="job-1", state=TRANSACTION_STATE_EMPTY, txn_version=-1, age_ms=-1)
OPEN = TransactionListing(
    transactional_id="spark-q",
    state=TRANSACTION_STATE_OPEN,
    last_version=6,
    txn_version=7,
    open_members=2,
    age_ms=83_000,
    owner="streaming query q, batch 7",
)
PREPARED = TransactionListing(
    transactional_id="spark-p", state=TRANSACTION_STATE_PREPARED, last_version=3, txn_version=3, age_ms=-1
)
PARTITION = OpenPartition(topic="orders", topic_id=TOPIC_ID, partition=3, first_offset=40, last_stable_offset=38)
HIDDEN = OpenPartition(topic_id=TOPIC_ID)
MEMBER = OpenMember(
    member_id=bytes(16),
    producer_id=12,
    txn_version=7,
    execution_id="41",
    run_id="run",
    owner="streaming query q, batch 7",
    age_ms=83_000,
    expires_in_ms=817_000,
    partitions=[PARTITION],
)
DESCRIBED = DescribeTransactionResponse(
    listing=OPEN,
    last_execution_id="40",
    last_run_id="run",
    last_totals=TransactionTotals(rows=2_000, key_bytes=8_192, value_bytes=65_536, key_hash_sum=5),
    members=[MEMBER],
    more_members=1,
)


Run = Callable[..., tuple[str, str]]


def hanging_one(partition: OpenPartition, producer_id: int, transactional_id: str, idle_ms: int) -> HangingTransaction:
    """A transaction that holds back a partition."""
    return HangingTransaction(partition=partition, producer_id=producer_id, transactional_id=transactional_id, idle_ms=idle_ms)


def found(transactions: list[HangingTransaction], *, has_more: bool) -> FindHangingTransactionsResponse:
    """The response with these transactions that hold back partitions."""
    return FindHangingTransactionsResponse(transactions=transactions, more=has_more)


def forgotten(last_version: int) -> ForgetTransactionalIdResponse:
    """The response for a forgotten id."""
    return ForgetTransactionalIdResponse(last_version=last_version, principal="anonymous")


def holding(transactional_id: str, *partitions: OpenPartition, has_more: bool = False) -> FindHangingTransactionsResponse:
    """The response in which one transaction holds back these partitions."""
    return found([hanging_one(one, 12, transactional_id, 0) for one in partitions], has_more=has_more)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a verb with a client whose calls return the given values; returns standard output and standard error."""

    def run(*words: str, **results: Any) -> tuple[str, str]:
        results = {"find_transaction": OPEN, "find_hanging_transactions": holding("x"), **results}
        client = SimpleNamespace(**{name: lambda *_, result=result: result for name, result in results.items()})
        monkeypatch.setattr(transactions, "connect", lambda _: contextlib.nullcontext(client))
        assert main(["transactions", *words]) == 0
        return capsys.readouterr()

    return run


def test_list_says_who_and_how_long(run: Run) -> None:
    held = [OpenPartition(topic="orders", topic_id=TOPIC_ID, partition=number) for number in range(5)]
    out, _ = run("list", list_transactions=[EMPTY, OPEN], find_hanging_transactions=holding("spark-q", *held))
    assert out.splitlines() == [
        "TRANSACTIONAL ID  STATE  COMMITTED  OPEN  MEMBERS  AGE         HOLDS BACK                    OWNER",
        "job-1             empty  0          -           0  -           -                             -",
        "spark-q           open   6          7           2  1 min 23 s  orders-0 orders-1 and 3 more  streaming query q, batch 7",
    ]


def test_list_says_if_it_cannot_name_all_that_is_held_back(run: Run) -> None:
    _, err = run("list", list_transactions=[OPEN], find_hanging_transactions=holding("spark-q", PARTITION, has_more=True))
    assert err == "of the partitions that are held back, 1 are named\n"


def test_list_for_programs_has_null_for_none(run: Run) -> None:
    held_back = holding("spark-q", PARTITION)
    empty, holder = json.loads(run("list", "--json", list_transactions=[EMPTY, OPEN], find_hanging_transactions=held_back)[0])
    (held,) = holder["holds_back"]
    assert (held["topic"], held["partition"], held["first_offset"], held["last_stable_offset"]) == ("orders", 3, 40, 38)
    assert empty == {
        "transactional_id": "job-1",
        "state": "empty",
        "last_version": 0,
        "txn_version": None,
        "open_members": 0,
        "age_ms": None,
        "owner": "",
        "holds_back": [],
    }


def test_empty_list_is_a_sentence_for_people_and_an_array_for_programs(run: Run) -> None:
    sentence = "no transactional ids that you may see have this prefix and state\n"
    assert run("list", list_transactions=[])[0] == sentence
    assert run("list", "--json", list_transactions=[])[0] == "[]\n"


def test_description_says_what_is_committed_and_where_members_hold_readers(run: Run) -> None:
    assert run("describe", "spark-q", describe_transaction=DESCRIBED)[0].splitlines() == [
        "transactional id spark-q: open, 2 open members",
        "  last committed: version 6 in execution 40, run run: 2000 rows, keys 8.0 KiB, values 64.0 KiB",
        "  VERSION  EXECUTION  PRODUCER  AGE         EXPIRES IN   OWNER",
        "        7  41               12  1 min 23 s  13 min 37 s  streaming query q, batch 7",
        "  PRODUCER  TOPIC   PARTITION  FROM  STABLE",
        "        12  orders          3    40      38",
        "  and 1 more member",
    ]


def test_description_of_a_decided_version_says_that_readers_wait(run: Run) -> None:
    prepared = DescribeTransactionResponse(listing=PREPARED, last_execution_id="9", last_totals=TransactionTotals(rows=1))
    assert run("describe", "spark-p", describe_transaction=prepared)[0].splitlines() == [
        "transactional id spark-p: prepared, 0 open members",
        "  last committed: version 3 in execution 9: 1 row, keys 0 B, values 0 B",
        "  version 3 is decided, and not visible everywhere yet: the broker continues until it is",
    ]


def test_description_for_programs_has_all_of_it(run: Run) -> None:
    document = json.loads(run("describe", "spark-q", "--json", describe_transaction=DESCRIBED)[0])
    assert document["last_totals"] == {"rows": 2_000, "key_bytes": 8_192, "value_bytes": 65_536, "key_hash_sum": 5}
    (member,) = document["members"]
    assert (member["producer_id"], member["expires_in_ms"]) == (12, 817_000)
    assert member["partitions"] == [
        {"topic": "orders", "topic_id": TOPIC_ID.hex(), "partition": 3, "first_offset": 40, "last_stable_offset": 38}
    ]


def test_abort_says_what_it_means(run: Run) -> None:
    left = TransactionListing(transactional_id="q", last_version=6)
    assert run("abort", "q", abort_transaction=2, find_transaction=left)[0] == (
        "aborted 2 open members of transactional id 'q': what they wrote is void, and their tasks fail at their next batch; "
        "version 6 stays committed\n"
    )


def test_a_commit_that_is_not_finished_has_no_producer(run: Run) -> None:
    unfinished = found([hanging_one(PARTITION, -1, "spark-p", 600_000)], has_more=False)
    out, _ = run("find-hanging", find_hanging_transactions=unfinished)
    assert out.splitlines()[1].split() == ["orders", "3", "38", "10", "min", "-", "spark-p"]
    (one,) = json.loads(run("find-hanging", "--json", find_hanging_transactions=unfinished)[0])
    assert (one["producer_id"], one["transactional_id"]) == (None, "spark-p")


def test_what_is_forgotten_is_said(run: Run) -> None:
    begin = "forgot transactional id 'orders' of principal 'anonymous': it had committed"
    out, _ = run("forget", "orders", forget_transactional_id=forgotten(41))
    assert out == f"{begin} version 41, and repeating that version or an older one writes it again\n"
    assert run("forget", "orders", forget_transactional_id=forgotten(-1))[0] == f"{begin} nothing\n"
    document = json.loads(run("forget", "orders", "--json", forget_transactional_id=forgotten(41))[0])
    assert document == {"transactional_id": "orders", "principal": "anonymous", "last_version": 41}


@pytest.mark.parametrize("words", [["find-hanging"], ["find-hanging", "--json"]])
def test_that_there_are_more_hanging_transactions_is_said(words: list[str], run: Run) -> None:
    hanging = [hanging_one(PARTITION, 12, "spark-q", 900_000)] * 1_000
    out, err = run(*words, find_hanging_transactions=found(hanging, has_more=True))
    assert "these are the 1,000 that have been silent longest; more partitions are held back" in err
    assert run(*words, find_hanging_transactions=found(hanging, has_more=False)) == (out, "")


def test_hanging_transactions_are_named_by_partition(run: Run) -> None:
    hanging = [hanging_one(PARTITION, 12, "spark-q", 900_000), hanging_one(HIDDEN, 5, "", 1_000)]
    assert run("find-hanging", find_hanging_transactions=found(hanging, has_more=False))[0].splitlines() == [
        "TOPIC                                  PARTITION  STABLE  IDLE    PRODUCER  TRANSACTIONAL ID",
        "orders                                         3      38  15 min        12  spark-q",
        f"(id {TOPIC_ID.hex()})          0       0  1 s            5  (unknown: it has ended; if this stays, see the broker's log)",
    ]
    nothing = "no partition is held back by a transaction that wrote nothing there for 1 min\n"
    assert run("find-hanging", find_hanging_transactions=found([], has_more=False))[0] == nothing
