"""Connections whose calls come to nothing are ended, and no others."""

from __future__ import annotations

from brokerd.server.limits.fruitless import BURST, PER_SECOND, FruitlessCalls

BAD, GOOD = "ipv4:10.0.0.1:1", "ipv4:10.0.0.1:2"


def test_a_flood_is_ended() -> None:
    calls = FruitlessCalls()
    for _ in range(BURST):
        calls.add(BAD, now_ms=0)
    assert calls.take_overdue() == set()
    calls.add(BAD, now_ms=0)
    calls.add(GOOD, now_ms=0)
    assert calls.take_overdue() == {BAD}
    assert calls.take_overdue() == set()


def test_a_few_each_second_are_borne_for_ever() -> None:
    calls = FruitlessCalls()
    for second in range(1_000):
        for _ in range(PER_SECOND):
            calls.add(BAD, now_ms=second * 1_000)
    assert calls.take_overdue() == set()


def test_calls_that_do_something_make_up_for_those_that_do_not() -> None:
    calls = FruitlessCalls()
    for _ in range(10 * BURST):  # some other client is behind the same proxy
        calls.add(GOOD, now_ms=0)
        calls.useful(GOOD)
    calls.useful(BAD)
    assert calls.take_overdue() == set()


def test_what_was_useful_is_no_credit() -> None:
    calls = FruitlessCalls()
    for _ in range(10 * BURST):
        calls.useful(BAD)
    for _ in range(BURST + 1):
        calls.add(BAD, now_ms=0)
    assert calls.take_overdue() == {BAD}
