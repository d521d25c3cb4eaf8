"""The service's methods as gRPC calls them: bytes in, handler, bytes out. No rule of the broker lives here.

To gRPC every method reads a stream, even the unary ones, though of one message. So gRPC assembles no message before the handler
asks for one, and a stranger is rejected before that.

Every method of the contract is in `UNARY_HANDLERS`, in `CALLER_HANDLERS` or one of the two streams; a test keeps the tables equal
to the service.
Unsupported methods return UNIMPLEMENTED with one sentence. Whatever a handler raises becomes a status here, so that nothing a
client sends can end the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NoReturn

import grpc
from google.protobuf.message import Message

from brokerd.clock import stopwatch_ns
from brokerd.errors import BrokerdError, ResourceExhaustedError
from brokerd.server.broker import Broker
from brokerd.server.failures import NotServedError, Trailer, internal, malformed, status_of
from brokerd.server.handlers import (
    abort_transaction,
    alter_topic_configs,
    commit_group_offsets,
    create_partitions,
    create_topics,
    delete_group,
    delete_records,
    delete_topics,
    describe_group,
    describe_topics,
    describe_transaction,
    end_transaction,
    fetch_group_offsets,
    find_hanging_transactions,
    forget_transactional_id,
    heartbeat,
    init_producer_id,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    server_info,
)
from brokerd.server.limits.callers import set_caller
from brokerd.server.requests import Requests
from brokerd.server.security.authenticator import caller_of
from brokerd.server.security.call_authorizer import CallAuthorizer
from brokerd.server.security.request_filter import Call
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.server.streams.fetch_stream import FetchStream
from brokerd.server.streams.messages import Context, read_message
from brokerd.server.streams.produce_stream import ProduceStream
from brokerd.sharing.room import Caller
from brokerd.sharing.shares import Shares
from brokerd.wire.methods import UNARY, Unary

Handler = Callable[[Broker, Any], Awaitable[Message]]
CallerHandler = Callable[[Broker, TopicAuthorizer, Any], Awaitable[Message]]
Check = Callable[[Any], None]

_PATIENCE_S = 60.0  # a request of 2 MiB over a slow line
_HALF_OPEN_MAX = 10_000
_STOPPING = "the broker is stopping: connect again"


def _not_served(what: str) -> Handler:
    async def handle(broker: Broker, request: Message) -> Message:  # noqa: ARG001 - the shape of a handler
        raise NotServedError(f"{what} are not supported by this broker; GetServerInfo lists its features")

    return handle


UNARY_HANDLERS: dict[str, Handler] = {
    "GetServerInfo": server_info.handle,
    "FindCoordinator": _not_served("coordinators of groups and transactions"),
    "CreateTopics": create_topics.handle,
    "DeleteTopics": delete_topics.handle,
    "CreatePartitions": create_partitions.handle,
    "AlterTopicConfigs": alter_topic_configs.handle,
    "DeleteRecords": delete_records.handle,
    "ListOffsets": list_offsets.handle,
}
# Handlers whose answer, or its cost, depends on who asks: ids, groups and transactions belong to principals.
CALLER_HANDLERS: dict[str, CallerHandler] = {
    "Metadata": metadata.handle,
    "DescribeTopics": describe_topics.handle,
    "CommitGroupOffsets": commit_group_offsets.handle,
    "FetchGroupOffsets": fetch_group_offsets.handle,
    "ListGroups": list_groups.handle,
    "DescribeGroup": describe_group.handle,
    "DeleteGroup": delete_group.handle,
    "InitProducerId": init_producer_id.handle,
    "EndTransaction": end_transaction.handle,
    "Heartbeat": heartbeat.handle,
    "ListTransactions": list_transactions.handle,
    "DescribeTransaction": describe_transaction.handle,
    "AbortTransaction": abort_transaction.handle,
    "FindHangingTransactions": find_hanging_transactions.handle,
    "ForgetTransactionalId": forget_transactional_id.handle,
}

# Checks of a request exactly as received. A handler sees only the entries that its caller has a right to, so it cannot judge the
# rest, or the whole.
UNARY_CHECKS: dict[str, Check] = {
    "GetServerInfo": server_info.check,
    "Metadata": metadata.check,
    "CreateTopics": create_topics.check,
    "DeleteTopics": delete_topics.check,
    "AlterTopicConfigs": alter_topic_configs.check,
    "DeleteRecords": delete_records.check,
    "ListOffsets": list_offsets.check,
    "CommitGroupOffsets": commit_group_offsets.check,
    "FetchGroupOffsets": fetch_group_offsets.check,
    "ListGroups": list_groups.check,
    "DescribeGroup": describe_group.check,
    "DeleteGroup": delete_group.check,
    "InitProducerId": init_producer_id.check,
    "EndTransaction": end_transaction.check,
    "Heartbeat": heartbeat.check,
    "ListTransactions": list_transactions.check,
    "DescribeTransaction": describe_transaction.check,
    "AbortTransaction": abort_transaction.check,
    "FindHangingTransactions": find_hanging_transactions.check,
    "ForgetTransactionalId": forget_transactional_id.check,
}


class BrokerService:
    """The methods of one broker, and its open streams."""

    def __init__(self, broker: Broker, call_authorizer: CallAuthorizer) -> None:
        self._broker = broker
        self._call_authorizer = call_authorizer
        self._requests = Requests(broker.config)
        self._streams: dict[ProduceStream | FetchStream, tuple[TopicAuthorizer, Context]] = {}
        self._half_open = Shares(_HALF_OPEN_MAX)  # calls whose request has not arrived
        self._stream_shares = Shares(broker.config.max_streams)
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def open_stream_count(self) -> int:
        """Produce and fetch streams open now."""
        return len(self._streams)

    @property
    def half_open_count(self) -> int:
        """Unary calls whose request has not arrived yet."""
        return self._half_open.total

    def method_handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The handlers to register with a gRPC server. Messages stay bytes up to here: gRPC's own (de)serializers are not used."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.stream_unary_rpc_method_handler(self._unary(UNARY[name])) for name in (*UNARY_HANDLERS, *CALLER_HANDLERS)
        }
        handlers["Produce"] = grpc.stream_stream_rpc_method_handler(self._produce)
        handlers["Fetch"] = grpc.stream_stream_rpc_method_handler(self._fetch)
        return handlers

    async def drain(self) -> None:
        """Returns once no unary call is in progress."""
        await self._idle.wait()

    async def close_streams(self) -> None:
        """Ends every open stream once its responses are out; a client that does not read delays only its own stream. If a client
        disconnects meanwhile, gRPC cancels the awaited call: that stream is over, and the shutdown continues.
        """
        ends = await asyncio.gather(*[_close(stream) for stream in self._streams], return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):  # a cancellation is not one
                raise end

    async def end_revoked_streams(self) -> int:
        """Ends every stream that was opened with credentials which are no longer valid; returns how many. From now on nothing
        more is accepted from them; a producer's pending responses go out first.
        """
        ends = []
        for stream, (authorizer, context) in self._streams.items():
            error = self._call_authorizer.revoked(authorizer, context)
            if error is not None:
                code, details, _ = status_of(error)
                ends.append(stream.revoke(code, details))
        await asyncio.gather(*[_ended(end) for end in ends])
        return len(ends)

    def _unary(self, method: Unary) -> Callable[[object, Context], Awaitable[bytes]]:
        async def call(_requests: object, context: Context) -> bytes:
            self._broker.turns.call_arrived()
            peer = str(context.peer())  # gRPC forgets it once the call is over
            try:
                authorizer, generation = self._call_authorizer.authenticate(context), self._call_authorizer.generation
                caller = caller_of(authorizer.principal, peer)
                set_caller(authorizer.principal, caller)
                data = await self._read(method, context, caller)
                self._broker.last_requests.completed(peer)
                await self._broker.turns.take(authorizer.principal, peer)
                if generation != self._call_authorizer.generation:
                    authorizer = self._call_authorizer.authenticate(context)  # as of now: the request may have taken long to arrive
                with self._under_way(method.name):
                    return (await self._answer(method, authorizer, data, peer)).SerializeToString()
            except BrokerdError as error:
                await self._abort(method.name, context, error)
            except grpc.aio.BaseError:
                raise  # the client is gone
            except Exception as error:
                await self._abort(method.name, context, internal(method.name, error))

        return call

    async def _read(self, method: Unary, context: Context, caller: Caller) -> bytes:
        """The one message of a call; until it arrives, the call is half open."""
        owner, shares = caller.owner, self._half_open
        if not shares.has_room(owner, 1):
            raise ResourceExhaustedError(
                f"{shares.total} calls are waiting for their requests, {shares.count(owner)} of them of '{owner}': try again later"
            )
        shares.add(owner, 1)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                data = await read_message(context)
        except TimeoutError:
            raise malformed(method.request.DESCRIPTOR.name, f"did not arrive within {_PATIENCE_S:.0f} s") from None
        finally:
            shares.add(owner, -1)
        if data is None:
            raise malformed(method.request.DESCRIPTOR.name, "did not arrive: the call ended first")
        return data

    async def _answer(self, method: Unary, authorizer: TopicAuthorizer, data: bytes, peer: str) -> Message:
        request = self._requests.parse(method.name, data)
        check = UNARY_CHECKS.get(method.name)
        if check is not None:
            check(request)
        handle = self._handler(method.name, authorizer)
        return await self._call_authorizer.call(method.name, authorizer, request, method.response, handle, peer)

    def _handler(self, name: str, authorizer: TopicAuthorizer) -> Call:
        handler = UNARY_HANDLERS.get(name)
        if handler is not None:
            return functools.partial(handler, self._broker)
        return functools.partial(CALLER_HANDLERS[name], self._broker, authorizer)

    @contextlib.contextmanager
    def _under_way(self, name: str) -> Iterator[None]:
        """Marks a call as in progress once its request has arrived: a shutdown does not wait for requests that have not."""
        started_ns = stopwatch_ns()
        self._calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._broker.counters.called(name, stopwatch_ns() - started_ns)
            self._calls -= 1
            if self._calls == 0:
                self._idle.set()

    async def _produce(self, _requests: object, context: Context) -> None:
        await self._serve("Produce", ProduceStream, context)

    async def _fetch(self, _requests: object, context: Context) -> None:
        await self._serve("Fetch", FetchStream, context)

    async def _serve(self, name: str, kind: type[ProduceStream | FetchStream], context: Context) -> None:
        stream = None
        self._broker.turns.call_arrived()
        try:
            authorizer = self._call_authorizer.authenticate(context)
            self._broker.require_ready()
            stream = self._open(kind, context, authorizer)
            await stream.run()
        except BrokerdError as error:
            await self._fail(name, context, error, stream)
        except grpc.aio.BaseError:
            raise  # the stream was ended by abort, or the client is gone
        except Exception as error:
            await self._fail(name, context, internal(name, error), stream)
        finally:
            if stream is not None:
                del self._streams[stream]
                self._stream_shares.add(stream.caller.owner, -1)

    async def _fail(self, name: str, context: Context, error: BrokerdError, stream: ProduceStream | FetchStream | None) -> None:
        if stream is None:
            await self._abort(name, context, error)
        else:
            await stream.fail(*self._counted(name, error))

    def _open(
        self, kind: type[ProduceStream | FetchStream], context: Context, authorizer: TopicAuthorizer
    ) -> ProduceStream | FetchStream:
        stream = kind(self._broker, context, authorizer)
        owner, shares = stream.caller.owner, self._stream_shares
        if not shares.has_room(owner, 1):
            raise ResourceExhaustedError(
                f"{shares.total} streams are open, {shares.count(owner)} of them of '{owner}', and max.streams allows no more: "
                "try again later"
            )
        shares.add(owner, 1)
        self._streams[stream] = (authorizer, context)
        return stream

    async def _abort(self, name: str, context: Context, error: BrokerdError) -> NoReturn:
        await context.abort(*self._counted(name, error))

    def _counted(self, name: str, error: BrokerdError) -> tuple[grpc.StatusCode, str, Trailer]:
        """The status of a call that fails with an error, which is counted."""
        code, details, trailer = status_of(error)
        self._broker.counters.request_errors[name, code.name] += 1
        return code, details, trailer


async def _close(stream: ProduceStream | FetchStream) -> None:
    await _ended(stream.close(grpc.StatusCode.UNAVAILABLE, _STOPPING))


async def _ended(end: Awaitable[None]) -> None:
    with contextlib.suppress(grpc.aio.BaseError):  # ended by abort, which raises, or the client was gone already
        await end
