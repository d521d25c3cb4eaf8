"""Metadata: topics, partitions and the nodes that lead them. DescribeTopics: settings, offsets and sizes of topics. GetServerInfo:
versions and limits, which a client checks before it relies on one.

Behaviour of Metadata and DescribeTopics
- Topics are returned in the requested order, names before ids, duplicates once; a missing topic has `error` and its name or id.
- A node of a cluster asks the store for a topic that it does not know: another node may just have created it. A node that cannot
  ask sets is_cut_off: its response may be stale, and clients ask another node.
- A request for all topics returns those that the caller may see, sorted by name.
- Partitions are described a few per turn, with other requests in between, so a response is not a consistent snapshot.
- A partition that accepts no appends (damaged, or its log stopped) has an `error`; everything else about it is valid.

Metadata
- With include_internal, the coordinator's log is described to callers with every right on every topic, so that operators can see
  where it is. Apart from moves and unclean elections, no other request finds it by its name.
- An unknown name is created with num.partitions if auto.create.topics.enable is set (by default it is not): in turn with all
  other topic changes, and durable when answered, as in CreateTopics.

DescribeTopics
- Every effective setting is listed, with its origin.
- Values that only a partition's leader knows are -1 on other nodes, with NOT_LEADER.
"""

from __future__ import annotations

from functools import partial

import brokerd
from brokerd.cluster.election import no_copy_alive
from brokerd.cluster.image import Node
from brokerd.config.settings import settings_of, values_of
from brokerd.config.topic import TopicConfig, topic_config
from brokerd.datadir.topic_store import COORDINATOR, COORDINATOR_LOG, Topic, effective_min_insync
from brokerd.errors import NotLeaderError, TopicAlreadyExistsError, UnknownTopicOrPartitionError, WireError
from brokerd.ids import NO_EPOCH, NO_LEADER, TopicIdPartition
from brokerd.replication.leader import in_sync_of
from brokerd.server.broker import BrokerParts
from brokerd.server.delayed_produce import WAIT_MAX_MS
from brokerd.server.failures import fails_with, malformed
from brokerd.server.handlers.produce import WAITING_REQUESTS_MAX
from brokerd.server.paging import Pauses
from brokerd.server.requests import check_id_bytes
from brokerd.server.security.topic_authorizer import Right, TopicAuthorizer
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import metadata_pb2, topics_pb2

_PIECES_OF_A_TOPIC = 5  # its settings cost as much to describe as this many partitions
_NONE = -1
WIRE_VERSION = 1
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


async def handle(
    broker: BrokerParts, authorizer: TopicAuthorizer, request: metadata_pb2.MetadataRequest
) -> metadata_pb2.MetadataResponse:
    """The cluster as this node sees it."""
    if request.all_topics and (request.topics or request.topic_ids):
        raise malformed("all_topics", "topics and topic_ids must be empty with it")
    for topic_id in request.topic_ids:
        check_id_bytes("topic_ids", topic_id)
    is_sure = await broker.cluster.topics.hear_of(filter(authorizer.rights.sees, request.topics), request.topic_ids)
    response = metadata_pb2.MetadataResponse(
        cluster_id=broker.cluster_id,
        cluster_name=broker.config.cluster_name,
        nodes=map(_node, broker.cluster.nodes()),
        controller_id=broker.cluster.controller_id,
        is_cut_off=not (is_sure and broker.cluster.is_registered),
    )
    pauses = Pauses(broker.turns)
    if request.all_topics:
        for topic in _seen_by(broker, authorizer):
            if broker.topics.has(topic.name):  # False: deleted meanwhile
                await _describe(broker, topic, response.topics.add(), pauses)
        log = broker.topics.any_by_id(COORDINATOR.id)
        if request.include_internal and log is not None and authorizer.is_unlimited:
            await _describe(broker, log, response.topics.add(), pauses)
    for name in request.topics:
        await pauses.after()
        described = response.topics.add(name=name)
        with fails_with(described, f"metadata of topic {name!r}"):
            if request.include_internal and name == COORDINATOR.name:
                topic = _coordinator_log(broker, authorizer)
            else:
                authorizer.require_name(None, name)
                topic = await _find_or_create(broker, authorizer, name)
            await _describe(broker, topic, described, pauses)
    for topic_id in request.topic_ids:
        await pauses.after()
        described = response.topics.add(topic_id=topic_id)
        with fails_with(described, f"metadata of topic id {topic_id.hex()}"):
            authorizer.require_id(None, topic_id)
            await _describe(broker, broker.topics.by_id(topic_id), described, pauses)
    return response


