"""What the leader of a partition derives from its followers' reports: how far the high watermark may advance, and which replicas
are in sync.

The partition's entry in etcd holds the in-sync set. Only the leader proposes changes, each by compare-and-set on the entry it is
based on. Until a proposal is decided, the leader counts every replica that is in sync with or without it:

- A joining replica counts before the proposal is written. Otherwise the controller could elect it while it lacks records
  acknowledged in between.
- A leaving replica counts until the proposal is applied. Otherwise, if the proposal fails and the replica is elected, records
  acknowledged without it are lost.

replication/__init__.py says when a follower joins or leaves, and when a leader hands over (Kafka's Partition.maybeShrinkIsr and
maybeExpandIsr, and KIP-841 for nodes that have ended).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from brokerd.cluster.election import elect, ever_in_sync, outdone, replica_of
from brokerd.cluster.image import Node, PartitionAt
from brokerd.cluster.keys import InSyncReplica, PartitionEntry
from brokerd.partition.core import InSync
from brokerd.partition.partition import Partition

_NOWHERE = -1
_OTHERS_TELL_MS = 1_000  # time for nodes whose disks fill up together to learn of each other


class Proposal(NamedTuple):
    """A new entry to replace the one at `mod_revision`. Void if the registration of `joining` has changed."""

    entry: PartitionEntry
    mod_revision: int
    joining: Node | None = None


class Lag(NamedTuple):
    """Lag of the slowest follower; zeros if all have caught up."""

    records: int  # missing on the follower furthest behind, in sync or not
    ms: int  # since it had everything; in-sync replicas only, since acks=all waits for them


class Follower:
    """A follower's reports in the leader's epoch."""

    __slots__ = ("caught_up_ms", "durable_end", "log_start_offset", "node_epoch", "replica", "reported_ms", "seen_end")

    def __init__(self, replica: InSyncReplica, now_ms: int) -> None:
        self.replica = replica  # the copy that its last report describes
        self.node_epoch = 0  # of its last report
        self.durable_end = self.log_start_offset = _NOWHERE
        self.caught_up_ms = now_ms  # when it last had everything
        self.seen_end, self.reported_ms = 0, now_ms  # the leader's log end at its last report, and the report's time


class LedPartition:
    """The followers of one partition in one leader epoch; see the module docstring."""

    def __init__(self, partition: Partition, at: PartitionAt, now_ms: int) -> None:
        """`partition` leads in the epoch of the entry `at`."""
        self.partition = partition
        self._at = at
        self._since_ms = now_ms
        self._refuses_ms: int | None = None  # since when this node's registration says that its disk refuses appends
        self._followers: dict[int, Follower] = {}
        self._joining: InSyncReplica | None = None  # named by undecided proposals
        self._open_proposals = 0  # how many of them may still be applied
        self._is_lost: set[int] = set()  # ids of nodes that have less than they had reported to this leader or an earlier one
        self._is_disputed = False
        self._count()

    @property
    def entry(self) -> PartitionEntry:
        """The newest entry of this epoch."""
        return self._at.entry

    @property
    def is_over(self) -> bool:
        """True once this node no longer leads in this epoch. Later reports and decisions do not apply to a new epoch."""
        return not self.partition.leads_in(self._at.entry.leader_epoch)

    def entry_changed(self, at: PartitionAt) -> None:
        """Takes another entry of the same leader epoch: a newer one, or an older one after etcd was rolled back. It decides all
        earlier proposals."""
        if at != self._at:
            self._at, self._joining, self._open_proposals = at, None, 0
            self._is_lost.intersection_update(self._others())
            self._count()

    def protects(self, node: Node) -> bool:
        """True if this node's copy must not be cut."""
        return replica_of(node) in self.entry.superseded

    def disputed(self) -> None:
        """A follower's log is of another history (`is_of_other_history`): etcd was rolled back."""
        self._is_disputed = True

    def reported(self, node: Node, durable_end: int, log_start_offset: int, now_ms: int) -> None:
        """A follower has fsynced everything below `durable_end`, and its log agrees with this one up to there."""
        if self.is_over:
            return
        follower = self._followers.get(node.id)
        if follower is None:
            follower = self._followers[node.id] = Follower(replica_of(node), self._since_ms)
        # Everything below the high watermark was durable on all in-sync replicas, in earlier epochs too.
        if durable_end < max(follower.durable_end, self.partition.ends.high_watermark) and node.id in self._others():
            self._is_lost.add(node.id)
        follower.replica, follower.node_epoch = replica_of(node), node.epoch
        follower.durable_end, follower.log_start_offset = durable_end, log_start_offset
        ends = self.partition.ends
        if durable_end >= ends.log_end_offset:
            follower.caught_up_ms = now_ms
        elif durable_end >= follower.seen_end:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.reported_ms)
        follower.seen_end, follower.reported_ms = ends.log_end_offset, now_ms
        if self._counts(follower):
            self.partition.replica_fetched(node.id, durable_end)

    def withdrawn(self, node_id: int) -> None:
        """Stops a follower from joining by its earlier reports: it has to report again."""
        follower = self._followers.get(node_id)
        if follower is not None:
            follower.node_epoch = _NOWHERE

    def is_in_sync(self, node_id: int) -> bool:
        """True if the node's replica is in sync."""
        return any(replica.node_id == node_id for replica in self.entry.isr)

    def log_starts(self) -> list[int]:
        """The log starts reported by the other replicas that are in sync or may be; -1 before a replica's first report."""
        known = (self._followers.get(node_id) for node_id in self._counted())
        return [follower.log_start_offset if follower is not None else _NOWHERE for follower in known]

    def lag(self, now_ms: int) -> Lag:
        """Lag of the slowest of the other replicas."""
        start, end = self.partition.ends.log_start_offset, self.partition.ends.log_end_offset
        records = ms = 0
        for node_id in self.entry.replicas:
            follower = self._followers.get(node_id)
            # An in-sync replica without a report in this epoch has everything that was acknowledged.
            is_in_sync = self.is_in_sync(node_id)
            durable_end = self.partition.ends.high_watermark if is_in_sync else start
            caught_up_ms = self._since_ms
            if follower is not None:
                durable_end, caught_up_ms = max(follower.durable_end, start), follower.caught_up_ms
            if node_id != self.entry.leader and durable_end < end:
                records, ms = max(records, end - durable_end), max(ms, now_ms - caught_up_ms if is_in_sync else 0)
        return Lag(records, ms)

    def hears_nobody(self, heard_ms: Mapping[int, int], now_ms: int, lag_max_ms: int) -> bool:
        """True if there are other in-sync replicas and none was heard within `lag_max_ms`. `heard_ms`: last request by node id."""
        heard = [max(heard_ms.get(node_id, 0), self._since_ms) for node_id in self._others()]
        return bool(heard) and now_ms - max(heard) > lag_max_ms

    def proposal(self, nodes: Mapping[int, Node], now_ms: int, lag_max_ms: int) -> Proposal | None:
        """The change that is due; None if there is none. `nodes`: those alive, by id. Until the entry changes, an earlier proposal
        may have been applied, or may be later, unless `given_up` rules it out. So a replica that may have joined is proposed again,
        or the entry is replaced by itself, which voids the earlier proposals."""
        own = self._own(nodes)
        if own is None or self.is_over:
            return None  # not registered, or registered under another node epoch
        if self.partition.is_stopped:
            entry = resigned(self.entry, own.id, nodes)
            return Proposal(entry, self._at.mod_revision) if entry is not None else None
        if self._is_disputed:
            return Proposal(outdone(self.entry, own, nodes, self.entry.leader_epoch + 1), self._at.mod_revision)
        if not own.registration.refuses:
            self._refuses_ms = None
        elif self._refuses_ms is None:
            self._refuses_ms = now_ms
        elif now_ms - self._refuses_ms >= _OTHERS_TELL_MS:
            entry = handed_over(self.entry, nodes)
            if entry is not None and not nodes[entry.leader].registration.refuses:
                return Proposal(entry, self._at.mod_revision)
        for follower in self._followers.values():
            if follower.durable_end >= self.partition.ends.log_end_offset:
                follower.caught_up_ms = now_ms
        leaving = {replica.node_id for replica in self.entry.isr if self._leaves(replica, nodes, now_ms, lag_max_ms)}
        if leaving:
            return Proposal(left(self.entry, leaving), self._at.mod_revision)
        may_join = self.entry.replicas if self._joining is None else (self._joining.node_id,)
        alive = (nodes[node_id] for node_id in may_join if node_id in nodes)
        joining = next((node for node in alive if self._joins(node) and self._stays(node, now_ms, lag_max_ms)), None)
        if joining is None:
            return Proposal(self.entry, self._at.mod_revision) if self._joining is not None else None
        self._joining = replica_of(joining)
        self._open_proposals += 1
        self._count()
        return Proposal(joined(self.entry, self._joining), self._at.mod_revision, joining)

    def given_up(self, proposal: Proposal) -> None:
        """This proposal was not applied and will not be; others that name the same replica may be."""
        if proposal.joining is not None and proposal.mod_revision == self._at.mod_revision:
            self._open_proposals -= 1
            if not self._open_proposals:
                self._joining = None
                self._count()

    def _leaves(self, replica: InSyncReplica, nodes: Mapping[int, Node], now_ms: int, lag_max_ms: int) -> bool:
        if replica.node_id == self.entry.leader:
            return False
        node = nodes.get(replica.node_id)
        if node is None or replica_of(node) != replica or replica.node_id in self._is_lost:
            return True
        follower = self._followers.get(replica.node_id)
        caught_up_ms = follower.caught_up_ms if follower is not None else self._since_ms
        return now_ms - caught_up_ms > lag_max_ms

    def _joins(self, node: Node) -> bool:
        follower = self._followers.get(node.id)
        if follower is None or follower.node_epoch != node.epoch or self.is_in_sync(node.id):
            return False
        ends, epoch_start = self.partition.ends, self.partition.epoch_start_offset
        return follower.durable_end >= max(ends.high_watermark, epoch_start) and follower.log_start_offset >= ends.log_start_offset

    def _stays(self, node: Node, now_ms: int, lag_max_ms: int) -> bool:
        """False if a node would leave again right after it joined. While too few replicas are in sync the high watermark does not
        advance. A replica that has reached it but never the log end would join and leave for ever, and keep others from joining."""
        follower = self._followers[node.id]
        if node.registration.refuses:  # such a node leaves partitions whose batches its disk refuses
            lag_max_ms = min(lag_max_ms, _OTHERS_TELL_MS)
        return now_ms - follower.caught_up_ms <= lag_max_ms

    def _own(self, nodes: Mapping[int, Node]) -> Node | None:
        node = nodes.get(self.entry.leader)
        return node if node is not None and node.epoch == self.entry.leader_node_epoch else None

    def _others(self) -> list[int]:
        return [replica.node_id for replica in self.entry.isr if replica.node_id != self.entry.leader]

    def _counts(self, follower: Follower) -> bool:
        """True if the reporting directory is the one that is in sync or joining. A report from another directory of the same node,
        such as a replaced disk, does not count."""
        replica = follower.replica
        return replica.node_id not in self._is_lost and (replica in self.entry.isr or replica == self._joining)

    def _counted(self) -> set[int]:
        return {*self._others(), self._joining.node_id} if self._joining is not None else set(self._others())

    def _count(self) -> None:
        """Tells the partition which followers the high watermark waits for."""
        if self.is_over:
            return
        counted = self._counted()
        self.partition.set_in_sync(in_sync_of(self.entry)._replace(followers=counted))
        for node_id in counted:
            follower = self._followers.get(node_id)
            if follower is not None and self._counts(follower):
                self.partition.replica_fetched(node_id, follower.durable_end)


