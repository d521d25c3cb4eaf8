"""Reassignment: a partition's entry names its `target` replicas, and moves towards them step by step.

New replicas are added first and copy from the leader. Once all of the target are in sync, the others are removed, and the first of
the target leads. So acknowledged records are never on fewer nodes than before or after the move. A leader is moved in the same way,
by a target of the same replicas in another order (Kafka's KIP-455, and its preferred leaders). It leads as soon as it is in sync,
whether or not the others are.

Removing replicas begins a new leader epoch (replication/__init__.py says why; Kafka raises the epoch there, too).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from brokerd.cluster.election import any_copy_of, ever_in_sync, replica_of, spread
from brokerd.cluster.image import Node
from brokerd.cluster.keys import OUT_OF_SYNC_MAX, InSyncReplica, PartitionEntry


def advanced(entry: PartitionEntry, nodes: Mapping[int, Node]) -> PartitionEntry | None:
    """The next entry on the way to its target; None if there is nothing to do now. `nodes`: those alive, by id."""
    target = entry.target
    if not target:
        return None
    added = [node_id for node_id in target if node_id not in entry.replicas]
    present = {copy for node_id in added if node_id in nodes for copy in (replica_of(nodes[node_id]), any_copy_of(node_id))}
    # A node first removes its earlier copy, or it would keep it, damaged or not. The other nodes need not wait for that.
    waiting = {one.node_id for one in entry.out_of_sync if one in present or (one.node_id in added and one.node_id not in nodes)}
    added = [node_id for node_id in added if node_id not in waiting]
    if waiting and not added:
        return None
    if added:
        # Earlier copies of these nodes are dropped, or `ever_in_sync` would count the new ones.
        old = tuple(copy for copy in entry.out_of_sync if copy.node_id not in added)
        return entry._replace(replicas=(*entry.replicas, *added), out_of_sync=old)
    isr = {replica.node_id: replica for replica in entry.isr}
    able = {node_id for node_id, replica in isr.items() if node_id in nodes and replica_of(nodes[node_id]) == replica}
    gone = [node_id for node_id in entry.replicas if node_id not in target]
    if not able.issuperset(target):
        # If no replica is removed, the new leader need not wait until all of the target are in sync.
        may_lead = not gone and target[0] in able and entry.leader != target[0] and not nodes[target[0]].registration.refuses
        return _led_by(target[0], entry._replace(replicas=target), nodes) if may_lead else None
    given_up = (*entry.out_of_sync, *(replica for replica in entry.isr if replica.node_id in gone))
    done = entry._replace(
        replicas=target,
        isr=tuple(isr[node_id] for node_id in target),
        out_of_sync=_listed((*given_up, *_copies_of(gone, nodes)), target),
        target=(),
        superseded=tuple(copy for copy in entry.superseded if copy.node_id not in gone),
    )
    if not gone and nodes[target[0]].registration.refuses:
        return done  # as leader it would hand over at once
    return _led_by(target[0], done, nodes) if gone or entry.leader != target[0] else done


def stopped(entry: PartitionEntry, nodes: Mapping[int, Node]) -> PartitionEntry | None:
    """The entry without its target; None if it has none. Replicas that have never been in sync are removed, so the partition does
    not wait for them. Those in sync by now stay; a new target without them removes them. `nodes`: those alive, by id."""
    if not entry.target:
        return None
    new = [node_id for node_id in entry.replicas if node_id not in ever_in_sync(entry)]
    replicas = tuple(node_id for node_id in entry.replicas if node_id not in new)
    left = entry._replace(
        replicas=replicas, out_of_sync=_listed((*entry.out_of_sync, *_copies_of(new, nodes)), replicas), target=()
    )
    return left._replace(leader_epoch=entry.leader_epoch + 1) if new else left


def _led_by(leader: int, entry: PartitionEntry, nodes: Mapping[int, Node]) -> PartitionEntry:
    """The entry in a new epoch, led by this node, which may be the leader already."""
    return entry._replace(leader=leader, leader_node_epoch=nodes[leader].epoch, leader_epoch=entry.leader_epoch + 1)


def _copies_of(node_ids: Iterable[int], nodes: Mapping[int, Node]) -> Iterator[InSyncReplica]:
    """The current copies on these nodes, in sync or not. A node removes its copy if an entry lists it."""
    return (replica_of(nodes[node_id]) if node_id in nodes else any_copy_of(node_id) for node_id in node_ids)


def _listed(given_up: Iterable[InSyncReplica], replicas: Collection[int]) -> tuple[InSyncReplica, ...]:
    """Each copy once. Of copies on nodes that are no longer replicas, only the newest that fit in half of OUT_OF_SYNC_MAX: an older
    one whose node never came back stays on its disk."""
    copies = list(dict.fromkeys(given_up))
    others = [copy for copy in copies if copy.node_id not in replicas]
    forgotten = set(others[: max(0, len(others) - OUT_OF_SYNC_MAX // 2)])
    return tuple(copy for copy in copies if copy not in forgotten)


def grown(entry: PartitionEntry, factor: int, nodes: Mapping[int, Node], replicas: Counter[int]) -> PartitionEntry | None:
    """The entry with a target of up to `factor` replicas; None if it has them or a target already, or no further node is alive.
    `replicas`: how many each node has; the new ones are added to it."""
    missing = factor - len(entry.replicas)
    if missing <= 0 or entry.target:
        return None
    added = spread(nodes, missing, replicas, [nodes[node_id] for node_id in entry.replicas if node_id in nodes], entry.replicas)
    return entry._replace(target=(*entry.replicas, *added)) if added else None


def drained(entry: PartitionEntry, node_id: int, nodes: Mapping[int, Node], replicas: Counter[int]) -> Sequence[int] | None:
    """The target that replaces this node by another; None if no other node is alive. `nodes`: those alive, by id. `replicas`: how
    many each node has; the new one is added to it."""
    wanted = entry.target or entry.replicas  # a reassignment under way gets another target
    stay = [each for each in wanted if each != node_id]
    added = spread(nodes, 1, replicas, [nodes[each] for each in stay if each in nodes], wanted)
    if not added:
        return None
    at = wanted.index(node_id)
    return (*stay[:at], *added, *stay[at:])
