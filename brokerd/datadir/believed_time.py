"""Which wall time retention, the expiry of producers and the stamps of appends go by. Pure: it is handed both clocks.

A wall clock may be wrong: a machine boots in 1970 and is corrected, or boots a month ahead, or has slept. A clock that goes its
even way is believed. One that is far from what was believed before, or from what the data directory saw last, is believed slowly:
the time that is believed goes towards it, as fast as time passes, or faster, so as to be there within a day. So a wrong clock
deletes little before somebody sees to it, and a right one lags for a day at most.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

SLACK_MS = 300_000  # clocks are slewed and set by as much, and nobody minds
START_SLACK_MS = 3_600_000  # a broker may be off for so long
_MADE_UP_WITHIN_MS = 86_400_000


class BelievedTime:
    """See the module. `seen_wall_ms`: the last time that the data directory knows of; None if it knows none."""

    def __init__(self, *, now_ms: int, wall_ms: int, seen_wall_ms: int | None) -> None:
        self._opened_ms = now_ms
        self._at_ms = now_ms
        self._believed_ms = wall_ms
        self._rate = 0.0  # of making up, per millisecond that passes; 0 = the wall clock is believed
        self._is_said = True
        self.gap_ms = 0  # how far the wall clock is ahead of what is believed
        if seen_wall_ms is not None and abs(wall_ms - seen_wall_ms) > START_SLACK_MS:
            self._believed_ms = seen_wall_ms
            self._distrust(wall_ms)

    def believe(self, *, now_ms: int, wall_ms: int) -> int:
        """The time that is believed now, ms since 1970."""
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
        """The time of an append: the wall clock's, but for one that is distrusted for being behind. What is stamped too old would
        be deleted too soon."""
        return wall_ms if self.gap_ms >= 0 else max(wall_ms, self._believed_ms + now_ms - self._at_ms)

    def earliest_append(self, *, now_ms: int) -> int:
        """What was appended since the start is no older than this, whatever it is stamped with."""
        return self._believed_ms - (now_ms - self._opened_ms) - SLACK_MS

    def take_news(self) -> str:
        """What is to be said of the clock; "" if nothing is, or if it was said already."""
        if self._is_said:
            return ""
        self._is_said = True
        side = "ahead of" if self.gap_ms > 0 else "behind"
        gap, lag = (timedelta(milliseconds=ms) for ms in (abs(self.gap_ms), min(abs(self.gap_ms), _MADE_UP_WITHIN_MS)))
        return (
            f"the wall clock says {_shown(self._believed_ms + self.gap_ms)}, {gap} {side} what is believed, "
            f"{_shown(self._believed_ms)}: retention and the expiry of producers believe it slowly, wholly in {lag}; "
            "set it right before then if it is wrong"
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