def in_sync_of(entry: PartitionEntry) -> InSync:
    """The replicas that the leader of this entry waits for. Added replicas that have never been in sync do not count: otherwise a
    partition of one replica would be below min.insync.replicas while it moves, and refuse appends."""
    followers = [replica.node_id for replica in entry.isr if replica.node_id != entry.leader]
    return InSync(followers, len(entry.isr), len(ever_in_sync(entry).intersection(entry.replicas)))


def joined(entry: PartitionEntry, replica: InSyncReplica) -> PartitionEntry:
    """The entry with one more in-sync replica. Other directories of its node are dropped: their disk was replaced."""
    members = {each.node_id: each for each in entry.isr} | {replica.node_id: replica}
    isr = tuple(members[node_id] for node_id in entry.replicas if node_id in members)
    out_of_sync = tuple(each for each in entry.out_of_sync if each.node_id != replica.node_id)
    superseded = tuple(each for each in entry.superseded if each != replica)  # the leader has all of its records
    return entry._replace(isr=isr, out_of_sync=out_of_sync, superseded=superseded)


def left(entry: PartitionEntry, node_ids: set[int]) -> PartitionEntry:
    """The entry without these in-sync replicas."""
    gone = tuple(each for each in entry.isr if each.node_id in node_ids)
    out_of_sync = tuple(dict.fromkeys((*entry.out_of_sync, *gone)))
    return entry._replace(isr=tuple(each for each in entry.isr if each not in gone), out_of_sync=out_of_sync)


def resigned(entry: PartitionEntry, node_id: int, nodes: Mapping[int, Node]) -> PartitionEntry | None:
    """The entry without this node in the in-sync set, and with a live leader; None if the node is not in the set, or no leader
    would be alive. `nodes`: those alive, by id."""
    without = left(entry, {node_id})
    if without == entry:
        return None
    led = elect(without, nodes) or without
    return led if led.leader in nodes else None


def handed_over(entry: PartitionEntry, nodes: Mapping[int, Node]) -> PartitionEntry | None:
    """The entry with another leader, for a node that stops; None if no other in-sync replica is alive. `nodes`: those alive, by id.
    The stopping node stays in sync until its registration ends: it has every record, and the next leader may have lost its disk."""
    led = resigned(entry, entry.leader, nodes)
    return led._replace(isr=entry.isr, out_of_sync=entry.out_of_sync) if led is not None else None
