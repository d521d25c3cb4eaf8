"""A relay between a server's port and its clients that can drop responses."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

_CHUNK_BYTES = 65_536


class Relay:
    """Forwards bytes both ways on a loopback port until the block ends. Set `target`, the server's port, first."""

    def __init__(self) -> None:
        self.target = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._clients: list[socket.socket] = []
        self._servers: list[socket.socket] = []
        self._lost: set[socket.socket] = set()  # clients whose responses are dropped

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        _shut(self._listener)
        self._threads[0].join()
        ends = [self._listener, *self._clients, *self._servers]
        for end in ends:
            _shut(end)
        for thread in self._threads[1:]:
            thread.join()
        for end in ends:
            end.close()

    def lose_answers(self) -> None:
        """From now on open connections forward requests and drop responses. Later connections are not affected."""
        self._lost = set(self._clients)

    def cut(self) -> None:
        """Shuts down the connections whose responses were dropped."""
        for client in self._lost:
            _shut(client)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was shut down
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                server = socket.create_connection(("127.0.0.1", self.target))
                self._servers.append(server)
                for source, to in ((client, server), (server, client)):
                    self._threads.append(threading.Thread(target=self._forward, args=(source, to, client)))
                    self._threads[-1].start()

    def _forward(self, source: socket.socket, to: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                if source is client or client not in self._lost:
                    to.sendall(data)
        _shut(source)
        _shut(to)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
