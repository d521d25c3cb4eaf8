"""One produce stream: hello, then requests in order, answered in order. handlers/produce.py processes a request.

The stream's own task reads and appends; a second, short-lived one writes responses while any are ready. A stream is not read
while one of its budgets is used up, so gRPC's flow control throttles the client:

    WAITING_REQUESTS_MAX    requests that wait for their response
    _WAITING_BYTES_MAX      their bytes
    max.in.flight.bytes     requests read and not yet appended, over all streams
    log.max.dirty.bytes     appended and not yet on disk, over all logs

Beyond twice max.in.flight.bytes (many streams were reading when the budget ran out) a request is refused with
RESOURCE_EXHAUSTED.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

import grpc

from brokerd.clock import stopwatch_ns
from brokerd.errors import BrokerdError, ErrorCode, ResourceExhaustedError
from brokerd.server.broker import Broker
from brokerd.server.failures import StreamFencedError, malformed
from brokerd.server.fields import TOPIC_ID_BYTES
from brokerd.server.handlers.produce import WAITING_REQUESTS_MAX, PendingResponse, Produce, decode, handle, refuse
from brokerd.server.limits.memory_guard import MESSAGE_BYTES
from brokerd.server.metrics.counters import Phase
from brokerd.server.security.authenticator import ForbiddenError
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.server.security.topic_rights import Right
from brokerd.server.streams.messages import Context, read_message
from brokerd.server.tasks import look_at_end
from brokerd.server.waiting.turns import LARGE_PARTITIONS
from brokerd.wire.v1 import produce_pb2

_WAITING_BYTES_MAX = 67_108_864
_HARD_LIMIT = 2  # times max.in.flight.bytes
_RETRY_AFTER_MS = 100
_LAST_RESPONSES_S = 1.0
_CLIENT_ID_MAX_CHARACTERS = 255


class ProduceStream:
    """Serves one stream from hello to its end."""

    def __init__(self, broker: Broker, context: Context, authorizer: TopicAuthorizer) -> None:
        self._broker = broker
        self._context = context
        self.peer = str(context.peer())  # the client's address, as gRPC names it while the call lasts
        self.is_half_open = True  # until the first message has arrived
        self.read_bytes = 0  # of requests, and MESSAGE_BYTES for each; the service takes them off
        self._authorizer = authorizer
        self._is_large = True  # the last request, by its partitions; a first one may be
        self._instance_id = b""
        self._incarnation = 0
        self._responses: deque[PendingResponse] = deque()
        self._is_revoked = False
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
        await self._context.abort(code, details)

    async def revoke(self, code: grpc.StatusCode, details: str) -> None:
        """Ends the stream of a caller whose credentials were revoked: no further request is accepted. Requests already accepted
        are answered first, as far as the client reads."""
        self._is_revoked = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_RESPONSES_S):
                while self._responses:
                    await self._next_response()
        await self._context.abort(code, details)

    async def _read_all(self) -> BrokerdError | None:
        """Processes requests until the client's end, or until one that ends the stream; earlier ones are answered first."""
        try:
            while True:
                await self._wait_for_room()
                data = await read_message(self._context)
                if data is None:
                    return None
                self.is_half_open = False
                self.read_bytes += len(data) + MESSAGE_BYTES
                self._broker.in_flight.add(len(data))
                try:
                    await self._process(data)
                finally:
                    self._broker.in_flight.add(-len(data))
        except BrokerdError as error:
            return error

    async def _wait_for_room(self) -> None:
        while self._responses and (len(self._responses) >= WAITING_REQUESTS_MAX or self._waiting_bytes >= _WAITING_BYTES_MAX):
            await self._next_response()
        if self._broker.in_flight.is_used_up:
            await self._broker.in_flight.wait_for_room()
        if self._broker.replicas.dirty.is_used_up:
            await self._broker.replicas.dirty.wait_for_room()

    async def _process(self, data: bytes) -> None:
        if self._is_large:
            await self._broker.turns.take(self._authorizer.principal, self.peer)
        else:
            self._broker.turns.note(self._authorizer.principal)
        received_ns = stopwatch_ns()
        request = decode(data, partitions_max=self._broker.config.max_partitions_per_request)
        self._is_large = len(request.partitions) > LARGE_PARTITIONS
        if self._incarnation == 0:
            self._hello(request.head)
        elif request.head.HasField("hello"):
            raise malformed("hello", "must be in a stream's first message only")
        if request.head.HasField("hello") and not request.partitions:
            return
        response = self._refuse_overload(request)
        if response is None:
            dirty = self._broker.replicas.dirty
            if dirty.is_used_up:
                await dirty.wait_for_room()
            # Checked after the last await before the append: a newer stream may have said hello while this one waited.
            if self._is_revoked:
                return
            if not self._broker.fence.is_current(self._authorizer.principal, self._instance_id, self._incarnation):
                raise StreamFencedError("a newer stream of this producer instance has taken over: this one accepts nothing more")
            response = handle(self._broker, self._authorizer, request, on_ready=self._write_responses)
        appended_ns = stopwatch_ns()
        self._broker.counters.produce_time[Phase.LOCAL].observe_ns(appended_ns - received_ns)
        if response is not None:
            response.received_ns, response.appended_ns = received_ns, appended_ns
            self._responses.append(response)
            self._waiting_bytes += response.size_bytes
            self._write_responses()

    def _hello(self, head: produce_pb2.ProduceRequest) -> None:
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
        self._broker.fence.hello(self._authorizer.principal, hello.instance_id, hello.incarnation, now_ms=now_ms)
        self._instance_id = hello.instance_id
        self._incarnation = hello.incarnation

    def _refuse_overload(self, request: Produce) -> PendingResponse | None:
        in_flight = self._broker.in_flight
        if in_flight.used_bytes <= _HARD_LIMIT * in_flight.limit_bytes:
            return None
        self._broker.counters.failed_produce[ErrorCode.RESOURCE_EXHAUSTED] += 1
        return refuse(
            request,
            ResourceExhaustedError(
                f"{in_flight.used_bytes} bytes of requests are in memory, more than twice max.in.flight.bytes: try again later",
                retry_after_ms=_RETRY_AFTER_MS,
            ),
        )

    def _write_responses(self) -> None:
        """Starts writing the responses that are ready at the head of the queue, unless that is in progress."""
        if self._writer is None and self._responses and self._responses[0].is_ready:
            self._writer = asyncio.get_running_loop().create_task(self._write_ready())
            look_at_end(self._writer, "responses to a produce stream")

    async def _write_ready(self) -> None:
        try:
            while self._responses and self._responses[0].is_ready:
                ready_ns = stopwatch_ns()
                await self._context.write(self._responses[0].encode())
                response = self._responses.popleft()
                self._waiting_bytes -= response.size_bytes
                self._count_time(response, ready_ns)
                self._wake()
        except grpc.aio.BaseError:
            self._drop_responses()  # the client is gone; reading will report it too
        finally:
            self._writer = None

    def _count_time(self, response: PendingResponse, ready_ns: int) -> None:
        now_ns = stopwatch_ns()
        times = self._broker.counters.produce_time
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
            response.cancel()
        self._responses.clear()
        self._wake()

    def _end(self) -> None:
        if self._incarnation:
            now_ms = self._broker.clock.monotonic_ms()
            self._broker.fence.goodbye(self._authorizer.principal, self._instance_id, now_ms=now_ms)
        if self._writer is not None:
            self._writer.cancel()
        self._drop_responses()
