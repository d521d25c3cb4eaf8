"""The state of everything at one moment, in pieces that the log holds in place of all that was before.

A state is what was known where it begins in the log. It comes in pieces of bounded size, each one batch, and between them the
coordinator goes on: an event that is applied meanwhile is in the log among the pieces, whose records bear a mark, and counts after
the whole state. So an id is kept as it was before the first event that changes it; all others are looked at when it is their turn,
and nothing is copied at the beginning.

Where the end is missing (a crash, a disk that refused a piece), the state counts for nothing, and everything else does, wherever
it is: nothing needs to be closed before the log goes on. loading.py reads it so. What was before a state may go once all of the
state is durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from brokerd.transaction.records import record_of
from brokerd.transaction.transactional_id import TransactionalIdState
from brokerd.wire.v1.transaction_log_pb2 import StateBegins, StateEnds, TransactionLogRecord

PIECE_ENTRIES_MAX = 100  # to encode that many takes 2 ms, in which nothing else happens
PIECE_BYTES_MAX = 262_144  # but a record that is larger is a piece of its own


class StateWriter:
    """See the module. `keep` is told of each id before it changes, until the last piece is there."""

    def __init__(self, states: Mapping[str, TransactionalIdState], now_wall_ms: int) -> None:
        self._now_wall_ms = now_wall_ms
        self._count = len(states)
        self._left = dict(states)  # ids whose turn has not come
        self._names = iter(list(states))  # in the order of their last commits
        self._ready: deque[TransactionLogRecord] = deque()

    def keep(self, transactional_id: str) -> None:
        """The id is about to change."""
        state = self._left.pop(transactional_id, None)
        if state is not None:
            for timestamp, event in state.events():
                at = timestamp or self._now_wall_ms
                self._ready.append(record_of(transactional_id, state.principal, at, event, in_state=True))

    def pieces(self, entries_max: int = PIECE_ENTRIES_MAX) -> Iterator[list[TransactionLogRecord]]:
        """The first is to be appended before anything else happens, all others in their order."""
        piece = [record_of("", "", self._now_wall_ms, StateBegins()), *self._take(entries_max)]
        while self._has_more:
            yield piece
            piece = self._take(entries_max)
        yield [*piece, record_of("", "", self._now_wall_ms, StateEnds(transactional_ids=self._count))]

    @property
    def _has_more(self) -> bool:
        return bool(self._left or self._ready)

    def _take(self, entries_max: int) -> list[TransactionLogRecord]:
        taken: list[TransactionLogRecord] = []
        size_bytes = 0
        while self._has_more and len(taken) < entries_max and size_bytes < PIECE_BYTES_MAX:
            while not self._ready:
                self.keep(next(self._names))
            taken.append(self._ready.popleft())
            size_bytes += taken[-1].ByteSize()
        return taken
