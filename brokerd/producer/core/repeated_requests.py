"""Times the requests of one kind: one at a time, with back-off after a failure. Pure."""

from __future__ import annotations

import random

from brokerd.backoff import backoff_ms
from brokerd.config.client import ProducerConfig
from brokerd.producer.core.accumulator import NEVER_MS
from brokerd.producer.core.commands import Command


class RepeatedRequests:
    """The requests of one kind of one producer."""

    __slots__ = ("_config", "_failures", "_not_before_ms", "_rng", "is_under_way")

    def __init__(self, config: ProducerConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self._failures = 0
        self._not_before_ms = 0
        self.is_under_way = False

    def step(self, commands: list[Command], request: Command, now_ms: int) -> int:
        """Adds the request to the commands if it may be sent now; returns the time of the next step."""
        if self.is_under_way:
            return NEVER_MS
        if now_ms < self._not_before_ms:
            return self._not_before_ms
        self.is_under_way = True
        commands.append(request)
        return NEVER_MS

    def on_success(self, next_ms: int) -> None:
        """Notes that the request was granted; the next one is not sent before `next_ms`."""
        self.is_under_way = False
        self._failures = 0
        self._not_before_ms = next_ms

    def on_failure(self, now_ms: int) -> None:
        """Notes that the request has failed."""
        self.is_under_way = False
        self._failures += 1
        config = self._config
        self._not_before_ms = now_ms + backoff_ms(
            self._failures, first_ms=config.retry_backoff_ms, max_ms=config.retry_backoff_max_ms, random=self._rng.random()
        )
