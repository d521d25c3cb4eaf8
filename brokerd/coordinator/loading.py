"""Rebuilds the coordinator from its log.

A snapshot (StateWriter) replaces all events before it once its end has been read; events interleaved with its pieces are applied
after it. A snapshot without an end is ignored.

If an operator has accepted the loss of records, a snapshot may lack some of its own. Such a snapshot is used only if nothing usable
precedes it; otherwise the events before it are more complete.

A log may begin in the middle of a snapshot, at the start of a segment: segments below the log start reappear if the log start
offset is lost. Such a fragment is unusable, but harmless before a complete snapshot; so a log that does not begin at offset 0 needs
a complete one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from brokerd.coordinator.records import is_of_group
from brokerd.coordinator.transaction_coordinator import TransactionCoordinator
from brokerd.errors import CorruptMessageError
from brokerd.wire.v1.coordinator_log_pb2 import CoordinatorRecord, StateEnds

_NO_BEGINNING = "the coordinator's log has lost its beginning, and has nothing that replaces it"
_NO_END = "the coordinator's log has a state without its end, and nothing that replaces it"


def load(
    records: Iterable[CoordinatorRecord | None], log_start_offset: int, new: Callable[[], TransactionCoordinator], now_ms: int
) -> TransactionCoordinator:
    """The coordinator after replaying `records`: the whole log, with None where some are lost. Records of groups and of producer
    ids are skipped. If `log_start_offset` is above 0, a snapshot must replace the missing beginning. `new` makes an empty
    coordinator; all share their limits. Every execution gets its full time-out from now on. Raises CorruptMessageError if a
    snapshot does not match its end, or is missing or incomplete with nothing to replace it."""
    loading = Loading(new, now_ms, has_beginning=log_start_offset == 0)
    for record in records:
        loading.take(record)
    return loading.end()


class _State:
    """A snapshot whose end has not been read yet."""

    def __init__(self, known: TransactionCoordinator, *, is_first: bool) -> None:
        self.known = known  # its content so far
        self.is_first = is_first  # nothing usable precedes it
        self.has_lost = False
        self.later: list[CoordinatorRecord] = []  # interleaved events, applied after it


class Loading:
    """Replays the log, record by record."""

    def __init__(self, new: Callable[[], TransactionCoordinator], now_ms: int, *, has_beginning: bool) -> None:
        self._new = new
        self._now_ms = now_ms
        self._state: _State | None = None
        self._is_at_start = True
        # Why the records so far are unusable, unless a snapshot replaces them.
        self._unusable = "" if has_beginning else _NO_BEGINNING
        self.known = new()  # without the snapshot being read

    def take(self, record: CoordinatorRecord | None) -> None:
        """Replays the next record. None stands for lost records, which may include the beginning of a snapshot."""
        state = self._state
        if record is None:
            state = state or self._begin_state()
            state.has_lost = True
        elif record.HasField("state_begins"):
            self._give_up_state()
            self._begin_state()
        elif record.HasField("state_ends"):
            self._end_state(record.state_ends)
        elif is_of_group(record) or record.HasField("producer_ids_reserved"):
            pass
        elif record.in_state and state is not None:
            state.known.apply(record, self._now_ms)
        elif record.in_state:
            self._unusable = _NO_BEGINNING
        else:
            self.known.apply(record, self._now_ms)
            if state is not None:
                state.later.append(record)
        self._is_at_start = False

    def end(self) -> TransactionCoordinator:
        """The coordinator, after the last record. Raises CorruptMessageError."""
        self._give_up_state()
        if self._unusable:
            raise CorruptMessageError(self._unusable)
        return self.known

    def _begin_state(self) -> _State:
        self._state = _State(self._new(), is_first=self._is_at_start or bool(self._unusable))
        return self._state

    def _give_up_state(self) -> None:
        """Handles the current snapshot, if any, which has no end."""
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
                f"the coordinator's log has a state that ends with {end.transactional_ids} transactional ids, but "
                f"{len(state.known.states)} were read"
            )
        else:
            self._adopt(state)

    def _settle(self, state: _State) -> None:
        """Uses an incomplete snapshot if it lost records and nothing usable precedes it; else drops it."""
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
