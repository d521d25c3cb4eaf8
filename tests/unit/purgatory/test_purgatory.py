"""Operations complete exactly once under any interleaving, and leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from brokerd.clock import SystemClock
from brokerd.purgatory import Completion, DelayedOperation, Purgatory, TimedPurgatory, Waiters
from tests.support.scale import TEST_SCALE


class Waiting(DelayedOperation):
    """An operation that waits for `condition`, and records its completions."""

    def __init__(
        self,
        expiry_ms: int,
        condition: Callable[[], bool],
        waits_for: Iterable[Waiters] = (),
        then: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(expiry_ms, tuple(waits_for))
        self._condition = condition
        self._then = then
        self.completions: list[Completion] = []
        self.looked_at: list[int] = []

    def is_satisfied(self, place: int) -> bool:
        self.looked_at.append(place)
        return self.holds()

    def holds(self) -> bool:
        return self._condition()

    def on_complete(self, completion: Completion) -> None:
        self.completions.append(completion)
        self._then()


def never() -> bool:
    return False


def assert_empty(purgatory: Purgatory, *waiters: Waiters) -> None:
    assert len(purgatory) == 0
    assert not any(map(len, waiters))
    assert purgatory.next_due_ms() is None


def test_an_event_between_the_look_and_the_watch_is_not_lost() -> None:
    """The check itself causes the event: check (false), event, watch. No later event follows."""
    purgatory, waiters = Purgatory(), Waiters()
    looks = 0

    def becomes_true_behind_the_first_look() -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:
            waiters.wake()
        return looks > 1

    operation = Waiting(100, becomes_true_behind_the_first_look, [waiters])
    assert purgatory.try_complete_else_watch(operation)
    assert operation.completions == [Completion.CONDITION]
    assert_empty(purgatory, waiters)


def test_an_event_completes_its_own_waiters_only() -> None:
    purgatory = Purgatory()
    waiters = {key: Waiters() for key in "abc"}
    ready: set[str] = set()
    operations = {key: Waiting(100, lambda key=key: key in ready, [waiters[key]]) for key in "abc"}  # type: ignore[misc]
    assert not any(purgatory.try_complete_else_watch(operation) for operation in operations.values())
    ready.update("abc")
    assert waiters["b"].wake() == 1
    assert [key for key, operation in operations.items() if operation.is_completed] == ["b"]
    assert waiters["b"].wake() == 0
    assert len(waiters["a"]) == 1


def test_an_operation_is_told_what_has_moved_and_leaves_all_that_it_waited_for() -> None:
    purgatory, waiters = Purgatory(), [Waiters() for _ in range(2_000)]
    ready = False
    operation = Waiting(100, lambda: ready, waiters)
    purgatory.try_complete_else_watch(operation)
    assert operation.looked_at == list(range(2_000))
    operation.looked_at.clear()
    assert waiters[7].wake() == 0
    ready = True
    assert waiters[1_999].wake() == 1
    assert operation.looked_at == [7, 1_999], "a wake-up costs what has moved"
    assert_empty(purgatory, *waiters)


def test_a_cancelled_operation_is_not_completed_and_not_found() -> None:
    purgatory, waiters = Purgatory(), Waiters()
    operation = Waiting(100, never, [waiters])
    purgatory.try_complete_else_watch(operation)
    assert operation.cancel()
    assert_empty(purgatory, waiters)
    operation._condition = lambda: True
    assert not operation.moved(0)
    assert not operation.force_complete()
    assert operation.completions == []
    assert operation.completion is Completion.CANCELLED


ENDS: dict[str, Callable[[Waiting], bool]] = {
    "expire": Waiting.expire,
    "force_complete": Waiting.force_complete,
    "cancel": Waiting.cancel,
    "moved": lambda operation: operation.moved(0),
}


@pytest.mark.parametrize("second", ENDS)
@pytest.mark.parametrize("first", ["expire", "force_complete", "moved"])
def test_a_final_state_is_final(first: str, second: str) -> None:
    operation = Waiting(100, lambda: True)
    assert ENDS[first](operation)
    assert not ENDS[second](operation)
    assert len(operation.completions) == 1


def test_a_completion_may_complete_others_that_wait_for_the_same_and_add_new_ones() -> None:
    purgatory, waiters = Purgatory(), Waiters()
    ready = False
    inner = Waiting(100, lambda: ready, [waiters])
    added = Waiting(100, never, [waiters])

    def complete_inner_and_add() -> None:
        assert waiters.wake() == 1
        purgatory.try_complete_else_watch(added)

    outer = Waiting(100, lambda: ready, [waiters], complete_inner_and_add)
    purgatory.try_complete_else_watch(outer)
    purgatory.try_complete_else_watch(inner)
    ready = True
    assert waiters.wake() == 1, "the inner one was completed by the inner call"
    assert outer.completions == inner.completions == [Completion.CONDITION]
    assert not added.is_completed
    assert len(waiters) == 1


class World:
    """Partitions whose high watermarks rise, operations that wait for several of them, and topics that are deleted."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.purgatory = Purgatory()
        self.now_ms = 0
        self.ends = dict.fromkeys(range(6), 0)
        self.waiters = [Waiters() for _ in range(6)]
        self.operations: list[Waiting] = []
        self.cancelled: set[Waiting] = set()

    def add(self) -> None:
        wanted = {p: self.ends.get(p, 0) + self.rng.randrange(-1, 5) for p in self.rng.sample(range(6), self.rng.randrange(1, 4))}

        def is_reached() -> bool:
            return all(p not in self.ends or self.ends[p] >= end for p, end in wanted.items())

        waits_for = [self.waiters[partition] for partition in wanted]
        operation = Waiting(self.now_ms + self.rng.randrange(-2, 60), is_reached, waits_for, self.reenter)
        self.operations.append(operation)
        assert self.purgatory.try_complete_else_watch(operation) == operation.is_completed

    def reenter(self) -> None:
        """Sometimes a completion itself causes an event."""
        if self.rng.random() < 0.3:
            self.append()

    def append(self) -> None:
        if self.ends:
            partition = self.rng.choice(list(self.ends))
            self.ends[partition] += 1
            self.waiters[partition].wake()

    def delete(self) -> None:
        partition = self.rng.randrange(6)
        if self.ends.pop(partition, None) is not None:
            self.waiters[partition].wake()
        else:
            self.ends[partition] = 0

    def cancel(self) -> None:
        if self.operations:
            operation = self.rng.choice(self.operations)
            if operation.cancel():
                self.cancelled.add(operation)

    def force(self) -> None:
        if self.operations:
            self.rng.choice(self.operations).force_complete()

    def tick(self) -> None:
        self.now_ms += self.rng.randrange(20)
        self.purgatory.advance(now_ms=self.now_ms)

    def check(self) -> None:
        open_operations = [operation for operation in self.operations if not operation.is_completed]
        assert len(self.purgatory) == len(open_operations)
        assert not any(operation.holds() for operation in open_operations), "a wake-up was lost"
        assert all(operation.expiry_ms > self.now_ms for operation in open_operations), "a deadline was missed"
        assert (self.purgatory.next_due_ms() is None) == (not open_operations)


