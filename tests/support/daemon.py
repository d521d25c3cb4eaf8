"""A running broker for tests: in this process on its own thread, or as a child process. No assertions here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self, TypeVar

import grpc

from brokerd.clock import Clock
from brokerd.config.broker import BrokerConfig
from brokerd.config.settings import from_mapping
from brokerd.event_loop import GrpcLoop, settle
from brokerd.server.daemon import Daemon
from brokerd.storage.files import Files
from tests.support.wait import DEADLINE_S, wait_until

T = TypeVar("T")
START_TIMEOUT_S = DEADLINE_S
STOP_TIMEOUT_S = DEADLINE_S


class RunningDaemon:
    """A Daemon on its own thread and event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        self.daemon = Daemon(config, files=files, clock=clock, interceptors=interceptors)
        self.loop = GrpcLoop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="brokerd-test", daemon=True)
        self._stopping: Future[None] | None = None

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.daemon.port}"

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float = START_TIMEOUT_S) -> T:
        """Runs a coroutine in the daemon's loop and waits for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_s)

    def start(self) -> None:
        """Starts; returns once it serves."""
        self._thread.start()
        try:
            self.run(self.daemon.start())
        except BaseException:
            self._end_loop()
            raise

    def begin_stop(self) -> Future[None]:
        """Begins a clean stop, if none has begun, without waiting for it."""
        if self._stopping is None:
            self._stopping = asyncio.run_coroutine_threadsafe(self.daemon.stop(), self.loop)
        return self._stopping

    def stop(self) -> None:
        """Stops cleanly, unless already stopped."""
        if self.loop.is_closed():
            return
        try:
            self.begin_stop().result(STOP_TIMEOUT_S)
        finally:
            self._end_loop()

    def _end_loop(self) -> None:
        asyncio.run_coroutine_threadsafe(_end_other_tasks(), self.loop).result(STOP_TIMEOUT_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(STOP_TIMEOUT_S)
        self.loop.close()


async def _end_other_tasks() -> None:
    """Cancels the other tasks as asyncio.run does, but only once gRPC has settled: closing the loop must not tear down its work."""
    await settle()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@contextlib.contextmanager
def running_daemon(
    data_dir: Path,
    *,
    files: Files | None = None,
    clock: Clock | None = None,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    **settings: object,
) -> Iterator[RunningDaemon]:
    """A broker in this process. `settings` have underscores for dots: `log_segment_bytes=4096`."""
    # The memory in use is the whole test run's, so a limit derived from the machine's memory could refuse requests.
    given: dict[str, object] = {"data.dir": str(data_dir), "port": 0, "max.memory.bytes": 2**40}
    given |= {name.replace("_", "."): value for name, value in settings.items()}
    running = RunningDaemon(from_mapping(BrokerConfig, given), files=files, clock=clock, interceptors=interceptors)
    running.start()
    try:
        yield running
    finally:
        running.stop()


class DaemonProcess:
    """`brokerd start` as a child process, killed on exit if still running."""

    def __init__(
        self, data_dir: Path, *, port: int = 0, settings: Mapping[str, object] | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.data_dir = data_dir
        self.port = port
        self.settings = dict(settings or {})
        self.env = dict(env or {})
        self.stderr_path = data_dir.parent / f"{data_dir.name}.stderr"
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    @property
    def process(self) -> subprocess.Popen[str]:
        """The child."""
        assert self._process is not None, "not started"
        return self._process

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self.process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def command(self) -> list[str]:
        """The command line."""
        sets = [f"--set={name}={value}" for name, value in self.settings.items()]
        code = "import sys; from brokerd.cli import main; sys.exit(main())"
        return [sys.executable, "-c", code, "start", "--data-dir", str(self.data_dir), "--port", str(self.port), *sets]

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Starts; returns once it serves, and remembers the port for the next start. Raises RuntimeError with its stderr if it does
        not."""
        with open(self.stderr_path, "a") as stderr:
            before = stderr.tell()
            self._process = subprocess.Popen(
                self.command(), stdout=subprocess.PIPE, stderr=stderr, text=True, env={**os.environ, **self.env}
            )
        line = self._read_line(timeout_s)
        if not line.startswith("brokerd ready on "):
            self.kill()
            raise RuntimeError(f"brokerd did not start: {line!r}\n{self.stderr_path.read_bytes()[before:].decode()}")
        self.port = int(line.rpartition(":")[2])

    def _read_line(self, timeout_s: float) -> str:
        stdout = self.process.stdout
        assert stdout is not None
        ready, _, _ = select.select([stdout], [], [], timeout_s)
        return stdout.readline() if ready else ""

    def kill(self) -> None:
        """Sends SIGKILL and waits for the end."""
        self.process.kill()
        self._wait()

    def terminate(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Sends SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._wait(timeout_s)

    def restart(self) -> None:
        """Starts again on the same port, after kill() or terminate(). While nothing listens there, the kernel may give the port to
        an outgoing connection, even of a client that reconnects: then the start is retried."""
        wait_until(self._has_started, what=f"port {self.port} is free again")

    def _has_started(self) -> bool:
        try:
            self.start()
        except RuntimeError as error:
            if "address already in use" not in str(error):
                raise
            return False
        return True

    def _wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        code = self.process.wait(timeout_s)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code
