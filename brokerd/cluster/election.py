"""Replica placement and leader election, as in Kafka's controller. Unclean elections happen only on an operator's command.

Placement gives each node its share of replicas and of leaders. A partition's replicas go to distinct racks while there are enough,
so that a failed rack takes one copy, and within that to the nodes with the fewest replicas. A node whose disk refuses appends comes
last. The chosen node that is the preferred leader of the fewest partitions becomes the first replica.

A partition needs an election if its leader's registration is gone or was replaced, or if the leader is no longer in sync. The
winner is the first replica, in order of preference, that is in sync and alive *with the directory that was in sync*: a node that
came back with an empty disk lacks acknowledged records. A node whose disk refuses appends wins only if all other candidates' disks
do. Without a candidate the partition has no leader and waits.

If all in-sync copies are lost for good, an operator may elect another copy (`elected_unclean`). If the leader epochs show that the
store was rolled back, its in-sync set is no longer trusted (`outdone`).

Each election raises the leader epoch by one, even without a winner, so that clients and nodes can tell which state is newer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from brokerd.cluster.image import ClusterImage, Node
from brokerd.cluster.keys import ANY_DIRECTORY, OUT_OF_SYNC_MAX, InSyncReplica, PartitionEntry
from brokerd.ids import INTERNAL_PREFIX, NO_LEADER, nodes_text

NO_LEADERS: Mapping[int, int] = {}


def place(image: ClusterImage, partition_count: int, replication_factor: int) -> list[PartitionEntry]:
    """The entries of new partitions. Each is led by its first replica in leader epoch 1; all replicas are in sync, since all are
    empty. `replication_factor`: from 1 to the number of live nodes. The coordinator's partition is not counted: it is small.
    """
    replicas, leaders = shares(image)
    return [_place_one(image.nodes, replication_factor, replicas, leaders) for _ in range(partition_count)]


def shares(image: ClusterImage) -> tuple[Counter[int], Counter[int]]:
    """Per node: its number of replicas of clients' partitions, targets applied, and of how many it is the preferred leader."""
    replicas: Counter[int] = Counter()
    leaders: Counter[int] = Counter()
    for tp, (entry, _) in image.partitions():
        topic = image.topic(tp.topic_id)
        if topic is not None and not topic.name.startswith(INTERNAL_PREFIX):
            wanted = entry.target or entry.replicas
            replicas.update(wanted)
            leaders[wanted[0]] += 1
    return replicas, leaders


def spread(
    nodes: Mapping[int, Node],
    count: int,
    replicas: Counter[int],
    beside: Sequence[Node] = (),
    without: Collection[int] = (),
    leaders: Mapping[int, int] = NO_LEADERS,
) -> list[int]:
    """Picks up to `count` nodes, none of `without`, to join the replicas on `beside`. Adds the new replicas to `replicas`."""
    chosen: list[Node] = []
    left = [nodes[node_id] for node_id in sorted(nodes) if node_id not in without]
    while left and len(chosen) < count:
        racks = Counter(node.registration.rack for node in (*beside, *chosen) if node.registration.rack)
        best = min(
            left,
            key=lambda node: (
                node.registration.refuses,
                racks[node.registration.rack],
                replicas[node.id],
                leaders.get(node.id, 0),
                node.id,
            ),
        )
        left.remove(best)
        chosen.append(best)
        replicas[best.id] += 1
    return [node.id for node in chosen]


def _place_one(nodes: Mapping[int, Node], replication_factor: int, replicas: Counter[int], leaders: Counter[int]) -> PartitionEntry:
    chosen = [nodes[node_id] for node_id in spread(nodes, replication_factor, replicas, leaders=leaders)]
    chosen.sort(key=lambda node: (node.registration.refuses, leaders[node.id], node.id))
    leaders[chosen[0].id] += 1
    return PartitionEntry(
        replicas=tuple(node.id for node in chosen),
        isr=tuple(map(replica_of, chosen)),
        leader=chosen[0].id,
        leader_node_epoch=chosen[0].epoch,
        leader_epoch=1,
    )


def elect(entry: PartitionEntry, nodes: Mapping[int, Node]) -> PartitionEntry | None:
    """The entry after an election; None if none is due. `nodes`: live nodes, by id."""
    leader = nodes.get(entry.leader)
    if leader is not None and leader.epoch == entry.leader_node_epoch and replica_of(leader) in entry.isr:
        return None
    able = {replica.node_id: nodes[replica.node_id] for replica in entry.isr if _is_alive(replica, nodes)}
    ordered = [able[node_id] for node_id in entry.replicas if node_id in able]
    winner = min(ordered, key=lambda node: node.registration.refuses, default=None)  # of equals, min takes the first
    if winner is None and entry.leader == NO_LEADER:
        return None
    return entry._replace(
        leader=winner.id if winner is not None else NO_LEADER,
        leader_node_epoch=winner.epoch if winner is not None else 0,
        leader_epoch=entry.leader_epoch + 1,
    )


