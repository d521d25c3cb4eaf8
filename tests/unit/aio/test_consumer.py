"""Goal: the asyncio consumer never blocks its event loop, a cancelled call loses no records, and a second task or loop is refused.
Its other promises are tested in tests/unit/consumer, for both APIs. Method: a broker in memory; the client's thread is held.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from brokerd.aio import Consumer
from brokerd.errors import ConsumerClosedError, ConsumerStateError, EventLoopError, ForkedConsumerError, WakeupError
from tests.support.child import child
from tests.support.consumers import LONG_MS, T0, T1, fill, filled, offsets, settings
from tests.support.fake_broker import FakeBroker
from tests.support.heartbeat import Held, beat, cancelled, held
from tests.support.wait import DEADLINE_S, wait_until

Call = Callable[[Consumer], Awaitable[Any]]
# The calls that wait for the client's thread.
WAITING: dict[str, Call] = {
    "poll": lambda consumer: consumer.poll(),
    "poll_arrow": lambda consumer: consumer.poll_arrow(),
    "next": lambda consumer: consumer.__anext__(),
    "position": lambda consumer: consumer.position(T1),
    "partitions_for": lambda consumer: consumer.partitions_for("t"),
    "end_offsets": lambda consumer: consumer.end_offsets([T0]),
    "beginning_offsets": lambda consumer: consumer.beginning_offsets([T0]),
    "offsets_for_times": lambda consumer: consumer.offsets_for_times({T0: 0}),
    "commit": lambda consumer: consumer.commit({T0: 1}),
    "committed": lambda consumer: consumer.committed([T0]),
}


def held_thread(consumer: Consumer) -> Any:
    return held(consumer._client.loop_thread.loop.call_soon_threadsafe)


@pytest.mark.parametrize("name", WAITING)
async def test_a_call_that_waits_stops_no_other_task_and_may_be_cancelled(broker: FakeBroker, name: str) -> None:
    for partition in broker.create("t", 2):
        fill(partition, [3, 3])

    async with Consumer(settings(broker, group_id="g", enable_auto_commit=False)) as consumer:
        consumer.assign([T0, T1])
        async with held_thread(consumer):
            for _ in range(2):
                call = asyncio.ensure_future(WAITING[name](consumer))
                await beat()
                assert not call.done()
                await cancelled(call)
            consumer.pause([T1])
            consumer.seek(T0, 2)
            assert await consumer.poll(0) == []
        await asyncio.wait_for(WAITING[name](consumer), DEADLINE_S)


def test_records_of_a_cancelled_poll_come_again(broker: FakeBroker) -> None:
    """Polls are cancelled at each of their steps, with records already received and with a fetch in flight."""
    (partition,) = broker.create("t")
    fill(partition, [1] * 60)

    async def scenario() -> list[int]:
        seen: list[int] = []
        async with Consumer(settings(broker, fetch_max_bytes=1)) as consumer:
            consumer.assign([T0])
            turns = 0
            while len(seen) < 60:
                turns += 1
                poll = asyncio.create_task(consumer.poll(LONG_MS, 2))
                await beat(turns % 7)
                poll.cancel()
                await asyncio.wait([poll])
                if not poll.cancelled():
                    seen += offsets(poll.result())
                elif turns % 3 == 0:
                    seen += offsets(await consumer.poll(LONG_MS, 1))
                assert await consumer.position(T0) == len(seen)
        return seen

    assert asyncio.run(scenario()) == list(range(60))


async def test_a_timeout_shorter_than_the_broker_needs_holds_up_nothing(broker: FakeBroker) -> None:
    """A cancelled poll still makes progress, so the next poll does not start over."""
    filled(broker, [3])

    async with Consumer(settings(broker)) as consumer:
        consumer.assign([T0])
        requests = 0
        for _ in range(100_000):
            poll = asyncio.create_task(consumer.poll())
            await beat(2)
            poll.cancel()
            await asyncio.wait([poll])
            if not poll.cancelled():
                assert offsets(poll.result()) == [0, 1, 2]
                return
            requests += 1
        raise AssertionError(f"{requests} polls have come to nothing")


@pytest.mark.parametrize("is_iterated", [False, True])
async def test_however_much_has_come_other_tasks_have_their_turn(broker: FakeBroker, is_iterated: bool) -> None:
    (partition,) = broker.create("t")
    fill(partition, [2_000] * 3)

    async with Consumer(settings(broker)) as consumer:
        consumer.assign([T0])
        await consumer.poll(LONG_MS, 1)
        wait_until(lambda: consumer._fetching.has_arrivals or consumer._fetching._buffer.size_bytes > 0)
        beats = 0

        async def count() -> None:
            nonlocal beats
            while True:
                beats += 1
                await beat(1)

        counting = asyncio.create_task(count())
        for _ in range(1_000 if is_iterated else 20):
            await (consumer.__anext__() if is_iterated else consumer.poll(LONG_MS, 10))
        assert beats >= 9
        await cancelled(counting)


async def test_second_task_is_refused_while_one_polls_but_may_wake_it(broker: FakeBroker) -> None:
    broker.create("t")

    async with Consumer(settings(broker)) as consumer:
        consumer.assign([T0])
        poll = asyncio.create_task(consumer.poll(), name="poller")
        await beat()
        with pytest.raises(ConsumerStateError, match=r"task 'poller' is using this consumer, so task '.*' cannot: one task"):
            await consumer.poll(0)
        with pytest.raises(ConsumerStateError, match="one task"):
            consumer.seek(T0, 1)
        consumer.wakeup()
        with pytest.raises(WakeupError):
            await asyncio.wait_for(poll, DEADLINE_S)
        assert await consumer.poll(0) == []


@pytest.mark.parametrize("is_iterated", [False, True])
async def test_close_of_another_task_ends_a_poll(broker: FakeBroker, is_iterated: bool) -> None:
    broker.create("t")

    consumer = Consumer(settings(broker))
    consumer.assign([T0])

    async def iterate() -> list[Any]:
        return [record async for record in consumer]

    reading: asyncio.Task[Any] = asyncio.create_task(iterate() if is_iterated else consumer.poll())
    await beat()
    await consumer.close()
    if is_iterated:
        assert await reading == []
    else:
        with pytest.raises(ConsumerClosedError):
            await reading
    with pytest.raises(ConsumerClosedError, match="create another"):
        await consumer.poll(0)
    await consumer.close()


async def test_who_closes_second_waits_for_what_the_first_commits(broker: FakeBroker) -> None:
    """If a task's close() ends the main program's iteration, the program's own close() must not cut short the commit."""
    filled(broker, [3])

    async with Consumer(settings(broker, group_id="g", auto_commit_interval_ms=LONG_MS)) as consumer:
        consumer.assign([T0])
        await consumer.poll(LONG_MS)
        await consumer.poll(0)
        async with held_thread(consumer):
            first = asyncio.create_task(consumer.close())
            await beat()
            second = asyncio.create_task(consumer.close())
            await beat()
            assert not second.done()
            await consumer.close(0)  # waits no longer than its own timeout
            assert not first.done()
        await asyncio.wait_for(second, DEADLINE_S)
        assert broker.commits == [{0: 3}]
        assert first.done()
        async with asyncio.timeout(DEADLINE_S):
            await consumer.close()


