"""What the controller makes of the entry of a partition."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.cluster.image import ClusterImage, Node, PartitionAt
from brokerd.cluster.keys import InSyncReplica, Keys, PartitionEntry, Registration
from brokerd.datadir.topic_store import COORDINATOR_LOG
from brokerd.ids import NO_LEADER
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


def test_it_tells_of_elections_and_of_moves(caplog: pytest.LogCaptureFixture) -> None:
    nothing: Any = None
    led = PartitionEntry((1, 2), (InSyncReplica(1, "d1"), InSyncReplica(2, "d2")), 1, 10, 1)
    again = led._replace(leader_node_epoch=20, leader_epoch=2)  # its node has started again
    caplog.set_level("INFO")
    for entry in (again, led._replace(leader=NO_LEADER, leader_epoch=2), led._replace(replicas=(2, 1))):
        Controller(nothing, nothing)._tell(ClusterImage(Keys("prod")), [(COORDINATOR_LOG, PartitionAt(led, 5), entry)])
    name = str(COORDINATOR_LOG)
    assert caplog.messages == [
        f"elected leaders of 1 partition: {name} on node 1",
        f"no leader for 1 partition, until a node that has all records is back: {name}",
        f"changed the replicas of 1 partition: {name}",
    ]
