"""An event loop in a thread of its own: the bridge between code that blocks and code that awaits.

One owner makes it lazily, in the process that uses it: neither loops nor gRPC survive a fork.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, TypeVar

from brokerd.errors import ClientError

T = TypeVar("T")
CLOSE_TIMEOUT_S = 5.0
_open: weakref.WeakSet[LoopThread] = weakref.WeakSet()


class LoopThread:
    """Runs coroutines for other threads. A daemon thread, so that a forgotten one never keeps the interpreter alive;
    what is still open at exit is closed first.
    """

    def __init__(self, name: str = "brokerd-loop") -> None:
        self._pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.is_closed = False
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()
        _open.add(self)

    def submit(self, coro: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Starts `coro` on the loop. Raises ClientError if the loop is closed or belongs to the process before a fork."""
        if self.is_closed or os.getpid() != self._pid:
            coro.close()
            why = "is closed" if self.is_closed else "was made before this process was forked: make it in the process that uses it"
            raise ClientError(f"this client {why}")
        return asyncio.run_coroutine_threadsafe(coro, self.loop)

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Blocks until `coro` is done; what interrupts the wait cancels it. Not to be called on the loop's own thread."""
        assert threading.current_thread() is not self._thread, "this would wait for itself"
        future = self.submit(coro)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancels what still runs, ends the thread. Safe to call twice, and in a forked child (where it does nothing)."""
        if self.is_closed or os.getpid() != self._pid:
            return
        self.is_closed = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_TIMEOUT_S)

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()


@atexit.register
def _close_all() -> None:
    for loop_thread in list(_open):
        loop_thread.close()
