"""How long to wait before trying again: exponential with jitter. Pure; who waits is elsewhere."""

from __future__ import annotations

import random

JITTER = 0.2


def backoff_ms(first_ms: int, max_ms: int, failures: int, rng: random.Random) -> int:
    """Wait after the `failures`-th failure in a row (from 1): doubles each time up to `max_ms`, plus or minus 20 % so that
    many clients do not come back at once (Kafka's ExponentialBackoff).
    """
    wait_ms: int = min(first_ms * 2 ** min(failures - 1, 30), max(first_ms, max_ms))
    return round(wait_ms * rng.uniform(1 - JITTER, 1 + JITTER))
