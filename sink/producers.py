"""Producers that outlive tasks: Spark runs task after task in one Python process, and a connection, a producer id and
metadata for each would cost a micro-batch more than its rows. Kafka's Spark connector keeps its producers likewise.

A producer serves one task at a time. One whose task failed is given up with all that it still holds; one that was idle for a
while is closed at the next lease. Nothing is shared across a fork.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from brokerd.client.producer import Producer
from brokerd.clock import Clock, SystemClock
from brokerd.config.client import ProducerConfig
from brokerd.ids import TopicPartition

IDLE_MAX_MS = 60_000  # Spark itself ends an idle worker after a minute


@dataclass(slots=True)
class _Idle:
    producer: Producer
    pid: int
    config: ProducerConfig
    since_ms: int


class ProducerPool:
    """Idle producers of this process."""

    def __init__(self, clock: Clock, make: Callable[[ProducerConfig], Producer]) -> None:
        self._clock = clock
        self._make = make
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []

    @contextlib.contextmanager
    def lease(self, config: ProducerConfig) -> Iterator[Producer]:
        """A producer for one task, with nothing left in it from the one before. The task must flush it; if the block is left
        by an error, whatever is not sent yet is given up at once, since waiting would only delay Spark's next attempt."""
        with self._lock:
            producer, overdue = self._take(config)
        for other in overdue:
            other.close(0)
        if producer is None:
            producer = self._make(config)
        try:
            yield producer
        except BaseException:
            producer.close(0)
            raise
        with self._lock:
            self._idle.append(_Idle(producer, os.getpid(), config, self._clock.monotonic_ms()))

    def close(self) -> None:
        """Closes what is idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for one in idle:
            if one.pid == os.getpid():
                one.producer.close(0)

    def _take(self, config: ProducerConfig) -> tuple[Producer | None, list[Producer]]:
        """A producer of these settings, if there is one, and those whose time is over."""
        now_ms = self._clock.monotonic_ms()
        mine = [one for one in self._idle if one.pid == os.getpid()]
        overdue = [one for one in mine if now_ms - one.since_ms >= IDLE_MAX_MS]
        fitting = next((one for one in mine if one not in overdue and one.config == config), None)
        self._idle = [one for one in mine if one not in overdue and one is not fitting]
        return fitting.producer if fitting else None, [one.producer for one in overdue]


def delivered_counts(producer: Producer) -> dict[TopicPartition, int]:
    """Records acknowledged since the producer was made."""
    return {tp: totals.record_count for tp, totals in producer.delivered().items()}


_pool = ProducerPool(SystemClock(), Producer)
# A lock that another thread held during the fork would stay held in the child.
os.register_at_fork(after_in_child=lambda: _pool.__init__(SystemClock(), Producer))  # type: ignore[misc]


def lease_producer(config: ProducerConfig) -> contextlib.AbstractContextManager[Producer]:
    """A producer of this process's pool: `with lease_producer(config) as producer`. Raises ConfigError."""
    return _pool.lease(config)
