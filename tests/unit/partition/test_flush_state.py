"""Work left to the next flush if derived files cannot be written or the directory cannot be opened."""

from __future__ import annotations

from brokerd.partition.flush_state import FlushOutcome, FlushState, KeptSnapshots
from brokerd.partition.leader_epochs import EpochEntry
from brokerd.partition.log_ends import LogEnds
from brokerd.partition.log_state import Snapshot
from brokerd.storage.segment_bounds import SegmentBounds

EPOCHS = [EpochEntry(1, 0)]
FULL = OSError("no space left on device")


def sealed_twice() -> FlushState:
    """A log with two closed segments and new epochs."""
    state = FlushState(LogEnds(0, 20, 20, {}), 0, KeptSnapshots())
    state.epochs_changed = True
    for offset in (10, 20):
        state.seal(SegmentBounds(offset - 10), Snapshot(0, offset, (), {}))
    return state


def test_a_disk_that_refuses_costs_the_memory_of_one_snapshot() -> None:
    state = sealed_twice()
    assert state.done(state.begin(EPOCHS), FlushOutcome(has_snapshots=False, derived_error=FULL))
    assert [waiting.offset for waiting in state.snapshots.waiting] == [20]


def test_epochs_that_could_not_be_written_are_written_by_the_next_flush() -> None:
    state = sealed_twice()
    state.done(state.begin(EPOCHS), FlushOutcome(derived_error=FULL))
    plan = state.begin(EPOCHS)
    assert plan.epochs == tuple(EPOCHS)
    state.done(plan, FlushOutcome())
    assert state.begin(EPOCHS).epochs is None


def test_a_directory_that_could_not_be_opened_leaves_everything_to_the_next_flush() -> None:
    state = sealed_twice()
    assert not state.done(state.begin(EPOCHS), FlushOutcome(untried_error=FULL))
    plan = state.begin(EPOCHS)
    assert [segment.base_offset for segment in plan.sealed] == [0, 10]
    assert plan.epochs == tuple(EPOCHS)
    assert [waiting.offset for waiting in plan.snapshots] == [20]
