"""The audit trail: refused requests, and changes of topics, records, groups and transactions, each with its principal, as lines of
the logger `brokerd.audit`.

Every change has its line, even if its outcome is unknown; an fsync per change limits their number. A request that changes nothing
has none. A principal, or an unauthenticated host, gets LINES_MAX lines about refusals per WINDOW_MS; further refusals are counted,
and the count is written when the window ends. Text from callers is shortened and its control characters escaped. Credentials never
appear.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from brokerd.clock import Clock
from brokerd.errors import Fate, WireError
from brokerd.sharing import CALLER
from brokerd.wire.texts import plain_text

logger = logging.getLogger("brokerd.audit")

LINES_MAX = 20
WINDOW_MS = 10_000
_CALLERS_MAX = 1_000
_CHARACTERS_MAX = 1_000  # more than the longest topic, setting and value together


def host_of(peer: str) -> str:
    """The host of a call's peer, such as ipv6:[::1]. Callers without a principal of their own are counted by host."""
    return peer.rpartition(":")[0] or peer


@dataclass(slots=True)
class _Window:
    """The lines about one caller's refusals since `began_ms`."""

    began_ms: int
    lines: int = 0
    suppressed: int = 0


@dataclass(slots=True)
class Change:
    """A change. The body that makes it may refine `what` afterwards; "" means that nothing has changed."""

    what: str


class Audit:
    """The audit trail of one broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: OrderedDict[str, _Window] = OrderedDict()  # oldest first

    def refused(self, who: str, what: str) -> None:
        """Writes or counts a refused request. `who`: a principal, or an unauthenticated caller's address; `what`: the reason."""
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

    @contextlib.contextmanager
    def change(self, what: str) -> Iterator[Change]:
        """Writes the change that the body makes, under the current call's principal or, if all callers share one principal, its
        host. If the body fails and may have made the change, the line says "perhaps". `what` "": the body changes nothing."""
        change = Change(what)
        try:
            yield change
        except Exception as error:
            if what and (not isinstance(error, WireError) or error.fate is Fate.UNKNOWN):
                self._changed(f"perhaps {what}: {error}")
            raise
        if change.what:
            self._changed(change.what)

    def _changed(self, what: str) -> None:
        owner, peer = CALLER.get()
        _write(logging.INFO, host_of(peer) if owner == peer else owner, f"{what} (from {peer})")

    def reloaded(self, what: str) -> None:
        """Writes that certificates and the auth file were reloaded. Not limited: only the operator can cause it."""
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
