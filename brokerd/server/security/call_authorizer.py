"""Finds the caller of a gRPC call and what it may do: the one place that knows both. The rules are in the files beside it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from google.protobuf.message import Message

from brokerd.clock import Clock
from brokerd.errors import UnknownTopicIdError, WireError
from brokerd.server.security.audit import Audit
from brokerd.server.security.audited_changes import CHANGES, changes, created_topics
from brokerd.server.security.auth_file import Principal
from brokerd.server.security.authenticator import ANYBODY, Authenticator, ForbiddenError, UnauthenticatedError
from brokerd.server.security.method_rules import METHOD_RULES
from brokerd.server.security.producer_owners import ProducerOwners
from brokerd.server.security.request_filter import RequestFilter
from brokerd.server.security.topic_authorizer import TopicAuthorizer, Topics
from brokerd.server.security.topic_rights import NOTHING
from brokerd.server.tasks import forget_end

logger = logging.getLogger(__name__)

_REPORT_INTERVAL_MS = 10_000


class CallContext(Protocol):
    """The parts of a gRPC context that identify the caller."""

    def invocation_metadata(self) -> Iterable[Any] | None:
        """The call's headers."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Properties that TLS has established for the connection, such as the client certificate."""

    def peer(self) -> str:
        """Address of the other side, as gRPC writes it."""


class CallAuthorizer:
    """Authenticates the calls of one broker, gives each caller its authorizer, and writes the audit trail."""

    def __init__(
        self,
        authenticator: Authenticator,
        topics: Topics,
        request_filter: RequestFilter,
        clock: Clock,
        free_producer_id: Callable[[], int],
    ) -> None:
        self.refused_count = 0  # calls of strangers
        self.generation = 0  # rises when credentials may have changed: callers authenticated before must be again
        self.audit = Audit(clock)
        self._authenticator = authenticator
        self._topics = topics
        self._request_filter = request_filter
        self._clock = clock
        self._authorizers: dict[str, TopicAuthorizer] = {}
        self._owners = ProducerOwners(free_producer_id, is_open=authenticator.is_open)
        self._unreported_count = 0
        self._next_report_ms = clock.monotonic_ms()

    def authenticate(self, context: CallContext) -> TopicAuthorizer:
        """The authorizer of the caller's principal. Raises UnauthenticatedError."""
        if self._authenticator.is_open:
            return self._authorizer_of(ANYBODY)
        try:
            principal = self._authenticator.principal(context.invocation_metadata() or (), context.auth_context())
        except UnauthenticatedError as error:
            self._count_refused(context.peer())
            self.audit.refused(host_of(context.peer()), error.message)
            raise
        return self._authorizer_of(principal)

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
        """Applies the rights of the authenticator's new identities. A principal that is no longer among them loses all rights."""
        self.generation += 1
        identities = self._authenticator.identities
        if identities is None:
            return
        for name, authorizer in self._authorizers.items():
            principal = identities.principals.get(name)
            authorizer.replace(NOTHING if principal is None else principal.rights)

    async def call(
        self,
        method: str,
        authorizer: TopicAuthorizer,
        request: Any,
        response_type: type[Message],
        handle: Callable[[Any], Awaitable[Message]],
        peer: str,
    ) -> Message:
        """Handles a unary call under its method's rule, and audits it. Raises ForbiddenError, and what `handle` raises."""
        created = self._created_by_naming(method, request)

        async def audited() -> Message:
            try:
                response = await self._request_filter.call(METHOD_RULES[method], authorizer, request, response_type, handle)
            except ForbiddenError as error:
                self.audit.refused(authorizer.principal, error.message)
                raise
            actor = host_of(peer) if self._authenticator.identities is None else authorizer.principal
            known = changes(method, request, response, self._name_of) if method in CHANGES else created_topics(response, created)
            for change in known:
                self.audit.changed(actor, peer, change)
            return response

        if method not in CHANGES and not created:
            return await audited()
        # A caller that goes does not take back what it has asked for, nor the line about it.
        task = asyncio.create_task(audited())
        forget_end(task)
        return await asyncio.shield(task)

    def _created_by_naming(self, method: str, request: Any) -> Collection[str]:
        """Topics that the call creates, if it may."""
        if method != "Metadata" or not self._request_filter.auto_creates:
            return ()
        return {name for name in request.topics if not self._topics.has(name)}

    def _name_of(self, topic_id: bytes) -> str:
        try:
            return self._topics.by_id(topic_id).name
        except UnknownTopicIdError:  # deleted meanwhile
            return topic_id.hex()

    def _refused(self, principal: str, error: WireError) -> None:
        self.audit.refused(principal, error.message)

    def _authorizer_of(self, principal: Principal) -> TopicAuthorizer:
        authorizer = self._authorizers.get(principal.name)
        if authorizer is None:
            authorizer = self._authorizers[principal.name] = TopicAuthorizer(principal, self._topics, self._owners, self._refused)
        return authorizer

    def _count_refused(self, peer: str) -> None:
        """Logs one line in ten seconds at most: a client with a wrong token retries for ever."""
        self.refused_count += 1
        self._unreported_count += 1
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_report_ms:
            logger.warning(
                "refused %d calls of callers that did not show who they are, the last from %s", self._unreported_count, peer
            )
            self._unreported_count = 0
            self._next_report_ms = now_ms + _REPORT_INTERVAL_MS


def host_of(peer: str) -> str:
    """The host of a peer as gRPC writes it: all connections of one host count as one stranger."""
    return peer.rpartition(":")[0] or peer
