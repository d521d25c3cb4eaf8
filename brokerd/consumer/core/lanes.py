"""Lanes: of the records in one lane, one is in work at a time, in the order in which they came. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from brokerd.consumer.core.records import ConsumerRecord

LaneOf = Callable[[ConsumerRecord], Hashable]


def _by_key(record: ConsumerRecord) -> Hashable:
    """Records without a key are one lane for each partition: nothing says that their order does not matter."""
    return (record.topic, record.partition) if record.key is None else (record.topic, record.key)


def _by_partition(record: ConsumerRecord) -> Hashable:
    return (record.topic, record.partition)


def _each(record: ConsumerRecord) -> Hashable:
    return (record.topic, record.partition, record.offset)


ORDERS: dict[str, LaneOf] = {"key": _by_key, "partition": _by_partition, "none": _each}


class InLane(Protocol):
    """A record in work, as lanes see it."""

    @property
    def lane(self) -> Hashable:
        """Its lane."""


T = TypeVar("T", bound=InLane)


class Lanes(Generic[T]):
    """The lanes that have a record in work, and those that wait behind it."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[T] | None] = {}  # None = nothing waits

    def enter(self, one: T) -> bool:
        """True if the record may begin now; else it waits."""
        lane = one.lane
        if lane not in self._waiting:
            self._waiting[lane] = None
            return True
        waiting = self._waiting[lane]
        if waiting is None:
            waiting = self._waiting[lane] = deque()
        waiting.append(one)
        return False

    def leave(self, one: T) -> T | None:
        """A record has ended; the one that may begin now."""
        waiting = self._waiting[one.lane]
        if waiting:
            return waiting.popleft()
        del self._waiting[one.lane]
        return None
