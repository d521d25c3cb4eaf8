"""AlterTopicConfigs: settings of one topic.

Behaviour
- Other settings stay; `unset` removes one, so that the broker's applies. All or nothing; durable when answered.
- An unknown setting is refused with the nearest known one, also in `unset`.
- validate_only makes the same checks, and changes nothing.
"""

from __future__ import annotations

from itertools import chain

from brokerd.datadir.topic_store import Topic
from brokerd.errors import WireError
from brokerd.server.broker import Broker
from brokerd.server.failures import internal, malformed
from brokerd.server.fields import check_config_texts
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import topics_pb2


def check(request: topics_pb2.AlterTopicConfigsRequest) -> None:
    """Checks the request as received. Raises MalformedError."""
    check_config_texts("set", chain(request.set, request.set.values()))
    check_config_texts("unset", request.unset)
    both = sorted(set(request.set) & set(request.unset))
    if both:
        raise malformed("unset", f"'{both[0]}' is in set too")


async def handle(
    broker: Broker, _authorizer: TopicAuthorizer, request: topics_pb2.AlterTopicConfigsRequest
) -> topics_pb2.AlterTopicConfigsResponse:
    """The topic, or its error."""
    broker.require_ready()
    response = topics_pb2.AlterTopicConfigsResponse(result=topics_pb2.TopicResult(name=request.name))
    try:
        response.result.topic_id = (await _alter(broker, request)).id
    except WireError as error:
        response.result.error.CopyFrom(to_proto(error))
    except Exception as error:
        response.result.error.CopyFrom(to_proto(internal("changing a topic's settings", error)))
    return response


async def _alter(broker: Broker, request: topics_pb2.AlterTopicConfigsRequest) -> Topic:
    change = (request.name, dict(request.set), list(request.unset))
    if request.validate_only:
        return broker.logs.changes.check_alter(*change)
    return await broker.admin.run(broker.logs.changes.alter(*change))
