"""Signs of life of executions; which has gone without one for too long, or is too old whatever signs it gives. Times are monotonic,
ms."""

from __future__ import annotations

from typing import NamedTuple

from brokerd.transaction.model import Member


class ExecutionKey(NamedTuple):
    """Names one execution of one version."""

    transactional_id: str
    version: int
    execution_id: str


class _Life:
    """An execution that has open members."""

    __slots__ = ("last_ms", "members", "opened_ms", "timeout_ms")

    def __init__(self, now_ms: int) -> None:
        self.opened_ms = now_ms
        self.members = 0
        self.timeout_ms = 0  # the longest that a member asked for
        self.last_ms = 0  # when a member last gave a sign


def key_of(transactional_id: str, member: Member) -> ExecutionKey:
    """The execution that a member belongs to."""
    return ExecutionKey(transactional_id, member.execution.version, member.execution.execution_id)


class Executions:
    """All that have open members. A sign of one member counts for all of its execution; none lives for longer than `age_max_ms`."""

    def __init__(self, age_max_ms: int) -> None:
        self._age_max_ms = age_max_ms
        self._lives: dict[ExecutionKey, _Life] = {}

    def add(self, key: ExecutionKey, timeout_ms: int, now_ms: int) -> None:
        """A member was opened."""
        life = self._lives.get(key)
        if life is None:
            life = self._lives[key] = _Life(now_ms)
        life.members += 1
        life.timeout_ms = max(life.timeout_ms, timeout_ms)
        life.last_ms = now_ms

    def remove(self, key: ExecutionKey) -> None:
        """A member has ended."""
        life = self._lives[key]
        life.members -= 1
        if not life.members:
            del self._lives[key]

    def renew(self, key: ExecutionKey, now_ms: int) -> None:
        """A member gave a sign of life."""
        self._lives[key].last_ms = now_ms

    def expires_at(self, key: ExecutionKey) -> int:
        """When it expires without another sign, ms."""
        return self._end_of(self._lives[key])

    def is_too_old(self, key: ExecutionKey, now_ms: int) -> bool:
        """True if it expires by its age."""
        return now_ms - self._lives[key].opened_ms >= self._age_max_ms

    def _end_of(self, life: _Life) -> int:
        return min(life.last_ms + life.timeout_ms, life.opened_ms + self._age_max_ms)

    def is_expired(self, key: ExecutionKey, now_ms: int) -> bool:
        """True if it has open members and is too old, or none of them has given a sign for longer than its time-out."""
        return key in self._lives and now_ms >= self.expires_at(key)

    def expired(self, now_ms: int) -> list[ExecutionKey]:
        """Those that are expired."""
        return [key for key, life in self._lives.items() if now_ms >= self._end_of(life)]
