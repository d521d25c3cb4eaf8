"""Whether the disk of a data directory refuses what is appended, since it is full or cannot be written, or fails to sync or read:
said once when that begins, and once when it is over.
"""

from __future__ import annotations

import logging

from brokerd.clock import Clock

logger = logging.getLogger(__name__)

_LASTING_MS = 5_000
_QUIET_MS = 5_000  # on a full disk a few bytes fit now and then


class Refusals:
    """The refusals of one data directory."""

    def __init__(self, directory: str, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._last_ms = 0
        self.since_ms: int | None = None  # on the monotonic clock; None = appends are taken

    @property
    def is_lasting(self) -> bool:
        """True if the disk has refused again after some seconds: whoever can do without it does. Once is not enough: nothing ends
        a refusal sooner."""
        return self.since_ms is not None and self._last_ms - self.since_ms >= _LASTING_MS

    def refused(self, error: OSError) -> None:
        """The disk has refused an append, a sync, or a read. In any thread."""
        self._last_ms = self._clock.monotonic_ms()
        if self.since_ms is None:
            self.since_ms = self._last_ms
            text = "data.dir %s: the disk refuses (%s): make room, or repair it"
            logger.error(text, self._directory, error.strerror)

    def worked(self) -> None:
        """The disk has taken something. In any thread."""
        if self.since_ms is not None and self._clock.monotonic_ms() - self._last_ms >= _QUIET_MS:
            self.since_ms = None
            logger.info("data.dir %s: the disk takes appends again", self._directory)
