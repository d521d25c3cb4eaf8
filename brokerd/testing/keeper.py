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
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from brokerd.clock import SystemClock
from brokerd.config.broker import BrokerConfig, check_broker
from brokerd.config.settings import from_mapping, unknown_setting
from brokerd.errors import BrokerdError, ConfigError
from brokerd.testing.broker_process import serve
from brokerd.testing.channel import BrokerFailedError, Channel, Message, error_head, pair
from brokerd.testing.client_process import serve_client
from brokerd.testing.faults import KILL, Armed, FailingDisk
from brokerd.testing.processes import Watched, end_with_parent, fork
from brokerd.wire.methods import STREAMS, UNARY

START_TIMEOUT_MS = 120_000
_STOP_TIMEOUT_MS = 60_000
_LAST_WORDS = 4_000
_NTH_MAX = 1_000_000_000
_Reply = dict[str, Any]


class _Child(NamedTuple):
    pid: int
    channel: Channel


class Keeper:
    """Serves the test's process, `caller`, until it ends the channel."""

    def __init__(self, caller: Channel, caller_pid: int) -> None:
        self._pid = os.getpid()
        self._caller = caller
        self._watched = Watched(caller_pid)
        self._clock = SystemClock()
        self._settings: dict[str, Any] = {}
        self._directory = ""
        self._is_directory_kept = False
        self._port_holder = socket.socket()
        self._armed: dict[int, Armed] = {}
        self._disk = ""
        self._clients: list[int] = []  # process ids
        self._broker: _Child | None = None
        self._why_none = "it was not started"
        self._is_paused = False
        self._is_killed_by_fault = False
        self._commands: dict[str, Callable[[Message], _Reply | None]] = {
            "open": self._open,
            "status": lambda _: {"pid": self._broker_pid()},
            "start": self._start,
            "restart": self._restart,
            "kill": self._kill,
            "pause": self._pause,
            "resume": self._resume,
            "arm": self._arm,
            "faults": lambda _: {"left": {str(one.number): one.left for one in self._armed.values()}},
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
        except (EOFError, ConnectionError):
            pass
        finally:
            self._clear_up()

    def _clear_up(self) -> None:
        for pid in self._clients:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if "data.dir" in self._settings and not self._is_paused and not self._watched.is_gone:
            self._stop()  # the user's data directory is closed cleanly
        self._end("it was closed")
        if self._directory and not self._is_directory_kept:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _wait(self, sockets: list[socket.socket], timeout_s: float | None) -> list[socket.socket]:
        """The readable sockets of `sockets`. Raises EOFError if the test's process is gone."""
        ready = self._watched.wait(sockets, timeout_s)
        if self._watched.is_gone:
            raise EOFError
        return ready

    # --- commands

    def _open(self, message: Message) -> _Reply:
        """The first command; passes the settings, the parent of temporary directories, and the base of relative paths. Reserves
        the port, creates the directory and starts the broker. Raises BrokerFailedError."""
        with contextlib.suppress(OSError):
            os.chdir(message.head["current"])
        self._settings = message.head["settings"]
        given = self._config(0)
        self._port_holder = _hold_port(given.host, given.port)
        self._directory = tempfile.mkdtemp(prefix="brokerd-testing-", dir=message.head["temporary"])
        self._launch()
        return {"directory": self._directory, "address": self._address()}

    def _start(self, _: Message) -> None:
        if self._broker is not None:
            raise BrokerdError("the broker is running: start() is for one that was killed, restart() for one that runs")
        self._launch()

    def _restart(self, message: Message) -> None:
        if self._is_paused:
            self._resume(message)
        self._stop()
        self._launch()

    def _kill(self, _: Message) -> None:
        self._end("it was killed: start() starts it again")

    def _pause(self, _: Message) -> None:
        """Suspends the broker; returns once it has stopped. Raises BrokerFailedError."""
        pid = self._broker_pid()
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self._is_paused = True

    def _resume(self, _: Message) -> None:
        os.kill(self._broker_pid(), signal.SIGCONT)
        self._is_paused = False

    def _arm(self, message: Message) -> _Reply:
        head = message.head
        if head["request"] not in (*UNARY, *STREAMS):
            raise unknown_setting(head["request"], (*UNARY, *STREAMS), kind="request")
        if not isinstance(head["nth"], int) or not 1 <= head["nth"] <= _NTH_MAX:
            raise ConfigError(f"nth must be a number between 1 and {_NTH_MAX}, not {head['nth']!r}")
        armed = Armed(len(self._armed) + 1, head["kind"], head["request"], head["moment"], head["nth"])
        reply = {"number": armed.number, "text": armed.text()}
        self._check_not_paused()
        self._armed[armed.number] = armed
        self._tell({"do": "arm", "fault": asdict(armed)})
        return reply

    def _set_disk(self, message: Message) -> None:
        how = message.head["how"]
        FailingDisk(how)  # raises for an unknown kind
        self._check_not_paused()
        self._disk = how
        self._tell({"do": "disk", "how": how})

    def _new_client(self, message: Message) -> None:
        end = message.passed
        assert end is not None
        settings = {"bootstrap.servers": self._address(), **message.head["settings"]}

        def work() -> None:
            self._enter_fork()
            serve_client(Channel(end), settings)

        self._clients.append(fork(work))
        end.close()

    # --- the broker

    def _broker_pid(self) -> int:
        """The broker's process id. Raises BrokerFailedError if it is not running."""
        if self._broker is None:
            raise BrokerFailedError(f"the broker is not running: {self._why_none}")
        return self._broker.pid

    def _address(self) -> str:
        """The address that clients connect to, HOST:PORT."""
        config = self._config(self._port_holder.getsockname()[1])
        return f"{config.advertised_host or config.host}:{config.advertised_port or config.port}"

    def _config(self, port: int) -> BrokerConfig:
        own: dict[str, Any] = {"data.dir": f"{self._directory}/data", "port": 0}
        config = from_mapping(BrokerConfig, {**own, **self._settings, **({"port": port} if port else {})})
        check_broker(config)
        return config

    def _launch(self) -> None:
        """Forks the broker; returns once it serves. Raises BrokerFailedError, and then keeps the directory."""
        config = self._config(self._port_holder.getsockname()[1])
        ours, theirs = pair()
        armed = [asdict(one) for one in self._armed.values() if one.left]

        def work() -> None:
            self._enter_fork()
            ours.close()
            serve(Channel(theirs), config, armed, FailingDisk(self._disk, is_lasting="data.dir" in self._settings))

        self._broker = _Child(fork(work), ours)
        theirs.close()
        self._is_killed_by_fault = False
        reply = self._await_reply(START_TIMEOUT_MS)
        if reply is None or "ready" not in reply:
            ended = _words_of(self._end("it did not start"))
            said = f"it does not serve after {START_TIMEOUT_MS} ms" if reply is None else reply.get("failed", ended)
            raise self._failure(f"the broker did not start: {said}")
        self._is_directory_kept = False  # an earlier failure is over

    def _enter_fork(self) -> None:
        """Prepares a forked child: makes it end with the keeper, closes its copies of the keeper's sockets, and redirects stdout
        and stderr to the broker's log."""
        end_with_parent(self._pid)
        self._caller.close()
        self._watched.close()
        if self._broker is not None:
            self._broker.channel.close()
        self._port_holder.close()
        fd = os.open(f"{self._directory}/broker.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)

    def _check_not_paused(self) -> None:
        if self._is_paused:
            raise BrokerdError("the broker is paused and takes no commands: resume() it first")

    def _tell(self, head: dict[str, Any]) -> None:
        """Sends a command and waits for its reply, if the broker is running; otherwise `_launch` passes the current faults."""
        if self._broker is None:
            return
        with contextlib.suppress(OSError):  # the broker was killed: the next read returns its EOF
            self._broker.channel.send(head)
        if self._await_reply(_STOP_TIMEOUT_MS) == {}:
            self._on_ended()

    def _await_reply(self, timeout_ms: int) -> dict[str, Any] | None:
        """The broker's next reply; None after `timeout_ms`, {} if it has ended."""
        assert self._broker is not None
        channel = self._broker.channel
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while self._wait([channel.socket], max(0, deadline_ms - self._clock.monotonic_ms()) / 1_000):
            try:
                head = channel.receive().head
            except EOFError:
                return {}
            if not self._count(head):
                return head
        return None

    def _hear_broker(self, timeout_s: float | None) -> None:
        """Handles the broker's messages and its end until only the caller's socket is readable, or neither within `timeout_s`."""
        while True:
            ends = [self._broker.channel.socket] if self._broker is not None else []
            ready = self._wait([*ends, self._caller.socket], timeout_s)
            if self._broker is None or not set(ends) & set(ready):
                return
            try:
                self._count(self._broker.channel.receive().head)
            except EOFError:
                self._on_ended()

    def _count(self, head: dict[str, Any]) -> bool:
        """Records a report on a fault; False for any other message."""
        if "left" not in head:
            return False
        armed = self._armed[head["number"]]
        armed.left = head["left"]
        if armed.kind == KILL and not armed.left:
            self._is_killed_by_fault = True
        return True

    def _on_ended(self) -> None:
        """Reaps the broker, and restarts it if a fault has killed it."""
        ended = _words_of(self._end(""))
        if not self._is_killed_by_fault:
            self._why_none = self._failure(f"it ended by itself {ended}").message
            return
        try:
            self._launch()
        except BrokerFailedError as error:
            self._why_none = error.message

    def _stop(self) -> None:
        """Stops the broker cleanly; kills it if that takes too long."""
        if self._broker is None:
            return
        channel = self._broker.channel
        with contextlib.suppress(OSError, EOFError):
            channel.send({"do": "stop"})
            while self._wait([channel.socket], _STOP_TIMEOUT_MS / 1_000):
                self._count(channel.receive().head)
        self._end("it was stopped")

    def _end(self, why: str) -> int:
        """Kills the broker if it is running, waits for it, and returns its wait status."""
        child, self._broker = self._broker, None
        self._why_none = why
        self._is_paused = False
        if child is None:
            return 0
        os.kill(child.pid, signal.SIGKILL)
        child.channel.close()
        return os.waitpid(child.pid, 0)[1]

    def _failure(self, text: str) -> BrokerFailedError:
        """An error that shows the end of the log. Keeps the directory from now on, if it holds data or a log."""
        log = ""
        with contextlib.suppress(OSError):
            log = Path(self._directory, "broker.log").read_text("utf-8", "replace")[-_LAST_WORDS:]
        self._is_directory_kept = bool(log)
        with contextlib.suppress(OSError):
            self._is_directory_kept |= os.listdir(self._directory) != ["broker.log"]
        if not self._is_directory_kept:
            return BrokerFailedError(text)
        words = f"and its log ends with:\n{log}" if log else "and its log is empty"
        return BrokerFailedError(f"{text}; its directory, which is kept, is {self._directory}, {words}")


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
