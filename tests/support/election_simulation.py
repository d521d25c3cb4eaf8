"""Nodes that come and go, lose their disks, and see the cluster's keys late; several that believe to be the controller; and the
logs of one topic's partitions, as far as elections decide about them: who may acknowledge, and who leads next.

The store is a dictionary with revisions. A leader acknowledges what all that it counts as in sync have copied in its epoch; a
follower copies from the leader that it knows of. Promises: a leader epoch has one leader; epochs only rise; whoever begins to lead
has all that was ever acknowledged; and a partition is led as soon as everybody has seen everything and somebody in sync is alive.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from brokerd.cluster import election
from brokerd.cluster.election import place
from brokerd.cluster.image import ClusterImage, PartitionAt
from brokerd.cluster.keys import InSyncReplica, Keys, PartitionEntry, Registration, TopicEntry, decode_partition, encode
from brokerd.ids import NO_LEADER, TopicIdPartition
from tests.support.coordination_store import Store, see

NODES = (1, 2, 3, 4)
PARTITIONS = 3
STEPS = 160
KEYS = Keys("test")
TOPIC_ID = b"t" * 16
TPS = tuple(TopicIdPartition(TOPIC_ID, number) for number in range(PARTITIONS))


class Leading(NamedTuple):
    """What a node knows while it leads a partition: in which epoch, what the copies have, and who is about to join."""

    leader_epoch: int
    reported: dict[int, int]  # by node id: entries that it has of this epoch's log
    joining: set[int]


class Process:
    """One life of a node: its directory, and the keys as far as it has seen them."""

    def __init__(self, node_id: int, directory_id: str) -> None:
        self.node_id = node_id
        self.directory_id = directory_id
        self.image = ClusterImage(KEYS)
        self.seen = 0  # events
        self.epoch = 0  # its node epoch
        self.leading: dict[TopicIdPartition, Leading] = {}

    def partition(self, tp: TopicIdPartition) -> PartitionAt:
        """A partition as this process sees it."""
        found = self.image.partition(tp)
        assert found is not None
        return found


class Simulation:
    """One schedule. Raises AssertionError where a promise is broken."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.facts: Counter[str] = Counter()
        self.store = Store()
        self.directories: dict[int, str] = {}
        self.logs: dict[tuple[str, TopicIdPartition], list[int]] = {}
        self.acknowledged: dict[TopicIdPartition, list[int]] = {tp: [] for tp in TPS}
        self.leaders: dict[tuple[TopicIdPartition, int], tuple[int, int]] = {}  # by leader epoch: node and node epoch
        self.running: dict[int, Process] = {}
        self.next_entry = 0
        for node_id in NODES:
            self.start(node_id)
        image = self.watch_all()
        for tp, entry in zip(TPS, place(image, PARTITIONS, self.random.choice((1, 2, 3))), strict=True):
            self.write_partition(tp, entry)
        self.store.write(KEYS.topic(TOPIC_ID), encode(TopicEntry("orders", PARTITIONS, {})))
        self.store.write(KEYS.name("orders"), TOPIC_ID.hex().encode())
        for process in self.running.values():
            self.see(process, len(self.store.events))

    def run(self) -> Mapping[str, int]:
        """Runs the schedule, and lets everything settle."""
        steps = (
            self.node_step,
            self.watch_step,
            self.watch_step,
            self.elect_step,
            self.leader_step,
            self.leader_step,
            self.leader_step,
        )
        for _ in range(STEPS):
            self.random.choice(steps)()
        self.settle()
        return self.facts

    # --- nodes

    def node_step(self) -> None:
        """A node starts, dies, or is given up by the store."""
        node_id = self.random.choice(NODES)
        if node_id not in self.running:
            if self.random.random() < 0.3:
                self.store_forgets(node_id)
            elif self.random.random() < 0.7:
                self.start(node_id)
        elif self.random.random() < 0.5:
            del self.running[node_id]
            self.facts["died"] += 1
        elif self.random.random() < 0.3:
            self.store_forgets(node_id)  # a lease lost while the node runs on: it registers anew when it notices
            self.register(self.running[node_id])
            self.facts["lost its lease"] += 1

    def start(self, node_id: int) -> None:
        """Starts a node, perhaps on an emptied disk."""
        if node_id not in self.directories or self.random.random() < 0.2:
            self.directories[node_id] = f"{node_id}-{self.random.getrandbits(32):08x}"
            self.facts["emptied"] += 1
        process = self.running[node_id] = Process(node_id, self.directories[node_id])
        self.store_forgets(node_id)
        self.register(process)
        self.see(process, self.random.randrange(len(self.store.events) + 1))

    def register(self, process: Process) -> None:
        """Registers a process."""
        self.store.write(KEYS.node(process.node_id), encode(Registration("127.0.0.1", 9092, process.directory_id)))
        process.epoch = self.store.revision

    def store_forgets(self, node_id: int) -> None:
        """The registration's lease ends."""
        if KEYS.node(node_id) in self.store.present:
            self.store.write(KEYS.node(node_id), None)

    # --- what a node sees

    def watch_step(self) -> None:
        """A node sees some of what has happened."""
        if self.running:
            process = self.random.choice(list(self.running.values()))
            self.see(process, process.seen + self.random.choice((1, 3, 1_000)))

    def see(self, process: Process, until: int) -> None:
        """Lets a process see the events below `until`, and take the roles that they give it."""
        for event in self.store.events[process.seen : until]:
            process.seen += 1
            see(process.image, event)
            for tp in TPS:
                self.take_role(process, tp)

    def take_role(self, process: Process, tp: TopicIdPartition) -> None:
        """A process leads in an epoch that was decided for this life of it, and in no other."""
        found = process.image.partition(tp)
        entry = found.entry if found is not None else PartitionEntry((), ())
        if (entry.leader, entry.leader_node_epoch) != (process.node_id, process.epoch):
            process.leading.pop(tp, None)
        elif tp not in process.leading or process.leading[tp].leader_epoch != entry.leader_epoch:
            process.leading[tp] = Leading(entry.leader_epoch, {}, set())
            self.facts["led"] += 1
            log = self.log(process, tp)
            if (entry.leader_epoch, process.epoch) >= self.newest(tp):  # else it sees an old election
                assert log[: len(self.acknowledged[tp])] == self.acknowledged[tp], "the new leader lacks what was acknowledged"

    def newest(self, tp: TopicIdPartition) -> tuple[int, int]:
        """Leader epoch and leader's node epoch in the store."""
        entry = decode_partition(self.store.present[KEYS.partition(tp)].value or b"")
        return entry.leader_epoch, entry.leader_node_epoch

    def watch_all(self) -> ClusterImage:
        """An image of everything."""
        observer = Process(0, "")
        observer.seen = 0
        for event in self.store.present.values():
            observer.image.put(
                event.key, event.value or b"", create_revision=event.create_revision, mod_revision=event.mod_revision
            )
        return observer.image

    # --- the controller

    def elect_step(self) -> None:
        """A node that believes to be the controller holds the elections that it takes for due."""
        if self.running:
            self.elect(self.random.choice(list(self.running.values())).image)

    def elect(self, image: ClusterImage) -> None:
        """Holds all elections that are due in an image; those that rest on an old entry fail."""
        for tp, partition in list(image.partitions()):
            elected = election.elect(partition.entry, image.nodes)
            if elected is None:
                continue
            if self.change(tp, partition, elected):
                self.facts["elected" if elected.leader != NO_LEADER else "without a leader"] += 1
            else:
                self.facts["too late"] += 1

    def change(self, tp: TopicIdPartition, partition: PartitionAt, entry: PartitionEntry) -> bool:
        """Writes an entry under the comparison of the one that it rests on, and checks what the store then says."""
        before = decode_partition(self.store.present[KEYS.partition(tp)].value or b"")
        if not self.store.compare_and_set(KEYS.partition(tp), partition.mod_revision, encode(entry)):
            return False
        self.check_epoch(tp, before, entry)
        return True

    def write_partition(self, tp: TopicIdPartition, entry: PartitionEntry) -> None:
        """Writes a new partition."""
        self.store.write(KEYS.partition(tp), encode(entry))
        self.check_epoch(tp, PartitionEntry((), ()), entry)

    def check_epoch(self, tp: TopicIdPartition, before: PartitionEntry, entry: PartitionEntry) -> None:
        """Leader epochs rise with each other leader, and have one leader each."""
        leader = (entry.leader, entry.leader_node_epoch)
        assert entry.leader_epoch >= before.leader_epoch, "a leader epoch went back"
        assert self.leaders.setdefault((tp, entry.leader_epoch), leader) == leader, "two leaders in one epoch"
        assert entry.leader == NO_LEADER or entry.leader in {replica.node_id for replica in entry.isr}, "led from outside the ISR"

    # --- leaders and followers

    def leader_step(self) -> None:
        """Something happens at a partition that a process believes to lead."""
        led = [(process, tp) for process in self.running.values() for tp in process.leading]
        if led:
            process, tp = self.random.choice(led)
            self.random.choice((self.append, self.copy, self.copy, self.acknowledge, self.acknowledge, self.change_isr))(
                process, tp
            )

    def log(self, process: Process, tp: TopicIdPartition) -> list[int]:
        """The log in a process's directory."""
        return self.logs.setdefault((process.directory_id, tp), [])

    def append(self, leader: Process, tp: TopicIdPartition) -> None:
        """Appends an entry."""
        self.next_entry += 1
        self.log(leader, tp).append(self.next_entry)

    def copy(self, leader: Process, tp: TopicIdPartition) -> None:
        """A follower that knows this leader in this epoch becomes equal to it."""
        node_id = self.random.choice(leader.partition(tp).entry.replicas)
        follower, leading = self.running.get(node_id), leader.leading[tp]
        if follower is None or follower is leader or follower.image.partition(tp) is None:
            return
        entry = follower.partition(tp).entry
        if (entry.leader, entry.leader_epoch) == (leader.node_id, leading.leader_epoch):
            self.log(follower, tp)[:] = self.log(leader, tp)
            leading.reported[node_id] = len(self.log(leader, tp))

    def acknowledge(self, leader: Process, tp: TopicIdPartition) -> None:
        """Acknowledges what all have that count as in sync: those joining too."""
        leading, log = leader.leading[tp], self.log(leader, tp)
        counted = {replica.node_id for replica in leader.partition(tp).entry.isr} | leading.joining
        end = min((leading.reported.get(node_id, 0) for node_id in counted - {leader.node_id}), default=len(log))
        known = self.acknowledged[tp]
        assert log[: min(end, len(known))] == known[: min(end, len(known))], "two entries are acknowledged at one offset"
        if end > len(known):
            known[:] = log[:end]
            self.facts["acknowledged"] += 1

    def change_isr(self, leader: Process, tp: TopicIdPartition) -> None:
        """The leader drops a replica from the ISR, or takes back one that has everything."""
        leading, partition = leader.leading[tp], leader.partition(tp)
        entry = partition.entry
        node_id = self.random.choice(entry.replicas)
        in_sync = {replica.node_id for replica in entry.isr}
        if node_id == leader.node_id:
            return
        if node_id in in_sync:
            isr = tuple(replica for replica in entry.isr if replica.node_id != node_id)
        else:
            node = leader.image.nodes.get(node_id)
            if node is None or leading.reported.get(node_id, -1) < len(self.log(leader, tp)):
                return
            process = self.running.get(node_id)
            if process is None or process.directory_id != node.registration.directory_id:
                return  # what it reported, another directory had
            isr = (*entry.isr, InSyncReplica(node_id, node.registration.directory_id))
            leading.joining.add(node_id)
        if self.change(tp, partition, entry._replace(isr=isr)):
            self.facts["joined" if node_id not in in_sync else "left"] += 1

    # --- the end

    def settle(self) -> None:
        """Everybody sees everything, and one controller holds the elections: what can be led is led, by one that is alive."""
        for _ in range(2):
            for process in self.running.values():
                self.see(process, len(self.store.events))
            for node_id in NODES:
                if node_id not in self.running:
                    self.store_forgets(node_id)
            self.elect(self.watch_all())
        for process in self.running.values():
            self.see(process, len(self.store.events))
        for tp in TPS:
            entry = decode_partition(self.store.present[KEYS.partition(tp)].value or b"")
            able = {
                replica.node_id
                for replica in entry.isr
                if replica.node_id in self.running and self.running[replica.node_id].directory_id == replica.directory_id
            }
            assert (entry.leader in able) if able else (entry.leader == NO_LEADER), f"{entry} is not led by one of {able}"
            assert not able or tp in self.running[entry.leader].leading, "the leader does not know that it leads"
            self.facts["led in the end" if able else "waits in the end"] += 1


def run_seed(seed: int) -> Mapping[str, int]:
    """Runs one schedule."""
    return Simulation(seed).run()
