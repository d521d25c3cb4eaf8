"""The end of a process that forgot to close its clients: they close themselves, and nobody hears of it.

At exit Python has joined all threads but daemon threads. One that is still inside a client, or comes back to it, would be told
that the client is closed: no error of its own, printed at the end of a program in which nothing went wrong. So it ends there.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

OWN_THREADS = "brokerd-"  # how the names of the clients' own threads begin
_is_exiting = threading.Event()


def at_exit(close: Callable[[], object]) -> None:
    """Calls `close` when the interpreter ends; what is asked for last is called first."""
    atexit.register(_run, close)


def end_daemon_thread() -> None:
    """At exit, ends the calling thread if the application made it and does not wait for it: raises SystemExit, of which
    threads say nothing, and which lets go of locks on its way. Before, and for all others, it does nothing."""
    thread = threading.current_thread()
    if _is_exiting.is_set() and thread.daemon and not thread.name.startswith(OWN_THREADS):
        raise SystemExit


def _run(close: Callable[[], object]) -> None:
    _is_exiting.set()
    close()
