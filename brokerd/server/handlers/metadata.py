"""Metadata: topics, partitions and the nodes that lead them.

Behaviour
- Topics are returned in the requested order, names first, then ids, duplicates once; a missing one has `error` and its name or id.
- all_topics returns every topic that the caller may see, sorted by name. Many partitions are answered a few at a time, and others
  are served in between.
- A partition that accepts no appends (damaged, or its log stopped) says so in its `error`; it has a leader and may be readable.
- An unknown name is created with num.partitions if auto.create.topics.enable is set (by default it is not): queued with
  all other topic changes, and durable when answered, as in CreateTopics.
"""

from __future__ import annotations

import socket

from brokerd.datadir.topic_store import Topic
from brokerd.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError, WireError
from brokerd.ids import TopicIdPartition
from brokerd.server.broker import Broker
from brokerd.server.failures import malformed
from brokerd.server.fields import check_topic_id
from brokerd.server.handlers.describe_topics import problem_of, seen_by
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.server.waiting.pauses import Pauses
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import metadata_pb2

_WILDCARDS = ("0.0.0.0", "::", "[::]")  # noqa: S104 - compared with, not bound to


def check(request: metadata_pb2.MetadataRequest) -> None:
    """Checks the request as received. Raises MalformedError."""
    if request.all_topics and (request.topics or request.topic_ids):
        raise malformed("all_topics", "topics and topic_ids must be empty with it")
    for topic_id in request.topic_ids:
        check_topic_id("topic_ids", topic_id)


async def handle(
    broker: Broker, authorizer: TopicAuthorizer, request: metadata_pb2.MetadataRequest
) -> metadata_pb2.MetadataResponse:
    """The cluster as this node sees it."""
    broker.require_ready()
    response = metadata_pb2.MetadataResponse(
        cluster_id=broker.logs.cluster_id, controller_id=broker.logs.node_id, nodes=[this_node(broker)]
    )
    pauses = Pauses(broker.turns)
    if request.all_topics:
        for topic in seen_by(broker, authorizer):
            if broker.logs.topics.has(topic.name):  # nobody deleted it meanwhile
                response.topics.append(await _described(broker, topic, pauses))
    for name in request.topics:
        response.topics.append(await _by_name(broker, name, pauses))
    for topic_id in request.topic_ids:
        response.topics.append(await _by_id(broker, topic_id, pauses))
    return response


def this_node(broker: Broker) -> metadata_pb2.Node:
    """This node's address for clients."""
    host = broker.config.advertised_host or broker.config.host
    if host in _WILDCARDS:
        host = socket.gethostname()
    port = broker.config.advertised_port or broker.port
    return metadata_pb2.Node(node_id=broker.logs.node_id, host=host, port=port, epoch=broker.logs.leader_epoch)


async def _by_name(broker: Broker, name: str, pauses: Pauses) -> metadata_pb2.TopicMetadata:
    try:
        return await _described(broker, await _find_or_create(broker, name), pauses)
    except WireError as error:
        return metadata_pb2.TopicMetadata(name=name, error=to_proto(error))


async def _find_or_create(broker: Broker, name: str) -> Topic:
    try:
        return broker.logs.topics.by_name(name)
    except UnknownTopicOrPartitionError:
        if not broker.config.auto_create_topics:
            raise
    try:
        return await broker.admin.run(broker.logs.changes.create(name, broker.config.num_partitions, {}))
    except TopicAlreadyExistsError:  # another request created it meanwhile
        return broker.logs.topics.by_name(name)


async def _by_id(broker: Broker, topic_id: bytes, pauses: Pauses) -> metadata_pb2.TopicMetadata:
    try:
        return await _described(broker, broker.logs.topics.by_id(topic_id), pauses)
    except WireError as error:
        return metadata_pb2.TopicMetadata(topic_id=topic_id, error=to_proto(error))


async def _described(broker: Broker, topic: Topic, pauses: Pauses) -> metadata_pb2.TopicMetadata:
    node_id = broker.logs.node_id
    described = metadata_pb2.TopicMetadata(name=topic.name, topic_id=topic.id)
    for number in range(topic.partition_count):
        described.partitions.append(_partition(broker, TopicIdPartition(topic.id, number), node_id))
        await pauses.after()
    return described


def _partition(broker: Broker, tp: TopicIdPartition, node_id: int) -> metadata_pb2.PartitionMetadata:
    described = metadata_pb2.PartitionMetadata(partition=tp.partition, leader=node_id, replicas=[node_id], isr=[node_id])
    try:
        partition = broker.partitions.leader(tp)
        described.leader_epoch = partition.leader_epoch
        problem = problem_of(partition)
    except WireError as error:  # being deleted, with its topic
        problem = error
    if problem is not None:
        described.error.CopyFrom(to_proto(problem))
    return described
