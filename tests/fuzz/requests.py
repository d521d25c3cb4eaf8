"""Hostile requests of every method, as bytes: each field at its boundary values, random fields, random changes of valid bytes."""

from __future__ import annotations

import functools
import hashlib
import random
from typing import Any

from google.protobuf.message import Message

from brokerd.ids import TopicIdPartition
from brokerd.wire.methods import UNARY
from brokerd.wire.records import join_records
from brokerd.wire.v1 import fetch_pb2, metadata_pb2, offsets_pb2, produce_pb2, topics_pb2, transaction_pb2
from tests.fuzz.inputs import boundary_messages
from tests.support.hostile_messages import changed_bytes, random_message
from tests.support.records import key_values, new_batch

_ID = b"\x11" * 16  # placeholder for the prey's id in templates
_EDGE_INSTANCE = b"edges of produce"
_INSTANCES = 1_000


class Requests:
    """Builds requests for the topic 'prey', whose id may change."""

    def __init__(self) -> None:
        self.prey_id = _ID

    def known(self, number: int) -> dict[str, list[Any]]:
        """Valid values by field name, so that some requests pass the first check."""
        return {
            "topic_id": [self.prey_id],
            "topic_ids": [self.prey_id],
            "name": ["prey", "prey", f"made-{number % 100}"],
            "names": ["prey", f"made-{number % 100}"],
            "topics": ["prey"],
            "partition": [0, 0, 1, 7],
            "partitions": [1, 2],
            "acks": [-1, 0, 1],
            "timeout_ms": [100],
            "fetch_offset": [0, 1],
            "current_leader_epoch": [1],
            "transactional_id": [""],
            "member_id": [b"", ""],
            "producer_id": [-1, 0],
            "producer_epoch": [-1, 0],
        }

    def produce_head(self, tp: TopicIdPartition, kind: str, number: int) -> produce_pb2.ProduceRequest:
        """The head of a valid request, whose hello is newer than those of lower numbers."""
        return produce_pb2.ProduceRequest(
            correlation_id=number,
            acks=-1,
            timeout_ms=10_000,
            hello=hello(kind, number),
            partitions=[produce_pb2.PartitionProduce(topic_id=tp.topic_id, partition=tp.partition, current_leader_epoch=1)],
        )

    def produce(self, kind: str, rng: random.Random, number: int) -> list[bytes]:
        """Messages of a produce stream to the prey."""
        tp = TopicIdPartition(self.prey_id, 0)
        batch = _edge_batch(self.prey_id)
        right = join_records(self.produce_head(tp, kind, number), [[batch]])
        if kind == "produce.edges":
            # Replaces the template's instance and batch by others of the same length, so that the bytes around stay valid.
            edge = _at(produce_edges(), number).replace(_EDGE_INSTANCE, b"edges %10d" % number)
            edge = edge.replace(_edge_batch(_ID), batch)
            return [edge.replace(_ID, self.prey_id)]
        if kind == "produce.bytes":
            return [changed_bytes(rng, right) for _ in range(rng.choice((1, 1, 3)))]
        mine = hello(kind, number)
        known = self.known(number) | {"records": [batch], "instance_id": [mine.instance_id], "incarnation": [mine.incarnation]}
        first = [right] if rng.random() < 0.3 else []
        return [*first, random_message(rng, produce_pb2.ProduceRequest, known).SerializeToString()]

    def fetch(self, kind: str, rng: random.Random, number: int) -> list[bytes]:
        """Messages of a fetch stream to the prey."""
        right = _right_fetch().SerializeToString().replace(_ID, self.prey_id)
        if kind == "fetch.edges":
            return [_at(fetch_edges(), number).replace(_ID, self.prey_id), right]
        if kind == "fetch.bytes":
            return [changed_bytes(rng, right) for _ in range(rng.choice((1, 1, 3)))]
        return [
            random_message(rng, fetch_pb2.FetchRequest, self.known(number)).SerializeToString() for _ in range(rng.choice((1, 2)))
        ]


def unary_bytes(requests: Requests, kind: str, rng: random.Random, number: int) -> tuple[str, bytes]:
    """A method and a request's bytes."""
    if kind == "unary.edges":
        name, data = unary_edges()[number % len(unary_edges())]
        return name, data.replace(_ID, requests.prey_id)
    name = rng.choice(list(UNARY))
    data = random_message(rng, UNARY[name].request, requests.known(number)).SerializeToString()
    if kind == "unary.bytes":
        return name, rng.randbytes(rng.randrange(200)) if rng.random() < 0.1 else changed_bytes(rng, data)
    return name, data


@functools.cache
def unary_edges() -> list[tuple[str, bytes]]:
    """Each field of every unary method at each of its boundary values, the others valid."""
    return [(name, message.SerializeToString()) for name, right in _right_unary().items() for message in boundary_messages(right)]


@functools.cache
def produce_edges() -> list[bytes]:
    """Each field of ProduceRequest at each of its boundary values."""
    tp = TopicIdPartition(_ID, 0)
    right = Requests().produce_head(tp, "", 0)
    right.hello.instance_id = _EDGE_INSTANCE
    right.records.append(_edge_batch(_ID))
    return [message.SerializeToString() for message in boundary_messages(right)]


