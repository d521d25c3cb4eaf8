"""Goal: the asyncio producer never blocks its event loop. With a full buffer, tasks wait in order. A cancelled call has its whole
effect or none, and the producer remains usable. Its other promises are tested in tests/unit/producer, for both APIs. Method: a
broker double; the sender's thread is held.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from brokerd.aio import Producer
from brokerd.clock import Clock
from brokerd.errors import (
    AlreadyCommittedError,
    BufferExhaustedError,
    CorruptMessageError,
    EventLoopError,
    Fate,
    ProducerClosedError,
    TransactionStateError,
    UnknownTopicOrPartitionError,
)
from brokerd.ids import ProducerIdAndEpoch
from brokerd.producer.core.membership import MemberReport, Membership
from brokerd.producer.waiting import Wait
from tests.support.broker_double import BrokerDouble, CoordinatorDouble, Fault, TransportDouble, double_of
from tests.support.clock import LateClock
from tests.support.faces import AwaitedCoordinator
from tests.support.heartbeat import beat, cancelled, held
from tests.support.wait import DEADLINE_S, wait_until
from tests.unit.producer.test_producer import FAST

ROWS = pa.RecordBatch.from_pydict({"value": [b"x"] * 10})
Call = Callable[[Producer], Awaitable[Any]]
# The calls that wait for the sender's thread.
WAITING: dict[str, Call] = {
    "send": lambda producer: producer.send("other", b"x"),
    "send_and_wait": lambda producer: producer.send_and_wait("t", b"x"),
    "send_batch": lambda producer: producer.send_batch("other", ROWS),
    "flush": lambda producer: producer.flush(),
    "partitions_for": lambda producer: producer.partitions_for("other"),
}


@pytest.fixture
def broker() -> BrokerDouble:
    double = double_of(1)
    double.create_topic("other", 1)
    return double


def producer_of(broker: BrokerDouble, clock: Clock | None = None, **settings: object) -> Producer:
    given = {**FAST, "transactional.id": "x", **{name.replace("_", "."): value for name, value in settings.items()}}
    coordinator = AwaitedCoordinator(CoordinatorDouble(broker))
    return Producer(given, transport_factory=broker.transport, clock=clock, coordinator=coordinator)


def plain(broker: BrokerDouble, clock: Clock | None = None, **settings: object) -> Producer:
    return producer_of(broker, clock, transactional_id="", **settings)


def held_thread(producer: Producer) -> Any:
    def call(hold: Callable[..., None]) -> None:
        loop = producer._engine._sender._loop
        assert loop is not None
        loop.call_soon_threadsafe(hold)

    return held(call)


def numbers(broker: BrokerDouble, topic: str = "t") -> list[int]:
    return [int(value) for value in broker.values(topic, 0)]


@pytest.mark.parametrize("name", WAITING)
async def test_a_call_that_waits_stops_no_other_task_and_may_be_cancelled(broker: BrokerDouble, name: str) -> None:
    async with plain(broker) as producer:
        await producer.send_and_wait("t", b"0")
        async with held_thread(producer):
            for _ in range(2):
                call = asyncio.ensure_future(WAITING[name](producer))
                await beat()
                assert not call.done()
                await cancelled(call)
        async with asyncio.timeout(DEADLINE_S):
            await WAITING[name](producer)
            await producer.flush()
            metrics = await producer.metrics()
        assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"]


async def test_a_future_awaits_and_never_blocks(broker: BrokerDouble) -> None:
    async with plain(broker, linger_ms=60_000) as producer:
        await producer.send("t", b"0")
        future = await producer.send("t", b"1")
        with pytest.raises(EventLoopError, match="await the future"):
            future.result()
        with pytest.raises(TimeoutError):
            future.result(0)
        await cancelled(asyncio.ensure_future(future))
        await producer.flush()
        assert (await future)[:3] == ("t", 0, 1)
        assert future.result() == await future


async def test_a_full_buffer_makes_tasks_wait_in_their_order(broker: BrokerDouble) -> None:
    broker.topics["t"].leaders = [-1]
    count = 300

    async with plain(broker, buffer_memory=20_000, max_block_ms=60_000) as producer:
        await producer.partitions_for("t")
        sends = [asyncio.create_task(producer.send("t", b"%0200d" % number)) for number in range(count)]
        await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
        await beat()
        waiting = [send for send in sends if not send.done()]
        assert 0 < len(waiting) < count
        await cancelled(waiting[1])
        await cancelled(waiting[-1])
        broker.topics["t"].leaders = [0]
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait(sends)
            await producer.flush()
        given_up = {sends.index(waiting[1]), sends.index(waiting[-1])}
        assert numbers(broker) == [number for number in range(count) if number not in given_up]
        metrics = await producer.metrics()
        assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"]


async def test_a_buffer_that_stays_full_is_told_to_all_that_wait(broker: BrokerDouble) -> None:
    broker.topics["t"].leaders = [-1]
    clock = LateClock()

    producer = plain(broker, clock, buffer_memory=20_000, max_block_ms=60_000)
    sends = [asyncio.create_task(producer.send("t", b"x" * 1_000)) for _ in range(60)]
    await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
    await beat()
    clock.late_ms += 60_000
    await asyncio.wait(sends, timeout=DEADLINE_S)
    refused = [send.exception() for send in sends if send.exception() is not None]
    assert 0 < len(refused) < 60
    assert {type(error) for error in refused} == {BufferExhaustedError}
    assert not producer._lines._counts
    nowhere = asyncio.create_task(producer.send("nowhere", b"x"))
    missed = partial(producer._engine._core.topics.error_of, "nowhere", 0)
    await asyncio.to_thread(wait_until, lambda: missed() is not None)
    clock.late_ms += 60_000
    with pytest.raises(UnknownTopicOrPartitionError, match="nowhere"):
        await nowhere
    await producer.close(0)


async def test_a_cancelled_send_is_in_the_log_once_or_not_at_all(broker: BrokerDouble) -> None:
    """Sends are cancelled at each of their steps, with and without room in a nearly full buffer."""

    sent: set[int] = set()
    unknown: set[int] = set()
    async with plain(broker, buffer_memory=20_000) as producer:
        for number in range(400):
            if number == 20:  # the sends before are cancelled while the topic is unknown
                await producer.partitions_for("t")
            send = asyncio.create_task(producer.send("t", b"%0900d" % number))
            await beat(number % 5)
            send.cancel()
            await asyncio.wait([send])
            (unknown if send.cancelled() else sent).add(number)
            if not send.cancelled() and number % 3 == 0:
                await cancelled(asyncio.ensure_future(send.result())) if not send.result().done() else None
        await producer.flush()
        metrics = await producer.metrics()
    written = numbers(broker)
    assert written == sorted(set(written))
    assert sent <= set(written) <= sent | unknown
    assert sent
    assert unknown
    assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"]


async def test_sends_that_need_not_wait_let_other_tasks_have_their_turn(broker: BrokerDouble) -> None:
    async with plain(broker) as producer:
        await producer.send_and_wait("t", b"0")
        beats = 0

        async def count() -> None:
            nonlocal beats
            while True:
                beats += 1
                await beat(1)

        counting = asyncio.create_task(count())
        async with held_thread(producer):  # the held thread takes none of the buffer, so no send waits for room
            before = beats
            for number in range(250):
                await producer.send("t", b"%d" % number)
            assert before + 2 <= beats < before + 10
        await cancelled(counting)


async def test_close_ends_sends_that_wait_for_room(broker: BrokerDouble) -> None:
    broker.topics["t"].leaders = [-1]

    producer = plain(broker, buffer_memory=20_000)
    sends = [asyncio.create_task(producer.send("t", b"x" * 1_000)) for _ in range(60)]
    await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
    await beat()
    await producer.close(0)
    done, waiting = await asyncio.wait(sends, timeout=DEADLINE_S)
    assert not waiting
    errors = [send.exception() for send in done if send.exception() is not None]
    assert errors
    assert {type(error) for error in errors} == {ProducerClosedError}
    assert producer.abandoned_count == len(sends) - len(errors)
    await producer.close()
    with pytest.raises(ProducerClosedError):
        await producer.send("t", b"x")


async def test_a_cancelled_close_goes_on(broker: BrokerDouble) -> None:
    producer = plain(broker, linger_ms=60_000)
    await producer.send("t", b"0")
    future = await producer.send("t", b"1")
    async with held_thread(producer):
        closing = asyncio.create_task(producer.close())
        await beat()
        assert not closing.done()
        await cancelled(closing)
    assert (await future).offset == 1
    await producer.close()
    wait_until(lambda: not producer._engine._sender._thread.is_alive())


def test_another_loop_and_no_loop_are_refused(broker: BrokerDouble) -> None:
    producer = plain(broker)

    async def send() -> Any:
        return await producer.send_and_wait("t", b"0")

    assert asyncio.run(send()).offset == 0
    for call in (send, producer.flush, producer.close):
        with pytest.raises(EventLoopError, match="in another: make one in each loop"):
            asyncio.run(call())
    with pytest.raises(EventLoopError, match="outside of an event loop"):
        producer.send("t", b"1").send(None)
    producer._is_closed = True
    producer._engine.close()


def test_a_producer_that_is_not_closed_is_told_and_its_records_are_sent(broker: BrokerDouble) -> None:
    async def scenario() -> Any:
        producer = plain(broker, linger_ms=60_000)
        await producer.send("t", b"0")
        await producer.send("t", b"1")
        return producer._engine

    with pytest.warns(ResourceWarning, match=r"unclosed .*`async with` block, or await close\(\)"):
        engine = asyncio.run(scenario())
    engine.close()  # as at exit
    assert numbers(broker) == [0, 1]


@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_a_transaction_cancelled_anywhere_is_committed_or_not_and_the_next_works(broker: BrokerDouble, turns: int) -> None:
    async def write(producer: Producer) -> None:
        async with producer.transaction(0):
            for number in range(5):
                await producer.send("t", b"%d" % number)

    async with producer_of(broker) as producer:
        writing = asyncio.create_task(write(producer))
        await beat(turns)
        writing.cancel()
        await asyncio.wait([writing], timeout=DEADLINE_S)
        assert writing.done()
        assert broker.committed_values("t") in ([], [b"%d" % number for number in range(5)])
        try:
            await write(producer)
        except AlreadyCommittedError:
            assert not writing.cancelled() or broker.committed_values("t")
        assert broker.committed_values("t") == [b"%d" % number for number in range(5)]
        assert await producer.last_committed_version() == 0


async def test_batches_and_records_stand_in_the_order_of_the_calls(broker: BrokerDouble) -> None:
    """Both while the buffer has room, and behind tasks that wait for room."""

    def rows(number: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"value": [b"%0200d" % number]})

    async with plain(broker, buffer_memory=20_000, max_block_ms=60_000) as producer:
        await producer.partitions_for("t")
        await asyncio.gather(*(producer.send_batch("t", rows(0)), producer.send("t", b"%0200d" % 1)))
        await producer.flush()
        assert numbers(broker) == [0, 1]
        broker.topics["t"].leaders = [-1]
        calls: list[asyncio.Task[Any]] = []
        for number in range(2, 300):
            call = producer.send("t", b"%0200d" % number) if number % 3 else producer.send_batch("t", rows(number))
            calls.append(asyncio.create_task(call))
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        await beat()
        assert not all(call.done() for call in calls)
        broker.topics["t"].leaders = [0]
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*calls)
            await producer.flush()
        assert numbers(broker) == list(range(300))
        assert not producer._lines._counts


async def test_a_batch_behind_others_waits_for_max_block_ms_in_all(broker: BrokerDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits for its turn, for the unknown topic and for room share one max.block.ms."""
    clock = LateClock()

    producer = plain(broker, clock, buffer_memory=20_000, max_block_ms=60_000)
    broker.topics["t"].leaders = [-1]
    await producer.send("t", b"x" * 15_000)
    asked: list[int] = []
    wait_in_task = producer._engine.shared.wait_in_task

    async def noted(wait: Wait[Any]) -> Any:
        asked.append(wait.deadline_ms)
        clock.late_ms += 10_000 if len(asked) < 2 else 60_000
        return await wait_in_task(wait)

    monkeypatch.setattr(producer._engine.shared, "wait_in_task", noted)
    try:
        async with producer._lines.turn("other", 60_000):
            sending = asyncio.create_task(producer.send_batch("other", pa.RecordBatch.from_pydict({"value": [b"x" * 9_000]})))
            await beat()
            at_most_ms = clock.monotonic_ms() + 60_000
            clock.late_ms += 10_000
        with pytest.raises(BufferExhaustedError):
            await asyncio.wait_for(sending, DEADLINE_S)
        topic_ms, room_ms = asked
        assert topic_ms == room_ms <= at_most_ms
    finally:
        await producer.close(0)


