"""Counters and histograms of requests since the broker's start. Updated once per request or batch, never per record."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram

from brokerd.partition.partition import Partition

# Seconds: from a request served from the page cache to a disk about to fail.
_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TOTAL = "total"


class RequestTime(NamedTuple):
    """The phases of a request's time, split as in Kafka; the fields are the values of the label `phase`."""

    local: Histogram  # decoding, appending, reading
    remote: Histogram  # acks=all: until durable; a fetch: parked
    response_send: Histogram  # writing the response, including the client's flow control
    total: Histogram

    def observe(self, *, local_ns: int, remote_ns: int, send_ns: int) -> None:
        """Records the phases of an answered request."""
        self.local.observe(local_ns / 1e9)
        self.remote.observe(remote_ns / 1e9)
        self.response_send.observe(send_ns / 1e9)
        self.total.observe((local_ns + remote_ns + send_ns) / 1e9)


@dataclass(slots=True)
class Traffic:
    """Traffic into and out of one topic, or all topics."""

    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Counters:
    """All counters of one broker."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.total = Traffic()  # its bytes_out counts whole responses
        self.topics: defaultdict[bytes, Traffic] = defaultdict(Traffic)  # by topic id; a deleted topic's are dropped
        self.authentication_failures = self._counter("authentication_failures", "Calls without valid credentials.")
        self.failed_produce = self._counter("failed_produce_requests", "Batches or whole requests that were refused.", "error")
        self.failed_fetch = self._counter("failed_fetch_requests", "Partitions or whole fetches that were refused.", "error")
        self.request_errors = self._counter(
            "request_errors", "Calls and streams that ended with a status other than OK.", "request", "status"
        )
        self.request_time = self._histogram("request_time_seconds", "Time of requests by phase.", "request", "phase")
        self.flush_time = self._histogram("log_flush_time_seconds", "Time of flushes to disk.")
        self.produce_time, self.fetch_time = (
            RequestTime(*(self.request_time.labels(request, phase) for phase in RequestTime._fields))
            for request in ("Produce", "Fetch")
        )

    def appended(self, topic_id: bytes, *, messages: int, size_bytes: int) -> None:
        """Counts an appended batch."""
        for traffic in (self.total, self.topics[topic_id]):
            traffic.messages_in += messages
            traffic.bytes_in += size_bytes

    def flushed(self, _partition: Partition, duration_ns: int) -> None:
        """Counts a flush."""
        self.flush_time.observe(duration_ns / 1e9)

    def _counter(self, name: str, doc: str, *labels: str) -> Counter:
        return Counter(f"brokerd_{name}", doc, labels, registry=self.registry)

    def _histogram(self, name: str, doc: str, *labels: str) -> Histogram:
        return Histogram(f"brokerd_{name}", doc, labels, registry=self.registry, buckets=_BUCKETS)
