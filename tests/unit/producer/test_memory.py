"""Accounting of buffer.memory: calls get room in the order in which they came; calls that are over are skipped."""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.producer.core.accumulator import BufferPool

TOTAL = 100


@dataclass(eq=False)
class Call:
    """A waiting call."""

    is_over: bool = False


def test_room_is_taken_in_the_order_of_the_calls() -> None:
    pool = BufferPool(TOTAL)
    pool.used_bytes = 80
    first, second = Call(), Call()
    assert not pool.admits(50, first)
    assert not pool.admits(10, second), "it came later"
    assert not pool.admits(10), "others wait"
    pool.adjust(-40)
    assert not pool.admits(10, second)
    assert pool.admits(50, first)
    pool.used_bytes += 50
    first.is_over = True
    assert pool.admits(10, second)


def test_a_call_that_is_over_keeps_nobody_waiting() -> None:
    pool = BufferPool(TOTAL)
    pool.used_bytes = TOTAL
    interrupted, other = Call(), Call()
    assert not pool.admits(50, interrupted)
    assert not pool.admits(50, other)
    interrupted.is_over = True
    pool.adjust(-60)
    assert pool.admits(50, other)
    other.is_over = True
    assert not pool.is_exhausted


def test_an_empty_buffer_admits_any_single_batch() -> None:
    pool = BufferPool(TOTAL)
    assert pool.admits(TOTAL + 1)
    pool.used_bytes = 1
    assert not pool.admits(TOTAL)
