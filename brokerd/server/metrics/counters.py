"""Counters and histograms of requests, from the broker's start. Updated once per request or once per batch, never per record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from prometheus_client import CollectorRegistry, Counter, Histogram

# Seconds: from a request served from the page cache to a disk about to fail.
BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Phase(Enum):
    """The phases of a request's time, as Kafka splits it."""

    LOCAL = "local"  # decoding, appending, reading
    REMOTE = "remote"  # acks=all: until durable; a fetch: parked
    RESPONSE_SEND = "response_send"  # writing the response, including the client's flow control
    TOTAL = "total"


@dataclass(slots=True)
class Traffic:
    """Traffic into and out of a topic."""

    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Counters:
    """All counters of one broker."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.topics: dict[bytes, Traffic] = {}  # by topic id; a deleted topic's are dropped
        self._messages_in = self._counter("messages_in", "Records appended.")
        self._bytes_in = self._counter("bytes_in", "Bytes of record batches appended.")
        self.bytes_out = self._counter("bytes_out", "Bytes of fetch responses.")
        self.authentication_failures = self._counter("authentication_failures", "Calls without valid credentials.")
        self.failed_produce = self._counter("failed_produce_requests", "Batches or whole requests that were refused.", "error")
        self.failed_fetch = self._counter("failed_fetch_requests", "Partitions or whole fetches that were refused.", "error")
        self.request_errors = self._counter(
            "request_errors", "Calls and streams that ended with a status other than OK.", "request", "status"
        )
        self.request_time = self._histogram("request_time_seconds", "Time of requests by phase.", "request", "phase")
        self.flush_time = self._histogram("log_flush_time_seconds", "Time of flushes to disk.")
        self.produce_time = {phase: self.request_time.labels("Produce", phase.value) for phase in Phase}
        self.fetch_time = {phase: self.request_time.labels("Fetch", phase.value) for phase in Phase}

    def appended(self, topic_id: bytes, *, messages: int, size_bytes: int) -> None:
        """Counts an appended batch."""
        self._messages_in.inc(messages)
        self._bytes_in.inc(size_bytes)
        topic = self.traffic(topic_id)
        topic.messages_in += messages
        topic.bytes_in += size_bytes

    def responded(self, request_time: Mapping[Phase, Histogram], *, local_ns: int, remote_ns: int, send_ns: int) -> None:
        """Counts the time of a request that was answered."""
        request_time[Phase.LOCAL].observe(local_ns / 1e9)
        request_time[Phase.REMOTE].observe(remote_ns / 1e9)
        request_time[Phase.RESPONSE_SEND].observe(send_ns / 1e9)
        request_time[Phase.TOTAL].observe((local_ns + remote_ns + send_ns) / 1e9)

    def traffic(self, topic_id: bytes) -> Traffic:
        """The traffic of a topic, to read or to add to."""
        found = self.topics.get(topic_id)
        if found is None:
            found = self.topics[topic_id] = Traffic()
        return found

    def _counter(self, name: str, doc: str, *labels: str) -> Counter:
        return Counter(f"brokerd_{name}", doc, labels, registry=self.registry)

    def _histogram(self, name: str, doc: str, *labels: str) -> Histogram:
        return Histogram(f"brokerd_{name}", doc, labels, registry=self.registry, buckets=BUCKETS)
