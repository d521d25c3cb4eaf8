"""Metrics of one producer by Kafka's names. Rates and averages look back over the last one to two windows of 30 s, as Kafka's do
(metrics.sample.window.ms, metrics.num.samples); maxima too. Reads no clock and knows no producer.
"""

from __future__ import annotations

from brokerd.producer.core.accumulator import ProducerBatch

WINDOW_MS = 30_000


class WindowedStat:
    """Sum, count and maximum of the present window and the one before."""

    __slots__ = ("_count", "_max", "_sum", "_window_start_ms")

    def __init__(self, now_ms: int) -> None:
        self._window_start_ms = now_ms
        self._sum = [0.0, 0.0]
        self._count = [0, 0]
        self._max = [0.0, 0.0]

    def record(self, value: float, now_ms: int, count: int = 1) -> None:
        """Adds a value; `count` items share it."""
        self._roll(now_ms)
        self._sum[0] += value
        self._count[0] += count
        self._max[0] = max(self._max[0], value)

    def rate(self, now_ms: int) -> float:
        """Sum per second; over at least one window, so that a first value is no burst."""
        self._roll(now_ms)
        covered_ms = now_ms - self._window_start_ms + (WINDOW_MS if self._count[1] else 0)
        return sum(self._sum) * 1000 / max(covered_ms, WINDOW_MS)

    def average(self, now_ms: int) -> float:
        """Mean per item; 0 without any."""
        self._roll(now_ms)
        return sum(self._sum) / max(1, sum(self._count))

    def maximum(self, now_ms: int) -> float:
        """Largest value; 0 without any."""
        self._roll(now_ms)
        return max(self._max)

    def _roll(self, now_ms: int) -> None:
        windows = (now_ms - self._window_start_ms) // WINDOW_MS
        if windows <= 0:
            return
        keep = windows == 1
        self._sum = [0.0, self._sum[0] if keep else 0.0]
        self._count = [0, self._count[0] if keep else 0]
        self._max = [0.0, self._max[0] if keep else 0.0]
        self._window_start_ms += windows * WINDOW_MS


class ProducerMetrics:
    """Records the events of one producer; `snapshot` returns the metrics."""

    def __init__(self, now_ms: int) -> None:
        self.records_sent = WindowedStat(now_ms)
        self.bytes_sent = WindowedStat(now_ms)
        self.records_retried = WindowedStat(now_ms)
        self.records_failed = WindowedStat(now_ms)
        self.batch_bytes = WindowedStat(now_ms)
        self.request_records = WindowedStat(now_ms)
        self.request_latency_ms = WindowedStat(now_ms)
        self.queue_time_ms = WindowedStat(now_ms)
        self.throttle_time_ms = WindowedStat(now_ms)
        self.compression_rate = WindowedStat(now_ms)
        self.batches_split = WindowedStat(now_ms)
        self.batch_split_total = 0
        self.record_send_total = 0
        self.record_retry_total = 0
        self.record_error_total = 0

    def on_request(self, batches: list[ProducerBatch], now_ms: int) -> None:
        """Counts the batches of a request."""
        for batch in batches:
            if batch.attempts == 1:
                self.on_drained(batch.record_count, now_ms - batch.created_ms, now_ms)
        self.request_records.record(sum(batch.record_count for batch in batches), now_ms)

    def on_drained(self, record_count: int, queue_time_ms: int, now_ms: int) -> None:
        """Records a batch that is sent for the first time."""
        self.queue_time_ms.record(queue_time_ms, now_ms)
        self.records_sent.record(record_count, now_ms)
        self.record_send_total += record_count

    def on_encoded(self, size_bytes: int, uncompressed_bytes: int, now_ms: int) -> None:
        """Records a batch that was encoded."""
        self.batch_bytes.record(size_bytes, now_ms)
        self.bytes_sent.record(size_bytes, now_ms)
        self.compression_rate.record(size_bytes / max(1, uncompressed_bytes), now_ms)

    def on_retry(self, record_count: int, now_ms: int) -> None:
        """Records a batch that will be retried."""
        self.records_retried.record(record_count, now_ms)
        self.record_retry_total += record_count

    def on_split(self, now_ms: int) -> None:
        """Records a batch that was split because the broker found it too large."""
        self.batches_split.record(1, now_ms)
        self.batch_split_total += 1

    def on_error(self, record_count: int, now_ms: int) -> None:
        """Records a batch that failed for good."""
        self.records_failed.record(record_count, now_ms)
        self.record_error_total += record_count

    def snapshot(self, now_ms: int) -> dict[str, float]:
        """All metrics by name."""
        return {
            "record-send-rate": self.records_sent.rate(now_ms),
            "record-send-total": self.record_send_total,
            "record-retry-rate": self.records_retried.rate(now_ms),
            "record-retry-total": self.record_retry_total,
            "record-error-rate": self.records_failed.rate(now_ms),
            "record-error-total": self.record_error_total,
            "batch-split-rate": self.batches_split.rate(now_ms),
            "batch-split-total": self.batch_split_total,
            "outgoing-byte-rate": self.bytes_sent.rate(now_ms),
            "batch-size-avg": self.batch_bytes.average(now_ms),
            "batch-size-max": self.batch_bytes.maximum(now_ms),
            "records-per-request-avg": self.request_records.average(now_ms),
            "record-queue-time-avg": self.queue_time_ms.average(now_ms),
            "record-queue-time-max": self.queue_time_ms.maximum(now_ms),
            "request-latency-avg": self.request_latency_ms.average(now_ms),
            "request-latency-max": self.request_latency_ms.maximum(now_ms),
            "produce-throttle-time-avg": self.throttle_time_ms.average(now_ms),
            "produce-throttle-time-max": self.throttle_time_ms.maximum(now_ms),
            "compression-rate-avg": self.compression_rate.average(now_ms),
        }
