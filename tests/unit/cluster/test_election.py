"""Replica placement, leader elections (also unclean ones, and after the store was rolled back), and which copies are removed."""

from __future__ import annotations

from collections import Counter

import pytest

from brokerd.cluster.assignments import Life, gone_back, to_drop, to_outdo
from brokerd.cluster.changes import delete_topic
from brokerd.cluster.election import elect, elected_unclean, no_copy_alive, outdone, place
from brokerd.cluster.image import ClusterImage, Node
from brokerd.cluster.keys import (
    InSyncReplica,
    Keys,
    PartitionEntry,
    Registration,
    TopicEntry,
    decode_partition,
    decode_tombstone,
    encode,
)
from brokerd.ids import NO_LEADER, TopicIdPartition

KEYS = Keys("test")


def cluster(*racks: str) -> ClusterImage:
    """Nodes 1, 2, … in these racks."""
    image = ClusterImage(KEYS)
    for node_id, rack in enumerate(racks, 1):
        value = encode(Registration("host", 9092, f"d{node_id}", rack))
        image.put(KEYS.node(node_id), value, create_revision=node_id * 10, mod_revision=node_id * 10)
    return image


def add_topic(image: ClusterImage, name: str, entries: list[PartitionEntry]) -> None:
    topic_id = name.encode().ljust(16)
    for number, entry in enumerate(entries):
        image.put(KEYS.partition(TopicIdPartition(topic_id, number)), encode(entry), create_revision=99, mod_revision=99)
    image.put(KEYS.topic(topic_id), encode(TopicEntry(name, len(entries), {})), create_revision=99, mod_revision=99)
    image.put(KEYS.name(name), topic_id.hex().encode(), create_revision=99, mod_revision=99)


def spread(counts: Counter[int], nodes: int) -> int:
    return max(counts.values()) - min(counts[node_id] for node_id in range(1, nodes + 1))


@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
@pytest.mark.parametrize("replication_factor", [1, 2, 3])
def test_each_node_has_its_share(nodes: int, replication_factor: int) -> None:
    if replication_factor > nodes:
        return
    image = cluster(*[""] * nodes)
    for topic, count in (("a", 7), ("b", 1), ("c", 12)):
        add_topic(image, topic, place(image, count, replication_factor))
    placed = [partition.entry for _, partition in image.partitions()]
    assert all(len(set(entry.replicas)) == replication_factor for entry in placed)
    assert spread(Counter(node_id for entry in placed for node_id in entry.replicas), nodes) <= 1
    assert spread(Counter(entry.leader for entry in placed), nodes) <= (1 if replication_factor in (1, nodes) else 2)


def test_a_new_node_gets_what_comes_next() -> None:
    image = cluster("", "")
    add_topic(image, "a", place(image, 6, 1))
    image.put(KEYS.node(3), encode(Registration("host", 9092, "d3")), create_revision=30, mod_revision=30)
    assert [entry.leader for entry in place(image, 3, 1)] == [3, 3, 3]


@pytest.mark.parametrize("racks", [("a", "a", "b", "b", "c"), ("a", "a", "a", "b", "c"), ("a", "b", "c")])
def test_copies_are_in_different_racks(racks: tuple[str, ...]) -> None:
    for replication_factor in (1, 2, 3):
        for entry in place(cluster(*racks), 30, replication_factor):
            assert len({racks[node_id - 1] for node_id in entry.replicas}) == replication_factor


def test_too_few_racks_do_not_matter() -> None:
    for entry in place(cluster("a", "a", "b"), 9, 3):
        assert sorted(entry.replicas) == [1, 2, 3]


def test_a_node_whose_disk_refuses_appends_gets_new_replicas_last() -> None:
    image = cluster("a", "b", "b")
    image.put(KEYS.node(1), encode(Registration("host", 9092, "d1", "a", refuses=True)), create_revision=10, mod_revision=40)
    assert all(sorted(entry.replicas) == [2, 3] for entry in place(image, 4, 2)), "whatever its rack"
    assert all(entry.replicas[0] != 1 and len(entry.replicas) == 3 for entry in place(image, 4, 3))


