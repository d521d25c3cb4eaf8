"""Snapshots of all transactional ids, which replace the log before them. Records of groups (group_table.py) and of producer ids
need no snapshot, since each replaces what precedes it; all current ones are written before a snapshot ends, so that it is whole for
all.

A snapshot is the state at the point of the log where it begins. It is written in pieces of bounded size, one batch each, and the
coordinator keeps working in between: events applied meanwhile land among the pieces, whose records are flagged `in_state`, and
take effect after the whole snapshot. An id is therefore copied before the first event that changes it (copy-on-write); all others
are read in their turn, and nothing is copied up front.

A snapshot without its end (a crash, a failed write) is ignored and all events count (loading.py), so an interrupted snapshot needs
no clean-up before the log goes on. The log before a snapshot may be deleted once the whole snapshot is durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from brokerd.coordinator.records import record_of
from brokerd.coordinator.transactional_id import TransactionalIdState
from brokerd.wire.v1.coordinator_log_pb2 import CoordinatorRecord, StateBegins, StateEnds

PIECE_ENTRIES_MAX = 100  # encoding these blocks the event loop for 2 ms
PIECE_BYTES_MAX = 262_144  # exceeded by at most one record


class StateWriter:
    """Writes one snapshot. Until its last piece, `keep` must be called for each id before it changes."""

    def __init__(self, states: Mapping[str, TransactionalIdState], now_wall_ms: int) -> None:
        self._now_wall_ms = now_wall_ms
        self._count = len(states)
        self._left = dict(states)  # ids not written yet
        self._names = iter(list(states))  # in the order of their last commits
        self._ready: deque[CoordinatorRecord] = deque()

    def keep(self, transactional_id: str) -> None:
        """Encodes the id before it changes, unless it is encoded already."""
        state = self._left.pop(transactional_id, None)
        if state is not None:
            for timestamp, event in state.events():
                at = timestamp or self._now_wall_ms
                self._ready.append(record_of(transactional_id, state.principal, at, event, in_state=True))

    def pieces(
        self, entries_max: int = PIECE_ENTRIES_MAX, *, others: Iterable[Sequence[CoordinatorRecord]] = ()
    ) -> Iterator[Sequence[CoordinatorRecord]]:
        """The pieces, in order; `others`, of groups and producer ids, stand before the end. The first must be appended before any
        further event."""
        piece = [record_of("", "", self._now_wall_ms, StateBegins()), *self._take(entries_max)]
        while self._has_more:
            yield piece
            piece = self._take(entries_max)
        yield piece
        yield from others
        yield [record_of("", "", self._now_wall_ms, StateEnds(transactional_ids=self._count))]

    @property
    def _has_more(self) -> bool:
        return bool(self._left or self._ready)

    def _take(self, entries_max: int) -> list[CoordinatorRecord]:
        taken: list[CoordinatorRecord] = []
        size_bytes = 0
        while self._has_more and len(taken) < entries_max and size_bytes < PIECE_BYTES_MAX:
            while not self._ready:
                self.keep(next(self._names))
            taken.append(self._ready.popleft())
            size_bytes += taken[-1].ByteSize()
        return taken
