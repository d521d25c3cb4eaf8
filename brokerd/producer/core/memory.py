"""Accounting for buffer.memory: the bytes that unsent records hold, and the appends that wait for room. Holds no bytes itself.

Not thread-safe and never waits: one thread calls it, and an append that waits checks its Waiter until that is granted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Waiter:
    """One append that waits for room."""

    size_bytes: int
    is_granted: bool = False


class BufferPool:
    """Bytes in use out of `total_bytes`; room is given to waiters in the order in which they came.

    An empty buffer admits any single batch, so that one larger than the whole buffer is not stuck for ever.
    """

    __slots__ = ("_is_granted", "_waiters", "total_bytes", "used_bytes")

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self._waiters: deque[Waiter] = deque()
        self._is_granted = False

    @property
    def available_bytes(self) -> int:
        """Bytes that are free; 0 while more is held than the total."""
        return max(0, self.total_bytes - self.used_bytes)

    @property
    def is_exhausted(self) -> bool:
        """True while an append waits for room."""
        return bool(self._waiters)

    def take_is_granted(self) -> bool:
        """True if a waiter was granted room since the last call."""
        is_granted = self._is_granted
        self._is_granted = False
        return is_granted

    def try_allocate(self, size_bytes: int) -> bool:
        """Takes the bytes if they fit and no append has waited longer."""
        if self._waiters or not self._fits(size_bytes):
            return False
        self.used_bytes += size_bytes
        return True

    def enqueue(self, size_bytes: int) -> Waiter:
        """Queues for room; `is_granted` turns true, with the bytes taken, during some `release`."""
        waiter = Waiter(size_bytes)
        self._waiters.append(waiter)
        self._grant()
        return waiter

    def cancel(self, waiter: Waiter) -> None:
        """Gives up waiting; a waiter that was granted meanwhile gives its bytes back."""
        if waiter.is_granted:
            self.release(waiter.size_bytes)
        else:
            self._waiters.remove(waiter)
            self._grant()

    def release(self, size_bytes: int) -> None:
        """Gives bytes back and serves waiters."""
        self.adjust(-size_bytes)

    def adjust(self, delta_bytes: int) -> None:
        """Corrects the bytes held once they are known exactly, as after encoding; may exceed the total for a moment."""
        self.used_bytes += delta_bytes
        assert self.used_bytes >= 0, f"{self.used_bytes} bytes held after {delta_bytes}"
        if self._waiters:
            self._grant()

    def _grant(self) -> None:
        while self._waiters and self._fits(self._waiters[0].size_bytes):
            waiter = self._waiters.popleft()
            self.used_bytes += waiter.size_bytes
            waiter.is_granted = True
            self._is_granted = True

    def _fits(self, size_bytes: int) -> bool:
        return self.used_bytes == 0 or self.used_bytes + size_bytes <= self.total_bytes
