"""What a replicated partition has promised, checked after each step of a schedule against all disks.

- A batch that was acknowledged or read by a consumer is at its offset in the log of every later leader; no other batch ever was.
- Each directory that the store names in sync durably holds everything below the highest high watermark that any leader has shown.
- A batch acknowledged with acks=all is durable in at least min.insync.replicas directories.
- In each leader epoch one process leads, and the store names one leader.
- log_start_offset <= last_stable_offset <= high_watermark <= durable_end <= log_end_offset on every replica, and no follower's high
  watermark exceeds the highest that a leader has shown.
- Acknowledgements of a leader that has not noticed a rollback of the store do not count: clients here never receive them.

An unclean election, or a rollback of the store to an older in-sync set, may elect a copy that lacks promised records. From then on
its log defines what is promised. The copies that were in sync keep everything until an operator removes them, if the election was
by command or the leader epochs reveal the rollback. Otherwise they keep what they know to be committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from brokerd.cluster.keys import PartitionEntry
from brokerd.ids import NO_LEADER, TopicIdPartition
from brokerd.partition.leader_epochs import EpochEntry, LeaderEpochs
from brokerd.partition.log_ends import LogEnd
from brokerd.partition.partition import Partition
from brokerd.record.header import BatchHeader
from tests.support.replication_nodes import NO_COPY, Disk, Process, headers

if TYPE_CHECKING:
    from tests.support.replication_simulation import Simulation


class Identity(NamedTuple):
    """Identifies a batch independent of its offset. Payloads are random, so CRCs differ."""

    record_count: int
    payload_crc: int
    producer_id: int
    base_sequence: int


def identity(header: BatchHeader) -> Identity:
    """The identity of a batch."""
    return Identity(header.record_count, header.payload_crc, header.producer_id, header.base_sequence)


class Kept(NamedTuple):
    """The log prefix that an in-sync directory must never truncate."""

    node_id: int
    end: int
    epoch: EpochEntry  # of the last record below `end`


class Promises:
    """See the module."""

    def __init__(self, sim: Simulation, tp: TopicIdPartition) -> None:
        self._sim = sim
        self.tp = tp
        self.committed: dict[int, Identity] = {}  # acknowledged or read batches by base offset
        self.shown = 0  # the highest high watermark of any leader, called "shown"
        self._shown_epoch: EpochEntry | None = None  # of the last record below it
        self._leaders: dict[int, Process] = {}  # by leader epoch
        self._named: dict[int, tuple[int, int]] = {}  # by leader epoch: node id and node epoch in the store
        self._shown_epochs: tuple[EpochEntry, ...] = ()  # of the leader that showed it
        self._ever_shown = 0  # `shown`, including leaders whose records are lost
        self._kept: dict[str, Kept] = {}  # by directory id
        self._have_heard: set[Process] = set()  # processes on directories of `_may_keep` that have received the image
        self._may_keep: dict[str, tuple[Kept, int]] = {}  # keep a prefix only if the next process there can detect the rollback
        self._removed_below = 0  # the highest log start of any leader
        self._stale: set[str] = set()  # directories that an older state of the store, or a command, named in sync
        self._unproven: set[str] = set()  # stale directories that lack something, and directories that joined one of them
        self._based: set[str] = set()  # stale directories that have led
        self._has_gone_back = False
        self._lost_in = 0  # the last leader epoch that began with lost records

    @property
    def _entry(self) -> PartitionEntry:
        return self._sim.entries[self.tp]

    @property
    def have_been_broken(self) -> bool:
        """True if records were lost."""
        return self._lost_in > 0

    def is_past(self, process: Process) -> bool:
        """True if a process acts on changes that the store has lost in a rollback."""
        partition = process.replica(self.tp)
        if process in self._sim.store.unaware:
            return True
        if partition is None or not partition.is_leader or not self._has_gone_back:
            return False
        return (
            partition.leader_epoch < self._lost_in or self._named.get(partition.leader_epoch, (NO_LEADER, 0))[0] != process.node_id
        )

    # Promises

    def promise(self, base_offset: int, what: Identity) -> None:
        """A client has seen this batch as committed."""
        assert self.committed.setdefault(base_offset, what) == what, f"offset {base_offset} is given twice"
        assert base_offset < self.shown, f"offset {base_offset} is above the high watermark {self.shown}"

    def check_copies(self, end: int) -> None:
        """A producer is about to receive an acks=all acknowledgement of everything below `end`."""
        copies = sum(self._state(disk)[0] >= end for disk in self._sim.disks())
        entry = self._entry
        made = {replica.node_id for replica in (*entry.isr, *entry.out_of_sync)}  # not first copies under way
        wanted = min(self._min_insync(), len(made.intersection(entry.replicas)))
        assert copies >= wanted, f"offset {end - 1} is acknowledged with {copies} copies, fewer than {wanted}"

    def _min_insync(self) -> int:
        return self._sim.config.min_insync_replicas

    # Events

    def may_lack(self, before: PartitionEntry, entry: PartitionEntry, *, is_known: bool = False) -> None:
        """The store was rolled back to an entry older than `before`, or holds one of an unclean election: its in-sync replicas may
        lack records. `is_known`: the former in-sync replicas must notice in any case."""
        if self._shown_epoch is not None:
            for replica in before.isr:
                kept = Kept(replica.node_id, self.shown, self._shown_epoch)
                if replica.directory_id in self._unproven or not self._has_shown(replica.directory_id):
                    continue
                if is_known or replica in entry.superseded:
                    self._keeps(replica.directory_id, kept)
                else:
                    self._may_keep[replica.directory_id] = (kept, entry.leader_epoch)
        named = {replica.directory_id for replica in entry.isr}
        self._stale = (self._stale & named) | named
        # After an earlier loss, any of the in-sync replicas may still hold the lost records.
        is_lost = self._ever_shown > self.shown
        self._unproven = {one for one in named if is_lost or one in self._unproven or not self._has_shown(one)}
        self._based.clear()
        self._named.clear()
        self._leaders.clear()
        if not is_known:
            self._has_gone_back = True
            self._named[entry.leader_epoch] = (entry.leader, entry.leader_node_epoch)

    def _keeps(self, directory_id: str, kept: Kept) -> None:
        known = self._kept.get(directory_id)
        if known is None or known.end <= kept.end:
            self._kept[directory_id] = kept

    def _starts(self, process: Process, partition: Partition) -> None:
        """The first image of a process whose directory was in sync at a rollback: decides whether it has seen a newer epoch."""
        directory_id = process.disk.directory_id
        at = process.membership.image.partition(self.tp)
        if at is None or process in self._have_heard:
            return
        self._have_heard.add(process)
        kept, restored = self._may_keep[directory_id]
        seen, now = partition.leader_epoch, at.entry.leader_epoch
        # In an equal epoch it detects the rollback by the leader epoch id, provided there is a leader.
        is_compared = restored < now == seen == partition.epochs.latest and self._sim.leader(self.tp) is not None
        if now < seen or is_compared:
            self._sim.count("knows that the store went back")
            self._keeps(directory_id, kept)
            return
        del self._may_keep[directory_id]
        if self._kept.get(directory_id) in (None, kept):
            self._kept.pop(directory_id, None)
            end = min(kept.end, partition.ends.high_watermark)
            epoch = partition.epochs.entry_at(end - 1) if end else None
            if epoch is not None:
                self._keeps(directory_id, Kept(kept.node_id, end, epoch))

    def _elected_unclean(self, before: PartitionEntry, entry: PartitionEntry) -> None:
        """A copy that was not in sync leads. Allowed only by command, with no in-sync copy alive, and for the newest responding
        copy."""
        disasters = self._sim.disasters
        assert disasters is not None, "a copy leads that was not in sync"
        disasters.check_winner(self.tp, before, entry)
        self._sim.count("elected unclean")
        self.may_lack(before, entry, is_known=True)

    def _has_shown(self, directory_id: str) -> bool:
        """True if a directory durably holds everything that was shown."""
        end, epochs = self._state(self._sim.disk_of(directory_id))
        return not self.shown or (end >= self.shown and epochs.entry_at(self.shown - 1) == self._shown_epoch)

    def _take_over(self, partition: Partition) -> None:
        """Reduces the promises to what this leader holds."""
        start, end = partition.ends.log_start_offset, min(self.shown, self._common_end(partition))
        there = {header.base_offset: identity(header) for header in headers(partition, start, below=LogEnd.LOG_END)}
        lost = [offset for offset, what in self.committed.items() if offset >= start and there.get(offset) != what]
        if lost or end < self.shown:
            self._sim.count("records lost")
            self._lost_in = partition.leader_epoch
            self._unproven |= self._stale  # the other stale directories now hold a different history
            self.shown = max(min([end, *lost]), start)
            self.committed = {offset: what for offset, what in self.committed.items() if offset < self.shown}
            self._shown_epoch = partition.epochs.entry_at(self.shown - 1) if self.shown else None
            self._shown_epochs = partition.epochs.below(self.shown)
            self.shrunk(partition)
            self._sim.begin_history()

    def _common_end(self, partition: Partition) -> int:
        """The offset up to which a log equals the one that was shown."""
        ends = [partition.ends.durable_end, self.shown]
        shown = list(self._shown_epochs)
        for known, end in zip(reversed(shown), [self.shown, *(entry.start_offset for entry in reversed(shown))], strict=False):
            if (known.epoch, known.id) in {(one.epoch, one.id) for one in partition.epochs.entries}:
                _, own_end = partition.epochs.end_of(known.epoch, partition.ends.log_end_offset)
                return min(end, own_end, *ends)
        return min(*ends, shown[0].start_offset) if shown else min(ends)

    def _settle(self) -> None:
        """Clears the stale and unproven sets once the in-sync replicas can no longer hold different histories."""
        inside = {replica.directory_id for replica in self._entry.isr} & self._stale
        if len(inside) == 1:
            is_over = inside <= self._based or not inside & self._unproven
        else:
            states = [self._state(self._sim.disk_of(one)) for one in inside]
            at = self._ever_shown - 1
            known = {epochs.entry_at(at) for _, epochs in states}
            is_over = all(end > at for end, _ in states) and len(known) <= 1
        if is_over:
            joined = self._unproven & {replica.directory_id for replica in self._entry.isr} - self._stale
            self._stale = set()
            self._unproven = {one for one in joined if self._state(self._sim.disk_of(one))[0] < self._ever_shown}

    def _check_kept(self, process: Process, partition: Partition | None) -> None:
        kept = self._kept.get(process.disk.directory_id)
        if partition is not None and partition.is_leader:
            self._removed_below = max(self._removed_below, partition.ends.log_start_offset)
        if kept is None or kept.end <= self._removed_below or partition is None:
            return
        has_it = partition.ends.log_end_offset >= kept.end and partition.epochs.entry_at(kept.end - 1) == kept.epoch
        assert has_it or partition.ends.log_start_offset >= kept.end, (
            f"node {process.node_id} was in sync with all below {kept.end}, and has removed something of it"
        )

    def named(self, before: PartitionEntry | None, entry: PartitionEntry) -> None:
        """The store has a new entry."""
        if before is not None and entry.isr and not set(entry.isr) & set(before.isr):
            self._elected_unclean(before, entry)
        leader = (entry.leader, entry.leader_node_epoch)
        assert before is None or entry.leader_epoch >= before.leader_epoch, "a leader epoch went back"
        assert self._named.setdefault(entry.leader_epoch, leader) == leader, f"two leaders in epoch {entry.leader_epoch}"
        for replica in entry.superseded:
            self._may_keep.pop(replica.directory_id, None)  # it learns of the rollback from the entry
        gone = set(before.replicas).difference(entry.replicas) if before is not None else set()  # removed by an operator
        self._kept = {one: kept for one, kept in self._kept.items() if kept.node_id not in gone}
        self._may_keep = {one: known for one, known in self._may_keep.items() if known[0].node_id not in gone}
        if self._unproven and before is not None:
            self._unproven |= {replica.directory_id for replica in entry.isr} - {replica.directory_id for replica in before.isr}
        self.check_in_sync()
        if entry.leader != NO_LEADER and (before is None or before.leader_epoch < entry.leader_epoch):
            winner = next((each for each in entry.isr if each.node_id == entry.leader), None)
            assert winner is not None, "a node leads that is not in sync"
            process = self._sim.life_of(winner.directory_id)
            partition = process.replica(self.tp) if process is not None else None
            if partition is not None and winner.directory_id not in self._unproven:
                self._check_log(partition)

    def led(self, process: Process, partition: Partition) -> None:
        """A process becomes leader."""
        epoch = partition.leader_epoch
        if self.is_past(process):
            return
        assert self._leaders.setdefault(epoch, process) is process, f"two lives lead in epoch {epoch}"
        if process.disk.directory_id in self._unproven:
            self._take_over(partition)
            self._based.add(process.disk.directory_id)
        if epoch == self._entry.leader_epoch:  # else it learns late of an old election
            self._check_log(partition)

    def check(self, process: Process) -> None:
        """An event has happened in a process."""
        partition = process.replica(self.tp)
        if partition is not None and process.disk.directory_id in self._may_keep and process not in self._sim.store.unaware:
            self._starts(process, partition)
        if partition is None:
            state: tuple[int, ...] = (-1,)
        else:
            ends = partition.ends
            start, stable, high = ends.log_start_offset, ends.last_stable_offset, ends.high_watermark
            state = (start, stable, high, ends.durable_end, ends.log_end_offset, partition.is_leader)
        seen = process.seen_states.get(self.tp, (False,))
        if state == seen:
            return
        was_leader = seen[-1]
        process.seen_states[self.tp] = state
        self._check_kept(process, partition)
        if partition is not None:
            ordered = start <= stable <= high <= ends.durable_end <= ends.log_end_offset
            assert ordered, f"node {process.node_id}: the ends are out of order: {state}"
            if self.is_past(process):
                self._ever_shown = max(self._ever_shown, high)
                process.seen_states[self.tp] = (partition.is_leader,)  # so that it is checked once no longer past
                return
            if was_leader and self._has_gone_back:  # it may have ended its role in the same step
                self._ever_shown = max(self._ever_shown, high)
            if partition.is_leader and high > self.shown:
                before, self.shown, self._shown_epoch = self.shown, high, partition.epochs.entry_at(high - 1)
                self._shown_epochs = partition.epochs.below(high)
                self.grown(partition, before)
            self._ever_shown = max(self._ever_shown, self.shown)
            assert high <= self._ever_shown, f"node {process.node_id} has a high watermark of {high} that no leader has shown"
            if partition.is_leader:
                self.seen(process, partition)
        self.check_in_sync()

    def grown(self, partition: Partition, before: int) -> None:
        """Hook: a leader's high watermark has become the highest; `before` is the previous highest."""

    def shrunk(self, partition: Partition) -> None:
        """Hook: records were lost; promises now end at this leader's `shown`."""

    def seen(self, process: Process, partition: Partition) -> None:
        """Hook: readers of this leader may see something new."""

    def check_in_sync(self) -> None:
        """Checks that every in-sync replica holds everything that was shown."""
        if self._unproven or self._stale:
            self._settle()
        for replica in self._entry.isr:
            if replica.directory_id in self._unproven:
                continue
            disk = self._sim.disk_of(replica.directory_id)
            end, epochs = self._state(disk)
            assert end >= self.shown, (
                f"{replica.node_id} is in sync with {end} durable records, and a leader has shown a high watermark of {self.shown}"
            )
            if self.shown and self._shown_epoch is not None:
                found = epochs.entry_at(self.shown - 1)
                assert found == self._shown_epoch, f"{replica.node_id} has {found} before {self.shown}, not {self._shown_epoch}"

    def check_lost(self) -> None:
        """Checks at the end that the leader's log is complete."""
        process = self._sim.leader(self.tp)
        partition = process.replica(self.tp) if process is not None else None
        assert partition is not None
        self._check_log(partition)
        for directory_id, kept in self._kept.items():
            owner = self._sim.life_of(directory_id)
            is_there = owner is None or owner.replica(self.tp) is not None or kept.end <= self._removed_below
            assert is_there, f"node {kept.node_id} was in sync with all below {kept.end}, and has removed its copy"

    def _state(self, disk: Disk) -> tuple[int, LeaderEpochs]:
        """The durable end and the leader epochs of the copy on a disk."""
        process = self._sim.life_of(disk.directory_id)
        if process is None:
            copy = disk.copies.get(self.tp, NO_COPY)
            return copy.durable_end, LeaderEpochs(copy.epochs)
        partition = process.replica(self.tp)
        return (partition.ends.durable_end, partition.epochs) if partition is not None else (0, LeaderEpochs())

    def _check_log(self, partition: Partition) -> None:
        """Checks that a leader holds everything that was promised."""
        start, there = partition.ends.log_start_offset, {}
        for header in headers(partition, start, below=LogEnd.LOG_END):
            there[header.base_offset] = identity(header)
        assert start <= max(self.shown, self._ever_shown), f"the log starts at {start}, above all that was shown ({self.shown})"
        first = min(there, default=start)
        for offset, what in self.committed.items():
            if offset >= max(start, first):
                assert there.get(offset) == what, f"what was committed at offset {offset} is lost"
        end = partition.ends.log_end_offset
        assert end >= self.shown, f"the leader's log ends at {end}, below {self.shown}, which was shown"
