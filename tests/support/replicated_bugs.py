"""Bugs planted one at a time in transactions on replicated partitions. Each function's name states the bug, a comment above it the
rule that it leaves out. The schedules of replicated_transactions.py must find every bug, those with disasters the bugs after an
unclean election."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from brokerd.errors import NotReadyError, WireError
from brokerd.internode.v1.internode_pb2 import ReleaseRequest
from brokerd.server.coordinator import members
from brokerd.server.coordinator.leaders import Leaders, LostMarkers
from brokerd.server.coordinator.log import CoordinatorLog
from brokerd.server.coordinator.members import Members
from brokerd.server.coordinator.producer_ids import ProducerIds
from brokerd.server.coordinator.transactions import Transactions
from brokerd.wire.v1.coordinator_log_pb2 import CommitPrepared
from tests.support.mutants import Mutants
from tests.support.planting import Put

MUTANTS, DISASTER_MUTANTS = Mutants(), Mutants()
mutant, rare, bug = MUTANTS.add, MUTANTS.rare, MUTANTS.method


# --- a replaced coordinator ("it" is the former one)


# Rule: A refusal waits until this node is known to be the coordinator still.
@bug(CoordinatorLog, "confirmed", first=115)
async def it_answers_from_memory(_original: Any, self: CoordinatorLog) -> None:
    await self.durable()


# Rule: So does an answer with what the log has decided.
@rare(115)
def it_reads_from_memory(put: Put) -> None:
    @asynccontextmanager
    async def settled(log: CoordinatorLog) -> AsyncIterator[None]:
        yield
        await log.durable()

    put(CoordinatorLog, "settled", settled)


# Rule: An unknown topic counts as deleted only if the node has seen its deletion.
MUTANTS.instead("topics_are_deleted_of_which_it_has_not_heard", Members, "has_deleted", lambda _self, _topic_id: True, first=20)


# Rule: A coordinator assigns producer ids only from a range that it has taken.
@bug(ProducerIds, "fill")
async def the_next_one_gives_producer_ids_again(_original: Any, self: Any) -> None:
    self.next_id = self._durable_limit = self.limit = max(self.limit - 2, 0)
    self._ceiling = 1 << 30


# --- replication of decisions and markers


@mutant
def a_marker_counts_that_is_not_replicated(put: Put) -> None:
    async def at_once(_purgatory: Any, _waited: Any) -> dict[int, Any]:
        return {}

    put(members, "wait_durable", at_once)


@bug(Transactions, "_finish")
async def markers_are_written_for_a_decision_that_is_not_replicated(finish: Any, self: Any, name: str) -> Any:
    durable = self.log.durable

    async def at_once() -> None:
        self.log.durable = durable

    self.log.durable = at_once
    try:
        return await finish(self, name)
    finally:
        self.log.durable = durable


# --- members' appends and readers' view


@bug(Leaders, "freeze", first=30)
async def a_leader_that_does_not_answer_is_taken_for_empty(freeze: Any, self: Any, *asked: Any) -> Any:
    original = self._freeze

    async def nothing_then(*of_node: Any) -> Any:
        try:
            return await original(*of_node)
        except NotReadyError:
            return []

    self._freeze = nothing_then
    try:
        return await freeze(self, *asked)
    finally:
        self._freeze = original


# Rule: A freeze revokes what the coordinator has said of a member before.
MUTANTS.instead("a_late_batch_is_taken_after_the_freeze", Members, "_take_back", lambda _self, _producer_ids: None, first=20)


# Rule: A new leader asks the coordinator for prepared commits before its records are visible.
@bug(Members, "settle", first=75)
async def a_new_leader_shows_what_it_has(_settle: Any, self: Members) -> bool:
    self.partitions.release([("", one) for one in self.partitions.of_clients()])
    return True


# Rule: The coordinator answers a new leader with its prepared commits.
@bug(Transactions, "_holds_in", first=60)
def a_new_leader_is_told_of_no_commit(holds_in: Any, self: Transactions, asked: Any) -> Any:
    response = holds_in(self, asked)
    del response.commits[:]
    return response


# Rule: A commit's records become visible only when its markers are durable at all leaders.
@bug(Leaders, "write_markers")
async def each_leader_releases_when_its_own_markers_are_durable(_write: Any, self: Any, name: str, commit: CommitPrepared) -> None:
    mark_at = self._mark_at

    async def mark_and_release(node_id: int, *rest: Any) -> None:
        await mark_at(node_id, *rest)
        request = ReleaseRequest(coordinator_epoch=self._epoch(), transactional_id=name, txn_version=commit.txn_version)
        if node_id == self._peers.node_id:
            await self._members.release(request)

    self._mark_at = mark_and_release
    try:
        await _write(self, name, commit)
    finally:
        self._mark_at = mark_at


@bug(Leaders, "write_markers")
async def a_leader_that_does_not_answer_is_taken_for_marked(write: Any, self: Any, name: str, commit: CommitPrepared) -> None:
    with suppress(WireError):
        await write(self, name, commit)


# --- unclean elections of copies that lack markers


@DISASTER_MUTANTS.method(Leaders, "rewrite_lost")
async def a_marker_is_not_written_again(_original: Any, *_asked: Any, others: bool) -> None:
    del others


# Rule: Committed members get commit markers again; only aborted ones are void.
@DISASTER_MUTANTS.add
def what_is_known_of_winners_is_not_used(put: Put) -> None:
    put(LostMarkers, "committed", lambda _self, _ended: {})
    put(LostMarkers, "void", lambda _self, ended: list(ended))


@DISASTER_MUTANTS.method(Leaders, "abort")
async def what_lacks_a_marker_is_taken_for_committed(_original: Any, self: Any, name: str, producer_ids: Any) -> None:
    for node_id in self._peers.leaders():
        await self._mark_at(node_id, name, -1, [(producer_id, True) for producer_id in producer_ids], ())


# Rule: Ended members get their missing abort markers.
@DISASTER_MUTANTS.method(Transactions, "_void")
async def what_has_ended_keeps_readers_waiting(_original: Any, *_asked: Any) -> bool:
    return True
