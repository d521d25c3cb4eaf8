"""Connections whose calls come to nothing are read no more and then ended, and no others."""

from __future__ import annotations

from brokerd.server.limits.fruitless import BURST, MORE_BYTES, MUTED_MS, PER_SECOND, SUSPECT_BURST, SUSPECT_MS, FruitlessCalls

BAD, GOOD = "ipv4:10.0.0.1:1", "ipv4:10.0.0.1:2"
NEW, ELSEWHERE = "ipv4:10.0.0.1:3", "ipv4:10.0.0.2:1"


def flood(calls: FruitlessCalls, peer: str, count: int, now_ms: int = 0) -> None:
    """So many fruitless calls at once."""
    for _ in range(count):
        calls.add(peer, now_ms=now_ms)


def test_a_flood_is_overdue() -> None:
    calls = FruitlessCalls()
    for _ in range(BURST):
        calls.add(BAD, now_ms=0)
    assert calls.take_overdue(now_ms=0) == set()
    calls.add(BAD, now_ms=0)
    calls.add(GOOD, now_ms=0)
    assert calls.take_overdue(now_ms=0) == {BAD}
    assert calls.take_overdue(now_ms=0) == set()


def test_a_few_each_second_are_borne_for_ever() -> None:
    calls = FruitlessCalls()
    for second in range(1_000):
        for _ in range(PER_SECOND):
            calls.add(BAD, now_ms=second * 1_000)
    assert calls.take_overdue(now_ms=0) == set()


def test_calls_that_do_something_make_up_for_those_that_do_not() -> None:
    calls = FruitlessCalls()
    for _ in range(10 * BURST):  # some other client is behind the same proxy
        calls.add(GOOD, now_ms=0)
        calls.useful(GOOD)
    calls.useful(BAD)
    assert calls.take_overdue(now_ms=0) == set()


def test_what_was_useful_is_no_credit() -> None:
    calls = FruitlessCalls()
    for _ in range(10 * BURST):
        calls.useful(BAD)
    for _ in range(BURST + 1):
        calls.add(BAD, now_ms=0)
    assert calls.take_overdue(now_ms=0) == {BAD}


def test_whoever_acts_is_called_once_for_a_flood() -> None:
    calls, told = FruitlessCalls(), list[str]()
    calls.on_overdue = lambda: told.append("overdue")
    flood(calls, BAD, 3 * BURST)
    assert told == ["overdue"]


def test_what_is_overdue_is_ended_when_its_time_is_over_and_not_before() -> None:
    calls = FruitlessCalls()
    flood(calls, BAD, BURST + 1)
    assert calls.take_overdue(now_ms=100) == {BAD}
    flood(calls, BAD, BURST + 1, now_ms=100)  # had come before nothing more was read
    assert calls.take_overdue(now_ms=100) == set()
    assert calls.take_ended(now_ms=100 + MUTED_MS - 1) == set()
    assert calls.take_ended(now_ms=100 + MUTED_MS) == {BAD}
    assert calls.take_ended(now_ms=100 + MUTED_MS) == set()


def test_newcomers_of_a_host_that_floods_may_fail_less_often_for_a_while() -> None:
    calls = FruitlessCalls()
    calls.useful(GOOD)
    flood(calls, BAD, BURST + 1)
    assert calls.take_overdue(now_ms=0) == {BAD}

    flood(calls, NEW, SUSPECT_BURST)
    flood(calls, GOOD, BURST)  # has done something before
    flood(calls, ELSEWHERE, BURST)
    assert calls.take_overdue(now_ms=0) == set(), "a few are borne"
    calls.add(NEW, now_ms=0)
    assert calls.take_overdue(now_ms=0) == {NEW}

    later = SUSPECT_MS + 1
    calls.take_ended(now_ms=later)
    flood(calls, "ipv4:10.0.0.1:4", BURST, now_ms=later)
    assert calls.take_overdue(now_ms=later) == set()


def test_connections_that_nothing_useful_came_over_share_the_burst_of_their_host() -> None:
    calls = FruitlessCalls()
    calls.useful(GOOD)
    flood(calls, GOOD, BURST)  # has done something, and has a share of its own
    strangers = [f"ipv4:10.0.0.1:{port}" for port in range(10, 11 + BURST // SUSPECT_BURST)]
    for peer in strangers:
        flood(calls, peer, SUSPECT_BURST)
    assert calls.take_overdue(now_ms=0) == set(), "nobody has had more than the least share"
    for peer in [*strangers, ELSEWHERE]:
        calls.add(peer, now_ms=0)
    assert calls.take_overdue(now_ms=0) == set(strangers)


def test_clients_of_a_host_that_are_refused_now_and_then_are_borne_however_many_they_are() -> None:
    calls = FruitlessCalls()
    strangers = [f"ipv4:10.0.0.1:{port}" for port in range(10, 110)]
    for second in range(100):
        for peer in strangers:
            flood(calls, peer, PER_SECOND // 2, now_ms=second * 1_000)
    assert calls.take_overdue(now_ms=0) == set()


def test_a_large_request_counts_for_as_many_as_it_costs() -> None:
    calls = FruitlessCalls()
    calls.add(BAD, (BURST - 1) * MORE_BYTES, now_ms=0)
    calls.useful(BAD)
    calls.add(BAD, MORE_BYTES - 1, now_ms=0)
    assert calls.take_overdue(now_ms=0) == set()
    calls.add(BAD, now_ms=0)
    assert calls.take_overdue(now_ms=0) == {BAD}


def test_when_memory_is_short_all_that_nothing_is_read_of_is_ended_at_once() -> None:
    calls = FruitlessCalls()
    flood(calls, BAD, BURST + 1)
    calls.add(GOOD, now_ms=0)
    assert calls.take_overdue(now_ms=0) == {BAD}
    assert calls.take_muted() == {BAD}
    assert calls.take_ended(now_ms=MUTED_MS) == set()
