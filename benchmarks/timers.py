"""The timing wheel from a hundred timers to a million: nanoseconds of one insert and one cancel.

Beside it one dict of as many entries, which is O(1) by construction: what it loses with size is the memory's, not an
algorithm's. And a binary heap, which is what asyncio's own timers are.
"""

from __future__ import annotations

import gc
import heapq
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from benchmarks.told import Row
from brokerd.purgatory.timing_wheel import TimerEntry, TimingWheel

T = TypeVar("T")
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
SAMPLE = 2_000  # operations of one measurement: few, so that there are as many timers before it as after it
LONGEST_MS = 60_000


def run(*, largest: int, repeats: int, say: Callable[[str], None]) -> list[Row]:
    """A row per number of timers that wait, up to `largest`."""
    rows: list[Row] = []
    for size in (size for size in SIZES if size <= largest):
        say(f"  {size:,} timers")
        rows.append(_row(size, repeats))
    return rows


def _row(size: int, repeats: int) -> Row:
    rng = random.Random(size)
    deadlines = [rng.randrange(1, LONGEST_MS) for _ in range(size)]
    waiting = [TimerEntry(deadline) for deadline in deadlines]
    batches = [[TimerEntry(rng.randrange(1, LONGEST_MS)) for _ in range(SAMPLE)] for _ in range(repeats * 5 + 1)]
    gc.collect()
    gc.disable()  # its passes cost in proportion to what there is, whoever allocates
    try:
        # One after the other, each with its own structure warm: they would throw each other out of the processor's caches.
        insert_ns, cancel_ns = _wheel_ns(waiting, batches)
        dict_insert_ns, dict_delete_ns = _dict_ns(waiting, batches)
        heap_ns = _heap_ns(deadlines, batches)
    finally:
        gc.enable()
    return {
        "timers": size,
        "insert_ns": insert_ns,
        "cancel_ns": cancel_ns,
        "dict_insert_ns": dict_insert_ns,
        "dict_delete_ns": dict_delete_ns,
        "heap_push_and_pop_ns": heap_ns,
    }


def _wheel_ns(waiting: list[TimerEntry], batches: list[list[TimerEntry]]) -> tuple[int, int]:
    wheel = TimingWheel(tick_ms=1, wheel_size=20, start_ms=0)
    for entry in waiting:
        wheel.add(entry)
    inserts, cancels = [], []
    for entries in batches:
        inserts.append(_ns(wheel.add, entries))
        cancels.append(_ns(wheel.cancel, entries))
    for entry in waiting:
        wheel.cancel(entry)
    return _median(inserts), _median(cancels)


def _dict_ns(waiting: list[TimerEntry], batches: list[list[TimerEntry]]) -> tuple[int, int]:
    plain = dict.fromkeys(waiting)
    inserts, deletes = [], []
    for entries in batches:
        inserts.append(_ns(plain.setdefault, entries))
        deletes.append(_ns(plain.pop, entries))
    return _median(inserts), _median(deletes)


def _heap_ns(deadlines: list[int], batches: list[list[TimerEntry]]) -> int:
    """One push and one pop: a heap cannot cancel, it has to take out at the top."""
    heap = [(deadline, number) for number, deadline in enumerate(deadlines)]
    heapq.heapify(heap)
    taken = []
    for entries in batches:
        items = [(entry.expiry_ms, -number) for number, entry in enumerate(entries)]
        taken.append(_ns(lambda item: heapq.heappush(heap, item), items) + _ns(lambda _: heapq.heappop(heap), items))
    return _median(taken)


def _ns(call: Callable[[T], object], items: Sequence[T]) -> float:
    start = time.perf_counter_ns()
    for item in items:
        call(item)
    return (time.perf_counter_ns() - start) / len(items)


def _median(taken: list[float]) -> int:
    """Without the first, which warms up."""
    return round(statistics.median(taken[1:]))
