"""The wait before a retry, for producer and client: exponential with jitter. Pure; the caller waits."""

from __future__ import annotations

JITTER = 0.2
_DOUBLINGS_MAX = 30


def backoff_ms(failures: int, *, first_ms: int, max_ms: int, random: float) -> int:
    """Milliseconds to wait after the `failures`-th failure in a row (from 1): doubles up to `max_ms`, with ±20 % jitter from
    `random` in [0, 1), so that many clients do not retry at once. As Kafka's ExponentialBackoff.
    """
    wait_ms = min(first_ms << min(failures - 1, _DOUBLINGS_MAX), max(first_ms, max_ms))
    return round(wait_ms * (1 + JITTER * (2 * random - 1)))
