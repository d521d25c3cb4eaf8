"""The environment of the benchmarks: a broker in its own process on a temporary directory, and rows to send. Measures nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig
from brokerd.record.schema import SCHEMA_0

KEYS = 10_000
KEY_BYTES = 8
ROWS_PER_BATCH = 10_000  # as Spark passes them to a sink
PROGRAM = ("-c", "import sys; from brokerd.cli import main; sys.exit(main())")  # arguments of the interpreter


class Child:
    """A child process that prints a line when it is ready."""

    def __init__(self, command: list[str], ready: str, log: int | None = None) -> None:
        """`log` is a file descriptor for its standard error, which is inherited by default."""
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        self.pid = self._process.pid
        for line in self._process.stdout:
            if ready in line:
                self.address = line.split()[-1]
                return
        raise RuntimeError(f"{' '.join(command[:4])} ended with status {self._process.wait()} before it was ready")

    def stop(self) -> int:
        """Stops it; returns its exit code."""
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    def resident_bytes(self, field: str = "VmRSS") -> int:
        """Its current (VmRSS) or largest (VmHWM) resident set, from /proc."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1_024
        raise RuntimeError(f"no {field} of process {self.pid}")

    def cpu_seconds(self) -> float:
        """The CPU time of all its threads so far."""
        return cpu_seconds(self.pid)


def cpu_seconds(pid: int) -> float:
    """The CPU time of all threads of a process so far."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """A free port on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def bare_server(parent: str | None) -> Iterator[Child]:
    """The server of floor.py, on a temporary directory in `parent`."""
    with tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True) as directory:
        floor = Child([sys.executable, "-m", "benchmarks.floor", directory], "floor ready on")
        try:
            yield floor
        finally:
            floor.stop()


class Answering:
    """A child process that greets with a line of JSON, and answers each line of JSON on its standard input with one."""

    def __init__(self, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        self._name = Path(command[1]).name
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._messages, text=True, env=environment
        )
        self.greeting = self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)
        self._messages.close()

    def ask(self, **asked: object) -> Any:
        """Sends a request and returns its response. Raises RuntimeError with what the process said if it has ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait(60)
            self._messages.seek(0)
            said = self._messages.read().decode()[-2_000:]
            raise RuntimeError(f"{self._name} ended with status {code}: {said}")
        return json.loads(line)


class Server:
    """A running system at `address`: HOST:PORT; a cluster has several, with commas."""

    def __init__(self, address: str) -> None:
        self.address = address

    def client(self) -> BlockingClient:
        """A client of the system."""
        return BlockingClient(ClientConfig(bootstrap_servers=self.address))

    @contextlib.contextmanager
    def topic(self, partitions: int) -> Iterator[str]:
        """A new topic, which is deleted at the end of the block."""
        name = self.new_topic(partitions)
        yield name
        self.delete_topic(name)

    def new_topic(self, partitions: int) -> str:
        """Creates a topic; returns its name."""
        name = f"bench-{uuid.uuid4().hex[:12]}"
        with self.client() as client:
            client.create_topic(name, partitions)
        return name

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, to free its disk space."""
        with self.client() as client:
            client.delete_topics([name])


def start_broker(data_dir: str, settings: Mapping[str, str], program: Sequence[str] = PROGRAM, log: int | None = None) -> Child:
    """`brokerd start` on a free port. `program`: the arguments of the interpreter that run `brokerd`; `log`: see Child."""
    flags = [flag for name, value in settings.items() for flag in ("--set", f"{name}={value}")]
    command = [sys.executable, *program, "start", "--data-dir", data_dir, "--port", "0", *flags]
    return Child(command, "brokerd ready on", log)


class Broker(Server):
    """A broker on a temporary directory in `parent`, which is deleted when the broker stops."""

    def __init__(self, parent: str | None, settings: Mapping[str, str], program: Sequence[str] = PROGRAM) -> None:
        self.directory = tempfile.mkdtemp(prefix="brokerd-bench-", dir=parent)
        self.child = start_broker(self.directory, settings, program)
        super().__init__(self.child.address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


def value_at(row: int, value_bytes: int) -> bytes:
    """The value of a row: hexadecimal digits, which compress to half, like text."""
    text = hashlib.sha512(row.to_bytes(8, "little")).hexdigest()
    return (text * (value_bytes // len(text) + 1))[:value_bytes].encode()


def arrow_batches(rows: int, value_bytes: int) -> Iterator[pa.RecordBatch]:
    """`rows` rows in batches of the size that Spark passes. The values of a few batches are generated and reused."""
    made: list[pa.RecordBatch] = []
    for start in range(0, rows, ROWS_PER_BATCH):
        count = min(ROWS_PER_BATCH, rows - start)
        if len(made) < 8:
            made.append(_arrow_batch(start, ROWS_PER_BATCH, value_bytes))
        yield made[start // ROWS_PER_BATCH % len(made)].slice(0, count)


def _arrow_batch(start: int, count: int, value_bytes: int) -> pa.RecordBatch:
    numbers = range(start, start + count)
    return pa.record_batch(
        [
            pa.array([b"k%07d" % (row % KEYS) for row in numbers], pa.binary()),
            pa.array([value_at(row, value_bytes) for row in numbers], pa.binary()),
            pa.nulls(count, SCHEMA_0.column("headers").type),
            pa.array([1_700_000_000_000_000 + row for row in numbers], SCHEMA_0.column("timestamp").type),
        ],
        schema=SCHEMA_0.arrow,
    )
