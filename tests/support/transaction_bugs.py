"""Bugs to plant in transactions: what is durable before what, markers, recovery. Each leaves out one rule.

The others are in transaction_rule_bugs.py, the test is tests/model/test_transaction_mutants.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from brokerd.errors import WireError
from brokerd.ids import TopicIdPartition
from brokerd.partition.core import Append, PartitionCore
from brokerd.partition.flush_state import FlushOutcome
from brokerd.server.own_log import OwnLog
from brokerd.server.transactions.local_leaders import LocalLeaders, Markers
from brokerd.server.transactions.transactions import Transactions
from brokerd.transaction.coordinator import TransactionCoordinator
from brokerd.transaction.loading import Loading
from brokerd.transaction.markers import RecordFor
from brokerd.transaction.records import Event
from brokerd.transaction.snapshot import PIECE_ENTRIES_MAX, StateWriter
from brokerd.transaction.transactional_id import Held, TransactionalIdState
from brokerd.wire.v1.transaction_log_pb2 import CommitPrepared, HeldBack, MemberOpened, StateEnds, TransactionLogRecord
from tests.support.mutants import Mutants
from tests.support.planting import plant
from tests.support.simulated_transactions import SimulatedLog

MUTANTS = Mutants[pytest.MonkeyPatch]()
mutant, rare = MUTANTS.add, MUTANTS.rare


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
    """In this method of Transactions, and in what it calls, nobody waits for the transaction log."""
    original, durable = getattr(Transactions, method), SimulatedLog.durable
    is_hasty: ContextVar[bool] = ContextVar("is_hasty", default=False)

    async def hasty(self: Transactions, *args: Any) -> Any:
        token = is_hasty.set(True)
        try:
            return await original(self, *args)
        finally:
            is_hasty.reset(token)

    async def at_once(self: SimulatedLog) -> None:
        if not is_hasty.get():
            await durable(self)

    patch.setattr(Transactions, method, hasty)
    plant(patch.setattr, SimulatedLog, "durable", at_once)


async def written(markers: Any) -> asyncio.Task[None]:
    """Markers under way, once they are written, and not yet durable."""
    writing: asyncio.Task[None] = asyncio.ensure_future(markers)
    for _ in range(3):
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, None)
        await future
    return writing


# --- what is durable before what


@mutant
def a_member_is_told_its_id_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    skip_the_wait(patch, "init_member")


@mutant
def markers_are_written_before_the_commit_is_durable(patch: pytest.MonkeyPatch) -> None:
    skip_the_wait(patch, "_finish")


@mutant
def markers_are_written_before_the_abort_is_durable(patch: pytest.MonkeyPatch) -> None:
    for method in ("_abort", "_expire"):
        skip_the_wait(patch, method)


@rare(342)
def a_sweep_goes_by_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    skip_the_wait(patch, "_end_unmarked")


@mutant
def a_heartbeat_is_refused_before_the_end_is_durable(patch: pytest.MonkeyPatch) -> None:
    skip_the_wait(patch, "heartbeat")


@mutant
def a_commit_is_answered_before_its_markers_are_durable(patch: pytest.MonkeyPatch) -> None:
    write = LocalLeaders.write_markers

    async def hasty(self: LocalLeaders, partitions: Iterable[TopicIdPartition], record_for: RecordFor, markers: Markers) -> None:
        writing = await written(write(self, partitions, record_for, markers))
        if writing.done():
            writing.result()

    plant(patch.setattr, LocalLeaders, "write_markers", hasty)


@mutant
def data_is_acknowledged_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    write = PartitionCore.written

    def hasty(self: PartitionCore, append: Append) -> Any:
        moved = write(self, append)
        plan = self.begin_flush()
        return moved if plan is None else self.flushed(plan, FlushOutcome())

    plant(patch.setattr, PartitionCore, "written", hasty)


@rare(540)
def a_commit_takes_data_that_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    """A task that reports it before it is acknowledged would be believed."""
    plant(patch.setattr, LocalLeaders, "_not_durable", lambda _self: set())


# --- markers


@mutant
def a_commit_holds_nothing_back(patch: pytest.MonkeyPatch) -> None:
    plant(patch.setattr, LocalLeaders, "hold_back", lambda _self, _commit, _held_back: None)


@mutant
def markers_of_a_commit_count_one_by_one(patch: pytest.MonkeyPatch) -> None:
    write = LocalLeaders.write_markers

    async def eager(self: LocalLeaders, partitions: Iterable[TopicIdPartition], record_for: RecordFor, markers: Markers) -> None:
        tps = list(partitions)
        records = [record_for(self._partitions.get(tp, {}).keys()) for tp in tps[:1]]
        writing = await written(write(self, tps, record_for, markers))
        for record in filter(None, records):
            self.known.release(record.transactional_id, [self.known.leader(tps[0])])
        await writing

    plant(patch.setattr, LocalLeaders, "write_markers", eager)


@rare(210)
def markers_of_a_failed_attempt_are_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    finish = Transactions._finish

    async def forgetful(self: Transactions, name: str) -> None:
        self._markers.pop(name, None)
        await finish(self, name)

    plant(patch.setattr, Transactions, "_finish", forgetful)


@mutant
def a_marker_that_cannot_be_written_is_let_go(patch: pytest.MonkeyPatch) -> None:
    write = LocalLeaders.write_markers

    async def careless(self: LocalLeaders, partitions: Iterable[TopicIdPartition], record_for: RecordFor, markers: Markers) -> None:
        with contextlib.suppress(WireError):
            await write(self, partitions, record_for, markers)

    plant(patch.setattr, LocalLeaders, "write_markers", careless)


@mutant
def losers_get_no_marker(patch: pytest.MonkeyPatch) -> None:
    apply = TransactionalIdState.apply

    def forgetful(self: TransactionalIdState, event: Event, timestamp: int) -> list[MemberOpened]:
        ended = apply(self, event, timestamp)
        if self.last is not None and isinstance(event, CommitPrepared):
            self.last = without(self.last, "aborted_producer_ids")
        return ended

    plant(patch.setattr, TransactionalIdState, "apply", forgetful)


@mutant
def markers_go_where_the_driver_says_alone(patch: pytest.MonkeyPatch) -> None:
    finish, partitions_of = Transactions._finish, LocalLeaders.partitions_of
    named: ContextVar[set[tuple[bytes, int]] | None] = ContextVar("named", default=None)

    async def credulous(self: Transactions, name: str) -> None:
        state = self.coordinator.states.get(name)
        prepared = state.prepared if state is not None else None
        token = named.set({(one.topic_id, one.partition) for one in prepared.partitions} if prepared is not None else None)
        try:
            await finish(self, name)
        finally:
            named.reset(token)

    def named_alone(self: LocalLeaders, producer_ids: Collection[int]) -> list[TopicIdPartition]:
        known = named.get()
        return [tp for tp in partitions_of(self, producer_ids) if known is None or tp in known]

    plant(patch.setattr, Transactions, "_finish", credulous)
    plant(patch.setattr, LocalLeaders, "partitions_of", named_alone)


@mutant
def a_deleted_topic_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    held = LocalLeaders.held

    def strict(self: LocalLeaders, producer_ids: Iterable[int], partitions: Iterable[TopicIdPartition] = ()) -> Held:
        return held(self, producer_ids, partitions)._replace(missing=())

    plant(patch.setattr, LocalLeaders, "held", strict)


# --- recovery


@rare(301)
def a_recovery_holds_nothing_back(patch: pytest.MonkeyPatch) -> None:
    load, hold_back = Transactions._load, LocalLeaders.hold_back
    is_loading = False

    async def careless(self: Transactions) -> None:
        nonlocal is_loading
        is_loading = True
        await load(self)
        is_loading = False

    def unless_loading(self: LocalLeaders, commit: str, held_back: Iterable[HeldBack]) -> None:
        if not is_loading:
            hold_back(self, commit, held_back)

    plant(patch.setattr, Transactions, "_load", careless)
    plant(patch.setattr, LocalLeaders, "hold_back", unless_loading)


@mutant
def it_is_not_recorded_what_a_commit_holds_back(patch: pytest.MonkeyPatch) -> None:
    record = Transactions._record

    def forgetful(self: Transactions, name: str, principal: str, event: Event) -> None:
        record(self, name, principal, without(event, "held_back") if isinstance(event, CommitPrepared) else event)

    plant(patch.setattr, Transactions, "_record", forgetful)


@rare(617)
def a_state_forgets_what_a_commit_holds_back(patch: pytest.MonkeyPatch) -> None:
    events = TransactionalIdState.events

    def forgetful(self: TransactionalIdState) -> list[tuple[int, Event]]:
        return [
            (timestamp, without(event, "held_back") if isinstance(event, CommitPrepared) else event)
            for timestamp, event in events(self)
        ]

    plant(patch.setattr, TransactionalIdState, "events", forgetful)


@mutant
def nobody_presumes_an_abort(patch: pytest.MonkeyPatch) -> None:
    plant(patch.setattr, TransactionCoordinator, "presumed_aborted", lambda _self, _producer_ids: [])


@mutant
def open_members_are_presumed_aborted(patch: pytest.MonkeyPatch) -> None:
    def rash(self: TransactionCoordinator, producer_ids: Iterable[int]) -> list[int]:
        prepared = {pid for _, commit in self.prepared() for pid in (*commit.committed_producer_ids, *commit.aborted_producer_ids)}
        return [pid for pid in producer_ids if pid not in prepared]

    plant(patch.setattr, TransactionCoordinator, "presumed_aborted", rash)


@mutant
def prepared_members_are_presumed_aborted(patch: pytest.MonkeyPatch) -> None:
    def rash(self: TransactionCoordinator, producer_ids: Iterable[int]) -> list[int]:
        return [pid for pid in producer_ids if pid not in self.open_members]

    plant(patch.setattr, TransactionCoordinator, "presumed_aborted", rash)


@mutant
def a_torn_state_counts(patch: pytest.MonkeyPatch) -> None:
    def credulous(self: Loading) -> None:
        if self._state is not None:
            self._adopt(self._state)
        self._state = None

    plant(patch.setattr, Loading, "_give_up_state", credulous)


@mutant
def events_among_the_pieces_of_a_state_are_lost(patch: pytest.MonkeyPatch) -> None:
    adopt = Loading._adopt

    def forgetful(self: Loading, state: Any) -> None:
        state.later.clear()
        adopt(self, state)

    plant(patch.setattr, Loading, "_adopt", forgetful)


@mutant
def a_state_is_of_the_moment_when_an_id_has_its_turn(patch: pytest.MonkeyPatch) -> None:
    plant(patch.setattr, StateWriter, "keep", lambda _self, _transactional_id: None)


@mutant
def parts_of_a_state_bear_no_mark(patch: pytest.MonkeyPatch) -> None:
    pieces = StateWriter.pieces

    def unmarked(self: StateWriter, entries_max: int = PIECE_ENTRIES_MAX) -> Iterator[list[TransactionLogRecord]]:
        for piece in pieces(self, entries_max):
            for record in piece:
                record.in_state = False
            yield piece

    plant(patch.setattr, StateWriter, "pieces", unmarked)


@mutant
def the_log_goes_before_its_state_is_durable(patch: pytest.MonkeyPatch) -> None:
    write, durable = OwnLog._write, SimulatedLog.durable
    is_writing: ContextVar[bool] = ContextVar("is_writing", default=False)

    async def hasty(self: OwnLog, pieces: Any) -> int:
        token = is_writing.set(True)
        try:
            return await write(self, pieces)
        finally:
            is_writing.reset(token)

    async def at_once(self: SimulatedLog) -> None:
        if not is_writing.get():
            await durable(self)

    plant(patch.setattr, OwnLog, "_write", hasty)
    plant(patch.setattr, SimulatedLog, "durable", at_once)


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


@mutant
def a_state_forgets_open_members(patch: pytest.MonkeyPatch) -> None:
    state_without(patch, MemberOpened)


@mutant
def a_state_forgets_the_last_version(patch: pytest.MonkeyPatch) -> None:
    state_without(patch, CommitPrepared)


@rare(214)
def a_state_takes_what_is_prepared_for_complete(patch: pytest.MonkeyPatch) -> None:
    events = TransactionalIdState.events

    def hasty(self: TransactionalIdState) -> list[tuple[int, Event]]:
        with unprepared(self):
            return events(self)

    plant(patch.setattr, TransactionalIdState, "events", hasty)


@mutant
def a_restart_grants_no_time(patch: pytest.MonkeyPatch) -> None:
    init = Loading.__init__

    def strict(self: Loading, new: Any, _now_ms: int) -> None:
        init(self, new, 0)

    plant(patch.setattr, Loading, "__init__", strict)