@functools.cache
def fetch_edges() -> list[bytes]:
    """Each field of FetchRequest at each of its boundary values."""
    return [message.SerializeToString() for message in boundary_messages(_right_fetch())]


def hello(kind: str, number: int) -> produce_pb2.Hello:
    """A hello of one of a kind's instances. They are few, since the broker remembers each for ten minutes."""
    instance_id = hashlib.sha256(kind.encode()).digest()[:12] + (number % _INSTANCES).to_bytes(4, "big")
    return produce_pb2.Hello(instance_id=instance_id, incarnation=1 + number // _INSTANCES)


@functools.lru_cache(maxsize=16)
def _edge_batch(topic_id: bytes) -> bytes:
    return bytes(new_batch(key_values([b"x"]), tp=TopicIdPartition(topic_id, 0)).to_pybytes())


def _at(messages: list[bytes], number: int) -> bytes:
    return messages[number % len(messages)]


def _right_fetch() -> fetch_pb2.FetchRequest:
    asked = fetch_pb2.PartitionFetch(topic_id=_ID, partition=0, current_leader_epoch=1, partition_max_bytes=65_536)
    return fetch_pb2.FetchRequest(correlation_id=1, max_wait_ms=1, min_bytes=1, max_bytes=65_536, partitions=[asked])


def _right_unary() -> dict[str, Message]:
    """A valid request of every unary method. Add new methods here."""
    partition = {"topic_id": _ID, "partition": 0, "current_leader_epoch": 1}
    right: dict[str, Message] = {
        "GetServerInfo": metadata_pb2.GetServerInfoRequest(),
        "Metadata": metadata_pb2.MetadataRequest(topics=["prey"]),
        "CreateTopics": topics_pb2.CreateTopicsRequest(
            topics=[{"name": "made-edge", "partitions": 1, "configs": {"retention.ms": "1000"}}]
        ),
        "DeleteTopics": topics_pb2.DeleteTopicsRequest(names=["made-edge"]),
        "DescribeTopics": topics_pb2.DescribeTopicsRequest(names=["prey"]),
        "CreatePartitions": topics_pb2.CreatePartitionsRequest(name="prey", total_count=3),
        "AlterTopicConfigs": topics_pb2.AlterTopicConfigsRequest(name="prey", set={"retention.ms": "1000"}, unset=["segment.ms"]),
        "DeleteRecords": topics_pb2.DeleteRecordsRequest(partitions=[{"topic_id": _ID, "before_offset": 0}]),
        "AlterPartitionReassignments": topics_pb2.AlterPartitionReassignmentsRequest(
            partitions=[{"name": "prey", "replicas": [1, 2]}]
        ),
        "DrainNode": topics_pb2.DrainNodeRequest(node_id=1, validate_only=True),
        "ElectUncleanLeader": topics_pb2.ElectUncleanLeaderRequest(name="prey", validate_only=True),
        "ListOffsets": offsets_pb2.ListOffsetsRequest(partitions=[{**partition, "spec": 2}]),
        "CommitGroupOffsets": offsets_pb2.CommitGroupOffsetsRequest(
            group_id="g", offsets=[{"topic_id": _ID, "offset": 0, "metadata": "m"}]
        ),
        "FetchGroupOffsets": offsets_pb2.FetchGroupOffsetsRequest(group_id="g", partitions=[{"topic_id": _ID}]),
        "ListGroups": offsets_pb2.ListGroupsRequest(prefix="g"),
        "DescribeGroup": offsets_pb2.DescribeGroupRequest(group_id="g"),
        "DeleteGroup": offsets_pb2.DeleteGroupRequest(group_id="g", partitions=[{"topic_id": _ID}]),
        "InitProducerId": transaction_pb2.InitProducerIdRequest(producer_id=-1, producer_epoch=-1),
        "EndTransaction": transaction_pb2.EndTransactionRequest(
            transactional_id="edge",
            execution_id="execution",
            run_id="run",
            decision="TRANSACTION_DECISION_COMMIT",
            members=[{"producer_id": 5, "records": 1}],
            partitions=[{"topic_id": _ID}],
            totals={"rows": 1},
        ),
        "Heartbeat": transaction_pb2.HeartbeatRequest(transactional_id="edge", execution_id="execution", member_id=b"m" * 16),
        "ListTransactions": transaction_pb2.ListTransactionsRequest(prefix="e"),
        "DescribeTransaction": transaction_pb2.DescribeTransactionRequest(transactional_id="edge"),
        "AbortTransaction": transaction_pb2.AbortTransactionRequest(transactional_id="edge", execution_id="execution"),
        "FindCoordinator": metadata_pb2.FindCoordinatorRequest(),
        "FindHangingTransactions": transaction_pb2.FindHangingTransactionsRequest(),
        "ForgetTransactionalId": transaction_pb2.ForgetTransactionalIdRequest(transactional_id="edge"),
    }
    assert right.keys() == UNARY.keys(), "a method of the contract has no right request here"
    return right
