"""The client for blocking code: the sink, the source, the command line. BlockingClient makes calls on an event loop in its own
thread and waits for them.

Create it lazily, in the process that uses it: neither event loops nor gRPC survive a fork.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from brokerd.client import groups, offsets, topics, transactions
from brokerd.client.broker_client import BrokerClient
from brokerd.clock import Clock, SystemClock
from brokerd.config.client import ClientConfig
from brokerd.errors import ClientError
from brokerd.event_loop import GrpcLoop, is_grpc_task, settle
from brokerd.process import OWN_THREADS, Open, end_daemon_thread
from brokerd.waiter import Waiter

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
CLOSE_TIMEOUT_S = 5.0  # for each cleanup
# Longer than all waits of closing together: a thread abandoned at exit would report its unfinished work.
_JOIN_TIMEOUT_S = 30.0
_CLOSED = "this client is closed"
_FORKED = "this client was created before this process was forked: create it in the process that uses it"


class LoopThread:
    """Runs coroutines for other threads, on an event loop in a daemon thread. A LoopThread that was never closed does not keep the
    interpreter alive; it is closed at exit."""

    def __init__(self, name: str = f"{OWN_THREADS}loop") -> None:
        self._pid = os.getpid()
        self.loop = GrpcLoop()
        # GrpcLoop's override does extra work that only gRPC's callbacks need.
        self._call_soon = functools.partial(asyncio.SelectorEventLoop.call_soon_threadsafe, self.loop)
        self.is_closed = False
        self._cleanups: list[Callable[[], Awaitable[None]]] = []
        self._queued: set[LoopCall[Any]] = set()  # not started; the thread that removes a call starts or refuses it
        self._has_ended = False
        self._on_end: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()
        _open_threads.add(self)

    def submit(self, coro: Coroutine[Any, Any, T], on_end: Callable[[], None] = lambda: None) -> LoopCall[T]:
        """Starts `coro` without waiting; `on_end` is called on the loop thread once there is an outcome. Raises ClientError if the
        loop is closed or was created before a fork."""
        self._check_open(coro)
        call = LoopCall(self.loop, coro, on_end)
        self._queue(call)
        return call

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Runs `callback` on the loop thread, unless the loop closes first."""
        with contextlib.suppress(RuntimeError):
            self._call_soon(callback)

    def _queue(self, call: LoopCall[Any]) -> None:
        self._queued.add(call)
        self.call_soon(functools.partial(self._start, call))
        if self._has_ended:  # the loop ended before the call could start
            self._refuse(call)

    def _start(self, call: LoopCall[Any]) -> None:
        if self.is_closed:  # closed since the call was queued: nothing would end it
            self._refuse(call)
        else:
            self._queued.discard(call)
            call.start()

    def _refuse(self, call: LoopCall[Any]) -> None:
        with contextlib.suppress(KeyError):
            self._queued.remove(call)
            call.refuse()

    def _check_open(self, coro: Coroutine[Any, Any, object]) -> None:
        if self.is_closed or os.getpid() != self._pid:
            coro.close()
            end_daemon_thread()
            raise ClientError(_CLOSED if self.is_closed else _FORKED)

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Blocks until `coro` is done; an interrupted wait cancels it. Must not be called on the loop's own thread. Raises
        ClientError if the loop is closed, or closes meanwhile."""
        assert threading.current_thread() is not self._thread, "the loop thread would wait for itself"
        self._check_open(coro)
        ended = threading.Lock()
        ended.acquire()
        call = LoopCall(self.loop, coro, ended.release)
        try:
            self._queue(call)
            ended.acquire()
        except BaseException:
            self.call_soon(call.cancel)
            end_daemon_thread()
            raise
        try:
            return call.outcome()
        except BaseException as error:
            end_daemon_thread()
            if self.is_closed and isinstance(error, concurrent.futures.CancelledError):
                raise ClientError(_CLOSED) from None
            raise
        finally:
            del call  # its error refers to this frame: break the cycle

    async def awaited(self, coro: Coroutine[Any, Any, T]) -> T:
        """As `run`, for a task of another event loop: cancelling the task cancels `coro`."""
        ended = Waiter()
        call = self.submit(coro, ended.tell)
        try:
            await ended
        except BaseException:
            call.withdraw()
            raise
        return call.outcome()

    def at_close(self, cleanup: Callable[[], Awaitable[None]]) -> None:
        """Awaits `cleanup()` on the loop when it closes, after running tasks are cancelled: for resources that must not outlive
        the loop."""
        self._cleanups.append(cleanup)

    def close(self) -> None:
        """Cancels running tasks, cleans up, ends the thread. Idempotent; does nothing in a forked child."""
        if self.end() and threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_TIMEOUT_S)

    def end(self, on_end: Callable[[], None] | None = None) -> bool:
        """Starts `close` without waiting; safe in a finalizer. `on_end` is called on the loop thread as its last step. False if
        the thread was closed before, or belongs to a parent process."""
        if self.is_closed or os.getpid() != self._pid:
            return False
        self.is_closed = True
        self._on_end = on_end
        self.loop.call_soon_threadsafe(self.loop.stop)
        return True

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self._wind_up())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()
            self._has_ended = True
            for call in list(self._queued):
                self._refuse(call)
            if self._on_end is not None:
                self._on_end()

    async def _wind_up(self) -> None:
        await _cancelled(task for task in asyncio.all_tasks() if not is_grpc_task(task))
        for cleanup in self._cleanups:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await cleanup()
            except Exception as error:
                logger.warning("cleanup failed while closing: %r", error)
        await settle()
        await _cancelled(asyncio.all_tasks())


class LoopCall(Generic[T]):
    """A coroutine on the loop. It reports its end through `on_end`, so a waiting thread shares no lock with the loop: an
    asynchronous exception could interrupt the thread while it held such a lock, and block the loop for ever."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, T], on_end: Callable[[], None]) -> None:
        self._loop = loop
        self._coro = coro
        self._task: asyncio.Task[T] | None = None
        self._is_cancelled = False
        self.has_ended = False  # there is an outcome
        self._on_end = on_end

    @classmethod
    def started(cls, coro: Coroutine[Any, Any, T]) -> LoopCall[T]:
        """Starts a call; runs on the loop."""
        call = cls(asyncio.get_running_loop(), coro, lambda: None)
        call.start()
        return call

    def start(self) -> None:
        """Starts the coroutine; runs on the loop."""
        if self._is_cancelled:
            self._coro.close()
            return
        self._task = self._loop.create_task(self._coro)
        self._task.add_done_callback(self._on_done)

    def refuse(self) -> None:
        """Ends a call that never started because the loop has closed."""
        self._coro.close()
        self.has_ended = True
        self._on_end()

    def _on_done(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the waiting thread may have given up
        self.has_ended = True
        self._on_end()

    def withdraw(self) -> None:
        """Cancels the coroutine once its result is no longer wanted; thread-safe."""
        with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
            self._loop.call_soon_threadsafe(self.cancel)

    def cancel(self) -> None:
        """Cancels the coroutine; runs on the loop."""
        self._is_cancelled = True
        task = self._task
        if task is not None:
            task.cancel()

    async def ended(self, timeout_ms: int | None = None) -> None:
        """Waits for a started call to end, at most `timeout_ms`; runs on the loop."""
        task = self._task
        if task is not None:
            await asyncio.wait([task], timeout=None if timeout_ms is None else timeout_ms / 1000)

    def outcome(self) -> T:
        """Returns or raises the coroutine's result, once it has ended. Raises CancelledError if the loop closed first."""
        if self._task is None:
            raise concurrent.futures.CancelledError
        try:
            return self._task.result()
        except asyncio.CancelledError:
            raise concurrent.futures.CancelledError from None
        finally:
            self._task = None


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels `tasks`, except the calling task, and waits for them."""
    others = [task for task in tasks if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _blocking(
    call: Callable[Concatenate[BrokerClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingClient, P], T]:
    """A method that makes `call` on the loop thread and waits for its result. An interrupted wait cancels the call."""

    def method(client: BlockingClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return client.loop_thread.run(call(client.broker_client, *args, **kwargs))

    functools.update_wrapper(method, call)
    return method


class BlockingClient:
    """The calls of a BrokerClient, each blocking until its response. Thread-safe; close() it when done, or use `with`."""

    def __init__(self, config: ClientConfig, clock: Clock | None = None) -> None:
        """Does not connect yet. Raises ConfigError if bootstrap.servers is malformed."""
        self.broker_client = BrokerClient(config, clock if clock is not None else SystemClock())
        self.loop_thread = LoopThread()
        self.loop_thread.at_close(self.broker_client.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes connections and thread. Idempotent."""
        self.loop_thread.close()

    server_info = _blocking(BrokerClient.server_info)
    metadata = _blocking(BrokerClient.metadata)
    metadata_by_id = _blocking(BrokerClient.metadata_by_id)

    describe_cluster = _blocking(topics.describe_cluster)
    find_coordinator = _blocking(topics.find_coordinator)
    create_topics = _blocking(topics.create_topics)
    create_topic = _blocking(topics.create_topic)
    delete_topics = _blocking(topics.delete_topics)
    describe_topics = _blocking(topics.describe_topics)
    create_partitions = _blocking(topics.create_partitions)
    alter_topic_configs = _blocking(topics.alter_topic_configs)
    reassign_partition = _blocking(topics.reassign_partition)
    drain_node = _blocking(topics.drain_node)
    elect_unclean_leader = _blocking(topics.elect_unclean_leader)

    delete_records = _blocking(offsets.delete_records)
    list_offsets = _blocking(offsets.list_offsets)
    wait_for_records = _blocking(offsets.wait_for_records)

    commit_group_offsets = _blocking(groups.commit_group_offsets)
    group_offsets = _blocking(groups.group_offsets)
    list_groups = _blocking(groups.list_groups)
    describe_group = _blocking(groups.describe_group)
    describe_groups = _blocking(groups.describe_groups)
    delete_group = _blocking(groups.delete_group)

    init_producer_id = _blocking(transactions.init_producer_id)
    init_member = _blocking(transactions.init_member)
    heartbeat = _blocking(transactions.heartbeat)
    end_transaction = _blocking(transactions.end_transaction)
    list_transactions = _blocking(transactions.list_transactions)
    find_transaction = _blocking(transactions.find_transaction)
    describe_transaction = _blocking(transactions.describe_transaction)
    abort_transaction = _blocking(transactions.abort_transaction)
    forget_transactional_id = _blocking(transactions.forget_transactional_id)
    find_hanging_transactions = _blocking(transactions.find_hanging_transactions)


def _close_all(loop_threads: Sequence[LoopThread]) -> None:
    for loop_thread in loop_threads:
        loop_thread.close()


_open_threads = Open(_close_all)
