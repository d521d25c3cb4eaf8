"""Budgets, threads and changes: owners are served in turn, and no waiter is lost, even after a cancel at the wrong moment."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest
from google.protobuf.message import Message

from brokerd.errors import NotReadyError
from brokerd.server.limits import response_budget
from brokerd.server.limits.response_budget import ResponseQueue
from brokerd.server.limits.threads import Threads
from brokerd.server.security.authenticator import Authenticator, Callers
from brokerd.server.service import BrokerService
from brokerd.sharing import BROKER, Budget, Caller, Shares
from brokerd.wire.v1 import metadata_pb2, topics_pb2, transaction_pb2
from tests.support.call_context import Context
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.inner_broker import running
from tests.support.loop import all_wait
from tests.support.wait import DEADLINE_S

CALLERS = [Caller(name, f"{name}1") for name in "abcde"]


async def test_there_is_room_until_the_limit() -> None:
    budget = Budget(100)
    budget.add("a", 79)
    assert budget.is_free
    await budget.take(CALLERS[0])
    budget.add("a", 70)
    assert (budget.used, budget.is_free) == (149, False)


async def test_waiters_go_one_after_the_other_as_far_as_the_room_goes() -> None:
    budget = Budget(100)
    budget.add("log", 100)
    gone: list[int] = []

    async def taker(number: int) -> None:
        await budget.take(CALLERS[number])
        budget.add("log", 60)
        gone.append(number)

    tasks = [asyncio.create_task(taker(number)) for number in range(5)]
    await all_wait()
    assert (gone, budget.waiting) == ([], 5)
    budget.add("log", -100)
    await all_wait()
    assert gone == [0, 1], "60 leave room, 120 do not"
    budget.add("log", -60)
    await all_wait()
    assert gone == [0, 1, 2]
    budget.add("log", -200)
    await asyncio.gather(*tasks)
    assert gone == [0, 1, 2, 3, 4]
    assert budget.waiting == 0


async def test_what_is_counted_for_nobody_goes_by_turns_of_those_who_wait() -> None:
    """Such as unsynced bytes: next to one other owner, an owner that waits with a thousand streams gets every second turn."""

    budget = Budget(100)
    budget.add("log", 100)
    gone: list[str] = []

    async def taker(caller: Caller) -> None:
        await budget.take(caller)
        budget.add("log", 10)
        gone.append(caller.owner)

    many = [asyncio.create_task(taker(Caller("many", f"many{number}"))) for number in range(20)]
    await all_wait()
    one = [asyncio.create_task(taker(CALLERS[0])) for _ in range(2)]
    await all_wait()
    for _ in range(4):
        budget.add("log", -10)
        await all_wait()
    assert gone == ["many", "a", "many", "a"]
    budget.add("log", -1_000)
    await asyncio.gather(*many, *one)


async def test_units_that_are_asked_for_are_taken_at_ones_turn_and_a_newcomer_does_not_overtake() -> None:
    budget = Budget(100)
    await budget.take(CALLERS[0], 90)
    second = asyncio.create_task(budget.take(CALLERS[1], 50))
    await all_wait()
    third = asyncio.create_task(budget.take(CALLERS[2], 5))
    await all_wait()
    assert (budget.used, budget.waiting) == (90, 2), "there is room for the third, but it is kept for the second"
    budget.add("a", -90)
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(second, third)
    assert (budget.used, budget.waiting) == (55, 0)


async def test_a_waiter_that_is_cancelled_is_gone_and_one_whose_turn_had_come_passes_it_on() -> None:
    budget = Budget(100)
    budget.add("log", 100)
    first, second, third = (asyncio.create_task(budget.take(caller, 60)) for caller in CALLERS[:3])
    await all_wait()
    second.cancel()
    await all_wait()
    assert budget.waiting == 2
    budget.add("log", -50)
    await all_wait()
    assert budget.waiting == 2
    budget.add("log", -50)  # wakes the first ...
    first.cancel()  # ... which is cancelled before it runs
    async with asyncio.timeout(DEADLINE_S):
        await third
    assert (budget.used, budget.waiting) == (60, 0)


async def test_one_that_is_cancelled_while_others_wait_behind_it_holds_nobody_up() -> None:
    budget = Budget(100)
    budget.add("log", 50)
    large, small = (asyncio.create_task(budget.take(caller, units)) for caller, units in zip(CALLERS, (80, 10), strict=False))
    await all_wait()
    assert budget.waiting == 2
    large.cancel()
    async with asyncio.timeout(DEADLINE_S):
        await small
    assert (budget.used, budget.waiting) == (60, 0)


def test_beyond_the_limit_those_are_refused_who_have_most_of_it() -> None:
    budget = Budget(100)
    budget.add("a", 190)
    assert not budget.is_excessive("a", 2)
    budget.add("b", 15)
    assert budget.is_excessive("a", 2)
    assert not budget.is_excessive("b", 2)
    assert not budget.is_excessive("a", 3)


async def test_threads_are_left_for_others_and_taken_in_turn() -> None:
    threads = Threads(3, "test")
    go_on = threading.Event()
    begun: list[str] = []

    def work(name: str) -> None:
        begun.append(name)
        assert go_on.wait(DEADLINE_S)

    many = [asyncio.create_task(threads.run(CALLERS[0], partial(work, f"many {number}"))) for number in range(20)]
    await all_wait()
    few = asyncio.create_task(threads.run(CALLERS[1], partial(work, "few")))
    many[-1].cancel()
    await all_wait()
    go_on.set()
    await asyncio.gather(few, *many[:-1])
    threads.stop()
    threads.join()
    assert "few" in begun[:3]
    assert len(begun) == 20


async def test_threads_that_stop_end_every_wait() -> None:
    threads, begun, go_on = Threads(3, "test"), threading.Semaphore(0), threading.Event()

    def work() -> bool:
        begun.release()
        return go_on.wait(DEADLINE_S)

    callers = [asyncio.create_task(threads.run(Caller(f"owner {number}", ""), work)) for number in range(8)]
    for _ in range(3):
        assert await asyncio.to_thread(begun.acquire, timeout=DEADLINE_S)
    threads.stop()
    go_on.set()
    async with asyncio.timeout(DEADLINE_S):
        ended = await asyncio.gather(*callers, return_exceptions=True)
    assert ended[:3] == [True] * 3
    assert all(isinstance(error, NotReadyError) for error in ended[3:]), ended


async def test_what_no_thread_has_begun_when_they_stop_is_refused() -> None:
    threads, go_on = Threads(3, "test"), threading.Event()
    for _ in range(3):
        threads._pool.submit(go_on.wait, DEADLINE_S)
    callers = [asyncio.create_task(threads.run(Caller(f"owner {number}", ""), lambda: True)) for number in range(8)]
    await all_wait()
    threads.stop()
    go_on.set()
    async with asyncio.timeout(DEADLINE_S):
        ended = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(error) for error in ended] == [NotReadyError] * 8


async def test_answers_are_started_in_order_and_the_next_few_when_those_are_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_budget, "_WAIT_S", DEADLINE_S)
    queue = ResponseQueue()
    may_end = [asyncio.Event() for _ in range(100)]
    started: list[int] = []

    async def answer(number: int) -> None:
        started.append(number)
        await may_end[number].wait()

    def put(number: int) -> None:
        queue.put(CALLERS[0], lambda: asyncio.create_task(answer(number)))

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


async def test_whose_fetches_complete_by_the_thousand_is_not_answered_before_all_others() -> None:
    queue = ResponseQueue()
    started: list[str] = []
    done = asyncio.Event()

    async def answer(name: str) -> None:
        started.append(name)
        if name == "few":
            done.set()

    for _ in range(1_000):
        queue.put(CALLERS[0], lambda: asyncio.create_task(answer("many")))
    queue.put(CALLERS[1], lambda: asyncio.create_task(answer("few")))
    await done.wait()
    assert started[:2] == ["many", "few"]


async def test_an_answer_that_is_stuck_holds_nobody_else_up() -> None:
    queue = ResponseQueue()
    never = asyncio.Event()
    done = asyncio.Event()

    async def stuck() -> None:
        await never.wait()

    async def last() -> None:
        done.set()

    for _ in range(50):
        queue.put(CALLERS[0], lambda: asyncio.create_task(stuck()))
    queue.put(CALLERS[0], lambda: asyncio.create_task(last()))
    async with asyncio.timeout(DEADLINE_S):
        await done.wait()
    never.set()


CHANGES = [
    ("CreateTopics", topics_pb2.CreateTopicsRequest(topics=[topics_pb2.NewTopic(name="new")])),
    ("Metadata", metadata_pb2.MetadataRequest(topics=["new"])),
    (
        "EndTransaction",
        transaction_pb2.EndTransactionRequest(
            transactional_id="x", execution_id="e", decision=transaction_pb2.TRANSACTION_DECISION_COMMIT
        ),
    ),
]


@pytest.mark.parametrize(("name", "request_"), CHANGES)
async def test_a_change_keeps_its_place_until_it_has_ended_although_its_caller_has_gone(name: str, request_: Message) -> None:
    """A caller with too many changes under way is refused further ones, so cancelled calls cannot pile up."""
    data = request_.SerializeToString()

    async with running(MemoryFiles(), ManualClock(), auto_create_topics=True) as broker:
        parts = broker.broker
        callers = Callers(Authenticator(None, needs_certificate=False), parts.topics, parts.audit)
        method: Any = BrokerService(parts, callers).method_handlers()[name].stream_unary
        parts.changes.shares = Shares(3 * 2**14 + 3 * len(data))
        await parts.admin._turns.take(BROKER, 1)
        async with parts.transactions._lock("x"):
            for _ in range(2):
                call = asyncio.create_task(method(None, Context([data])))
                await all_wait()
                call.cancel()
                await all_wait()
                assert call.cancelled()
            held = parts.changes.shares.total
            assert held >= 2 * 2**14
            refused = Context([data])
            answers = await asyncio.gather(method(None, refused), return_exceptions=True)
            assert "bytes of changes are under way" in refused.details + str(answers[0])
            assert parts.changes.shares.total == held
        parts.admin._turns.add(BROKER.owner, -1)
        await parts.admin.drain()
        await parts.transactions.decided()
        await all_wait()
        assert parts.changes.shares.total == 0
        assert parts.topics.has("new") == (name != "EndTransaction")
