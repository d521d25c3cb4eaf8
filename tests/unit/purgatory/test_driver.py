"""The driver: real time, one timer, no polling."""

from __future__ import annotations

import asyncio

from brokerd.clock import SystemClock
from brokerd.purgatory import Completion, DelayedOperation, TimedPurgatory
from tests.support.wait import DEADLINE_S


class Alarm(DelayedOperation):
    """Notes when it expired."""

    def __init__(self, expiry_ms: int, clock: SystemClock, left: list[Alarm], done: asyncio.Event) -> None:
        super().__init__(expiry_ms, ())
        self.clock, self.left, self.done = clock, left, done
        self.fired_ms = -1

    def is_satisfied(self, place: int) -> bool:
        return False

    def on_complete(self, completion: Completion) -> None:
        assert completion is Completion.EXPIRED
        self.fired_ms = self.clock.monotonic_ms()
        self.left.remove(self)
        if not self.left:
            self.done.set()


async def test_operations_expire_in_real_time_and_never_early() -> None:
    clock = SystemClock()
    start_ms = clock.monotonic_ms()
    purgatory = TimedPurgatory(clock)
    left: list[Alarm] = []
    done = asyncio.Event()
    alarms = [Alarm(start_ms + delay_ms, clock, left, done) for delay_ms in (60, 5, 30, 31, 1)]
    left.extend(alarms)
    for alarm in alarms:
        purgatory.watch(alarm)
    async with asyncio.timeout(DEADLINE_S):
        await done.wait()
    assert all(alarm.fired_ms >= alarm.expiry_ms for alarm in alarms)
    assert purgatory.next_due_ms() is None


async def test_nothing_is_scheduled_while_nothing_waits_and_nothing_after_close() -> None:
    loop = asyncio.get_running_loop()
    clock = SystemClock()
    purgatory = TimedPurgatory(clock)
    before = set(map(id, loop._scheduled))  # type: ignore[attr-defined]
    first, second, third = (Alarm(clock.monotonic_ms() + 60_000, clock, [], asyncio.Event()) for _ in range(3))
    assert not purgatory.watch(first)
    assert not purgatory.watch(second)
    (scheduled,) = [handle for handle in loop._scheduled if id(handle) not in before]  # type: ignore[attr-defined]
    purgatory.close()
    assert not purgatory.watch(third)
    assert scheduled.cancelled()
    assert {id(handle) for handle in loop._scheduled} <= {*before, id(scheduled)}  # type: ignore[attr-defined]
