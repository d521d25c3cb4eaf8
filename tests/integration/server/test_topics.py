"""Unary calls over the wire: topics, metadata, offsets, server info."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

import brokerd
from brokerd.errors import ErrorCode
from brokerd.ids import TopicIdPartition
from brokerd.wire.v1 import metadata_pb2, offsets_pb2, topics_pb2
from tests.support.daemon import RunningDaemon, running_daemon
from tests.support.files import MemoryFiles
from tests.support.raw_client import RawClient, code_of, values_batch
from tests.support.records import TIMESTAMP_MS, key_values, new_batch


def create(client: RawClient, *topics: topics_pb2.NewTopic, validate_only: bool = False) -> list[ErrorCode]:
    request = topics_pb2.CreateTopicsRequest(topics=topics, validate_only=validate_only)
    return [code_of(result) for result in client.call("CreateTopics", request).results]


def test_the_server_says_what_it_is(client: RawClient) -> None:
    info = client.call("GetServerInfo", metadata_pb2.GetServerInfoRequest())
    assert info.software_version == brokerd.__version__
    assert (info.min_wire_version, info.max_wire_version) == (1, 1)
    assert {limit.name: limit.value for limit in info.limits}["message.max.bytes"] == 16_777_216
    assert client.metadata().cluster_id == info.cluster_id != ""


def test_a_topic_is_created_described_and_found_by_name_and_id(running: RunningDaemon, client: RawClient) -> None:
    tps = client.create_topic("flights", partitions=3, retention_ms="1000")
    request = metadata_pb2.MetadataRequest(topics=["flights", "none"], topic_ids=[tps[0].topic_id, b"n" * 16])
    response = client.call("Metadata", request)
    assert [code_of(topic) for topic in response.topics] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ]
    assert [topic.name for topic in response.topics] == ["flights", "none", "flights", ""]
    assert [partition.partition for partition in response.topics[0].partitions] == [0, 1, 2]
    assert (response.nodes[0].host, response.nodes[0].port) == ("127.0.0.1", running.daemon.port)
    description = client.describe("flights")
    configs = {entry.name: (entry.value, entry.is_default) for entry in description.configs}
    assert configs["retention.ms"] == ("1000", False)
    assert configs["segment.bytes"] == ("1073741824", True)
    assert all(entry.documentation for entry in description.configs)


def test_all_topics_are_listed_by_name(client: RawClient) -> None:
    for name in ("b", "c", "a"):
        client.create_topic(name)
    names = [topic.name for topic in client.call("Metadata", metadata_pb2.MetadataRequest(all_topics=True)).topics]
    assert names == ["a", "b", "c"]
    assert [topic.name for topic in client.call("DescribeTopics", topics_pb2.DescribeTopicsRequest()).topics] == names
    assert not client.call("Metadata", metadata_pb2.MetadataRequest()).topics
    client.new_producer_id()
    own = metadata_pb2.MetadataRequest(all_topics=True, include_internal=True)
    assert [topic.name for topic in client.call("Metadata", own).topics] == ["a", "b", "c", "__coordinator"]


@pytest.mark.parametrize("validate_only", [True, False])
def test_what_cannot_be_created_says_why_and_the_rest_is_created(client: RawClient, validate_only: bool) -> None:
    client.create_topic("taken")
    new = topics_pb2.NewTopic
    wrong = [
        (new(name="../x"), ErrorCode.INVALID_TOPIC),
        (new(name=""), ErrorCode.INVALID_TOPIC),
        (new(name="__own"), ErrorCode.INVALID_TOPIC),
        (new(name="x" * 250), ErrorCode.INVALID_TOPIC),
        (new(name="taken"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (new(name="a", partitions=-1), ErrorCode.INVALID_PARTITIONS),
        (new(name="a", partitions=10_001), ErrorCode.INVALID_PARTITIONS),
        (new(name="a", configs={"retention.mss": "1"}), ErrorCode.INVALID_CONFIG),
        (new(name="a", configs={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG),
    ]
    for number, (topic, _) in enumerate(wrong):
        topic.name = f"a{number}" if topic.name == "a" else topic.name
    good = [new(name="one"), new(name="two")]
    codes = create(client, good[0], *[topic for topic, _ in wrong], good[1], validate_only=validate_only)
    assert codes == [ErrorCode.NONE, *[expected for _, expected in wrong], ErrorCode.NONE]
    names = {topic.name for topic in client.call("Metadata", metadata_pb2.MetadataRequest(all_topics=True)).topics}
    assert names == ({"taken"} if validate_only else {"taken", "one", "two"})


def test_a_name_that_stands_twice_in_a_request_is_refused_and_nothing_is_done(client: RawClient) -> None:
    topic = topics_pb2.NewTopic(name="t")
    for validate_only in (True, False):
        with pytest.raises(grpc.RpcError, match="topics: name 't' twice"):
            create(client, topic, topic, validate_only=validate_only)
    client.create_topic("t")
    with pytest.raises(grpc.RpcError, match="names: name 't' twice"):
        client.call("DeleteTopics", topics_pb2.DeleteTopicsRequest(names=["t", "t"]))
    assert [topic.name for topic in client.metadata("t", "t").topics] == ["t"], "who only asks is answered once"


@pytest.mark.parametrize("settings", [{"max_topics": 2, "max_partitions": 5}], indirect=True)
def test_limits_of_topics_and_partitions(client: RawClient) -> None:
    new = topics_pb2.NewTopic
    assert create(client, new(name="a", partitions=3), new(name="b", partitions=3)) == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
    assert create(client, new(name="b", partitions=2), new(name="c")) == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
    for validate_only in (True, False):
        request = topics_pb2.CreatePartitionsRequest(name="b", total_count=3, validate_only=validate_only)
        assert code_of(client.call("CreatePartitions", request).result) is ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize("settings", [{"max_topics": 2, "max_partitions": 5}], indirect=True)
@pytest.mark.parametrize("partitions", [(3, 3, 2), (1, 1, 1)], ids=["partitions", "topics"])
def test_topics_that_would_be_too_many_together_are_not_valid_either(client: RawClient, partitions: tuple[int, ...]) -> None:
    topics = [topics_pb2.NewTopic(name=f"t{number}", partitions=count) for number, count in enumerate(partitions)]
    codes = [create(client, *topics, validate_only=validate_only) for validate_only in (True, False)]
    assert codes[0] == codes[1]
    assert codes[0].count(ErrorCode.POLICY_VIOLATION) == 1


def test_where_nothing_may_be_written_nothing_is_valid(tmp_path: Path, files: MemoryFiles) -> None:
    with running_daemon(tmp_path / "data", files=files) as first, RawClient(first.address) as client:
        client.create_topic("t")
    files.unlink("checkpoint")  # without it the durable end is unknown, so the broker is read-only
    with running_daemon(tmp_path / "data", files=files) as second, RawClient(second.address) as client:
        for validate_only in (False, True):
            grow = topics_pb2.CreatePartitionsRequest(name="t", total_count=2, validate_only=validate_only)
            alter = topics_pb2.AlterTopicConfigsRequest(name="t", set={"retention.ms": "1"}, validate_only=validate_only)
            assert code_of(client.call("CreatePartitions", grow).result) is ErrorCode.STORAGE_ERROR
            assert code_of(client.call("AlterTopicConfigs", alter).result) is ErrorCode.STORAGE_ERROR
            assert create(client, topics_pb2.NewTopic(name="u"), validate_only=validate_only) == [ErrorCode.STORAGE_ERROR]


def test_a_deleted_topic_is_gone_and_created_anew_is_another_one(client: RawClient) -> None:
    (old,) = client.create_topic("t")
    client.producer().produce(old, values_batch(old))
    results = client.call("DeleteTopics", topics_pb2.DeleteTopicsRequest(names=["t", "gone"])).results
    assert [code_of(result) for result in results] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    (new,) = client.create_topic("t")
    assert new.topic_id != old.topic_id
    assert client.latest(new) == 0
    assert ErrorCode(client.producer().produce(old, values_batch(old)).error.code) is ErrorCode.UNKNOWN_TOPIC_ID


def test_partitions_can_only_become_more(client: RawClient) -> None:
    (tp,) = client.create_topic("t")

    def grow(total_count: int, *, validate_only: bool = False, name: str = "t") -> ErrorCode:
        request = topics_pb2.CreatePartitionsRequest(name=name, total_count=total_count, validate_only=validate_only)
        return code_of(client.call("CreatePartitions", request).result)

    assert grow(3, validate_only=True) is ErrorCode.NONE
    assert len(client.metadata("t").topics[0].partitions) == 1
    assert grow(3) is ErrorCode.NONE
    for validate_only in (True, False):
        assert grow(3, validate_only=validate_only) is ErrorCode.INVALID_PARTITIONS
        assert grow(2, validate_only=validate_only) is ErrorCode.INVALID_PARTITIONS
        assert grow(10_001, validate_only=validate_only) is ErrorCode.INVALID_PARTITIONS
        assert grow(2, validate_only=validate_only, name="none") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    added = TopicIdPartition(tp.topic_id, 2)
    assert client.producer().produce(added, values_batch(added)).base_offset == 0


def test_settings_are_changed_and_returned_to_the_brokers(client: RawClient) -> None:
    (tp,) = client.create_topic("t", retention_ms="1000")

    def alter(validate_only: bool = False, name: str = "t", **fields: Any) -> ErrorCode:
        request = topics_pb2.AlterTopicConfigsRequest(name=name, validate_only=validate_only, **fields)
        return code_of(client.call("AlterTopicConfigs", request).result)

    def value(name: str) -> tuple[str, bool]:
        return next((entry.value, entry.is_default) for entry in client.describe("t").configs if entry.name == name)

    assert alter(set={"max.message.bytes": "2048"}, validate_only=True) is ErrorCode.NONE
    assert value("max.message.bytes") == ("16777216", True)
    assert alter(set={"max.message.bytes": "2048"}, unset=["retention.ms"]) is ErrorCode.NONE
    assert value("max.message.bytes") == ("2048", False)
    assert value("retention.ms") == ("604800000", True)
    result = client.producer().produce(tp, values_batch(tp, size=5_000))
    assert ErrorCode(result.error.code) is ErrorCode.MESSAGE_TOO_LARGE, "in force at once"
    for validate_only in (True, False):
        assert alter(set={"max.message.byte": "1"}, validate_only=validate_only) is ErrorCode.INVALID_CONFIG
        assert alter(set={"max.message.bytes": "1"}, validate_only=validate_only) is ErrorCode.INVALID_CONFIG
        assert alter(unset=["nothing"], validate_only=validate_only) is ErrorCode.INVALID_CONFIG
        assert alter(name="none", validate_only=validate_only) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_settings_are_stored_as_they_are_understood(client: RawClient, running: RunningDaemon) -> None:
    client.create_topic("t", retention_ms="  +1000\t", cleanup_policy="delete ")
    request = topics_pb2.AlterTopicConfigsRequest(name="t", set={"segment.ms": " 0000007"})
    assert code_of(client.call("AlterTopicConfigs", request).result) is ErrorCode.NONE
    stored = running.daemon.broker.topics.by_name("t").configs
    assert stored == {"retention.ms": "1000", "cleanup.policy": "delete", "segment.ms": "7"}


@pytest.mark.parametrize(
    ("method", "request_of"),
    [
        (
            "CreateTopics",
            lambda key, value: topics_pb2.CreateTopicsRequest(topics=[topics_pb2.NewTopic(name="u", configs={key: value})]),
        ),
        ("AlterTopicConfigs", lambda key, value: topics_pb2.AlterTopicConfigsRequest(name="t", set={key: value})),
        ("AlterTopicConfigs", lambda key, value: topics_pb2.AlterTopicConfigsRequest(name="t", unset=[key + value.strip("1")])),
    ],
)
def test_long_names_and_values_of_settings_are_refused_before_anything(client: RawClient, method: str, request_of: Any) -> None:
    client.create_topic("t")
    for key, value in (("retention.ms", " " * 250_000 + "1"), ("x" * 256, "1")):
        code, details = client.status(method, request_of(key, value))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "at most 255 are allowed" in details
        assert len(details) < 200


@pytest.mark.parametrize("settings", [{"auto_create_topics_enable": True, "num_partitions": 4}], indirect=True)
def test_unknown_topics_are_created_where_that_is_asked_for(client: RawClient) -> None:
    (topic,) = client.metadata("fresh").topics
    assert len(topic.partitions) == 4
    assert code_of(client.metadata("../x").topics[0]) is ErrorCode.INVALID_TOPIC


def test_offsets_by_end_and_by_time(client: RawClient) -> None:
    (tp,) = client.create_topic("t")
    stream = client.producer()
    for number in range(3):
        base = TIMESTAMP_MS + number * 1_000
        batch = new_batch(key_values([b"v"] * 4, timestamp_ms=base), "none", tp, base_timestamp=base, max_timestamp=base + 3)
        stream.produce(tp, batch)
    specs = offsets_pb2
    assert client.list_offset(tp, specs.OFFSET_SPEC_EARLIEST).offset == 0
    assert client.list_offset(tp, specs.OFFSET_SPEC_LATEST).offset == 12
    assert client.list_offset(tp, specs.OFFSET_SPEC_LATEST, isolation_level=1).offset == 12
    found = client.list_offset(tp, specs.OFFSET_SPEC_TIMESTAMP, timestamp=TIMESTAMP_MS + 1_002)
    assert (found.offset, found.timestamp) == (6, TIMESTAMP_MS + 1_002)
    assert client.list_offset(tp, specs.OFFSET_SPEC_TIMESTAMP, timestamp=TIMESTAMP_MS + 10**6).offset == -1
    epoch = client.metadata("t").topics[0].partitions[0].leader_epoch
    assert found.leader_epoch == epoch
    assert client.list_offset(tp, specs.OFFSET_SPEC_LATEST).leader_epoch == epoch
    one = client.list_offset(tp, specs.OFFSET_SPEC_AFTER_BYTES, from_offset=5, until_offset=12, max_bytes=1)
    assert one.offset == 8
    all_of_it = client.list_offset(tp, specs.OFFSET_SPEC_AFTER_BYTES, from_offset=5, until_offset=10, max_bytes=2 * one.size_bytes)
    assert (all_of_it.offset, all_of_it.size_bytes) == (10, 2 * one.size_bytes)
    left = client.list_offset(tp, specs.OFFSET_SPEC_BACKLOG, from_offset=5)
    assert (left.offset, left.log_start_offset, left.size_bytes) == (12, 0, 2 * one.size_bytes)
    assert 0 <= left.lag_ms < 600_000
    nothing = client.list_offset(tp, specs.OFFSET_SPEC_BACKLOG, from_offset=12)
    assert (nothing.offset, nothing.size_bytes, nothing.lag_ms) == (12, 0, -1)
    for until_offset, newest in ((0, 9), (12, 9), (99, 9), (11, 8), (1, 0)):
        found = client.list_offset(tp, specs.OFFSET_SPEC_LAST_RECORDS, record_count=3, until_offset=until_offset)
        assert found.offset == newest
    assert code_of(client.list_offset(TopicIdPartition(b"n" * 16, 0), 1)) is ErrorCode.UNKNOWN_TOPIC_ID
    assert code_of(client.list_offset(tp, 1, current_leader_epoch=9)) is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_records_are_deleted_up_to_an_offset(client: RawClient) -> None:
    (tp,) = client.create_topic("t")
    client.producer().produce(tp, values_batch(tp, 10))

    assert client.delete_records(tp, 4).log_start_offset == 4
    assert client.delete_records(tp, 2).log_start_offset == 4
    ends = client.list_offset(tp, offsets_pb2.OFFSET_SPEC_LATEST)
    assert (ends.log_start_offset, ends.offset) == (4, 10)
    beyond = client.delete_records(tp, 11)
    assert (code_of(beyond), beyond.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert client.delete_records(tp, -1).log_start_offset == 10
    assert client.list_offset(tp, offsets_pb2.OFFSET_SPEC_EARLIEST).offset == 10


def test_a_stopped_log_says_so_in_its_description(client: RawClient, files: MemoryFiles) -> None:
    from tests.support.gate import Gate

    (tp,) = client.create_topic("t")
    with Gate(files, "fdatasync", path=tp.directory_name, error=5):
        client.producer().produce(tp, values_batch(tp))
    partition = client.describe("t").partitions[0]
    assert code_of(partition) is ErrorCode.STORAGE_ERROR
    assert (partition.high_watermark, partition.log_end_offset) == (0, 1)
