"""The queue between the loop thread and a reader: a thread that waits for it, or a task that is told of it."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


def nothing() -> None:
    """For readers that wait, and need not be told."""


class Arrivals(Generic[T]):
    """A queue that calls `on_arrival` after each item that was put in, in the thread that put it."""

    def __init__(self, on_arrival: Callable[[], None] = nothing) -> None:
        self._items: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._on_arrival = on_arrival

    def put(self, item: T) -> None:
        """Adds an item; never waits."""
        self._items.put(item)
        self._on_arrival()

    def get(self, timeout_ms: int | None) -> T:
        """Waits for the next item. Raises queue.Empty after `timeout_ms`."""
        return self._items.get(timeout=None if timeout_ms is None else timeout_ms / 1000)

    def empty(self) -> bool:
        """True if `get` would wait."""
        return self._items.empty()
