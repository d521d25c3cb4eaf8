"""From a gRPC call to what its caller may do: the one place where both are known. Rules are in the files beside it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

from google.protobuf.message import Message

from brokerd.clock import Clock
from brokerd.errors import TopicAuthorizationFailedError, UnknownTopicIdError
from brokerd.server.security.access import Access, Topics
from brokerd.server.security.audit import Audit
from brokerd.server.security.audited_changes import changes
from brokerd.server.security.auth_file import Principal
from brokerd.server.security.authenticator import Authenticator, ForbiddenError, UnauthenticatedError
from brokerd.server.security.guard import Guard
from brokerd.server.security.permissions import NOTHING
from brokerd.server.security.producer_owners import ProducerOwners
from brokerd.server.security.rules import RULES

logger = logging.getLogger(__name__)

_REPORT_INTERVAL_MS = 10_000


class CallContext(Protocol):
    """What a call tells of its caller; a gRPC context has it."""

    def invocation_metadata(self) -> Iterable[Any] | None:
        """Headers."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """What TLS found out about the connection."""

    def peer(self) -> str:
        """Address of the other side."""


class Callers:
    """Everybody who calls one broker."""

    def __init__(
        self, authenticator: Authenticator, topics: Topics, guard: Guard, clock: Clock, free_producer_id: Callable[[], int]
    ) -> None:
        self.refused_count = 0  # calls of strangers
        self.generation = 0  # rises when credentials may have changed: what was known of a caller before is to be asked again
        self.audit = Audit(clock)
        self._authenticator = authenticator
        self._topics = topics
        self._guard = guard
        self._clock = clock
        self._accesses: dict[str, Access] = {}
        self._owners = ProducerOwners(free_producer_id, is_open=authenticator.is_open)
        self._unreported_count = 0
        self._next_report_ms = clock.monotonic_ms()

    def access(self, context: CallContext) -> Access:
        """What the caller may do. Raises UnauthenticatedError."""
        if self._authenticator.is_open:
            return self._access_of(self._authenticator.principal(()))
        try:
            principal = self._authenticator.principal(context.invocation_metadata() or (), context.auth_context())
        except UnauthenticatedError as error:
            self._count_refused(context.peer())
            self.audit.refused(host_of(context.peer()), error.message)
            raise
        return self._access_of(principal)

    def revoked(self, access: Access, context: CallContext) -> UnauthenticatedError | None:
        """Why a call that `access` was given to is not its caller's any more; None = it is still."""
        try:
            principal = self._authenticator.principal(context.invocation_metadata() or (), context.auth_context())
        except UnauthenticatedError as error:
            self.audit.refused(access.principal, f"its stream from {context.peer()} ends, its credentials are revoked")
            return error
        if principal.name != access.principal:
            self.audit.refused(access.principal, f"its stream from {context.peer()} ends, its credentials are another's now")
            return UnauthenticatedError(
                f"these credentials are not those of principal '{access.principal}' any more: connect again"
            )
        return None

    def refresh(self) -> None:
        """The authenticator has other identities: who is gone from them may do nothing any more."""
        self.generation += 1
        identities = self._authenticator.identities
        if identities is None:
            return
        for name, access in self._accesses.items():
            principal = identities.principals.get(name)
            access.replace(NOTHING if principal is None else principal.permissions)

    async def call(
        self,
        method: str,
        access: Access,
        request: Any,
        response_type: type[Message],
        handle: Callable[[Any], Awaitable[Message]],
        peer: str,
    ) -> Message:
        """A unary call under its rule. Raises ForbiddenError, and what `handle` raises."""
        try:
            response = await self._guard.call(RULES[method], access, request, response_type, handle)
        except ForbiddenError as error:
            self.audit.refused(access.principal, error.message)
            raise
        who = host_of(peer) if self._authenticator.identities is None else access.principal
        for change in changes(method, request, response, self._name_of):
            self.audit.changed(who, peer, change)
        return response

    def _name_of(self, topic_id: bytes) -> str:
        try:
            return self._topics.by_id(topic_id).name
        except UnknownTopicIdError:  # deleted meanwhile
            return topic_id.hex()

    def _refused(self, principal: str, error: TopicAuthorizationFailedError) -> None:
        self.audit.refused(principal, error.message)

    def _access_of(self, principal: Principal) -> Access:
        access = self._accesses.get(principal.name)
        if access is None:
            access = self._accesses[principal.name] = Access(principal, self._topics, self._owners, self._refused)
        return access

    def _count_refused(self, peer: str) -> None:
        """One line in ten seconds at most: a client with a wrong token tries again and again."""
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
    """A peer as gRPC names it, without the port: one host's connections are one stranger."""
    return peer.rpartition(":")[0] or peer
