"""Bugs to plant in transactions of several nodes: what leaders take on whose word, what they hold, and who is fenced. Each leaves
out one rule. The test is tests/model/test_transactions_on_nodes.py. What no schedule meets by chance (late releases, a coordinator
that was replaced, data that no commit has counted) is in tests/unit/server/test_coordinator_and_leaders.py.
"""

from __future__ import annotations

from typing import Any

from brokerd.errors import NotReadyError
from brokerd.internode.v1.internode_pb2 import ReleaseRequest
from brokerd.server.coordinator.leaders import Leaders
from brokerd.server.coordinator.log import CoordinatorLog
from brokerd.server.coordinator.members import Members
from brokerd.server.coordinator.transactions import Transactions
from brokerd.wire.v1.coordinator_log_pb2 import CommitPrepared
from tests.support.mutants import Mutants

MUTANTS = Mutants()
mutant, bug = MUTANTS.add, MUTANTS.method


# --- on whose word a leader takes data


MUTANTS.instead("a_late_batch_is_taken_after_the_freeze", Members, "_take_back", lambda _self, _producer_ids: None)


@bug(Members, "verify")
async def the_coordinators_word_counts_although_a_freeze_has_overtaken_it(verify: Any, self: Any, producer_ids: Any) -> None:
    take_back = self._take_back

    def without_those_asked(frozen: Any) -> None:
        asking, self._asking = self._asking, []
        take_back(frozen)
        self._asking = asking

    self._take_back = without_those_asked
    try:
        await verify(self, producer_ids)
    finally:
        self._take_back = take_back


@bug(Transactions, "_decide", first=2400)
async def members_are_open_while_they_are_decided(decide: Any, self: Any, *asked: Any) -> Any:
    class Nobody(set[int]):
        def __contains__(self, _: object) -> bool:
            return False

        def __ior__(self, _: Any) -> Any:  # type: ignore[misc]
            return self

    self._deciding = Nobody()
    return await decide(self, *asked)


@bug(Leaders, "freeze", first=290)
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


# --- markers and holds


@bug(Leaders, "write_markers")
async def each_leader_releases_when_its_own_markers_are_durable(_write: Any, self: Any, name: str, commit: CommitPrepared) -> None:
    mark_at = self._mark_at

    async def mark_and_release(node_id: int, *rest: Any) -> None:
        await mark_at(node_id, *rest)
        members = self._members if node_id == self._peers.node_id else None
        request = ReleaseRequest(coordinator_epoch=self._epoch(), transactional_id=name, txn_version=commit.txn_version)
        if members is not None:
            await members.release(request)

    self._mark_at = mark_and_release
    try:
        await _write(self, name, commit)
    finally:
        self._mark_at = mark_at


@bug(Members, "settle")
async def a_leader_that_starts_shows_what_it_has(_settle: Any, self: Members) -> bool:
    self.partitions.release([("", one) for one in self.partitions.of_clients()])
    return True


@bug(Transactions, "_holds_in")
def a_leader_that_starts_is_told_of_no_commit(holds_in: Any, self: Transactions, asked: Any) -> Any:
    response = holds_in(self, asked)
    del response.commits[:]
    return response


# --- who is fenced


MUTANTS.instead("a_coordinator_that_was_replaced_records_its_decisions", CoordinatorLog, "_check_leads", lambda _self: None)
