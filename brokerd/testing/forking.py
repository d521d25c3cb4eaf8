"""The warm process: imports everything, then forks a keeper for each broker. It has one thread and never touches gRPC, so that its
forks are sound; it ends when the process that started it does.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from brokerd.testing.channel import Channel
from brokerd.testing.kernel import Watched


def main(fd: int, parent_pid: int) -> None:
    """Serves the process `parent_pid` over its end of a socket pair."""
    channel = Channel(socket.socket(fileno=fd))
    _import_all()
    gc.collect()
    gc.freeze()  # what stays is shared with the forks, which a collection would copy
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are not waited for
    parent = Watched(parent_pid)
    channel.send({"ready": True})
    while parent.wait([channel.socket]):
        try:
            keeper_end = channel.receive().passed
        except EOFError:
            break
        assert keeper_end is not None
        fork(lambda end=keeper_end: _keep(channel, end, parent, parent_pid))  # type: ignore[misc]
        keeper_end.close()
    os._exit(0)  # there is nothing to tear down


def fork(work: Callable[[], object]) -> int:
    """Does `work` in a child, which then ends at once, whatever happens; the child's process id."""
    pid = os.fork()
    if pid == 0:
        _do_and_end(work)
    return pid


def _do_and_end(work: Callable[[], object]) -> NoReturn:
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _keep(channel: Channel, end: socket.socket, parent: Watched, parent_pid: int) -> None:
    from brokerd.testing.keeper import Keeper

    channel.close()
    parent.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    Keeper(Channel(end), parent_pid).run()


def _import_all() -> None:
    """Imports what a broker and a client need, and what they import only when they need it."""
    import asyncio.unix_events  # noqa: F401
    import concurrent.futures.thread  # noqa: F401
    import encodings.idna  # noqa: F401

    import brokerd.client.consumer.growth
    import brokerd.client.produce_transport
    import brokerd.testing.broker_process
    import brokerd.testing.client_process
    import brokerd.testing.keeper  # noqa: F401
    from brokerd.producer.rows.columns import import_lazy_parts

    import_lazy_parts()
