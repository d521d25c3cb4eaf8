"""Goal: buffer.memory holds whatever comes at once: what threads are promised and what the sender takes never pass it together, in
any order of their steps.

Method: the pool's list calls a hook wherever one side looks at the other, and there the hook takes the other side's step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from brokerd.producer.core.memory import BufferPool, Promise

TOTAL = 100


class Crossroads(deque[Promise]):
    """A list of promises that lets something else happen first, or right after, once: at the given one of its calls."""

    def __init__(self, at: int, step: Callable[[], None]) -> None:
        super().__init__()
        self.left = at
        self._step = step

    def _pass(self) -> None:
        self.left -= 1
        if self.left == 0:
            self._step()

    def append(self, promise: Promise) -> None:
        """Before, and after."""
        self._pass()
        super().append(promise)
        self._pass()

    def copy(self) -> Crossroads:
        """Before, and after."""
        self._pass()
        made = Crossroads(0, lambda: None)
        made.extend(self)
        self._pass()
        return made

    def popleft(self) -> Promise:
        """Before, and after."""
        self._pass()
        taken = super().popleft()
        self._pass()
        return taken

    def __len__(self) -> int:
        self._pass()
        return super().__len__()


def promised(pool: BufferPool, size: int) -> bool:
    return pool.promise(Promise(size, lambda: None))


def redeem_all(pool: BufferPool) -> int:
    """How many held."""
    count = 0
    while pool.redeem() is not None:
        count += 1
    return count


@pytest.mark.parametrize("at", range(1, 9))
@pytest.mark.parametrize("sizes", [(60, 60), (50, 50), (60, 30)])
def test_a_promise_that_is_crossed_by_the_sender(at: int, sizes: tuple[int, int]) -> None:
    for step in ("allocate", "redeem", "promise", "redeem and allocate"):
        pool = BufferPool(TOTAL)
        given: list[bool] = []

        def cross(pool: BufferPool = pool, step: str = step, given: list[bool] = given) -> None:
            if "redeem" in step:
                redeem_all(pool)
            if "allocate" in step:
                given.append(pool.try_allocate(sizes[1]))
            if step == "promise":
                given.append(promised(pool, sizes[1]))
            assert pool.used_bytes <= TOTAL

        pool.promises = crossroads = Crossroads(at, cross)
        given.append(promised(pool, sizes[0]))
        crossroads.left = 0  # the sender does one thing at a time
        redeem_all(pool)
        assert pool.used_bytes <= TOTAL
        kept = [size for size, is_given in zip((sizes[1], sizes[0])[-len(given) :], given, strict=True) if is_given]
        assert pool.used_bytes == sum(kept), f"{step}: who was told that there is room has it"


class CrossedPool(BufferPool):
    """Calls a hook before one of the looks at the bytes in use, or changes of them."""

    def __init__(self, total_bytes: int) -> None:
        self.left = 0
        self.step: Callable[[], object] = bool
        super().__init__(total_bytes)

    @property
    def used_bytes(self) -> int:
        """As of the pool."""
        self._pass()
        return self._used_bytes

    @used_bytes.setter
    def used_bytes(self, used_bytes: int) -> None:
        self._pass()
        self._used_bytes = used_bytes

    def _pass(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.step()


@pytest.mark.parametrize("at", range(1, 12))
@pytest.mark.parametrize("has_waiter", [True, False])
def test_an_allocation_that_is_crossed_by_a_promise(at: int, *, has_waiter: bool) -> None:
    pool = CrossedPool(TOTAL)
    given: list[bool] = []
    pool.try_allocate(50)
    waiter = pool.enqueue(70) if has_waiter else None
    pool.step, pool.left = lambda: given.append(promised(pool, 60)), at
    pool.release(50)
    is_taken = waiter.is_granted if waiter else pool.try_allocate(70)
    pool.left = 0
    assert sum(given) * 60 + is_taken * 70 <= TOTAL
    redeem_all(pool)
    assert pool.used_bytes <= TOTAL
    if waiter is not None and not any(given):
        assert waiter.is_granted, "a promise that came to nothing keeps nobody waiting"


@pytest.mark.parametrize("at", range(1, 9))
def test_a_redemption_that_is_crossed_by_a_promise(at: int) -> None:
    pool = BufferPool(TOTAL)
    given: list[bool] = []
    pool.promises = Crossroads(at + 6, lambda: given.append(promised(pool, 60)))
    assert promised(pool, 60)
    redeem_all(pool)
    redeem_all(pool)
    assert given in ([], [False])
    assert pool.used_bytes == 60


def test_nobody_is_promised_what_others_wait_for() -> None:
    pool = BufferPool(TOTAL)
    assert pool.try_allocate(80)
    waiter = pool.enqueue(50)
    assert not promised(pool, 10)
    pool.release(80)
    assert waiter.is_granted
    assert promised(pool, 10)
    assert redeem_all(pool) == 1
    assert pool.used_bytes == 60


def test_a_promise_is_never_larger_than_the_buffer() -> None:
    pool = BufferPool(TOTAL)
    assert not promised(pool, TOTAL + 1)
    assert redeem_all(pool) == 0
    assert pool.try_allocate(TOTAL + 1), "an empty buffer admits any single batch, once it is asked for"
