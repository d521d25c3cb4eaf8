"""The log time of a data directory (log_time.py), and its file."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable

from brokerd.clock import Clock
from brokerd.config.settings import INT32_MAX
from brokerd.datadir.log_time import LogTime, NotedTime
from brokerd.datadir.node_state import read_clock, write_clock
from brokerd.partition.partition import Partition
from brokerd.steps import Job
from brokerd.storage.files import Files

logger = logging.getLogger(__name__)


class DirectoryTime:
    """The log time of an open data directory."""

    def __init__(self, files: Files, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._time = self._begin(None)

    def open(self, logs: Iterable[Partition]) -> None:
        """Starts from the time recorded in the directory or, without one, from the newest batch in `logs`."""
        noted = read_clock(self._files)
        if noted is None:
            newest = max((segment.max_log_time for log in logs for segment in log.segments), default=-1)
            noted = NotedTime(newest, 0, 0, "", 0) if newest >= 0 else None
        self._time = self._begin(noted)

    def stamp_ms(self) -> tuple[int, int]:
        """The wall clock's time for an append, and how far it is ahead of the log time: ms, in whole seconds as in a batch header.
        If the latter exceeds the header's 32 bits, it is clamped, and the former adjusted to match the log time."""
        wall_ms = self._clock.wall_ms()
        now_ms = self._time.now(boot_ms=self._clock.boot_ms(), wall_ms=wall_ms)
        ahead_s = self._time.ahead_ms // 1_000
        if abs(ahead_s) <= INT32_MAX:
            return wall_ms, 1_000 * ahead_s
        ahead_ms = 1_000 * INT32_MAX if ahead_s > 0 else -1_000 * INT32_MAX
        return now_ms + ahead_ms, ahead_ms

    def now_ms(self) -> int:
        """The log time. Logs a warning if the wall clock has jumped."""
        now_ms = self._time.now(boot_ms=self._clock.boot_ms(), wall_ms=self._clock.wall_ms())
        news = self._time.take_news()
        if news:
            logger.warning("%s", news)
        return now_ms

    def note(self) -> Job:
        """A job that records the time of this call. It ignores errors: on a full disk an older record stays."""
        noted = self._time.noted()

        def write() -> None:
            with contextlib.suppress(OSError):
                write_clock(self._files, noted)

        return write

    def _begin(self, noted: NotedTime | None) -> LogTime:
        clock = self._clock
        return LogTime(boot_id=clock.boot_id(), boot_ms=clock.boot_ms(), wall_ms=clock.wall_ms(), noted=noted)
