"""The service's methods as gRPC calls them: bytes in, handler, bytes out. No rule of the broker lives here.

To gRPC every method reads a stream, even the unary ones, though of one message. So gRPC assembles no message before the handler
asks for one, and a stranger is rejected before that.

Every method of the contract is in `METHODS` or one of the two streams; a test keeps the table equal to the service. Unsupported
methods return UNIMPLEMENTED with one sentence. Whatever a handler raises becomes a status here, so that nothing a client sends can
end the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple, NoReturn

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
from brokerd.server.handlers.fetch import FetchStream
from brokerd.server.handlers.produce import ProduceStream
from brokerd.server.metrics.counters import Phase
from brokerd.server.requests import Requests
from brokerd.server.security.authenticator import caller_of
from brokerd.server.security.call_authorizer import CallAuthorizer
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.server.streams import Context, read_message
from brokerd.sharing import Caller, Shares, set_caller
from brokerd.wire.methods import UNARY, Unary

Handler = Callable[[Broker, TopicAuthorizer, Any], Awaitable[Message]]


class Method(NamedTuple):
    """A unary method. A handler sees only the entries that its caller has a right to, so `check` judges the request as received."""

    handle: Handler
    check: Callable[[Any], None] | None = None


_PATIENCE_S = 60.0  # a request of 2 MiB over a slow line
_HALF_OPEN_MAX = 10_000
_STOPPING = "the broker is stopping: connect again"


async def _coordinator(_broker: Broker, _authorizer: TopicAuthorizer, _request: Message) -> Message:
    raise NotServedError(
        "coordinators of groups and transactions are not supported by this broker; GetServerInfo lists its features"
    )


METHODS: dict[str, Method] = {
    "GetServerInfo": Method(server_info.handle, server_info.check),
    "Metadata": Method(metadata.handle, metadata.check),
    "FindCoordinator": Method(_coordinator),
    "CreateTopics": Method(create_topics.handle, create_topics.check),
    "DeleteTopics": Method(delete_topics.handle, delete_topics.check),
    "DescribeTopics": Method(describe_topics.handle),
    "CreatePartitions": Method(create_partitions.handle),
    "AlterTopicConfigs": Method(alter_topic_configs.handle, alter_topic_configs.check),
    "DeleteRecords": Method(delete_records.handle, delete_records.check),
    "ListOffsets": Method(list_offsets.handle, list_offsets.check),
    "CommitGroupOffsets": Method(commit_group_offsets.handle, commit_group_offsets.check),
    "FetchGroupOffsets": Method(fetch_group_offsets.handle, fetch_group_offsets.check),
    "ListGroups": Method(list_groups.handle, list_groups.check),
    "DescribeGroup": Method(describe_group.handle, describe_group.check),
    "DeleteGroup": Method(delete_group.handle, delete_group.check),
    "InitProducerId": Method(init_producer_id.handle, init_producer_id.check),
    "EndTransaction": Method(end_transaction.handle, end_transaction.check),
    "Heartbeat": Method(heartbeat.handle, heartbeat.check),
    "ListTransactions": Method(list_transactions.handle, list_transactions.check),
    "DescribeTransaction": Method(describe_transaction.handle, describe_transaction.check),
    "AbortTransaction": Method(abort_transaction.handle, abort_transaction.check),
    "FindHangingTransactions": Method(find_hanging_transactions.handle, find_hanging_transactions.check),
    "ForgetTransactionalId": Method(forget_transactional_id.handle, forget_transactional_id.check),
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
            name: grpc.stream_unary_rpc_method_handler(self._unary(UNARY[name])) for name in METHODS
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
                set_caller(caller)
                data = await self._read(method, context, caller)
                await self._broker.turns.take(caller)
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
        handle, check = METHODS[method.name]
        if check is not None:
            check(request)
        return await self._call_authorizer.call(
            method.name, authorizer, request, method.response, functools.partial(handle, self._broker, authorizer), peer
        )

    @contextlib.contextmanager
    def _under_way(self, name: str) -> Iterator[None]:
        """Marks a call as in progress once its request has arrived: a shutdown does not wait for requests that have not."""
        started_ns = stopwatch_ns()
        self._calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._broker.counters.request_time.labels(name, Phase.TOTAL.value).observe((stopwatch_ns() - started_ns) / 1e9)
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
        self._broker.counters.request_errors.labels(name, code.name).inc()
        return code, details, trailer


async def _close(stream: ProduceStream | FetchStream) -> None:
    await _ended(stream.close(grpc.StatusCode.UNAVAILABLE, _STOPPING))


async def _ended(end: Awaitable[None]) -> None:
    with contextlib.suppress(grpc.aio.BaseError):  # ended by abort, which raises, or the client was gone already
        await end
