"""Transactions on replicated partitions, in seeded schedules: `Simulation(seed).run()` raises AssertionError if a promise is
broken.

Checked: replicated_promises.py for transactions and replication_promises.py for each partition, the coordinator's log included, at
every step; and that everything completes once all faults are healed.

Each node holds copies of several partitions and serves what a daemon serves (replicated_nodes.py). Leaders and the coordinator move
by the elections of replication_simulation.py, under its faults: crashes, pauses, cut links, an unavailable store, emptied disks.
Drivers with tasks and twins (replicated_clients.py) come and go. Calls between nodes are delayed, some answers are lost, some
requests late. A topic is created meanwhile."""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any
from unittest import mock

from brokerd.cluster.changes import Transaction
from brokerd.cluster.election import place
from brokerd.cluster.image import Node
from brokerd.cluster.keys import InSyncReplica, PartitionEntry, TopicEntry, decode_partition, encode
from brokerd.datadir.topic_store import COORDINATOR, COORDINATOR_LOG
from brokerd.errors import NotReadyError, UnknownServerError
from brokerd.ids import TopicIdPartition
from brokerd.replication.reassignment import advanced
from brokerd.server import failures
from brokerd.server.cluster import membership
from brokerd.server.cluster.directory import entry_of
from brokerd.server.coordinator import log, producer_ids, transactions
from brokerd.server.handlers import produce
from brokerd.wire.v1.coordinator_log_pb2 import CommitPrepared
from tests.support import replication_simulation
from tests.support.replicated_clients import Clients
from tests.support.replicated_disasters import TransactionDisasters
from tests.support.replicated_nodes import FACTOR, TransactionalProcess
from tests.support.replicated_promises import Decisions, DecisionsLostError, LogPromises, RowPromises
from tests.support.replication_clients import Client
from tests.support.replication_disasters import Disasters
from tests.support.replication_nodes import KEYS, Machine, Process
from tests.support.replication_promises import Promises
from tests.support.replication_simulation import Link
from tests.support.replication_store import Answer

_FIRST, _LATER = b"replicated-topic", b"a-topic-made-now"


class _NodeCall:
    """A call between nodes. Its first result counts."""

    def __init__(self, source: Process, target: Process, answer: Answer) -> None:
        self.source, self.target = source, target
        self._answer = answer
        self.is_over = False

    def end(self, data: bytes | None, error: BaseException | None = None) -> None:
        """Completes the call with the answer or an error."""
        if not self.is_over:
            self.is_over = True
            self._answer(data, error)

    def break_off(self) -> None:
        """The connection is lost. The request may still arrive."""
        self.end(None, NotReadyError("the connection is lost"))


