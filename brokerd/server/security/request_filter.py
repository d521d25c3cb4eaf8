"""Applies a method's rule to a unary call: refused entries never reach the handler, and hidden topics never the caller.

Knows no gRPC and no handler: the call is handed in. method_rules.py has the rule of each method.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import Message

from brokerd.errors import TopicAuthorizationFailedError, UnknownTopicIdError, WireError
from brokerd.server.security.authenticator import ForbiddenError
from brokerd.server.security.method_rules import OneTopic, PerTopic, ProducerId, Rule, Somewhere, Stream
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.server.security.topic_rights import Right
from brokerd.server.waiting.pauses import Pauses
from brokerd.server.waiting.turns import Turns
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import topics_pb2

_NO_PRODUCER = -1
_EPOCH_MAX = 2**15 - 1

Call = Callable[[Any], Awaitable[Message]]


class RequestFilter:
    """Takes what its caller may not do out of a request, and what its caller may not see out of the response."""

    def __init__(self, *, auto_creates: bool, turns: Turns | None = None) -> None:
        """`turns`: of the calls whose entries are many."""
        self.auto_creates = auto_creates
        self._turns = turns

    async def call(
        self, rule: Rule, authorizer: TopicAuthorizer, request: Any, response_type: type[Message], handle: Call
    ) -> Message:
        """The response to `request`. Raises ForbiddenError, and what `handle` raises.

        What is malformed was refused before, with the request as it came; entries are few enough, and none stands twice.
        """
        assert not isinstance(rule, Stream), "a stream asks TopicAuthorizer itself"
        if isinstance(rule, (Somewhere, ProducerId)) and not authorizer.has_somewhere(rule.right):
            raise ForbiddenError(
                f"principal '{authorizer.principal}' may {rule.right.value} no topic at all: the broker's auth.file says who may"
            )
        if isinstance(rule, ProducerId):
            return await self._producer_id(authorizer, request, handle)
        if authorizer.is_unlimited:
            return await handle(request)
        if isinstance(rule, OneTopic):
            error = authorizer.refuse_name(rule.right, request.name)
            if error is not None:
                authorizer.note_refused(error)
                return response_type(result=topics_pb2.TopicResult(name=request.name, error=to_proto(error)))
        if isinstance(rule, PerTopic):
            return await self._per_topic(rule, authorizer, request, response_type, handle)
        return await handle(request)

    async def _producer_id(self, authorizer: TopicAuthorizer, request: Any, handle: Call) -> Message:
        # A malformed one is for the handler to refuse.
        is_well_formed = request.producer_id >= 0 and 0 <= request.producer_epoch <= _EPOCH_MAX
        if is_well_formed and not authorizer.owns_producer(request.producer_id):
            others, request = request, type(request)()
            request.CopyFrom(others)
            request.producer_id = request.producer_epoch = _NO_PRODUCER
        response: Any = await handle(request)
        if not response.HasField("error"):
            response.producer_id = authorizer.own_producer_id(response.producer_id)
        message: Message = response
        return message

    async def _per_topic(
        self, rule: PerTopic, authorizer: TopicAuthorizer, request: Any, response_type: type[Message], handle: Call
    ) -> Message:
        if rule.is_list is not None and rule.is_list(request):
            response: Any = await handle(request)
            _hide(getattr(response, rule.results), rule, authorizer)
        else:
            kept, refused = await self._split(rule, authorizer, request)
            # Without its refused entries, a request may mean "list all" to the handler, though the caller named topics.
            response = response_type() if rule.is_list is not None and rule.is_list(kept) else await handle(kept)
            if refused:
                _put_back(getattr(response, rule.results), refused)
        message: Message = response
        return message

    async def _split(self, rule: PerTopic, authorizer: TopicAuthorizer, request: Any) -> tuple[Any, dict[int, Message]]:
        """The request without its refused entries (itself, if none is), and the results of the refused ones by their places."""
        refused: dict[int, Message] = {}
        kept: dict[str, list[Any]] = {}
        asked = 0
        pauses = Pauses(self._turns)
        for entries in rule.entries:
            values = getattr(request, entries.field)
            kept[entries.field] = []
            for value in values:
                await pauses.after()
                error = self._refusal(rule, authorizer, entries.topic_of(value))
                if error is None:
                    kept[entries.field].append(value)
                else:
                    authorizer.note_refused(error)
                    refused[asked] = entries.refused(value, to_proto(error))
                asked += 1
        if not refused:
            return request, refused
        left = type(request)()
        left.CopyFrom(request)
        for field, values in kept.items():
            left.ClearField(field)
            getattr(left, field).extend(values)
        return left, refused

    def _refusal(self, rule: PerTopic, authorizer: TopicAuthorizer, topic: str | bytes) -> WireError | None:
        if isinstance(topic, bytes):
            return authorizer.refuse_id(rule.right, topic)
        error = authorizer.refuse_name(rule.right, topic)
        if error is None and rule.creates and self.auto_creates and not authorizer.exists(topic):
            return authorizer.refuse_name(Right.ADMIN, topic)
        return error


def _put_back(results: Any, refused: dict[int, Message]) -> None:
    """Sets the results of refused entries in their places."""
    answered = iter(list(results))
    merged = [refused[place] if place in refused else next(answered) for place in range(len(results) + len(refused))]
    del results[:]
    results.extend(merged)


def _hide(results: Any, rule: PerTopic, authorizer: TopicAuthorizer) -> None:
    """Takes topics that may not be seen out of a list of all."""
    assert rule.listed is not None
    seen = [result for result in results if _is_seen(rule, authorizer, rule.listed(result))]
    if len(seen) != len(results):
        del results[:]
        results.extend(seen)


def _is_seen(rule: PerTopic, authorizer: TopicAuthorizer, topic: str | bytes) -> bool:
    error = authorizer.refuse_id(rule.right, topic) if isinstance(topic, bytes) else authorizer.refuse_name(rule.right, topic)
    return not isinstance(error, (TopicAuthorizationFailedError, UnknownTopicIdError))
