"""Accounting for buffer.memory: the bytes that unsent records hold, and the appends that wait for room. Holds no bytes itself.

Never waits, and one thread calls it; an append that waits checks its Waiter until that is granted. The exception is `promise`, by
which any thread may have room at once. Each side first says what it takes and then looks at what the other has taken, so of two
that come for the same room at least one sees the other and steps back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Waiter:
    """One append that waits for room."""

    size_bytes: int
    is_granted: bool = False


class Promise:
    """Room for rows that a thread leaves to the thread of the pool, which calls `keep` to take them in. An exception may strike the
    first thread anywhere, so both may say whether there is room: the first word counts."""

    __slots__ = ("_words", "is_kept", "keep", "size_bytes")

    def __init__(self, size_bytes: int, keep: Callable[[], None]) -> None:
        self.size_bytes = size_bytes
        self.keep = keep
        self.is_kept = False  # its rows were taken in
        self._words: list[bool] = []

    def holds(self, has_room: bool) -> bool:
        """The first word on whether there is room; `has_room` is that of this caller."""
        self._words.append(has_room)  # one call that nothing comes between
        return self._words[0]

    @property
    def promised_bytes(self) -> int:
        """Bytes that it takes: none once the word is that there is no room."""
        return 0 if self._words and not self._words[0] else self.size_bytes


class BufferPool:
    """Bytes in use out of `total_bytes`; room is given to waiters in the order in which they came.

    An empty buffer admits any single batch, so that one larger than the whole buffer is not stuck for ever.
    """

    __slots__ = ("_is_granted", "_waiters", "promises", "total_bytes", "used_bytes")

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self._waiters: deque[Waiter] = deque()
        self.promises: deque[Promise] = deque()  # that the pool's thread has not looked at yet
        self._is_granted = False

    @property
    def available_bytes(self) -> int:
        """Bytes that are free; 0 while more is held than the total."""
        return max(0, self.total_bytes - self.used_bytes)

    @property
    def is_exhausted(self) -> bool:
        """True while an append waits for room."""
        return bool(self._waiters)

    @property
    def is_held_up(self) -> bool:
        """True while an append waits and room is promised: the call that it was promised to may have been interrupted, and comes to
        redeem nothing."""
        return bool(self._waiters) and bool(self.promises)

    def take_is_granted(self) -> bool:
        """True if a waiter was granted room since the last call."""
        is_granted = self._is_granted
        self._is_granted = False
        return is_granted

    def try_allocate(self, size_bytes: int) -> bool:
        """Takes the bytes if they fit and no append has waited longer."""
        return not self._waiters and self._take(size_bytes)

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

    # --- promises

    def promise(self, promise: Promise) -> bool:
        """By any thread: sets room aside, if it is free and no append waits. False if not; then nothing is held."""
        self.promises.append(promise)
        promised_bytes = 0  # counted before `used_bytes` is read: what is redeemed meanwhile counts twice, rather than not at all
        for one in self.promises.copy():  # in one call: other threads change them
            promised_bytes += one.promised_bytes
            if one is promise:
                break
        return promise.holds(not self._waiters and self.used_bytes + promised_bytes <= self.total_bytes)

    def redeem(self) -> Promise | None:
        """The oldest promise that holds, with its bytes taken; None if there is none."""
        while self.promises:
            promise = self.promises[0]
            if promise.holds(self.used_bytes + promise.size_bytes <= self.total_bytes):
                self.used_bytes += promise.size_bytes  # before it is off the list: see promise
                return self.promises.popleft()
            self.promises.popleft()
            self._grant()
        return None

    def _grant(self) -> None:
        while self._waiters and self._take(self._waiters[0].size_bytes):
            self._waiters.popleft().is_granted = True
            self._is_granted = True

    def _take(self, size_bytes: int) -> bool:
        """Takes the bytes, if they fit beside all that is promised."""
        if not self._fits(size_bytes):
            return False
        self.used_bytes += size_bytes
        if not self.promises:  # looked at after the bytes were taken: see the module
            return True
        if self.used_bytes + sum(promise.promised_bytes for promise in self.promises.copy()) <= self.total_bytes:
            return True
        self.used_bytes -= size_bytes
        return False

    def _fits(self, size_bytes: int) -> bool:
        return self.used_bytes == 0 or self.used_bytes + size_bytes <= self.total_bytes
