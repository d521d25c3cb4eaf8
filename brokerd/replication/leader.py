"""What the leader of a partition makes of its followers' reports: how far the high watermark may go, and who is in sync.

The cluster's entry of the partition says who is in sync; the leader alone proposes changes, each under a comparison of the entry
that it rests on. Until a proposal is decided, the leader counts everybody who may be in sync by it:

- Who joins is counted before the proposal is written. Otherwise the controller could elect it, and it may lack what was
  acknowledged in between.
- Who leaves is counted until the proposal is made. Otherwise what was acknowledged without it would be lost if the proposal fails,
  and it is elected.

When a follower joins and leaves, and when a leader hands over: replication/__init__.py (Kafka's Partition.maybeShrinkIsr and
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
_OTHERS_TELL_MS = 1_000  # nodes whose disks are full at the same time hear of each other first


class Proposal(NamedTuple):
    """A new entry for the partition, in place of the one at `mod_revision`; void if this registration of `joining` has changed."""

    entry: PartitionEntry
    mod_revision: int
    joining: Node | None = None


class Lag(NamedTuple):
    """How far the slowest follower is behind; zeros if all have everything."""

    records: int  # that it has not, in sync or not
    ms: int  # since it had everything: of those in sync, for which acks=all waits


class Follower:
    """What a follower has reported in the leader's epoch."""

    __slots__ = ("caught_up_ms", "durable_end", "log_start_offset", "node_epoch", "replica", "reported_ms", "seen_end")

    def __init__(self, replica: InSyncReplica, now_ms: int) -> None:
        self.replica = replica  # that has what was reported last
        self.node_epoch = 0  # of its last report
        self.durable_end = self.log_start_offset = _NOWHERE
        self.caught_up_ms = now_ms  # when it had everything
        self.seen_end, self.reported_ms = 0, now_ms  # the leader's log end at its last report, and when that was


class LedPartition:
    """The followers of one partition in one leader epoch; see the module docstring."""

    def __init__(self, partition: Partition, at: PartitionAt, now_ms: int) -> None:
        """`partition` leads in the epoch of the entry `at`."""
        self.partition = partition
        self._at = at
        self._since_ms = now_ms
        self._refuses_ms: int | None = None  # since when the cluster knows that this node's disk refuses appends
        self._followers: dict[int, Follower] = {}
        self._joining: InSyncReplica | None = None  # by proposals that are not decided
        self._open_proposals = 0  # of them: each may be made yet
        self._is_lost: set[int] = set()  # nodes that have lost what they had reported
        self._is_disputed = False
        self._count()

    @property
    def entry(self) -> PartitionEntry:
        """The newest entry of this epoch."""
        return self._at.entry

    @property
    def is_over(self) -> bool:
        """True once this node does not lead in this epoch any more: what is heard or decided then says nothing of a later one."""
        return not self.partition.leads_in(self._at.entry.leader_epoch)

    def entry_changed(self, at: PartitionAt) -> None:
        """Takes another entry of the same leader epoch, a newer one or that of a store that has gone back: an earlier proposal is
        decided."""
        if at != self._at:
            self._at, self._joining, self._open_proposals = at, None, 0
            self._is_lost.intersection_update(self._others())
            self._count()

    def protects(self, node: Node) -> bool:
        """True if the copy of a node cuts nothing."""
        return replica_of(node) in self.entry.superseded

    def disputed(self) -> None:
        """A follower has this epoch, or an earlier one, of another leader: the store has gone back."""
        self._is_disputed = True

    def reported(self, node: Node, durable_end: int, log_start_offset: int, now_ms: int) -> None:
        """A follower has fsynced everything below `durable_end`, and agrees with this log up to there."""
        if self.is_over:
            return
        follower = self._followers.get(node.id)
        if follower is None:
            follower = self._followers[node.id] = Follower(replica_of(node), self._since_ms)
        if durable_end < follower.durable_end and node.id in self._others():
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
        """A follower joins no more by what it has reported: it has to report anew."""
        follower = self._followers.get(node_id)
        if follower is not None:
            follower.node_epoch = _NOWHERE

    def is_in_sync(self, node_id: int) -> bool:
        """True if a node is among the in-sync replicas."""
        return any(replica.node_id == node_id for replica in self.entry.isr)

    def log_starts(self) -> list[int]:
        """The log starts that the other replicas have reported that are in sync, or may be."""
        known = (self._followers.get(node_id) for node_id in self._counted())
        return [follower.log_start_offset if follower is not None else _NOWHERE for follower in known]

    def lag(self, now_ms: int) -> Lag:
        """How far the slowest of the other replicas is behind."""
        start, end = self.partition.ends.log_start_offset, self.partition.ends.log_end_offset
        records = ms = 0
        for node_id in self.entry.replicas:
            follower = self._followers.get(node_id)
            # One that has not reported yet in this epoch, and is in sync, has what is acknowledged.
            is_in_sync = self.is_in_sync(node_id)
            durable_end = self.partition.ends.high_watermark if is_in_sync else start
            caught_up_ms = self._since_ms
            if follower is not None:
                durable_end, caught_up_ms = max(follower.durable_end, start), follower.caught_up_ms
            if node_id != self.entry.leader and durable_end < end:
                records, ms = max(records, end - durable_end), max(ms, now_ms - caught_up_ms if is_in_sync else 0)
        return Lag(records, ms)

    def hears_nobody(self, heard_ms: Mapping[int, int], now_ms: int, lag_max_ms: int) -> bool:
        """True if no other in-sync replica has been heard of for so long. `heard_ms`: when each node was."""
        heard = [max(heard_ms.get(node_id, 0), self._since_ms) for node_id in self._others()]
        return bool(heard) and now_ms - max(heard) > lag_max_ms

    def proposal(self, nodes: Mapping[int, Node], now_ms: int, lag_max_ms: int) -> Proposal | None:
        """The change that is due; None if none is. `nodes`: those alive, by id. Until the entry changes, a proposal may have been
        made, or be made later, unless `given_up` says otherwise; so who may have joined is proposed again, or the entry is replaced
        by itself, which ends that.
        """
        own = self._own(nodes)
        if own is None or self.is_over:
            return None  # not registered at present, or as another life
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
        """This proposal has certainly not been made, and will not be; others that name the same replica may be."""
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
        """False if a node that joins would leave at once. While too few are in sync, the high watermark stands still: one that has
        that, and never reaches the end, would join and leave for ever, and keep others from joining.
        """
        follower = self._followers[node.id]
        if node.registration.refuses:  # it leaves by itself what it cannot take
            lag_max_ms = min(lag_max_ms, _OTHERS_TELL_MS)
        return now_ms - follower.caught_up_ms <= lag_max_ms

    def _own(self, nodes: Mapping[int, Node]) -> Node | None:
        node = nodes.get(self.entry.leader)
        return node if node is not None and node.epoch == self.entry.leader_node_epoch else None

    def _others(self) -> list[int]:
        return [replica.node_id for replica in self.entry.isr if replica.node_id != self.entry.leader]

    def _counts(self, follower: Follower) -> bool:
        """True if the directory that has what was reported is the one that is in sync, or joins. Another one of its node, on a disk
        in its place, says nothing of it."""
        replica = follower.replica
        return replica.node_id not in self._is_lost and (replica in self.entry.isr or replica == self._joining)

    def _counted(self) -> set[int]:
        return {*self._others(), self._joining.node_id} if self._joining is not None else set(self._others())

    def _count(self) -> None:
        """Tells the partition whom the high watermark waits for."""
        if self.is_over:
            return
        counted = self._counted()
        self.partition.set_in_sync(in_sync_of(self.entry)._replace(followers=counted))
        for node_id in counted:
            follower = self._followers.get(node_id)
            if follower is not None and self._counts(follower):
                self.partition.replica_fetched(node_id, follower.durable_end)


