"""DescribeTopics: settings, offsets and sizes of topics.

Behaviour
- Topics are returned in the requested order, duplicates once; all that the caller may see, sorted by name, if none
  is named.
- Every effective setting is listed, with its origin.
- Many partitions are described a few at a time, and others are served in between: each is shown as of its own moment.
- A partition that is damaged, or whose log stopped, says so in its `error`; its other numbers are valid.
"""

from __future__ import annotations

from brokerd.config.settings import settings_of, values_of
from brokerd.config.topic import TopicConfig, topic_config
from brokerd.datadir.topic_store import Topic
from brokerd.errors import StorageError, WireError
from brokerd.ids import TopicIdPartition
from brokerd.partition.partition import Partition
from brokerd.server.broker import Broker
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.server.waiting.pauses import Pauses
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import topics_pb2

_PIECES_OF_A_TOPIC = 5  # its settings cost as much as so many partitions


async def handle(
    broker: Broker, authorizer: TopicAuthorizer, request: topics_pb2.DescribeTopicsRequest
) -> topics_pb2.DescribeTopicsResponse:
    """One description per requested topic."""
    broker.require_ready()
    response = topics_pb2.DescribeTopicsResponse()
    pauses = Pauses(broker.turns)
    if request.names:
        for name in request.names:
            response.topics.append(await _described(broker, name, pauses))
        return response
    for topic in seen_by(broker, authorizer):
        if broker.logs.topics.has(topic.name):  # nobody deleted it meanwhile
            response.topics.append(await _described(broker, topic.name, pauses))
    return response


def seen_by(broker: Broker, authorizer: TopicAuthorizer) -> list[Topic]:
    """All topics that the caller may see: it pays for no others, which its answer does not name either."""
    return [topic for topic in broker.logs.topics.list() if authorizer.rights.sees(topic.name)]


async def _described(broker: Broker, name: str, pauses: Pauses) -> topics_pb2.TopicDescription:
    try:
        topic = broker.logs.topics.by_name(name)
        logs = [broker.partitions.leader(TopicIdPartition(topic.id, partition)) for partition in range(topic.partition_count)]
    except WireError as error:
        return topics_pb2.TopicDescription(name=name, error=to_proto(error))
    described = topics_pb2.TopicDescription(name=topic.name, topic_id=topic.id, configs=_configs(broker, topic))
    await pauses.after(_PIECES_OF_A_TOPIC)
    for log in logs:
        described.partitions.append(_partition(log))
        await pauses.after()
    return described


def _configs(broker: Broker, topic: Topic) -> list[topics_pb2.ConfigEntry]:
    values = values_of(topic_config(topic.configs, broker.config.topic_defaults()))
    return [
        topics_pb2.ConfigEntry(name=name, value=str(values[name]), is_default=name not in topic.configs, documentation=spec.doc)
        for name, spec in settings_of(TopicConfig).items()
    ]


def _partition(log: Partition) -> topics_pb2.PartitionDescription:
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
    problem = problem_of(log)
    if problem is not None:
        description.error.CopyFrom(to_proto(problem))
    return description


def problem_of(log: Partition) -> WireError | None:
    """Why the partition accepts no appends; None if it does."""
    failure = log.health.failure
    if failure is not None:
        return StorageError(f"a flush failed ({failure.strerror}): no appends until the broker's next start")
    return log.damage
