"""The coordination store of one Cluster: an etcd in memory, behind a relay per node that can be cut. It has its own process, so
it survives the end of any node; it ends with the test's process.

A cut relay holds back data, and forwards it once it is healed. As in a network that drops packets, connections stay open, and
neither side gets an error.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from brokerd.testing.channel import Channel, error_head
from brokerd.testing.memory_etcd import MemoryEtcd
from brokerd.testing.processes import Watched

HOST = "127.0.0.1"
_PIECE_BYTES = 65_536


def serve_coordination(caller: Channel, caller_pid: int) -> None:
    """Serves the test's process, `caller`, until it ends the channel or is gone."""
    asyncio.run(_Process(caller, caller_pid).run())


class _Process:
    def __init__(self, caller: Channel, caller_pid: int) -> None:
        self._caller = caller
        self._watched = Watched(caller_pid)
        self._etcd = MemoryEtcd()
        self._relays: dict[str, _Relay] = {}
        self._done: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Carries out the caller's commands. Does not return: there is nothing to tear down."""
        loop = asyncio.get_running_loop()
        if self._watched.is_gone:
            os._exit(0)
        if self._watched.fileno() >= 0:
            loop.add_reader(self._watched.fileno(), os._exit, 0)
        loop.add_reader(self._caller.socket, self._hear)
        await loop.create_future()

    def _hear(self) -> None:
        try:
            head = self._caller.receive().head
        except EOFError:
            os._exit(0)
        task = asyncio.get_running_loop().create_task(self._answer(head))
        self._done.add(task)
        task.add_done_callback(self._done.discard)

    async def _answer(self, head: dict[str, Any]) -> None:
        try:
            reply = await self._carried_out(head)
        except Exception as error:
            reply = error_head(error)
        self._caller.send(reply)

    async def _carried_out(self, head: dict[str, Any]) -> dict[str, Any]:
        """Carries out a command; returns the reply."""
        match head["do"]:
            case "open":  # first command: starts etcd and a relay per name; the reply has the relays' ports
                await self._etcd.start()
                self._relays = {name: _Relay(self._etcd) for name in head["names"]}
                return {"ports": [await relay.start() for relay in self._relays.values()]}
            case "stop":
                await self._etcd.stop()
            case "start":  # on a new port: another process may have got the old one. `is_empty`: without its data
                await self._etcd.stop()
                if head["is_empty"]:
                    self._etcd.clear()
                self._etcd.port = 0
                await self._etcd.start()
            case "expire":  # ends the lease of a key, if it has one
                found = self._etcd.keys.get(head["key"].encode())
                if found is not None:
                    await self._etcd.end_lease(found.lease)
            case "cut":
                self._relays[head["name"]].flows.clear()
            case "heal":
                self._relays[head["name"]].flows.set()
        return {}


class _Relay:
    """Forwards connections from its own port to etcd's current port; data flows, in either direction, only while `flows` is set."""

    def __init__(self, etcd: MemoryEtcd) -> None:
        self.flows = asyncio.Event()
        self.flows.set()
        self._etcd = etcd
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listens, and returns its port."""
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            await self.flows.wait()
            etcd_reader, etcd_writer = await asyncio.open_connection(HOST, self._etcd.port)
            ends.append(etcd_writer)
            pumps = [asyncio.create_task(self._pump(reader, etcd_writer)), asyncio.create_task(self._pump(etcd_reader, writer))]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass  # etcd is stopped
        finally:
            for end in ends:
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_PIECE_BYTES):
            await self.flows.wait()
            writer.write(data)
            await writer.drain()
