"""What the controller makes of the entry of a partition."""

from __future__ import annotations

from typing import Any

from brokerd.cluster.image import ClusterImage, Node
from brokerd.cluster.keys import InSyncReplica, Keys, PartitionEntry, Registration
from brokerd.datadir.topic_store import COORDINATOR_LOG
from brokerd.server.cluster.controller import Controller


def test_a_node_is_given_a_copy_back_only_after_it_has_removed_the_old_one() -> None:
    nothing: Any = None
    controller = Controller(nothing, nothing, 3)
    image = ClusterImage(Keys("prod"))
    image.nodes = {node_id: Node(node_id, node_id * 10, Registration("host", 9092, f"d{node_id}")) for node_id in (1, 2, 3)}
    isr = (InSyncReplica(2, "d2"), InSyncReplica(3, "d3"))
    moved = PartitionEntry((2, 3), isr, 2, 20, 6, (InSyncReplica(1, "d1"),))
    back = moved._replace(target=(2, 3, 1))
    assert controller._changed(COORDINATOR_LOG, moved, image) == back, "the coordinator's log grows again"
    assert controller._changed(COORDINATOR_LOG, back, image) is None, "node 1 would keep what it has"
    removed = back._replace(out_of_sync=())
    assert controller._changed(COORDINATOR_LOG, removed, image) == removed._replace(replicas=(2, 3, 1))
