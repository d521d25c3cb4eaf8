"""What is worse than what replication_simulation.py lets happen everywhere: it happens in a share of the seeds, drawn by a
generator of its own, so that the others stay as they are.

- The coordination store goes back: its members have lost what they had not synced, or an older snapshot was restored. All nodes end
  before, and start again after, as docs/cluster.md says.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from brokerd.ids import TopicIdPartition

if TYPE_CHECKING:
    from tests.support.replication_nodes import Machine
    from tests.support.replication_simulation import Simulation

DISASTERS_LAST_MS = 3_000  # beside all else
_STUCK_MS = 4_000  # so long after everything works again, nothing changes by itself any more


class Disasters:
    """See the module."""

    def __init__(self, sim: Simulation, seed: int) -> None:
        self._sim = sim
        self._rng = random.Random(f"{seed}/disasters")
        self._kinds: list[Callable[[], None]] = [self._lose_seconds]
        self._copies: dict[TopicIdPartition, int] = {}  # how many replicas a partition had, before some were taken away
        self._stuck_since_ms = 0
        self._down: set[int] = set()  # nodes that stay down

    def begin(self) -> None:
        """They happen from now on."""
        self._sim.after(self._rng.randint(200, 1_500), self._strike)

    def _strike(self) -> None:
        if not self._sim.is_healing:
            self._rng.choice(self._kinds)()
            self._sim.after(self._rng.randint(300, 3_000), self._strike)

    def _lose_seconds(self) -> None:
        """One node ends, the others go on without it for a while, and the store forgets that they did."""
        sim, rng = self._sim, self._rng
        since_ms, named = sim.now_ms, sim.entries[sim.some_tp()]
        first = sim.machines[rng.choice([replica.node_id for replica in named.isr])]
        if first.process is not None and rng.random() < 0.8:
            sim.crash(first)
            self._down.add(first.node_id)
        sim.after(rng.randint(300, 2_500), lambda: self._go_back(first, since_ms - rng.choice((0, 0, 20, 500))))

    def _go_back(self, first: Machine, to_ms: int) -> None:
        sim, rng = self._sim, self._rng
        self._down.discard(first.node_id)
        if sim.is_healing:
            return
        for process in sim.lives():
            sim.crash(process.machine)
        if sim.store_goes_back(to_ms, rng.choice((0, 0, 1_000_000))):
            sim.count("store went back")
            for client in sim.all_clients():
                client.forget_leader()
        late_ms = rng.choice((0, 1_500, 1_500, 2_500))  # whoever was in sync to the end may come last
        for machine in sim.machines.values():
            sim.after(rng.randint(1, 500) + (late_ms if machine is not first else 0), partial(self._start, machine))

    def may_start(self, machine: Machine) -> bool:
        """False while a node has to stay down."""
        return machine.node_id not in self._down

    def _start(self, machine: Machine) -> None:
        if machine.process is None and not self._sim.is_healing:
            self._sim.start(machine)

    # What an operator does in the end

    def operate(self) -> None:
        """A copy that says that it stays out of sync is taken away, and given back."""
        sim = self._sim
        for tp in sim.tps:
            entry = sim.entries[tp]
            in_sync = {replica.node_id for replica in entry.isr}
            stuck = [node_id for node_id in entry.replicas if node_id not in in_sync and self._tells(tp, node_id)]
            wanted = self._copies.get(tp, 0)
            if sim.leader(tp) is None or (entry.target and not stuck):
                continue
            if len(entry.replicas) < wanted and len(in_sync) == len(entry.replicas):
                others = [node_id for node_id in sorted(sim.machines) if node_id not in entry.replicas]
                sim.move_to(tp, (*entry.replicas, *others[: wanted - len(entry.replicas)]))
                del self._copies[tp]
            elif stuck and self._is_lasting():
                self._copies[tp] = max(wanted, len(entry.replicas))
                sim.move_to(tp, tuple(node_id for node_id in entry.replicas if node_id not in stuck), is_instead=True)
                self._stuck_since_ms = 0
                sim.count("given up by an operator")

    def _is_lasting(self) -> bool:
        self._stuck_since_ms = self._stuck_since_ms or self._sim.now_ms
        return self._sim.now_ms - self._stuck_since_ms >= _STUCK_MS

    def _tells(self, tp: TopicIdPartition, node_id: int) -> bool:
        """True if a node has logged that its copy is not cut."""
        process = self._sim.machines[node_id].process
        copiers = process.copying._copiers.values() if process is not None else ()
        texts = [copier._problems.get(tp, "") for copier in copiers]
        return any("below the high watermark" in text or "was in sync when" in text for text in texts)