async def test_a_cancelled_close_ends_the_consumer_all_the_same(broker: FakeBroker) -> None:
    filled(broker, [3])

    consumer = Consumer(settings(broker, group_id="g"))
    consumer.assign([T0])
    await consumer.poll(LONG_MS)
    await consumer.poll(0)
    async with held_thread(consumer):
        closing = asyncio.create_task(consumer.close())
        await beat()
        assert not closing.done()
        await cancelled(closing)
    await consumer.close()
    wait_until(lambda: not consumer._client.loop_thread._thread.is_alive())


def test_another_loop_and_no_loop_are_refused(broker: FakeBroker) -> None:
    broker.create("t")
    consumer = Consumer(settings(broker))
    with pytest.raises(EventLoopError, match="outside of an event loop"):
        consumer.assign([T0])

    async def use() -> None:
        consumer.assign([T0])
        await consumer.poll(0)

    asyncio.run(use())
    for call in (use, consumer.close):
        with pytest.raises(EventLoopError, match="in another: make one in each loop"):
            asyncio.run(call())
    consumer.close_at_exit()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_consumer_that_is_not_closed_is_told_and_holds_up_no_end(broker: FakeBroker) -> None:
    broker.create("t")

    async def scenario() -> Any:
        consumer = Consumer(settings(broker))
        consumer.assign([T0])
        assert await consumer.poll(0) == []
        return consumer._client.loop_thread._thread

    with pytest.warns(ResourceWarning, match=r"unclosed .*`async with` block, or await close\(\)"):
        thread = asyncio.run(scenario())
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_a_child_of_a_fork_is_refused(broker: FakeBroker) -> None:
    async def scenario() -> int:
        consumer = Consumer(settings(broker))
        consumer.assign([T0])
        child_id = os.fork()
        if child_id == 0:
            refused = 0
            try:
                await consumer.poll(0)
            except ForkedConsumerError as error:
                refused = "create one in the child" in str(error)
            await consumer.close()
            os._exit(10 + refused)
        await consumer.close()
        return child_id

    _, status = os.waitpid(asyncio.run(scenario()), 0)
    assert os.waitstatus_to_exitcode(status) == 11


_INTERRUPTED = """
import asyncio, sys
from brokerd.aio import Consumer, Producer

async def main():
    async with Producer(bootstrap_servers=sys.argv[1]) as producer, Consumer(bootstrap_servers=sys.argv[1]) as consumer:
        consumer.assign([("t", 0)])
        await consumer.position(("t", 0))
        print("ready", flush=True)
        await consumer.poll()

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_ends_a_program_in_order(broker: FakeBroker) -> None:
    broker.create("t")
    with child([sys.executable, "-W", "default", "-c", _INTERRUPTED, f"127.0.0.1:{broker.port}"]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (out, err, process.returncode) == ("interrupted\n", "", 0)


def test_a_held_thread_is_seen() -> None:
    """Tests the helper: `held` fails if the event loop was blocked until the held thread timed out."""

    async def scenario() -> None:
        one = Held()
        one.timed_out = True
        async with held(lambda hold: asyncio.get_running_loop().run_in_executor(None, hold)) as two:
            two.timed_out = one.timed_out

    with pytest.raises(AssertionError, match="stood still"):
        asyncio.run(scenario())