def elected_unclean(entry: PartitionEntry, winner: Node) -> PartitionEntry:
    """The entry led by a node that was not in sync and becomes the only in-sync replica, for partitions without a live in-sync
    copy. Acknowledged records that the winner lacks are lost. The former in-sync copies may return with records that no other copy
    has, so they are not cut, and a reassignment that could remove them ends. The entry keeps the newest OUT_OF_SYNC_MAX of them.
    """
    copy = replica_of(winner)

    def and_former(known: Iterable[InSyncReplica]) -> tuple[InSyncReplica, ...]:
        return tuple(one for one in dict.fromkeys((*known, *entry.isr)) if one != copy)[-OUT_OF_SYNC_MAX:]

    return entry._replace(
        isr=(copy,),
        out_of_sync=and_former(entry.out_of_sync),
        leader=winner.id,
        leader_node_epoch=winner.epoch,
        leader_epoch=entry.leader_epoch + 1,
        target=(),
        superseded=and_former(entry.superseded),
    )


def outdone(entry: PartitionEntry, leader: Node, nodes: Mapping[int, Node], epoch: int) -> PartitionEntry:
    """The entry to write after the store was rolled back to `entry`: the same leader, in an `epoch` that no directory has seen.
    `nodes`: live nodes, by id. The true in-sync set is unknown, so the leader is alone in it until other logs prove to agree.
    Other copies may hold records acknowledged since: they are not cut, nor removed by nodes that may have become replicas since.
    """
    elected = elected_unclean(entry, leader)
    named = {copy for copy in entry.out_of_sync if copy.directory_id != ANY_DIRECTORY}
    alive = {replica_of(nodes[node_id]) for node_id in entry.replicas if node_id in nodes}
    others = sorted((named | alive) - {replica_of(leader), *elected.superseded})
    listed = tuple(copy for copy in elected.out_of_sync if copy.node_id in entry.replicas)
    superseded = (*elected.superseded, *others)[-OUT_OF_SYNC_MAX:]
    return elected._replace(leader_epoch=epoch, out_of_sync=listed, superseded=superseded)


def _is_alive(replica: InSyncReplica, nodes: Mapping[int, Node]) -> bool:
    node = nodes.get(replica.node_id)
    return node is not None and replica_of(node) == replica


def no_copy_alive(entry: PartitionEntry, nodes: Mapping[int, Node], *, may_delete: bool = True) -> str:
    """If no in-sync copy is alive, a message that says where the records are and what to do; empty otherwise. `nodes`: live nodes,
    by id. `may_delete`: whether deleting the topic is an option.
    """
    if any(_is_alive(replica, nodes) for replica in entry.isr):
        return ""
    gone = [replica.node_id for replica in entry.isr if replica.node_id not in nodes]
    former = [replica.node_id for replica in entry.isr if replica.node_id in nodes]
    where, remedies = [], []
    if gone:
        where.append(f"on {nodes_text(gone)}, which {'is' if len(gone) == 1 else 'are'} not alive")
        remedies.append("start it" if len(gone) == 1 else "start one of them")
    if former:
        text = nodes_text(former)
        where.append(f"on {text}'s former directory" if len(former) == 1 else f"on the former directories of {text}")
        remedies.append(f"put {'it' if len(former) == 1 and not gone else 'a former directory'} back")
    # Not while an in-sync node is merely down: nothing is lost once it is back. A copy that was never in sync is no alternative.
    if not gone and ever_in_sync(entry).intersection(entry.replicas, nodes).difference(former):
        remedies.append("accept the loss of what no other copy has ('brokerd cluster elect-unclean')")
    if not gone and may_delete:
        remedies.append("delete the topic")
    return f"no copy with all records is alive: they are {' and '.join(where)}; {', or '.join(remedies)}"


def replica_of(node: Node) -> InSyncReplica:
    """The copy in a node's current directory."""
    return InSyncReplica(node.id, node.registration.directory_id)


def any_copy_of(node_id: int) -> InSyncReplica:
    """The copy of a node that is down, in whichever directory."""
    return InSyncReplica(node_id, ANY_DIRECTORY)


def ever_in_sync(entry: PartitionEntry) -> set[int]:
    """The nodes that are or were in sync. Excludes replicas just added that are still copying."""
    return {replica.node_id for replica in (*entry.isr, *entry.out_of_sync)}
