"""The service's methods as gRPC calls them: bytes in, handler, bytes out. The only rules here apply to all calls: how many at once,
how long a request may take to arrive, and which methods a stopping broker still serves.

Every method is registered as a stream of requests, even unary ones, whose stream has one message. So gRPC assembles no message
until the code reads it, and unauthenticated callers are rejected before that.

Every method of the contract is in `METHODS` or is one of the two streams; a test keeps the table equal to the service. An exception
from a handler becomes a status here, so that nothing a client sends can end the event loop.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import sys
from collections.abc import Awaitable, Callable, Coroutine
from functools import cache, partial
from typing import Any, NamedTuple, cast

import grpc
from google.protobuf.message import Message

from brokerd.clock import stopwatch_ns
from brokerd.errors import BrokerdError, NotReadyError
from brokerd.server.admin import STOPPING
from brokerd.server.broker import BrokerParts
from brokerd.server.failures import Trailer, internal, malformed, status_of
from brokerd.server.handlers import (
    groups,
    list_offsets,
    metadata,
    topics,
    transaction_admin,
    transactions,
)
from brokerd.server.handlers.fetch import FetchHandler
from brokerd.server.handlers.produce import ProduceHandler
from brokerd.server.limits.disconnect import disconnect_unread
from brokerd.server.limits.response_budget import FREE_BYTES
from brokerd.server.metrics.counters import TOTAL
from brokerd.server.requests import Requests
from brokerd.server.security.authenticator import Callers
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.server.streams import Context
from brokerd.sharing import CALLER, Caller, Shares
from brokerd.wire.methods import UNARY, Unary

Handler = Callable[[BrokerParts, TopicAuthorizer, Any], Coroutine[Any, Any, Message]]


class Method(NamedTuple):
    """A unary method."""

    handle: Handler
    changes: bool = False  # the change and its audit line are completed even if the caller disconnects
    works_at_stop: bool = False


_PATIENCE_S = 60.0  # enough for 2 MiB over a slow line
_HALF_OPEN_MAX = 10_000
_STOPPING = "the broker is stopping: connect again"
_ACCEPTING_TASK = "AioServer._server_main_loop"
_WHO_DECODES = 2  # frames above _is_accepting: the error handler, then the decoding code
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


METHODS: dict[str, Method] = {
    "GetServerInfo": Method(metadata.server_info, works_at_stop=True),
    "Metadata": Method(metadata.handle),
    "FindCoordinator": Method(metadata.find_coordinator),
    "CreateTopics": Method(topics.create, changes=True),
    "DeleteTopics": Method(topics.delete, changes=True),
    "DescribeTopics": Method(metadata.describe),
    "CreatePartitions": Method(topics.create_partitions, changes=True),
    "AlterTopicConfigs": Method(topics.alter, changes=True),
    "DeleteRecords": Method(topics.delete_records, changes=True),
    "AlterPartitionReassignments": Method(topics.reassign, changes=True),
    "DrainNode": Method(topics.drain, changes=True),
    "ElectUncleanLeader": Method(topics.elect_unclean, changes=True),
    "ListOffsets": Method(list_offsets.handle),
    "CommitGroupOffsets": Method(groups.commit_group_offsets, changes=True),
    "FetchGroupOffsets": Method(groups.fetch_group_offsets),
    "ListGroups": Method(groups.list_groups),
    "DescribeGroup": Method(groups.describe_group),
    "DeleteGroup": Method(groups.delete_group, changes=True),
    "InitProducerId": Method(transactions.init_producer_id),
    "EndTransaction": Method(transactions.end_transaction, changes=True),
    "Heartbeat": Method(transactions.heartbeat),
    "ListTransactions": Method(transaction_admin.list_transactions),
    "DescribeTransaction": Method(transaction_admin.describe_transaction),
    "AbortTransaction": Method(transaction_admin.abort_transaction, changes=True),
    "FindHangingTransactions": Method(transaction_admin.find_hanging_transactions),
    "ForgetTransactionalId": Method(transaction_admin.forget_transactional_id, changes=True),
}


class BrokerService:
    """The methods of one broker, and its open streams."""

    def __init__(self, broker: BrokerParts, callers: Callers) -> None:
        self._broker = broker
        self._callers = callers
        self._requests = Requests(broker.config)
        self._streams: set[ProduceHandler | FetchHandler] = set()
        self._half_open = Shares(_HALF_OPEN_MAX)  # calls whose request has not arrived yet
        self._unsent = Shares(broker.config.max_fetch_bytes_in_flight)  # bytes of large responses that wait for room
        self._stream_shares = Shares(broker.config.max_streams)
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def open_stream_count(self) -> int:
        """Produce and fetch streams open now."""
        return len(self._streams)

    def method_handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The handlers to register with a gRPC server. Messages stay bytes: gRPC's (de)serializers are not used."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.stream_unary_rpc_method_handler(self._unary(UNARY[name])) for name in METHODS
        }
        handlers["Produce"] = grpc.stream_stream_rpc_method_handler(partial(self._serve, "Produce", ProduceHandler))
        handlers["Fetch"] = grpc.stream_stream_rpc_method_handler(partial(self._serve, "Fetch", FetchHandler))
        return handlers

    async def drain(self) -> None:
        """Returns once no unary call is in progress."""
        await self._idle.wait()

    async def close_streams(self) -> None:
        """Ends every open stream once its responses are out; a client that does not read delays only its own stream. If a client
        disconnects meanwhile, gRPC cancels the awaited call: that stream has ended, and the shutdown continues.
        """
        closing = [_ended(stream.close(grpc.StatusCode.UNAVAILABLE, _STOPPING)) for stream in self._streams]
        ends = await asyncio.gather(*closing, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):  # a cancellation is not one
                raise end

    async def end_revoked_streams(self) -> int:
        """Ends every stream opened with credentials that are no longer valid; returns how many. They accept no further request; a
        producer's pending responses go out first. On a stream that is not read, the end would wait behind responses, so its
        connection is closed."""
        revoked, ends = [], []
        for stream in self._streams:
            error = self._callers.revoked(stream.authorizer, stream.context)
            if error is not None:
                code, details, _ = status_of(error)
                revoked.append(stream)
                ends.append(stream.close(code, details, is_revoked=True))
        await asyncio.gather(*[_ended(end) for end in ends])
        await disconnect_unread({stream.caller.peer for stream in revoked if self._broker.response_budget.is_writing(stream)})
        return len(ends)

    def _unary(self, method: Unary) -> Callable[[object, Context], Awaitable[bytes]]:
        async def call(_requests: object, context: Context) -> bytes:
            self._broker.turns.arrived += 1
            try:
                generation = self._callers.generation
                authorizer, caller = self._callers.authenticate(context)
                CALLER.set(caller)
                with self._half_open.hold(caller.owner, "calls are waiting for their requests"):
                    data = await read_request(context, method.request.DESCRIPTOR.name, _PATIENCE_S)
                await self._broker.turns.take(caller)
                if generation != self._callers.generation:
                    authorizer, _ = self._callers.authenticate(context)  # credentials may have changed while the request arrived
                response = await self._answer(method, authorizer, data)
                if len(response) > FREE_BYTES:
                    await self._charge(context, caller, len(response))
                return response
            except grpc.aio.BaseError:
                raise  # the client is gone
            except Exception as error:
                await context.abort(*self._counted(method.name, error))

        return call

    async def _charge(self, context: Context, caller: Caller, size_bytes: int) -> None:
        """Counts a large response against max.fetch.bytes.in.flight, once there is room, until gRPC has accepted it or the client
        is gone. Responses that wait are in memory too: beyond as many bytes again, raises ResourceExhaustedError."""
        budget = self._broker.response_budget
        unsent = self._unsent.hold(caller.owner, "bytes of responses wait to be sent", units=size_bytes)
        with contextlib.nullcontext() if budget.fits(caller.owner, size_bytes) else unsent:
            await budget.take(caller, size_bytes)
        budget.begin_write(context, caller, size_bytes, now_ms=self._broker.clock.monotonic_ms())

        def end(_context: Context) -> None:
            budget.end_write(context)
            budget.add(caller.owner, -size_bytes)

        context.add_done_callback(cast("Any", end))  # its stub takes no function

    async def _answer(self, method: Unary, authorizer: TopicAuthorizer, data: bytes) -> bytes:
        """The response's bytes. The call counts as in progress from here: a shutdown does not wait for half-open ones."""
        started_ns = stopwatch_ns()
        self._calls += 1
        self._idle.clear()
        try:
            served = METHODS[method.name]
            if self._broker.is_stopping and not served.works_at_stop:
                raise NotReadyError(STOPPING)
            request = self._requests.parse(method.name, data)
            work = partial(served.handle, self._broker, authorizer, request)
            response = await (self._broker.changes.run(work, len(data)) if served.changes else work())
            return response.SerializeToString()
        finally:
            self._broker.counters.request_time.labels(method.name, TOTAL).observe((stopwatch_ns() - started_ns) / 1e9)
            self._calls -= 1
            if self._calls == 0:
                self._idle.set()

    async def _serve(self, name: str, kind: type[ProduceHandler | FetchHandler], _requests: object, context: Context) -> None:
        self._broker.turns.arrived += 1
        fail: Callable[..., Awaitable[None]] = context.abort
        try:
            authorizer, caller = self._callers.authenticate(context)
            if self._broker.is_stopping:
                raise NotReadyError(STOPPING)
            with self._stream_shares.hold(caller.owner, "streams are open", ", and max.streams allows no more"):
                stream = kind(self._broker, context, authorizer, caller)
                fail = stream.fail
                self._streams.add(stream)
                try:
                    await stream.run()
                finally:
                    self._streams.discard(stream)
        except grpc.aio.BaseError:
            raise  # the stream was ended by abort, or the client is gone
        except Exception as error:
            await fail(*self._counted(name, error))

    def _counted(self, name: str, error: Exception) -> tuple[grpc.StatusCode, str, Trailer]:
        """Counts the error of a call, and returns its status."""
        code, details, trailer = status_of(error if isinstance(error, BrokerdError) else internal(name, error))
        self._broker.counters.request_errors.labels(name, code.name).inc()
        return code, details, trailer


