"""Metrics of one producer by Kafka's names. Rates, averages and maxima cover the last one to two windows of 30 s, as Kafka's do
(metrics.sample.window.ms, metrics.num.samples). Reads no clock.
"""

from __future__ import annotations

from brokerd.producer.core.accumulator import ProducerBatch

WINDOW_MS = 30_000


class WindowedStat:
    """Sum, count and maximum of the current window and the previous one, and the total of all time."""

    def __init__(self, now_ms: int) -> None:
        self.total = 0.0
        self._window_start_ms = now_ms
        self._sum = [0.0, 0.0]
        self._count = [0, 0]
        self._max = [0.0, 0.0]

    def record(self, value: float, now_ms: int) -> None:
        """Adds a value."""
        self._roll(now_ms)
        self.total += value
        self._sum[0] += value
        self._count[0] += 1
        self._max[0] = max(self._max[0], value)

    def rate(self, now_ms: int) -> float:
        """Sum per second over at least one window, so that the first value does not show as a burst."""
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

    def on_request(self, batches: list[ProducerBatch], now_ms: int) -> None:
        """Records a request. A retried batch counts only towards the records per request."""
        for batch in batches:
            if batch.attempts == 1:
                self.queue_time_ms.record(now_ms - batch.created_ms, now_ms)
                self.records_sent.record(batch.record_count, now_ms)
        self.request_records.record(sum(batch.record_count for batch in batches), now_ms)

    def on_encoded(self, size_bytes: int, uncompressed_bytes: int, now_ms: int) -> None:
        """Records a batch that was encoded."""
        self.batch_bytes.record(size_bytes, now_ms)
        self.bytes_sent.record(size_bytes, now_ms)
        self.compression_rate.record(size_bytes / max(1, uncompressed_bytes), now_ms)

    def snapshot(self, now_ms: int) -> dict[str, float]:
        """All metrics by name."""
        counted = {
            "record-send": self.records_sent,
            "record-retry": self.records_retried,
            "record-error": self.records_failed,
            "batch-split": self.batches_split,
        }
        measured = {
            "batch-size": self.batch_bytes,
            "record-queue-time": self.queue_time_ms,
            "request-latency": self.request_latency_ms,
            "produce-throttle-time": self.throttle_time_ms,
        }
        values = {"outgoing-byte-rate": self.bytes_sent.rate(now_ms)}
        for name, stat in counted.items():
            values |= {f"{name}-rate": stat.rate(now_ms), f"{name}-total": stat.total}
        for name, stat in measured.items():
            values |= {f"{name}-avg": stat.average(now_ms), f"{name}-max": stat.maximum(now_ms)}
        values["records-per-request-avg"] = self.request_records.average(now_ms)
        values["compression-rate-avg"] = self.compression_rate.average(now_ms)
        return values
