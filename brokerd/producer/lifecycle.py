"""Closes all producers of this process at its end, within the time limit of one, and tells them of a fork."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Protocol

from brokerd.clock import Clock, SystemClock
from brokerd.process import Open

logger = logging.getLogger(__name__)

_EXIT_TIMEOUT_MS = 10_000


class Closing(Protocol):
    """A producer that can be closed."""

    @property
    def abandoned_count(self) -> int:
        """How many records close() gave up because its time was over."""

    def flush(self, timeout: float | None = None) -> None:
        """Sends everything, and awaits it at most `timeout` seconds. Raises TimeoutError."""

    def close(self, timeout: float | None = None) -> None:
        """Sends and awaits everything, at most `timeout` seconds."""


class Living(Closing, Protocol):
    """A producer as this module sees it."""

    def after_fork(self) -> None:
        """Called in the child process after a fork."""


def close_each(producers: Sequence[Closing], clock: Clock) -> None:
    """Closes all within the time of one: they send side by side, and are waited for in turn."""
    for producer in producers:
        with contextlib.suppress(TimeoutError):
            producer.flush(0)
    deadline_ms = clock.monotonic_ms() + _EXIT_TIMEOUT_MS
    for producer in producers:
        try:
            producer.close(max(0, deadline_ms - clock.monotonic_ms()) / 1000)
        except KeyboardInterrupt:  # a second interrupt: do not wait any longer
            deadline_ms = clock.monotonic_ms()
            producer.close(0)
        if producer.abandoned_count:  # by now no code will look at their futures
            logger.warning(
                "%d record(s) were given up because the process ended: no broker has acknowledged them. Call flush() or close() "
                "before the end, and look at the futures that send() returns",
                producer.abandoned_count,
            )


open_producers: Open[Living] = Open(lambda producers: close_each(producers, SystemClock()), lambda producer: producer.after_fork())