async def read_request(context: Context, what: str, patience_s: float) -> bytes:
    """The single message of a unary call. Raises MalformedError."""
    try:
        async with asyncio.timeout(patience_s):
            data = cast("object", await context.read())
    except TimeoutError:
        raise malformed(what, f"did not arrive within {patience_s:.0f} s") from None
    if not isinstance(data, bytes):
        raise malformed(what, "did not arrive: the call ended first")
    return data


async def _ended(end: Awaitable[None]) -> None:
    with contextlib.suppress(grpc.aio.BaseError):  # from abort, or because the client is gone
        await end


@cache
def accept_undecodable_names() -> None:
    """Keeps gRPC serving in this process when a client calls a method whose name is not UTF-8; idempotent.

    grpc.aio decodes the name strictly, inside the one task that accepts calls. The exception ends that task, and with it the whole
    server: a single packet from an unauthenticated client suffices. (Since grpcio 1.84; before, gRPC refused only that call.) The
    decoding is in C, so the only hook is Python's error handler "strict". The handler installed here replaces such a name with one
    that does not exist if gRPC's accepting task is decoding, and raises as before for all other code.
    """
    raise_error = codecs.lookup_error("strict")

    def strict(error: UnicodeError) -> tuple[str | bytes, int]:
        if isinstance(error, UnicodeDecodeError) and _is_accepting():
            return _REPLACEMENT, error.end
        return raise_error(error)

    codecs.register_error("strict", strict)


def _is_accepting() -> bool:
    """True if gRPC's accepting task is running, with no Python code in it but asyncio's own."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return False
    if task is None or getattr(task.get_coro(), "__qualname__", None) != _ACCEPTING_TASK:
        return False
    frame = sys._getframe(_WHO_DECODES)  # noqa: SLF001 - there is no public way
    return str(frame.f_globals.get("__name__")).startswith("asyncio.")
