"""The controller: changes of partition entries, its log messages, and when it raises the feature level."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from brokerd.cluster.image import ClusterImage, Node, PartitionAt
from brokerd.cluster.keys import InSyncReplica, Keys, PartitionEntry, Registration, TopicEntry, encode
from brokerd.datadir.topic_store import COORDINATOR_LOG
from brokerd.ids import NO_LEADER, TopicIdPartition
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
    again = led._replace(leader_node_epoch=20, leader_epoch=2)  # the leader's node has restarted
    moved = led._replace(replicas=(1,), leader_epoch=2)  # node 2 must not rejoin by an old report
    caplog.set_level("INFO")
    for entry in (again, led._replace(leader=NO_LEADER, leader_node_epoch=0, leader_epoch=2), moved):
        Controller(nothing, nothing)._tell(ClusterImage(Keys("prod")), [(COORDINATOR_LOG, PartitionAt(led, 5), entry)])
    name = str(COORDINATOR_LOG)
    assert caplog.messages == [
        f"elected leaders of 1 partition: {name} on node 1",
        f"no leader for 1 partition, until a node that has all records is back: {name}",
        f"changed the replicas of 1 partition: {name}",
    ]


KEYS = Keys("prod")
TP = TopicIdPartition(b"o" * 16, 0)


def put(key: str, value: bytes) -> Callable[[ClusterImage], None]:
    return lambda image: image.put(key, value, create_revision=9, mod_revision=9)


@pytest.mark.parametrize(
    ("change", "raised"),
    [
        (lambda _: None, True),
        (put(KEYS.feature_level, b"?"), True),
        (put(KEYS.feature_level, b"3"), False),
        (put(KEYS.node(2), encode(Registration("h", 1, "d2", feature_level=1))), False),
        (put(KEYS.partition(TP), encode(PartitionEntry((1, 3), (InSyncReplica(1, "d1"),)))), False),
        (put(KEYS.partition(TP), encode(PartitionEntry((1,), (InSyncReplica(1, "d1"),), target=(1, 3)))), False),
        (put(KEYS.partition(TP), b"?"), False),
        (lambda image: image.nodes.clear(), False),
    ],
)
def test_the_feature_level_is_raised_as_far_as_is_certain(change: Callable[[ClusterImage], None], raised: bool) -> None:
    image, asked = ClusterImage(KEYS), list[Any]()

    class Client:
        async def transact(self, *change: Any) -> int:
            asked.append(change)
            return 1

    put(KEYS.topic(TP.topic_id), encode(TopicEntry("orders", 1, {})))(image)
    put(KEYS.name("orders"), TP.topic_id.hex().encode())(image)
    put(KEYS.partition(TP), encode(PartitionEntry((1,), (InSyncReplica(1, "d1"),))))(image)
    for node_id, level in ((1, 3), (2, 2)):
        put(KEYS.node(node_id), encode(Registration("h", 1, f"d{node_id}", feature_level=level)))(image)
    change(image)
    client: Any = Client()
    asyncio.run(Controller(client, client)._raise_level(image))
    compares = {KEYS.node(1): 9, KEYS.node(2): 9, KEYS.feature_level: image.feature_revision}  # fails if a node re-registers
    assert asked == ([(compares, {KEYS.feature_level: b"2"})] if raised else [])