def test_a_new_partition_needs_no_election() -> None:
    image = cluster("", "", "")
    for entry in place(image, 5, 2):
        assert elect(entry, image.nodes) is None
        assert entry.leader_epoch == 1


def test_the_preferred_replica_in_sync_with_its_disk_is_elected() -> None:
    image = cluster("", "", "")
    entry = place(image, 1, 3)[0]
    assert entry.replicas == (1, 2, 3)
    nodes = dict(image.nodes)
    del nodes[1]
    assert elect(entry, nodes) == entry._replace(leader=2, leader_node_epoch=20, leader_epoch=2)
    nodes[2] = nodes[2]._replace(registration=Registration("host", 9092, "emptied"))
    assert elect(entry, nodes) == entry._replace(leader=3, leader_node_epoch=30, leader_epoch=2)
    del nodes[3]
    waiting = elect(entry, nodes)
    assert waiting == entry._replace(leader=NO_LEADER, leader_node_epoch=0, leader_epoch=2)
    assert waiting is not None
    assert elect(waiting, nodes) is None
    nodes[1] = image.nodes[1]._replace(epoch=40)
    assert elect(waiting, nodes) == entry._replace(leader=1, leader_node_epoch=40, leader_epoch=3)


@pytest.mark.parametrize(
    ("isr", "text"),
    [
        ({2: "d2", 7: "d7"}, ""),
        ({2: "gone"}, "they are on node 2's former directory; put it back, or delete the topic"),
        ({7: "d7"}, "they are on node 7, which is not alive; start it"),
        ({7: "d7", 8: "d8"}, "they are on nodes 7, 8, which are not alive; start one of them"),
        (
            {7: "d7", 2: "gone"},
            "they are on node 7, which is not alive and on node 2's former directory; start it, or put a former directory back",
        ),
    ],
)
def test_where_the_records_are_is_said_if_no_copy_is_alive(isr: dict[int, str], text: str) -> None:
    entry = PartitionEntry(tuple(isr), tuple(InSyncReplica(node_id, directory) for node_id, directory in isr.items()), NO_LEADER)
    nodes = {node_id: Node(node_id, node_id, Registration("host", 9092, f"d{node_id}")) for node_id in (1, 2)}
    assert no_copy_alive(entry, nodes) == (text and f"no copy with all records is alive: {text}")
    assert "delete" not in no_copy_alive(entry, nodes, may_delete=False)


@pytest.mark.parametrize(
    ("isr", "was", "text"),
    [
        ({2: "gone"}, {1: "d1"}, "; put it back, or accept the loss of what no other copy has ('brokerd cluster elect-unclean')"),
        ({2: "gone"}, {7: "d7"}, "; put it back, or delete the topic"),
        ({2: "gone"}, {5: "d5"}, "; put it back, or delete the topic"),
        ({8: "d8"}, {1: "d1"}, "; start it"),
        ({8: "d8", 2: "gone"}, {1: "d1"}, "; start it, or put a former directory back"),
    ],
    ids=["an older copy", "of a node that is away", "of a node that has given it up", "nothing is lost yet", "one has all records"],
)
def test_an_unclean_election_is_proposed_where_it_helps_and_nothing_better_is_left(
    isr: dict[int, str], was: dict[int, str], text: str
) -> None:
    in_sync, out_of_sync = (tuple(InSyncReplica(*one) for one in copies.items()) for copies in (isr, was))
    entry = PartitionEntry((1, 2, 7, 8), in_sync, NO_LEADER, out_of_sync=out_of_sync)
    nodes = {node_id: Node(node_id, node_id, Registration("host", 9092, f"d{node_id}")) for node_id in (1, 2, 5)}
    remedies = no_copy_alive(entry, nodes)
    assert text in remedies
    assert ("elect-unclean" in remedies) == ("elect-unclean" in text)


