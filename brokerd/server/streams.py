"""The state that produce and fetch streams share. The service reads its public fields."""

from __future__ import annotations

import grpc

from brokerd.server.broker import Broker
from brokerd.server.failures import Trailer
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.sharing import Caller

Context = grpc.aio.ServicerContext[bytes, bytes]

# A request on a stream that names more partitions takes a turn, as all unary ones do; smaller ones pass, one per stream at a
# time.
LARGE_PARTITIONS = 64
# So does work on so many bytes at once: copying them holds the loop for a millisecond or more.
LARGE_BYTES = 4_194_304


class ClientStream:
    """One stream of one client, from its start to its end."""

    def __init__(self, broker: Broker, context: Context, authorizer: TopicAuthorizer, caller: Caller) -> None:
        self.caller = caller
        self._broker = broker
        self.context = context
        self.authorizer = authorizer
        self._is_revoked = False
        self._is_over = False  # it has ended by itself, or is gone
        self._is_failed = False  # gRPC has been given an error for its end

    async def fail(self, code: grpc.StatusCode, details: str, trailer: Trailer = ()) -> None:
        """Ends the call with an error, unless another task does already: gRPC takes one end only. Raises grpc.aio.AbortError, which
        ends the task that reads the stream too.
        """
        if not self._is_failed:
            self._is_failed = True
            await self.context.abort(code, details, trailer)

    async def _abort(self, code: grpc.StatusCode, details: str) -> None:
        """Ends the call from outside of `run`, unless that is over: gRPC may be writing its end just now. Raises as `fail`."""
        if not self._is_over:
            await self.fail(code, details)
