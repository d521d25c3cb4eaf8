"""Caches clients and producers across Spark tasks and leases them out: Spark forks its workers, reuses them for many tasks, and
pickles readers and writers. Creating a connection, a producer id and metadata in each task would cost a micro-batch more than its
rows. Kafka's Spark connector caches its producers too.

Idle objects are closed at the next lease after IDLE_MAX_MS and, like all clients and producers, at exit. Nothing is shared across a
fork.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

from brokerd import process
from brokerd.client.blocking import BlockingClient
from brokerd.client.metadata import ids_in
from brokerd.client.transactions import NO_VERSION
from brokerd.clock import Clock, SystemClock
from brokerd.config.client import ClientConfig, ProducerConfig
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.producer.core.membership import TransactionEnd
from brokerd.producer.transaction import Coordinator

T = TypeVar("T")
C = TypeVar("C", bound=ClientConfig)
IDLE_MAX_MS = 60_000  # Spark itself ends an idle worker after a minute


@dataclass(slots=True, eq=False)
class _Entry(Generic[C, T]):
    config: C
    lent: T
    lease_count: int = 0
    idle_since_ms: int = 0


class LeaseCache(Generic[C, T]):
    """Objects keyed by the settings they were made from, leased to callers with equal settings. Thread-safe."""

    def __init__(self, clock: Clock, make: Callable[[C], T], close: Callable[[T], object], *, is_shared: bool) -> None:
        """`is_shared`: an object may have several leases at once. If not, a lease that ends with an error discards its object."""
        self._clock = clock
        self._make = make
        self._close = close
        self._is_shared = is_shared
        self.forget()

    def forget(self) -> None:
        """Starts empty with a new lock, closing nothing: a forked child's objects are the parent's, and a thread may hold the
        lock."""
        self._lock = threading.Lock()
        self._entries: list[_Entry[C, T]] = []

    @contextlib.contextmanager
    def lease(self, config: C) -> Iterator[T]:
        """Leases the object for these settings, created if needed (raises its creation's errors). Borrowers must not close it."""
        for other in self._take_overdue():
            self._close(other.lent)
        with self._lock:
            entry = self._fitting(config)
            entry.lease_count += 1
        is_whole = self._is_shared
        try:
            yield entry.lent
            is_whole = True
        finally:
            self._give_back(entry, is_whole=is_whole)

    def close(self) -> None:
        """Closes all objects that are not leased."""
        with self._lock:
            idle = [entry for entry in self._entries if not entry.lease_count]
            self._entries = [entry for entry in self._entries if entry.lease_count]
        for entry in idle:
            self._close(entry.lent)

    def _fitting(self, config: C) -> _Entry[C, T]:
        for entry in self._entries:
            if entry.config == config and (self._is_shared or not entry.lease_count):
                return entry
        entry = _Entry(config, self._make(config))
        self._entries.append(entry)
        return entry

    def _take_overdue(self) -> list[_Entry[C, T]]:
        """Removes entries idle for IDLE_MAX_MS, for the caller to close."""
        before_ms = self._clock.monotonic_ms() - IDLE_MAX_MS
        with self._lock:
            overdue = [entry for entry in self._entries if not entry.lease_count and entry.idle_since_ms <= before_ms]
            self._entries = [entry for entry in self._entries if entry not in overdue]
        return overdue

    def _give_back(self, entry: _Entry[C, T], *, is_whole: bool) -> None:
        with self._lock:
            entry.lease_count -= 1
            entry.idle_since_ms = self._clock.monotonic_ms()
            is_given_up = not is_whole and entry in self._entries
            if is_given_up:
                self._entries.remove(entry)
        if is_given_up:
            self._close(entry.lent)


# Clients are closed without waiting: the next borrower may be a task of an event loop.
_clients = LeaseCache(SystemClock(), BlockingClient, lambda client: client.loop_thread.end(), is_shared=True)
process.in_forked_child(_clients.forget)


def lease_client(config: ClientConfig) -> contextlib.AbstractContextManager[BlockingClient]:
    """Leases this process's client for these settings (those added by ProducerConfig or ConsumerConfig are ignored):
    `with lease_client(config) as client`. Raises ConfigError if bootstrap.servers cannot be read."""
    return _clients.lease(ClientConfig(**{field.name: getattr(config, field.name) for field in fields(ClientConfig)}))


class ClientCoordinator(Coordinator):
    """The calls that end the transactions of a producer with these settings."""

    def __init__(self, config: ProducerConfig) -> None:
        """Does not connect yet."""
        self._config = config

    def last_version(self, transactional_id: str, *, timeout_ms: int | None = None) -> int:
        with lease_client(self._config) as client:
            listing = client.find_transaction(transactional_id, timeout_ms=timeout_ms)
        return listing.last_version if listing is not None else NO_VERSION

    def end(self, end: TransactionEnd, *, timeout_ms: int) -> None:
        with lease_client(self._config) as client:
            client.end_transaction(end, timeout_ms=timeout_ms)

    def partition_ids(self, tps: Collection[TopicPartition]) -> Mapping[TopicPartition, TopicIdPartition]:
        with lease_client(self._config) as client:
            return ids_in(client.metadata(sorted({tp.topic for tp in tps})), tps)
