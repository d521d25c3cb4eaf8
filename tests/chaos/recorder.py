"""Records the outcome of each record sent, for all threads of a workload."""

from __future__ import annotations

import threading
from functools import partial

from brokerd import Producer
from brokerd.clock import SystemClock
from brokerd.errors import Fate, WireError
from brokerd.ids import TopicPartition
from brokerd.producer.futures import RecordFuture
from tests.chaos.history import History, Outcome, Send, Value

PRODUCER_SETTINGS: dict[str, object] = {
    "linger.ms": 1,
    "request.timeout.ms": 3_000,
    "delivery.timeout.ms": 20_000,
    "max.block.ms": 10_000,
    "retry.backoff.max.ms": 200,
    "reconnect.backoff.max.ms": 100,
}


class Recorder:
    """The growing history. Thread-safe: it is only appended to."""

    def __init__(self) -> None:
        self.history = History()
        self.clock = SystemClock()
        self.acknowledged = 0  # shows progress
        self.committed = 0  # transactions among the acknowledged
        self._lock = threading.Lock()
        self._next_identity = 0

    def identity(self) -> int:
        """A new number for a producer, used in its values."""
        with self._lock:
            self._next_identity += 1
            return self._next_identity - 1

    def send(self, producer: Producer, value: Value, tp: TopicPartition, padding: int) -> RecordFuture:
        """Sends a record `<producer>:<number>:` with padding, which identifies it to readers, and records its outcome."""
        invoked_ms = self.clock.monotonic_ms()
        future = producer.send(tp.topic, value=b"%d:%d:" % value + b"." * padding, partition=tp.partition)
        future.add_done_callback(partial(self._note, value, tp, invoked_ms))
        return future

    def _note(self, value: Value, tp: TopicPartition, invoked_ms: int, future: RecordFuture) -> None:
        now_ms = self.clock.monotonic_ms()
        error = future.exception()
        if error is None:
            metadata = future.result()
            send = Send(value, tp, invoked_ms, now_ms, Outcome.OK, metadata.offset)
            self.acknowledged += 1
        else:
            certain = isinstance(error, WireError) and error.fate is Fate.NOT_APPENDED
            send = Send(value, tp, invoked_ms, now_ms, Outcome.FAILED if certain else Outcome.UNKNOWN)
        self.history.sends.append(send)
