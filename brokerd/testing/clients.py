"""The test's own clients, as its process sees them: one process for each thread that calls at the same time, up to a limit."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from brokerd.testing.channel import Channel, Message, exchange, pair

CLIENTS_MAX = 16
_GONE = "the process of the test's own client is gone: was it killed?"


class Clients:
    """The clients of one broker. All methods may be called from any thread."""

    def __init__(self, introduce: Callable[[socket.socket], object]) -> None:
        """`introduce` has a client serve this end of a socket pair."""
        self._introduce = introduce
        self._changed = threading.Condition()
        self._free: list[Channel] = []  # the one used last is the next one
        self._count = 0
        self._is_closed = False

    def ask(self, head: dict[str, Any], body: Any = b"") -> Message:
        """Has a client that does nothing else do this; waits for one while all CLIENTS_MAX are busy. Raises what it raises."""
        with self._one() as client:
            return exchange(client, head, body, None, _GONE)

    @contextlib.contextmanager
    def _one(self) -> Iterator[Channel]:
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._count < CLIENTS_MAX)
            client = self._free.pop() if self._free else None
            self._count += client is None
        try:
            if client is None:
                client = self._new()
            yield client
        finally:
            with self._changed:
                if client is not None and not client.is_broken and not self._is_closed:
                    self._free.append(client)
                else:
                    self._count -= 1
                    if client is not None:
                        client.close()
                self._changed.notify()

    def _new(self) -> Channel:
        client, theirs = pair()
        try:
            with theirs:
                self._introduce(theirs)
        except BaseException:
            client.close()
            raise
        return client

    def close(self) -> None:
        """Ends those that are free now, and the others after their calls."""
        with self._changed:
            self._is_closed = True
            for client in self._free:
                client.close()
            self._count -= len(self._free)
            self._free.clear()

    def leave_to_parent(self) -> None:
        """In a fork: closes this process's copies, which nobody uses here."""
        for client in self._free:
            client.close()
