"""Decisions in pages."""

from __future__ import annotations

import pytest

from brokerd.errors import InvalidRequestError, NotReadyError
from brokerd.transaction import pages as limits
from brokerd.transaction.model import AlreadyCommitted, EndRequest, Execution, Held, HeldData, MemberReport, Prepare, Totals
from brokerd.transaction.pages import PAGES_KEPT_MS, Page, Pages
from tests.support.transaction_bench import ID, PRINCIPAL, TransactionBench, execution, partition, summed


def asked(first: int = 0, count: int = 2, *, of: Execution | None = None, name: str = ID, principal: str = PRINCIPAL) -> EndRequest:
    """A page's part of a decision, with `count` members and partitions from number `first` on."""
    numbers = range(first, first + count)
    reports = [MemberReport(number, 0, 1) for number in numbers]
    return EndRequest(
        name, principal, of or execution(5), reports, [partition(number) for number in numbers], Totals(0, 0, 0, 0), False
    )


def page(number: int, request: EndRequest, *, more: bool = True, is_commit: bool = True) -> Page:
    return Page(request, is_commit, number, more)


def test_a_decision_in_one_page_is_whole() -> None:
    pages = Pages()
    assert pages.add(page(0, asked(), more=False), 0) == asked()
    assert len(pages) == 0


def test_pages_are_put_together() -> None:
    pages = Pages()
    assert pages.add(page(0, asked(0)), 0) is None
    assert pages.add(page(1, asked(1)), 0) is None
    whole = pages.add(page(2, asked(3), more=False), 0)
    assert whole is not None
    assert [member.producer_id for member in whole.members] == [0, 1, 1, 2, 3, 4]  # as they were sent
    assert whole.partitions == [partition(number) for number in range(5)]
    assert len(pages) == 0


def test_a_repeated_page_counts_once() -> None:
    pages = Pages()
    for number, first in ((0, 0), (1, 2), (1, 2), (0, 0), (1, 2), (1, 2)):
        pages.add(page(number, asked(first)), 0)
    whole = pages.add(page(2, asked(4), more=False), 0)
    assert whole is not None
    assert [member.producer_id for member in whole.members] == list(range(6))


@pytest.mark.parametrize("number", [1, 3])
def test_a_page_without_those_before_is_sent_back(number: int) -> None:
    pages = Pages()
    if number == 3:
        pages.add(page(0, asked()), 0)
    with pytest.raises(NotReadyError, match=rf"page {number} of the decision came, but only \d pages .* again from page 0"):
        pages.add(page(number, asked(), more=False), 0)


def test_decisions_are_kept_apart() -> None:
    pages = Pages()
    for request in (asked(), asked(of=execution(6)), asked(of=execution(5, "e2")), asked(name="other")):
        pages.add(page(0, request), 0)
    pages.add(page(0, asked(principal="User:bob")), 0)
    with pytest.raises(NotReadyError):
        pages.add(page(1, asked(), is_commit=False), 0)
    whole = pages.add(page(1, asked(2), more=False), 0)
    assert whole is not None
    assert len(whole.members) == 4


def test_pages_are_dropped_after_a_while() -> None:
    pages = Pages()
    pages.add(page(0, asked()), 0)
    pages.add(page(1, asked()), 10)
    pages.expire(PAGES_KEPT_MS + 9)
    assert len(pages) == 1
    with pytest.raises(NotReadyError):
        pages.add(page(2, asked(), more=False), PAGES_KEPT_MS + 10)
    assert len(pages) == 0


def test_a_principals_oldest_decision_gives_way() -> None:
    pages = Pages()
    pages.add(page(0, asked(principal="User:bob")), 0)
    for version in range(limits.DECISIONS_PER_PRINCIPAL_MAX + 1):
        pages.add(page(0, asked(of=execution(version))), version)
    assert len(pages) == limits.DECISIONS_PER_PRINCIPAL_MAX + 1
    with pytest.raises(NotReadyError):
        pages.add(page(1, asked(of=execution(0))), 9)
    assert pages.add(page(1, asked(principal="User:bob"), more=False), 9) is not None


@pytest.mark.parametrize(("name", "limit"), [("members", "MEMBERS_MAX"), ("partitions", "PARTITIONS_MAX")])
def test_a_decision_has_a_limit(monkeypatch: pytest.MonkeyPatch, name: str, limit: str) -> None:
    monkeypatch.setattr(limits, limit, 3)
    pages = Pages()
    with pytest.raises(InvalidRequestError, match=rf"lists 4 {name}, more than 3"):
        pages.add(page(0, asked(0, 4), more=False), 0)
    pages.add(page(0, asked(0)), 0)
    with pytest.raises(InvalidRequestError, match=rf"lists 4 {name}, more than 3"):
        pages.add(page(1, asked(2)), 0)
    assert len(pages) == 0


def test_ten_thousand_members_in_a_hundred_partitions() -> None:
    """All write everywhere: a million pieces of open data, decided from a request of a hundred pages."""
    members, partitions, per_page = 10_000, 100, 100
    bench = TransactionBench(members=members)
    for number in range(members):
        bench.init(str(number), execution(5))
    numbers = {name: member.producer_id for name, member in bench.known.items()}
    data = dict.fromkeys(numbers.values(), HeldData(1, True))
    bench.data = {partition(number): dict(data) for number in range(partitions)}
    reports = [MemberReport(producer_id, 0, partitions) for producer_id in numbers.values()]
    whole: EndRequest | None = None
    pages = Pages()
    for number in range(members // per_page):
        some = reports[number * per_page : (number + 1) * per_page]
        request = asked()._replace(members=some, partitions=[partition(number)])
        whole = pages.add(page(number, request, more=number < members // per_page - 1), 0)
    assert whole is not None
    decided = bench.coordinator.commit(whole, Held(summed(bench.data.values())))
    assert isinstance(decided, Prepare)
    bench.record(decided.event)
    markers = bench.finish()
    assert len(markers) == partitions
    assert {len(record.committed_producer_ids) for record in markers.values()} == {members}
    assert isinstance(bench.commit(whole), AlreadyCommitted)
    assert bench.members.taken == 0
