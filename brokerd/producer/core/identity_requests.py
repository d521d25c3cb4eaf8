"""When to ask for a producer id or a raised epoch: one request at a time, with back-off. What is asked for is decided in
idempotence.py. Pure."""

from __future__ import annotations

import random

from brokerd.backoff import backoff_ms
from brokerd.config.client import ProducerConfig


class IdentityRequests:
    """State of one producer's requests."""

    __slots__ = ("_config", "_failures", "_rng", "is_under_way", "not_before_ms")

    def __init__(self, config: ProducerConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self._failures = 0
        self.is_under_way = False
        self.not_before_ms = 0

    def on_response(self) -> None:
        """It was granted."""
        self.is_under_way = False
        self._failures = 0

    def on_failure(self, now_ms: int) -> None:
        """It was not."""
        self.is_under_way = False
        self._failures += 1
        config = self._config
        self.not_before_ms = now_ms + backoff_ms(
            self._failures, first_ms=config.retry_backoff_ms, max_ms=config.retry_backoff_max_ms, random=self._rng.random()
        )
