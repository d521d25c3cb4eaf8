"""A busy client delays only itself: one request per turn of the loop, round-robin over principals and their connections."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from brokerd.sharing import Caller, Turns
from tests.support.loop import all_wait, counted_turns, one_turn


async def taken(turns: Turns, order: list[str], principal: str, peer: str, name: str) -> None:
    """Takes a turn and records its name."""
    await turns.take(Caller(principal, peer))
    order.append(name)


async def test_a_turn_is_there_at_once_for_who_is_alone() -> None:
    turns = Turns()
    for _ in range(3):
        with pytest.raises(StopIteration):
            turns.take(Caller("p", "c")).send(None)
        await all_wait()  # the turn is over


async def test_principals_and_their_connections_take_turns() -> None:
    turns, order = Turns(), list[str]()
    tasks = [asyncio.create_task(taken(turns, order, "many", f"c{number % 2}", f"many {number}")) for number in range(100)]
    tasks += [asyncio.create_task(taken(turns, order, "many", "c9", "other connection"))]
    tasks += [asyncio.create_task(taken(turns, order, "few", "d", f"few {number}")) for number in range(2)]
    await asyncio.gather(*tasks)
    assert len(order) == 103
    assert order.index("few 0") <= 3
    assert order.index("few 1") <= 5
    assert order.index("other connection") <= 7
    many = [name for name in order if name.startswith("many")]
    assert [name for name in many if int(name[5:]) % 2] == [f"many {number}" for number in range(1, 100, 2)]


async def test_whenever_they_come_no_two_have_one_turn_of_the_loop() -> None:
    async def come(turns: Turns, loop_turns: int) -> int:
        for _ in range(loop_turns):
            await one_turn()
        await turns.take(Caller("p", "c"))
        return loop.now

    with counted_turns(asyncio.get_running_loop()) as loop:
        for arrivals in itertools.product(range(6), repeat=4):
            turns = Turns()
            served = await asyncio.gather(*[come(turns, loop_turns) for loop_turns in arrivals])
            assert len(set(served)) == len(served), arrivals


async def test_who_is_gone_holds_nobody_up() -> None:
    turns, order = Turns(), list[str]()
    tasks = [asyncio.create_task(taken(turns, order, "p", "c", f"{number}")) for number in range(10)]
    await one_turn()
    for task in tasks[1:9]:
        task.cancel()
    await asyncio.wait(tasks)
    await turns.take(Caller("p", "c"))
    assert order == ["0", "9"]


async def test_after_a_long_turn_all_who_come_are_let_in_before_the_next() -> None:
    async def crowd(turn_ns: int) -> list[str]:
        now_ns = 1

        async def long(name: str) -> None:
            nonlocal now_ns
            await turns.take(Caller("many", "c"))
            now_ns += turn_ns
            order.append(name)

        turns, order = Turns(lambda: now_ns), list[str]()
        tasks = [asyncio.create_task(long(f"many {number}")) for number in range(4)]
        for number in range(10):  # gRPC delivers calls one by one
            await one_turn()
            turns.arrived += 1
            order.append(f"call {number}")
        await asyncio.gather(*tasks)
        return order

    assert (await crowd(5_000_000))[-4:] == ["call 9", "many 1", "many 2", "many 3"]
    assert (await crowd(50_000))[-1] == "call 9"


class LongTurns:
    """Turns of one connection that each take 5 ms."""

    def __init__(self) -> None:
        self._now_ns = 1
        self.turns = Turns(lambda: self._now_ns)

    async def take(self) -> None:
        """Takes a turn of 5 ms."""
        await self.turns.take(Caller("p", "c"))
        self._now_ns += 5_000_000


async def test_calls_without_end_do_not_hold_up_the_next_turn() -> None:
    long = LongTurns()

    async def flood() -> None:
        while True:
            long.turns.arrived += 1
            await one_turn()

    flooding = asyncio.create_task(flood())
    await asyncio.gather(*[long.take() for _ in range(5)])
    flooding.cancel()
