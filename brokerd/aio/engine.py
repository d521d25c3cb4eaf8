"""The blocking producer as the tasks of an event loop use it: a call that would block the loop says what it would wait for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa

from brokerd.errors import EventLoopError, ProducerClosedError
from brokerd.producer.core.accumulator import NEVER_MS
from brokerd.producer.core.partitioner import Int32s
from brokerd.producer.futures import BatchFuture
from brokerd.producer.lifecycle import open_producers
from brokerd.producer.mailbox import Asked, Errand, Mailbox, Steps, Work
from brokerd.producer.producer import Producer

T = TypeVar("T")


class WouldBlockError(EventLoopError):
    """A call would block the event loop. Its outcome is that of the work that `begin` begins."""

    def __init__(self, begin: Callable[[Callable[[], None]], Errand[Any]]) -> None:
        super().__init__("this call would block the event loop: await the future instead of asking for its result")
        self.begin = begin


class LoopMailbox(Mailbox):
    """A mailbox that nobody waits at who runs an event loop."""

    def ask(self, work: Work[T], *, timeout_s: float | None = None, deadline_ms: int = NEVER_MS, is_kept: bool = False) -> T:
        """Raises WouldBlockError in a thread that runs an event loop; in others, waits."""
        if self.is_own_thread or not _runs_a_loop():
            return super().ask(work, timeout_s=timeout_s, deadline_ms=deadline_ms, is_kept=is_kept)
        self.refuse_fork()
        raise WouldBlockError(lambda on_end: self.begin(work, on_end, deadline_ms=deadline_ms, is_kept=is_kept))


class Engine(Producer):
    """Of one aio.Producer. Closed by its own close() only at exit, when no event loop runs any more."""

    deadline_ms: int | None = None  # of the call that is made now, if it has waited before

    def _new_mailbox(self, wake: Callable[[], None]) -> Mailbox:
        return LoopMailbox(wake)

    def _deadline_ms(self) -> int:
        return super()._deadline_ms() if self.deadline_ms is None else self.deadline_ms

    def refuse_fork(self) -> None:
        """Raises ForkedProducerError in a child."""
        self._mailbox.refuse_fork()

    def begin(self, asked: Asked, on_end: Callable[[], None]) -> Errand[Any]:
        """Begins what a step asks for."""
        return self._mailbox.begin(asked.work, on_end, deadline_ms=asked.deadline_ms, is_kept=asked.is_kept)

    def batch_steps(
        self,
        topic: str,
        data: pa.RecordBatch | pa.Table,
        partitions: Int32s | pa.Array | None,
        key_hashes: Int32s | None,
        deadline_ms: int,
    ) -> Steps[BatchFuture]:
        """`send_batch`, for a task to drive."""
        return self._batch_steps(topic, data, partitions, key_hashes, deadline_ms)

    def close_steps(self, timeout: float | None) -> Steps[None]:
        """`close`, for a task to drive; once begun, it goes on if it is given up."""
        deadline_ms = self._ends_ms(timeout)
        yield Asked(self._closing(deadline_ms), deadline_ms, is_kept=True)
        with contextlib.suppress(ProducerClosedError):
            yield Asked(_until_the_end())
        open_producers.discard(self)


def _until_the_end() -> Work[None]:
    while True:
        yield


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
