"""The keeper of one broker: a process that does what the test asks, and clears up when the test has closed the broker, and just as
well when the test's process is gone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Callable
from typing import Any

from brokerd.errors import BrokerdError, ConfigError
from brokerd.testing.channel import Channel, Message, error_head
from brokerd.testing.client_process import serve_client
from brokerd.testing.failing_files import FailingDisk
from brokerd.testing.faults import Armed, check_request
from brokerd.testing.forking import fork
from brokerd.testing.kept_broker import KeptBroker, fields_of
from brokerd.testing.kernel import Watched, end_with_parent
from brokerd.wire.methods import STREAMS, UNARY

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
        """Does what the caller asks, until it is gone."""
        try:
            while True:
                self._hear_broker(None)
                message = self._caller.receive()
                self._hear_broker(0)  # what it said before this was asked
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
        """The first command: settings, where temporary directories are made, and what relative paths begin at."""
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
        self._broker.tell({"do": "arm", "fault": fields_of(armed)})
        return reply

    def _set_disk(self, message: Message) -> None:
        how = message.head["how"]
        FailingDisk(how)  # refuses what there is not
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
        """Hears the broker, until its caller has something to say or there is nothing more."""
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
                kept.stop()  # a directory that stays is left as a clean stop leaves it
        except CallerGoneError:
            pass
        finally:
            kept.end("it was closed")
            if not kept.is_directory_kept:
                shutil.rmtree(kept.directory, ignore_errors=True)
