"""The broker that a keeper keeps: its directory, its port, its process, and what that process is told. Forks, so it has one thread
and no gRPC.

The port stays the broker's while no broker runs: a socket that is bound to it, and does not listen, keeps others away.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from brokerd.clock import SystemClock
from brokerd.config.broker import BrokerConfig, check_broker
from brokerd.config.settings import from_mapping
from brokerd.errors import BrokerdError
from brokerd.testing.broker_process import serve
from brokerd.testing.channel import Channel, pair
from brokerd.testing.errors import BrokerFailedError
from brokerd.testing.failing_files import FailingDisk
from brokerd.testing.faults import KILL, Armed
from brokerd.testing.forking import fork
from brokerd.testing.kernel import end_with_parent

START_TIMEOUT_MS = 120_000
_STOP_TIMEOUT_MS = 60_000
_LAST_WORDS = 4_000

Wait = Callable[[list[socket.socket], float | None], list[socket.socket]]


class _Child(NamedTuple):
    pid: int
    channel: Channel


class KeptBroker:
    """One broker. `wait` waits for sockets, and raises if the keeper is to end; `drop_ends` closes the keeper's own sockets in a
    fork."""

    def __init__(self, settings: Mapping[str, Any], temporary: str, wait: Wait, drop_ends: Callable[[], None]) -> None:
        """Makes its directory in `temporary`, and takes its port. Raises BrokerFailedError."""
        self.directory = ""
        self._settings = dict(settings)
        self._wait = wait
        self._drop_ends = drop_ends
        self._clock = SystemClock()
        self.has_own_data = "data.dir" not in self._settings
        given = self._config(0)
        self._port_holder = _hold_port(given.host, given.port)
        self.directory = tempfile.mkdtemp(prefix="brokerd-testing-", dir=temporary)
        self.is_directory_kept = False
        self.armed: dict[int, Armed] = {}
        self.disk = ""
        self.is_paused = False
        self._child: _Child | None = None
        self._why_none = "it was not started"
        self._is_killed_by_fault = False

    @property
    def is_running(self) -> bool:
        """True while it has a process."""
        return self._child is not None

    @property
    def pid(self) -> int:
        """Its process. Raises BrokerFailedError if there is none."""
        if self._child is None:
            raise BrokerFailedError(f"the broker is not running: {self._why_none}")
        return self._child.pid

    @property
    def address(self) -> str:
        """Where clients connect to: HOST:PORT."""
        config = self._config(self._port_holder.getsockname()[1])
        return f"{config.advertised_host or config.host}:{config.advertised_port or config.port}"

    @property
    def ends(self) -> list[socket.socket]:
        """The socket on which it says something, if it runs."""
        return [self._child.channel.socket] if self._child is not None else []

    def launch(self) -> None:
        """Forks it; returns once it serves. Raises BrokerFailedError, and keeps the directory then."""
        config = self._config(self._port_holder.getsockname()[1])
        ours, theirs = pair()
        keeper_pid = os.getpid()
        armed = [fields_of(one) for one in self.armed.values() if one.left]

        def work() -> None:
            end_with_parent(keeper_pid)
            ours.close()
            self.enter_fork()
            serve(Channel(theirs), config, armed, FailingDisk(self.disk, is_lasting=not self.has_own_data))

        self._child = _Child(fork(work), ours)
        theirs.close()
        self._is_killed_by_fault = False
        reply = self._await_reply(START_TIMEOUT_MS)
        if reply is None or "ready" not in reply:
            ended = _words_of(self.end("it did not start"))
            said = f"it does not serve after {START_TIMEOUT_MS} ms" if reply is None else reply.get("failed", ended)
            raise self._failure(f"the broker did not start: {said}")
        self.is_directory_kept = False  # for what failed before, and is past

    def check_hears(self) -> None:
        """Raises BrokerdError if it is paused."""
        if self.is_paused:
            raise BrokerdError("the broker is paused, and can be told nothing: resume() it first")

    def tell(self, head: dict[str, Any]) -> None:
        """Has it do something before this returns, if it runs. Each start gives it `armed` and `disk` as they are then."""
        if self._child is None:
            return
        with contextlib.suppress(OSError):  # killed, which its end will say
            self._child.channel.send(head)
        if self._await_reply(_STOP_TIMEOUT_MS) == {}:
            self._on_ended()

    def hear(self) -> None:
        """Takes what it has to say, its end too. To be called when there is something."""
        assert self._child is not None
        try:
            self._count(self._child.channel.receive().head)
        except EOFError:
            self._on_ended()

    def pause(self) -> None:
        """Stops it where it stands; returns once it does. Raises BrokerFailedError."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.is_paused = True

    def resume(self) -> None:
        """Lets it go on. Raises BrokerFailedError."""
        os.kill(self.pid, signal.SIGCONT)
        self.is_paused = False

    def stop(self) -> None:
        """A clean stop; a kill if that takes too long."""
        child = self._child
        if child is None:
            return
        with contextlib.suppress(OSError, EOFError):
            child.channel.send({"do": "stop"})
            while self._wait([child.channel.socket], _STOP_TIMEOUT_MS / 1_000):
                self._count(child.channel.receive().head)
        self.end("it was stopped")

    def end(self, why: str) -> int:
        """Kills it if it runs, and waits for its end; its status."""
        child, self._child = self._child, None
        self._why_none = why
        self.is_paused = False
        if child is None:
            return 0
        os.kill(child.pid, signal.SIGKILL)
        child.channel.close()
        return os.waitpid(child.pid, 0)[1]

    def enter_fork(self) -> None:
        """In a fork: leaves the keeper's sockets to the keeper, and has both standard streams go to the broker's log."""
        self._drop_ends()
        if self._child is not None:
            self._child.channel.close()
        self._port_holder.close()
        fd = os.open(f"{self.directory}/broker.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)

    def _config(self, port: int) -> BrokerConfig:
        own: dict[str, Any] = {"data.dir": f"{self.directory}/data", "port": 0}
        config = from_mapping(BrokerConfig, {**own, **self._settings, **({"port": port} if port else {})})
        check_broker(config)
        return config

    def _await_reply(self, timeout_ms: int) -> dict[str, Any] | None:
        """The process's next reply; None at the end of the time, {} if it has ended."""
        assert self._child is not None
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while self._wait(self.ends, max(0, deadline_ms - self._clock.monotonic_ms()) / 1_000):
            try:
                head = self._child.channel.receive().head
            except EOFError:
                return {}
            if not self._count(head):
                return head
        return None

    def _count(self, head: dict[str, Any]) -> bool:
        """Notes what it says of its faults; False if it says something else."""
        if "left" not in head:
            return False
        armed = self.armed[head["number"]]
        armed.left = head["left"]
        if armed.kind == KILL and not armed.left:
            self._is_killed_by_fault = True
        return True

    def _on_ended(self) -> None:
        """Starts it again if a fault has killed it."""
        ended = _words_of(self.end(""))
        if not self._is_killed_by_fault:
            self._why_none = self._failure(f"it ended by itself {ended}").message
            return
        try:
            self.launch()
        except BrokerFailedError as error:
            self._why_none = error.message

    def _failure(self, text: str) -> BrokerFailedError:
        """The error that shows the log. The directory is kept from now on, if there is anything to look at in it."""
        log = ""
        with contextlib.suppress(OSError):
            log = Path(self.directory, "broker.log").read_text("utf-8", "replace")[-_LAST_WORDS:]
        self.is_directory_kept = bool(log) or self._has_data()
        if not self.is_directory_kept:
            return BrokerFailedError(text)
        words = f"and its log ends with:\n{log}" if log else "and its log is empty"
        return BrokerFailedError(f"{text}; its directory, which is kept, is {self.directory}, {words}")

    def _has_data(self) -> bool:
        """True if there is more in its directory than its log."""
        with contextlib.suppress(OSError):
            return os.listdir(self.directory) != ["broker.log"]
        return False


def fields_of(armed: Armed) -> dict[str, Any]:
    """A fault as a message carries it."""
    return {name: getattr(armed, name) for name in ("number", "kind", "request", "moment", "left")}


def _words_of(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"with exit code {code}" if code >= 0 else f"by signal {-code}"


def _hold_port(host: str, port: int) -> socket.socket:
    """A socket bound to a free port, or to this one, that others may bind and listen on, but that is given to nobody who asks for
    any port. Raises BrokerFailedError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    holder = socket.socket(family, kind, protocol)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind(address)
    except OSError as error:
        holder.close()
        raise BrokerFailedError(
            f"the broker cannot listen on {host}:{port}: {os.strerror(error.errno or 0).lower()}; choose another port, or none"
        ) from None
    return holder