def test_a_copy_that_is_elected_unclean_is_alone_in_sync_and_the_former_ones_are_kept() -> None:
    nodes = cluster("", "", "").nodes
    own, older, lost = InSyncReplica(1, "d1"), InSyncReplica(2, "d2"), InSyncReplica(3, "gone")
    entry = PartitionEntry((3, 1, 2), (lost,), NO_LEADER, leader_epoch=7, out_of_sync=(own, older), target=(1, 2))
    elected = elected_unclean(entry, nodes[1])
    assert elected == PartitionEntry((3, 1, 2), (own,), 1, 10, 8, out_of_sync=(older, lost), superseded=(lost,))
    assert elect(elected, nodes) is None
    waiting = elect(elected, {2: nodes[2], 3: nodes[3]})
    assert waiting == elected._replace(leader=NO_LEADER, leader_node_epoch=0, leader_epoch=9), "it waits for the one elected"
    again = elected_unclean(waiting, nodes[2])
    assert (again.isr, again.superseded) == ((older,), (lost, own))
    back = elected_unclean(again._replace(leader=NO_LEADER), nodes[1])
    assert (back.isr, back.out_of_sync, back.superseded) == ((own,), (lost, older), (lost, older))


@pytest.mark.parametrize("has_gone_back", [True, False])
def test_an_entry_stays_readable_however_often_disks_are_replaced(has_gone_back: bool) -> None:
    nodes = dict(cluster("", "").nodes)
    entry = PartitionEntry((1, 2), (InSyncReplica(1, "d1"), InSyncReplica(2, "d2")), 1, 10, 7)
    for number in range(300):
        winner = nodes[1 + number % 2]
        disk = winner.registration._replace(directory_id=f"{number:064}")
        nodes[winner.id] = winner = winner._replace(registration=disk)
        epoch = entry.leader_epoch + 1
        entry = outdone(entry, winner, nodes, epoch) if has_gone_back else elected_unclean(entry, winner)
        assert decode_partition(encode(entry)) == entry
    assert InSyncReplica(1, f"{298:064}") in entry.superseded


def test_a_node_whose_disk_refuses_appends_is_elected_last() -> None:
    image = cluster("", "", "")
    entry, nodes = place(image, 1, 3)[0], dict(image.nodes)
    nodes[2] = nodes[2]._replace(registration=nodes[2].registration._replace(refuses=True))
    assert elect(entry, {1: nodes[1], 2: nodes[2]}) is None, "a leader stays"
    del nodes[1]
    assert elect(entry, nodes) == entry._replace(leader=3, leader_node_epoch=30, leader_epoch=2)
    del nodes[3]
    assert elect(entry, nodes) == entry._replace(leader=2, leader_node_epoch=20, leader_epoch=2), "it can be read there"


def test_a_leader_that_is_no_longer_in_sync_or_came_back_is_elected_anew() -> None:
    image = cluster("", "")
    entry = place(image, 1, 2)[0]
    left = entry._replace(isr=entry.isr[1:])
    assert elect(left, image.nodes) == left._replace(leader=2, leader_node_epoch=20, leader_epoch=2)
    back = {**image.nodes, 1: image.nodes[1]._replace(epoch=40)}
    assert elect(entry, back) == entry._replace(leader_node_epoch=40, leader_epoch=2)


def test_an_in_sync_set_of_a_store_that_has_gone_back_is_not_believed() -> None:
    nodes = cluster("", "", "").nodes
    one, two, three = (InSyncReplica(node_id, f"d{node_id}") for node_id in (1, 2, 3))
    away = InSyncReplica(4, "d4")
    entry = PartitionEntry((1, 2, 3, 4), (one, two), 1, 10, 7, out_of_sync=(away, InSyncReplica(5, "")), target=(1, 2))
    found = outdone(entry, nodes[1], nodes, 10)
    assert (found.leader, found.leader_node_epoch, found.leader_epoch, found.isr, found.target) == (1, 10, 10, (one,), ())
    assert set(found.superseded) == {two, three, away}, "any of them may have what was acknowledged since"
    assert set(found.out_of_sync) == {two, away}


