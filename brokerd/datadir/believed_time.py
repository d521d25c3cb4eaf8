"""The wall time used for retention, the expiry of producers and the timestamps of appends. Pure: both clocks are passed in.

A wall clock may be wrong: a machine boots in 1970 and is corrected, or boots a month ahead, or was suspended. A clock that
advances steadily is believed. One that is far from the time believed before, or last seen by the data directory, is approached
gradually: the believed time moves towards it at the pace of real time, or faster so as to reach it within a day. So a wrong clock
deletes little before somebody notices, and a right one lags by a day at most.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

SLACK_MS = 300_000  # ordinary clock adjustments are smaller
START_SLACK_MS = 3_600_000  # allowance for the time a broker was off
_MADE_UP_WITHIN_MS = 86_400_000


class BelievedTime:
    """The believed time; see the module docstring. `seen_wall_ms`: the last time known to the data directory, or None."""

    def __init__(self, *, now_ms: int, wall_ms: int, seen_wall_ms: int | None) -> None:
        self._opened_ms = now_ms
        self._at_ms = now_ms
        self._believed_ms = wall_ms
        self._rate = 0.0  # catch-up per elapsed millisecond; 0 = the wall clock is believed
        self._is_said = True
        self.gap_ms = 0  # how far the wall clock is ahead of the believed time
        if seen_wall_ms is not None and abs(wall_ms - seen_wall_ms) > START_SLACK_MS:
            self._believed_ms = seen_wall_ms
            self._distrust(wall_ms)

    def believe(self, *, now_ms: int, wall_ms: int) -> int:
        """The believed time now, in ms since 1970."""
        elapsed = max(now_ms - self._at_ms, 0)
        self._at_ms = max(now_ms, self._at_ms)
        self._believed_ms += elapsed
        gap = wall_ms - self._believed_ms
        made_up = min(abs(gap), int(elapsed * self._rate))
        self._believed_ms += made_up if gap > 0 else -made_up
        if abs(wall_ms - self._believed_ms) <= SLACK_MS:
            self._believed_ms, self._rate, self.gap_ms = wall_ms, 0.0, 0
        elif self._rate == 0.0 or abs(gap) > abs(self.gap_ms) + SLACK_MS:
            self._distrust(wall_ms)
        else:
            self.gap_ms = wall_ms - self._believed_ms
        return self._believed_ms

    def stamp(self, *, now_ms: int, wall_ms: int) -> int:
        """The timestamp of an append: the wall clock's time, unless it is distrusted for being behind. A record stamped too old
        would be deleted too soon."""
        return wall_ms if self.gap_ms >= 0 else max(wall_ms, self._believed_ms + now_ms - self._at_ms)

    def earliest_append(self, *, now_ms: int) -> int:
        """A lower bound of the true time of appends since the start, whatever their timestamps."""
        return self._believed_ms - (now_ms - self._opened_ms) - SLACK_MS

    def take_news(self) -> str:
        """A message about the clock, once; otherwise ""."""
        if self._is_said:
            return ""
        self._is_said = True
        side = "ahead of" if self.gap_ms > 0 else "behind"
        gap, lag = (timedelta(milliseconds=ms) for ms in (abs(self.gap_ms), min(abs(self.gap_ms), _MADE_UP_WITHIN_MS)))
        return (
            f"the wall clock says {_shown(self._believed_ms + self.gap_ms)}, {gap} {side} the believed time, "
            f"{_shown(self._believed_ms)}: retention and the expiry of producers approach it gradually, reaching it in {lag}; "
            "correct the clock before then if it is wrong"
        )

    def _distrust(self, wall_ms: int) -> None:
        self.gap_ms = wall_ms - self._believed_ms
        self._rate = max(abs(self.gap_ms) / _MADE_UP_WITHIN_MS, 1.0)
        self._is_said = False


def _shown(wall_ms: int) -> str:
    try:
        return datetime.fromtimestamp(wall_ms // 1_000, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return f"{wall_ms} ms"
