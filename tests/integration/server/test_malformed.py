"""Errors name the malformed field. Random fields and bytes: tests/fuzz."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from brokerd.ids import TopicIdPartition
from brokerd.wire.methods import UNARY
from brokerd.wire.v1 import fetch_pb2, metadata_pb2, offsets_pb2, produce_pb2, topics_pb2, transaction_pb2
from tests.support.daemon import RunningDaemon, running_daemon
from tests.support.raw_client import RawClient, values_batch
from tests.support.wait import DEADLINE_S

ID = b"t" * 16


def partition(message: type[Any], **fields: Any) -> Any:
    return message(**{"topic_id": ID} | fields)


MALFORMED_UNARY: list[tuple[str, Message, str]] = [
    ("Metadata", metadata_pb2.MetadataRequest(all_topics=True, topics=["a"]), "all_topics"),
    ("Metadata", metadata_pb2.MetadataRequest(topic_ids=[b"short"]), "topic_ids"),
    ("CreateTopics", topics_pb2.CreateTopicsRequest(topics=[topics_pb2.NewTopic()] * 101), "topics"),
    ("DeleteTopics", topics_pb2.DeleteTopicsRequest(names=["x"] * 101), "names"),
    ("DescribeTopics", topics_pb2.DescribeTopicsRequest(names=["x"] * 1_001), "names"),
    ("AlterTopicConfigs", topics_pb2.AlterTopicConfigsRequest(name="t", set={"a": "1"}, unset=["a"]), "unset"),
    (
        "DeleteRecords",
        topics_pb2.DeleteRecordsRequest(partitions=[partition(topics_pb2.PartitionDeleteRecords, before_offset=-2)]),
        "partitions.before_offset",
    ),
    (
        "DeleteRecords",
        topics_pb2.DeleteRecordsRequest(partitions=[partition(topics_pb2.PartitionDeleteRecords, topic_id=b"x")]),
        "partitions.topic_id",
    ),
    (
        "DeleteRecords",
        topics_pb2.DeleteRecordsRequest(partitions=[partition(topics_pb2.PartitionDeleteRecords)] * 2_001),
        "partitions",
    ),
    ("ListOffsets", offsets_pb2.ListOffsetsRequest(isolation_level=7), "isolation_level"),  # type: ignore[arg-type]
    ("ListOffsets", offsets_pb2.ListOffsetsRequest(partitions=[partition(offsets_pb2.PartitionListOffsets)]), "partitions.spec"),
    (
        "ListOffsets",
        offsets_pb2.ListOffsetsRequest(partitions=[partition(offsets_pb2.PartitionListOffsets, spec=99)]),
        "partitions.spec",
    ),
    (
        "ListOffsets",
        offsets_pb2.ListOffsetsRequest(partitions=[partition(offsets_pb2.PartitionListOffsets, spec=4, timestamp=-1)]),
        "partitions.timestamp",
    ),
    (
        "ListOffsets",
        offsets_pb2.ListOffsetsRequest(partitions=[partition(offsets_pb2.PartitionListOffsets, spec=9, until_offset=-1)]),
        "partitions.until_offset",
    ),
    (
        "ListOffsets",
        offsets_pb2.ListOffsetsRequest(partitions=[partition(offsets_pb2.PartitionListOffsets, spec=1, partition=-1)]),
        "partitions.partition",
    ),
    ("CommitGroupOffsets", offsets_pb2.CommitGroupOffsetsRequest(), "group_id"),
    ("CommitGroupOffsets", offsets_pb2.CommitGroupOffsetsRequest(group_id="g" * 250), "group_id"),
    ("CommitGroupOffsets", offsets_pb2.CommitGroupOffsetsRequest(group_id="a\nb"), "group_id"),
    (
        "CommitGroupOffsets",
        offsets_pb2.CommitGroupOffsetsRequest(group_id="g", offsets=[partition(offsets_pb2.PartitionGroupOffset, offset=-1)]),
        "offsets.offset",
    ),
    (
        "CommitGroupOffsets",
        offsets_pb2.CommitGroupOffsetsRequest(group_id="g", offsets=[partition(offsets_pb2.PartitionGroupOffset, leader_epoch=-2)]),
        "offsets.leader_epoch",
    ),
    (
        "CommitGroupOffsets",
        offsets_pb2.CommitGroupOffsetsRequest(group_id="g", offsets=[partition(offsets_pb2.PartitionGroupOffset)] * 2),
        "offsets",
    ),
    (
        "CommitGroupOffsets",
        offsets_pb2.CommitGroupOffsetsRequest(group_id="g", offsets=[partition(offsets_pb2.PartitionGroupOffset)] * 2_001),
        "offsets",
    ),
    ("FetchGroupOffsets", offsets_pb2.FetchGroupOffsetsRequest(), "group_id"),
    ("FetchGroupOffsets", offsets_pb2.FetchGroupOffsetsRequest(group_id="g", after_topic_id=b"x"), "after_topic_id"),
    (
        "FetchGroupOffsets",
        offsets_pb2.FetchGroupOffsetsRequest(group_id="g", partitions=[partition(offsets_pb2.PartitionGroupOffset, partition=-1)]),
        "partitions.partition",
    ),
    ("ListGroups", offsets_pb2.ListGroupsRequest(prefix="\x1b"), "prefix"),
    ("ListGroups", offsets_pb2.ListGroupsRequest(after="a" * 250), "after"),
    ("DescribeGroup", offsets_pb2.DescribeGroupRequest(), "group_id"),
    ("DescribeGroup", offsets_pb2.DescribeGroupRequest(group_id="g", after_topic_id=b"x"), "after_topic_id"),
    ("DescribeGroup", offsets_pb2.DescribeGroupRequest(group_id="g", isolation_level=7), "isolation_level"),  # type: ignore[arg-type]
    ("DeleteGroup", offsets_pb2.DeleteGroupRequest(), "group_id"),
    (
        "DeleteGroup",
        offsets_pb2.DeleteGroupRequest(group_id="g", partitions=[partition(offsets_pb2.GroupPartition, topic_id=b"x")]),
        "partitions.topic_id",
    ),
    ("InitProducerId", transaction_pb2.InitProducerIdRequest(producer_id=-1, producer_epoch=0), "producer_id"),
    ("InitProducerId", transaction_pb2.InitProducerIdRequest(producer_id=5, producer_epoch=-1), "producer_epoch"),
    ("InitProducerId", transaction_pb2.InitProducerIdRequest(producer_id=5, producer_epoch=32_768), "producer_epoch"),
    ("InitProducerId", transaction_pb2.InitProducerIdRequest(member_id=ID, producer_id=-1, producer_epoch=-1), "member_id"),
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningDaemon, RawClient, TopicIdPartition]]:
    """One broker for the whole module, which must survive every test."""
    with (
        running_daemon(tmp_path_factory.mktemp("malformed") / "data", max_topics=50, max_partitions=500) as running,
        RawClient(running.address) as client,
    ):
        (tp,) = client.create_topic("untouched")
        client.producer().produce(tp, values_batch(tp))
        yield running, client, tp
        assert client.latest(tp) == 1
        description = client.describe("untouched").partitions[0]
        assert (description.log_end_offset, description.producer_count) == (1, 0)


Target = tuple[RunningDaemon, RawClient, TopicIdPartition]


@pytest.mark.parametrize(
    ("name", "request_", "field"), MALFORMED_UNARY, ids=[f"{name}-{field}" for name, _, field in MALFORMED_UNARY]
)
def test_a_malformed_field_is_named(target: Target, name: str, request_: Message, field: str) -> None:
    code, details = target[1].status(name, request_)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details.startswith(f"{field}: ")


LONG = "n" * 250


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("Metadata", metadata_pb2.MetadataRequest(topics=[LONG])),
        ("CreateTopics", topics_pb2.CreateTopicsRequest(topics=[topics_pb2.NewTopic(name=LONG)])),
        ("DeleteTopics", topics_pb2.DeleteTopicsRequest(names=[LONG])),
        ("DescribeTopics", topics_pb2.DescribeTopicsRequest(names=[LONG])),
        ("CreatePartitions", topics_pb2.CreatePartitionsRequest(name=LONG, total_count=2)),
        ("AlterTopicConfigs", topics_pb2.AlterTopicConfigsRequest(name=LONG, set={"a": "1"})),
        (
            "AlterPartitionReassignments",
            topics_pb2.AlterPartitionReassignmentsRequest(partitions=[topics_pb2.PartitionReassignment(name=LONG)]),
        ),
        ("ElectUncleanLeader", topics_pb2.ElectUncleanLeaderRequest(name=LONG)),
    ],
)
def test_a_name_that_no_topic_can_have_is_refused_before_it_is_used(target: Target, name: str, request_: Message) -> None:
    """Otherwise the texts for the audit trail, 200 of one request, would stay in memory while the change waits."""
    assert re.findall(r"code: (\w+)", str(target[1].call(name, request_))) == ["ERROR_CODE_INVALID_TOPIC"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"max_wait_ms": -1}, "max_wait_ms"),
        ({"min_bytes": -1}, "min_bytes"),
        ({"max_bytes": -1}, "max_bytes"),
        ({"isolation_level": 2}, "isolation_level"),
        ({"partitions": [partition(fetch_pb2.PartitionFetch, topic_id=b"")]}, "partitions.topic_id"),
        ({"partitions": [partition(fetch_pb2.PartitionFetch, partition=-1)]}, "partitions.partition"),
        ({"partitions": [partition(fetch_pb2.PartitionFetch, fetch_offset=-1)]}, "partitions.fetch_offset"),
        ({"partitions": [partition(fetch_pb2.PartitionFetch, partition_max_bytes=-1)]}, "partitions.partition_max_bytes"),
        ({"partitions": [partition(fetch_pb2.PartitionFetch)] * 2_001}, "partitions"),
    ],
)
def test_a_malformed_fetch_names_its_field(target: Target, fields: dict[str, Any], field: str) -> None:
    fetcher = target[1].fetcher()
    fetcher.send(fetch_pb2.FetchRequest(**fields).SerializeToString())
    code, details = fetcher.status()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details.startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"timeout_ms": -1}, "timeout_ms"),
        ({"transactional_id": "i" * 250}, "transactional_id"),
        ({"transactional_id": "a\nb"}, "transactional_id"),
        ({"member_id": b"short"}, "member_id"),
        ({"partitions": [partition(produce_pb2.PartitionProduce)]}, "records"),
        ({"records": [b"x"]}, "records"),
        ({"partitions": [partition(produce_pb2.PartitionProduce, topic_id=b"x")], "records": [b"x"]}, "partitions.topic_id"),
        ({"partitions": [partition(produce_pb2.PartitionProduce, partition=-5)], "records": [b"x"]}, "partitions.partition"),
    ],
)
def test_a_malformed_produce_names_its_field(target: Target, fields: dict[str, Any], field: str) -> None:
    stream = target[1].producer()
    stream.send(produce_pb2.ProduceRequest(hello=stream.hello, acks=-1, **fields).SerializeToString())
    code, details = stream.status()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details.startswith(f"{field}: ")


@pytest.mark.parametrize("name", sorted(UNARY))
def test_bytes_that_are_no_message_are_refused(target: Target, name: str) -> None:
    call: Any = target[1].channel.unary_unary(UNARY[name].path)
    with pytest.raises(grpc.RpcError) as caught:
        call(b"\xff\xff\xff\xff", timeout=DEADLINE_S)
    status: Any = caught.value
    assert status.code() is grpc.StatusCode.INVALID_ARGUMENT
