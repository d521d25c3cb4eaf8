"""Bugs to plant in transactions: what is durable before what, markers, recovery. Each leaves out one rule.

The others are in transaction_rule_bugs.py, the test is tests/model/test_transaction_mutants.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from brokerd.errors import WireError
from brokerd.ids import TopicIdPartition
from brokerd.partition.core import PartitionCore
from brokerd.transaction.coordinator import Coordinator
from brokerd.transaction.loading import Loading
from brokerd.transaction.records import Event, decode
from brokerd.transaction.snapshot import StateWriter
from brokerd.transaction.transactional_id import Held, HeldData, TransactionalIdState
from brokerd.wire.v1 import control_pb2
from brokerd.wire.v1.transaction_log_pb2 import CommitPrepared, MemberOpened, StateEnds, TransactionLogRecord
from brokerd.wire.v1.transaction_pb2 import EndTransactionRequest
from tests.support.mutants import Mutants
from tests.support.planting import plant
from tests.support.transaction_broker import Batch, Done, SimulatedBroker, Steps

MUTANTS = Mutants[pytest.MonkeyPatch]()
mutant = MUTANTS.found_by


def at_once() -> bool:
    return True


@contextlib.contextmanager
def unprepared(state: TransactionalIdState) -> Iterator[None]:
    """Nothing is prepared, as it seems."""
    is_prepared, state.is_prepared = state.is_prepared, False
    try:
        yield
    finally:
        state.is_prepared = is_prepared


def without(commit: CommitPrepared, field: str) -> CommitPrepared:
    """A commit as if it had nothing in this field."""
    changed = CommitPrepared()
    changed.CopyFrom(commit)
    changed.ClearField(field)
    return changed


def skip_the_wait(patch: pytest.MonkeyPatch, method: str) -> None:
    """In this method, nobody waits for the transaction log."""
    original = getattr(SimulatedBroker, method)

    def hasty(self: SimulatedBroker, *args: Any) -> Any:
        wait, self.log_durable = self.log_durable, lambda: at_once  # type: ignore[method-assign]
        steps = original(self, *args)
        answer = None
        while True:
            self.log_durable = lambda: at_once  # type: ignore[method-assign]
            try:
                condition = next(steps)
            except StopIteration as end:
                answer = end.value
                break
            finally:
                self.log_durable = wait  # type: ignore[method-assign]
            yield condition
        return answer

    patch.setattr(SimulatedBroker, method, hasty)


# --- what is durable before what


@mutant(1)
def a_member_is_told_its_id_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    skip_the_wait(patch, "init")


@mutant(2)
def markers_are_written_before_the_commit_is_durable(patch: pytest.MonkeyPatch) -> None:
    skip_the_wait(patch, "finish")


@mutant(5)
def markers_are_written_before_the_abort_is_durable(patch: pytest.MonkeyPatch) -> None:
    skip_the_wait(patch, "end")


@mutant(15)
def a_sweep_goes_by_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    skip_the_wait(patch, "void_unknown")


@mutant(8)
def a_heartbeat_is_refused_before_the_end_is_durable(patch: pytest.MonkeyPatch) -> None:
    skip_the_wait(patch, "heartbeat")


@mutant(58)
def a_commit_is_answered_before_its_markers_are_durable(patch: pytest.MonkeyPatch) -> None:
    plant(patch.setattr, SimulatedBroker, "markers_durable", lambda _self, _markers: at_once)


@mutant(2)
def data_is_acknowledged_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    acknowledge_at_once(patch)


@mutant(20)
def a_commit_takes_data_that_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    """Acknowledged too early; and the commit, which would notice, does not look."""
    open_data = PartitionCore.open_data

    def hopeful(self: PartitionCore, producer_id: int) -> Any:
        found = open_data(self, producer_id)
        return found and found._replace(is_durable=True)

    plant(patch.setattr, PartitionCore, "open_data", hopeful)
    acknowledge_at_once(patch)


def acknowledge_at_once(patch: pytest.MonkeyPatch) -> None:
    produce = SimulatedBroker.produce

    def hasty(self: SimulatedBroker, batch: Batch) -> Steps:
        steps = produce(self, batch)
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        yield at_once
        return Done()

    plant(patch.setattr, SimulatedBroker, "produce", hasty)


# --- markers


@mutant(268)
def a_commit_holds_nothing_back(patch: pytest.MonkeyPatch) -> None:
    plant(patch.setattr, SimulatedBroker, "hold_back", lambda _self, _name, _held_back: None)


@mutant(3)
def markers_of_a_commit_count_one_by_one(patch: pytest.MonkeyPatch) -> None:
    finish = SimulatedBroker.finish

    def eager(self: SimulatedBroker, name: str) -> Any:
        for condition in finish(self, name):
            state = self.coordinator.states.get(name)
            if state is not None and state.prepared is not None and name in self._markers:
                self.release(name, list(state.prepared.held_back)[:1])
            yield condition

    plant(patch.setattr, SimulatedBroker, "finish", eager)


@mutant(5086)
def markers_of_a_failed_attempt_are_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    finish = SimulatedBroker.finish

    def forgetful(self: SimulatedBroker, name: str) -> Any:
        self._markers.pop(name, None)
        yield from finish(self, name)

    plant(patch.setattr, SimulatedBroker, "finish", forgetful)


@mutant(2)
def a_marker_that_cannot_be_written_is_let_go(patch: pytest.MonkeyPatch) -> None:
    write = SimulatedBroker.write_markers

    def careless(
        self: SimulatedBroker,
        records: dict[TopicIdPartition, control_pb2.ControlRecord],
        markers: dict[TopicIdPartition, int],
    ) -> None:
        try:
            write(self, records, markers)
        except WireError:
            return

    plant(patch.setattr, SimulatedBroker, "write_markers", careless)


@mutant(1)
def losers_get_no_marker(patch: pytest.MonkeyPatch) -> None:
    apply = TransactionalIdState.apply

    def forgetful(self: TransactionalIdState, event: Event, timestamp: int) -> list[MemberOpened]:
        ended = apply(self, event, timestamp)
        if self.last is not None and isinstance(event, CommitPrepared):
            self.last = without(self.last, "aborted_producer_ids")
        return ended

    plant(patch.setattr, TransactionalIdState, "apply", forgetful)


@mutant(9)
def markers_go_where_the_driver_says_alone(patch: pytest.MonkeyPatch) -> None:
    open_data = SimulatedBroker.open_data

    def credulous(self: SimulatedBroker, producer_ids: Iterable[int]) -> dict[TopicIdPartition, dict[int, HeldData]]:
        found = open_data(self, producer_ids)
        named = {(one.topic_id, one.partition) for _, commit in self.coordinator.prepared() for one in commit.partitions}
        return {tp: data for tp, data in found.items() if tp in named} if named else found

    plant(patch.setattr, SimulatedBroker, "open_data", credulous)


@mutant(6)
def a_deleted_topic_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    held = SimulatedBroker.held

    def strict(self: SimulatedBroker, asked: EndTransactionRequest) -> Held:
        return held(self, asked)._replace(missing=())

    plant(patch.setattr, SimulatedBroker, "held", strict)


# --- recovery


@mutant(1356)
def a_recovery_holds_nothing_back(patch: pytest.MonkeyPatch) -> None:
    plant(patch.setattr, SimulatedBroker, "hold_back_prepared", lambda _self: None)


@mutant(305)
def it_is_not_recorded_what_a_commit_holds_back(patch: pytest.MonkeyPatch) -> None:
    record = SimulatedBroker.record

    def forgetful(self: SimulatedBroker, name: str, event: Event) -> None:
        record(self, name, without(event, "held_back") if isinstance(event, CommitPrepared) else event)

    plant(patch.setattr, SimulatedBroker, "record", forgetful)


@mutant(1356)
def a_state_forgets_what_a_commit_holds_back(patch: pytest.MonkeyPatch) -> None:
    events = TransactionalIdState.events

    def forgetful(self: TransactionalIdState) -> list[tuple[int, Event]]:
        return [
            (timestamp, without(event, "held_back") if isinstance(event, CommitPrepared) else event)
            for timestamp, event in events(self)
        ]

    plant(patch.setattr, TransactionalIdState, "events", forgetful)


@mutant(35)
def nobody_presumes_an_abort(patch: pytest.MonkeyPatch) -> None:
    plant(patch.setattr, Coordinator, "presumed_aborted", lambda _self, _producer_ids: [])


@mutant(3)
def open_members_are_presumed_aborted(patch: pytest.MonkeyPatch) -> None:
    def rash(self: Coordinator, producer_ids: Iterable[int]) -> list[int]:
        prepared = {pid for _, commit in self.prepared() for pid in (*commit.committed_producer_ids, *commit.aborted_producer_ids)}
        return [pid for pid in producer_ids if pid not in prepared]

    plant(patch.setattr, Coordinator, "presumed_aborted", rash)


@mutant(1063)
def prepared_members_are_presumed_aborted(patch: pytest.MonkeyPatch) -> None:
    def rash(self: Coordinator, producer_ids: Iterable[int]) -> list[int]:
        return [pid for pid in producer_ids if pid not in self.open_members]

    plant(patch.setattr, Coordinator, "presumed_aborted", rash)


@mutant(11)
def a_torn_state_counts(patch: pytest.MonkeyPatch) -> None:
    def credulous(self: Loading) -> None:
        if self._state is not None:
            self._adopt(self._state)
        self._state = None

    plant(patch.setattr, Loading, "_give_up_state", credulous)


@mutant(597)
def events_among_the_pieces_of_a_state_are_lost(patch: pytest.MonkeyPatch) -> None:
    adopt = Loading._adopt

    def forgetful(self: Loading, state: Any) -> None:
        state.later.clear()
        adopt(self, state)

    plant(patch.setattr, Loading, "_adopt", forgetful)


@mutant(255)
def a_state_is_of_the_moment_when_an_id_has_its_turn(patch: pytest.MonkeyPatch) -> None:
    plant(patch.setattr, StateWriter, "keep", lambda _self, _transactional_id: None)


@mutant(11)
def parts_of_a_state_bear_no_mark(patch: pytest.MonkeyPatch) -> None:
    plant(patch.setattr, SimulatedBroker, "append_piece", unmarked)


def unmarked(self: SimulatedBroker, piece: list[TransactionLogRecord]) -> None:
    """A piece of a state whose records look like events."""
    for record in piece:
        record.in_state = False
    self.disk.log.append(tuple(record.SerializeToString() for record in piece))


@mutant(19)
def the_log_goes_before_its_state_is_durable(patch: pytest.MonkeyPatch) -> None:
    append_piece = SimulatedBroker.append_piece

    def hasty(self: SimulatedBroker, piece: list[TransactionLogRecord]) -> None:
        begins = len(self.disk.log)
        append_piece(self, piece)
        if piece[-1].HasField("state_ends"):
            while not decode(self.disk.log[begins][0]).HasField("state_begins"):
                begins -= 1
            self.disk.log[:begins] = [()] * begins

    plant(patch.setattr, SimulatedBroker, "append_piece", hasty)


def end_state_without_a_count(self: Loading, _end: StateEnds) -> None:
    """The end of a state, whatever it says."""
    state, self._state = self._state, None
    assert state is not None
    self._adopt(state)


def state_without(patch: pytest.MonkeyPatch, kind: type) -> None:
    events = TransactionalIdState.events

    def forgetful(self: TransactionalIdState) -> list[tuple[int, Event]]:
        return [known for known in events(self) if not isinstance(known[1], kind)]

    plant(patch.setattr, TransactionalIdState, "events", forgetful)
    # That would be noticed by the number of ids.
    patch.setattr(Loading, "_end_state", end_state_without_a_count)


@mutant(12)
def a_state_forgets_open_members(patch: pytest.MonkeyPatch) -> None:
    state_without(patch, MemberOpened)


@mutant(0)
def a_state_forgets_the_last_version(patch: pytest.MonkeyPatch) -> None:
    state_without(patch, CommitPrepared)


@mutant(474)
def a_state_takes_what_is_prepared_for_complete(patch: pytest.MonkeyPatch) -> None:
    events = TransactionalIdState.events

    def hasty(self: TransactionalIdState) -> list[tuple[int, Event]]:
        with unprepared(self):
            return events(self)

    plant(patch.setattr, TransactionalIdState, "events", hasty)


@mutant(21)
def a_restart_grants_no_time(patch: pytest.MonkeyPatch) -> None:
    init = Loading.__init__

    def strict(self: Loading, new: Any, _now_ms: int) -> None:
        init(self, new, 0)

    plant(patch.setattr, Loading, "__init__", strict)
