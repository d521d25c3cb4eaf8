"""Flushes dirty partitions in threads: one flush per partition at a time, several partitions in parallel.

Batches appended during a partition's flush are covered by its next one, so acknowledgements share fsyncs (group commit). A disk
syncs one partition after another, so callers take turns (brokerd/sharing.py): a caller that writes to a thousand partitions waits
for all of them, but any other caller for at most one of them. A partition with appends of several callers is flushed at the first
of their turns. FlushTask (partition/partition.py) does the flush.

A transaction of a few rows takes some twenty flushes, so a flush must cost little more than its fdatasync: it creates no future,
and flushes that end while the event loop is busy wake it once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from brokerd.partition.partition import FlushTask, Partition
from brokerd.sharing import Caller, FairQueue, Waiting

logger = logging.getLogger(__name__)

_RETRY_S = 0.1


class Flusher:
    """Schedules flushes. Create it inside the running event loop, the only one that uses it."""

    def __init__(self, *, threads: int, on_flush: Callable[[Partition, int], None]) -> None:
        """`on_flush` is called with each flushed log and the flush's duration in nanoseconds."""
        self._on_flush = on_flush
        self._loop = asyncio.get_running_loop()
        self._begun: SimpleQueue[tuple[Partition, FlushTask] | None] = SimpleQueue()  # for the threads; None ends one
        self._ended: deque[tuple[Partition, FlushTask, BaseException | None]] = deque()  # for the event loop, from the threads
        self._is_woken = False  # `_finish_all` is scheduled, and has not read `_ended` yet
        self._threads = [threading.Thread(target=self._work, name=f"brokerd-flush_{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()
        self._room: FairQueue[Partition] = FairQueue(threads)
        # Dirty log -> callers that appended since its last flush began. They are queued in _room, except during a flush of the log.
        self._tickets: dict[Partition, dict[Caller, Waiting[Partition]]] = {}
        self._under_way: dict[Partition, Waiting[Partition]] = {}  # log being flushed -> the entry whose turn it was
        self._told: dict[Partition, list[asyncio.Future[None]]] = {}
        self._retrying: set[Partition] = set()  # logs whose flush could not start, retried after _RETRY_S
        self._is_closed = False
        self._is_scheduled = False
        self._idle = asyncio.Event()
        self._idle.set()

    def mark_dirty(self, log: Partition, caller: Caller) -> None:
        """Queues a flush of the log. Call it after each append of `caller`."""
        tickets = self._tickets.get(log)
        if tickets is None:
            tickets = self._tickets[log] = {}
            self._idle.clear()
        elif caller in tickets:
            return
        ticket = tickets[caller] = Waiting(caller, 1, log)
        if log in self._under_way:
            return
        self._room.join(ticket)
        if not self._is_scheduled:
            # Deferred, so that later appends in this iteration of the event loop share the flush.
            self._is_scheduled = True
            self._loop.call_soon(self._start_flushes)

    async def flush(self, log: Partition, caller: Caller) -> None:
        """Queues a flush of the log in the caller's turn, and returns once it has ended, whatever its result."""
        told: asyncio.Future[None] = self._loop.create_future()
        self._told.setdefault(log, []).append(told)
        self.mark_dirty(log, caller)
        await told

    async def drain(self) -> None:
        """Returns once every dirty log is flushed or has stopped."""
        await self._idle.wait()

    async def close(self) -> None:
        """Begins no more flushes and stops the threads. Logs may stay dirty: call `drain` first."""
        self._is_closed = True
        for _ in self._threads:
            self._begun.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _work(self) -> None:
        """Runs flushes, in one of the threads."""
        while (begun := self._begun.get()) is not None:
            log, task = begun
            failure: BaseException | None = None
            try:
                task.run()
            except BaseException as error:
                failure = error
            self._report(log, task, failure)

    def _report(self, log: Partition, task: FlushTask, failure: BaseException | None) -> None:
        self._ended.append((log, task, failure))
        if not self._is_woken:  # otherwise `_finish_all` has yet to read `_ended`, and finds this flush too
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop may be closed already
                self._loop.call_soon_threadsafe(self._finish_all)

    def _start_flushes(self) -> None:
        self._is_scheduled = False
        while self._tickets and not self._is_closed and (ticket := self._room.pop()) is not None:
            self._start_flush(ticket)
        if not self._tickets and not self._under_way and not self._retrying:
            self._idle.set()

    def _start_flush(self, ticket: Waiting[Partition]) -> None:
        """Begins the flush of a log whose turn it is, for all callers that appended to it."""
        log = ticket.waiter
        others = self._tickets.pop(log)
        del others[ticket.caller]
        for other in others.values():
            self._room.leave(other)
        task = log.prepare_flush()
        if task is None:
            self._room.shares.add(ticket.caller.owner, -1)
            self._tell(log)
            return
        self._under_way[log] = ticket
        self._begun.put((log, task))

    def _finish_all(self) -> None:
        """Completes the flushes that have ended, and begins others."""
        self._is_woken = False  # before reading `_ended`, so that a flush that ends later wakes the loop again
        while self._ended:
            self._finish(*self._ended.popleft())
        self._start_flushes()

    def _finish(self, log: Partition, task: FlushTask, failure: BaseException | None) -> None:
        """Completes one flush; whatever its result, the others continue."""
        caller = self._under_way.pop(log).caller
        self._room.shares.add(caller.owner, -1)
        try:
            self._settle(log, task, failure)
        except Exception:
            logger.exception("%s: a flush ended, but its waiters could not be notified", log.name)
        self._tell(log)
        for ticket in self._tickets.get(log, {}).values():
            self._room.join(ticket)
        untried = task.outcome.untried_error
        if untried is not None and log.is_dirty:
            logger.warning("%s: a flush could not start (%s) and is retried", log.name, untried.strerror)
            self._retrying.add(log)
            self._loop.call_later(_RETRY_S, self._retry, log, caller)
        elif log.is_dirty and log not in self._tickets:
            self.mark_dirty(log, caller)

    def _retry(self, log: Partition, caller: Caller) -> None:
        self._retrying.discard(log)
        if not self._is_closed:
            self.mark_dirty(log, caller)

    def _tell(self, log: Partition) -> None:
        for told in self._told.pop(log, []):
            if not told.done():
                told.set_result(None)

    def _settle(self, log: Partition, task: FlushTask, error: BaseException | None) -> None:
        if error is not None:
            self._tickets.pop(log, None)
            if not log.health.is_deleted:  # a deleted log's files may be removed during a flush
                logger.error("flush of %s failed: it refuses appends until the next start", log.name)
            log.fail_flush(task, error)
            return
        log.complete_flush(task)
        self._on_flush(log, task.duration_ns)
