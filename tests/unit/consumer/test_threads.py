"""Goal: one thread at a time uses a consumer; others may wake and close it; an interrupt loses no record."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from brokerd import Consumer
from brokerd.aio import Consumer as AioConsumer
from brokerd.consumer import guard
from brokerd.consumer.guard import Guard
from brokerd.errors import (
    BrokerdError,
    ConsumerClosedError,
    ConsumerStateError,
    WakeupError,
)
from tests.support.child import child
from tests.support.clock import ManualClock
from tests.support.consumers import LONG_MS, T0, T1, fill, filled, offsets, read, settings, user_of
from tests.support.fake_broker import FakeBroker
from tests.support.interrupts import strike
from tests.support.wait import DEADLINE_S, wait_until

# --- threads, interrupts, the end


@pytest.mark.parametrize("kind", [Consumer, AioConsumer])
def test_close_waits_for_the_user_and_the_commit_in_one_time(broker: FakeBroker, kind: type[Any]) -> None:
    clock = ManualClock()
    consumer = kind(settings(broker, group_id="g"), clock=clock)
    times_ms: list[int] = []

    async def commits(timeout_ms: int) -> None:
        times_ms.append(timeout_ms)

    def is_alone(_timeout: float) -> bool:
        clock.advance(20_000)
        return True

    async def is_alone_in_the_loop(timeout_ms: int) -> bool:
        return is_alone(timeout_ms)

    consumer._committing.close = commits
    if kind is Consumer:
        consumer._guard.await_user, consumer._guard.leave = is_alone, lambda: None
        consumer.close(30_000)
    else:
        consumer._guard.alone = is_alone_in_the_loop
        asyncio.run(consumer.close(30_000))
    assert times_ms == [10_000]


def test_a_position_that_arrives_with_the_end_of_a_fetch_is_seen(
    broker: FakeBroker, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create("t", 2)
    consumer.assign([T0, T1])
    assert consumer.poll(10) == []
    consumer.position(T1)
    consumer.poll(0)  # starts fetching
    fetching = consumer._fetching
    assert fetching._pump is not None
    stop = fetching._pump.stop

    def stop_and_wait() -> None:
        wait_until(lambda: fetching._arrivals.qsize() == 1)  # the position
        stop()
        wait_until(lambda: fetching._arrivals.qsize() == 2)

    monkeypatch.setattr(fetching._pump, "stop", stop_and_wait)
    consumer.seek_to_beginning([T1])
    assert consumer.position(T1) == 0


def test_second_thread_is_refused_while_one_polls(broker: FakeBroker, consumer: Consumer) -> None:
    broker.create("t")
    consumer.assign([T0])
    poller = Polling(consumer)
    with pytest.raises(ConsumerStateError, match=r"thread 'poller' is using this consumer, so thread .* cannot: one thread"):
        consumer.poll(0)
    with pytest.raises(ConsumerStateError, match="one thread"):
        consumer.seek(T0, 1)
    consumer.wakeup()
    assert isinstance(poller.outcome(), WakeupError)
    assert consumer.poll(0) == []


def test_wakeup_before_a_poll_ends_the_next_one_alone(broker: FakeBroker, consumer: Consumer) -> None:
    filled(broker, [2])
    consumer.assign([T0])
    consumer.wakeup()
    with pytest.raises(WakeupError):
        consumer.poll(LONG_MS)
    assert offsets(read(consumer, 2)) == [0, 1]


@pytest.mark.parametrize("is_paused", [True, False])
def test_close_of_another_thread_ends_a_poll(broker: FakeBroker, consumer: Consumer, is_paused: bool) -> None:
    broker.create("t")
    consumer.assign([T0])
    if is_paused:
        consumer.pause(T0)
    poller = Polling(consumer)
    consumer.close()
    assert isinstance(poller.outcome(), ConsumerClosedError)
    with pytest.raises(ConsumerClosedError, match="create another"):
        consumer.poll(0)
    consumer.close()


def test_close_ends_a_poll_that_looks_for_a_broker_that_is_not_there(port: int) -> None:
    consumer = Consumer(bootstrap_servers=f"127.0.0.1:{port}")
    consumer.assign([T0])
    assert consumer.poll(1) == []
    poller = Polling(consumer)
    consumer.close()
    assert isinstance(poller.outcome(), ConsumerClosedError)


def test_interrupted_poll_loses_nothing(broker: FakeBroker, consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    (partition,) = broker.create("t")
    fill(partition, [5] * 3)
    consumer.assign([T0])
    assert offsets(consumer.poll(LONG_MS, 2)) == [0, 1]
    fetching = consumer._fetching
    with monkeypatch.context() as patch:
        patch.setattr(fetching, "hand_over", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(LONG_MS, 4)
    assert consumer.position(T0) == 2
    assert offsets(read(consumer, 13)) == list(range(2, 15))


def test_interrupted_pause_and_assign_leave_the_consumer_in_order(
    broker: FakeBroker, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for partition in broker.create("t", 2):
        fill(partition, [5] * 3)
    consumer.assign([T0, T1])
    seen = [(record.partition, record.offset) for record in consumer.poll(LONG_MS, 2)]
    calls: dict[str, Callable[[], None]] = {"pause": lambda: consumer.pause(T0), "give_up": lambda: consumer.assign([T1])}
    for name, call in calls.items():
        with monkeypatch.context() as patch:
            patch.setattr(consumer._fetching, name, _interrupt)
            with pytest.raises(KeyboardInterrupt):
                call()
        consumer.resume([T1])
    consumer.assign([T0, T1])
    at = {tp.partition: consumer.position(tp) for tp in (T0, T1)}
    rest = [(record.partition, record.offset) for record in read(consumer, 30 - sum(at.values()))]
    assert all(sorted(offset for one, offset in rest if one == number) == list(range(at[number], 15)) for number in (0, 1)), seen


@pytest.mark.parametrize("call", [lambda one: one.poll(LONG_MS, 4), lambda one: one.poll_arrow(LONG_MS, 4), next])
def test_records_that_an_interrupt_keeps_from_arriving_come_again(
    broker: FakeBroker, consumer: Consumer, monkeypatch: pytest.MonkeyPatch, call: Callable[[Consumer], object]
) -> None:
    """The interrupt may strike after the position has moved, as the call returns."""
    (partition,) = broker.create("t")
    fill(partition, [5] * 3)
    consumer.assign([T0])
    assert offsets(consumer.poll(LONG_MS, 2)) == [0, 1]
    with monkeypatch.context() as patch:
        patch.setattr(Guard, "__exit__", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            call(consumer)
    assert consumer.position(T0) == 2
    assert offsets(read(consumer, 13)) == list(range(2, 15))


@pytest.mark.parametrize(
    "call",
    [
        lambda one: one.assignment(),
        lambda one: one.poll(0),
        lambda one: one.seek(("u", 0), 1),  # refused: it is not assigned
        lambda one: next(one),
    ],
)
def test_an_interrupt_leaves_the_consumer_to_other_threads(
    broker: FakeBroker, consumer: Consumer, call: Callable[[Consumer], object]
) -> None:
    """Wherever in the guard the interrupt strikes, as a call begins or ends."""
    filled(broker, [100, 100, 100])
    consumer.assign([T0])
    places = (guard.__file__,)

    def action() -> None:
        with contextlib.suppress(ConsumerStateError):
            call(consumer)

    at = 1
    with ThreadPoolExecutor(1) as others:
        while where := strike(action, at, places, is_signal=True):
            assert others.submit(consumer.assignment).result(DEADLINE_S) == {T0}, where
            assert others.submit(_is_alone, consumer).result(DEADLINE_S), where
            assert consumer.assignment() == {T0}, where
            at += 1
    assert at > 5
    assert not user_of(consumer)


def _is_alone(consumer: Consumer) -> bool:
    """True if a `close` by this thread would not have to wait for another one."""
    if not consumer._guard.await_user(0):
        return False
    consumer._guard.leave()
    return True


def test_an_interrupt_of_a_thread_that_waits_for_another_leaves_the_consumer_to_it(broker: FakeBroker, consumer: Consumer) -> None:
    broker.create("t")
    consumer.assign([T0])
    at = 1
    places = (guard.__file__,)
    while strike(lambda: _is_alone(consumer), at, places, is_signal=True):
        poller = Polling(consumer)
        with pytest.raises(ConsumerStateError, match="thread 'poller' is using this consumer"):
            consumer.poll(0)
        consumer.wakeup()
        assert isinstance(poller.outcome(), WakeupError)
        at += 1
    assert at > 5


def test_a_close_waits_for_a_call_of_another_thread_and_then_goes_on(broker: FakeBroker, consumer: Consumer) -> None:
    broker.create("t")
    consumer.assign([T0])
    poller = Polling(consumer)
    assert not _is_alone(consumer)
    with ThreadPoolExecutor(1) as others:
        alone = others.submit(consumer._guard.await_user, DEADLINE_S)
        consumer.wakeup()
        assert isinstance(poller.outcome(), WakeupError)
        assert alone.result(DEADLINE_S)


def _interrupt(*_arguments: object, **_options: object) -> None:
    raise KeyboardInterrupt


# No connection is made: gRPC does not survive a fork, whatever the child does.
_FORKS = """
import os
from brokerd import Consumer
from brokerd.aio import Consumer as AioConsumer
from brokerd.errors import ForkedConsumerError
consumer = Consumer()
consumer.assign([("t", 0)])
pid = os.fork()
if pid == 0:
    refused = 0
    for call in (lambda: consumer.poll(0), lambda: consumer.assign([]), consumer.wakeup):
        try:
            call()
        except ForkedConsumerError as error:
            refused += "create one in the child" in str(error)
    consumer.close()
    os._exit(refused)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), consumer.assignment())
"""


def test_consumer_of_before_a_fork_is_refused_in_the_child_and_closed_at_exit() -> None:
    with child([sys.executable, "-c", _FORKS]) as process:
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (out, err, process.returncode) == ("3 {TopicPartition(topic='t', partition=0)}\n", "", 0)


class Polling:
    """A thread that polls, and is inside `poll` on return."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._error: BrokerdError | None = None
        self._thread = threading.Thread(target=self._run, name="poller")
        self._thread.start()
        wait_until(lambda: user_of(consumer) == "poller")

    def _run(self) -> None:
        try:
            while not self._consumer.poll():
                pass
        except BrokerdError as error:
            self._error = error

    def outcome(self) -> BrokerdError | None:
        """Waits for the thread; returns the error that ended it."""
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        return self._error