async def test_a_transaction_cancelled_while_it_begins_leaves_that_of_another_task_alone(broker: BrokerDouble) -> None:
    async with producer_of(broker) as producer:
        async with producer.transaction():
            await producer.send("t", b"0")
            for turns in range(4):
                other = asyncio.create_task(producer.transaction(7).__aenter__())
                await beat(turns)
                other.cancel()
                await asyncio.wait([other], timeout=DEADLINE_S)
                assert other.cancelled() or isinstance(other.exception(), TransactionStateError)
            await producer.send("t", b"1")
        assert broker.committed_values("t") == [b"0", b"1"]


async def test_a_transaction_that_fails_leaves_the_next_one_of_another_task_alone(
    broker: BrokerDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other transaction begins as soon as the first has failed, before the first is aborted at the broker."""

    async with producer_of(broker) as producer:
        other = producer.transaction(1)
        end_member = producer.end_member

        async def and_the_next_begins() -> MemberReport:
            try:
                return await end_member()
            finally:
                monkeypatch.undo()
                await other.__aenter__()

        monkeypatch.setattr(producer, "end_member", and_the_next_begins)
        broker.faults.append(Fault(error=CorruptMessageError("no", fate=Fate.NOT_APPENDED)))
        with pytest.raises(CorruptMessageError):
            async with producer.transaction(0):
                await producer.send("t", b"0")
        await producer.send("t", b"1")
        await other.__aexit__(None, None, None)
        assert broker.committed_values("t") == [b"1"]


def test_a_transaction_awaits_the_abort_of_one_that_was_cancelled_twice(
    broker: BrokerDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The abort waits for a producer id that was requested; after the second cancellation, no task awaits the abort."""
    is_asked, is_granted = threading.Event(), threading.Event()
    init_member = TransportDouble.init_member

    async def late(transport: TransportDouble, membership: Membership) -> ProducerIdAndEpoch:
        is_asked.set()
        await asyncio.to_thread(is_granted.wait, DEADLINE_S)
        return await init_member(transport, membership)

    async def write(producer: Producer, value: bytes) -> None:
        async with producer.transaction():
            await producer.send_and_wait("t", value)

    async def scenario() -> None:
        async with producer_of(broker) as producer:
            writing = asyncio.create_task(write(producer, b"0"))
            assert await asyncio.to_thread(is_asked.wait, DEADLINE_S)
            for _ in range(2):
                writing.cancel()
                await beat()
            assert writing.cancelled()
            following = asyncio.create_task(write(producer, b"1"))
            await beat()
            is_granted.set()
            await asyncio.wait_for(following, DEADLINE_S)
            assert broker.committed_values("t") == [b"1"]

    monkeypatch.setattr(TransportDouble, "init_member", late)
    asyncio.run(scenario())
