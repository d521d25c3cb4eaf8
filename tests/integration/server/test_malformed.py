"""Nothing a client sends crashes the broker, and what is malformed is named: every field with boundary values, random bytes.

BROKERD_TEST_SCALE multiplies the inputs.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pyarrow as pa
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from brokerd.errors import ErrorCode
from brokerd.ids import TopicIdPartition
from brokerd.wire.methods import UNARY
from brokerd.wire.v1 import fetch_pb2, metadata_pb2, offsets_pb2, produce_pb2, topics_pb2, transaction_pb2
from tests.support.daemon import RunningDaemon, running_daemon
from tests.support.raw_client import RawClient, values_batch
from tests.support.scale import TEST_SCALE
from tests.support.wait import DEADLINE_S

ID = b"t" * 16
REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def partition(message: type[Any], **fields: Any) -> Any:
    return message(**{"topic_id": ID} | fields)


MALFORMED_UNARY: list[tuple[str, Message, str]] = [
    ("GetServerInfo", metadata_pb2.GetServerInfoRequest(client_software="x" * 256), "client_software"),
    ("Metadata", metadata_pb2.MetadataRequest(all_topics=True, topics=["a"]), "all_topics"),
    ("Metadata", metadata_pb2.MetadataRequest(topic_ids=[b"short"]), "topic_ids"),
    ("CreateTopics", topics_pb2.CreateTopicsRequest(topics=[topics_pb2.NewTopic()] * 101), "topics"),
    (
        "CreateTopics",
        topics_pb2.CreateTopicsRequest(topics=[topics_pb2.NewTopic(replication_factor=-1)]),
        "topics.replication_factor",
    ),
    ("DeleteTopics", topics_pb2.DeleteTopicsRequest(names=["x"] * 101), "names"),
    ("DeleteTopics", topics_pb2.DeleteTopicsRequest(topic_ids=[ID] * 101), "topic_ids"),
    ("DeleteTopics", topics_pb2.DeleteTopicsRequest(topic_ids=[b""]), "topic_ids"),
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
        offsets_pb2.ListOffsetsRequest(partitions=[partition(offsets_pb2.PartitionListOffsets, spec=1, partition=-1)]),
        "partitions.partition",
    ),
    ("CommitGroupOffsets", offsets_pb2.CommitGroupOffsetsRequest(generation=-1), "group_id"),
    ("CommitGroupOffsets", offsets_pb2.CommitGroupOffsetsRequest(group_id="g" * 250, generation=-1), "group_id"),
    ("CommitGroupOffsets", offsets_pb2.CommitGroupOffsetsRequest(group_id="a\nb", generation=-1), "group_id"),
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
    """One broker for the whole module: it has to live through all of it."""
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
    with pytest.raises(grpc.RpcError) as caught:
        target[1].call(name, request_)
    status: Any = caught.value
    assert status.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert status.details().startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"max_wait_ms": -1}, "max_wait_ms"),
        ({"min_bytes": -1}, "min_bytes"),
        ({"max_bytes": -1}, "max_bytes"),
        ({"isolation_level": 2}, "isolation_level"),
        ({"replica_epoch": 1}, "replica_epoch"),
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


@pytest.mark.parametrize(
    "name",
    [
        "FindCoordinator",
    ],
)
def test_what_is_not_served_says_so_in_one_sentence(target: Target, name: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        target[1].call(name, UNARY[name].request())
    status: Any = caught.value
    assert status.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "not supported" in status.details()


@pytest.mark.parametrize("name", sorted(UNARY))
def test_bytes_that_are_no_message_are_refused(target: Target, name: str) -> None:
    call: Any = target[1].channel.unary_unary(UNARY[name].path)
    with pytest.raises(grpc.RpcError) as caught:
        call(b"\xff\xff\xff\xff", timeout=DEADLINE_S)
    status: Any = caught.value
    assert status.code() is grpc.StatusCode.INVALID_ARGUMENT


BOUNDARIES = [0, 1, -1, 2, 15, 16, 17, 127, 128, 255, 32_767, 32_768, -(2**31), 2**31 - 1]
LONG_BOUNDARIES = [*BOUNDARIES, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63)]
TEXTS = [
    "",
    "t",
    "untouched2",
    ".",
    "..",
    "../x",
    "/etc/passwd",
    "a/b",
    "nul\0",
    "x" * 249,
    "x" * 250,
    "ünï",
    "__txn",
    "T",
    "\N{PILE OF POO}",
]


def random_message(rng: random.Random, descriptor: Any, message: Any, depth: int = 0) -> None:
    """Fills some fields with boundary values."""
    for field in descriptor.fields:
        if rng.random() < 0.4:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for _ in range(rng.randrange(3)):
                key = rng.choice([*TEXTS, "retention.ms", "segment.bytes", "max.message.bytes"])
                getattr(message, field.name)[key] = rng.choice([*TEXTS, "1", "-1", "99999999999999999999", "NaN"])
        elif field.is_repeated:
            target = getattr(message, field.name)
            for _ in range(rng.choice((0, 1, 2, 5))):
                if field.message_type is not None:
                    if depth < 3:
                        random_message(rng, field.message_type, target.add(), depth + 1)
                else:
                    target.append(random_value(rng, field))
        elif field.message_type is not None:
            if depth < 3:
                random_message(rng, field.message_type, getattr(message, field.name), depth + 1)
        else:
            setattr(message, field.name, random_value(rng, field))


def random_value(rng: random.Random, field: FieldDescriptor) -> Any:
    """A boundary value of the field's type."""
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return rng.choice([b"", ID, b"x", rng.randbytes(16), rng.randbytes(200)])
        return rng.choice(TEXTS)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_INT64:
        return rng.choice(LONG_BOUNDARIES)
    if kind == FieldDescriptor.CPPTYPE_UINT64:
        return rng.choice([0, 1, 2**63, 2**64 - 1])
    if kind == FieldDescriptor.CPPTYPE_UINT32:
        return rng.choice([0, 1, 2**31, 2**32 - 1])
    return rng.choice(BOUNDARIES)