def test_no_copy_is_removed_by_what_a_store_that_has_gone_back_says() -> None:
    """Since the restored backup was taken, node 3 has become a replica again, and the last one in sync."""
    image, tp = cluster("", "", ""), TopicIdPartition(b"t".ljust(16), 0)
    one, two, three = (InSyncReplica(node_id, f"d{node_id}") for node_id in (1, 2, 3))
    entry = PartitionEntry((1, 2), (one, two), 1, 10, 4, out_of_sync=(three,))
    add_topic(image, "t", [entry])
    assert len(to_drop(image, 3, "d3", {tp: 4})) == 1
    assert to_drop(image, 3, "d3", {tp: 9}) == []
    found = to_outdo(image, Life(1, 10, "d1"), {tp: 9})
    add_topic(image, "t", [found[tp]])
    assert to_drop(image, 3, "d3", {tp: 9}) == []
    tombstone = decode_tombstone(delete_topic(image, tp.topic_id).puts[KEYS.tombstone(tp.topic_id)])
    assert tombstone.directory_ids == ("d1", "d2", "d3"), "it goes with its topic"


@pytest.mark.parametrize(
    ("node_id", "seen", "leader", "epoch"),
    [
        (1, 6, 1, None),  # the elected node has not seen epoch 7 yet
        (1, 7, 1, 8),  # it does not lead yet, so it has seen epoch 7 in another history
        (1, 9, 1, 10),
        (2, 7, 1, None),  # normal after each start of a follower
        (2, 8, 1, 9),
        (2, 8, NO_LEADER, None),  # the controller must elect a leader first
        (3, 8, 1, None),  # not a replica
    ],
)
def test_whoever_has_seen_a_newer_epoch_than_there_is_begins_the_next(
    node_id: int, seen: int, leader: int, epoch: int | None
) -> None:
    image = cluster("", "", "")
    isr = (InSyncReplica(1, "d1"), InSyncReplica(2, "d2"))
    add_topic(image, "t", [PartitionEntry((1, 2), isr, leader, 10 if leader == 1 else 0, 7)])
    tp = TopicIdPartition(b"t".ljust(16), 0)
    found = to_outdo(image, Life(node_id, node_id * 10, f"d{node_id}"), {tp: seen})
    assert [(entry.leader, entry.leader_epoch) for entry in found.values()] == ([(1, epoch)] if epoch is not None else [])


def test_who_has_seen_that_the_store_went_back_says_so_after_elections_have_hidden_it() -> None:
    image = cluster("", "")
    isr = (InSyncReplica(1, "d1"), InSyncReplica(2, "d2"))
    add_topic(image, "t", [PartitionEntry((1, 2), isr, NO_LEADER, 0, 7)])
    tp, life = TopicIdPartition(b"t".ljust(16), 0), Life(2, 20, "d2")
    assert gone_back(image, 2, {tp: 7}) == set()
    assert gone_back(image, 3, {tp: 8}) == set(), "it is no replica"
    disputed = gone_back(image, 2, {tp: 8})
    assert disputed == {tp}
    assert to_outdo(image, life, {tp: 8}, disputed) == {}
    add_topic(image, "t", [PartitionEntry((1, 2), isr, 1, 10, 9)])
    assert to_outdo(image, life, {tp: 8}) == {}, "it looks like any election"
    (found,) = to_outdo(image, life, {tp: 8}, disputed).values()
    assert (found.leader, found.leader_epoch, found.superseded) == (1, 10, (isr[1],))
