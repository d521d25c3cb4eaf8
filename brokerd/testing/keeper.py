"""The keeper of one broker: a single-threaded process without gRPC that carries out the test's commands. It starts, kills and
restarts the broker on the same port and directory, and cleans up when the test closes the broker or the test's process is gone.

While no broker runs, a socket that is bound but does not listen reserves the port.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from brokerd.clock import SystemClock
from brokerd.config.broker import BrokerConfig, check_broker
from brokerd.config.settings import from_mapping
from brokerd.errors import BrokerdError, ConfigError
from brokerd.testing.broker_process import serve
from brokerd.testing.channel import BrokerFailedError, Channel, Message, error_head, pair
from brokerd.testing.client_process import serve_client
from brokerd.testing.faults import KILL, Armed, FailingDisk, check_request
from brokerd.testing.processes import Watched, end_with_parent, fork
from brokerd.wire.methods import STREAMS, UNARY

START_TIMEOUT_MS = 120_000
_STOP_TIMEOUT_MS = 60_000
_LAST_WORDS = 4_000

Wait = Callable[[list[socket.socket], float | None], list[socket.socket]]


class _Child(NamedTuple):
    pid: int
    channel: Channel


class KeptBroker:
    """One broker. `wait` waits for sockets, and raises CallerGoneError if the test's process is gone; `drop_ends` closes the
    keeper's own sockets in a fork."""

    def __init__(self, settings: Mapping[str, Any], temporary: str, wait: Wait, drop_ends: Callable[[], None]) -> None:
        """Reserves the port and creates the directory in `temporary`. Raises BrokerFailedError."""
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
        """True while the broker has a process."""
        return self._child is not None

    @property
    def pid(self) -> int:
        """The broker's process id. Raises BrokerFailedError if it is not running."""
        if self._child is None:
            raise BrokerFailedError(f"the broker is not running: {self._why_none}")
        return self._child.pid

    @property
    def address(self) -> str:
        """The address that clients connect to, HOST:PORT."""
        config = self._config(self._port_holder.getsockname()[1])
        return f"{config.advertised_host or config.host}:{config.advertised_port or config.port}"

    @property
    def ends(self) -> list[socket.socket]:
        """The socket on which the broker sends messages, if it is running."""
        return [self._child.channel.socket] if self._child is not None else []

    def launch(self) -> None:
        """Forks the broker; returns once it serves. Raises BrokerFailedError, and then keeps the directory."""
        config = self._config(self._port_holder.getsockname()[1])
        ours, theirs = pair()
        keeper_pid = os.getpid()
        armed = [asdict(one) for one in self.armed.values() if one.left]

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
        self.is_directory_kept = False  # an earlier failure is over

    def check_hears(self) -> None:
        """Raises BrokerdError if the broker is paused."""
        if self.is_paused:
            raise BrokerdError("the broker is paused, and can be told nothing: resume() it first")

    def tell(self, head: dict[str, Any]) -> None:
        """Sends a command and waits for its reply, if the broker is running. `launch` passes the current `armed` and `disk`."""
        if self._child is None:
            return
        with contextlib.suppress(OSError):  # killed: the reply below is its EOF
            self._child.channel.send(head)
        if self._await_reply(_STOP_TIMEOUT_MS) == {}:
            self._on_ended()

    def hear(self) -> None:
        """Handles the broker's next message or its end. Call it when the socket is readable."""
        assert self._child is not None
        try:
            self._count(self._child.channel.receive().head)
        except EOFError:
            self._on_ended()

    def pause(self) -> None:
        """Suspends the process; returns once it has stopped. Raises BrokerFailedError."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.is_paused = True

    def resume(self) -> None:
        """Resumes the process. Raises BrokerFailedError."""
        os.kill(self.pid, signal.SIGCONT)
        self.is_paused = False

    def stop(self) -> None:
        """Stops the broker cleanly; kills it if that takes too long."""
        child = self._child
        if child is None:
            return
        with contextlib.suppress(OSError, EOFError):
            child.channel.send({"do": "stop"})
            while self._wait([child.channel.socket], _STOP_TIMEOUT_MS / 1_000):
                self._count(child.channel.receive().head)
        self.end("it was stopped")

    def end(self, why: str) -> int:
        """Kills the broker if it is running, waits for it, and returns its wait status."""
        child, self._child = self._child, None
        self._why_none = why
        self.is_paused = False
        if child is None:
            return 0
        os.kill(child.pid, signal.SIGKILL)
        child.channel.close()
        return os.waitpid(child.pid, 0)[1]

    def enter_fork(self) -> None:
        """In a fork: closes the copies of the keeper's sockets, and redirects stdout and stderr to the broker's log."""
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
        """The broker's next reply; None after `timeout_ms`, {} if it has ended."""
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
        """Records a report on a fault; False for any other message."""
        if "left" not in head:
            return False
        armed = self.armed[head["number"]]
        armed.left = head["left"]
        if armed.kind == KILL and not armed.left:
            self._is_killed_by_fault = True
        return True

    def _on_ended(self) -> None:
        """Reaps the broker, and restarts it if a fault has killed it."""
        ended = _words_of(self.end(""))
        if not self._is_killed_by_fault:
            self._why_none = self._failure(f"it ended by itself {ended}").message
            return
        try:
            self.launch()
        except BrokerFailedError as error:
            self._why_none = error.message

    def _failure(self, text: str) -> BrokerFailedError:
        """An error that shows the end of the log. Keeps the directory from now on, if it holds data or a log."""
        log = ""
        with contextlib.suppress(OSError):
            log = Path(self.directory, "broker.log").read_text("utf-8", "replace")[-_LAST_WORDS:]
        self.is_directory_kept = bool(log) or self._has_data()
        if not self.is_directory_kept:
            return BrokerFailedError(text)
        words = f"and its log ends with:\n{log}" if log else "and its log is empty"
        return BrokerFailedError(f"{text}; its directory, which is kept, is {self.directory}, {words}")

    def _has_data(self) -> bool:
        """True if the directory holds more than the log."""
        with contextlib.suppress(OSError):
            return os.listdir(self.directory) != ["broker.log"]
        return False


