"""Holds records fetched and not handed over yet, in order of arrival. Pure.

Records of paused partitions are kept aside, so that resuming is free; those of a partition after a seek, or no longer assigned, are
dropped. Notes the offsets up to which records were taken, by partition, until `take_moves`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from brokerd.client.columns import BatchSlice, FetchedBatch
from brokerd.client.fetching import Fetched
from brokerd.consumer.core.records import Run
from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.ids import TopicIdPartition, TopicPartition

Decode = Callable[[BatchSlice], FetchedBatch | None]


class _Reached(NamedTuple):
    """The end of a partition's response: moves past what follows its last record (markers, aborted records)."""

    tp: TopicIdPartition
    offset: int


_Entry = BatchSlice | Run | _Reached


class Buffer:
    """A queue of slices, partly taken runs and ends of responses."""

    def __init__(self, decode: Decode, name_of: Callable[[TopicIdPartition], TopicPartition]) -> None:
        self._decode = decode
        self._name_of = name_of
        self._entries: deque[_Entry] = deque()
        self._held: dict[TopicIdPartition, list[_Entry]] = {}
        self._moves: dict[TopicIdPartition, int] = {}

    def add(self, fetched: Fetched) -> None:
        """Appends a response."""
        entries: list[_Entry] = [*fetched.slices]
        entries += [_Reached(tp, offset) for tp, offset in fetched.reached]
        for entry in entries:
            held = self._held.get(entry.tp)
            if held is None:
                self._entries.append(entry)
            else:
                held.append(entry)

    def drop(self, tp: TopicIdPartition) -> None:
        """Drops the records of a partition."""
        self._entries = deque(entry for entry in self._entries if entry.tp != tp)
        if tp in self._held:
            self._held[tp] = []
        self._moves.pop(tp, None)

    def hold(self, tp: TopicIdPartition) -> None:
        """Keeps the records of a partition aside until `release`, including those added later."""
        if tp not in self._held:
            self._held[tp] = [entry for entry in self._entries if entry.tp == tp]
            self._entries = deque(entry for entry in self._entries if entry.tp != tp)

    def release(self, tp: TopicIdPartition) -> None:
        """Appends the held records of a partition to the queue."""
        self._entries.extend(self._held.pop(tp, ()))

    def clear(self) -> None:
        """Drops all records and ends all holds."""
        self._entries.clear()
        self._held.clear()
        self._moves.clear()

    @property
    def size_bytes(self) -> int:
        """Approximate memory of its records."""
        kept = itertools.chain(self._entries, *self._held.values())
        return sum(entry.size_bytes for entry in kept if isinstance(entry, (BatchSlice, Run)))

    def next_run(self) -> Run | None:
        """The next records to hand over; None if there are none. Raises the errors of `decode`; the partition then moves behind all
        others, and raises again at its turn."""
        while True:
            self._pass_spent()
            head = self._entries[0] if self._entries else None
            if head is None or isinstance(head, Run):
                return head
            assert isinstance(head, BatchSlice)
            batch = self._decoded(head)
            if batch is None:
                self._entries.popleft()
            else:
                self._entries[0] = Run(batch, self._name_of(batch.tp))

    def _decoded(self, one: BatchSlice) -> FetchedBatch | None:
        try:
            return self._decode(one)
        except (CorruptMessageError, UnsupportedVersionError):
            own = [entry for entry in self._entries if entry.tp == one.tp]
            self._entries = deque([*(entry for entry in self._entries if entry.tp != one.tp), *own])
            raise

    def take_moves(self) -> dict[TopicIdPartition, int]:
        """The next offsets of partitions with records or markers taken since the last call, and with markers next in the queue."""
        self._pass_spent()
        if self._entries and isinstance(head := self._entries[0], Run) and head.is_begun:
            self._moves[head.tp] = head.next_offset
        moves, self._moves = self._moves, {}
        return moves

    def _pass_spent(self) -> None:
        """Drops runs taken to their end, and ends of responses, from the front, and notes their offsets."""
        while self._entries:
            head = self._entries[0]
            if isinstance(head, _Reached):
                self._moves[head.tp] = head.offset
            elif isinstance(head, Run) and not head.left:
                self._moves[head.tp] = head.next_offset
            else:
                return
            self._entries.popleft()