def _node(node: Node) -> metadata_pb2.Node:
    registration = node.registration
    return metadata_pb2.Node(
        node_id=node.id,
        host=registration.host,
        port=registration.port,
        rack=registration.rack,
        disk_refuses=registration.refuses,
        feature_level=registration.feature_level,
    )


def _coordinator_log(broker: BrokerParts, authorizer: TopicAuthorizer) -> Topic:
    authorizer.require_everything("see where the log of transactions and groups is")
    topic = broker.topics.any_by_id(COORDINATOR.id)
    if topic is None:
        raise UnknownTopicOrPartitionError(f"there is no topic '{COORDINATOR.name}' yet: the first transaction or group makes it")
    return topic


async def _find_or_create(broker: BrokerParts, authorizer: TopicAuthorizer, name: str) -> Topic:
    try:
        return broker.topics.by_name(name)
    except UnknownTopicOrPartitionError:
        if not broker.config.auto_create_topics:
            raise
    authorizer.require_name(Right.ADMIN, name)
    try:
        return await broker.changes.run(partial(_create, broker, name))
    except TopicAlreadyExistsError:  # created by another request meanwhile
        return broker.topics.by_name(name)


async def _create(broker: BrokerParts, name: str) -> Topic:
    with broker.audit.change(f"created topic '{name}'"):
        return await broker.cluster.topics.create(name, broker.config.num_partitions, {})


async def _describe(broker: BrokerParts, topic: Topic, described: metadata_pb2.TopicMetadata, pauses: Pauses) -> None:
    described.name, described.topic_id = topic.name, topic.id
    configured = int(topic.configs.get("min.insync.replicas", broker.config.min_insync_replicas))
    min_insync_replicas = effective_min_insync(topic, configured)
    for number in range(topic.partition_count):
        described.partitions.append(_partition(broker, topic, number, min_insync_replicas))
        await pauses.after()


def _partition(broker: BrokerParts, topic: Topic, number: int, min_insync_replicas: int) -> metadata_pb2.PartitionMetadata:
    tp = TopicIdPartition(topic.id, number)
    entry = broker.cluster.partition(tp)
    described = metadata_pb2.PartitionMetadata(partition=number, leader=NO_LEADER, leader_epoch=NO_EPOCH)
    if entry is not None:
        described.replicas.extend(entry.replicas)
        described.isr.extend(replica.node_id for replica in entry.isr)
        described.target.extend(entry.target)
        in_sync = in_sync_of(entry)
        described.under_replicated = in_sync.is_under_replicated
        described.under_min_isr = not in_sync.is_enough(min_insync_replicas)
    try:
        if entry is None or entry.leader == NO_LEADER:
            nodes = {node.id: node for node in broker.cluster.nodes()}
            lost = no_copy_alive(entry, nodes, may_delete=tp != COORDINATOR_LOG) if entry is not None else ""
            described.no_copy_alive = bool(lost)
            raise NotLeaderError(f"{topic.name}-{number} has no leader at present: {lost or 'try again'}")
        described.leader, described.leader_epoch = entry.leader, entry.leader_epoch
        if entry.leader == broker.node_id:
            log = broker.partitions.coordinator_log if tp == COORDINATOR_LOG else broker.partitions.leader(tp)
            if log is not None:
                log.health.check_writable(log.ends.log_start_offset)
    except WireError as error:
        described.error.CopyFrom(to_proto(error))
    return described


