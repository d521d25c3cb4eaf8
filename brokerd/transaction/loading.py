"""Reads the log of transactions: what counts in it, and what is known then.

A state (snapshot.py) takes the place of all events before it once its end is there; events among its pieces count after it. Without
its end it counts for nothing.

Where records are lost, as an operator has accepted, a state may have lost some of its own. It counts all the same if nothing of use
is before it, since it is all that is left; otherwise the events before it tell more.

A log may begin among the parts of a state, where a segment does: what was given up is there again if the log start is lost. That is
of no use, and does no harm before a whole state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from brokerd.errors import CorruptMessageError
from brokerd.transaction.coordinator import Coordinator
from brokerd.wire.v1.transaction_log_pb2 import StateEnds, TransactionLogRecord

_NO_BEGINNING = "the transaction log has a part of a state whose beginning is not there, and nothing in its place"
_NO_END = "the transaction log has a state whose end is not there, and nothing in its place"


def load(records: Iterable[TransactionLogRecord | None], new: Callable[[], Coordinator], now_ms: int) -> Coordinator:
    """The coordinator after these records, the log from its start; None where records are lost. `new` makes one that knows nothing;
    all that are made share their limits. Every execution gets its full time-out from now on. Raises CorruptMessageError if a state
    is not what its end says, or only a part of one is there and nothing in its place.
    """
    loading = Loading(new, now_ms)
    for record in records:
        loading.take(record)
    return loading.end()


class _State:
    """A state whose end was not read yet."""

    def __init__(self, known: Coordinator, *, is_first: bool) -> None:
        self.known = known  # what it says
        self.is_first = is_first  # nothing of use is before it
        self.has_lost = False
        self.later: list[TransactionLogRecord] = []  # events that count after it


class Loading:
    """One reading of the log; see the module."""

    def __init__(self, new: Callable[[], Coordinator], now_ms: int) -> None:
        self._new = new
        self._now_ms = now_ms
        self._state: _State | None = None
        self._is_at_start = True
        self._unusable = ""  # why what was read so far cannot be used, unless a state takes its place
        self.known = new()  # without the state that is being read

    def take(self, record: TransactionLogRecord | None) -> None:
        """The next record; None where some are lost: the beginning of a state may be among them."""
        state = self._state
        if record is None:
            state = state or self._begin_state()
            state.has_lost = True
        elif record.HasField("state_begins"):
            self._give_up_state()
            self._begin_state()
        elif record.HasField("state_ends"):
            self._end_state(record.state_ends)
        elif record.in_state and state is not None:
            state.known.apply(record, self._now_ms)
        elif record.in_state:
            self._unusable = _NO_BEGINNING
        else:
            self.known.apply(record, self._now_ms)
            if state is not None:
                state.later.append(record)
        self._is_at_start = False

    def end(self) -> Coordinator:
        """All was read: what is known. Raises CorruptMessageError."""
        self._give_up_state()
        if self._unusable:
            raise CorruptMessageError(self._unusable)
        return self.known

    def _begin_state(self) -> _State:
        self._state = _State(self._new(), is_first=self._is_at_start or bool(self._unusable))
        return self._state

    def _give_up_state(self) -> None:
        """The end of the present state, if there is one, is not there."""
        state, self._state = self._state, None
        if state is None:
            return
        if state.is_first and not state.has_lost:
            self._unusable = _NO_END
        self._settle(state)

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
        for record in state.later:
            self.known.apply(record, self._now_ms)
