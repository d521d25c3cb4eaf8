"""What a fork and the end of a process do to the clients and producers that it has open; nobody else asks Python for either.

A forked child forgets what is its parent's, and never frees it: gRPC's destructors would crash it.

At exit, clients that nobody closed close themselves, and nobody hears of it. By then Python has joined all threads but daemon
threads. One that is still inside a client, or comes back to it, would be told that the client is closed: no error of its own,
printed at the end of a program in which nothing went wrong. So it ends there.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

OWN_THREADS = "brokerd-"  # how the names of the clients' own threads begin
_is_exiting = threading.Event()
_closes: list[Callable[[], object]] = []
_forgets: list[Callable[[], object]] = []
_watched_pid = 0  # the child of multiprocessing whose end is seen to


def at_exit(close: Callable[[], object]) -> None:
    """Calls `close` when the interpreter ends; what is asked for last is called first."""
    _closes.append(close)
    atexit.register(_run, close)


def in_forked_child(forget: Callable[[], object]) -> None:
    """Calls `forget` in each child that is forked from now on."""
    _forgets.append(forget)


def _after_fork() -> None:
    for forget in _forgets:
        forget()


os.register_at_fork(after_in_child=_after_fork)


class Open(Generic[T]):
    """Those of a kind that this process has open: closed at exit, kept for ever in a forked child."""

    def __init__(self, close_all: Callable[[Sequence[T]], object], after_fork: Callable[[T], object] = lambda _: None) -> None:
        """`after_fork` is called in a child with each that the parent has open."""
        self._open: weakref.WeakSet[T] = weakref.WeakSet()
        self._kept: list[T] = []  # of processes before a fork
        self._tell = after_fork
        at_exit(lambda: close_all(list(self._open)))
        in_forked_child(self._keep)

    def add(self, one: T) -> None:
        """From now on it hears of forks, and is closed at exit."""
        self._open.add(one)
        watch_child()

    def discard(self, one: T) -> None:
        """It is closed."""
        self._open.discard(one)

    def _keep(self) -> None:
        self._kept.extend(self._open)
        self._open.clear()
        for one in self._kept:
            self._tell(one)


def watch_child() -> None:
    """To be called when there is something to close: a child of multiprocessing ends without what atexit was asked for (up to
    Python 3.13 without all of it, later without what was asked for before its fork), so it is asked to call it."""
    global _watched_pid
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None or _watched_pid == os.getpid():
        return
    from multiprocessing.util import Finalize

    _watched_pid = os.getpid()
    Finalize(None, _close_after_threads, exitpriority=0)


def _close_after_threads() -> None:
    """At the end of a child of multiprocessing, which is about to join its threads: closes once the others have ended."""

    def wait_and_close() -> None:
        not_awaited = (threading.current_thread(), threading.main_thread())
        while others := [thread for thread in threading.enumerate() if not thread.daemon and thread not in not_awaited]:
            for thread in others:
                thread.join()
        for close in reversed(_closes):
            _run(close)

    threading.Thread(target=wait_and_close, name=f"{OWN_THREADS}exit", daemon=False).start()


def end_daemon_thread() -> None:
    """At exit, ends the calling thread if the application made it and does not wait for it: raises SystemExit, of which
    threads say nothing, and which lets go of locks on its way. Before, and for all others, it does nothing."""
    thread = threading.current_thread()
    # A thread of multiprocessing's ThreadPool prints nothing, but hands each error to whoever waits for its result: for ever,
    # if the thread were gone.
    is_of_pool = type(thread).__module__ == "multiprocessing.dummy"
    if _is_exiting.is_set() and thread.daemon and not is_of_pool and not thread.name.startswith(OWN_THREADS):
        raise SystemExit


def _run(close: Callable[[], object]) -> None:
    _is_exiting.set()
    close()