@pytest.mark.parametrize("name", sorted(UNARY))
def test_random_fields_of_every_unary_call(target: Target, name: str) -> None:
    _, client, _ = target
    rng = random.Random(name)
    method = UNARY[name]
    call: Any = client.channel.unary_unary(method.path, response_deserializer=method.response.FromString)
    for _ in range(150 * TEST_SCALE):
        request = method.request()
        random_message(rng, method.request.DESCRIPTOR, request)
        if name == "DescribeTopics" or (name == "DeleteTopics" and "untouched" in getattr(request, "names", ())):
            request.Clear()
        try:
            response = call(_mutated(rng, request.SerializeToString()), timeout=DEADLINE_S)
        except grpc.RpcError as error:
            status: Any = error
            assert status.code() in REFUSALS, (status.details(), request)
            client.metadata()  # a connection over which nothing but malformed calls come is ended
        else:
            assert "internal error" not in str(response), request


def _mutated(rng: random.Random, data: bytes) -> bytes:
    if not data or rng.random() < 0.7:
        return data
    changed = bytearray(data)
    changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)[: rng.randrange(len(changed) + 1)] if rng.random() < 0.3 else bytes(changed)


def test_random_fields_and_bytes_on_fetch_streams(target: Target) -> None:
    _, client, tp = target
    rng = random.Random(7)
    for _ in range(250 * TEST_SCALE):
        fetcher = client.fetcher()
        request = fetch_pb2.FetchRequest()
        random_message(rng, fetch_pb2.FetchRequest.DESCRIPTOR, request)
        request.max_wait_ms = rng.choice((0, 0, 1, -1))
        if rng.random() < 0.5:
            request.partitions.add(topic_id=tp.topic_id, partition=0, fetch_offset=rng.choice(LONG_BOUNDARIES))
        fetcher.send(_mutated(rng, request.SerializeToString()) if rng.random() < 0.5 else rng.randbytes(rng.randrange(40)))
        fetcher.half_close()
        code, details = fetcher.status()
        assert code in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT), details
        client.metadata()  # a connection over which nothing but malformed calls come is ended


def test_random_fields_and_mutated_batches_on_produce_streams(target: Target) -> None:
    _, client, untouched = target
    (tp,) = client.create_topic("fuzzed")
    rng = random.Random(8)
    whole = values_batch(tp, 3, size=100).to_pybytes()
    refused = 0
    for _ in range(250 * TEST_SCALE):
        stream = client.producer()
        request = produce_pb2.ProduceRequest()
        random_message(rng, produce_pb2.ProduceRequest.DESCRIPTOR, request)
        if rng.random() < 0.8:
            request.hello.instance_id, request.hello.incarnation = rng.randbytes(16), 1
        stream.send(_mutated(rng, request.SerializeToString()))
        stream.half_close()
        code, details = stream.status()
        assert code in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT), details
        client.metadata()
    stream = client.producer()
    for _ in range(1_000 * TEST_SCALE):
        batch = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            batch[rng.randrange(len(batch))] ^= 1 << rng.randrange(8)
        result = stream.produce(tp, pa.py_buffer(bytes(batch)[: rng.choice((len(batch), rng.randrange(len(batch))))]), acks=1)
        if result.HasField("error"):
            refused += 1
            assert ErrorCode(result.error.code) in (
                ErrorCode.CORRUPT_MESSAGE,
                ErrorCode.UNSUPPORTED_VERSION,
                ErrorCode.INVALID_REQUEST,
            )
    assert refused >= 990 * TEST_SCALE, "only flips that cancel each other may pass"
    assert client.latest(untouched) == 1


def test_random_bytes_on_the_port(target: Target) -> None:
    running, client, _ = target
    rng = random.Random(9)
    openings = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"",
    ]
    for _ in range(100 * TEST_SCALE):
        with socket.create_connection(("127.0.0.1", running.daemon.port), timeout=DEADLINE_S) as connection:
            connection.sendall(rng.choice(openings) + rng.randbytes(rng.randrange(200)))
    assert client.metadata("untouched").topics[0].name == "untouched"
