"""CreatePartitions: more partitions for a topic.

Behaviour
- total_count must exceed the current count; new partitions are empty, and durable when the request is answered.
- Keys move: records of a key written afterwards may be in another partition than earlier ones.
- validate_only makes the same checks, and changes nothing.
"""

from __future__ import annotations

from brokerd.errors import WireError
from brokerd.server.broker import Broker
from brokerd.server.failures import internal
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import topics_pb2


async def handle(
    broker: Broker, _authorizer: TopicAuthorizer, request: topics_pb2.CreatePartitionsRequest
) -> topics_pb2.CreatePartitionsResponse:
    """The topic, or its error."""
    broker.require_ready()
    response = topics_pb2.CreatePartitionsResponse(result=topics_pb2.TopicResult(name=request.name))
    try:
        if request.validate_only:
            topic = broker.logs.changes.check_grow(request.name, request.total_count)
        else:
            topic = await broker.admin.run(broker.logs.changes.grow(request.name, request.total_count))
        response.result.topic_id = topic.id
    except WireError as error:
        response.result.error.CopyFrom(to_proto(error))
    except Exception as error:
        response.result.error.CopyFrom(to_proto(internal("creating partitions", error)))
    return response
