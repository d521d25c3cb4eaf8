"""One partition replicated over several nodes, in seeded schedules: `Simulation(seed).run()` raises AssertionError if replication
breaks a promise. Subclasses add more partitions and transactions (replicated_transactions.py).

Checked: replication_promises.py at every step. After all faults are healed: every partition has a leader, all replicas are in sync
and byte-identical, and the honest producer's records are in the log once and in order.

Real: the nodes (replication_nodes.py). Simulated, in this module: time and the duration of thread jobs; a network that holds back
one direction and breaks streams whose requests still arrive; nodes that are killed, lose unsynced writes, pause, and restart with
an empty, an earlier or the same disk. replication_store.py simulates the coordination store. All events are in one queue ordered by
time, so a seed determines the schedule."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from brokerd.cluster.changes import Transaction
from brokerd.cluster.election import place
from brokerd.cluster.image import ClusterImage
from brokerd.cluster.keys import PartitionEntry, TopicEntry, encode
from brokerd.ids import NO_LEADER, TopicIdPartition
from brokerd.partition.log_ends import LogEnd
from brokerd.partition.partition import Partition
from tests.support.clock import ManualClock
from tests.support.coordination_store import see
from tests.support.files import Killed
from tests.support.replication_clients import Client, HonestProducer, PlainProducer, Reader
from tests.support.replication_disasters import Disasters
from tests.support.replication_nodes import (
    CLUSTER,
    KEYS,
    TOPIC,
    TP,
    Disk,
    Machine,
    Process,
    Produced,
    Stream,
    base_config,
    headers,
)
from tests.support.replication_producer import CoreProducer
from tests.support.replication_promises import Promises
from tests.support.replication_store import LEASE_MS, UnreliableStore

_LOOK_MS = 200
_EPOCHS_MAX = 300  # a schedule that heals needs about twenty
_LOST_MS = 10**9  # arrival time of a lost message
Link = tuple[int, int]


class _Connection:
    """A client's connection: its number, and the arrival times of its last request and last response."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.request_ms = self.reply_ms = 0


