"""Decides whether a gRPC call may be made: finds its caller, applies its method's rule, and writes the audit trail.

Entries of a unary request that the caller has no right to never reach the handler, and topics that the caller may not see never
reach the caller. `method_rules.py` has the rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from google.protobuf.message import Message

from brokerd.clock import Clock
from brokerd.datadir.topic_store import TopicStore
from brokerd.errors import TopicAuthorizationFailedError, UnknownTopicIdError, WireError
from brokerd.server.failures import forget_end
from brokerd.server.security.audit import CHANGES, Audit, changes, created_topics
from brokerd.server.security.authenticator import Authenticator, UnauthenticatedError, host_of
from brokerd.server.security.method_rules import METHOD_RULES, OneTopic, PerTopic, Somewhere, Stream
from brokerd.server.security.topic_authorizer import ANYBODY, NOTHING, TRUSTED, Principal, Right, TopicAuthorizer
from brokerd.server.waiting.pauses import Pauses
from brokerd.sharing import Caller, Turns
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import topics_pb2

Handle = Callable[[Any], Awaitable[Message]]


class CallContext(Protocol):
    """The parts of a gRPC context that identify the caller."""

    def invocation_metadata(self) -> Iterable[Any] | None:
        """The call's headers."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Properties that TLS has established for the connection, such as the client certificate."""

    def peer(self) -> str:
        """Address of the other side, as gRPC writes it."""