def in_sync_of(entry: PartitionEntry) -> InSync:
    """Whom the leader of this entry has to wait for. Replicas that were added and still copy do not count: with them, a partition
    of one replica that is moved would have fewer in sync than min.insync.replicas, and take nothing meanwhile.
    """
    followers = [replica.node_id for replica in entry.isr if replica.node_id != entry.leader]
    return InSync(followers, len(entry.isr), len(ever_in_sync(entry).intersection(entry.replicas)))


def has_enough_in_sync(entry: PartitionEntry, min_insync_replicas: int) -> bool:
    """False if acks=all is refused: fewer replicas are in sync than min.insync.replicas, or than there are."""
    in_sync = in_sync_of(entry)
    return in_sync.members >= min(min_insync_replicas, in_sync.replicas)


def joined(entry: PartitionEntry, replica: InSyncReplica) -> PartitionEntry:
    """The entry with one more in-sync replica. Other directories of its node are gone: their disk was replaced."""
    members = {each.node_id: each for each in entry.isr} | {replica.node_id: replica}
    isr = tuple(members[node_id] for node_id in entry.replicas if node_id in members)
    out_of_sync = tuple(each for each in entry.out_of_sync if each.node_id != replica.node_id)
    superseded = tuple(each for each in entry.superseded if each != replica)  # it has no more than the leader
    return entry._replace(isr=isr, out_of_sync=out_of_sync, superseded=superseded)


def left(entry: PartitionEntry, node_ids: set[int]) -> PartitionEntry:
    """The entry without these in-sync replicas."""
    gone = tuple(each for each in entry.isr if each.node_id in node_ids)
    out_of_sync = tuple(dict.fromkeys((*entry.out_of_sync, *gone)))
    return entry._replace(isr=tuple(each for each in entry.isr if each not in gone), out_of_sync=out_of_sync)


def resigned(entry: PartitionEntry, node_id: int, nodes: Mapping[int, Node]) -> PartitionEntry | None:
    """The entry without this node among the in-sync replicas, and with a leader that is alive; None if no other one is in sync and
    alive. `nodes`: those alive, by id.
    """
    without = left(entry, {node_id})
    if without == entry:
        return None
    led = elect(without, nodes) or without
    return led if led.leader in nodes else None


def handed_over(entry: PartitionEntry, nodes: Mapping[int, Node]) -> PartitionEntry | None:
    """The entry with another leader, before this one's node stops; None if no other replica is in sync and alive. `nodes`: those
    alive, by id. The node stays in sync until its registration ends: the next leader may have lost its disk, and who stops here has
    everything.
    """
    led = resigned(entry, entry.leader, nodes)
    return led._replace(isr=entry.isr, out_of_sync=entry.out_of_sync) if led is not None else None
