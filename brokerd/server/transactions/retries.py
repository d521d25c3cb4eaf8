"""When the sweep tries again to finish a commit: less and less often, so that a disk that refuses is neither asked nor logged about
all the time. Requests do not wait for it: each tries at once."""

from __future__ import annotations

from typing import NamedTuple

FIRST_MS = 10_000
MAX_MS = 60_000
_DOUBLINGS_MAX = 10


class _Failed(NamedTuple):
    """Failures in a row, and when the next attempt is due (monotonic, ms)."""

    times: int
    due_ms: int


class Retries:
    """Commits that could not be finished, by transactional id."""

    def __init__(self) -> None:
        self._failed: dict[str, _Failed] = {}

    def is_due(self, name: str, now_ms: int) -> bool:
        """True if an attempt may be made now."""
        known = self._failed.get(name)
        return known is None or now_ms >= known.due_ms

    def failed(self, name: str, now_ms: int) -> None:
        """An attempt has failed."""
        known = self._failed.get(name)
        times = known.times + 1 if known is not None else 1
        self._failed[name] = _Failed(times, now_ms + min(FIRST_MS << min(times - 1, _DOUBLINGS_MAX), MAX_MS))

    def done(self, name: str) -> None:
        """It is finished."""
        self._failed.pop(name, None)
