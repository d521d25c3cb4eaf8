"""Keys and values in the coordination store: valid values survive a round trip, invalid ones are refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from brokerd.cluster.keys import (
    PARTITIONS_MAX,
    VALUE_MAX_BYTES,
    EntryError,
    InSyncReplica,
    Keys,
    PartitionEntry,
    Registration,
    Tombstone,
    TopicEntry,
    decode_partition,
    decode_registration,
    decode_tombstone,
    decode_topic,
    encode,
    number_of,
    topic_id_of,
)
from brokerd.config.broker import BrokerConfig
from brokerd.config.settings import settings_of
from brokerd.ids import TopicIdPartition, cluster_name_problem

TP = TopicIdPartition(bytes(range(16)), 7)
PARTITION = PartitionEntry((3, 1), (InSyncReplica(1, "d1"), InSyncReplica(3, "d3")), 1, 2**40, 5)
VALUES: list[tuple[Any, Callable[[bytes], Any]]] = [
    (Registration("host", 9092, "d1", "rack-a", "t" * 64, refuses=True), decode_registration),
    (TopicEntry("orders", 12, {"retention.ms": "1000"}), decode_topic),
    (PARTITION, decode_partition),
    (Tombstone("orders", 12, ("d1", "d2")), decode_tombstone),
]


@pytest.mark.parametrize(("value", "decode"), VALUES)
def test_a_value_is_read_as_it_was_written(value: Any, decode: Callable[[bytes], Any]) -> None:
    assert decode(encode(value)) == value
    newer = json.loads(encode(value)) | {"field of a later version": 1}
    assert decode(json.dumps(newer).encode()) == value


@pytest.mark.parametrize(("value", "decode"), VALUES)
def test_a_field_that_is_missing_or_of_another_type_is_refused(value: Any, decode: Callable[[bytes], Any]) -> None:
    fields = json.loads(encode(value))
    for name, right in fields.items():
        wrongs: list[Any] = [None, 1 if right is True else True, 1.5, {"a": 1}, [[]], [None], -2, 2**70, "x" * 300]
        for wrong in wrongs:
            with pytest.raises(EntryError, match=f"'{name}'"):
                decode(json.dumps(fields | {name: wrong}).encode())


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"1", b"{", b"[" * 100_000, b" " * (VALUE_MAX_BYTES + 1)])
def test_what_is_no_object_is_refused(data: bytes) -> None:
    for _, decode in VALUES:
        with pytest.raises(EntryError, match="the value"):
            decode(data)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"replicas": [3, 3, 1]}, "twice"),
        ({"isr": [[1, "a"], [1, "b"]]}, "twice"),
        ({"isr": []}, "at least one"),
        ({"isr": [[2, "d2"]]}, "only nodes of 'replicas'"),
        ({"leader": 2}, "'leader' is 2"),
        ({"isr": [[1]]}, "a node id and a directory id"),
        ({"superseded": [[1]]}, "'superseded' has an entry that is not a node id and a directory id"),
    ],
)
def test_a_partition_that_cannot_be_is_refused(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(EntryError, match=text):
        decode_partition(json.dumps(json.loads(encode(PARTITION)) | changed).encode())


@pytest.mark.parametrize("text", ["\ud800", "a\x00", "a\nb"])
def test_what_no_message_can_carry_is_refused(text: str) -> None:
    for name in ("directory_id", "rack"):
        with pytest.raises(EntryError, match=f"'{name}' has characters that are not text"):
            decode_registration(encode(Registration("host", 1, "d1")._replace(**{name: text})))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "text"),
    [("host", ""), ("host", "unix:/tmp/x"), ("host", "a host"), ("host", "\ud800"), ("token", "caf\u00e9"), ("token", "t" * 65)],
)
def test_what_no_caller_can_use_is_refused(name: str, text: str) -> None:
    with pytest.raises(EntryError, match=f"'{name}' is"):
        decode_registration(encode(Registration("host", 1, "d1")._replace(**{name: text})))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", ".", "a/b", "\ud800", "x" * 250])
def test_a_name_that_no_topic_can_have_is_refused(name: str) -> None:
    for value, decode in VALUES[1::2]:
        with pytest.raises(EntryError, match="'name'"):
            decode(encode(value._replace(name=name)))
        assert decode(encode(value._replace(name="__own"))).name == "__own"


def test_a_topic_has_no_more_partitions_than_a_setting_allows() -> None:
    assert settings_of(BrokerConfig)["max.partitions.per.topic"].between == (1, PARTITIONS_MAX)
    for value, decode in VALUES[1::2]:
        largest = value._replace(partition_count=PARTITIONS_MAX)
        assert decode(encode(largest)) == largest
        with pytest.raises(EntryError, match=f"'partition_count' is {PARTITIONS_MAX + 1}, not a number from 1 to"):
            decode(encode(value._replace(partition_count=PARTITIONS_MAX + 1)))


def test_keys_are_below_the_cluster() -> None:
    keys = Keys("prod.1")
    assert keys.partition(TP) == f"/brokerd/prod.1/partitions/{TP.topic_id.hex()}/7"
    assert keys.split(keys.partition(TP)) == ("partitions", TP.topic_id.hex(), "7")
    assert keys.split("/brokerd/prod.12/controller") == ()
    written = [keys.cluster_id, keys.controller, keys.node(1), keys.name("a"), keys.topic(TP.topic_id), keys.tombstone(TP.topic_id)]
    assert [keys.split(key)[0] for key in written] == ["cluster-id", "controller", "nodes", "names", "topics", "tombstones"]


def test_names_and_numbers_have_one_spelling() -> None:
    assert (number_of("0", 9), number_of("10", 10)) == (0, 10)
    for text in ("", "00", "01", "-1", "1_0", "11", "1 ", "\u0661", "9" * 5_000):
        with pytest.raises(EntryError, match="is not a number from 0 to 10"):
            number_of(text, 10)
    for text in ("", "A" * 32, "0" * 31, "0" * 33):
        with pytest.raises(EntryError, match="is not a topic id"):
            topic_id_of(text)
    assert [name for name in ("a", "A-1_.b", "x" * 100) if cluster_name_problem(name)] == []
    assert [name for name in ("", ".", "..", "a/b", "é", "x" * 101, "a\n") if not cluster_name_problem(name)] == []
