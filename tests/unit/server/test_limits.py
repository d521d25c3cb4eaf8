"""Budgets: first come, first served; nobody is forgotten, not even by a cancel at the wrong moment."""

from __future__ import annotations

import asyncio

from brokerd.server.limits.budgets import ByteBudget
from brokerd.server.waiting.response_queue import ResponseQueue
from tests.support.loop import all_wait
from tests.support.wait import DEADLINE_S


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
        await all_wait()
        assert passed == []
        assert budget.waiter_count == 5
        budget.add(-100)
        await all_wait()
        assert passed == [0, 1], "60 leave room, 120 do not"
        budget.add(-60)
        await all_wait()
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
        await all_wait()
        second.cancel()
        await all_wait()
        assert budget.waiter_count == 2
        budget.add(-50)  # wakes the first ...
        first.cancel()  # ... which is cancelled before it runs
        async with asyncio.timeout(DEADLINE_S):
            await third
        assert budget.waiter_count == 0

    asyncio.run(scenario())


def test_answers_are_started_in_order_and_the_next_few_when_those_are_out() -> None:
    async def scenario() -> None:
        queue = ResponseQueue(patience_s=DEADLINE_S)
        may_end = [asyncio.Event() for _ in range(100)]
        started: list[int] = []

        async def answer(number: int) -> None:
            started.append(number)
            await may_end[number].wait()

        def put(number: int) -> None:
            queue.put(lambda: asyncio.create_task(answer(number)))

        for number in range(100):
            put(number)
        await all_wait()
        assert started == list(range(16))
        for event in may_end[1:]:
            event.set()
        await all_wait()
        assert started == list(range(16)), "one of those is not out"
        may_end[0].set()
        await all_wait()
        assert started == list(range(100))
        assert len(queue) == 0
        put(99)
        await all_wait()
        assert started[100:] == [99]

    asyncio.run(scenario())


def test_an_answer_that_is_stuck_holds_nobody_else_up() -> None:
    async def scenario() -> None:
        queue = ResponseQueue()
        never = asyncio.Event()
        done = asyncio.Event()

        async def stuck() -> None:
            await never.wait()

        async def last() -> None:
            done.set()

        for _ in range(50):
            queue.put(lambda: asyncio.create_task(stuck()))
        queue.put(lambda: asyncio.create_task(last()))
        async with asyncio.timeout(DEADLINE_S):
            await done.wait()
        never.set()

    asyncio.run(scenario())
