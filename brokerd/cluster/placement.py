"""Placement: which nodes hold the partitions of a new topic. Each node gets its share of replicas, and of leaders.

A partition's replicas go to the nodes with the fewest, each to a rack that has none of them yet while there is one: a rack that
fails takes one copy. The one of them that leads the fewest partitions is preferred as leader, and comes first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from brokerd.cluster.image import ClusterImage, Node
from brokerd.cluster.keys import InSyncReplica, PartitionEntry


def place(image: ClusterImage, partition_count: int, replication_factor: int) -> list[PartitionEntry]:
    """The entries of new partitions. Each is led by its first replica in leader epoch 1; all replicas are in sync, since all are
    empty. `replication_factor`: from 1 to the number of nodes alive.
    """
    nodes = [image.nodes[node_id] for node_id in sorted(image.nodes)]
    replicas: Counter[int] = Counter()
    leaders: Counter[int] = Counter()
    for _, (entry, _) in image.partitions():
        replicas.update(entry.replicas)
        leaders[entry.replicas[0]] += 1
    return [_place_one(nodes, replication_factor, replicas, leaders) for _ in range(partition_count)]


def _place_one(nodes: Sequence[Node], replication_factor: int, replicas: Counter[int], leaders: Counter[int]) -> PartitionEntry:
    chosen: list[Node] = []
    for _ in range(replication_factor):
        racks = Counter(node.registration.rack for node in chosen if node.registration.rack)
        left = [node for node in nodes if node not in chosen]
        chosen.append(min(left, key=lambda node: (racks[node.registration.rack], replicas[node.id], leaders[node.id], node.id)))
    chosen.sort(key=lambda node: (leaders[node.id], node.id))
    replicas.update(node.id for node in chosen)
    leaders[chosen[0].id] += 1
    return PartitionEntry(
        replicas=tuple(node.id for node in chosen),
        isr=tuple(InSyncReplica(node.id, node.registration.directory_id) for node in chosen),
        leader=chosen[0].id,
        leader_node_epoch=chosen[0].epoch,
        leader_epoch=1,
    )
