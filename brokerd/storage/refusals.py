"""Tracks whether the disk of a data directory refuses I/O: it is full, not writable, or fails to sync or read. Logs once when that
begins and once when it ends.
"""

from __future__ import annotations

import logging

from brokerd.clock import Clock

logger = logging.getLogger(__name__)

_LASTING_MS = 5_000
_QUIET_MS = 5_000  # a full disk still accepts a few bytes now and then


class Refusals:
    """The refusals of one data directory."""

    def __init__(self, directory: str, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._last_ms = 0
        self.since_ms: int | None = None  # of the first refusal, monotonic clock; None = the disk accepts appends

    @property
    def is_lasting(self) -> bool:
        """True if the disk refused again at least 5 s after the first refusal: the cluster then avoids this disk if it can. One
        refusal is not enough, since none ends before 5 s."""
        return self.since_ms is not None and self._last_ms - self.since_ms >= _LASTING_MS

    def refused(self, error: OSError) -> None:
        """Records a refused append, sync or read. Call it from any thread."""
        self._last_ms = self._clock.monotonic_ms()
        if self.since_ms is None:
            self.since_ms = self._last_ms
            text = "data.dir %s: the disk refuses (%s): make room, or repair it"
            logger.error(text, self._directory, error.strerror)

    def worked(self) -> None:
        """Records a successful write. Call it from any thread."""
        if self.since_ms is not None and self._clock.monotonic_ms() - self._last_ms >= _QUIET_MS:
            self.since_ms = None
            logger.info("data.dir %s: the disk takes appends again", self._directory)
