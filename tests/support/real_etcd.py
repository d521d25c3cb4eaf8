"""The real etcd as a child process of a test, on free ports of 127.0.0.1."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

from brokerd.clock import SystemClock
from brokerd.coordination.client import CoordinationClient
from tests.support.ports import held_port

ETCD = shutil.which("etcd")
MISSING = "needs etcd: install Debian's etcd-server"


def etcd_command(directory: Path, host: str, port: int, peer_port: int) -> list[str]:
    """The command that starts a single-member cluster."""
    assert ETCD is not None, MISSING
    client, peer = f"http://{host}:{port}", f"http://{host}:{peer_port}"
    flags = {
        "data-dir": str(directory),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
        "logger": "zap",
        "log-level": "error",
    }
    return [ETCD, *(f"--{name}={value}" for name, value in flags.items())]


class RealEtcd:
    """A single-member etcd. `stop` and `start` simulate an outage: the directory stays."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None
        with held_port() as self.port, held_port() as self._peer_port:
            pass

    @property
    def address(self) -> str:
        """Its client address."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Starts; returns once it serves, always on the same port."""
        command = etcd_command(self._directory, "127.0.0.1", self.port, self._peer_port)
        quiet = asyncio.subprocess.DEVNULL
        self._process = await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet)
        client_of_it = CoordinationClient([self.address], SystemClock(), timeout_ms=30_000)
        try:
            await client_of_it.read("/")  # retries until it answers
        finally:
            await client_of_it.close()

    async def stop(self) -> None:
        """Kills it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await process.wait()

    async def compact(self, revision: int) -> None:
        """Compacts the history up to a revision."""
        client = CoordinationClient([self.address], SystemClock())
        varint = bytearray()
        while revision > 127:
            varint.append(revision & 127 | 128)
            revision >>= 7
        varint.append(revision)
        call: Any = client.channel().unary_unary("/etcdserverpb.KV/Compact")
        await call(b"\x08" + bytes(varint) + b"\x10\x01")
        await client.close()