class Simulation:
    """See the module."""

    tps: tuple[TopicIdPartition, ...] = (TP,)
    topic_names: Mapping[bytes, str] = MappingProxyType({TP.topic_id: TOPIC})
    node_counts: Sequence[int] = (2, 3, 3, 3, 3, 4, 4)
    factor_wanted = 1  # replication factor of the coordinator's log
    lasts_ms = (1_000, 4_500)
    between_faults_ms = (5, 220)
    store_trouble = 1.0  # scales how often store transactions go wrong
    mishaps = 0.004  # probability that a job kills its process
    healed_within_ms = 60_000
    cores_in = 4  # one seed in this many runs the real producer
    disasters_in = 4  # one seed in this many; the other seeds do not change when disasters change

    def __init__(self, seed: int, *, trace: list[str] | None = None) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        rng, self.now_ms = self.rng, 0
        self.clock = ManualClock()
        self.config = base_config(rng)
        self.store = UnreliableStore(self)
        self.facts: dict[str, int] = {}
        self.trace = trace
        self._queue: list[tuple[int, int, Callable[[], object]]] = []
        self._numbers = itertools.count(1)
        self._failure: BaseException | None = None
        self._streams: list[Stream] = []
        self._cut: set[Link] = set()  # (source, target) node ids
        self.is_healing = False
        self._slow: set[int] = set()  # nodes whose disk is slow
        self._connections: dict[object, _Connection] = {}  # each client's newest
        self.entries = dict.fromkeys(self.tps, PartitionEntry((), ()))  # as in the store
        self.promises = {tp: self.new_promises(tp) for tp in self.tps}
        node_count = rng.choice(self.node_counts)
        self.machines = {node_id: Machine(node_id) for node_id in range(1, node_count + 1)}
        self.new_clients()
        self.history = 0  # incremented when clients may have seen records that are now lost
        self.disasters = self.new_disasters() if self.disasters_in and seed % self.disasters_in == self.disasters_in - 1 else None

    def new_promises(self, tp: TopicIdPartition) -> Promises:
        """Returns the checker of a partition's promises."""
        return Promises(self, tp)

    def new_disasters(self) -> Disasters:
        """Returns the rarer faults that some seeds add."""
        return Disasters(self, self.seed)

    def new_clients(self) -> None:
        """Creates the clients of the partitions."""
        self.honest = CoreProducer(self) if self.cores_in and self.seed % self.cores_in == 2 else HonestProducer(self)
        self.plain = PlainProducer(self)
        self.readers = [Reader(self), Reader(self)]

    # --- time

    def at(self, time_ms: int, event: Callable[[], object]) -> None:
        """Schedules an event."""
        heapq.heappush(self._queue, (time_ms, next(self._numbers), event))

    def after(self, delay_ms: int, event: Callable[[], object]) -> None:
        self.at(self.now_ms + delay_ms, event)

    @property
    def wall_ms(self) -> int:
        """The wall clock, which all nodes share."""
        return self.clock.wall_ms()

    def _run_until(self, end_ms: int) -> None:
        queue = self._queue
        while queue and queue[0][0] <= end_ms:
            due_ms, _, event = heapq.heappop(queue)
            if due_ms > self.now_ms:
                self.clock.advance(due_ms - self.now_ms)
                self.now_ms = due_ms
            event()
            if self._failure is not None:
                raise self._failure
        self.clock.advance(end_ms - self.now_ms)
        self.now_ms = end_ms

    def latency(self) -> int:
        """Delay of a message in ms: mostly short."""
        kind = self.rng.random()
        if kind < 0.85 or self.is_healing:
            return self.rng.randint(0, 8)
        return self.rng.randint(10, 100) if kind < 0.97 else self.rng.randint(100, 1_500)

    def disk_time(self, process: Process) -> int:
        """Duration of a thread job in ms."""
        if self.is_healing:
            return self.rng.randint(0, 3)
        if self.is_slow(process):
            return self.rng.randint(20, 600)
        return self.rng.randint(0, 6) if self.rng.random() < 0.93 else self.rng.randint(10, 200)

    def is_slow(self, process: Process) -> bool:
        """True if the disk of a node is slow now."""
        return process.node_id in self._slow

    def next_number(self) -> int:
        """Returns a unique number."""
        return next(self._numbers)

    def payload(self) -> bytes:
        """Returns a random batch payload."""
        return self.rng.randbytes(self.rng.choice((16, 16, 60, 700)))

    def count(self, fact: str) -> None:
        """Counts an event of the schedule."""
        self.facts[fact] = self.facts.get(fact, 0) + 1
        if self.trace is not None:
            self.trace.append(f"{self.now_ms}: {fact} {self._state()}")

    def _state(self) -> str:
        return "\n    ".join(map(self._state_of, self.tps))

    def _state_of(self, tp: TopicIdPartition) -> str:
        found = []
        for node_id, machine in self.machines.items():
            log = machine.process.replica(tp) if machine.process is not None else None
            if log is None:
                found.append(f"{node_id}:{'down' if machine.process is None else '-'}")
                continue
            ends = log.ends
            offsets = (ends.log_start_offset, ends.high_watermark, ends.durable_end, ends.log_end_offset)
            found.append(f"{node_id}:{log.role.value[0]}{log.leader_epoch}{list(offsets)}")
        entry = self.entries[tp]
        in_sync = [replica.node_id for replica in entry.isr]
        return f"{' '.join(found)} | e{entry.leader_epoch} leader {entry.leader} isr {in_sync} of {entry.replicas}"

    def fail(self, error: BaseException) -> None:
        """Fails the schedule from a place where a raised exception would be caught."""
        self._failure = self._failure or error

    # --- nodes and disks

    def disks(self) -> Iterator[Disk]:
        """All disks, including those out of their machines."""
        for machine in self.machines.values():
            yield from machine.disks

    def disk_of(self, directory_id: str) -> Disk:
        """The disk with this directory."""
        return next(disk for disk in self.disks() if disk.directory_id == directory_id)

    def life_of(self, directory_id: str) -> Process | None:
        """The running process on this data directory, or None."""
        lives = self.lives()
        return next((process for process in lives if process.disk.directory_id == directory_id), None)

    def lives(self) -> list[Process]:
        return [machine.process for machine in self.machines.values() if machine.process is not None]

    def any_process(self) -> Process | None:
        """A random running, unpaused process, or None."""
        lives = [process for process in self.lives() if not process.is_paused]
        return self.rng.choice(lives) if lives else None

    def leader(self, tp: TopicIdPartition = TP) -> Process | None:
        """The partition's leader according to the store, if that process knows that it leads."""
        entry = self.entries[tp]
        machine = self.machines.get(entry.leader)
        process = machine.process if machine is not None else None
        partition = process.replica(tp) if process is not None else None
        return process if partition is not None and partition.leads_in(entry.leader_epoch) else None

    def touched(self, process: Process) -> None:
        """Checks the promises after an event in a process."""
        for promises in self.promises.values():
            promises.check(process)

    def led(self, process: Process, partition: Any) -> None:
        """A process has become leader of a partition."""
        self.count("led")
        try:
            self.promises[partition.tp].led(process, partition)
        except AssertionError as error:  # raised here, the node would catch it and retry
            self.fail(error)

    def some_tp(self) -> TopicIdPartition:
        """A random partition."""
        return self.tps[0] if len(self.tps) == 1 else self.rng.choice(self.tps)

    # --- entries in the store

    def named(self, tp: TopicIdPartition, entry: PartitionEntry) -> None:
        """The store has a new entry for a partition."""
        before, self.entries[tp] = self.entries[tp], entry
        if entry.leader_epoch > before.leader_epoch:
            self.count("elected" if entry.leader != NO_LEADER else "without a leader")
        elif before.isr and entry.replicas != before.replicas:
            self.count("replicas changed")
        elif len(entry.isr) > len(before.isr):
            self.count("joined")
        elif len(entry.isr) < len(before.isr):
            self.count("left")
        self.promises[tp].named(before if before.isr else None, entry)

    def gone_back(self, tp: TopicIdPartition, entry: PartitionEntry) -> None:
        """The store was rolled back and has an older entry for a partition."""
        before, self.entries[tp] = self.entries[tp], entry
        self.promises[tp].may_lack(before, entry)

    def may_be_made(self, _transaction: Transaction) -> bool:
        """False if the store silently drops the transaction."""
        return True

    def begin_history(self) -> None:
        """Records that clients have seen are lost: every client restarts, and responses under way are dropped."""
        self.history += 1
        for client in self.all_clients():
            client.begin_anew()

    def all_clients(self) -> Sequence[Client]:
        """The producers and readers."""
        return (self.honest, self.plain, *self.readers)

    # --- the network

    def carry(self, source: Process, target: Process, not_before_ms: int, arrive: Callable[[], object]) -> int:
        """Carries a message between nodes, in order after `not_before_ms`, and returns when it is due. A cut link holds it back."""
        due_ms = max(self.now_ms + self.latency(), not_before_ms)

        def deliver() -> None:
            if (source.node_id, target.node_id) in self._cut:
                self.after(_LOOK_MS, deliver)
            else:
                arrive()

        self.at(due_ms, deliver)
        return due_ms

    def connect(self, client: Process, server: Process) -> Stream:
        """Opens a Replicate stream."""
        stream = Stream(self, client, server)
        self._streams = [one for one in self._streams if not one.is_cancelled and not one.client.is_dead]
        self._streams.append(stream)
        return stream

    def ask(self, client: object, connection: int, process: Process, asked: Produced, answer: Callable[..., object]) -> None:
        """A client's append, in order on its connection. The request or the response may be lost."""
        found = self._connections.get(client)
        if found is None or found.number != connection:
            found = self._connections[client] = _Connection(connection)
        due_ms = found.request_ms = self._due_after(found.request_ms)

        def reply(base_offset: int, error: BaseException | None) -> None:
            if self.promises[TP].is_past(process):
                found.request_ms = found.reply_ms = _LOST_MS  # drops every later message of this connection as well
                return
            if error is None:
                self.promises[TP].check_copies(base_offset + asked.batch.header.record_count)
            found.reply_ms = self._due_after(found.reply_ms)
            history = self.history
            self.at(found.reply_ms, lambda: answer(asked.batch.header, base_offset, error) if history == self.history else None)

        self.at(due_ms, lambda: process.enter(lambda: process.produce(asked, reply)))

    def _due_after(self, before_ms: int) -> int:
        """When a client's message arrives: in order, and once one message is lost, all later ones on its connection are lost."""
        if self.rng.random() < 0.005 and not self.is_healing:
            return _LOST_MS
        return max(self.now_ms + self.latency(), before_ms)

    # --- clients

    def start_clients(self) -> None:
        """Schedules the clients' steps."""
        self.every(self.honest.step, (5, 70))
        self.every(self.plain.step, (30, 250))
        for reader in self.readers:
            self.every(reader.step, (40, 250))

    def every(self, step: Callable[[], None], between_ms: tuple[int, int]) -> None:
        """Repeats a client's step at random intervals (ms)."""

        def again() -> None:
            step()
            self.after(self.rng.randint(*between_ms) * (4 if self.is_healing else 1), again)

        self.after(self.rng.randint(*between_ms), again)

    # --- faults

    def faults(self) -> Mapping[Callable[[], None], int]:
        return {
            self._kill_one: 6,
            self.start_one: 12,
            self._restart_one: 4,
            self._kill_all: 1,
            self._pause_one: 4,
            self.cut_link: 8,
            self._cut_off_one: 5,
            self.store.go_down: 2,
            self._break_stream: 4,
            self._slow_one: 4,
            self.store.lose_lease: 3,
            self.trim: 7,
            self._fail_a_sync: 1,
            self.move: 3,
            self._stop_one: 3,
        }

    def _fault(self) -> None:
        if not self.is_healing:
            self.rng.choices(list(self._faults), list(self._faults.values()))[0]()
            self.after(self.rng.randint(*self.between_faults_ms), self._fault)

    def mishap(self, process: Process) -> Callable[[str, str], None] | None:
        """Returns the file hook of a job: mostly None, sometimes one that kills the process in the middle."""
        if self.is_healing or self.rng.random() > self.mishaps:
            return None
        left = self.rng.choice((0, 1, 2, 4, 8))

        def hook(_operation: str, _path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed

        return hook

    def crash(self, machine: Machine) -> None:
        """Kills a process or, with a power cut, its machine."""
        process = machine.process
        assert process is not None
        machine.process = None
        process.end()
        process.disk.recovers()
        if self.rng.random() < 0.6:
            process.disk.files.power_cut(self.rng, any_subset=self.rng.random() < 0.5)
            self.count("power cut")
        else:
            process.disk.files.kill()
            self.count("killed")
        self.store.stops_renewing(process, self.rng.randint(0, LEASE_MS))
        for stream in self._streams:
            if stream.server is process:
                self.after(self.rng.randint(0, 800), stream.break_off)

        self.crashed(process)

    def crashed(self, process: Process) -> None:
        """Hook for subclasses: a process was killed."""

    def start(self, machine: Machine) -> None:
        """Starts a node on its machine's current disk."""
        machine.process = self.new_process(machine)
        self.count("started")

    def new_process(self, machine: Machine) -> Process:
        """Creates a node's process."""
        return Process(self, machine)

    def _kill_one(self) -> None:
        up = [machine for machine in self.machines.values() if machine.process is not None]
        leader = self.machines.get(self.entries[self.some_tp()].leader)
        if leader in up and self.rng.random() < 0.4:
            up = [leader]
        if up:
            self.crash(self.rng.choice(up))

    def _kill_all(self) -> None:
        for machine in self.machines.values():
            if machine.process is not None:
                self.crash(machine)
        self.count("all crashed")

    def _restart_one(self) -> None:
        self._kill_one()
        self.after(self.rng.randint(10, 400), self.start_one)

    def start_one(self) -> None:
        """Starts a node that is down, with the same disk or another one."""
        if self.is_healing:
            return
        down = [machine for machine in self.machines.values() if machine.process is None]
        if self.disasters is not None:
            down = [machine for machine in down if self.disasters.may_start(machine)]
        stopped = [process for process in self.lives() if process.has_failed()]
        if stopped and self.rng.random() < 0.3:
            self.crash(stopped[0].machine)
        if not down:
            return
        machine = self.rng.choice(down)
        kind = self.rng.random()
        if self.may_take_out(machine):
            self._change_disk(machine, kind)
        self.start(machine)

    def may_take_out(self, machine: Machine) -> bool:
        """True if the disk of a machine may be replaced."""
        return True

    def _change_disk(self, machine: Machine, kind: float) -> None:
        if len(machine.disks) > 1 and kind < 0.5:
            machine.disk = self.rng.choice(machine.disks)
            self.count("an old disk")
        elif kind > 0.85:
            machine.disk = Disk()
            machine.disks.append(machine.disk)
            self.count("emptied")

    def _pause_one(self) -> None:
        process = self.any_process()
        if process is not None:
            self.pause(process)

    def pause(self, process: Process) -> None:
        """Pauses a process for a while."""
        process.pause()
        self.count("paused")
        self.store.stops_renewing(process, LEASE_MS)
        self.after(self.rng.choice((50, 400, 1_000, 2_500)), process.resume)

    def cut_link(self) -> None:
        """Cuts the link between two nodes for a while, in one or both directions."""
        source, target = self.rng.sample(sorted(self.machines), 2)
        self.cut({(source, target)} if self.rng.random() < 0.5 else {(source, target), (target, source)})

    def cut(self, links: set[Link]) -> None:
        """Holds back all messages on these links for a while."""
        self._cut |= links
        self.count("link cut")
        self.after(self.rng.choice((50, 300, 1_000, 3_000)), lambda: self._cut.difference_update(links))
        self.links_cut(links)
        for stream in self._streams:
            ends = (stream.client.node_id, stream.server.node_id)
            if links & {ends, ends[::-1]} and self.rng.random() < 0.5:
                self.after(self.rng.randint(50, 1_500), stream.break_off)

    def links_cut(self, links: set[Link]) -> None:
        """Hook for subclasses: messages on these links may be lost."""

    def _cut_off_one(self) -> None:
        self.store.cut_off_for(self.rng.choice(sorted(self.machines)), self.rng.choice((100, 700, 2_000, 4_000)))

    def _break_stream(self) -> None:
        if self._streams:
            self.rng.choice(self._streams).break_off()
            self.count("stream broken")

    def _slow_one(self) -> None:
        node_id = self.rng.choice(sorted(self.machines))
        self._slow.add(node_id)
        self.after(self.rng.choice((300, 1_500)), lambda: self._slow.discard(node_id))

    def trim(self) -> None:
        """Deletes records, as a DeleteRecords request does."""
        process = self.leader()
        if process is not None:
            process.enter(lambda: process.trim(self.rng))
            self.count("records deleted")

    def _fail_a_sync(self) -> None:
        process = self.any_process()
        if process is not None and len(process.logs.partitions):
            process.fails_next_sync = True

    def move(self) -> None:
        """An operator reassigns a partition: other replicas, or another preferred leader."""
        tp = self.some_tp()
        self.move_to(tp, tuple(self.rng.sample(sorted(self.machines), len(self.entries[tp].replicas))))

    def move_to(self, tp: TopicIdPartition, target: tuple[int, ...], *, is_instead: bool = False) -> None:
        """Sets a partition's target replicas, preferred leader first. `is_instead`: replaces a reassignment under way."""
        entry, key = self.entries[tp], KEYS.partition(tp)
        if target and not self.store.is_down and (is_instead or not entry.target) and target != entry.replicas:
            known = self.store.state.present[key].mod_revision
            self.store.transact(Transaction({key: known}, {key: encode(entry._replace(target=target))}))
            self.count("shall move")

    def _stop_one(self) -> None:
        """Begins a clean shutdown of a node."""
        process = self.any_process()
        if process is not None:
            process.enter(lambda: process.begin(process.stop()))

    def ends(self, process: Process) -> None:
        """A clean shutdown has completed."""
        if not process.is_dead:
            self.crash(process.machine)
            self.count("stopped")
            if self.is_healing:
                self.start(process.machine)

    # --- the schedule

    def _begin(self) -> None:
        self.is_healing = True  # no faults until the topics exist
        self.store.transact(Transaction({}, {KEYS.cluster_id: CLUSTER.id.encode()}))
        for machine in self.machines.values():
            self.start(machine)
        self._run_until(100)
        self.make_topics()
        self.store.made_revision = self.store.state.revision
        self.is_healing = False

    def image(self) -> ClusterImage:
        """The cluster image according to the store."""
        image = ClusterImage(KEYS)
        for event in self.store.state.present.values():
            see(image, event)
        return image

    def make_topics(self) -> None:
        """Creates the topics."""
        factor = min(self.rng.choice((2, 3, 3, 3)), len(self.machines))
        (entry,) = place(self.image(), 1, factor)
        self.store.transact(Transaction({}, {KEYS.partition(TP): encode(entry)}))
        topic = TopicEntry(TOPIC, 1, {})
        self.store.transact(Transaction({}, {KEYS.topic(TP.topic_id): encode(topic), KEYS.name(TOPIC): TP.topic_id.hex().encode()}))

    def run(self) -> dict[str, int]:
        """Runs the schedule to its end; returns how often each event occurred."""
        try:
            self._begin()
            self.start_clients()
            self._faults = self.faults()
            self.after(self.rng.randint(50, 600), self._fault)
            if self.disasters is not None:
                self.disasters.begin()
                self._run_until(self.now_ms + self.disasters.lasts_ms)
            self._run_until(self.now_ms + self.rng.randint(*self.lasts_ms))
            self._heal()
        finally:
            for process in self.lives():
                process.end()
        return self.facts

    def _heal(self) -> None:
        """Ends all faults, then checks that the cluster recovers."""
        self.is_healing, self.store.is_down = True, False
        self.calm_down()
        self._cut.clear()
        self.store.cut_off.clear()
        self._slow.clear()
        for process in self.lives():
            process.fails_next_sync = False
            process.disk.recovers()
            process.resume()
        self._put_back()
        if any(machine.process is None for machine in self.machines.values()) and self.rng.random() < 0.3:
            self._check_dead()
        for machine in self.machines.values():
            if machine.process is None:
                self.start(machine)
        self._run_until(self.now_ms + 2_500)
        for machine in self._put_back():  # a late transaction may have changed an in-sync set
            self.start(machine)
        self._check_stopped()
        for process in self.lives():
            if any(partition.is_stopped for partition in process.logs.partitions):
                self.crash(process.machine)
                self.start(process.machine)
        self._run_until(self.now_ms + 500)
        self.end_clients()
        end_ms = self.now_ms + self.healed_within_ms
        while problem := self._problem():
            assert self.now_ms < end_ms, f"it is not healed: {problem}; {self._state()}"
            epoch = max(entry.leader_epoch for entry in self.entries.values())
            assert epoch < _EPOCHS_MAX, f"leaders are elected again and again: {self._state()}"
            if self.disasters is not None:
                self.disasters.operate()
            self._run_until(self.now_ms + _LOOK_MS)
        self.check_end()

    def calm_down(self) -> None:
        """All faults have ended: clients finish now or continue for a while."""
        self.honest.is_ending = self.plain.is_ending = (
            self.rng.random() < 0.4
        )  # further appends may hide that earlier records are missing

    def end_clients(self) -> None:
        """Clients start nothing new."""
        self.honest.is_ending = self.plain.is_ending = True

    def _put_back(self) -> list[Machine]:
        """For each partition whose in-sync disks are all out of their machines, puts one back. Returns those machines; they are
        down."""
        changed = []
        for tp in self.tps:
            named = {replica.directory_id for replica in self.entries[tp].isr}
            if any(machine.disk.directory_id in named for machine in self.machines.values()):
                continue
            out = [(machine, disk) for machine in self.machines.values() for disk in machine.disks if disk.directory_id in named]
            for machine, disk in out[:1]:  # empty before the partition is created
                if machine.process is not None:
                    self.crash(machine)
                machine.disk = disk
                changed.append(machine)
        return changed

    def _check_dead(self) -> None:
        """Checks that the live in-sync replicas of a partition work without the dead nodes."""
        self._run_until(self.now_ms + 4_000)
        for tp in self.tps:
            entry = self.entries[tp]
            able = {one.node_id: self.life_of(one.directory_id) for one in entry.isr}
            if any(process is not None for process in able.values()):
                leader = self.machines[entry.leader].process if entry.leader != NO_LEADER else None
                assert leader is not None, f"some that are in sync are alive, and nobody leads that is: {self._state()}"
                self.count("goes on without some")

    def _check_stopped(self) -> None:
        """Checks that a leader whose log has stopped has handed over to a live in-sync replica."""
        for tp in self.tps:
            leader, entry = self.leader(tp), self.entries[tp]
            led = leader.replica(tp) if leader is not None else None
            others = [self.life_of(replica.directory_id) for replica in entry.isr if replica.node_id != entry.leader]
            copies = [one.replica(tp) for one in others if one is not None]
            able = [one for one in copies if one is not None and not one.is_stopped]
            if led is not None and led.is_stopped:
                self.count("leader stopped")
                assert not able, f"a leader whose log has stopped keeps its place: {self._state()}"

    def _problem(self) -> str:
        """Describes what has not recovered yet; "" if everything has."""
        found = (problem for tp in self.tps if (problem := self._problem_of(tp)))
        return next(found, "") or self.problem_of_clients()

    def problem_of_clients(self) -> str:
        """Describes what clients have not finished."""
        return self.honest.problem()

    def _problem_of(self, tp: TopicIdPartition) -> str:
        leader, entry = self.leader(tp), self.entries[tp]
        led = leader.replica(tp) if leader is not None else None
        if led is None:
            return f"nobody leads {tp}"
        end = led.ends.log_end_offset
        if entry.target:
            return f"{tp} has not moved"
        if len(entry.isr) < len(entry.replicas):
            return f"not all are in sync in {tp}"
        for node_id in entry.replicas:
            process = self.machines[node_id].process
            log = process.replica(tp) if process is not None else None
            if log is None or (log.ends.log_end_offset, log.ends.high_watermark) != (end, end):
                return f"node {node_id} does not have all of {tp}"
            if log.ends.log_start_offset < led.ends.log_start_offset:
                return f"node {node_id} keeps what the leader of {tp} has removed"
        return ""

    def check_end(self) -> None:
        """Checks that all copies are equal and hold what was promised."""
        for tp in self.tps:
            self.promises[tp].check_lost()
            self._check_copies(tp)
        self.check_clients()
        self.count("healed")

    def _check_copies(self, tp: TopicIdPartition) -> None:
        logs = self._copies(tp)
        start = max(log.ends.log_start_offset for log in logs)
        found = [list(headers(log, start, below=LogEnd.LOG_END)) for log in logs]
        for other in found[1:]:
            assert other == found[0], f"the logs of two replicas of {tp} differ"
        # A leader elected without all records may have started its copy above a producer's batches, from a snapshot that already
        # had later batches only.
        above = start if self.promises[tp].have_been_broken else 0
        known = [
            {pid: entry.last_sequence for pid, entry in log.producers.entries.items() if entry.batches[-1].last_offset >= above}
            for log in logs
        ]
        for producers in known[1:]:
            assert producers == known[0], f"two replicas of {tp} know other producers: {known}"

    def _copies(self, tp: TopicIdPartition) -> list[Partition]:
        lives = [self.machines[node_id].process for node_id in self.entries[tp].replicas]
        found = [process.replica(tp) for process in lives if process is not None]
        return [log for log in found if log is not None]

    def check_clients(self) -> None:
        """Checks that the honest producer's records are in the log once and in order."""
        self.honest.check(self._copies(TP)[0])


def run_seed(seed: int) -> dict[str, int]:
    """Runs one schedule."""
    return Simulation(seed).run()
