"""CreateTopics.

Behaviour
- Topics are created independently, in order: one can fail and the next succeed. Durable when answered.
- partitions 0 means num.partitions; replication_factor 0 or 1, since there is one node. Assignments must name this node.
- validate_only makes the same checks, and creates nothing.
"""

from __future__ import annotations

from itertools import chain

from brokerd.datadir.topic_store import Topic
from brokerd.errors import (
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    WireError,
)
from brokerd.server.broker import Broker
from brokerd.server.failures import internal
from brokerd.server.fields import check_config_texts, check_not_negative
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import topics_pb2

_NODES = 1


def check(request: topics_pb2.CreateTopicsRequest) -> None:
    """Checks the request as received. Raises MalformedError."""
    for topic in request.topics:
        check_not_negative("topics.replication_factor", topic.replication_factor)
        check_config_texts("topics.configs", chain(topic.configs, topic.configs.values()))


async def handle(
    broker: Broker, _authorizer: TopicAuthorizer, request: topics_pb2.CreateTopicsRequest
) -> topics_pb2.CreateTopicsResponse:
    """One result per requested topic, in the same order."""
    broker.require_ready()
    response = topics_pb2.CreateTopicsResponse()
    checked: list[Topic] = []  # for validate_only: later topics of the request must see earlier ones
    for topic in request.topics:
        result = response.results.add(name=topic.name)
        try:
            wanted = (topic.name, _partition_count(broker, topic), dict(topic.configs))
            if request.validate_only:
                checked.append(broker.logs.changes.check_create(*wanted, checked))
            else:
                result.topic_id = (await broker.admin.run(broker.logs.changes.create(*wanted))).id
        except WireError as error:
            result.error.CopyFrom(to_proto(error))
        except Exception as error:
            result.error.CopyFrom(to_proto(internal("creating a topic", error)))
    return response


def _partition_count(broker: Broker, topic: topics_pb2.NewTopic) -> int:
    """The requested number of partitions; 0 = the broker's default. Raises WireErrors."""
    if topic.replication_factor > _NODES:
        raise InvalidReplicationFactorError(f"replication_factor is {topic.replication_factor}, but there is {_NODES} node")
    if not topic.assignments:
        return topic.partitions
    if topic.partitions or topic.replication_factor:
        raise InvalidRequestError("topics.assignments: partitions and replication_factor must be 0 with it")
    if sorted(assignment.partition for assignment in topic.assignments) != list(range(len(topic.assignments))):
        raise InvalidPartitionsError("topics.assignments: partitions must be numbered from 0 without a gap")
    node_id = broker.logs.node_id
    if any(list(assignment.node_ids) != [node_id] for assignment in topic.assignments):
        raise InvalidReplicationFactorError(f"topics.assignments: every partition must be on the one node there is, {node_id}")
    return len(topic.assignments)
