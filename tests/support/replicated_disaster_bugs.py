"""Mistakes planted one by one in what follows an unclean election: what becomes of rows whose markers the elected copy lacks. The
schedules of replicated_transactions.py that have disasters must find each.
"""

from __future__ import annotations

from typing import Any

from brokerd.server.coordinator.leaders import Leaders, LostMarkers
from brokerd.server.coordinator.transactions import Transactions
from tests.support.mutants import Mutants
from tests.support.planting import Put
from tests.support.replicated_transactions import Simulation, run_seed

MUTANTS = Mutants()
mutant, bug = MUTANTS.add, MUTANTS.method


def run_disaster(number: int) -> dict[str, int]:
    """Runs the schedule of one of the seeds that have disasters."""
    return run_seed(Simulation.disasters_in * (number + 1) - 1)


@bug(Leaders, "rewrite_lost")
async def a_marker_is_not_written_again(_original: Any, *_asked: Any, others: bool) -> None:
    del others


@mutant
def what_is_known_of_winners_is_not_used(put: Put) -> None:
    put(LostMarkers, "committed", lambda _self, _ended: {})
    put(LostMarkers, "void", lambda _self, ended: list(ended))


@bug(Leaders, "abort")
async def what_lacks_a_marker_is_taken_for_committed(_original: Any, self: Any, name: str, producer_ids: Any) -> None:
    for node_id in self._peers.leaders():
        await self._mark_at(node_id, name, -1, [(producer_id, True) for producer_id in producer_ids], ())


@bug(Transactions, "_void")
async def what_has_ended_keeps_readers_waiting(_original: Any, *_asked: Any) -> bool:
    return True
