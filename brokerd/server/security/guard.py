"""Applies a method's rule to a unary call: what is refused never reaches the handler, what may not be seen never the caller.

Knows no gRPC and no handler: the call is handed in. Which rule a method has is in rules.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import Message

from brokerd.errors import TopicAuthorizationFailedError, UnknownTopicIdError, WireError
from brokerd.server.security.access import Access
from brokerd.server.security.authenticator import ForbiddenError
from brokerd.server.security.permissions import Right
from brokerd.server.security.rules import OneTopic, PerTopic, ProducerId, Rule, Somewhere, Stream
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import topics_pb2

_NO_PRODUCER = -1
_EPOCH_MAX = 2**15 - 1

Call = Callable[[Any], Awaitable[Message]]


class Guard:
    """The rules with the broker's settings that matter to them."""

    def __init__(self, *, auto_creates: bool) -> None:
        self._auto_creates = auto_creates

    async def call(self, rule: Rule, access: Access, request: Any, response_type: type[Message], handle: Call) -> Message:
        """The answer to `request`. Raises ForbiddenError, and what `handle` raises.

        What is malformed was refused before, with the request as it came; entries are few enough, and none stands twice.
        """
        assert not isinstance(rule, Stream), "a stream asks Access itself"
        if isinstance(rule, (Somewhere, ProducerId)) and not access.has_somewhere(rule.right):
            raise ForbiddenError(
                f"principal '{access.principal}' may {rule.right.value} no topic at all: the broker's auth.file says who may"
            )
        if isinstance(rule, ProducerId):
            return await self._producer_id(access, request, handle)
        if isinstance(rule, OneTopic):
            error = access.refuse_name(rule.right, request.name)
            if error is not None:
                access.note_refused(error)
                return response_type(result=topics_pb2.TopicResult(name=request.name, error=to_proto(error)))
        if isinstance(rule, PerTopic):
            return await self._per_topic(rule, access, request, response_type, handle)
        return await handle(request)

    async def _producer_id(self, access: Access, request: Any, handle: Call) -> Message:
        # A malformed one is for the handler to refuse.
        is_well_formed = request.producer_id >= 0 and 0 <= request.producer_epoch <= _EPOCH_MAX
        if is_well_formed and not access.owns_producer(request.producer_id):
            others, request = request, type(request)()
            request.CopyFrom(others)
            request.producer_id = request.producer_epoch = _NO_PRODUCER
        response: Any = await handle(request)
        response.producer_id = access.own_producer_id(response.producer_id)
        answer: Message = response
        return answer

    async def _per_topic(self, rule: PerTopic, access: Access, request: Any, response_type: type[Message], handle: Call) -> Message:
        if rule.is_list is not None and rule.is_list(request):
            response: Any = await handle(request)
            _hide(getattr(response, rule.results), rule, access)
        else:
            kept, refused = self._split(rule, access, request)
            # What is left may be a list of all to the handler, though nobody asked for one.
            response = response_type() if rule.is_list is not None and rule.is_list(kept) else await handle(kept)
            if refused:
                _put_back(getattr(response, rule.results), refused)
        answer: Message = response
        return answer

    def _split(self, rule: PerTopic, access: Access, request: Any) -> tuple[Any, dict[int, Message]]:
        """What is left of the request (itself, if that is all), and the results of what is not by place."""
        refused: dict[int, Message] = {}
        kept: dict[str, list[Any]] = {}
        asked = 0
        for entries in rule.entries:
            values = getattr(request, entries.field)
            kept[entries.field] = []
            for value in values:
                error = self._refusal(rule, access, entries.topic_of(value))
                if error is None:
                    kept[entries.field].append(value)
                else:
                    access.note_refused(error)
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

    def _refusal(self, rule: PerTopic, access: Access, topic: str | bytes) -> WireError | None:
        if isinstance(topic, bytes):
            return access.refuse_id(rule.right, topic)
        error = access.refuse_name(rule.right, topic)
        if error is None and rule.creates and self._auto_creates and not access.exists(topic):
            return access.refuse_name(Right.ADMIN, topic)
        return error


def _put_back(results: Any, refused: dict[int, Message]) -> None:
    """Sets the results of refused entries in their places."""
    answered = iter(list(results))
    merged = [refused[place] if place in refused else next(answered) for place in range(len(results) + len(refused))]
    del results[:]
    results.extend(merged)


def _hide(results: Any, rule: PerTopic, access: Access) -> None:
    """Takes topics that may not be seen out of a list of all."""
    assert rule.listed is not None
    seen = [result for result in results if _is_seen(rule, access, rule.listed(result))]
    if len(seen) != len(results):
        del results[:]
        results.extend(seen)


def _is_seen(rule: PerTopic, access: Access, topic: str | bytes) -> bool:
    error = access.refuse_id(rule.right, topic) if isinstance(topic, bytes) else access.refuse_name(rule.right, topic)
    return not isinstance(error, (TopicAuthorizationFailedError, UnknownTopicIdError))
