"""Bugs planted one at a time in replication and elections, both in the decisions and in their execution. Each function's name
states the bug, a comment above it the rule that it leaves out. The random schedules must find every bug; they prove nothing about
bugs that they miss."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from brokerd.cluster import assignments, election
from brokerd.cluster.election import elect, replica_of
from brokerd.cluster.image import Node, PartitionAt
from brokerd.cluster.keys import PartitionEntry, encode
from brokerd.datadir.partition_table import PartitionTable
from brokerd.datadir.replica_changes import ReplicaChanges
from brokerd.ids import NO_LEADER, TopicIdPartition
from brokerd.partition import producer_state
from brokerd.partition.core import PartitionCore
from brokerd.partition.flush_state import FlushPlan
from brokerd.partition.log_ends import LogEnd, LogEnds
from brokerd.partition.partition import FlushTask, Partition
from brokerd.replication.follower import Common, Position, position_of
from brokerd.replication.leader import Follower, LedPartition, Proposal
from brokerd.server.cluster import controller, directory, topics
from brokerd.server.cluster.controller import Controller
from brokerd.server.cluster.directory import ClusterDirectory
from brokerd.server.cluster.membership import Membership
from brokerd.server.cluster.topics import ClusterTopics
from brokerd.server.replication import copying, serving
from brokerd.server.replication.copying import Copier
from brokerd.server.replication.serving import ReplicaStream
from brokerd.storage import segment
from brokerd.storage.files import File, write_all
from tests.support.mutants import Mutants
from tests.support.planting import Put

MUTANTS = Mutants()
mutant, rare, bug = MUTANTS.add, MUTANTS.rare, MUTANTS.method
Nodes = Mapping[int, Node]


# --- durability


@mutant
def acknowledged_before_the_flush(put: Put) -> None:
    begin_flush, run = PartitionCore.begin_flush, FlushTask.run

    def eager(self: PartitionCore) -> FlushPlan | None:
        plan = begin_flush(self)
        if plan is not None:
            self.ends.durable_to(plan.end_offset)
        return plan

    def lazy(self: FlushTask) -> None:
        handles, self.handles = self.handles, []
        run(self)
        self.handles = handles

    put(PartitionCore, "begin_flush", eager)
    put(FlushTask, "run", lazy)


@rare(950)
def followers_report_what_they_have_not_flushed(put: Put) -> None:
    def hasty(partition: Partition, durable_log_start: int) -> Position:
        return position_of(partition, durable_log_start)._replace(durable_end=partition.ends.log_end_offset)

    put(copying, "position_of", hasty)


# Rule: A follower's high watermark never exceeds its durable end.
@bug(LogEnds, "leader_at", first=350)
def a_follower_believes_more_than_it_has(_original: Any, self: LogEnds, high_watermark: int, *_more: int) -> Any:
    self.high_watermark = max(self.high_watermark, min(high_watermark, self.log_end_offset))
    return (LogEnd.HIGH_WATERMARK,)


# Rule: A leader epoch is in the checkpoint before the node takes a role in it.
@bug(ReplicaChanges, "_promise", first=30)
def an_epoch_is_not_durable_before_its_first_batch(_original: Any, _self: ReplicaChanges, _epochs: Any) -> Any:
    yield lambda: None


# --- epochs and divergence of logs


# Rule: A leader that has restarted gets a new leader epoch.
@mutant
def another_life_of_the_leader_goes_on_in_its_epoch(put: Put) -> None:
    def forgiving(entry: PartitionEntry, nodes: Nodes) -> PartitionEntry | None:
        elected = elect(entry, nodes)
        is_same = elected is not None and elected.leader == entry.leader
        return elected._replace(leader_epoch=entry.leader_epoch) if elected is not None and is_same else elected

    put(controller, "elect", forgiving)


# Rule: Logs are compared by epochs as well as end offsets.
@mutant
def logs_are_compared_by_their_ends_alone(put: Put) -> None:
    def divergence(_epochs: Any, _log_start_offset: int, log_end_offset: int, position: Position) -> Common | None:
        return None if position.log_end_offset <= log_end_offset else Common(position.last_epoch, log_end_offset)

    put(serving, "divergence", divergence)


# Rule: A follower's log must not pass the end of its last epoch in the leader's log.
@mutant
def logs_are_compared_by_their_last_epochs_alone(put: Put) -> None:
    def divergence(epochs: Any, _log_start_offset: int, log_end_offset: int, position: Position) -> Common | None:
        common = Common(*epochs.end_of(position.last_epoch, log_end_offset))
        return None if common.epoch == position.last_epoch else common

    put(serving, "divergence", divergence)


# Rule: A follower truncates where its own copy of the common epoch ends, if that is lower.
@rare(5)
def a_cut_ignores_the_epochs_of_the_follower(put: Put) -> None:
    put(copying, "cut_offset", lambda _epochs, log_end_offset, common: min(common.end_offset, log_end_offset))


# Rule: A follower's report counts only if its log is a prefix of the leader's.
@bug(ReplicaStream, "_report")
def a_report_counts_without_agreement(_original: Any, self: Any, node: Node, tp: TopicIdPartition, followed: Any) -> None:
    partition, position = self._broker.partitions.replica(tp), followed.position
    if partition is not None and partition.leads_in(position.leader_epoch):
        followed.is_counted = True
        self._leading.reported(partition, node, position.durable_end, position.log_start_offset)


# --- in-sync replicas


# Rule: The high watermark waits for a leaving replica until its removal is decided.
@bug(LedPartition, "proposal")
def who_leaves_is_not_counted_before_it_is_decided(proposal: Any, self: Any, *args: Any) -> Proposal | None:
    found: Proposal | None = proposal(self, *args)
    if found is not None and len(found.entry.isr) < len(self.entry.isr) and found.entry.leader == self.entry.leader:
        self._at = PartitionAt(found.entry, self._at.mod_revision)
        self._count()
    return found


# Rule: The high watermark waits for a joining replica from the proposal on.
@bug(LedPartition, "_count", first=30)
def who_joins_is_not_counted_before_it_is_decided(count: Any, self: Any) -> None:
    joining, self._joining = self._joining, None
    count(self)
    self._joining = joining


# Rule: The high watermark waits for a joining replica while the proposal's outcome is unknown.
@bug(LedPartition, "proposal", first=5825)
def who_joins_is_not_counted_after_a_lost_answer(proposal: Any, self: Any, *args: Any) -> Proposal | None:
    self._joining = None
    self._count()
    return proposal(self, *args)  # type: ignore[no-any-return]


# Rule: Only the in-sync directory's reports count, not those of a disk that replaced it.
@bug(LedPartition, "_counts", first=823)
def an_emptied_disk_counts_for_the_one_that_is_in_sync(_original: Any, self: Any, follower: Follower) -> bool:
    return follower.replica.node_id not in self._is_lost


# Rule: A report lets a follower join only in the node epoch in which it was sent.
@bug(LedPartition, "_joins", first=778)
def a_follower_joins_that_has_ended_since_its_report(_original: Any, self: Any, node: Node) -> bool:
    follower = self._followers.get(node.id)
    if follower is None or node.id in {replica.node_id for replica in self.entry.isr}:
        return False
    return _has(self, follower, max(self.partition.ends.high_watermark, self.partition.core.epoch_start_offset))


def _has(self: Any, follower: Follower, wanted: int) -> bool:
    return follower.durable_end >= wanted and follower.log_start_offset >= self.partition.ends.log_start_offset


def _joins(self: Any, node: Node, wanted: int) -> bool:
    follower = self._followers.get(node.id)
    if follower is None or follower.node_epoch != node.epoch or node.id in {replica.node_id for replica in self.entry.isr}:
        return False
    return _has(self, follower, wanted)


@bug(LedPartition, "_joins", first=35)
def a_follower_joins_below_the_high_watermark(_original: Any, self: Any, node: Node) -> bool:
    return _joins(self, node, self.partition.core.epoch_start_offset)


@bug(LedPartition, "_joins", first=2500)
def a_follower_joins_below_the_start_of_the_epoch(_original: Any, self: Any, node: Node) -> bool:
    return _joins(self, node, self.partition.ends.high_watermark)


@mutant
def min_insync_replicas_is_ignored(put: Put) -> None:
    put(PartitionCore, "has_enough_in_sync", property(lambda _self: True))


# Rule: A leader knows its in-sync followers from the start of its role.
@bug(PartitionTable, "lead")
def a_leader_begins_without_its_followers(lead: Any, self: PartitionTable, epochs: Any, _in_sync: Any = None) -> None:
    lead(self, epochs)


# --- elections


# Rule: The controller writes an election only if the entry is unchanged.
@bug(Controller, "_hold")
async def the_controller_does_not_compare(_original: Any, self: Any, image: Any, due: Any, _histories: int) -> None:
    await self._client.transact({}, {image.keys.partition(tp): encode(entry) for tp, _, entry in due})


@mutant
def a_replica_that_is_not_in_sync_is_elected(put: Put) -> None:
    def unclean(entry: PartitionEntry, nodes: Nodes) -> PartitionEntry | None:
        elected = elect(entry, nodes)
        alive = [node_id for node_id in entry.replicas if node_id in nodes]
        if elected is None or elected.leader != NO_LEADER or not alive:
            return elected
        node = nodes[alive[0]]
        return elected._replace(isr=(replica_of(node),), leader=node.id, leader_node_epoch=node.epoch)

    put(controller, "elect", unclean)


# Rule: An in-sync replica is identified by its directory, not only by its node.
@mutant
def an_emptied_disk_is_elected(put: Put) -> None:
    put(election, "_is_alive", lambda replica, nodes: replica.node_id in nodes)
    put(assignments, "_is_in_sync", lambda *_: True)


@rare(40)
def a_leader_that_is_gone_keeps_the_partition(put: Put) -> None:
    def patient(entry: PartitionEntry, nodes: Nodes) -> PartitionEntry | None:
        return elect(entry, nodes) if entry.leader in nodes or entry.leader == NO_LEADER else None

    put(controller, "elect", patient)


@mutant
def a_partition_without_a_leader_is_forgotten(put: Put) -> None:
    put(controller, "elect", lambda entry, nodes: None if entry.leader == NO_LEADER else elect(entry, nodes))


@bug(LedPartition, "proposal", first=880)
def a_leader_whose_log_has_stopped_keeps_its_place(proposal: Any, self: Any, *args: Any) -> Proposal | None:
    return None if self.partition.is_stopped else proposal(self, *args)


# --- a store that was rolled back


# Rule: A directory that has seen higher leader epochs than the store's raises them.
@mutant
def a_store_that_has_gone_back_is_not_noticed(put: Put) -> None:
    put(directory, "to_outdo", lambda *_: {})


# Rule: After a rollback only the leader is in sync, and the other copies are protected from truncation.
@rare(15)
def an_in_sync_set_of_a_store_that_has_gone_back_is_believed(put: Put) -> None:
    put(assignments, "outdone", lambda entry, _leader, _nodes, epoch: entry._replace(leader_epoch=epoch))


# Rule: A rollback that a directory has noticed stays noted through elections.
@bug(ClusterDirectory, "_look_back", first=1_843)
def that_a_store_has_gone_back_is_forgotten_with_the_next_election(_original: Any, _self: ClusterDirectory, *_more: Any) -> None:
    pass


# Rule: A superseded copy is neither truncated nor replaced.
@bug(Copier, "_check_removes", first=130)
def a_copy_is_cut_that_may_have_more_than_the_leader(_original: Any, _self: Copier, *_more: Any) -> None:
    pass


# --- unclean elections


# Rule: An unclean election lists the former in-sync copies as superseded.
@rare(130)
def an_unclean_election_does_not_say_who_was_in_sync(put: Put) -> None:
    def forgetful(entry: PartitionEntry, winner: Node) -> PartitionEntry:
        return election.elected_unclean(entry, winner)._replace(superseded=entry.superseded)

    put(topics, "elected_unclean", forgetful)


@rare(99)
def an_unclean_election_is_held_while_a_copy_in_sync_is_alive(put: Put) -> None:
    put(topics, "check_is_lost", lambda *_: None)


@bug(ClusterTopics, "_copies", first=720)
async def an_unclean_election_takes_the_oldest_copy(copies: Any, self: Any, *args: Any) -> Any:
    return (await copies(self, *args))[::-1]


# --- full and failing disks


@mutant
def what_a_full_disk_refuses_counts_as_written(put: Put) -> None:
    def careless(*args: Any) -> None:
        with suppress(OSError):
            write_all(*args)

    put(segment, "write_all", careless)


@rare(95)
def a_short_write_is_taken_for_whole(put: Put) -> None:
    def hasty(file: File, buffers: Any, position: int, _size: int) -> None:
        file.pwritev(buffers, position)

    put(segment, "write_all", hasty)


@bug(Partition, "_append_error")
def a_refused_write_stops_the_log(append_error: Any, self: Partition, error: OSError) -> Any:
    self.core.failed(error)
    return append_error(self, error)


# --- copies that start from a snapshot


@bug(Partition, "snapshot_at", first=3285)
def a_copy_that_begins_anew_knows_no_producers(snapshot_at: Any, self: Partition, offset: int) -> Any:
    return snapshot_at(self, offset)._replace(producers={})


# Rule: The state of a producer has one batch more than may be in flight.
@rare(46_660)
def a_producer_is_known_by_the_batches_in_flight_alone(put: Put) -> None:
    put(producer_state, "WINDOW_BATCHES", 5)


# Rule: A node acts on the image again once it has replaced a copy.
@bug(Membership, "look_again", first=4_140)
async def a_copy_that_has_begun_anew_is_forgotten(_original: Any, _self: Membership) -> None:
    pass


# Rule: A follower that ends below the leader's log start and continues there is compared, too.
@bug(ReplicaStream, "_diverges", first=22_040)
def logs_are_not_compared_below_the_log_start(diverges: Any, self: Any, partition: Any, followed: Any, *rest: Any) -> Any:
    return followed.position.log_end_offset >= partition.ends.log_start_offset and diverges(self, partition, followed, *rest)


# Rule: A follower remembers a leader's log start that its high watermark has not reached.
@bug(LogEnds, "leader_at", first=1825)
def a_log_start_is_told_once(leader_at: Any, self: LogEnds, high_watermark: int, stable: int, log_start: int = -1) -> Any:
    moved = leader_at(self, high_watermark, stable, log_start)
    self._leader_log_start = -1
    return moved


# --- a store rolled back under running nodes


@rare(13_815)
def two_lead_in_one_epoch_of_two_histories(put: Put) -> None:
    """A rollback goes unnoticed if the store has since made as many changes as it lost."""
    follow_elected = ClusterDirectory._follow_elected

    async def unless_it_leads(self: Any) -> None:
        partitions = self._partitions
        self._partitions = [one for one in partitions if not one.is_leader]
        try:
            await follow_elected(self)
        finally:
            self._partitions = partitions

    put(Membership, "_is_contradicted", lambda _self, _item: False)
    put(ClusterDirectory, "_follow_elected", unless_it_leads)
