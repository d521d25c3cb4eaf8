"""Reassignment: replicas are added before others are removed, copies never get fewer, the first of the target leads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from brokerd.cluster.assignments import to_drop
from brokerd.cluster.changes import copy_dropped, delete_topic
from brokerd.cluster.election import any_copy_of, elect
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
from brokerd.replication.leader import joined, left
from brokerd.replication.reassignment import advanced, drained, grown, stopped


def node(node_id: int, rack: str = "", directory_id: str = "") -> Node:
    return Node(node_id, node_id * 10, Registration("host", 9092, directory_id or f"d{node_id}", rack))


def nodes_of(*node_ids: int) -> dict[int, Node]:
    return {node_id: node(node_id) for node_id in node_ids}


ALL = nodes_of(1, 2, 3, 4)


def copies(node_ids: Iterable[int]) -> tuple[InSyncReplica, ...]:
    return tuple(InSyncReplica(node_id, f"d{node_id}") for node_id in node_ids)


def entry_of(
    replicas: tuple[int, ...], target: tuple[int, ...] = (), isr: tuple[int, ...] = (), leader: int = 0, out: tuple[int, ...] = ()
) -> PartitionEntry:
    """An entry in leader epoch 5, led by its first replica unless `leader` is given."""
    leads = leader or replicas[0]
    return PartitionEntry(replicas, copies(isr or replicas), leads, leads * 10, 5, copies(out), target)


def test_what_was_in_sync_before_an_unclean_election_is_known_until_it_is_removed_or_has_joined() -> None:
    entry = entry_of((1, 2, 3), isr=(1, 2), out=(3,))._replace(superseded=(*copies([3]), InSyncReplica(3, "former")))
    rejoined = joined(entry, copies([3])[0])
    assert rejoined.superseded == (InSyncReplica(3, "former"),), "the disk of a former life may be put back"
    moved = advanced(entry._replace(target=(1, 2)), ALL)
    assert moved is not None
    assert (moved.replicas, moved.superseded, moved.out_of_sync) == ((1, 2), (), copies([3]))


def test_a_move_adds_copies_waits_for_them_and_then_drops_the_others() -> None:
    entry = entry_of((1, 2), target=(3, 2))
    added = advanced(entry, ALL)
    assert added == entry._replace(replicas=(1, 2, 3)), "it leads, and is in sync, as before"
    assert advanced(added, ALL) is None, "node 3 has nothing yet"
    in_sync = joined(added, copies([3])[0])
    done = advanced(in_sync, ALL)
    assert done == PartitionEntry((3, 2), copies([3, 2]), 3, 30, 6, copies([1]))
    assert advanced(done, ALL) is None
    assert elect(done, ALL) is None


def test_nothing_goes_while_one_of_the_target_is_not_in_sync_alive_and_the_same() -> None:
    ready = entry_of((1, 2, 3), target=(3, 2))
    assert advanced(ready, ALL) is not None
    assert advanced(left(ready, {3}), ALL) is None
    assert advanced(ready, nodes_of(1, 2)) is None
    assert advanced(ready, {**ALL, 3: node(3, directory_id="emptied")}) is None
    assert advanced(ready, {**ALL, 2: node(2, directory_id="emptied")}) is None


def test_nobody_is_made_the_leader_whose_disk_refuses_appends() -> None:
    full = {**ALL, 1: ALL[1]._replace(registration=ALL[1].registration._replace(refuses=True))}
    for isr in ((1, 2, 3), (1, 2)):
        asked = entry_of((1, 2, 3), target=(1, 2, 3), isr=isr, leader=2)
        ended = asked._replace(target=()) if len(isr) == 3 else None
        assert advanced(asked, full) == ended, "the move ends, and the lead stays"
        led = advanced(asked, ALL)
        assert led is not None
        assert led.leader == 1


def test_when_replicas_go_a_new_epoch_begins_under_the_same_leader_too() -> None:
    """Node 3 is removed, drops its copy and is added again: earlier reports must not count for the new copy."""
    done = advanced(entry_of((1, 2, 3), target=(1, 2)), ALL)
    assert done is not None
    assert (done.leader, done.leader_node_epoch, done.leader_epoch) == (1, 10, 6)
    grown_only = advanced(entry_of((1, 2, 3), target=(1, 2, 3)), ALL)
    assert grown_only is not None
    assert (grown_only.leader_epoch, grown_only.target) == (5, ()), "nobody goes, and nobody is interrupted"


def test_copies_that_go_are_listed_until_they_are_removed_also_those_never_in_sync() -> None:
    entry = entry_of((1, 2, 3, 4), target=(2,), isr=(1, 2), out=(3,))
    done = advanced(entry, ALL)
    assert done is not None
    assert set(done.out_of_sync) == set(copies([1, 3, 4]))
    assert len(done.out_of_sync) == 3
    dead = advanced(entry, nodes_of(1, 2))
    assert dead is not None
    assert set(dead.out_of_sync) == {*copies([1, 3]), any_copy_of(3), any_copy_of(4)}, "nobody knows in which directories"
    has_a_copy = advanced(entry_of((1, 2, 4), target=(2,)), nodes_of(1, 2))
    assert has_a_copy is not None
    assert set(has_a_copy.out_of_sync) == {*copies([1, 4]), any_copy_of(4)}, "node 4 removes it once it is back"


def test_a_leader_moves() -> None:
    moved = advanced(entry_of((1, 2, 3), target=(2, 1, 3)), ALL)
    assert moved == PartitionEntry((2, 1, 3), copies([2, 1, 3]), 2, 20, 6)


def test_a_leader_moves_though_others_are_not_in_sync() -> None:
    entry = entry_of((1, 2, 3), target=(2, 1, 3), isr=(1, 2), out=(3,))
    moved = advanced(entry, ALL)
    assert moved == entry._replace(replicas=(2, 1, 3), leader=2, leader_node_epoch=20, leader_epoch=6)
    assert advanced(moved, ALL) is None, "it ends once all are in sync"
    ended = advanced(joined(moved, copies([3])[0]), ALL)
    assert ended is not None
    assert (ended.target, ended.leader_epoch, ended.isr) == ((), 6, copies([2, 1, 3]))
    assert advanced(entry_of((1, 2, 3), target=(3, 1, 2), isr=(1, 2)), ALL) is None, "but it is in sync itself"
    assert advanced(entry_of((1, 2, 3), target=(2, 1), isr=(1, 2)), ALL) is not None
    full = ALL[2]._replace(registration=ALL[2].registration._replace(refuses=True))
    assert advanced(entry, {**ALL, 2: full}) is None, "and its disk takes appends"


def test_another_target_on_the_way_takes_what_was_added_back() -> None:
    entry = entry_of((1, 2, 3), target=(1, 2), isr=(1, 2))
    back = advanced(entry, ALL)
    assert back is not None
    assert (back.replicas, back.isr, back.out_of_sync) == ((1, 2), copies([1, 2]), copies([3]))


def test_a_move_that_is_stopped_keeps_what_was_ever_in_sync() -> None:
    entry = entry_of((1, 2, 3, 4), target=(3, 4), isr=(1, 3), out=(2,))
    halted = stopped(entry, ALL)
    assert halted == PartitionEntry((1, 2, 3), copies([1, 3]), 1, 10, 6, copies([2, 4]))
    assert stopped(halted, ALL) is None
    before_anything = entry_of((1, 2), target=(3, 4))
    assert stopped(before_anything, ALL) == before_anything._replace(target=())


def test_a_copy_whose_node_was_away_when_its_move_was_stopped_goes_too() -> None:
    """The copy was never in sync, so its directory is unknown. If it stayed, it would obstruct a new topic of the same name."""
    halted = stopped(entry_of((1, 2), target=(1, 2), isr=(1,)), nodes_of(1))
    assert halted is not None
    keys, tp = Keys("prod"), TopicIdPartition(b"t" * 16, 0)
    image = ClusterImage(keys)
    topic = encode(TopicEntry("orders", 1, {}))
    for key, value in ((keys.topic(tp.topic_id), topic), (keys.name("orders"), tp.topic_id.hex().encode())):
        image.put(key, value, create_revision=1, mod_revision=1)
    image.put(keys.partition(tp), encode(halted), create_revision=1, mod_revision=2)
    for seen in ({tp: 5}, {tp: halted.leader_epoch}, {}):
        assert [found for found, _ in to_drop(image, 2, "d2", seen)] == [tp]
    assert not to_drop(image, 2, "d2", {tp: halted.leader_epoch + 1}), "the store is older than the copy"
    assert not to_drop(image, 1, "d1", {tp: 5})
    at = image.partition(tp)
    assert at is not None
    assert advanced(halted._replace(target=(1, 2)), ALL) is None, "it removes that copy first"
    assert advanced(halted._replace(target=(1, 2)), nodes_of(1)) is None, "also if it is away at that moment"
    others = advanced(halted._replace(target=(1, 2, 3)), nodes_of(1, 3))
    assert others is not None
    assert (others.replicas, others.out_of_sync) == ((1, 3), halted.out_of_sync), "others do not wait for it"
    assert advanced(others, nodes_of(1, 3)) is None
    deletion = decode_tombstone(delete_topic(image, tp.topic_id).puts[keys.tombstone(tp.topic_id)])
    assert (deletion.directory_ids, deletion.node_ids) == (("d1",), (2,))
    dropped = copy_dropped(image, tp, at, InSyncReplica(2, "d2")).puts[keys.partition(tp)]
    image.put(keys.partition(tp), dropped, create_revision=1, mod_revision=3)
    later = image.partition(tp)
    assert later is not None
    assert not later.entry.out_of_sync
    raised = encode(later.entry._replace(leader_epoch=99))
    image.put(keys.partition(tp), raised, create_revision=1, mod_revision=4)
    assert not to_drop(image, 2, "d2", {tp: 5}), "what no entry lists stays: it may be the only copy, and the store an older one"


def test_a_drained_node_is_replaced_at_its_place_by_the_one_with_least() -> None:
    counts = Counter({1: 9, 2: 9, 3: 9, 4: 1, 5: 0})
    nodes = nodes_of(1, 2, 3, 4)
    assert drained(entry_of((1, 2, 3)), 2, nodes, counts) == (1, 4, 3)
    assert counts[4] == 2
    assert drained(entry_of((1,)), 1, nodes_of(1, 2, 3), Counter({2: 5, 3: 4})) == (3,)
    assert drained(entry_of((1, 2)), 1, nodes_of(1, 2), Counter()) is None, "no other node is alive"
    dead = drained(entry_of((1, 2)), 1, nodes_of(2, 3), Counter())
    assert dead == (3, 2), "a node that is not alive is drained, too"


def test_a_drained_node_goes_from_a_target_too() -> None:
    assert drained(entry_of((1, 2, 3), target=(3, 2)), 3, nodes_of(1, 2, 3, 4), Counter({1: 9})) == (4, 2)
    assert drained(entry_of((1, 2), target=(3, 2)), 3, nodes_of(1, 2, 3), Counter()) == (1, 2)


def test_the_copy_in_place_of_another_is_in_a_rack_of_its_own() -> None:
    nodes = {1: node(1, "a"), 2: node(2, "b"), 3: node(3, "b"), 4: node(4, "c")}
    assert drained(entry_of((1, 2)), 1, nodes, Counter({4: 100})) == (4, 2)


def test_the_coordinators_log_grows_once_there_are_nodes() -> None:
    entry = entry_of((1,))
    assert grown(entry, 3, ALL, Counter()) == entry._replace(target=(1, 2, 3))
    assert grown(entry, 3, nodes_of(1), Counter()) is None
    assert grown(entry, 1, ALL, Counter()) is None
    assert grown(entry._replace(target=(1, 2)), 3, ALL, Counter()) is None


def test_without_a_leader_a_move_waits() -> None:
    entry = entry_of((1, 2), target=(2, 1))._replace(leader=NO_LEADER)
    assert elect(entry, {}) is None
    assert advanced(entry, {}) is None


def test_a_listed_copy_that_has_led_or_followed_since_is_not_removed_by_a_store_of_before() -> None:
    """etcd was restored from a backup taken after node 2 was removed and before it was added again."""
    keys, tp = Keys("prod"), TopicIdPartition(b"t" * 16, 0)
    image = ClusterImage(keys)
    topic = encode(TopicEntry("orders", 1, {}))
    for key, value in ((keys.topic(tp.topic_id), topic), (keys.name("orders"), tp.topic_id.hex().encode())):
        image.put(key, value, create_revision=1, mod_revision=1)
    image.put(keys.partition(tp), encode(entry_of((1,), out=(2,))), create_revision=1, mod_revision=2)
    assert [found for found, _ in to_drop(image, 2, "d2", {tp: 5})] == [tp]
    assert [found for found, _ in to_drop(image, 2, "d2", {})] == [tp], "what a crash has left of it is taken off the list"
    assert not to_drop(image, 2, "d2", {tp: 6})


def test_an_entry_stays_readable_however_many_of_its_nodes_have_never_come_back() -> None:
    """Each dead node is replaced by one with a new id. If no node could decode the entry, the partition would not exist."""
    entry = entry_of((1, 2), out=(2,), isr=(1,))
    for dead in range(2, 102):
        moved = entry._replace(
            isr=copies([1, dead + 1]),
            replicas=(1, dead, dead + 1),
            target=(1, dead + 1),
            out_of_sync=(*entry.out_of_sync, *copies([dead])),
        )
        done = advanced(moved, nodes_of(1, dead + 1))
        assert done is not None
        entry = done
    assert decode_partition(encode(entry)) == entry
    assert any_copy_of(101) in entry.out_of_sync, "those that went last remove their copies, if they come back"
