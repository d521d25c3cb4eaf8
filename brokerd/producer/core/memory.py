"""Accounting for buffer.memory: the bytes that unsent records hold, and the calls that wait for room, in their order. Holds no
bytes itself, and never waits."""

from __future__ import annotations

from collections import deque
from typing import Protocol


class Waiting(Protocol):
    """A call that waits for room."""

    is_over: bool  # it no longer waits


class BufferPool:
    """Bytes in use out of `total_bytes`. A caller asks `admits`, and adds what it takes to `used_bytes` itself, together with what
    it takes them for.

    An empty buffer admits any single batch, so that one larger than the whole buffer is not stuck for ever.
    """

    __slots__ = ("_waiting", "total_bytes", "used_bytes")

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self._waiting: deque[Waiting] = deque()

    @property
    def available_bytes(self) -> int:
        """Bytes that are free; 0 while more is held than the total."""
        return max(0, self.total_bytes - self.used_bytes)

    @property
    def is_exhausted(self) -> bool:
        """True while a call waits for room."""
        while self._waiting and self._waiting[0].is_over:
            self._waiting.popleft()
        return bool(self._waiting)

    def admits(self, size_bytes: int, call: Waiting | None = None) -> bool:
        """True if the bytes fit and no other call has waited longer. If not, `call` waits from now on, until it is over."""
        is_next = not self.is_exhausted or self._waiting[0] is call
        if is_next and (self.used_bytes == 0 or self.used_bytes + size_bytes <= self.total_bytes):
            return True
        if call is not None and call not in self._waiting:
            self._waiting.append(call)
        return False

    def adjust(self, delta_bytes: int) -> None:
        """Corrects the bytes held once they are known exactly, as after encoding; may exceed the total for a moment."""
        self.used_bytes += delta_bytes
        assert self.used_bytes >= 0, f"{self.used_bytes} bytes held after {delta_bytes}"

    def release(self, size_bytes: int) -> None:
        """Gives bytes back."""
        self.adjust(-size_bytes)
