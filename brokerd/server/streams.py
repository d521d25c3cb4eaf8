"""The state and the messages that produce and fetch streams share. The service and background.py read its public fields."""

from __future__ import annotations

from typing import cast

import grpc

from brokerd.server.broker import Broker
from brokerd.server.failures import Trailer
from brokerd.server.security.authenticator import caller_of
from brokerd.server.security.topic_authorizer import TopicAuthorizer

Context = grpc.aio.ServicerContext[bytes, bytes]


async def read_message(context: Context) -> bytes | None:
    """The next message's bytes; None when the client has ended its side. Cancelled when the client disconnects."""
    message = cast("object", await context.read())
    return message if isinstance(message, bytes) else None


class ClientStream:
    """One stream of one client, from its start to its end."""

    def __init__(self, broker: Broker, context: Context, authorizer: TopicAuthorizer) -> None:
        self._broker = broker
        self._context = context
        self._authorizer = authorizer
        self._is_large = True  # the last request, by its partitions; a first one may be
        self._is_revoked = False
        self._is_over = False  # it has ended by itself, or is gone
        self._is_failed = False  # gRPC has been given an error for its end
        self.peer = str(context.peer())  # the client's address, as gRPC names it while the call lasts
        self.caller = caller_of(authorizer.principal, self.peer)

    async def fail(self, code: grpc.StatusCode, details: str, trailer: Trailer = ()) -> None:
        """Ends the call with an error, unless another task does already: gRPC takes one end only. Raises grpc.aio.AbortError, which
        ends the task that reads the stream too.
        """
        if not self._is_failed:
            self._is_failed = True
            await self._context.abort(code, details, trailer)

    async def _abort(self, code: grpc.StatusCode, details: str) -> None:
        """Ends the call from outside of `run`, unless that is over: gRPC may be writing its end just now. Raises as `fail`."""
        if not self._is_over:
            await self.fail(code, details)
