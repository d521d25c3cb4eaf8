"""What a replicated partition has promised to anyone, checked after each step of a schedule against all disks that there are.

- A batch that was acknowledged, or that a consumer has read, stands at its offset in the log of every leader from then on, and no
  other was ever there.
- Whatever leader has shown a high watermark: each directory that the store names as in sync has everything below it, durably.
- What was acknowledged with acks=all is durable in as many directories as min.insync.replicas says.
- One life leads in a leader epoch, and the store names one leader for it.
- log_start_offset <= last_stable_offset <= high_watermark <= durable_end <= log_end_offset on every replica, and no follower has a
  higher high watermark than a leader has shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from brokerd.cluster.keys import PartitionEntry
from brokerd.ids import NO_LEADER, TopicIdPartition
from brokerd.partition.following import ReplicatedPartition
from brokerd.partition.leader_epochs import EpochEntry, LeaderEpochs
from brokerd.partition.log_ends import LogEnd
from brokerd.record.header import BatchHeader
from tests.support.replication_nodes import NO_COPY, Disk, Process, headers

if TYPE_CHECKING:
    from tests.support.replication_simulation import Simulation


class Identity(NamedTuple):
    """What a batch is, wherever it stands. Payloads are random."""

    record_count: int
    payload_crc: int
    producer_id: int
    base_sequence: int


def identity(header: BatchHeader) -> Identity:
    """The identity of a batch."""
    return Identity(header.record_count, header.payload_crc, header.producer_id, header.base_sequence)


class Promises:
    """See the module."""

    def __init__(self, sim: Simulation, tp: TopicIdPartition) -> None:
        self._sim = sim
        self.tp = tp
        self.committed: dict[int, Identity] = {}  # what was acknowledged or read, by base offset
        self.shown = 0  # the highest high watermark of any leader
        self._shown_epoch: EpochEntry | None = None  # of the record before it
        self._leaders: dict[int, Process] = {}  # by leader epoch
        self._named: dict[int, tuple[int, int]] = {}  # by leader epoch: node and node epoch, as in the store

    @property
    def _entry(self) -> PartitionEntry:
        return self._sim.entries[self.tp]

    # What is promised

    def promise(self, base_offset: int, what: Identity) -> None:
        """A client was told that this batch is committed."""
        assert self.committed.setdefault(base_offset, what) == what, f"offset {base_offset} is given twice"
        assert base_offset < self.shown, f"offset {base_offset} is above the high watermark {self.shown}"

    def check_copies(self, end: int) -> None:
        """A producer is about to be told that everything below `end` is committed, with acks=all."""
        copies = sum(self._state(disk)[0] >= end for disk in self._sim.disks())
        entry = self._entry
        made = {replica.node_id for replica in (*entry.isr, *entry.out_of_sync)}  # others are being copied for the first time
        wanted = min(self._min_insync(), len(made.intersection(entry.replicas)))
        assert copies >= wanted, f"offset {end - 1} is acknowledged with {copies} copies, fewer than {wanted}"

    def _min_insync(self) -> int:
        return self._sim.config.min_insync_replicas

    # What happens

    def named(self, before: PartitionEntry | None, entry: PartitionEntry) -> None:
        """The store has another entry."""
        leader = (entry.leader, entry.leader_node_epoch)
        assert before is None or entry.leader_epoch >= before.leader_epoch, "a leader epoch went back"
        assert self._named.setdefault(entry.leader_epoch, leader) == leader, f"two leaders in epoch {entry.leader_epoch}"
        self.check_in_sync()
        if entry.leader != NO_LEADER and (before is None or before.leader_epoch < entry.leader_epoch):
            winner = next((each for each in entry.isr if each.node_id == entry.leader), None)
            assert winner is not None, "a node leads that is not in sync"
            process = self._sim.life_of(winner.directory_id)
            partition = process.replica(self.tp) if process is not None else None
            if partition is not None:
                self._check_log(partition)

    def led(self, process: Process, partition: ReplicatedPartition) -> None:
        """A life of a node begins to lead."""
        epoch = partition.leader_epoch
        assert self._leaders.setdefault(epoch, process) is process, f"two lives lead in epoch {epoch}"
        if epoch == self._entry.leader_epoch:  # else it hears late of an old election
            self._check_log(partition)

    def check(self, process: Process) -> None:
        """Something has happened in a process."""
        partition = process.replica(self.tp)
        if partition is None:
            state: tuple[int, ...] = (-1,)
        else:
            ends = partition.ends
            start, stable, high = ends.log_start_offset, ends.last_stable_offset, ends.high_watermark
            state = (start, stable, high, ends.durable_end, ends.log_end_offset, partition.is_leader)
        if state == process.seen_states.get(self.tp):
            return
        process.seen_states[self.tp] = state
        if partition is not None:
            ordered = start <= stable <= high <= ends.durable_end <= ends.log_end_offset
            assert ordered, f"node {process.node_id}: the ends are out of order: {state}"
            if partition.is_leader and high > self.shown:
                before, self.shown, self._shown_epoch = self.shown, high, partition.epochs.entry_at(high - 1)
                self.grown(partition, before)
            assert high <= self.shown, f"node {process.node_id} has a high watermark of {high} that no leader has shown"
            if partition.is_leader:
                self.seen(process, partition)
        self.check_in_sync()

    def grown(self, partition: ReplicatedPartition, before: int) -> None:
        """A leader's high watermark has passed all others, the highest of which was `before`."""

    def seen(self, process: Process, partition: ReplicatedPartition) -> None:
        """Readers of this leader may see something else than before."""

    def check_in_sync(self) -> None:
        """Whoever is in sync has all that was shown."""
        for replica in self._entry.isr:
            disk = self._sim.disk_of(replica.directory_id)
            end, epochs = self._state(disk)
            assert end >= self.shown, (
                f"{replica.node_id} is in sync with {end} durable records, and a leader has shown a high watermark of {self.shown}"
            )
            if self.shown and self._shown_epoch is not None:
                found = epochs.entry_at(self.shown - 1)
                assert found == self._shown_epoch, f"{replica.node_id} has {found} before {self.shown}, not {self._shown_epoch}"

    def check_lost(self) -> None:
        """Checks at the end that the leader's log has all."""
        process = self._sim.leader(self.tp)
        partition = process.replica(self.tp) if process is not None else None
        assert partition is not None
        self._check_log(partition)

    def _state(self, disk: Disk) -> tuple[int, LeaderEpochs]:
        """The durable end, and the epochs, of the copy on a disk."""
        process = self._sim.life_of(disk.directory_id)
        if process is None:
            copy = disk.copies.get(self.tp, NO_COPY)
            return copy.durable_end, LeaderEpochs(copy.epochs)
        partition = process.replica(self.tp)
        return (partition.ends.durable_end, partition.epochs) if partition is not None else (0, LeaderEpochs())

    def _check_log(self, partition: ReplicatedPartition) -> None:
        """A leader has everything that was promised."""
        start, there = partition.ends.log_start_offset, {}
        for header in headers(partition, start, below=LogEnd.LOG_END):
            there[header.base_offset] = identity(header)
        assert start <= self.shown, f"the log starts at {start}, above all that was shown ({self.shown})"
        first = min(there, default=start)
        for offset, what in self.committed.items():
            if offset >= max(start, first):
                assert there.get(offset) == what, f"what was committed at offset {offset} is lost"
        end = partition.ends.log_end_offset
        assert end >= self.shown, f"the leader's log ends at {end}, below {self.shown}, which was shown"
