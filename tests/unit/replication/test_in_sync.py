"""How many replicas count as in sync, and how many are asked for."""

from __future__ import annotations

from brokerd.cluster.election import ever_in_sync
from brokerd.cluster.image import Node
from brokerd.cluster.keys import InSyncReplica, PartitionEntry, Registration
from brokerd.replication.leader import has_enough_in_sync, in_sync_of, joined, left
from brokerd.replication.reassignment import advanced


def copy(node_id: int) -> InSyncReplica:
    return InSyncReplica(node_id, f"d{node_id}")


def test_copies_that_are_being_made_do_not_count_towards_min_insync_replicas() -> None:
    """Else a partition of one replica takes nothing while it moves."""
    entry = PartitionEntry((1, 2, 3), (copy(1),), leader=1, target=(2, 3))
    assert ever_in_sync(entry) == {1}
    assert in_sync_of(entry) == ([], 1, 1)
    assert has_enough_in_sync(entry, 2)
    halfway = joined(entry, copy(2))
    assert in_sync_of(halfway) == ([2], 2, 2)
    fell_out = left(halfway, {2})
    assert in_sync_of(fell_out) == ([], 1, 2)
    assert not has_enough_in_sync(fell_out, 2)
    assert has_enough_in_sync(fell_out, 1)


def test_a_copy_that_is_made_anew_before_the_last_one_was_removed_does_not_count_either() -> None:
    """A move was stopped and asked for again: node 2 is listed, so that it removes what it has, and is added once it has, or if
    that is a disk that it has no more."""
    nodes = {number: Node(number, number, Registration("h", 1, f"d{number}")) for number in (1, 2)}
    entry = PartitionEntry((1,), (copy(1),), leader=1, out_of_sync=(copy(2),), target=(2,))
    assert advanced(entry, nodes) is None
    assert has_enough_in_sync(entry, 2), "it takes records meanwhile"
    added = advanced(entry._replace(out_of_sync=(InSyncReplica(2, "former"),)), nodes)
    assert added is not None
    assert added.replicas == (1, 2)
    assert in_sync_of(added) == ([], 1, 1)
    assert has_enough_in_sync(added, 2)
