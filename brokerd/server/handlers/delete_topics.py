"""DeleteTopics: deletes topics and all their records.

Behaviour
- Topics are deleted independently, names first, then ids; a missing one has `error`.
- Requests that wait for one of its partitions are answered at once: fetches with UNKNOWN_TOPIC_ID, acks=all with an unknown fate.
"""

from __future__ import annotations

from brokerd.datadir.topic_store import Topic
from brokerd.errors import WireError
from brokerd.ids import TopicIdPartition
from brokerd.server.broker import Broker
from brokerd.server.failures import internal
from brokerd.server.fields import check_topic_id
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import topics_pb2


def check(request: topics_pb2.DeleteTopicsRequest) -> None:
    """Checks the request as received. Raises MalformedError."""
    for topic_id in request.topic_ids:
        check_topic_id("topic_ids", topic_id)


async def handle(
    broker: Broker, _authorizer: TopicAuthorizer, request: topics_pb2.DeleteTopicsRequest
) -> topics_pb2.DeleteTopicsResponse:
    """One result per requested topic."""
    broker.require_ready()
    response = topics_pb2.DeleteTopicsResponse()
    for name in request.names:
        await _delete(broker, response.results.add(name=name), name)
    for topic_id in request.topic_ids:
        await _delete(broker, response.results.add(topic_id=topic_id), topic_id)
    return response


async def _delete(broker: Broker, result: topics_pb2.TopicResult, wanted: str | bytes) -> None:
    try:
        deleted = await broker.admin.run(broker.logs.changes.delete(wanted, lambda topic: _forget(broker, topic)))
    except WireError as error:
        result.error.CopyFrom(to_proto(error))
    except Exception as error:
        result.error.CopyFrom(to_proto(internal(f"deleting topic {wanted!r}", error)))
    else:
        result.name = deleted.name
        result.topic_id = deleted.id


def _forget(broker: Broker, topic: Topic) -> None:
    broker.counters.topics.pop(topic.id, None)
    broker.groups.forget_topic(topic.id)
    for partition in range(topic.partition_count):
        broker.transactions.leaders.forget(TopicIdPartition(topic.id, partition))
