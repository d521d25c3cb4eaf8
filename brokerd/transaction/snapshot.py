"""The state of everything at one moment, in pieces that the log holds instead of all that was before.

A state is what was known where it begins in the log. It comes in pieces of bounded size, each one batch, and between them the
coordinator goes on: an event that is applied meanwhile stands in the log among the pieces, each entry of which bears a mark, and
counts after the whole state. So an id is kept as it was before the first event that changes it; all others are looked at when it
is their turn, and nothing is copied at the beginning.

Where the end is missing (a crash, a disk that refused a piece), the state counts for nothing and all else does, wherever that
stands: nothing needs to be closed before the log goes on. loading.py reads it so. What stands before a state may go once all of
the state is durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from brokerd.transaction.log_records import Record, record_of
from brokerd.transaction.model import LogEntry, StateBegins, StateEnds
from brokerd.transaction.transactional_id import TransactionalIdState

PIECE_ENTRIES_MAX = 100  # to encode so many takes 2 ms, in which nothing else happens
PIECE_BYTES_MAX = 262_144  # but an entry that is larger is a piece of its own


class Snapshot:
    """See the module. `keep` is told of each id before it changes, until the last piece is there."""

    def __init__(self, states: Mapping[str, TransactionalIdState], now_wall_ms: int) -> None:
        self._now_wall_ms = now_wall_ms
        self._count = len(states)
        self._left = dict(states)  # ids whose turn has not come
        self._names = iter(list(states))  # in the order of their last commits
        self._ready: deque[LogEntry] = deque()

    def keep(self, transactional_id: str) -> None:
        """The id is about to change."""
        state = self._left.pop(transactional_id, None)
        if state is not None:
            self._ready.extend(self._entries_of(transactional_id, state))

    def pieces(self, entries_max: int = PIECE_ENTRIES_MAX) -> Iterator[list[Record]]:
        """The first is to be appended before anything else happens, all others in their order. Earlier builds read a state of one
        piece too, and refuse one of several.
        """
        piece = self._take(entries_max)
        piece.insert(0, self._record(StateBegins(in_pieces=self._has_more)))
        while self._has_more:
            yield piece
            piece = self._take(entries_max)
        piece.append(self._record(StateEnds(self._count)))
        yield piece

    @property
    def _has_more(self) -> bool:
        return bool(self._left or self._ready)

    def _take(self, entries_max: int) -> list[Record]:
        taken: list[Record] = []
        size_bytes = 0
        while self._has_more and len(taken) < entries_max and size_bytes < PIECE_BYTES_MAX:
            while not self._ready:
                self.keep(next(self._names))
            taken.append(record_of(self._ready.popleft()))
            size_bytes += len(taken[-1].value)
        return taken

    def _entries_of(self, transactional_id: str, state: TransactionalIdState) -> Iterator[LogEntry]:
        for timestamp, event in state.events():
            yield LogEntry(transactional_id, state.principal, timestamp or self._now_wall_ms, event, in_state=True)

    def _record(self, event: StateBegins | StateEnds) -> Record:
        return record_of(LogEntry("", "", self._now_wall_ms, event))
