"""Signs of life of executions, and which has gone without one for too long. Times are monotonic, ms."""

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

    __slots__ = ("last_ms", "members", "timeout_ms")

    def __init__(self) -> None:
        self.members = 0
        self.timeout_ms = 0  # the longest that a member asked for
        self.last_ms = 0  # when a member last gave a sign


def key_of(transactional_id: str, member: Member) -> ExecutionKey:
    """The execution that a member belongs to."""
    return ExecutionKey(transactional_id, member.execution.version, member.execution.execution_id)


class Executions:
    """All that have open members. A sign of one member counts for all of its execution."""

    def __init__(self) -> None:
        self._lives: dict[ExecutionKey, _Life] = {}

    def add(self, key: ExecutionKey, timeout_ms: int, now_ms: int) -> None:
        """A member was opened."""
        life = self._lives.get(key)
        if life is None:
            life = self._lives[key] = _Life()
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
        life = self._lives[key]
        return life.last_ms + life.timeout_ms

    def is_expired(self, key: ExecutionKey, now_ms: int) -> bool:
        """True if it has open members, and none has given a sign for longer than its time-out."""
        return key in self._lives and now_ms >= self.expires_at(key)

    def expired(self, now_ms: int) -> list[ExecutionKey]:
        """Those that are expired."""
        return [key for key, life in self._lives.items() if now_ms >= life.last_ms + life.timeout_ms]
