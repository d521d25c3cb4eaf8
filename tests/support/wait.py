"""Waiting for a condition with a deadline: the only place in the tests that lets real time pass on purpose."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# The deadline of every wait in the tests. It costs nothing unless a wait fails, so it is long enough for slow or busy machines.
DEADLINE_S = 120.0
_PAUSE_S = 0.002


def wait_until(condition: Callable[[], bool], *, deadline_s: float = DEADLINE_S, pause_s: float = _PAUSE_S, what: str = "") -> None:
    """Returns once `condition` holds, checked every `pause_s`. Raises AssertionError at the deadline."""
    end = time.monotonic() + deadline_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what or 'the condition'}"
        pause.wait(pause_s)
