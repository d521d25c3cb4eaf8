"""Decisions sent in several pages."""

from __future__ import annotations

import pytest

from brokerd.coordinator import pages as limits
from brokerd.coordinator.pages import PAGES_KEPT_MS, Pages
from brokerd.coordinator.transactional_id import Held, HeldData, Progress
from brokerd.errors import InvalidRequestError, NotReadyError
from brokerd.wire.v1.coordinator_log_pb2 import CommitPrepared
from brokerd.wire.v1.transaction_pb2 import (
    TRANSACTION_DECISION_ABORT,
    TRANSACTION_DECISION_COMMIT,
    EndTransactionRequest,
    TransactionMember,
    TransactionPartition,
)
from tests.support.transaction_bench import ID, PRINCIPAL, EndRequest, Execution, TransactionBench, execution, partition, summed


def page(
    number: int,
    first: int = 0,
    count: int = 2,
    *,
    more: bool = True,
    of: Execution | None = None,
    name: str = ID,
    is_commit: bool = True,
) -> EndTransactionRequest:
    """A page of a decision, with `count` members and partitions numbered from `first`."""
    numbers = range(first, first + count)
    return EndTransactionRequest(
        transactional_id=name,
        decision=TRANSACTION_DECISION_COMMIT if is_commit else TRANSACTION_DECISION_ABORT,
        members=[TransactionMember(producer_id=number, records=1) for number in numbers],
        partitions=[TransactionPartition(**partition(number)._asdict()) for number in numbers],
        page=number,
        more_pages=more,
        **(of or execution(5))._asdict(),
    )


def test_a_decision_in_one_page_is_whole() -> None:
    pages = Pages()
    whole = page(0, more=False)
    assert pages.add(PRINCIPAL, whole, 0) is whole
    assert len(pages) == 0


def test_pages_are_put_together() -> None:
    pages = Pages()
    assert pages.add(PRINCIPAL, page(0, 0), 0) is None
    assert pages.add(PRINCIPAL, page(1, 1), 0) is None
    whole = pages.add(PRINCIPAL, page(2, 3, more=False), 0)
    assert whole is not None
    assert [member.producer_id for member in whole.members] == [0, 1, 1, 2, 3, 4]  # as sent, duplicates included
    assert [(one.topic_id, one.partition) for one in whole.partitions] == [partition(number) for number in range(5)]
    assert len(pages) == 0


def test_a_repeated_page_counts_once() -> None:
    pages = Pages()
    for number, first in ((0, 0), (1, 2), (1, 2), (0, 0), (1, 2), (1, 2)):
        pages.add(PRINCIPAL, page(number, first), 0)
    whole = pages.add(PRINCIPAL, page(2, 4, more=False), 0)
    assert whole is not None
    assert [member.producer_id for member in whole.members] == list(range(6))


@pytest.mark.parametrize("number", [1, 3])
def test_a_page_without_those_before_is_sent_back(number: int) -> None:
    pages = Pages()
    if number == 3:
        pages.add(PRINCIPAL, page(0), 0)
    with pytest.raises(NotReadyError, match=rf"page {number} of the decision came, but only \d pages .* again from page 0"):
        pages.add(PRINCIPAL, page(number, more=False), 0)


def test_decisions_are_kept_apart() -> None:
    pages = Pages()
    for request in (page(0), page(0, of=execution(6)), page(0, of=execution(5, "e2")), page(0, name="other")):
        pages.add(PRINCIPAL, request, 0)
    pages.add("User:bob", page(0), 0)
    with pytest.raises(NotReadyError):
        pages.add(PRINCIPAL, page(1, is_commit=False), 0)
    whole = pages.add(PRINCIPAL, page(1, 2, more=False), 0)
    assert whole is not None
    assert len(whole.members) == 4


def test_pages_are_dropped_after_a_while() -> None:
    pages = Pages()
    pages.add(PRINCIPAL, page(0), 0)
    pages.add(PRINCIPAL, page(1), 10)
    pages.expire(PAGES_KEPT_MS + 9)
    assert len(pages) == 1
    with pytest.raises(NotReadyError):
        pages.add(PRINCIPAL, page(2, more=False), PAGES_KEPT_MS + 10)
    assert len(pages) == 0


def test_a_principals_oldest_decision_gives_way() -> None:
    pages = Pages()
    pages.add("User:bob", page(0), 0)
    for version in range(limits.DECISIONS_PER_PRINCIPAL_MAX + 1):
        pages.add(PRINCIPAL, page(0, of=execution(version)), version)
    assert len(pages) == limits.DECISIONS_PER_PRINCIPAL_MAX + 1
    with pytest.raises(NotReadyError):
        pages.add(PRINCIPAL, page(1, of=execution(0)), 9)
    assert pages.add("User:bob", page(1, more=False), 9) is not None


@pytest.mark.parametrize(("name", "limit"), [("members", "MEMBERS_MAX"), ("partitions", "PARTITIONS_MAX")])
def test_a_decision_has_a_limit(monkeypatch: pytest.MonkeyPatch, name: str, limit: str) -> None:
    monkeypatch.setattr(limits, limit, 3)
    pages = Pages()
    with pytest.raises(InvalidRequestError, match=rf"lists 4 {name}, more than 3"):
        pages.add(PRINCIPAL, page(0, 0, 4, more=False), 0)
    pages.add(PRINCIPAL, page(0, 0), 0)
    with pytest.raises(InvalidRequestError, match=rf"lists 4 {name}, more than 3"):
        pages.add(PRINCIPAL, page(1, 2), 0)
    assert len(pages) == 0


def test_ten_thousand_members_in_a_hundred_partitions() -> None:
    """Every member writes to every partition: a million entries of open data, and a decision of a hundred pages."""
    members, partitions, per_page = 10_000, 100, 100
    bench = TransactionBench(members=members)
    for number in range(members):
        bench.init(str(number), execution(5))
    numbers = {name: member.producer_id for name, member in bench.known.items()}
    data = dict.fromkeys(numbers.values(), HeldData(1, True))
    bench.data = {partition(number): dict(data) for number in range(partitions)}
    reports = [TransactionMember(producer_id=producer_id, records=partitions) for producer_id in numbers.values()]
    whole: EndTransactionRequest | None = None
    pages = Pages()
    for number in range(members // per_page):
        one = page(number, number, 1, more=number < members // per_page - 1)
        del one.members[:]
        one.members.extend(reports[number * per_page : (number + 1) * per_page])
        whole = pages.add(PRINCIPAL, one, 0)
    assert whole is not None
    decided = bench.coordinator.commit(PRINCIPAL, whole, Held(summed(bench.data.values())))
    assert isinstance(decided, CommitPrepared)
    bench.record(decided)
    markers = bench.finish()
    assert len(markers) == partitions
    assert {len(record.committed_producer_ids) for record in markers.values()} == {members}
    assert bench.commit(EndRequest(PRINCIPAL, whole)) is Progress.COMPLETE
    assert bench.members.taken == 0
