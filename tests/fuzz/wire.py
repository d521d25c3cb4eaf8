"""Hostile input to the port of a daemon in its own process: through gRPC, and as raw bytes to the socket."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from brokerd.wire.methods import FETCH, PRODUCE, UNARY
from brokerd.wire.v1 import topics_pb2
from tests.fuzz.inputs import client_hello, port_bytes, rng_of
from tests.fuzz.report import FuzzError, Report, file_count, thread_count
from tests.fuzz.requests import Requests, unary_bytes
from tests.fuzz.service import THREADS_MORE
from tests.support.child import resident_bytes
from tests.support.daemon import DaemonProcess
from tests.support.victim import SETTINGS, Victim, files_outside, outcome, status_of
from tests.support.wait import DEADLINE_S, wait_until

GROWTH_MAX_BYTES = 150 << 20
LOG_BYTES_MAX = 5_000_000
_CONNECTIONS_AT_ONCE = 50
_WORKS_INTERVAL = 2_000
_PATIENCE_S = 0.02


def run(counts: dict[str, int], seed: int, report: Report, home: Path, *, first: int = 0) -> None:
    """Sends `counts[kind]` inputs of each kind to one daemon below `home`. Raises FuzzError."""
    (home / "level").mkdir()
    with DaemonProcess(home / "level" / "data", settings=SETTINGS) as process:
        attack = Attack(Victim(process), seed, report)
        attack.victim.works()
        outside = files_outside(home)
        files = file_count(process.pid)
        warm: tuple[int, int] | None = None
        for kind, count in counts.items():
            attack.run(kind, first, first + count)
            attack.victim.works()
            warm = warm or (resident_bytes(process.pid), thread_count(process.pid))
        assert warm is not None
        wait_until(lambda: file_count(process.pid) <= files + 100, what="connections that are gone are closed")
        growth = resident_bytes(process.pid) - warm[0]
        report.figures |= {
            "wire: growth, MB": round(growth / 1e6, 1),
            "wire: files": file_count(process.pid),
            "wire: threads": thread_count(process.pid),
        }
        attack.victim.close()
        if growth > GROWTH_MAX_BYTES or thread_count(process.pid) > warm[1] + THREADS_MORE:
            raise FuzzError(f"the daemon grew by {growth} bytes, from {warm[1]} to {thread_count(process.pid)} threads")
        if files_outside(home) != outside:
            raise FuzzError(f"files outside the data directory: {files_outside(home)}")
        told = attack.victim.log_text()
        for word in ("Traceback", "internal error"):
            if word in told:
                raise FuzzError(f"the daemon's log: {told[max(0, told.index(word) - 500) :][:4_000]}")
        if len(told) > LOG_BYTES_MAX:
            raise FuzzError(f"the daemon's log has {len(told)} bytes")
        if process.terminate() != 0:
            raise FuzzError("the daemon does not stop cleanly")


class Attack:
    """One daemon and the inputs for it."""

    def __init__(self, victim: Victim, seed: int, report: Report) -> None:
        self.victim = victim
        self._seed = seed
        self._report = report
        self._requests = Requests()
        self._hello = client_hello()
        self._find_prey()

    def run(self, kind: str, first: int, end: int) -> None:
        """Sends the inputs of one kind; from time to time an honest client checks that it is served."""
        step = _CONNECTIONS_AT_ONCE if kind == "wire.port" else 1
        for at in range(first, end, step):
            self._report.begin(kind, at)
            try:
                self._send(kind, at, min(at + step, end))
                if (at - first) % _WORKS_INTERVAL == 0:
                    self.victim.works()
                    self._find_prey()
            except FuzzError:
                raise
            except Exception as error:
                process = self.victim.daemon.process
                state = "lives" if process.poll() is None else f"has ended with {process.returncode}"
                raise FuzzError(f"{kind}:{at}: {error!r}; the daemon {state}: {self.victim.log_text()[-2_000:]}") from error
        if self.victim.daemon.process.poll() is not None:
            raise FuzzError(f"the daemon died within {kind}")

    def _find_prey(self) -> None:
        """Creates the requests' topic again if they have deleted it."""
        request = topics_pb2.CreateTopicsRequest(topics=[{"name": "prey", "partitions": 2}])
        answer = topics_pb2.CreateTopicsResponse.FromString(self.victim.unary("CreateTopics", request.SerializeToString()))
        if not answer.results[0].HasField("error"):
            self._requests.prey_id = answer.results[0].topic_id

    def _send(self, kind: str, at: int, end: int) -> None:
        if kind == "wire.port":
            self._knock(kind, at, end)
            return
        rng = rng_of(self._seed, kind, at)
        part = rng.choice(("fields", "bytes", "edges"))
        if kind == "wire.unary":
            name, data = unary_bytes(self._requests, f"unary.{part}", rng, at)
            code = outcome(lambda: UNARY[name].response.FromString(self.victim.unary(name, data)), data)
        elif kind == "wire.produce":
            code = status_of(self.victim, PRODUCE, self._requests.produce(f"produce.{part}", rng, at))
        else:
            code = status_of(self.victim, FETCH, self._requests.fetch(f"fetch.{part}", rng, at))
        self._report.count(kind, code.name)

    def _knock(self, kind: str, at: int, end: int) -> None:
        """Opens many connections at once and sends bytes on each; waits for a few, and cuts the others."""
        with contextlib.ExitStack() as stack:
            connections = []
            for number in range(at, end):
                rng = rng_of(self._seed, kind, number)
                name, message = unary_bytes(self._requests, "unary.fields", rng, number)
                what, data = port_bytes(rng, UNARY[name].path, message, self._hello)
                connection = stack.enter_context(
                    socket.create_connection(("127.0.0.1", self.victim.daemon.port), timeout=DEADLINE_S)
                )
                with contextlib.suppress(OSError):
                    connection.sendall(data)
                connections.append(connection)
                self._report.count(kind, what)
            for connection in connections[::10]:
                connection.settimeout(_PATIENCE_S)
                with contextlib.suppress(OSError):
                    while connection.recv(65_536):
                        pass
