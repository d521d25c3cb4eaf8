"""Which threads are inside a call of a consumer, without a lock that an interrupted thread could leave held.

An exception may strike a thread between any two bytecodes (Ctrl-C, an alarm, a test's time-out), as it enters a call too.
So each use is an entry of a list, and one operation of the list is one step. The first entry has the consumer, and others find it
before their own. An entry that an interrupt has left behind is recognised: the frame that made it runs no more.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType

# A thread that waits looks so often whether the one before it has been struck, and will not tell it.
_LOOK_S = 1.0


class Use:
    """One use: a frame of a thread, until it `end`s or the frame is left."""

    __slots__ = ("_frame", "_latches", "thread_id")

    def __init__(self, frame: FrameType) -> None:
        self._frame = frame
        self._latches: list[threading.Lock] = []
        self.thread_id = threading.get_ident()

    @property
    def thread_name(self) -> str:
        """The name of its thread."""
        return next((thread.name for thread in threading.enumerate() if thread.ident == self.thread_id), "a thread that has ended")

    @property
    def is_left(self) -> bool:
        """True if the frame runs no more."""
        frame = sys._current_frames().get(self.thread_id)  # noqa: SLF001 - there is no public way
        while frame is not None and frame is not self._frame:
            frame = frame.f_back
        return frame is None

    def tell_at_end(self, latch: threading.Lock) -> None:
        """Has `latch` released when the use ends."""
        self._latches.append(latch)

    def tell(self) -> None:
        """Releases the latches of those that wait."""
        for latch in self._latches:
            latch.release()


class Uses:
    """The uses of one consumer, in the order in which they began."""

    def __init__(self) -> None:
        self._uses: list[Use] = []

    def __len__(self) -> int:
        return len(self._uses)

    def begin(self, frame: FrameType) -> Use:
        """A use by the calling thread, for as long as `frame` runs. Whether it has the consumer says `before`."""
        use = Use(frame)
        self._uses.append(use)
        return use

    def before(self, use: Use | None = None) -> Use | None:
        """The use of another thread that has the consumer, or will have it before this one; without one, the first of any."""
        if self._uses[:1] == [use]:
            return None
        for other in self._uses.copy():
            if other is use:
                return None
            if other.is_left:
                self._end(other)
            elif use is None or other.thread_id != use.thread_id:
                return other
        return None

    def end(self) -> None:
        """Ends the calling thread's last use."""
        thread_id = threading.get_ident()
        for use in self._uses[::-1]:
            if use.thread_id == thread_id:
                self._end(use)
                return

    def _end(self, use: Use) -> None:
        try:
            self._uses.remove(use)
        except ValueError:  # another thread has found it left
            return
        use.tell()

    def await_first(self, use: Use, timeout_s: float) -> bool:
        """Waits until no other thread has the consumer before `use`; False after `timeout_s`."""
        while (other := self.before(use)) is not None:
            if timeout_s <= 0:
                return False
            latch = threading.Lock()
            latch.acquire()
            other.tell_at_end(latch)
            if other in self._uses and not latch.acquire(timeout=min(timeout_s, _LOOK_S)):
                timeout_s -= _LOOK_S
        return True
