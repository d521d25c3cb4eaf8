"""The budget of fetch responses: shares that shrink, and which clients are disconnected."""

from __future__ import annotations

import asyncio

from brokerd.server.limits.response_budget import PATIENCE_MS, ResponseBudget
from brokerd.sharing import Caller
from tests.support.loop import all_wait
from tests.support.wait import DEADLINE_S

TIMEOUT_MS = 60_000


def peers(callers: list[Caller]) -> list[str]:
    return [caller.peer for caller in callers]


def new_budget(limit_bytes: int = 1_000) -> ResponseBudget:
    return ResponseBudget(limit_bytes, write_timeout_ms=TIMEOUT_MS)


def test_a_share_is_a_quarter_of_what_is_left_of_the_first_half() -> None:
    budget = new_budget()
    assert budget.share(50) == 50
    assert budget.share(10_000) == 125
    budget.add("a", 125)
    assert budget.share(10_000) == 93
    budget.add("a", 375)
    assert (budget.share(10_000), budget.is_free) == (0, True), "first batches alone"
    budget.add("a", 400)
    assert budget.share(10_000) == 0


def test_shares_never_use_more_than_the_first_half() -> None:
    budget = new_budget(1 << 27)
    for _ in range(1_000):
        budget.add("a", budget.share(1 << 24))
    assert (1 << 26) - 4 <= budget.used <= 1 << 26


def test_a_write_is_overdue_at_its_timeout_and_no_sooner_while_nobody_waits() -> None:
    budget = new_budget()
    budget.add("a", 2_000)
    budget.begin_write("first", Caller("a", "first"), 1_000, now_ms=0)
    budget.begin_write("second", Caller("a", "second"), 1_000, now_ms=5)
    assert peers(budget.overdue(now_ms=TIMEOUT_MS - 1)) == []
    assert peers(budget.overdue(now_ms=TIMEOUT_MS)) == ["first"]
    assert peers(budget.overdue(now_ms=TIMEOUT_MS + 5)) == ["first", "second"], "until they are gone"
    budget.end_write("first")
    assert peers(budget.overdue(now_ms=TIMEOUT_MS + 5)) == ["second"]
    budget.end_write("second")
    budget.end_write("second")
    assert peers(budget.overdue(now_ms=10 * TIMEOUT_MS)) == []


def test_a_writer_that_begins_again_is_the_youngest() -> None:
    budget = new_budget()
    budget.begin_write("first", Caller("a", "first"), 1, now_ms=0)
    budget.begin_write("second", Caller("a", "second"), 1, now_ms=1)
    budget.end_write("first")
    budget.begin_write("first", Caller("a", "first"), 1, now_ms=2)
    assert peers(budget.overdue(now_ms=TIMEOUT_MS + 1)) == ["second"]


async def test_while_others_wait_the_oldest_give_way_as_many_as_needed() -> None:
    budget = new_budget()
    for number in range(10):
        budget.begin_write(str(number), Caller("a", str(number)), 100, now_ms=number)
        budget.add("a", 100)
    assert peers(budget.overdue(now_ms=PATIENCE_MS + 10)) == [], "nobody waits"
    waiter = asyncio.create_task(budget.take(Caller("a", "a1")))
    await all_wait()
    assert peers(budget.overdue(now_ms=PATIENCE_MS - 1)) == []
    assert peers(budget.overdue(now_ms=PATIENCE_MS + 1)) == ["0", "1"]
    assert peers(budget.overdue(now_ms=PATIENCE_MS + 10)) == ["0", "1", "2", "3", "4"], "one half is free then"
    budget.add("a", -500)
    async with asyncio.timeout(DEADLINE_S):
        await waiter


async def test_only_those_give_way_who_have_most_of_it() -> None:
    budget = new_budget()
    budget.begin_write("honest", Caller("b", "honest"), 50, now_ms=0)
    budget.add("b", 50)
    for number in range(9):
        budget.begin_write(str(number), Caller("a", str(number)), 100, now_ms=number)
        budget.add("a", 100)
    waiter = asyncio.create_task(budget.take(Caller("a", "a1"), 100))
    await all_wait()
    assert peers(budget.overdue(now_ms=PATIENCE_MS + 10)) == ["0", "1", "2", "3", "4"]
    assert peers(budget.overdue(now_ms=TIMEOUT_MS))[0] == "honest"
    waiter.cancel()
    await all_wait()


async def test_while_others_wait_for_room_nobody_has_a_share_without_waiting() -> None:
    budget = new_budget()
    budget.add("a", 100)
    assert budget.share(10) == 10
    waiter = asyncio.create_task(budget.take(Caller("b", "b1"), 950))
    await all_wait()
    assert budget.share(10) == 0
    budget.add("a", -100)
    async with asyncio.timeout(DEADLINE_S):
        await waiter
    assert budget.used == 950


async def test_a_slow_reader_is_ended_for_one_who_needs_its_room_however_little_that_is() -> None:
    budget = new_budget(24)
    budget.add("slow", 11)
    budget.begin_write("slow", Caller("slow", "slow"), 11, now_ms=0)
    large = asyncio.create_task(budget.take(Caller("large", ""), 16))
    await all_wait()
    assert peers(budget.overdue(now_ms=PATIENCE_MS - 1)) == []
    assert peers(budget.overdue(now_ms=PATIENCE_MS)) == ["slow"]
    budget.add("slow", -11)
    await large
