"""Who holds the partitions of a new topic, and who leads a partition when nodes come and go: Kafka's controller, with unclean
elections by an operator's command alone.

Each node gets its share of replicas, and of leaders. A partition's replicas go to the nodes with the fewest, each to a rack that
has none of them yet while there is one: a rack that fails takes one copy. A node whose disk refuses appends comes last. The one of
them that leads the fewest partitions is preferred as leader, and comes first.

A partition needs a leader if its leader's registration is gone, or is another one, or if the leader is no longer in sync. The new
one is the first replica, in order of preference, that is in sync and alive *with the directory that was in sync*: a node that
came back with an empty disk lacks what was acknowledged. One whose disk refuses appends leads only if the others' do, too. If there
is none, the partition has no leader and waits.

If the copies in sync are lost for good, an operator may let another one lead (`elected_unclean`). An in-sync set of a store that
has gone back, as its leader epochs tell, is no longer believed (`outdone`).

Each election raises the leader epoch by one, also one without a winner, so that clients and nodes tell the newer news.
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
    empty. `replication_factor`: from 1 to the number of nodes alive. The coordinator's partition does not count: it is small.
    """
    replicas, leaders = shares(image)
    return [_place_one(image.nodes, replication_factor, replicas, leaders) for _ in range(partition_count)]


def shares(image: ClusterImage) -> tuple[Counter[int], Counter[int]]:
    """How many replicas of clients' partitions each node has or shall have, and of how many it is the preferred leader."""
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
    """Up to `count` nodes for further replicas beside those on `beside`, none of `without`. Adds them to `replicas`."""
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
    """The entry after an election; None if none is due. `nodes`: those alive, by id."""
    leader = nodes.get(entry.leader)
    if leader is not None and leader.epoch == entry.leader_node_epoch and replica_of(leader) in entry.isr:
        return None
    able = {replica.node_id: nodes[replica.node_id] for replica in entry.isr if _is_alive(replica, nodes)}
    ordered = [able[node_id] for node_id in entry.replicas if node_id in able]
    winner = min(ordered, key=lambda node: node.registration.refuses, default=None)  # the first of those
    if winner is None and entry.leader == NO_LEADER:
        return None
    return entry._replace(
        leader=winner.id if winner is not None else NO_LEADER,
        leader_node_epoch=winner.epoch if winner is not None else 0,
        leader_epoch=entry.leader_epoch + 1,
    )


def elected_unclean(entry: PartitionEntry, winner: Node) -> PartitionEntry:
    """The entry led by a node that is not in sync, which is alone in sync from then on. For partitions of which no copy in sync is
    alive: what the winner lacks of what was acknowledged is lost. Those that were in sync may come back with records that no other
    has: they are not cut, and a move that would remove them ends. An entry has room for the newest OUT_OF_SYNC_MAX of them.
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
    """The entry of a store that has gone back to it, led by the same node in `epoch`, which no directory has seen. `nodes`: those
    alive, by id. Who is in sync is not known: the leader alone, until others turn out to agree with it. Any of them may have what
    was acknowledged since, and is not cut; nor is it removed by a node that was no replica then, but may have become one.
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
    """Where the records of a partition are if no in-sync copy is alive, and what to do; empty if one is. `nodes`: those alive, by
    id. `may_delete`: its topic may be deleted.
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
    # Not where a node with all records is only away: nothing is lost once it is back. And no copy that has just begun is worth it.
    if not gone and ever_in_sync(entry).intersection(entry.replicas, nodes).difference(former):
        remedies.append("accept the loss of what no other copy has ('brokerd cluster elect-unclean')")
    if not gone and may_delete:
        remedies.append("delete the topic")
    return f"no copy with all records is alive: they are {' and '.join(where)}; {', or '.join(remedies)}"


def replica_of(node: Node) -> InSyncReplica:
    """The copy that a node has now."""
    return InSyncReplica(node.id, node.registration.directory_id)


def any_copy_of(node_id: int) -> InSyncReplica:
    """The copy of a node that is away, wherever it is."""
    return InSyncReplica(node_id, ANY_DIRECTORY)


def ever_in_sync(entry: PartitionEntry) -> set[int]:
    """The nodes that are in sync, or have been: not those that were added a moment ago, and still copy."""
    return {replica.node_id for replica in (*entry.isr, *entry.out_of_sync)}
