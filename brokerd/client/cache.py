"""One client per process and settings, for code that is called again and again in processes it does not own: Spark's
workers are forked and used for many tasks, and readers and writers are pickled. Made lazily, never shared across a fork.

Closed when they were idle for a while (noticed at the next lease), and at exit.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, fields

from brokerd.client.blocking import BlockingClient
from brokerd.clock import Clock, SystemClock
from brokerd.config.client import ClientConfig
from brokerd.shutdown import at_exit

IDLE_MAX_MS = 60_000  # Spark itself ends an idle worker after a minute


@dataclass(slots=True)
class _Entry:
    client: BlockingClient
    lease_count: int = 0
    idle_since_ms: int = 0


class ClientCache:
    """Clients by process and settings. Any thread may lease."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[tuple[int, ClientConfig], _Entry] = {}

    @contextlib.contextmanager
    def lease(self, config: ClientConfig) -> Iterator[BlockingClient]:
        """A client for these settings (what a ProducerConfig or ConsumerConfig adds does not matter), not to be closed by
        the borrower. Raises ConfigError if bootstrap.servers cannot be read.
        """
        key = (os.getpid(), _shared_settings(config))
        with self._lock:
            closed = self._take_idle()
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry(BlockingClient(key[1], self._clock))
            entry.lease_count += 1
        for client in closed:
            client.close()
        try:
            yield entry.client
        finally:
            with self._lock:
                entry.lease_count -= 1
                entry.idle_since_ms = self._clock.monotonic_ms()

    def close(self) -> None:
        """Closes this process's clients; those of a parent process are only forgotten."""
        with self._lock:
            entries, self._entries = self._entries, {}
        for (pid, _), entry in entries.items():
            if pid == os.getpid():
                entry.client.close()

    def _take_idle(self) -> list[BlockingClient]:
        """Removes what nobody has leased for IDLE_MAX_MS, and what belongs to the process before a fork; returns what the
        caller is to close."""
        now_ms = self._clock.monotonic_ms()
        for key in [key for key in self._entries if key[0] != os.getpid()]:
            del self._entries[key]
        idle = [
            key for key, entry in self._entries.items() if entry.lease_count == 0 and now_ms - entry.idle_since_ms >= IDLE_MAX_MS
        ]
        return [self._entries.pop(key).client for key in idle]


_cache = ClientCache(SystemClock())
# A lock that another thread held during the fork would stay held in the child.
os.register_at_fork(after_in_child=lambda: _cache.__init__(SystemClock()))  # type: ignore[misc]
at_exit(lambda: _cache.close())


def lease_client(config: ClientConfig) -> contextlib.AbstractContextManager[BlockingClient]:
    """This process's client for these settings: `with lease_client(config) as client`. Raises ConfigError."""
    return _cache.lease(config)


def _shared_settings(config: ClientConfig) -> ClientConfig:
    return ClientConfig(**{field.name: getattr(config, field.name) for field in fields(ClientConfig)})
