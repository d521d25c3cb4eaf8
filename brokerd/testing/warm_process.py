"""The warm process imports everything once, then forks a keeper for each broker and a store for each cluster, because an
interpreter and its imports take longer to start than a broker. It is started by exec at the first broker, so threads, gRPC or a JVM
gateway in this process do no harm, and it ends with this process. It is single-threaded and never touches gRPC, so that it can fork
safely.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import brokerd
from brokerd import process
from brokerd.testing.channel import BrokerFailedError, Channel, Message, pair
from brokerd.testing.processes import Watched, fork

_START_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 10.0
_LAST_WORDS = 4_000
# -P: a project's own queue.py or grpc/ beside the tests must not shadow the real one. The path is for a brokerd that is not
# installed in the interpreter's environment.
_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from brokerd.testing.warm_process import main; main(*map(int, sys.argv[2:]))"
# Keep libraries, which read these on import, from starting threads before the forks.
_NO_THREADS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


class _WarmProcess:
    """A running warm process, and the channel to it."""

    def __init__(self) -> None:
        """Raises BrokerFailedError with the process's output if it fails to start."""
        self.channel, theirs = pair()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        command = [sys.executable, "-P", "-c", _PROGRAM, str(Path(brokerd.__file__).parents[1])]
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603 - our own program
                [*command, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C must reach only the tests, which then close their brokers
                env={**os.environ, **_NO_THREADS},
            )
        try:
            self.channel.socket.settimeout(_START_TIMEOUT_S)
            self.channel.receive()
            self.channel.socket.settimeout(None)
        except (EOFError, TimeoutError):
            self.process.kill()
            code = self.process.wait()
            self._said.seek(0)
            said = self._said.read()[-_LAST_WORDS:].decode("utf-8", "replace")
            self.end()
            raise BrokerFailedError(f"the process that starts brokers failed to start (exit code {code}): {said}") from None
        except BaseException:
            self.process.kill()
            self.end()
            raise

    def leave_to_parent(self) -> None:
        """Closes a forked child's copies."""
        self.channel.close()
        self._said.close()
        self.process.poll()  # not a child here: poll sets a return code, so that Popen does not warn when it is collected

    def end(self) -> None:
        """Ends the process; keepers and their brokers run on until they are closed or this process ends."""
        self.channel.close()
        try:
            self.process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._said.close()


_lock = threading.Lock()
_current: _WarmProcess | None = None


def new_keeper() -> Channel:
    """A channel to a new keeper, without a broker yet. May be called from any thread. Raises BrokerFailedError."""
    return _new_fork("keep")


def new_coordination() -> Channel:
    """A channel to the process of a new coordination store, not open yet; otherwise like `new_keeper`."""
    return _new_fork("coordinate")


def _new_fork(do: str) -> Channel:
    """A channel to a new fork of the warm process, which is started if it does not run."""
    global _current
    channel, theirs = pair()
    try:
        with theirs, _lock:
            if _current is not None and _current.process.poll() is not None:
                _current.end()
                _current = None
            if _current is None:
                _current = _WarmProcess()
            _current.channel.send({"do": do}, passed=theirs)
    except BaseException:
        channel.close()
        raise
    return channel


def warm_pid() -> int:
    """The process id of the warm process, which is a session leader; 0 if there is none."""
    return _current.process.pid if _current is not None else 0


def end() -> None:
    """Ends the warm process, if there is one; the next broker starts another."""
    global _current
    with _lock:
        ended, _current = _current, None
    if ended is not None:
        ended.end()


def _forget() -> None:
    global _current, _lock
    of_parent, _current = _current, None
    _lock = threading.Lock()
    if of_parent is not None:
        of_parent.leave_to_parent()


process.in_forked_child(_forget)
process.at_exit(end)


def main(fd: int, parent_pid: int) -> None:
    """Serves the process `parent_pid` over its end of a socket pair."""
    channel = Channel(socket.socket(fileno=fd))
    _import_all()
    gc.collect()
    gc.freeze()  # keeps collections in the forks from copying shared pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reaps keepers automatically
    parent = Watched(parent_pid)
    channel.send({"ready": True})
    while parent.wait([channel.socket]):
        try:
            message = channel.receive()
        except EOFError:
            break
        assert message.passed is not None
        fork(lambda message=message: _serve(message, channel, parent, parent_pid))  # type: ignore[misc]
        message.passed.close()
    os._exit(0)  # there is nothing to tear down


def _serve(message: Message, channel: Channel, parent: Watched, parent_pid: int) -> None:
    from brokerd.testing.coordination import serve_coordination
    from brokerd.testing.keeper import Keeper

    channel.close()
    parent.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    assert message.passed is not None
    end = Channel(message.passed)
    if message.head["do"] == "keep":
        Keeper(end, parent_pid).run()
    else:
        serve_coordination(end, parent_pid)


def _import_all() -> None:
    """Imports all modules of a broker and a client, their lazy imports included."""
    import asyncio.unix_events  # noqa: F401
    import concurrent.futures.thread  # noqa: F401
    import encodings.idna  # noqa: F401

    import brokerd.client.offsets
    import brokerd.client.produce_transport
    import brokerd.testing.broker_process
    import brokerd.testing.client_process
    import brokerd.testing.coordination
    import brokerd.testing.keeper  # noqa: F401
    from brokerd.producer.columns import import_lazy_parts

    import_lazy_parts()
