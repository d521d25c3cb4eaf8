"""Reads the log of transactions: what counts in it, and what is known then.

A state (snapshot.py) takes the place of all events before it once its end is there; events among its pieces count after it. Without
its end it counts for nothing. An earlier build's state is one batch, whose entries bear no mark: it is whole or not there.

Where entries are lost, as an operator has accepted, a state may have lost some of its own. It counts all the same if nothing of use
stands before it, since it is all that is left; otherwise the events before it tell more.

A log may begin among the parts of a state, where a segment does: what was given up is there again if the log start is lost. That is
of no use, and does no harm before a whole state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from brokerd.errors import CorruptMessageError
from brokerd.transaction.known import Known
from brokerd.transaction.model import EntriesLost, LogEntry, StateBegins, StateEnds

_NO_BEGINNING = "the transaction log has a part of a state whose beginning is not there, and nothing in its place"
_NO_END = "the transaction log has a state whose end is not there, and nothing in its place"


def load(entries: Iterable[LogEntry], nothing: Callable[[], Known], now_ms: int) -> Known:
    """All that is known after these entries, the log from its start. `nothing` makes a Known that knows nothing. Raises
    CorruptMessageError if a state is not what its end says, or only a part of one is there and nothing in its place.
    """
    loading = Loading(nothing, now_ms)
    for entry in entries:
        loading.take(entry)
    return loading.end()


class _State:
    """A state whose end was not read yet."""

    def __init__(self, known: Known, *, in_pieces: bool, is_first: bool) -> None:
        self.known = known  # what it says
        self.in_pieces = in_pieces
        self.is_first = is_first  # nothing of use stands before it
        self.has_lost = False
        self.later: list[LogEntry] = []  # events that count after it


class Loading:
    """One reading of the log; see the module."""

    def __init__(self, nothing: Callable[[], Known], now_ms: int) -> None:
        self._nothing = nothing
        self._now_ms = now_ms
        self._state: _State | None = None
        self._is_at_start = True
        self._unusable = ""  # why what was read so far cannot be used, unless a state takes its place
        self.known = nothing()  # without the state that is being read

    def take(self, entry: LogEntry) -> None:
        """The next entry."""
        event, state = entry.event, self._state
        if isinstance(event, StateBegins):
            self._give_up_state()
            self._begin_state(in_pieces=event.in_pieces)
        elif isinstance(event, StateEnds):
            self._end_state(event)
        elif isinstance(event, EntriesLost):
            self._lost()
        elif state is not None and (entry.in_state or not state.in_pieces):
            state.known.apply(entry, self._now_ms)
        elif entry.in_state:
            self._unusable = _NO_BEGINNING
        else:
            self.known.apply(entry, self._now_ms)
            if state is not None:
                state.later.append(entry)
        self._is_at_start = False

    def end(self) -> Known:
        """All was read: what is known. Raises CorruptMessageError."""
        self._give_up_state()
        if self._unusable:
            raise CorruptMessageError(self._unusable)
        return self.known

    def _give_up_state(self) -> None:
        """The end of the present state, if there is one, is not there."""
        state, self._state = self._state, None
        if state is None:
            return
        if not state.has_lost and (state.is_first or not state.in_pieces):
            self._unusable = _NO_END
        self._settle(state)

    def _begin_state(self, *, in_pieces: bool) -> _State:
        is_first = self._is_at_start or bool(self._unusable)
        self._state = _State(self._nothing(), in_pieces=in_pieces, is_first=is_first)
        return self._state

    def _lost(self) -> None:
        """The beginning of a state may be among what is lost."""
        state = self._state or self._begin_state(in_pieces=True)
        state.has_lost = True

    def _end_state(self, end: StateEnds) -> None:
        state, self._state = self._state, None
        if state is None:
            self._unusable = _NO_BEGINNING
        elif state.has_lost:
            self._settle(state)
        elif len(state.known.states) != end.transactional_ids:
            raise CorruptMessageError(
                f"the transaction log has a state that ends with {end.transactional_ids} transactional ids, but "
                f"{len(state.known.states)} were read"
            )
        else:
            self._adopt(state)

    def _settle(self, state: _State) -> None:
        """A state of which a part is not there."""
        if state.has_lost and state.is_first:
            self._adopt(state)
        else:
            state.known.forget_all()

    def _adopt(self, state: _State) -> None:
        self.known.forget_all()
        self.known = state.known
        self._unusable = ""
        for entry in state.later:
            self.known.apply(entry, self._now_ms)
