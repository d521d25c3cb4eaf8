"""Goal: what is printed of transactions says who, how long and what it means, and programs get the same as JSON."""

from __future__ import annotations

import dataclasses
import json

import pytest

from brokerd.cli.transactions_report import print_abort, print_description, print_forgotten, print_hanging, print_list
from brokerd.client.transactions import (
    ForgottenId,
    HangingTransaction,
    HangingTransactions,
    OpenMember,
    OpenPartition,
    TransactionDescription,
    TransactionListing,
)
from brokerd.ids import TopicIdPartition
from brokerd.producer.core.membership import Totals

TOPIC_ID = bytes(range(16))
EMPTY = TransactionListing("job-1", "empty", 0, -1, 0, -1, "")
OPEN = TransactionListing("spark-q", "open", 6, 7, 2, 83_000, "streaming query q, batch 7")
PREPARED = TransactionListing("spark-p", "prepared", 3, 3, 0, -1, "")
PARTITION = OpenPartition("orders", TopicIdPartition(TOPIC_ID, 3), first_offset=40, last_stable_offset=38)
HIDDEN = OpenPartition("", TopicIdPartition(TOPIC_ID, 0), first_offset=0, last_stable_offset=0)
MEMBER = OpenMember(bytes(16), 12, 0, 7, "41", "run", "streaming query q, batch 7", 83_000, 817_000, (PARTITION,))
DESCRIBED = TransactionDescription(OPEN, "40", "run", Totals(2_000, 8_192, 65_536, 5), (MEMBER,), 1)


def holding(transactional_id: str, *partitions: OpenPartition) -> HangingTransactions:
    """Partitions that one transaction holds back."""
    return HangingTransactions([HangingTransaction(one, 12, transactional_id, 0) for one in partitions], has_more=False)


def test_list_says_who_and_how_long(capsys: pytest.CaptureFixture[str]) -> None:
    held = [dataclasses.replace(PARTITION, tp=TopicIdPartition(TOPIC_ID, number)) for number in range(5)]
    print_list([EMPTY, OPEN], holding("spark-q", *held), as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "TRANSACTIONAL ID  STATE  COMMITTED  OPEN  MEMBERS  AGE         HOLDS BACK                    OWNER",
        "job-1             empty  0          -           0  -           -                             -",
        "spark-q           open   6          7           2  1 min 23 s  orders-0 orders-1 and 3 more  streaming query q, batch 7",
    ]


def test_list_says_if_it_cannot_name_all_that_is_held_back(capsys: pytest.CaptureFixture[str]) -> None:
    print_list([OPEN], HangingTransactions(holding("spark-q", PARTITION).transactions, has_more=True), as_json=False)
    assert capsys.readouterr().err == "of the partitions that are held back, 1 are named\n"


def test_list_for_programs_has_null_for_none(capsys: pytest.CaptureFixture[str]) -> None:
    print_list([EMPTY, OPEN], holding("spark-q", PARTITION), as_json=True)
    empty, holder = json.loads(capsys.readouterr().out)
    (held,) = holder["holds_back"]
    assert (held["topic"], held["partition"], held["first_offset"], held["last_stable_offset"]) == ("orders", 3, 40, 38)
    assert [empty] == [
        {
            "transactional_id": "job-1",
            "state": "empty",
            "last_version": 0,
            "txn_version": None,
            "open_members": 0,
            "age_ms": None,
            "owner": "",
            "holds_back": [],
        }
    ]


def test_empty_list_is_a_sentence_for_people_and_an_array_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    print_list([], holding("x"), as_json=False)
    print_list([], holding("x"), as_json=True)
    assert capsys.readouterr().out.splitlines() == [
        "no transactional ids: there are none that you may see, or none of this prefix and state",
        "[]",
    ]


def test_description_says_what_is_committed_and_where_members_hold_readers(capsys: pytest.CaptureFixture[str]) -> None:
    print_description(DESCRIBED, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "transactional id spark-q: open, 2 open members",
        "  last committed: version 6 in execution 40, run run: 2000 rows, keys 8.0 KiB, values 64.0 KiB",
        "  VERSION  EXECUTION  PRODUCER  AGE         EXPIRES IN   OWNER",
        "        7  41               12  1 min 23 s  13 min 37 s  streaming query q, batch 7",
        "  PRODUCER  TOPIC   PARTITION  FROM  STABLE",
        "        12  orders          3    40      38",
        "  and 1 member more",
    ]


