"""Lanes: of the records in one lane, one is in work at a time, in the order in which they came. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

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


class Lanes:
    """The lanes that have a record in work, and those that wait behind it."""

    def __init__(self, lane_of: LaneOf) -> None:
        self._lane_of = lane_of
        self._waiting: dict[Hashable, deque[ConsumerRecord]] = {}

    def enter(self, record: ConsumerRecord) -> bool:
        """True if the record may begin now; else it waits."""
        waiting = self._waiting.setdefault(self._lane_of(record), deque())
        waiting.append(record)
        return len(waiting) == 1

    def leave(self, record: ConsumerRecord) -> ConsumerRecord | None:
        """A record has ended; the one that may begin now."""
        lane = self._lane_of(record)
        waiting = self._waiting[lane]
        waiting.popleft()
        if waiting:
            return waiting[0]
        del self._waiting[lane]
        return None
