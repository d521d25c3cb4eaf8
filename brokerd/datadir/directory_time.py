"""The wall time that a data directory goes by (believed_time.py), and what the directory remembers of it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable

from brokerd.clock import Clock
from brokerd.datadir.believed_time import BelievedTime
from brokerd.datadir.node_state import read_clock, write_clock
from brokerd.partition.partition_log import PartitionLog
from brokerd.storage.files import Files

logger = logging.getLogger(__name__)


class DirectoryTime:
    """Lives as long as its data directory is open."""

    def __init__(self, files: Files, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._time = BelievedTime(now_ms=clock.monotonic_ms(), wall_ms=clock.wall_ms(), seen_wall_ms=None)

    def open(self, logs: Iterable[PartitionLog]) -> None:
        """Goes by what the directory saw last: as it was noted, or else the newest stamp in its `logs`."""
        seen = read_clock(self._files)
        if seen is None:
            stamps = [segment.max_append_timestamp for log in logs for segment in log.segments]
            seen = max((stamp for stamp in stamps if stamp >= 0), default=None)
        self._time = BelievedTime(now_ms=self._clock.monotonic_ms(), wall_ms=self._clock.wall_ms(), seen_wall_ms=seen)

    def stamp_wall_ms(self) -> int:
        """The time that an append is stamped with, ms."""
        wall_ms = self._clock.wall_ms()
        return wall_ms if self._time.gap_ms >= 0 else self._time.stamp(now_ms=self._clock.monotonic_ms(), wall_ms=wall_ms)

    def believed_wall_ms(self, now_wall_ms: int) -> int:
        """The time that retention and the expiry of producers go by; a warning says if it is not the wall clock's."""
        believed_ms = self._time.believe(now_ms=self._clock.monotonic_ms(), wall_ms=now_wall_ms)
        news = self._time.take_news()
        if news:
            logger.warning("%s", news)
        return believed_ms

    def earliest_append_ms(self) -> int:
        """A lower bound of the true time of appends since the start, whatever their timestamps."""
        return self._time.earliest_append(now_ms=self._clock.monotonic_ms())

    def note(self, believed_ms: int) -> None:
        """Remembers it in the directory; on a full disk an older one must do."""
        with contextlib.suppress(OSError):
            write_clock(self._files, believed_ms)