async def describe(
    broker: BrokerParts, authorizer: TopicAuthorizer, request: topics_pb2.DescribeTopicsRequest
) -> topics_pb2.DescribeTopicsResponse:
    """One description per requested topic."""
    response = topics_pb2.DescribeTopicsResponse()
    pauses = Pauses(broker.turns)
    asked = list(request.names)
    await broker.cluster.topics.hear_of(filter(authorizer.rights.sees, asked), ())
    for name in asked or [topic.name for topic in _seen_by(broker, authorizer)]:
        if asked or broker.topics.has(name):  # False: deleted meanwhile
            await _describe_topic(broker, authorizer, response.topics.add(name=name), pauses)
    return response


def _seen_by(broker: BrokerParts, authorizer: TopicAuthorizer) -> list[Topic]:
    """All topics that the caller may see; the others cost it no turns."""
    return [topic for topic in broker.topics.list() if authorizer.rights.sees(topic.name)]


async def _describe_topic(
    broker: BrokerParts, authorizer: TopicAuthorizer, described: topics_pb2.TopicDescription, pauses: Pauses
) -> None:
    await pauses.after()
    with fails_with(described, f"description of topic {described.name!r}"):
        authorizer.require_name(None, described.name)
        topic = broker.topics.by_name(described.name)
        described.topic_id = topic.id
        described.configs.extend(_configs(broker, topic))
        await pauses.after(_PIECES_OF_A_TOPIC)
        for number in range(topic.partition_count):
            _describe_partition(broker, TopicIdPartition(topic.id, number), described.partitions.add(partition=number))
            await pauses.after()


def _configs(broker: BrokerParts, topic: Topic) -> list[topics_pb2.ConfigEntry]:
    values = values_of(topic_config(topic.configs, broker.config.topic_defaults()))
    return [
        topics_pb2.ConfigEntry(name=name, value=str(values[name]), is_default=name not in topic.configs, documentation=spec.doc)
        for name, spec in settings_of(TopicConfig).items()
    ]


def _describe_partition(broker: BrokerParts, tp: TopicIdPartition, described: topics_pb2.PartitionDescription) -> None:
    described.log_start_offset = described.last_stable_offset = described.high_watermark = described.log_end_offset = _NONE
    described.size_bytes = described.segment_count = described.producer_count = _NONE
    with fails_with(described, f"description of {tp}"):
        log = broker.partitions.leader(tp)
        described.log_start_offset = log.ends.log_start_offset
        described.last_stable_offset = log.ends.last_stable_offset
        described.high_watermark = log.ends.high_watermark
        described.log_end_offset = log.ends.log_end_offset
        described.size_bytes = log.size_bytes
        described.segment_count = len(log.segments)
        described.producer_count = len(log.producers)
        log.health.check_writable(log.ends.log_start_offset)


async def server_info(
    broker: BrokerParts, _authorizer: TopicAuthorizer, _request: metadata_pb2.GetServerInfoRequest
) -> metadata_pb2.GetServerInfoResponse:
    """The server's version and limits."""
    settings = [(name, getattr(broker.config, attribute)) for name, attribute in _LIMITS]
    return metadata_pb2.GetServerInfoResponse(
        cluster_id=broker.cluster_id,
        cluster_name=broker.config.cluster_name,
        node_id=broker.node_id,
        software_version=brokerd.__version__,
        min_wire_version=WIRE_VERSION,
        max_wire_version=WIRE_VERSION,
        limits=[metadata_pb2.Limit(name=name, value=value) for name, value in (*settings, *_CONSTANTS)],
    )


async def find_coordinator(
    broker: BrokerParts, _authorizer: TopicAuthorizer, _request: metadata_pb2.FindCoordinatorRequest
) -> metadata_pb2.FindCoordinatorResponse:
    """The node that decides on transactions and keeps the offsets of groups.

    - COORDINATOR_NOT_AVAILABLE while the coordinator's log has no live leader.
    """
    response = metadata_pb2.FindCoordinatorResponse()
    with fails_with(response, "finding the coordinator"):
        response.coordinator.CopyFrom(_node(await broker.cluster.find_coordinator()))
    return response
