"""The ends of a log that somebody may wait for, and which of them an event has moved."""

from __future__ import annotations

import enum


class LogEnd(enum.Enum):
    """Consumers wait for the high watermark or the last stable offset, followers for the log end; a log start that moves is for
    whoever waits below it.
    """

    LOG_START = "log start"
    LAST_STABLE_OFFSET = "last stable offset"
    HIGH_WATERMARK = "high watermark"
    LOG_END = "log end"


Moved = tuple[LogEnd, ...]  # by one event; whoever waits for one of them is to be woken

NOTHING_MOVED: Moved = ()
LOG_END_MOVED: Moved = (LogEnd.LOG_END,)
