"""The log time: the clock for retention and for the expiry of producers and groups. LogTime computes it from the machine's clocks;
DirectoryTime keeps the log time of an open data directory in a file.

The log time starts at the wall clock's time and then counts elapsed time. A wall clock may be wrong: a machine boots in 1970 or a
month ahead, and is corrected later. While the machine is up, asleep or not, the boot clock measures elapsed time, even across
broker restarts. So the log time does not follow jumps of the wall clock, and a batch's age does not depend on the wall clock at its
append: the header holds the wall clock's time and how far that was ahead of the log time.

Only the wall clock shows how long the machine was off. Up to an hour is counted at once. A longer pause is counted gradually:
within a day, but at most a month per day. So if the clock is wrong after a boot, retention deletes little before somebody notices.
Correcting the clock, even at a later boot, takes back the part not yet counted. If the clock was behind before the machine went
off, and is corrected at the next boot, only the rest of the difference counts as a pause.

The nodes of a cluster share one log time: a joining node adopts that of a live node before it leads.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from brokerd.clock import Clock
from brokerd.config.settings import INT32_MAX
from brokerd.partition.partition import Partition
from brokerd.steps import Job
from brokerd.storage.checksummed_file import DocumentError, DocumentKind, read_json, write_json
from brokerd.storage.files import Files
from brokerd.storage.names import CLOCK

logger = logging.getLogger(__name__)

CLOCK_KIND = DocumentKind("clock", 1)
SLACK_MS = 300_000  # the log time follows smaller changes of the wall clock, which are ordinary adjustments
START_SLACK_MS = 3_600_000  # a pause up to this is counted at once
_MADE_UP_WITHIN_MS = 86_400_000
_RATE_MAX = 30  # a longer pause is counted at up to a month per day
_FIRST_MS = 1_577_836_800_000  # 2020; an earlier wall clock is certainly wrong


class NotedTime(NamedTuple):
    """The time as recorded in the data directory, in ms."""

    wall_ms: int
    ahead_ms: int  # how far the wall clock is ahead of the log time
    owed_ms: int  # the part of `ahead_ms` that is a pause not yet counted
    boot_id: str  # of the machine's boot; "" = unknown
    boot_ms: int


class Owed(NamedTuple):
    """The part of a pause not counted yet, and how much of it to count per elapsed millisecond."""

    ms: int
    rate: float


class LogTime:
    """The log time; see the module docstring. Pure: reads no clock."""

    def __init__(self, *, boot_id: str, boot_ms: int, wall_ms: int, noted: NotedTime | None) -> None:
        self._boot_id = boot_id
        self._boot_ms = boot_ms
        self._wall_ms = wall_ms
        self._owed_ms = 0
        self._rate = 0.0  # owed milliseconds counted per elapsed millisecond
        self._news = ""
        self.ahead_ms = 0
        if noted is not None:
            self._wall_ms, self.ahead_ms, self._owed_ms = noted.wall_ms, noted.ahead_ms, noted.owed_ms
            if boot_id and boot_id == noted.boot_id and boot_ms >= noted.boot_ms:
                self._boot_ms = noted.boot_ms
            else:
                self._pause(wall_ms)
            self._rate = max(min(self._owed_ms / _MADE_UP_WITHIN_MS, _RATE_MAX), 1.0)
        self.now(boot_ms=boot_ms, wall_ms=wall_ms)

    def now(self, *, boot_ms: int, wall_ms: int) -> int:
        """The log time now, in ms."""
        elapsed = max(boot_ms - self._boot_ms, 0)
        self._boot_ms += elapsed
        paid_ms = min(int(elapsed * self._rate), self._owed_ms)
        self._owed_ms -= paid_ms
        self.ahead_ms -= paid_ms
        jump_ms = wall_ms - self._wall_ms - elapsed
        self._wall_ms = wall_ms
        if abs(jump_ms) > SLACK_MS:
            self.ahead_ms += jump_ms
            self._owed_ms = max(self._owed_ms + min(jump_ms, 0), 0)
            self._say(jump_ms, "do not count that")
        return wall_ms - self.ahead_ms

    @property
    def owed(self) -> Owed:
        """The part of a pause not counted yet."""
        return Owed(self._owed_ms, self._rate)

    def take_over(self, now_ms: int, owed: Owed) -> None:
        """Adopts another node's log time. Call `now` first."""
        self.ahead_ms = self._wall_ms - now_ms
        self._owed_ms, self._rate = owed

    def noted(self) -> NotedTime:
        """The state to record for the next start."""
        return NotedTime(self._wall_ms, self.ahead_ms, self._owed_ms, self._boot_id, self._boot_ms)

    def take_news(self) -> str:
        """A message about the clock, once; otherwise ""."""
        news, self._news = self._news, ""
        return news

    def _pause(self, wall_ms: int) -> None:
        """Accounts for the time that the machine was off since the last record, measured by the wall clock."""
        off_ms = wall_ms - self._wall_ms
        is_from_the_first = max(self._wall_ms, self._wall_ms - self.ahead_ms) < _FIRST_MS  # clock and log time were both behind
        behind_ms = off_ms if is_from_the_first else self._owed_ms - self.ahead_ms
        self._wall_ms = wall_ms
        if off_ms > START_SLACK_MS and behind_ms > 0:  # the clock was behind and has been corrected: exclude the correction
            corrected_ms = min(behind_ms, off_ms)
            self.ahead_ms += corrected_ms
            off_ms -= corrected_ms
            self._say(corrected_ms, "do not count that")
        if off_ms < 0:  # the clock is behind: the length of the pause is unknown
            self.ahead_ms += off_ms
            self._owed_ms = max(self._owed_ms + off_ms, 0)
        elif off_ms > START_SLACK_MS:
            self.ahead_ms += off_ms
            self._owed_ms += off_ms
        if off_ms < -SLACK_MS:
            self._say(off_ms, "do not count that")
        elif off_ms > START_SLACK_MS:
            within_ms = max(min(off_ms, _MADE_UP_WITHIN_MS), off_ms // _RATE_MAX)
            self._say(off_ms, f"take that over gradually, within {timedelta(milliseconds=within_ms)}")

    def _say(self, jump_ms: int, what: str) -> None:
        side = "ahead of" if jump_ms > 0 else "behind"
        self._news = (
            f"the wall clock says {_shown(self._wall_ms)}, {timedelta(milliseconds=abs(jump_ms))} {side} what was expected: "
            f"retention and the expiry of producers and groups {what}; correct the clock if it is wrong"
        )


def _shown(wall_ms: int) -> str:
    try:
        return datetime.fromtimestamp(wall_ms // 1_000, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return f"{wall_ms} ms"


class DirectoryTime:
    """The log time of an open data directory."""

    def __init__(self, files: Files, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._time = self._begin(None)

    def open(self, logs: Iterable[Partition]) -> None:
        """Starts from the time recorded in the directory or, if the file is missing or damaged, from the newest batch in `logs`.
        Raises OSError."""
        noted = read_clock(self._files)
        if noted is None:
            newest = max((segment.max_log_time for log in logs for segment in log.segments), default=-1)
            noted = NotedTime(newest, 0, 0, "", 0) if newest >= 0 else None
        self._time = self._begin(noted)

    def stamp_ms(self) -> tuple[int, int]:
        """The wall clock's time for an append, and how far it is ahead of the log time: ms, in whole seconds as in a batch header.
        If the latter exceeds the header's 32 bits, it is clamped, and the time is adjusted to match the log time."""
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

    @property
    def owed(self) -> Owed:
        """The part of a pause not counted yet."""
        return self._time.owed

    def take_over(self, log_time_ms: int, owed: Owed) -> None:
        """Adopts the cluster's log time unless this node's differs by at most SLACK_MS. A leader stamps batches, and the next
        leader judges their age: with separate log times, it could delete batches that were just written."""
        difference_ms = log_time_ms - self.now_ms()
        if abs(difference_ms) > SLACK_MS:
            self._time.take_over(log_time_ms, owed)
            side = "ahead of" if difference_ms > 0 else "behind"
            logger.warning(
                "the cluster's log time is %s %s this node's: retention and the expiry of producers and groups go by the cluster's",
                timedelta(milliseconds=abs(difference_ms)),
                side,
            )

    def note(self) -> Job:
        """A job that records the time of this call. Ignores errors: on a full disk the older record stays."""
        noted = self._time.noted()

        def write() -> None:
            with contextlib.suppress(OSError):
                write_json(self._files, CLOCK, CLOCK_KIND, noted._asdict())

        return write

    def _begin(self, noted: NotedTime | None) -> LogTime:
        clock = self._clock
        return LogTime(boot_id=clock.boot_id(), boot_ms=clock.boot_ms(), wall_ms=clock.wall_ms(), noted=noted)


def read_clock(files: Files) -> NotedTime | None:
    """The recorded time; None if the file is missing or damaged. Raises OSError, DataDirectoryError."""
    try:
        noted = read_json(files, CLOCK, CLOCK_KIND)
        times = {name: int(noted[name]) for name in ("wall_ms", "ahead_ms", "owed_ms", "boot_ms")}
        return NotedTime(**times, boot_id=str(noted["boot_id"]))
    except (FileNotFoundError, DocumentError):
        return None