def _words_of(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"with exit code {code}" if code >= 0 else f"by signal {-code}"


def _hold_port(host: str, port: int) -> socket.socket:
    """A socket bound to `port`, or to a free port if 0. Another socket may still bind it explicitly and listen, but the kernel does
    not assign it to any other process. Raises BrokerFailedError."""
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


_NTH_MAX = 1_000_000_000
_Reply = dict[str, Any]


class CallerGoneError(Exception):
    """The test's process is gone."""


class Keeper:
    """Serves the test's process, `caller`, until it ends the channel."""

    def __init__(self, caller: Channel, caller_pid: int) -> None:
        self._caller = caller
        self._watched = Watched(caller_pid)
        self._kept: KeptBroker | None = None
        self._clients: list[int] = []
        self._commands: dict[str, Callable[[Message], _Reply | None]] = {
            "open": self._open,
            "status": lambda _: {"pid": self._broker.pid},
            "start": self._start,
            "restart": self._restart,
            "kill": lambda _: self._kill(),
            "pause": lambda _: self._broker.pause(),
            "resume": lambda _: self._broker.resume(),
            "arm": self._arm,
            "faults": lambda _: {"left": {str(one.number): one.left for one in self._broker.armed.values()}},
            "disk": self._set_disk,
            "client": self._new_client,
        }

    def run(self) -> None:
        """Carries out the caller's commands until it is gone."""
        try:
            while True:
                self._hear_broker(None)
                message = self._caller.receive()
                self._hear_broker(0)  # messages sent before this request
                try:
                    reply = self._commands[message.head["do"]](message) or {}
                except (BrokerdError, ValueError, OSError) as error:
                    reply = error_head(error)
                self._caller.send(reply)
        except (CallerGoneError, EOFError, ConnectionError):
            pass
        finally:
            self._clear_up()

    @property
    def _broker(self) -> KeptBroker:
        assert self._kept is not None, "the first command is `open`"
        return self._kept

    def _open(self, message: Message) -> _Reply:
        """The first command; passes the settings, the parent of temporary directories, and the base of relative paths."""
        with contextlib.suppress(OSError):
            os.chdir(message.head["current"])
        self._kept = KeptBroker(message.head["settings"], message.head["temporary"], self._wait, self._drop_ends)
        self._kept.launch()
        return {"directory": self._kept.directory, "address": self._kept.address}

    def _start(self, _: Message) -> None:
        if self._broker.is_running:
            raise BrokerdError("the broker is running: start() is for one that was killed, restart() for one that runs")
        self._broker.launch()

    def _restart(self, _: Message) -> None:
        if self._broker.is_paused:
            self._broker.resume()
        self._broker.stop()
        self._broker.launch()

    def _kill(self) -> None:
        self._broker.end("it was killed: start() starts it again")

    def _arm(self, message: Message) -> _Reply:
        head = message.head
        check_request(head["request"], (*UNARY, *STREAMS))
        if not isinstance(head["nth"], int) or not 1 <= head["nth"] <= _NTH_MAX:
            raise ConfigError(f"nth must be a number between 1 and {_NTH_MAX}, not {head['nth']!r}")
        armed = Armed(len(self._broker.armed) + 1, head["kind"], head["request"], head["moment"], head["nth"])
        reply = {"number": armed.number, "text": armed.text()}
        self._broker.check_hears()
        self._broker.armed[armed.number] = armed
        self._broker.tell({"do": "arm", "fault": asdict(armed)})
        return reply

    def _set_disk(self, message: Message) -> None:
        how = message.head["how"]
        FailingDisk(how)  # raises for an unknown kind
        self._broker.check_hears()
        self._broker.disk = how
        self._broker.tell({"do": "disk", "how": how})

    def _new_client(self, message: Message) -> None:
        end = message.passed
        assert end is not None
        keeper_pid, settings = os.getpid(), {**message.head["settings"], "bootstrap.servers": self._broker.address}

        def work() -> None:
            end_with_parent(keeper_pid)
            self._broker.enter_fork()
            serve_client(Channel(end), settings)

        self._clients.append(fork(work))
        end.close()

    def _hear_broker(self, timeout_s: float | None) -> None:
        """Handles the broker's messages until only the caller's socket is readable, or nothing is after `timeout_s`."""
        while True:
            ends = self._kept.ends if self._kept is not None else []
            ready = self._wait([*ends, self._caller.socket], timeout_s)
            if self._kept is None or not set(ends) & set(ready):
                return
            self._kept.hear()

    def _wait(self, sockets: list[socket.socket], timeout_s: float | None) -> list[socket.socket]:
        ready = self._watched.wait(sockets, timeout_s)
        if self._watched.is_gone:
            raise CallerGoneError
        return ready

    def _drop_ends(self) -> None:
        self._caller.close()
        self._watched.close()

    def _clear_up(self) -> None:
        for pid in self._clients:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        kept = self._kept
        if kept is None:
            return
        try:
            if not kept.has_own_data and not kept.is_paused and not self._watched.is_gone:
                kept.stop()  # the user's data directory is closed cleanly
        except CallerGoneError:
            pass
        finally:
            kept.end("it was closed")
            if not kept.is_directory_kept:
                shutil.rmtree(kept.directory, ignore_errors=True)
