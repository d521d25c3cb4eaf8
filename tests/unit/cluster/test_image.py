"""ClusterImage: a full read and changes in any order result in the same image."""

from __future__ import annotations

import random
from typing import Any

from brokerd.cluster.assignments import HeldTopic, to_hold
from brokerd.cluster.image import ClusterImage
from brokerd.cluster.keys import PARTITIONS_MAX, InSyncReplica, Keys, PartitionEntry, Registration, Tombstone, TopicEntry, encode
from brokerd.ids import NO_LEADER, TopicIdPartition

KEYS = Keys("test")
ORDERS, CLICKS = b"o" * 16, b"c" * 16
ENTRY = PartitionEntry((1,), (InSyncReplica(1, "d1"),), 1, 4, 1)
REGISTRATION = Registration("host", 9092, "d1")
CONTENT = {
    KEYS.cluster_id: b"abc",
    KEYS.controller: b"1",
    KEYS.feature_level: b"3",
    KEYS.node(1): encode(REGISTRATION),
    KEYS.topic(ORDERS): encode(TopicEntry("orders", 2, {})),
    KEYS.partition(TopicIdPartition(ORDERS, 0)): encode(ENTRY),
    KEYS.partition(TopicIdPartition(ORDERS, 1)): encode(ENTRY),
    KEYS.name("orders"): ORDERS.hex().encode(),
    KEYS.topic(CLICKS): encode(TopicEntry("clicks", 1, {})),
    KEYS.partition(TopicIdPartition(CLICKS, 0)): encode(ENTRY),
    KEYS.tombstone(b"g" * 16): encode(Tombstone("gone", 3, ("d1",))),
}


def put(image: ClusterImage, key: str, value: bytes, revision: int = 9) -> None:
    image.put(key, value, create_revision=revision, mod_revision=revision)


def full() -> ClusterImage:
    image = ClusterImage(KEYS)
    for key, value in CONTENT.items():
        put(image, key, value)
    return image


def state(image: ClusterImage) -> dict[str, Any]:
    return {name: value for name, value in vars(image).items() if name != "keys"}


def test_a_topic_exists_with_its_name() -> None:
    image = full()
    assert (image.cluster_id, image.controller, image.problems) == ("abc", 1, {})
    assert [topic_id for topic_id, _ in image.topics()] == [ORDERS]
    assert sorted(tp for tp, _ in image.partitions()) == [(ORDERS, 0), (ORDERS, 1)]
    assert image.topic(CLICKS) is None
    put(image, KEYS.name("clicks"), CLICKS.hex().encode())
    assert [topic.name for _, topic in image.topics()] == ["clicks", "orders"]
    image.delete(KEYS.name("orders"))
    assert (image.topic(ORDERS), image.topic_id("orders")) == (None, None)


def test_a_name_that_leads_to_another_topic_is_none_of_it() -> None:
    image = full()
    put(image, KEYS.name("payments"), ORDERS.hex().encode())
    assert (image.topic_id("payments"), image.topic_id("orders")) == (None, ORDERS)
    put(image, KEYS.name("orders"), CLICKS.hex().encode())
    assert [image.topic_id(name) for name in ("orders", "payments")] == [None, None]
    assert image.topics() == []


def test_partitions_beyond_the_count_wait_for_it() -> None:
    image = full()
    put(image, KEYS.partition(TopicIdPartition(ORDERS, 2)), encode(ENTRY))
    assert len(list(image.partitions())) == 2
    put(image, KEYS.topic(ORDERS), encode(TopicEntry("orders", 3, {})))
    assert len(list(image.partitions())) == 3


def test_the_order_of_changes_does_not_matter() -> None:
    generator = random.Random(1)
    for _ in range(200):
        image, keys = ClusterImage(KEYS), list(CONTENT)
        for key in generator.choices(keys, k=30):
            if generator.random() < 0.5:
                image.delete(key)
            else:
                put(image, key, generator.choice((CONTENT[key], b"?")))
        generator.shuffle(keys)
        for key in keys:
            put(image, key, CONTENT[key])
        assert state(image) == state(full())
        for key in keys:
            image.delete(key)
        assert state(image) == state(ClusterImage(KEYS))


