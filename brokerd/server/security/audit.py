"""Who was refused what, and who changed which topic: lines of the logger `brokerd.audit`, for whoever has to look back.

A principal, or a stranger's host, has so many lines in a while; what comes beyond is counted, and the count written once the while
is over. Nothing that a caller sends stands in a line as it came: texts are cut, and control characters escaped. Credentials never
come here.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from brokerd.clock import Clock
from brokerd.wire.texts import plain_text

logger = logging.getLogger("brokerd.audit")

LINES_MAX = 20
WINDOW_MS = 10_000
_CALLERS_MAX = 1_000
_CHARACTERS_MAX = 400


class _Window:
    """The lines of one caller since `began_ms`."""

    __slots__ = ("began_ms", "lines", "suppressed")

    def __init__(self, began_ms: int) -> None:
        self.began_ms = began_ms
        self.lines = 0
        self.suppressed = 0


class Audit:
    """The trail of one broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: OrderedDict[str, _Window] = OrderedDict()  # by when they began

    def refused(self, who: str, what: str) -> None:
        """`who`: a principal, or a stranger's address."""
        self._write(logging.WARNING, who, f"refused: {what}")

    def changed(self, who: str, peer: str, what: str) -> None:
        """A topic or its records are no longer as they were, by a call from `peer`."""
        self._write(logging.INFO, who, f"{what} (from {peer})")

    def reloaded(self, what: str) -> None:
        """Certificates and the auth file were read again; how often that happens is the operator's business."""
        logger.info("read again: %s", plain_text(what, _CHARACTERS_MAX))

    def end(self) -> None:
        """Writes the counts that are still open."""
        while self._windows:
            self._end_oldest()

    def _write(self, level: int, who: str, what: str) -> None:
        now_ms = self._clock.monotonic_ms()
        while self._windows and now_ms - next(iter(self._windows.values())).began_ms >= WINDOW_MS:
            self._end_oldest()
        window = self._windows.get(who)
        if window is None:
            if len(self._windows) >= _CALLERS_MAX:
                self._end_oldest()
            window = self._windows[who] = _Window(now_ms)
        if window.lines >= LINES_MAX:
            window.suppressed += 1
            return
        window.lines += 1
        logger.log(level, "%s %s", plain_text(who, _CHARACTERS_MAX), plain_text(what, _CHARACTERS_MAX))

    def _end_oldest(self) -> None:
        who, window = self._windows.popitem(last=False)
        if window.suppressed:
            logger.warning("%s %d more lines like these were not written", plain_text(who, _CHARACTERS_MAX), window.suppressed)
