"""Budgets: first come, first served; nobody is forgotten, not even by a cancel at the wrong moment."""

from __future__ import annotations

import asyncio

from brokerd.server.answers import AnswerQueue
from brokerd.server.limits import ByteBudget


async def turns(count: int = 5) -> None:
    """Lets the loop run."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_there_is_room_until_the_limit() -> None:
    async def scenario() -> None:
        budget = ByteBudget(100)
        budget.add(99)
        await budget.wait_for_room()
        budget.add(50)
        assert (budget.used_bytes, budget.is_used_up) == (149, True)

    asyncio.run(scenario())


def test_waiters_pass_one_after_the_other_as_far_as_the_room_goes() -> None:
    async def scenario() -> None:
        budget = ByteBudget(100)
        budget.add(100)
        passed: list[int] = []

        async def taker(number: int) -> None:
            await budget.wait_for_room()
            budget.add(60)
            passed.append(number)

        tasks = [asyncio.create_task(taker(number)) for number in range(5)]
        await turns()
        assert passed == []
        assert budget.waiter_count == 5
        budget.add(-100)
        await turns(20)
        assert passed == [0, 1], "60 leave room, 120 do not"
        budget.add(-60)
        await turns(20)
        assert passed == [0, 1, 2]
        budget.add(-200)
        await asyncio.gather(*tasks)
        assert passed == [0, 1, 2, 3, 4]
        assert budget.waiter_count == 0

    asyncio.run(scenario())


def test_a_waiter_that_is_cancelled_is_gone_and_one_whose_turn_had_come_passes_it_on() -> None:
    async def scenario() -> None:
        budget = ByteBudget(100)
        budget.add(100)
        first, second, third = (asyncio.create_task(budget.wait_for_room()) for _ in range(3))
        await turns()
        second.cancel()
        await turns()
        assert budget.waiter_count == 2
        budget.add(-50)  # wakes the first ...
        first.cancel()  # ... which is cancelled before it runs
        async with asyncio.timeout(10):
            await third
        assert budget.waiter_count == 0

    asyncio.run(scenario())


def test_answers_are_started_in_order_and_a_few_at_a_time() -> None:
    async def scenario() -> None:
        queue = AnswerQueue()
        started: list[int] = []
        for number in range(100):
            queue.put(lambda number=number: started.append(number))  # type: ignore[misc]
        per_turn = []
        while len(started) < 100:
            before = len(started)
            await asyncio.sleep(0)
            per_turn.append(len(started) - before)
        assert started == list(range(100))
        assert max(per_turn) <= 32
        assert len(queue) == 0
        queue.put(lambda: started.append(100))
        await turns()
        assert started[-1] == 100

    asyncio.run(scenario())
