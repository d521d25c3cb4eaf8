"""The coordination store (etcd) of replication_simulation.py as nodes reach it. Answers may be lost, and a transaction may take
effect after its time-out. Leases end when a node is silent. Watches deliver every change late and in order. The store can be
unavailable, and it can roll back to an earlier state."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from brokerd.cluster.changes import Transaction
from brokerd.cluster.keys import decode_partition
from brokerd.coordination.client import KeyValue
from brokerd.errors import CoordinationError
from tests.support.coordination_store import Store
from tests.support.replication_nodes import KEYS, Process

if TYPE_CHECKING:
    from tests.support.replication_simulation import Simulation

LEASE_MS = 900
_TIMEOUT_MS = 600  # of a call
_LOOK_MS = 200
Answer = Callable[[Any, BaseException | None], object]


class UnreliableStore:
    """See the module."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self.state = Store()
        self.made_revision = 0  # revision at which the schedule begins; a rollback never goes below it
        self.is_down = False
        self.cut_off: set[int] = set()  # nodes that cannot reach the store
        self.deaf: set[Process] = set()  # processes that receive no watch events for now
        self.unaware: set[Process] = set()  # processes that have not heard of a rollback yet
        self._leases: dict[int, Process | None] = {}  # the live leases and their processes
        self._leased: dict[str, int] = {}  # keys bound to a lease
        self._lease_of: dict[tuple[str, int], int] = {}  # by key and the revision that put it
        self._revisions: list[tuple[int, int]] = []  # (time ms, revision reached)
        self._watches: dict[Process, int] = {}  # index of the next event to deliver
        self._watching: dict[Process, object] = {}  # each process's newest watch
        self._began: dict[Process, object] = {}  # the watch that has delivered its snapshot to each process

    def _reaches(self, process: Process) -> bool:
        return not self.is_down and process.node_id not in self.cut_off

    def ask(self, process: Process, transaction: Transaction, lease_id: int, answer: Answer) -> None:
        """A transaction. Its answer may be lost, and it may take effect after the time-out."""
        lost = CoordinationError("no answer", is_fate_unknown=True)
        kind = self._sim.rng.random() / self._sim.store_trouble if not self._sim.is_healing else 1.0
        reaches = self._reaches(process)
        if kind < 0.12 and reaches:  # a fault that loses an answer often cuts the node off as well
            self.cut_off_for(process.node_id, self._sim.rng.randint(100, 2_500))
        if not reaches:
            if kind < 0.5:
                self._sim.after(self._sim.rng.randint(50, _TIMEOUT_MS), lambda: answer(None, CoordinationError("not connected")))
                return
            self._sim.after(_TIMEOUT_MS, lambda: answer(None, lost))
            if kind < 0.75:
                self._sim.after(self._sim.rng.randint(10, 4_000), partial(self.transact, transaction, lease_id, self.state))
                self._sim.count("made perhaps, later")
        elif kind < 0.1:
            self._sim.after(self._sim.latency(), partial(self.transact, transaction, lease_id, self.state))
            self._sim.after(_TIMEOUT_MS, lambda: answer(None, lost))
            self._sim.count("answer lost")
        elif kind < 0.2:
            self._sim.after(_TIMEOUT_MS, lambda: answer(None, lost))
            self._sim.after(
                _TIMEOUT_MS + self._sim.rng.randint(1, 3_000), partial(self.transact, transaction, lease_id, self.state)
            )
            self._sim.count("made late")
        elif kind < 0.23:
            self._sim.after(_TIMEOUT_MS, lambda: answer(None, lost))
            self._sim.count("never made")
        elif kind < 0.3:
            self._sim.after(self._sim.latency(), lambda: answer(None, CoordinationError("not connected")))
            self._sim.count("not asked")
        else:
            self._sim.after(self._sim.latency(), partial(self._arrives, process, transaction, lease_id, answer, self.state))

    def _arrives(self, process: Process, transaction: Transaction, lease_id: int, answer: Answer, store: Store) -> None:
        if not self._reaches(process) or store is not self.state:
            self._sim.after(_TIMEOUT_MS, lambda: answer(None, CoordinationError("no answer", is_fate_unknown=True)))
            return
        if lease_id and lease_id not in self._leases:
            self._sim.after(self._sim.latency(), lambda: answer(None, CoordinationError("the lease has ended")))
            return
        if self.state.revision < process.client.revision:
            self._sim.after(self._sim.latency(), lambda: answer(None, CoordinationError("the store has gone back")))
            return
        revision = self.transact(transaction, lease_id)
        self._sim.after(self._sim.latency(), lambda: answer(revision, None))

    def ask_key(self, process: Process, key: str, answer: Answer) -> None:
        """A read of one key."""
        if not self._reaches(process):
            self._sim.after(_TIMEOUT_MS, lambda: answer(None, CoordinationError("no answer")))
            return

        def read() -> None:
            found = self.state.present.get(key)
            value = KeyValue(key, found.value or b"", found.create_revision, found.mod_revision) if found is not None else None
            self._sim.after(self._sim.latency(), lambda: answer(value, None))

        self._sim.after(self._sim.latency(), read)

    def transact(self, transaction: Transaction, lease_id: int = 0, store: Store | None = None) -> int | None:
        """Executes a transaction; returns its revision, or None if it fails. `store`: the state that it was sent to; None: the
        current one."""
        if self.is_down or store not in (None, self.state) or not self._sim.may_be_made(transaction):
            return None
        if (lease_id and lease_id not in self._leases) or not self.state.transact(transaction):
            return None
        for key in (*transaction.puts, *transaction.deletes):
            self._leased.pop(key, None)
        if lease_id:
            self._leased.update(dict.fromkeys(transaction.puts, lease_id))
            self._lease_of.update(dict.fromkeys(((key, self.state.revision) for key in transaction.puts), lease_id))
        self._revisions.append((self._sim.now_ms, self.state.revision))
        for tp in self._sim.tps:
            key = KEYS.partition(tp)
            if key in transaction.puts:
                self._sim.named(tp, decode_partition(transaction.puts[key]))
        for process in self._watches:
            delay_ms = (
                self._sim.latency() if self._sim.is_healing or self._sim.rng.random() < 0.8 else self._sim.rng.randint(20, 1_000)
            )
            self._sim.after(delay_ms, partial(self._tell, process, len(self.state.events)))
        return self.state.revision

    def go_back(self, to_ms: int, bump: int) -> bool:
        """Rolls back to the state at `to_ms`; running nodes learn of it later. False if there is nothing to undo."""
        revision = max((at for when_ms, at in self._revisions if when_ms <= to_ms), default=0)
        if revision < self.made_revision or revision == self.state.revision:
            return False
        self.state = self.state.earlier(revision, bump)
        self._revisions = [(when_ms, at) for when_ms, at in self._revisions if at <= revision]
        self._revisions.append((self._sim.now_ms, self.state.revision))
        self._watches.clear()
        self._watching.clear()
        put_by = {event.key: self._lease_of.get((event.key, event.mod_revision), 0) for event in self.state.present.values()}
        self._leased = {key: lease_id for key, lease_id in put_by.items() if lease_id}
        owners = {process.membership.lease_id: process for process in self._sim.lives()}
        self._leases = {lease_id: owners.get(lease_id) for lease_id in self._leased.values()}
        for lease_id, owner in self._leases.items():
            if owner is None:  # a restored lease has its full time to live again
                self._sim.after(LEASE_MS, partial(self.end_lease, lease_id))
        self.unaware.update(self._sim.lives())
        for process in self._sim.lives():
            self._sim.after(self._sim.latency(), partial(self.watch, process))
        for tp in self._sim.tps:
            self._sim.gone_back(tp, decode_partition(self.state.present[KEYS.partition(tp)].value or b""))
        return True

    def new_lease(self, process: Process) -> int:
        """Grants a lease. A live node keeps it alive while it reaches the store."""
        lease_id = self._sim.next_number()
        self._leases[lease_id] = process
        return lease_id

    def has_lease(self, lease_id: int) -> bool:
        """True while a lease is alive."""
        return lease_id in self._leases

    def end_lease(self, lease_id: int) -> None:
        """Ends a lease and deletes its keys. The node may learn of it later."""
        process = self._leases.pop(lease_id, None)
        keys = tuple(key for key, lease in self._leased.items() if lease == lease_id)
        if keys:
            was_down, self.is_down = self.is_down, False
            self.transact(Transaction({}, {}, keys))
            self.is_down = was_down
            self._sim.count("lease ended")
        if process is not None and self._sim.rng.random() < 0.5:
            lease = process.membership._lease
            if lease is not None and lease.id == lease_id:
                self._sim.after(self._sim.rng.randint(0, 1_000), lambda: process.enter(lease.lost.set))

    def end_leases_of(self, process: Process) -> None:
        """Ends the leases of a live node."""
        for lease_id, owner in list(self._leases.items()):
            if owner is process:
                self.end_lease(lease_id)

    def stops_renewing(self, process: Process, since_ms: int) -> None:
        """Ends a node's leases in `since_ms`, if it is dead, paused or cut off then."""
        for lease_id, owner in list(self._leases.items()):
            if owner is process:
                self._sim.after(since_ms, partial(self._end_if_silent, lease_id, process))

    def _end_if_silent(self, lease_id: int, process: Process) -> None:
        is_silent = process.is_dead or process.is_paused or process.node_id in self.cut_off
        if lease_id in self._leases and not self.is_down and is_silent:
            self.end_lease(lease_id)

    def watch(self, process: Process) -> None:
        """Starts a node's watch: a snapshot first, then every change."""
        if not self._reaches(process):
            self._sim.after(_LOOK_MS, partial(self.watch, process))
            return
        if not process.is_dead:
            self._watches[process] = len(self.state.events)
            present, revision = list(self.state.present.values()), self.state.revision
            connection = self._watching[process] = object()

            def hear() -> None:
                if self._watching.get(process) is connection:
                    self._began[process] = connection
                    self._hear(process, revision, present, is_snapshot=True)

            self._sim.after(self._sim.latency(), hear)

    def deafen(self, process: Process) -> None:
        """Delivers no watch events to a node for a while."""
        self.deaf.add(process)
        self._sim.after(self._sim.rng.randint(200, 2_500), partial(self.deaf.discard, process))

    def _tell(self, process: Process, until: int) -> None:
        if process.is_dead or process not in self._watches:
            self._watches.pop(process, None)
            return
        if process in self.deaf or not self._reaches(process):
            self._sim.after(_LOOK_MS, partial(self._tell, process, until))
            return
        changes = self.state.events[self._watches[process] : until]
        has_begun = process.membership.revision and process not in self.unaware
        if changes and has_begun and self._began.get(process) is self._watching.get(process):
            self._watches[process] += len(changes)  # `until` may be from before a rollback
            self._hear(process, changes[-1].mod_revision, changes)
        elif changes:
            self._sim.after(1, partial(self._tell, process, until))

    def _hear(self, process: Process, revision: int, changes: list[Any], *, is_snapshot: bool = False) -> None:
        process.enter(lambda: process.membership.heard.put_nowait((revision, changes, is_snapshot)))

    def cut_off_for(self, node_id: int, time_ms: int) -> None:
        """Cuts a node off from the store for a while."""
        self.cut_off.add(node_id)
        self._sim.count("cut off from the store")
        process = self._sim.machines[node_id].process
        if process is not None:
            self.stops_renewing(process, LEASE_MS)
        self._sim.after(time_ms, lambda: self.cut_off.discard(node_id))

    def go_down(self) -> None:
        """Makes the store unavailable for a while."""
        self.is_down = True
        self._sim.count("store down")
        self._sim.after(self._sim.rng.choice((100, 700, 2_500)), self._come_back)
        for machine in self._sim.machines.values():
            if machine.process is not None and self._sim.rng.random() < 0.3:  # the node considers its lease lost
                self._sim.after(self._sim.rng.randint(0, 2_500), partial(self._loses_life, machine.process))

    def _loses_life(self, process: Process) -> None:
        lease = process.membership._lease
        if lease is not None and self.is_down:
            process.enter(lease.lost.set)
            self._sim.count("lease taken for lost")

    def _come_back(self) -> None:
        self.is_down = False
        for process in dict.fromkeys(owner for owner in self._leases.values() if owner is not None):
            self.stops_renewing(process, LEASE_MS)

    def lose_lease(self) -> None:
        """Ends a lease whose node is alive."""
        if self._leases:
            self.end_lease(self._sim.rng.choice(sorted(self._leases)))
