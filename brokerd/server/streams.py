"""State shared by produce and fetch streams, and read by the service."""

from __future__ import annotations

import abc
import contextlib

import grpc

from brokerd.server.broker import BrokerParts
from brokerd.server.failures import ENDED, Trailer, internal
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.sharing import Caller

Context = grpc.aio.ServicerContext[bytes, bytes]

# A stream request that names more partitions waits for a turn, as all unary requests do. Smaller ones need none: a stream sends one
# at a time.
LARGE_PARTITIONS = 64
# Work on this many bytes at once waits for a turn too, since copying them blocks the loop for a millisecond or more.
LARGE_BYTES = 4_194_304


class StreamHandler(abc.ABC):
    """One client's stream, from start to end."""

    def __init__(self, broker: BrokerParts, context: Context, authorizer: TopicAuthorizer, caller: Caller) -> None:
        self.caller = caller
        self._broker = broker
        self.context = context
        self.authorizer = authorizer
        self._is_revoked = False
        self._is_over = False  # `run` has ended
        self._is_failed = False  # the call has been aborted with an error

    async def fail(self, code: grpc.StatusCode, details: str, trailer: Trailer = ()) -> None:
        """Ends the call with an error, unless another task has done so: gRPC accepts only one end. Raises grpc.aio.AbortError,
        which also ends the task that reads the stream."""
        if not self._is_failed:
            self._is_failed = True
            await self.context.abort(code, details, trailer)

    async def close(self, code: grpc.StatusCode, details: str, *, is_revoked: bool = False) -> None:
        """Ends the stream from outside of `run`, once its last responses are out. `is_revoked`: its credentials are no longer
        valid, so no further request is accepted. Raises as `fail`.
        """
        self._is_revoked |= is_revoked
        await self._finish()
        await self._abort(code, details)

    @abc.abstractmethod
    async def _finish(self) -> None:
        """Sends the last responses."""

    async def _send(self, data: bytes) -> None:
        """Writes a response; returns when gRPC has accepted it, which happens as the client reads. background.py disconnects a
        client that sends requests but does not read."""
        budget = self._broker.response_budget
        budget.begin_write(self, self.caller, len(data), now_ms=self._broker.clock.monotonic_ms())
        try:
            await self.context.write(data)
        finally:
            budget.end_write(self)

    async def _end_unexpectedly(self, what: str, error: Exception) -> None:
        """Logs why no more responses can be sent, and ends the call."""
        internal(what, error)
        with contextlib.suppress(*ENDED):  # from abort, or because the client is gone
            await self._abort(grpc.StatusCode.INTERNAL, "internal error: see the broker's log")

    async def _abort(self, code: grpc.StatusCode, details: str) -> None:
        """Ends the call unless `run` is over: gRPC may then be writing the call's end. Raises as `fail`."""
        if not self._is_over:
            await self.fail(code, details)
