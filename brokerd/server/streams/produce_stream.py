"""One produce stream: hello, then requests in order, answered in order. handlers/produce.py processes a request.

The stream's own task goes one way with each message: read, decode, decide, append, and queue the response. A second one, which
lives while responses are queued, waits for the first of them to be durable and writes it. A stream is not read while one of its
budgets is used up, so gRPC's flow control throttles the client:

    WAITING_REQUESTS_MAX    requests that wait for their response
    _WAITING_BYTES_MAX      their bytes
    max.in.flight.bytes     requests read and not yet appended, over all streams
    log.max.dirty.bytes     appended and not yet on disk, over all logs

Beyond twice max.in.flight.bytes (many streams were reading when the budget ran out) the requests of those who have most of it are
refused with RESOURCE_EXHAUSTED.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import cast

import grpc

from brokerd.clock import stopwatch_ns
from brokerd.errors import BrokerdError, ErrorCode, ResourceExhaustedError
from brokerd.server.broker import Broker
from brokerd.server.failures import StreamFencedError, internal, malformed
from brokerd.server.fields import TOPIC_ID_BYTES
from brokerd.server.handlers.produce import WAITING_REQUESTS_MAX, PendingResponse, Produce, decode, encode, handle, refuse
from brokerd.server.limits.fence import Instance
from brokerd.server.metrics.counters import Phase
from brokerd.server.security.authenticator import ForbiddenError
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.server.security.topic_rights import Right
from brokerd.server.streams.client_stream import ClientStream
from brokerd.server.streams.messages import Context
from brokerd.server.tasks import ENDED
from brokerd.server.waiting.turns import LARGE_BYTES, LARGE_PARTITIONS
from brokerd.wire.v1 import produce_pb2

_WAITING_BYTES_MAX = 67_108_864
_HARD_LIMIT = 2  # times max.in.flight.bytes
_RETRY_AFTER_MS = 100
_LAST_RESPONSES_S = 1.0
_CLIENT_ID_MAX_CHARACTERS = 255


class ProduceStream(ClientStream):
    """Serves one stream from hello to its end."""

    def __init__(self, broker: Broker, context: Context, authorizer: TopicAuthorizer) -> None:
        super().__init__(broker, context, authorizer)
        self._instance: Instance | None = None  # from the hello on
        self._incarnation = 0
        self._responses: deque[PendingResponse] = deque()
        self._waiting_bytes = 0
        self._writer: asyncio.Task[None] | None = None
        self._answered: asyncio.Future[None] | None = None  # done when the next response is written

    async def run(self) -> None:
        """Returns when the client has ended its side and everything is answered. Raises BrokerdError to end the stream."""
        try:
            failure = await self._read_all()
            while self._responses:
                await self._next_response()
            if failure is not None:
                raise failure
        finally:
            self._end()

    async def close(self, code: grpc.StatusCode, details: str) -> None:
        """Ends the stream from outside, once its responses are out."""
        while self._responses:
            await self._next_response()
        await self._abort(code, details)

    async def revoke(self, code: grpc.StatusCode, details: str) -> None:
        """Ends the stream of a caller whose credentials were revoked: no further request is accepted. Requests already accepted
        are answered first, as far as the client reads."""
        self._is_revoked = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_RESPONSES_S):
                while self._responses:
                    await self._next_response()
        await self._abort(code, details)

    async def _read_all(self) -> BrokerdError | None:
        """Processes requests until the client's end, or until one that ends the stream; earlier ones are answered first."""
        try:
            while True:
                await self._wait_for_room()
                data = cast("object", await self._context.read())
                if not isinstance(data, bytes):  # the end
                    return None
                self._broker.last_requests.completed(self.peer)
                self._broker.in_flight.add(self.caller.owner, len(data))
                try:
                    await self._process(data)
                finally:
                    self._broker.in_flight.add(self.caller.owner, -len(data))
        except BrokerdError as error:
            return error

    async def _wait_for_room(self) -> None:
        while self._responses and (len(self._responses) >= WAITING_REQUESTS_MAX or self._waiting_bytes >= _WAITING_BYTES_MAX):
            await self._next_response()
        for budget in (self._broker.in_flight, self._broker.dirty):
            if not budget.is_free:
                await budget.take(self.caller)

    async def _process(self, data: bytes) -> None:
        principal, turns = self._authorizer.principal, self._broker.turns
        if self._is_large or len(data) >= LARGE_BYTES:
            await turns.take(principal, self.peer)
        elif principal != turns.last_principal:
            turns.note(principal)
        received_ns = stopwatch_ns()
        request = decode(data, partitions_max=self._broker.config.max_partitions_per_request)
        self._is_large = len(request.partitions) > LARGE_PARTITIONS
        instance = self._instance
        if instance is None:
            instance = self._hello(request.head)
        elif request.head.HasField("hello"):
            raise malformed("hello", "must be in a stream's first message only")
        if request.head.HasField("hello") and not request.partitions:
            return
        if self._broker.in_flight.is_excessive(self.caller.owner, _HARD_LIMIT):
            response = self._refuse_overload(request)
        else:
            dirty = self._broker.dirty
            if not dirty.is_free:
                await dirty.take(self.caller)
            # Checked after the last await before the append: a newer stream may have said hello while this one waited.
            if self._is_revoked:
                return
            if instance.incarnation != self._incarnation:
                raise StreamFencedError("a newer stream of this producer instance has taken over: this one accepts nothing more")
            response = handle(self._broker, self._authorizer, self.caller, request)
        self._queue(response, received_ns)

    def _queue(self, response: PendingResponse | None, received_ns: int) -> None:
        """Takes the response of a request that was processed; None if its client wants none."""
        appended_ns = stopwatch_ns()
        if response is None:
            self._broker.counters.produce_time[Phase.LOCAL].observe_ns(appended_ns - received_ns)
            return
        response.received_ns, response.appended_ns = received_ns, appended_ns
        self._responses.append(response)
        self._waiting_bytes += response.size_bytes
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write_responses())

    def _hello(self, head: produce_pb2.ProduceRequest) -> Instance:
        if not head.HasField("hello"):
            raise malformed("hello", "is missing in the stream's first message")
        hello = head.hello
        if len(hello.instance_id) != TOPIC_ID_BYTES:
            raise malformed("hello.instance_id", f"has {len(hello.instance_id)} bytes, but must have {TOPIC_ID_BYTES}")
        if hello.incarnation < 1:
            raise malformed("hello.incarnation", f"is {hello.incarnation}, but must be at least 1")
        if len(hello.client_id) > _CLIENT_ID_MAX_CHARACTERS:
            raise malformed(
                "hello.client_id", f"has {len(hello.client_id)} characters, at most {_CLIENT_ID_MAX_CHARACTERS} are allowed"
            )
        if not self._authorizer.has_somewhere(Right.WRITE):
            raise ForbiddenError(
                f"principal '{self._authorizer.principal}' may write no topic at all: the broker's auth.file says who may"
            )
        now_ms = self._broker.clock.monotonic_ms()
        self._instance = self._broker.fence.hello(self._authorizer.principal, hello.instance_id, hello.incarnation, now_ms=now_ms)
        self._incarnation = hello.incarnation
        return self._instance

    def _refuse_overload(self, request: Produce) -> PendingResponse | None:
        self._broker.counters.failed_produce[ErrorCode.RESOURCE_EXHAUSTED] += 1
        used_bytes = self._broker.in_flight.used
        return refuse(
            request,
            ResourceExhaustedError(
                f"{used_bytes} bytes of requests are in memory, more than twice max.in.flight.bytes: try again later",
                retry_after_ms=_RETRY_AFTER_MS,
            ),
        )

    async def _write_responses(self) -> None:
        """Writes the queued responses, each as soon as it and all before it may be."""
        try:
            while self._responses:
                response = self._responses[0]
                operation = response.operation
                if operation is not None and operation.completion is None:
                    await operation.settled
                ready_ns = stopwatch_ns()
                await self._context.write(encode(response))
                self._responses.popleft()
                self._waiting_bytes -= response.size_bytes
                self._count_time(response, ready_ns)
                self._wake()
        except ENDED:
            self._drop_responses()  # the client is gone; reading will report it too
        except Exception as error:
            self._drop_responses()
            internal("responses to a produce stream", error)
            with contextlib.suppress(*ENDED):  # abort raises too
                await self._abort(grpc.StatusCode.INTERNAL, "internal error: see the broker's log")
        finally:
            self._writer = None

    def _count_time(self, response: PendingResponse, ready_ns: int) -> None:
        now_ns = stopwatch_ns()
        times = self._broker.counters.produce_time
        times[Phase.LOCAL].observe_ns(response.appended_ns - response.received_ns)
        times[Phase.REMOTE].observe_ns(ready_ns - response.appended_ns)
        times[Phase.RESPONSE_SEND].observe_ns(now_ns - ready_ns)
        times[Phase.TOTAL].observe_ns(now_ns - response.received_ns)

    async def _next_response(self) -> None:
        if self._answered is None:
            self._answered = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._answered)

    def _wake(self) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered.set_result(None)

    def _drop_responses(self) -> None:
        for response in self._responses:
            if response.operation is not None:
                response.operation.cancel()
        self._responses.clear()
        self._wake()

    def _end(self) -> None:
        self._is_over = True
        if self._instance is not None:
            self._broker.fence.goodbye(self._instance, now_ms=self._broker.clock.monotonic_ms())
        if self._writer is not None:
            self._writer.cancel()
        self._drop_responses()