class Simulation(replication_simulation.Simulation):
    """See the module."""

    factor_wanted = FACTOR
    loses_markers_to_ms = 0
    disasters_in = 7
    topic_names = MappingProxyType({_FIRST: "t", _LATER: "u", COORDINATOR.id: COORDINATOR.name})
    node_counts: Sequence[int] = (2, 3, 3, 3, 3, 3, 4, 4)
    lasts_ms = (2_000, 8_000)
    between_faults_ms = (50, 1_200)
    store_trouble = 0.2
    mishaps = 0.001
    healed_within_ms = 120_000

    def __init__(self, seed: int, *, trace: list[str] | None = None) -> None:
        shape = random.Random(f"shape {seed}")
        self._partition_count = shape.choice((1, 2, 2))
        first = [TopicIdPartition(_FIRST, number) for number in range(self._partition_count)]
        later = [TopicIdPartition(_LATER, 0)] if shape.random() < 0.5 else []
        self.rows_tps = (*first, *later)
        self.tps = (COORDINATOR_LOG, *self.rows_tps)
        self._compaction_bytes = shape.choice((1_500, 4_000, log.COMPACTION_MIN_BYTES))
        if seed % self.disasters_in == self.disasters_in - 1:
            self.node_counts = (3, 4, 4)  # so that a coordinator may survive
        super().__init__(seed, trace=trace)

    def latency(self) -> int:
        """Delay of a message in ms: mostly short, since a commit takes about thirty messages in sequence."""
        kind = self.rng.random()
        if kind < 0.95 or self.is_healing:
            return self.rng.randint(0, 5)
        return self.rng.randint(10, 60) if kind < 0.995 else self.rng.randint(100, 1_500)

    def disk_time(self, process: Process) -> int:
        """Duration of a thread job in ms: mostly short, for the same reason."""
        if self.rng.random() < 0.8 and not self.is_slow(process):
            return self.rng.randint(0, 3)
        return super().disk_time(process)

    def new_promises(self, tp: TopicIdPartition) -> Promises:
        return LogPromises(self, tp) if tp == COORDINATOR_LOG else RowPromises(self, tp)

    def rows_in(self, tp: TopicIdPartition) -> RowPromises:
        """The checker of a client partition."""
        found = self.promises[tp]
        assert isinstance(found, RowPromises)
        return found

    def new_process(self, machine: Machine) -> Process:
        return TransactionalProcess(self, machine)

    def new_disasters(self) -> Disasters:
        return TransactionDisasters(self, self.seed)

    def prepared(self, commit: CommitPrepared) -> None:
        """A commit was decided."""
        if isinstance(self.disasters, TransactionDisasters):
            self.disasters.prepared(commit)

    def all_clients(self) -> Sequence[Client]:
        return self.clients.all_metadata()

    def new_clients(self) -> None:
        self._calls: list[_NodeCall] = []
        self.clients = Clients(self)
        self.decided = Decisions(self)

    def start_clients(self) -> None:
        self.clients.start()
        if TopicIdPartition(_LATER, 0) in self.tps:
            self.after(self.rng.randint(100, 2_500), self._make_later)

    def writable(self) -> list[TopicIdPartition]:
        """The existing client partitions."""
        return [tp for tp in self.rows_tps if self.entries[tp].isr]

    def make_topics(self) -> None:
        self._make(COORDINATOR.id, entry_of(COORDINATOR), FACTOR)
        factors = (2, 2, 3) if self.disasters is not None else (2, 3)
        self._make(_FIRST, TopicEntry("t", self._partition_count, {}), self.rng.choice(factors))

    def _make(self, topic_id: bytes, entry: TopicEntry, factor: int, without: Process | None = None) -> None:
        image = self.image()
        if without is not None:
            image.delete(KEYS.node(without.node_id))
        placed = place(image, entry.partition_count, min(factor, len(image.nodes)))
        for number, one in enumerate(placed):
            if self.store.transact(Transaction({}, {KEYS.partition(TopicIdPartition(topic_id, number)): encode(one)})) is None:
                return  # retried later
        self.store.transact(Transaction({}, {KEYS.topic(topic_id): encode(entry), KEYS.name(entry.name): topic_id.hex().encode()}))

    def _make_later(self) -> None:
        """Creates the later topic once there are nodes and a store. The coordinator may learn of it late."""
        if self.entries[TopicIdPartition(_LATER, 0)].isr:
            return
        if not self.store.is_down and self.image().nodes:
            coordinator = self.leader(COORDINATOR_LOG)
            is_late = coordinator is not None and len(self.image().nodes) > 1 and self.rng.random() < 0.5
            if is_late and coordinator is not None and not self.is_healing:
                self.store.deafen(coordinator)
            self._make(_LATER, TopicEntry("u", 1, {}), self.rng.choice((2, 3)), coordinator if is_late else None)
            self.count("made a topic")
        self.after(50, self._make_later)

    def run(self) -> dict[str, int]:
        """Runs the schedule to its end, or until decisions are lost; returns how often each event occurred."""
        with self._constants(), contextlib.suppress(DecisionsLostError):
            return super().run()
        self.count("decisions lost")
        return self.facts

    @contextlib.contextmanager
    def _constants(self) -> Iterator[None]:
        """Lowers limits so that schedules reach them, and makes internal errors fail the schedule."""

        def internal(where: object, error: Exception) -> UnknownServerError:
            self.fail(error)
            return UnknownServerError(f"{where}: {error}")

        with (
            mock.patch.object(transactions, "FIRST_MS", 500),
            mock.patch.object(transactions, "MAX_MS", 2_000),
            mock.patch.object(producer_ids, "BLOCK", 3),
            mock.patch.object(log, "COMPACTION_MIN_BYTES", self._compaction_bytes),
            mock.patch.object(failures, "internal", internal),
            mock.patch.object(produce, "internal", internal),
            mock.patch.object(membership, "internal", internal),
        ):
            yield

    # --- calls between nodes

    def call(self, source: Process, node: Node, name: str, data: bytes, answer: Answer) -> None:
        """A call to another node. The request or the answer may be lost, or arrive late, even after the caller has given up."""
        target = self.machines[node.id].process
        if target is None or target.token != node.registration.token:
            self.after(self.latency(), partial(answer, None, NotReadyError("nobody is there")))
            return
        assert isinstance(target, TransactionalProcess)
        call = _NodeCall(source, target, answer)
        self._calls = [*(one for one in self._calls if not one.is_over), call]
        self.count(f"call: {name}")
        if name == "FreezeMembers":
            self.strike_soon(0.15)

        def reply(response: bytes) -> None:
            self.carry(target, source, 0, partial(call.end, response))

        def arrive() -> None:
            if target.is_dead:
                self.after(self.latency(), call.break_off)
            else:
                target.enter(lambda: target.begin(self.guarded(target.serve(name, data, reply))))

        is_lost = self.now_ms < self.loses_markers_to_ms and name == "WriteMarkers"
        if is_lost or (not self.is_healing and self.rng.random() < 0.05):
            self.count("call lost")
            self.after(self.rng.randint(10, 1_000), call.break_off)
            if is_lost or self.rng.random() < 0.3:
                return
            self.after(self.rng.randint(10, 2_500), partial(self.carry, source, target, 0, arrive))
        else:
            self.carry(source, target, 0, arrive)

    def links_cut(self, links: set[Link]) -> None:
        for call in self._calls:
            ends = (call.source.node_id, call.target.node_id)
            if links & {ends, ends[::-1]} and self.rng.random() < 0.5:
                self.after(self.rng.randint(50, 1_500), call.break_off)

    def crashed(self, process: Process) -> None:
        for call in self._calls:
            if call.target is process:
                self.after(self.rng.randint(0, 800), call.break_off)
        self.after(self.rng.randint(20, 1_500), self.start_one)

    async def guarded(self, work: Any) -> None:
        """Runs `work`; its exception fails the schedule."""
        try:
            await work
        except Exception as error:
            self.fail(error)

    # --- faults

    def faults(self) -> Mapping[Callable[[], None], int]:
        """Replication's faults except DeleteRecords, and the clients' faults. Each schedule has some of them, some with a high
        weight, so that each fault is frequent in some schedules."""
        clients = {self.clients.twin: 3, self.clients.give_up: 2, self.clients.kill_driver: 4, self.depose: 6}
        found = {fault: weight for fault, weight in {**super().faults(), **clients}.items() if fault != self.trim}
        return {fault: weight * self.rng.choice((0, 1, 1, 4)) for fault, weight in found.items()} | {self.start_one: 4}

    def strike_soon(self, chance: float) -> None:
        """With this probability, a fault will soon hit a leader: a commit or its end is under way."""
        if not self.is_healing and self.rng.random() < chance:
            self.after(self.rng.randint(0, self.rng.choice((8, 80))), self._strike)

    def _strike(self) -> None:
        process = self.leader(self.rng.choice((COORDINATOR_LOG, self.some_tp())))
        if self.is_healing or process is None or process.is_dead:
            return
        kind = self.rng.random()
        if kind < 0.3:
            self.crash(process.machine)
        elif kind < 0.45:
            self.pause(process)
        elif kind < 0.5:
            self.cut_link()
        elif kind < 0.6:
            self._die_apart(process)
        elif kind < 0.75:
            self._lead_elsewhere(self.rng.choice((COORDINATOR_LOG, self.some_tp())))
        elif kind < 0.9:
            self.store.end_leases_of(process)
        else:
            self.depose()
        self.count("struck in a commit")

    def _die_apart(self, process: Process) -> None:
        """A node dies a while after losing contact with another one."""
        other = self.rng.choice([node_id for node_id in sorted(self.machines) if node_id != process.node_id])
        self.cut({(process.node_id, other), (other, process.node_id)})

        def die() -> None:
            if not (self.is_healing or process.is_dead):
                self.crash(process.machine)

        self.after(self.rng.randint(20, 400), die)

    def _lead_elsewhere(self, tp: TopicIdPartition) -> None:
        """Elects another in-sync replica, as an operator's reassignment and an immediate controller would. The old leader may leave
        the replicas; then the new one does not wait for it."""
        image = self.image()
        at = image.partition(tp)
        others = [replica.node_id for replica in at.entry.isr if replica.node_id != at.entry.leader] if at is not None else []
        if at is None or not others or self.store.is_down:
            return
        first = self.rng.choice(others)
        target = (first, *(node_id for node_id in at.entry.replicas if node_id != first))
        if len(others) > 1 and self.rng.random() < 0.5:
            target = tuple(node_id for node_id in target if node_id != at.entry.leader)
        elected = advanced(at.entry._replace(target=target), image.nodes)
        if elected is not None:
            key = KEYS.partition(tp)
            self.store.transact(Transaction({key: at.mod_revision}, {key: encode(elected)}))
            self.count("led elsewhere")

    def depose(self) -> None:
        """Elects another leader of the coordinator's log or of another partition. The old leader, and perhaps another one, learns
        nothing for a while and continues."""
        tp = COORDINATOR_LOG if self.rng.random() < 0.6 else self.some_tp()
        deaf = [self.leader(tp), self.leader(self.rng.choice((COORDINATOR_LOG, self.some_tp())))]
        for process in dict.fromkeys(deaf if self.rng.random() < 0.6 else deaf[:1]):
            if process is not None:
                self.store.deafen(process)
        self._lead_elsewhere(tp)
        self.count("deposed")
        for _ in range(self.rng.choice((0, 1, 2))):
            self.after(self.rng.randint(50, 1_000), self._strike)

    def may_take_out(self, machine: Machine) -> bool:
        """True if every partition keeps an in-sync directory in a machine without this one."""
        others = {other.disk.directory_id for other in self.machines.values() if other is not machine}
        return all(others & {replica.directory_id for replica in entry.isr} for entry in self.entries.values() if entry.isr)

    def may_be_made(self, transaction: Transaction) -> bool:
        """False for a transaction, decided before a crash, that would leave only disks outside their machines in sync: two
        partitions might then need two disks of one machine."""
        present = {machine.disk.directory_id for machine in self.machines.values()}
        for tp in self.tps:
            before, value = self.entries[tp], transaction.puts.get(KEYS.partition(tp))
            was_out = before.isr and not _are_in(before, present)
            if value is not None and not was_out and not _are_in(decode_partition(value), present):
                return False
        return True

    # --- the end

    def calm_down(self) -> None:
        self.store.deaf.clear()
        self.clients.calm_down()
        if TopicIdPartition(_LATER, 0) in self.tps:
            self._make_later()

    def end_clients(self) -> None:
        """Nothing: drivers finish on their own."""

    def problem_of_clients(self) -> str:
        if self.clients.running():
            return "a driver has not come to an end"
        process = self.leader(COORDINATOR_LOG)
        assert isinstance(process, TransactionalProcess)
        local = process.broker.coordinator.local
        if local is None:
            return "the coordinator is not loaded"
        if local.coordinator.open_members or local.coordinator.prepared():
            return f"open are {list(local.coordinator.open_members)}, and prepared {local.coordinator.prepared()}"
        for tp in self.rows_tps:
            leader = self.leader(tp)
            partition = leader.replica(tp) if leader is not None else None
            assert partition is not None
            ends = partition.ends
            if ends.last_stable_offset < ends.log_end_offset:
                return f"{tp} hangs at {ends.last_stable_offset}, held back by {ends.held_back}"
        return ""

    def check_clients(self) -> None:
        self.decided.check_quiet()


def _are_in(entry: PartitionEntry, present: set[str]) -> bool:
    """True if an in-sync directory of the entry is in `present`."""
    return any(replica.directory_id in present for replica in entry.isr)


@contextlib.contextmanager
def steady_hashes() -> Iterator[None]:
    """Gives sets of partitions and replicas the same order in every process, and random ids the same values, so that a seed
    determines the schedule anywhere. All hashes are equal, which is fast enough for small sets."""
    rng = random.Random(0)

    def drawn() -> uuid.UUID:
        return uuid.UUID(int=rng.getrandbits(128), version=4)

    with (
        mock.patch.object(TopicIdPartition, "__hash__", tuple.__len__),
        mock.patch.object(InSyncReplica, "__hash__", tuple.__len__),
        mock.patch("uuid.uuid4", drawn),
        mock.patch("secrets.randbelow", rng.randrange),
    ):
        yield


def run_seed(seed: int) -> dict[str, int]:
    """Runs one schedule."""
    with steady_hashes():
        return Simulation(seed).run()


def run_disaster(number: int) -> dict[str, int]:
    """Runs the `number`-th seed with disasters."""
    return run_seed(Simulation.disasters_in * (number + 1) - 1)