class CallAuthorizer:
    """Authorizes the calls of one broker. `auto_creates`: Metadata creates the topics that it names; `turns`: for calls that name
    many topics; `free_producer_number`: see TopicAuthorizer; `on_stranger` is called for each call without valid
    credentials."""

    def __init__(
        self,
        authenticator: Authenticator,
        topics: TopicStore,
        clock: Clock,
        *,
        auto_creates: bool = False,
        turns: Turns | None = None,
        free_producer_number: Callable[[], int] | None = None,
        on_stranger: Callable[[], None] = lambda: None,
    ) -> None:
        self.generation = 0  # increases when credentials may have changed: earlier callers must authenticate again
        self.audit = Audit(clock)
        self._authenticator = authenticator
        self._topics = topics
        self._auto_creates = auto_creates
        self._turns = turns
        self._free_producer_number = free_producer_number
        self._on_stranger = on_stranger
        self._authorizers: dict[str, TopicAuthorizer] = {}

    def authenticate(self, context: CallContext) -> tuple[TopicAuthorizer, Caller]:
        """The authorizer of the caller's principal, and the Caller for sharing resources. Raises UnauthenticatedError."""
        principal = self._principal(context)
        authorizer = self._authorizers.get(principal.name)
        if authorizer is None:
            authorizer = TopicAuthorizer(principal, self._topics, self._free_producer_number, self.audit)
            self._authorizers[principal.name] = authorizer
        return authorizer, caller_of(principal, str(context.peer()))

    def _principal(self, context: CallContext) -> Principal:
        if self._authenticator.is_open:
            return ANYBODY
        try:
            return self._authenticator.principal(context.invocation_metadata() or (), context.auth_context())
        except UnauthenticatedError as error:
            self._on_stranger()
            self.audit.refused(host_of(context.peer()), error.message)
            raise

    def revoked(self, authorizer: TopicAuthorizer, context: CallContext) -> UnauthenticatedError | None:
        """The error for a call whose credentials are no longer those of `authorizer`'s principal; None while they are."""
        try:
            principal = self._authenticator.principal(context.invocation_metadata() or (), context.auth_context())
        except UnauthenticatedError as error:
            self.audit.refused(authorizer.principal, f"its stream from {context.peer()} ends, its credentials are revoked")
            return error
        if principal.name != authorizer.principal:
            self.audit.refused(authorizer.principal, f"its stream from {context.peer()} ends, its credentials are another's now")
            return UnauthenticatedError(
                f"these credentials are not those of principal '{authorizer.principal}' any more: connect again"
            )
        return None

    def refresh(self) -> None:
        """Applies the rights of the authenticator's new identities. A principal missing there loses all rights."""
        self.generation += 1
        identities = self._authenticator.identities
        if identities is None:
            return
        for name, authorizer in self._authorizers.items():
            principal = identities.principals.get(name)
            authorizer.replace(NOTHING if principal is None else principal.rights)

    async def call(
        self, method: str, authorizer: TopicAuthorizer, request: Any, response_type: type[Message], handle: Handle, peer: str
    ) -> Message:
        """Handles a unary call under its method's rule, and audits it. Raises ForbiddenError, and what `handle` raises.

        The request has been checked as received: it is well-formed and within its limits, without duplicates.
        """
        created = self._created_by_naming(request) if self._auto_creates and method == "Metadata" else ()
        if method not in CHANGES and not created:
            return await self._allowed(method, authorizer, request, response_type, handle)

        async def audited() -> Message:
            response = await self._allowed(method, authorizer, request, response_type, handle)
            actor = host_of(peer) if self._authenticator.identities is None else authorizer.principal
            known = changes(method, request, response, self._name_of) if method in CHANGES else created_topics(response, created)
            for change in known:
                self.audit.changed(actor, peer, change)
            return response

        # A caller that disconnects undoes neither the change nor its line in the audit trail.
        task = asyncio.create_task(audited())
        forget_end(task)
        return await asyncio.shield(task)

    async def _allowed(
        self, method: str, authorizer: TopicAuthorizer, request: Any, response_type: type[Message], handle: Handle
    ) -> Message:
        """The response to that part of the request that the caller has the rights for."""
        rule = METHOD_RULES[method]
        assert not isinstance(rule, Stream), "a stream asks TopicAuthorizer itself"
        if isinstance(rule, Somewhere):
            authorizer.require_somewhere(rule.right)
        if isinstance(rule, OneTopic):
            error = authorizer.refuse_name(rule.right, request.name)
            if error is not None:
                authorizer.note_refused(error)
                return response_type(result=topics_pb2.TopicResult(name=request.name, error=to_proto(error)))
        if isinstance(rule, PerTopic) and not authorizer.is_unlimited:
            return await self._per_topic(rule, authorizer, request, response_type, handle)
        return await handle(request)

    async def _per_topic(
        self, rule: PerTopic, authorizer: TopicAuthorizer, request: Any, response_type: type[Message], handle: Handle
    ) -> Message:
        response: Any
        if rule.is_list is not None and rule.is_list(request):
            response = await handle(request)
            _hide(getattr(response, rule.results), rule, authorizer)
        else:
            kept, refused = await self._split(rule, authorizer, request)
            # Without its refused entries, a request that named topics may mean "list all" to the handler.
            response = response_type() if rule.is_list is not None and rule.is_list(kept) else await handle(kept)
            if refused:
                _put_back(getattr(response, rule.results), refused)
        message: Message = response
        return message

    async def _split(self, rule: PerTopic, authorizer: TopicAuthorizer, request: Any) -> tuple[Any, dict[int, Message]]:
        """The request without refused entries (itself if none is), and the results of the refused entries by index."""
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
        error = _refused(rule, authorizer, topic)
        if error is None and isinstance(topic, str) and rule.creates and self._auto_creates and not self._topics.has(topic):
            return authorizer.refuse_name(Right.ADMIN, topic)
        return error

    def _created_by_naming(self, request: Any) -> Collection[str]:
        """Topics that the call would create."""
        return {name for name in request.topics if not self._topics.has(name)}

    def _name_of(self, topic_id: bytes) -> str:
        try:
            return self._topics.by_id(topic_id).name
        except UnknownTopicIdError:  # deleted meanwhile
            return topic_id.hex()


def caller_of(principal: Principal, peer: str) -> Caller:
    """The caller for sharing resources: its principal or, where all callers are the same principal, its connection."""
    return Caller(peer if principal in (ANYBODY, TRUSTED) else principal.name, peer)


def _put_back(results: Any, refused: dict[int, Message]) -> None:
    """Inserts the results of refused entries at their indexes."""
    answered = iter(list(results))
    merged = [refused[place] if place in refused else next(answered) for place in range(len(results) + len(refused))]
    del results[:]
    results.extend(merged)


def _hide(results: Any, rule: PerTopic, authorizer: TopicAuthorizer) -> None:
    """Removes topics that the caller may not see from a list of all."""
    assert rule.listed is not None
    hidden = (TopicAuthorizationFailedError, UnknownTopicIdError)
    seen = [result for result in results if not isinstance(_refused(rule, authorizer, rule.listed(result)), hidden)]
    if len(seen) != len(results):
        del results[:]
        results.extend(seen)


def _refused(rule: PerTopic, authorizer: TopicAuthorizer, topic: str | bytes) -> WireError | None:
    return authorizer.refuse_id(rule.right, topic) if isinstance(topic, bytes) else authorizer.refuse_name(rule.right, topic)
