"""Metadata: topics, partitions and the nodes that lead them. DescribeTopics: settings, offsets and sizes of topics. GetServerInfo:
versions, features and limits, which a client checks before it relies on one.

Behaviour of Metadata and DescribeTopics
- Topics are returned in the requested order, names before ids, duplicates once; a missing topic has `error` and its name or id.
- A request for all topics returns those that the caller may see, sorted by name.
- Many partitions are described a few per turn, with other requests in between: each is described as of its own moment.
- A partition that accepts no appends (damaged, or its log stopped) has an `error`; everything else about it is valid.

Metadata
- An unknown name is created with num.partitions if auto.create.topics.enable is set (by default it is not): in turn with all
  other topic changes, and durable when answered, as in CreateTopics.

DescribeTopics
- Every effective setting is listed, with its origin.
"""

from __future__ import annotations

import socket

import brokerd
from brokerd.config.settings import settings_of, values_of
from brokerd.config.topic import TopicConfig, topic_config
from brokerd.datadir.topic_store import Topic
from brokerd.errors import NotLeaderError, TopicAlreadyExistsError, UnknownTopicOrPartitionError, WireError
from brokerd.ids import NO_LEADER, TopicIdPartition
from brokerd.partition.partition import Partition
from brokerd.record.header import MAGIC, PAYLOAD_KIND_ARROW
from brokerd.server.broker import BrokerParts
from brokerd.server.failures import malformed, to_its_end
from brokerd.server.handlers.produce import WAITING_REQUESTS_MAX
from brokerd.server.requests import check_topic_id
from brokerd.server.security.topic_authorizer import Right, TopicAuthorizer
from brokerd.server.waiting.delayed_produce import WAIT_MAX_MS
from brokerd.server.waiting.pauses import Pauses
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import metadata_pb2, topics_pb2

_PIECES_OF_A_TOPIC = 5  # its settings cost as much to describe as this many partitions
_WILDCARDS = ("0.0.0.0", "::", "[::]")  # noqa: S104 - compared with, not bound to
WIRE_VERSION = 1
FEATURES = (
    "delete_records",
    "group_offsets",
    "idempotence",
    "long_poll",
    "offset_after_bytes",
    "read_committed",
    "transaction_offsets",
    "transactions",
)
_LIMITS = (
    ("message.max.bytes", "message_max_bytes"),
    ("fetch.max.bytes", "fetch_max_bytes"),
    ("fetch.max.wait.ms", "fetch_max_wait_ms"),
    ("socket.request.max.bytes", "socket_request_max_bytes"),
    ("max.partitions.per.request", "max_partitions_per_request"),
    ("max.partitions.per.topic", "max_partitions_per_topic"),
    ("max.streams.per.connection", "max_streams_per_connection"),
    ("transaction.max.timeout.ms", "transaction_max_timeout_ms"),
)
_CONSTANTS = (("produce.max.wait.ms", WAIT_MAX_MS), ("max.in.flight.requests.per.stream", WAITING_REQUESTS_MAX))
_SOFTWARE_MAX_CHARACTERS = 255


async def handle(
    broker: BrokerParts, authorizer: TopicAuthorizer, request: metadata_pb2.MetadataRequest
) -> metadata_pb2.MetadataResponse:
    """The cluster as this node sees it."""
    if request.all_topics and (request.topics or request.topic_ids):
        raise malformed("all_topics", "topics and topic_ids must be empty with it")
    for topic_id in request.topic_ids:
        check_topic_id("topic_ids", topic_id)
    response = metadata_pb2.MetadataResponse(cluster_id=broker.cluster_id, controller_id=broker.node_id, nodes=[this_node(broker)])
    pauses = Pauses(broker.turns)
    if request.all_topics:
        for topic in _seen_by(broker, authorizer):
            if broker.topics.has(topic.name):  # False: deleted meanwhile
                response.topics.append(await _described(broker, topic, pauses))
    for name in request.topics:
        response.topics.append(await _by_name(broker, authorizer, name, pauses))
    for topic_id in request.topic_ids:
        response.topics.append(await _by_id(broker, authorizer, topic_id, pauses))
    return response


def this_node(broker: BrokerParts) -> metadata_pb2.Node:
    """This node's address for clients."""
    host = broker.config.advertised_host or broker.config.host
    if host in _WILDCARDS:
        host = socket.gethostname()
    port = broker.config.advertised_port or broker.port
    return metadata_pb2.Node(node_id=broker.node_id, host=host, port=port, epoch=broker.node_epoch)


async def _by_name(broker: BrokerParts, authorizer: TopicAuthorizer, name: str, pauses: Pauses) -> metadata_pb2.TopicMetadata:
    await pauses.after()
    try:
        authorizer.require_name(None, name)
        return await _described(broker, await _find_or_create(broker, authorizer, name), pauses)
    except WireError as error:
        return metadata_pb2.TopicMetadata(name=name, error=to_proto(error))


async def _find_or_create(broker: BrokerParts, authorizer: TopicAuthorizer, name: str) -> Topic:
    try:
        return broker.topics.by_name(name)
    except UnknownTopicOrPartitionError:
        if not broker.config.auto_create_topics:
            raise
    authorizer.require_name(Right.ADMIN, name)
    try:
        return await to_its_end(_create(broker, name))
    except TopicAlreadyExistsError:  # created by another request meanwhile
        return broker.topics.by_name(name)


async def _create(broker: BrokerParts, name: str) -> Topic:
    topic = await broker.admin.run(broker.topic_changes.create(name, broker.config.num_partitions, {}))
    broker.audit.changed(f"created topic '{name}'")
    return topic


