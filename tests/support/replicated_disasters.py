"""Disasters of a cluster with transactions: those of replication_disasters.py, except that the store never rolls back. Unclean
elections choose copies that lack rows or the markers of commits: mostly copies of client partitions that left the in-sync set
during a commit. They also choose copies of the coordinator's log, which lack nothing acknowledged if all nodes with a copy respond.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from brokerd.datadir.topic_store import COORDINATOR_LOG
from brokerd.ids import TopicIdPartition
from brokerd.wire.v1.coordinator_log_pb2 import CommitPrepared
from tests.support.replication_disasters import Disasters

if TYPE_CHECKING:
    from tests.support.replicated_transactions import Simulation
    from tests.support.replication_nodes import Machine

_LOOK_MS = 50
_MARKED_MS = 4_000  # how long a commit may take to get its markers


class TransactionDisasters(Disasters):
    """See the module."""

    def __init__(self, sim: Simulation, seed: int) -> None:
        self._world = sim
        super().__init__(sim, seed)
        self._of_commits = self._lose_in_sync in self._kinds and self._rng.random() < 0.7
        if self._lose_in_sync in self._kinds and self._rng.random() < 0.7:
            sim.config = dataclasses.replace(sim.config, min_insync_replicas=1)  # a single copy accepts writes until it is lost

    def begin(self) -> None:
        super().begin()
        if self._of_commits:
            self._sim.between_faults_ms = (500, 4_000)
            self._keep_apart()
            self._sim.after(1_000, self._give_up)

    def _give_up(self) -> None:
        """Drivers abort, and the markers are lost, so that rows without a marker are not always a former coordinator's."""
        if self._sim.is_healing:
            return
        has_reports = any(driver.reports for driver in self._world.clients.running())
        if has_reports:
            self._world.clients.give_up()
            self._world.loses_markers_to_ms = self._sim.now_ms + 400
        self._sim.after(2_500 if has_reports else _LOOK_MS, self._give_up)

    def _keep_apart(self) -> None:
        """Moves the coordinator away from the rows' nodes, so that it survives when those are lost."""
        nodes = sorted(self._sim.machines)
        for tp in (COORDINATOR_LOG, *self._world.writable()):
            own = nodes[::-1] if tp == COORDINATOR_LOG else nodes
            self._sim.move_to(tp, tuple(own[: len(self._sim.entries[tp].replicas)]))

    def _choices(self) -> Sequence[Sequence[Callable[[], None]]]:
        of_rows, of_all = [self._lose_in_sync], [self._lose_in_sync, self._lose_decisions]
        return of_rows, of_rows, of_all, [self._fill_disk, self._fail_reads, self._fail_writes]

    def _lose_in_sync(self) -> None:
        tps = self._world.writable()
        if tps and not self._of_commits:
            self._lose(self._rng.choice(tps), self._rng.random() < 0.5)

    def _lose_decisions(self) -> None:
        self._lose(COORDINATOR_LOG, True)

    def _lose(self, tp: TopicIdPartition, is_all_but_one: bool) -> None:
        in_sync = [replica.node_id for replica in self._sim.entries[tp].isr]
        if len(in_sync) > 1 and not self._down:
            self._leave(tp, self._rng.sample(in_sync, len(in_sync) - 1 if is_all_but_one else 1))

    def prepared(self, commit: CommitPrepared) -> None:
        """A commit was prepared: takes down an in-sync copy that may have its rows, before it gets the markers."""
        if not self._of_commits or self._down or self._sim.is_healing or not commit.held_back or self._rng.random() < 0.5:
            return
        coordinator = self._sim.entries[COORDINATOR_LOG].leader
        tps = [TopicIdPartition(one.topic_id, one.partition) for one in commit.held_back]
        apart = [tp for tp in tps if coordinator not in self._sim.entries[tp].replicas]  # the coordinator survives
        tp = self._rng.choice(apart or tps)
        entry = self._sim.entries[tp]
        others = [replica.node_id for replica in entry.isr if replica.node_id != entry.leader]
        if others:
            self._sim.count("struck before the markers")
            left = self._sim.machines[self._rng.choice(others)]
            self._sim.after(0, partial(self._stays_down, left))  # before it has the markers
            ended = {*commit.committed_producer_ids, *commit.aborted_producer_ids}
            self._once_marked(tp, ended, left, _MARKED_MS // _LOOK_MS)

    def _once_marked(self, tp: TopicIdPartition, producer_ids: set[int], left: Machine, attempts: int) -> None:
        """Once the other copies have the markers, takes them down and starts the one in `left`."""
        if attempts and producer_ids & self._world.rows_in(tp).open.keys():
            self._sim.after(_LOOK_MS, partial(self._once_marked, tp, producer_ids, left, attempts - 1))
        else:
            self._sim.after(self._rng.choice((0, 300, 800, 1_500)), partial(self._only, tp, [left], 10))
