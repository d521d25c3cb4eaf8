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

    def __init__(self) -> None:
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

    def next_run(self, decode: Decode, name_of: Callable[[TopicIdPartition], TopicPartition]) -> Run | None:
        """The next records to hand over; None if there are none. Raises the errors of `decode`; the partition then moves behind all
        others, and raises again at its turn."""
        while self._entries:
            entry = self._entries[0]
            if isinstance(entry, _Reached):
                self._moves[entry.tp] = entry.offset
            elif isinstance(entry, Run):
                if entry.left:
                    return entry
            else:
                batch = self._decoded(entry, decode)
                if batch is not None:
                    self._entries[0] = Run(batch, name_of(batch.tp))
                    continue
            self._entries.popleft()
        return None

    def _decoded(self, one: BatchSlice, decode: Decode) -> FetchedBatch | None:
        try:
            return decode(one)
        except (CorruptMessageError, UnsupportedVersionError):
            own = [entry for entry in self._entries if entry.tp == one.tp]
            self._entries = deque([*(entry for entry in self._entries if entry.tp != one.tp), *own])
            raise

    def taken(self, run: Run) -> None:
        """Notes up to which offset a run was taken."""
        self._moves[run.tp] = run.next_offset

    def take_moves(self) -> dict[TopicIdPartition, int]:
        """The next offsets of partitions with records or markers taken since the last call, and with markers next in the queue."""
        while self._entries and self._is_spent(self._entries[0]):
            entry = self._entries.popleft()
            if isinstance(entry, _Reached):
                self._moves[entry.tp] = entry.offset
        moves, self._moves = self._moves, {}
        return moves

    @staticmethod
    def _is_spent(entry: _Entry) -> bool:
        return isinstance(entry, _Reached) or (isinstance(entry, Run) and not entry.left)
