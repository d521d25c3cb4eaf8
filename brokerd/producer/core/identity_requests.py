"""Times the requests for a producer id or a raised epoch: one at a time, with back-off. idempotence.py decides what to request.
Pure.
"""

from __future__ import annotations

import random

from brokerd.backoff import backoff_ms
from brokerd.config.client import ProducerConfig


class IdentityRequests:
    """The requests of one producer."""

    __slots__ = ("_config", "_failures", "_rng", "is_under_way", "not_before_ms")

    def __init__(self, config: ProducerConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self._failures = 0
        self.is_under_way = False
        self.not_before_ms = 0

    def on_response(self) -> None:
        """Notes that the request was granted."""
        self.is_under_way = False
        self._failures = 0

    def on_failure(self, now_ms: int) -> None:
        """Notes that the request has failed."""
        self.is_under_way = False
        self._failures += 1
        config = self._config
        self.not_before_ms = now_ms + backoff_ms(
            self._failures, first_ms=config.retry_backoff_ms, max_ms=config.retry_backoff_max_ms, random=self._rng.random()
        )