def test_description_of_a_decided_version_says_that_readers_wait(capsys: pytest.CaptureFixture[str]) -> None:
    print_description(TransactionDescription(PREPARED, "9", "", Totals(1), (), 0), as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "transactional id spark-p: prepared, 0 open members",
        "  last committed: version 3 in execution 9: 1 row, keys 0 B, values 0 B",
        "  version 3 is decided, and not visible everywhere yet: the broker goes on until it is",
    ]


def test_description_for_programs_has_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_description(DESCRIBED, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["last_totals"] == {"rows": 2_000, "key_bytes": 8_192, "value_bytes": 65_536, "key_hash_sum": 5}
    (member,) = document["members"]
    assert (member["producer_id"], member["expires_in_ms"]) == (12, 817_000)
    assert member["partitions"] == [
        {"topic": "orders", "topic_id": TOPIC_ID.hex(), "partition": 3, "first_offset": 40, "last_stable_offset": 38}
    ]


@pytest.mark.parametrize(
    ("execution", "ended", "left", "sentence"),
    [
        (
            "",
            2,
            OPEN,
            (
                "aborted 2 open members of transactional id 'q': what they wrote is void, and their tasks fail at their next "
                "batch; version 6 stays committed"
            ),
        ),
        (
            "41",
            1,
            None,
            (
                "aborted 1 open member of transactional id 'q': what it wrote is void, and its task fails at its next batch; "
                "no version of it is committed"
            ),
        ),
        (
            "41",
            0,
            OPEN,
            "transactional id 'q' has no open member in execution '41': nothing to do; version 6 stays committed",
        ),
    ],
)
def test_abort_says_what_it_means(
    execution: str, ended: int, left: TransactionListing | None, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_abort("q", execution, ended, left, as_json=False)
    assert capsys.readouterr().out == sentence + "\n"


def test_a_commit_that_is_not_finished_has_no_producer(capsys: pytest.CaptureFixture[str]) -> None:
    unfinished = HangingTransactions([HangingTransaction(PARTITION, -1, "spark-p", 600_000)], has_more=False)
    print_hanging(unfinished, 1_000, as_json=False)
    assert capsys.readouterr().out.splitlines()[1].split() == ["orders", "3", "38", "10", "min", "-", "spark-p"]
    print_hanging(unfinished, 1_000, as_json=True)
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["producer_id"], one["transactional_id"]) == (None, "spark-p")


def test_what_is_forgotten_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    print_forgotten("orders", ForgottenId(41, "anonymous"), as_json=False)
    print_forgotten("orders", ForgottenId(-1, "anonymous"), as_json=False)
    print_forgotten("orders", ForgottenId(41, "anonymous"), as_json=True)
    version, nothing, *as_json = capsys.readouterr().out.splitlines()
    assert version == (
        "forgot transactional id 'orders' of principal 'anonymous': it had committed version 41, and whoever repeats that version "
        "or an older one writes it again"
    )
    assert nothing == "forgot transactional id 'orders' of principal 'anonymous': it had committed nothing"
    assert json.loads("\n".join(as_json)) == {"transactional_id": "orders", "principal": "anonymous", "last_version": 41}


@pytest.mark.parametrize("as_json", [False, True])
def test_that_there_are_more_hanging_transactions_is_said(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    hanging = [HangingTransaction(PARTITION, 12, "spark-q", 900_000)] * 1_000
    print_hanging(HangingTransactions(hanging, has_more=True), 1_000, as_json=as_json)
    printed = capsys.readouterr()
    assert "these are the 1,000 that have been silent longest; more partitions are held back" in printed.err
    print_hanging(HangingTransactions(hanging, has_more=False), 1_000, as_json=as_json)
    again = capsys.readouterr()
    assert (again.out, again.err) == (printed.out, "")


def test_hanging_transactions_are_named_by_partition(capsys: pytest.CaptureFixture[str]) -> None:
    hanging = [HangingTransaction(PARTITION, 12, "spark-q", 900_000), HangingTransaction(HIDDEN, 5, "", 1_000)]
    print_hanging(HangingTransactions(hanging, has_more=False), 1_000, as_json=False)
    print_hanging(HangingTransactions([], has_more=False), 60_000, as_json=False)
    unknown = "(not known any more: aborted within ten seconds)"
    assert capsys.readouterr().out.splitlines() == [
        "TOPIC                                  PARTITION  STABLE  IDLE    PRODUCER  TRANSACTIONAL ID",
        "orders                                         3      38  15 min        12  spark-q",
        f"(id {TOPIC_ID.hex()})          0       0  1 s            5  {unknown}",
        "no partition is held back by a transaction that wrote nothing there for 1 min",
    ]
