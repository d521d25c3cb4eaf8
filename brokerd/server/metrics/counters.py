"""Request counters and histograms. Plain numbers that belong to the event loop's thread, updated once per request or once per
batch, never per record. collector.py gives them their public names.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate

from brokerd.errors import ErrorCode

# From a request served from the page cache to a disk about to fail.
SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Histogram:
    """Counts durations that were at most each of SECONDS."""

    __slots__ = ("_counts", "sum_seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)
        self.sum_seconds = 0.0

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self._counts)

    def observe_ns(self, nanoseconds: int) -> None:
        """Counts one duration."""
        seconds = nanoseconds / 1e9
        self._counts[bisect_left(SECONDS, seconds)] += 1
        self.sum_seconds += seconds

    def cumulative(self) -> list[tuple[float, int]]:
        """(upper bound in seconds, observations up to it); the last bound is infinite."""
        return list(zip((*SECONDS, float("inf")), accumulate(self._counts), strict=True))


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
    """All counters of one broker, since its start."""

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.topics: dict[bytes, Traffic] = {}  # by topic id
        self.failed_produce: Counter[ErrorCode] = Counter()  # batches, or whole requests, that were refused
        self.failed_fetch: Counter[ErrorCode] = Counter()  # partitions, or whole requests, that were refused
        self.request_errors: Counter[tuple[str, str]] = Counter()  # (method, status) of calls and streams that ended badly
        self.produce_time = {phase: Histogram() for phase in Phase}
        self.fetch_time = {phase: Histogram() for phase in Phase}
        self.flush_time = Histogram()
        self.call_time: dict[str, Histogram] = {}  # unary calls by method

    def appended(self, topic_id: bytes, *, messages: int, size_bytes: int) -> None:
        """Counts an appended batch."""
        self.messages_in += messages
        self.bytes_in += size_bytes
        topic = self._topic(topic_id)
        topic.messages_in += messages
        topic.bytes_in += size_bytes

    def fetched(self, topic_id: bytes, size_bytes: int) -> None:
        """Counts batches of a topic in a response."""
        self._topic(topic_id).bytes_out += size_bytes

    def forget(self, topic_id: bytes) -> None:
        """Drops the counters of a deleted topic."""
        self.topics.pop(topic_id, None)

    def _topic(self, topic_id: bytes) -> Traffic:
        traffic = self.topics.get(topic_id)
        if traffic is None:
            traffic = self.topics[topic_id] = Traffic()
        return traffic

    def called(self, method: str, nanoseconds: int) -> None:
        """Counts a finished unary call, successful or not."""
        histogram = self.call_time.get(method)
        if histogram is None:
            histogram = self.call_time[method] = Histogram()
        histogram.observe_ns(nanoseconds)