@pytest.mark.parametrize("seed", range(60 * TEST_SCALE))
def test_every_operation_completes_exactly_once_under_random_interleavings(seed: int) -> None:
    world = World(seed)
    steps = [world.add] * 6 + [world.append] * 5 + [world.delete, world.cancel, world.force, world.tick]
    for _ in range(400):
        world.rng.choice(steps)()
        world.check()
    world.now_ms += 100
    world.purgatory.advance(now_ms=world.now_ms)
    counts = Counter(len(operation.completions) for operation in world.operations)
    expected = Counter({1: len(world.operations) - len(world.cancelled), 0: len(world.cancelled)})
    assert counts == expected
    assert all((operation in world.cancelled) == (not operation.completions) for operation in world.operations)
    assert_empty(world.purgatory, *world.waiters)


@pytest.mark.parametrize("end", ["condition", "expiry", "force", "cancel"])
def test_completed_operations_are_garbage_at_once(end: str) -> None:
    purgatory, waiters = Purgatory(), Waiters()
    is_ready = [False]
    gc.collect()
    gc.disable()
    try:
        references = []
        for number in range(100):
            operation = Waiting(1_000 + number, lambda: is_ready[0], [waiters, Waiters()])
            purgatory.try_complete_else_watch(operation)
            references.append(weakref.ref(operation))
            if end == "cancel":
                operation.cancel()
            del operation
        if end == "condition":
            is_ready[0] = True
            waiters.wake()
        elif end == "expiry":
            purgatory.advance(now_ms=10_000)
        elif end == "force":
            purgatory.force_complete()
        assert not any(reference() for reference in references), "held, or part of a cycle"
        assert_empty(purgatory, waiters)
    finally:
        gc.enable()


def test_a_stop_ends_what_waits_a_few_at_a_time_and_drops_the_rest() -> None:
    purgatory, waiters = Purgatory(), [Waiters() for _ in range(50)]
    operations = [Waiting(100, never, waiters) for _ in range(10)]
    for operation in operations:
        purgatory.try_complete_else_watch(operation)
    assert purgatory.force_complete(3) == 3
    assert [len(purgatory), *map(len, waiters)] == [7] * 51
    assert purgatory.cancel_all() == 7
    assert_empty(purgatory, *waiters)
    assert [operation.completions for operation in operations] == [[Completion.FORCED]] * 3 + [[]] * 7
    assert not any(operation.cancel() or operation.moved(0) for operation in operations)
    assert (purgatory.force_complete(3), purgatory.cancel_all()) == (0, 0)


# TimedPurgatory: real time, one timer, no polling


class Alarm(DelayedOperation):
    """Records when it expired."""

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
