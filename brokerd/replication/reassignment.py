"""Replicas that come and go: a partition's entry names its `target`, and moves towards it step by step.

New replicas are added first and copy from the leader; once all of the target are in sync, the others go, and the first of the
target leads. So at no time do fewer nodes have what is acknowledged than before or after. A leader is moved in the same way, to a
target of the same replicas with another one in front (Kafka's KIP-455, and its preferred leaders).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from brokerd.cluster.election import replica_of, spread
from brokerd.cluster.image import Node
from brokerd.cluster.keys import PartitionEntry


def advanced(entry: PartitionEntry, nodes: Mapping[int, Node]) -> PartitionEntry | None:
    """The next entry on the way to its target; None if there is nothing to do now. `nodes`: those alive, by id."""
    target = entry.target
    if not target:
        return None
    added = tuple(node_id for node_id in target if node_id not in entry.replicas)
    if added:
        return entry._replace(replicas=(*entry.replicas, *added))
    isr = {replica.node_id: replica for replica in entry.isr}
    if not all(node_id in isr and node_id in nodes and replica_of(nodes[node_id]) == isr[node_id] for node_id in target):
        return None
    gone = [node_id for node_id in entry.replicas if node_id not in target]
    copies = (*entry.out_of_sync, *(replica for replica in entry.isr if replica.node_id in gone))
    running = (replica_of(nodes[node_id]) for node_id in gone if node_id in nodes)  # with copies that have never been in sync
    done = entry._replace(
        replicas=target,
        isr=tuple(isr[node_id] for node_id in target),
        out_of_sync=tuple(dict.fromkeys((*copies, *running))),
        target=(),
    )
    if entry.leader == target[0]:
        return done
    return done._replace(leader=target[0], leader_node_epoch=nodes[target[0]].epoch, leader_epoch=entry.leader_epoch + 1)


def grown(entry: PartitionEntry, factor: int, nodes: Mapping[int, Node], replicas: Counter[int]) -> PartitionEntry | None:
    """The entry with a target of up to `factor` replicas; None if it has them, or no node alive is left. `replicas`: how many each
    node has. The new ones are added to it.
    """
    missing = factor - len(entry.replicas)
    if missing <= 0 or entry.target:
        return None
    added = spread(nodes, missing, replicas, [nodes[node_id] for node_id in entry.replicas if node_id in nodes], entry.replicas)
    return entry._replace(target=(*entry.replicas, *added)) if added else None


def drained(entry: PartitionEntry, node_id: int, nodes: Mapping[int, Node], replicas: Counter[int]) -> Sequence[int] | None:
    """The replicas without a node, another one in its place; None if no node alive is left for that. `replicas`: how many each node
    has. The new one is added to it.
    """
    stay = [each for each in entry.replicas if each != node_id]
    added = spread(nodes, 1, replicas, [nodes[each] for each in stay if each in nodes], entry.replicas)
    if not added:
        return None
    at = entry.replicas.index(node_id)
    return (*stay[:at], *added, *stay[at:])
