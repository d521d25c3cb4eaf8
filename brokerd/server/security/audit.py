"""The audit trail: refused requests, and changes of topics, each with its principal. Lines of the logger `brokerd.audit`.

A change always has its line: each costs its caller an fsync. Of refusals a principal, or a stranger's host, has LINES_MAX lines in
WINDOW_MS; further ones are counted, and the count is written when the window ends. No text of a caller is written as it came: it is
shortened, and its control characters are escaped. Credentials never come here.
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
_CHARACTERS_MAX = 1_000  # more than the longest name of a topic, setting and value together


class _Window:
    """The lines about refusals of one caller since `began_ms`."""

    __slots__ = ("began_ms", "lines", "suppressed")

    def __init__(self, began_ms: int) -> None:
        self.began_ms = began_ms
        self.lines = 0
        self.suppressed = 0


class Audit:
    """The trail of one broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: OrderedDict[str, _Window] = OrderedDict()  # oldest first

    def refused(self, who: str, what: str) -> None:
        """Writes or counts that a request was refused. `who`: a principal, or a stranger's address; `what`: the reason."""
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
        _write(logging.WARNING, who, f"refused: {what}")

    def changed(self, who: str, peer: str, what: str) -> None:
        """Writes that a call from `peer` has changed a topic or its records."""
        _write(logging.INFO, who, f"{what} (from {peer})")

    def reloaded(self, what: str) -> None:
        """Writes that certificates and the auth file were read again. Not limited: the operator decides how often that happens."""
        logger.info("read again: %s", plain_text(what, _CHARACTERS_MAX))

    def end(self) -> None:
        """Writes the counts of all windows that have not ended."""
        while self._windows:
            self._end_oldest()

    def _end_oldest(self) -> None:
        who, window = self._windows.popitem(last=False)
        if window.suppressed:
            _write(logging.WARNING, who, f"refused: {window.suppressed} more requests")


def _write(level: int, who: str, what: str) -> None:
    logger.log(level, "%s %s", plain_text(who, _CHARACTERS_MAX), plain_text(what, _CHARACTERS_MAX))