async def _by_id(broker: BrokerParts, authorizer: TopicAuthorizer, topic_id: bytes, pauses: Pauses) -> metadata_pb2.TopicMetadata:
    await pauses.after()
    try:
        authorizer.require_id(None, topic_id)
        return await _described(broker, broker.topics.by_id(topic_id), pauses)
    except WireError as error:
        return metadata_pb2.TopicMetadata(topic_id=topic_id, error=to_proto(error))


async def _described(broker: BrokerParts, topic: Topic, pauses: Pauses) -> metadata_pb2.TopicMetadata:
    node_id = broker.node_id
    described = metadata_pb2.TopicMetadata(name=topic.name, topic_id=topic.id)
    for number in range(topic.partition_count):
        described.partitions.append(_partition(broker, TopicIdPartition(topic.id, number), node_id))
        await pauses.after()
    return described


def _partition(broker: BrokerParts, tp: TopicIdPartition, node_id: int) -> metadata_pb2.PartitionMetadata:
    described = metadata_pb2.PartitionMetadata(partition=tp.partition, leader=node_id, replicas=[node_id], isr=[node_id])
    try:
        partition = broker.partitions.leader(tp)
        described.leader_epoch = partition.leader_epoch
        problem = _problem_of(partition)
    except NotLeaderError as error:
        described.leader, described.leader_epoch = NO_LEADER, error.current_leader_epoch
        problem = error
    except WireError as error:  # the topic is being deleted
        problem = error
    if problem is not None:
        described.error.CopyFrom(to_proto(problem))
    return described


async def describe(
    broker: BrokerParts, authorizer: TopicAuthorizer, request: topics_pb2.DescribeTopicsRequest
) -> topics_pb2.DescribeTopicsResponse:
    """One description per requested topic."""
    response = topics_pb2.DescribeTopicsResponse()
    pauses = Pauses(broker.turns)
    if request.names:
        for name in request.names:
            response.topics.append(await _description(broker, authorizer, name, pauses))
        return response
    for topic in _seen_by(broker, authorizer):
        if broker.topics.has(topic.name):  # False: deleted meanwhile
            response.topics.append(await _description(broker, authorizer, topic.name, pauses))
    return response


def _seen_by(broker: BrokerParts, authorizer: TopicAuthorizer) -> list[Topic]:
    """All topics that the caller may see; the others cost it no turns."""
    return [topic for topic in broker.topics.list() if authorizer.rights.sees(topic.name)]


async def _description(broker: BrokerParts, authorizer: TopicAuthorizer, name: str, pauses: Pauses) -> topics_pb2.TopicDescription:
    await pauses.after()
    try:
        authorizer.require_name(None, name)
        topic = broker.topics.by_name(name)
        logs = [broker.partitions.leader(TopicIdPartition(topic.id, partition)) for partition in range(topic.partition_count)]
    except WireError as error:
        return topics_pb2.TopicDescription(name=name, error=to_proto(error))
    described = topics_pb2.TopicDescription(name=topic.name, topic_id=topic.id, configs=_configs(broker, topic))
    await pauses.after(_PIECES_OF_A_TOPIC)
    for log in logs:
        described.partitions.append(_partition_description(log))
        await pauses.after()
    return described


def _configs(broker: BrokerParts, topic: Topic) -> list[topics_pb2.ConfigEntry]:
    values = values_of(topic_config(topic.configs, broker.config.topic_defaults()))
    return [
        topics_pb2.ConfigEntry(name=name, value=str(values[name]), is_default=name not in topic.configs, documentation=spec.doc)
        for name, spec in settings_of(TopicConfig).items()
    ]


def _partition_description(log: Partition) -> topics_pb2.PartitionDescription:
    description = topics_pb2.PartitionDescription(
        partition=log.tp.partition,
        log_start_offset=log.ends.log_start_offset,
        last_stable_offset=log.ends.last_stable_offset,
        high_watermark=log.ends.high_watermark,
        log_end_offset=log.ends.log_end_offset,
        size_bytes=log.size_bytes,
        segment_count=len(log.segments),
        producer_count=len(log.producers),
    )
    problem = _problem_of(log)
    if problem is not None:
        description.error.CopyFrom(to_proto(problem))
    return description


def _problem_of(log: Partition) -> WireError | None:
    """Why the partition accepts no appends: the error that they get. None if it accepts them."""
    try:
        log.health.check_writable(log.ends.log_start_offset)
    except WireError as error:
        return error
    return None


async def server_info(
    broker: BrokerParts, _authorizer: TopicAuthorizer, request: metadata_pb2.GetServerInfoRequest
) -> metadata_pb2.GetServerInfoResponse:
    """The server's version, features and limits."""
    if len(request.client_software) > _SOFTWARE_MAX_CHARACTERS:
        raise malformed(
            "client_software", f"has {len(request.client_software)} characters, at most {_SOFTWARE_MAX_CHARACTERS} are allowed"
        )
    settings = [(name, getattr(broker.config, attribute)) for name, attribute in _LIMITS]
    return metadata_pb2.GetServerInfoResponse(
        cluster_id=broker.cluster_id,
        node_id=broker.node_id,
        software_version=brokerd.__version__,
        min_wire_version=WIRE_VERSION,
        max_wire_version=WIRE_VERSION,
        record_batch_versions=[MAGIC],
        payload_kinds=[PAYLOAD_KIND_ARROW],
        features=FEATURES,
        limits=[metadata_pb2.Limit(name=name, value=value) for name, value in (*settings, *_CONSTANTS)],
    )
