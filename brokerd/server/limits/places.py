"""Places that callers take and give back, shared by owner; and changes, which keep theirs when their caller has gone.

A cancelled call gives its stream back, so `max.streams.per.connection` does not count it any more. A change goes on to its end all
the same, with its request, and may wait long for its turn: without a limit, calls that are cancelled at once would fill the memory,
and the line in front of everybody's changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from brokerd.errors import ResourceExhaustedError
from brokerd.server.failures import to_its_end
from brokerd.sharing import CALLER, Shares

T = TypeVar("T")

_CHANGES_MAX_BYTES = 67_108_864
_CHANGE_BYTES = 16_384  # of each, besides its request


@contextlib.contextmanager
def place(shares: Shares, owner: str, what: str, why: str = "", *, units: int = 1) -> Iterator[None]:
    """Holds units of a limit. Raises ResourceExhaustedError if the owner may have no more."""
    if not shares.has_room(owner, units):
        raise ResourceExhaustedError(f"{shares.total} {what}, {shares.count(owner)} of them of '{owner}'{why}: try again later")
    shares.add(owner, units)
    try:
        yield
    finally:
        shares.add(owner, -units)


class Changes:
    """The changes under way, by the bytes of their requests."""

    def __init__(self) -> None:
        self.shares = Shares(_CHANGES_MAX_BYTES)

    async def run(self, change: Callable[[], Coroutine[Any, Any, T]], size_bytes: int = 0) -> T:
        """Makes a change of the current caller, to its end even if the caller stops waiting. Returns or raises what it does. Raises
        ResourceExhaustedError, and does nothing, if its caller has too many under way."""
        return await to_its_end(self._run(change, size_bytes))

    async def _run(self, change: Callable[[], Coroutine[Any, Any, T]], size_bytes: int) -> T:
        with place(self.shares, CALLER.get().owner, "bytes of changes are under way", units=_CHANGE_BYTES + size_bytes):
            return await change()
