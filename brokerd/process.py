"""Hooks fork and exit for the open clients and producers of a process; no other module hooks either.

A forked child never frees its parent's objects: gRPC's destructors would crash the child, or wait for ever for threads that the
child does not have. So the child's garbage collector ignores all objects of the parent, including garbage.

At exit, unclosed clients are closed silently. By then Python has joined all threads except daemon threads. A daemon thread that is
still inside a client, or calls it again, would get a "client is closed" error, printed at the end of a program in which nothing
went wrong. Such a thread ends silently instead.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

OWN_THREADS = "brokerd-"  # prefix of the names of the clients' own threads
_is_exiting = threading.Event()
_closes: list[Callable[[], object]] = []
_forgets: list[Callable[[], object]] = []
_watched_pid = 0  # the multiprocessing child whose exit is already hooked


def at_exit(close: Callable[[], object]) -> None:
    """Calls `close` when the interpreter exits; callbacks run in reverse order of registration."""
    _closes.append(close)
    atexit.register(_run, close)


def in_forked_child(forget: Callable[[], object]) -> None:
    """Calls `forget` in each child forked from now on."""
    _forgets.append(forget)


class _Collecting:
    """Disables the garbage collector while threads fork, because other hooks may run before ours in the child."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may fork, too
        self.forks = 0
        self.was_on = False  # before the first of these forks

    def before_fork(self) -> None:
        with self.lock:
            if not self.forks:
                self.was_on = gc.isenabled()
            self.forks += 1
            gc.disable()

    def after_fork_in_parent(self) -> None:
        with self.lock:
            self.forks = max(0, self.forks - 1)  # 0 already if an exception in `before_fork` was ignored, as in all such hooks
            if self.was_on and not self.forks:
                gc.enable()

    def after_fork_in_child(self) -> None:
        self.lock = threading.RLock()  # another thread of the parent may have held it
        self.forks = 1
        self.after_fork_in_parent()


_collecting = _Collecting()


def _after_fork() -> None:
    gc.freeze()
    _collecting.after_fork_in_child()
    for forget in _forgets:
        forget()


os.register_at_fork(before=_collecting.before_fork, after_in_parent=_collecting.after_fork_in_parent, after_in_child=_after_fork)


class Open(Generic[T]):
    """The open objects of one kind in this process: closed at exit, kept alive forever in a forked child."""

    def __init__(self, close_all: Callable[[Sequence[T]], object], after_fork: Callable[[T], object] = lambda _: None) -> None:
        """`after_fork` is called in a forked child with each object that was open in the parent."""
        self._open: weakref.WeakSet[T] = weakref.WeakSet()
        self._kept: list[T] = []  # objects inherited through forks
        self._tell = after_fork
        at_exit(lambda: close_all(list(self._open)))
        in_forked_child(self._keep)

    def add(self, one: T) -> None:
        """Registers an open object."""
        self._open.add(one)
        watch_child()

    def discard(self, one: T) -> None:
        """Unregisters a closed object."""
        self._open.discard(one)

    def _keep(self) -> None:
        self._kept.extend(self._open)
        self._open.clear()
        for one in self._kept:
            self._tell(one)


def watch_child() -> None:
    """Hooks the exit of a multiprocessing child; call it once an object is open. Such a child exits without running
    atexit callbacks (all of them up to Python 3.13, later those registered before its fork), so the hook runs them."""
    global _watched_pid
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None or _watched_pid == os.getpid():
        return
    from multiprocessing.util import Finalize

    _watched_pid = os.getpid()
    Finalize(None, _close_after_threads, exitpriority=0)


def _close_after_threads() -> None:
    """Runs when a multiprocessing child is about to join its threads: calls the callbacks once other threads have ended."""

    def wait_and_close() -> None:
        not_awaited = (threading.current_thread(), threading.main_thread())
        while others := [thread for thread in threading.enumerate() if not thread.daemon and thread not in not_awaited]:
            for thread in others:
                thread.join()
        for close in reversed(_closes):
            _run(close)

    threading.Thread(target=wait_and_close, name=f"{OWN_THREADS}exit", daemon=False).start()


def end_daemon_thread() -> None:
    """During exit, ends the calling thread if it is a daemon thread of the application, by raising SystemExit: threads do not
    report it, and it releases locks as it unwinds. Does nothing before exit or in other threads."""
    thread = threading.current_thread()
    # A thread of multiprocessing's ThreadPool does not print errors; it passes each to the caller waiting for its result, which
    # would wait forever if the thread simply ended.
    is_of_pool = type(thread).__module__ == "multiprocessing.dummy"
    if _is_exiting.is_set() and thread.daemon and not is_of_pool and not thread.name.startswith(OWN_THREADS):
        raise SystemExit


def _run(close: Callable[[], object]) -> None:
    _is_exiting.set()
    close()