def test_partitions_without_a_topic_are_told_with_their_newest_revision() -> None:
    image = full()
    assert list(image.orphans()) == []  # CLICKS is no orphan: only its name is missing, as in a deletion, or unreadable
    for number, revision in ((3, 20), (1, 21)):
        put(image, KEYS.partition(TopicIdPartition(b"x" * 16, number)), encode(ENTRY), revision)
    image.delete(KEYS.topic(ORDERS))
    assert sorted(image.orphans()) == [(ORDERS, 9), (b"x" * 16, 21)]


def test_an_image_may_change_while_its_partitions_are_looked_at() -> None:
    image, seen = full(), []
    for tp, _ in image.partitions():
        seen.append(tp.partition)
        image.delete(KEYS.partition(tp))
    assert sorted(seen) == [0, 1]


def test_a_partition_that_changes_while_others_are_looked_at_is_told() -> None:
    image = full()
    put(image, KEYS.name("clicks"), CLICKS.hex().encode())
    looked = image.partitions()
    found = [next(looked)[0]]
    put(image, KEYS.partition(TopicIdPartition(CLICKS, 0)), encode(ENTRY._replace(leader_epoch=2)))
    found += [tp for tp, _ in looked]
    assert sorted(found) == [(CLICKS, 0), (ORDERS, 0), (ORDERS, 1)]


def test_a_controller_that_cannot_be_read_has_a_revision() -> None:
    image = full()
    put(image, KEYS.controller, b"?", 12)
    assert (image.controller, image.controller_revision) == (NO_LEADER, 12)
    image.delete(KEYS.controller)
    assert (image.controller, image.controller_revision) == (NO_LEADER, 0)


def test_partitions_are_held_as_far_as_the_keys_say() -> None:
    image = ClusterImage(KEYS)
    put(image, KEYS.topic(ORDERS), encode(TopicEntry("orders", PARTITIONS_MAX, {})))
    put(image, KEYS.name("orders"), ORDERS.hex().encode())
    for number, directory_id in ((PARTITIONS_MAX - 1, "d1"), (7, "d1"), (8, "d2"), (PARTITIONS_MAX, "d1")):
        put(image, KEYS.partition(TopicIdPartition(ORDERS, number)), encode(ENTRY._replace(isr=(InSyncReplica(1, directory_id),))))
    assert list(image.problems) == [KEYS.partition(TopicIdPartition(ORDERS, PARTITIONS_MAX))]
    assert [numbers for _, _, numbers in to_hold(image, 1, "d1", {})] == [[7, PARTITIONS_MAX - 1]]
    topic = image.topic(ORDERS)
    assert topic is not None
    assert [numbers for _, _, numbers in to_hold(image, 1, "d1", {ORDERS: HeldTopic(topic, (7,))})] == [[PARTITIONS_MAX - 1]]
    put(image, KEYS.topic(ORDERS), encode(topic._replace(partition_count=8)))
    assert [numbers for _, _, numbers in to_hold(image, 1, "d1", {})] == [[7]]


def test_what_cannot_be_read_is_absent_and_listed() -> None:
    image = full()
    put(image, KEYS.node(1), b"{}")
    assert image.nodes == {}
    assert image.problems == {KEYS.node(1): "'host' is None, not of type str"}
    put(image, KEYS.node(1), encode(REGISTRATION), revision=12)
    assert (image.nodes[1].epoch, image.problems) == (12, {})
    strange = [f"{KEYS.prefix}nodes/one", f"{KEYS.prefix}new/1", f"{KEYS.prefix}partitions/xyz/0", "/other/nodes/1"]
    for key in strange:
        put(image, key, b"{}")
    assert list(image.problems) == strange
    for key in (*strange, KEYS.controller):
        image.delete(key)
    assert (image.problems, image.controller) == ({}, NO_LEADER)
