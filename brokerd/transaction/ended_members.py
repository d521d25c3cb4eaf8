"""Members that ended before their version was committed, so that none begins a second time: the newest of them."""

from __future__ import annotations

ENDED_MEMBERS_MAX = 50_000


class EndedMembers:
    """Member ids of all transactional ids, those that ended longest ago forgotten first.

    A late repetition of a request whose member is forgotten opens a new member, with a producer id of its own: nothing is written
    twice, and that member expires.
    """

    def __init__(self, limit: int = ENDED_MEMBERS_MAX) -> None:
        self._limit = limit
        self._ids: dict[tuple[str, bytes], None] = {}

    def add(self, transactional_id: str, member_id: bytes) -> None:
        """It has ended."""
        self._ids[transactional_id, member_id] = None
        if len(self._ids) > self._limit:
            del self._ids[next(iter(self._ids))]

    def __contains__(self, key: tuple[str, bytes]) -> bool:
        return key in self._ids
