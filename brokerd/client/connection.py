"""A gRPC connection to one node (calls, streams, status codes as errors), and the detection of silent nodes for all connections of
a client. broker_client.py chooses the node, and retries.

A process that hangs, or a machine that loses power, leaves its connections open: a request would wait for request.timeout.ms,
although the cluster has new leaders within seconds. So while a node has been silent for some time and requests wait at it, another
node is asked about it repeatedly. A node that is alive but slow is waited for as usual.
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from brokerd.client.security import ClientSecurity
from brokerd.errors import (
    AuthenticationError,
    BrokerdError,
    BrokerUnreachableError,
    InvalidRequestError,
    MessageTooLargeError,
    ResourceExhaustedError,
    UnknownServerError,
    UnsupportedVersionError,
)
from brokerd.event_loop import cancellations, end_if_cancelled
from brokerd.ids import TopicIdPartition
from brokerd.wire.channel import CALLS_PER_CONNECTION, STREAMS_PER_CONNECTION
from brokerd.wire.errors import from_trailer
from brokerd.wire.methods import UNARY
from brokerd.wire.texts import says_lost, without_wrapping

R = TypeVar("R", bound=Message)

_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.ABORTED)
# A reset stream; or a write to a stream that has ended, whose status gRPC then loses (grpc/grpc#36066).
_LOST_IN_CORE = ("RST_STREAM", "Internal error from Core")
# gRPC's messages about a port with something other than a gRPC server, and their meaning.
_NOT_GRPC = {
    "Failed parsing HTTP/2": "the server there speaks another protocol: is it a brokerd port?",
    "before receiving SETTINGS frame": (
        "it accepted the connection, but did not respond: is it a brokerd port, or is the broker overloaded?"
    ),
}
_TOO_LARGE_FOR_BROKER = "lower max.request.size, or raise the broker's socket.request.max.bytes"
_TOO_LARGE_FOR_CLIENT = "the response is larger than a client takes: ask for less at once"

_PATIENCE_LEAST_MS = 1_000
_LOOKS = 3  # checks per patience period


def patience_ms(request_timeout_ms: int) -> int:
    """How long a node may be silent, in ms, before others are asked about it."""
    return max(_PATIENCE_LEAST_MS, request_timeout_ms // 10)


class Asked(NamedTuple):
    """The subject of a request. `epochs`: its partitions, each with the leader epoch known to the client; empty if the request
    depends on no partition's leader. `parked_ms`: how long the node may park the request."""

    epochs: Mapping[TopicIdPartition, int]
    parked_ms: int = 0


NOTHING = Asked({})


@dataclass(slots=True, eq=False)
class Awaited:
    """A request that has no response yet."""

    address: str
    asked: Asked
    due_ms: int  # no response is expected earlier
    is_over: bool = False


@dataclass(slots=True, eq=False)
class _Node:
    """The requests that wait at one address."""

    awaited: set[Awaited] = field(default_factory=set)
    heard_ms: int = 0


class Silence:
    """Calls `look_into` with an address and its waiting requests, at each check that finds the address silent for too long."""

    def __init__(self, patience: int, look_into: Callable[[str, Sequence[Awaited]], Awaitable[None]]) -> None:
        """`patience`: in ms."""
        self._patience_ms = patience
        self._look_into = look_into
        self._nodes: dict[str, _Node] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, address: str, asked: Asked) -> Awaited:
        """Registers a request to an address."""
        awaited = Awaited(address, asked, loop_ms() + asked.parked_ms)
        self._nodes.setdefault(address, _Node()).awaited.add(awaited)
        if self._timer is None:
            self._arm()
        return awaited

    def end(self, awaited: Awaited, *, is_answered: bool) -> None:
        """Ends the wait for a request that was answered or abandoned. Idempotent."""
        awaited.is_over = True
        node = self._nodes.get(awaited.address)
        if node is None:
            return
        if is_answered:
            node.heard_ms = loop_ms()
        node.awaited.discard(awaited)
        if not node.awaited:
            del self._nodes[awaited.address]

    def close(self) -> None:
        """Stops all checks."""
        self._nodes.clear()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._looking.values():
            task.cancel()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._patience_ms / _LOOKS / 1000, self._look)

    def _look(self) -> None:
        self._timer = None
        since_ms = loop_ms() - self._patience_ms
        for address, node in self._nodes.items():
            waiting = [one for one in node.awaited if max(one.due_ms, node.heard_ms) <= since_ms]
            if waiting and address not in self._looking:
                task = asyncio.ensure_future(self._look_into(address, waiting))
                self._looking[address] = task
                task.add_done_callback(functools.partial(self._looked, address))
        if self._nodes:
            self._arm()

    def _looked(self, address: str, _task: asyncio.Task[None]) -> None:
        del self._looking[address]


def loop_ms() -> int:
    """The running loop's time in ms."""
    return round(asyncio.get_running_loop().time() * 1000)


class _Channel:
    """One gRPC connection, and the number of its open streams."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.grpc = channel
        self.open_streams = 0

    def open_stream(self, path: str, metadata: tuple[tuple[str, str], ...]) -> grpc.aio.StreamStreamCall[bytes, bytes]:
        """Opens a stream, counted until its end."""
        call: grpc.aio.StreamStreamCall[bytes, bytes] = self.grpc.stream_stream(path)(metadata=metadata)
        self.open_streams += 1
        call.add_done_callback(self._ended)
        return call

    def _ended(self, _call: object) -> None:
        self.open_streams -= 1

    async def close(self) -> None:
        """Returns once gRPC has nothing more to report to this loop."""
        # gRPC completes operations in order. Waiting for a channel to leave a state that it is not in completes at once, after
        # the completions of the cancelled calls.
        await self.grpc.wait_for_state_change(grpc.ChannelConnectivity.SHUTDOWN)
        await self.grpc.close()


class Connection:
    """A connection to one address, for the running loop. gRPC connects on first use and reconnects after a loss.

    Calls and streams share one channel until it has too many streams. A broker limits the streams per connection; beyond its limit,
    gRPC would delay a stream until another ends, and streams do not end.
    """

    def __init__(self, address: str, security: ClientSecurity, on_lost: Callable[[], None], silence: Silence) -> None:
        """`on_lost` is called when a stream breaks, or a read of it times out. `silence` is told of waiting requests. Raises
        ConfigError if a token would cross a network in plaintext."""
        self.address = address
        self.on_lost = on_lost
        self.silence = silence
        self.given_up = ""  # the reason, once it is given up
        self._security = security
        self._turns = asyncio.Semaphore(CALLS_PER_CONNECTION)
        self._channels = [_Channel(security.open_channel(address))]
        self._methods: dict[str, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = {}
        self._streams: weakref.WeakSet[RawStream] = weakref.WeakSet()
        self._calls: set[grpc.aio.UnaryUnaryCall[bytes, bytes]] = set()

    async def call(self, name: str, request: Message, response_type: type[R], *, timeout_ms: int, asked: Asked = NOTHING) -> R:
        """Makes one unary call of the method `name`. Raises BrokerUnreachableError, or the error for the status code."""
        async with self._turns:
            self._check_kept()
            method = self._methods.get(name)
            if method is None:
                method = self._methods[name] = self._channels[0].grpc.unary_unary(UNARY[name].path)
            call = method(request.SerializeToString(), timeout=timeout_ms / 1000, metadata=self._security.metadata())
            self._calls.add(call)
            awaited = self.silence.begin(self.address, asked)
            data: bytes | None = None
            try:
                data = await call
            except grpc.aio.AioRpcError as error:
                raise self.error_from(error, name) from None
            except asyncio.CancelledError:
                if not cancellations():
                    self._check_kept()
                raise
            finally:
                self._calls.discard(call)
                self.silence.end(awaited, is_answered=data is not None)
        try:
            return response_type.FromString(data)
        except DecodeError:
            raise UnknownServerError(
                f"{self.address} responded to {name} with bytes that are not a valid {response_type.__name__}"
            ) from None

    def open_stream(self, path: str) -> RawStream:
        """A bidirectional stream of raw messages; nothing is sent yet. Raises BrokerUnreachableError after `give_up`."""
        self._check_kept()
        channel = next((channel for channel in self._channels if channel.open_streams < STREAMS_PER_CONNECTION), None)
        if channel is None:
            channel = _Channel(self._security.open_channel(self.address))
            self._channels.append(channel)
        stream = RawStream(self, channel.open_stream(path, self._security.metadata()), path)
        self._streams.add(stream)
        return stream

    @property
    def is_idle(self) -> bool:
        """True if no call or stream is in progress."""
        return not self._calls and not any(channel.open_streams for channel in self._channels)

    async def give_up(self, reason: str) -> None:
        """Closes the connection for good. Requests that wait, and later ones, raise BrokerUnreachableError with the reason."""
        self.given_up = reason
        await self.close()

    def _check_kept(self) -> None:
        if self.given_up:
            raise self.unreachable(self.given_up)

    def unreachable(self, message: str) -> BrokerUnreachableError:
        """The error of a request that this node did not answer."""
        return BrokerUnreachableError(message, address=self.address)

    async def close(self) -> None:
        """Cancels all calls and closes; returns once gRPC has nothing more to report to this loop."""
        for stream in list(self._streams):
            stream.close()
        for call in list(self._calls):
            call.cancel()
        for channel in self._channels:
            await channel.close()

    def error_from(self, error: grpc.aio.AioRpcError, what: str) -> BrokerdError:
        """The error for a failed call."""
        answered = from_trailer(error.trailing_metadata())
        if answered is not None:
            return answered
        code = error.code()
        full = error.details() or ""
        details = without_wrapping(full)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return self.unreachable(f"{self.address} did not respond to {what} in time")
        if code is grpc.StatusCode.UNAVAILABLE:
            handshake_error = self._security.handshake_error(self.address, full)
            if handshake_error is not None:
                return handshake_error
            hint = self._security.hint(full) or next((text for mark, text in _NOT_GRPC.items() if mark in full), "")
            details = f"{self.address}: {hint}" if hint else details
        if code in _LOST or (code is grpc.StatusCode.INTERNAL and any(text in details for text in _LOST_IN_CORE)):
            return self.unreachable(f"the connection to {self.address} was lost" if says_lost(details) else details)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            if "Received message larger than max" in details:  # preceded by the name of the side that refused it
                advice = _TOO_LARGE_FOR_CLIENT if "CLIENT: Received" in details else _TOO_LARGE_FOR_BROKER
                return MessageTooLargeError(f"{self.address}: {details}: {advice}")
            return MessageTooLargeError(details) if "larger than max" in details else ResourceExhaustedError(details)
        if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.OUT_OF_RANGE):
            return InvalidRequestError(details)
        if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
            may_pass = code is grpc.StatusCode.UNAUTHENTICATED  # a missing permission is final
            return AuthenticationError(f"{self.address} refused {what}: {details}", may_pass=may_pass)
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return UnsupportedVersionError(
                f"{self.address} does not know {what}: is it a brokerd broker, and recent enough? ({details})"
            )
        return UnknownServerError(f"{self.address} failed in {what}: {details or code.name}")


class RawStream:
    """One bidirectional stream of messages as bytes. One writer and one reader at a time.

    Every loss of the stream (broker gone, stream ended by the broker, close()) raises BrokerUnreachableError in both.
    """

    def __init__(self, connection: Connection, call: grpc.aio.StreamStreamCall[bytes, bytes], path: str) -> None:
        self._connection = connection
        self._call = call
        self._what = path.rsplit("/", 1)[-1]
        self._is_closed = False
        self._awaited: deque[Awaited] = deque()  # in the order of the responses

    async def send(self, message: bytes, asked: Asked | None = None) -> None:
        """Sends one message; awaiting it applies flow control. `asked`: its subject; None if no response is expected."""
        if asked is not None and not self._is_closed:
            self._awaited.append(self._connection.silence.begin(self._connection.address, asked))
        try:
            await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            end_if_cancelled()
            raise await self._error(error) from None
        except asyncio.CancelledError:
            raise self._closed_or_cancelled() from None

    async def receive(self, *, timeout_ms: int | None = None) -> bytes:
        """The next message. A timeout closes the stream: a later message could not be matched to its request."""
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                message = await self._call.read()
        except TimeoutError:
            self.close()
            self._connection.on_lost()
            text = f"{self._connection.address} did not respond to {self._what} for {(timeout_ms or 0) / 1000:.1f} s"
            raise self._connection.unreachable(text) from None
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            end_if_cancelled()
            raise await self._error(error) from None
        except asyncio.CancelledError:
            raise self._closed_or_cancelled() from None
        if message is grpc.aio.EOF:
            self._connection.on_lost()
            raise self._connection.unreachable(f"{self._connection.address} ended the {self._what} stream")
        self._no_more_awaited(1, is_answered=True)
        return cast("bytes", message)

    def close(self) -> None:
        """Cancels the stream without waiting."""
        self._is_closed = True
        self._call.cancel()
        self._no_more_awaited(len(self._awaited), is_answered=False)

    def _no_more_awaited(self, count: int, *, is_answered: bool) -> None:
        for _ in range(min(count, len(self._awaited))):
            self._connection.silence.end(self._awaited.popleft(), is_answered=is_answered)

    def _closed_or_cancelled(self) -> BaseException:
        """The error for gRPC's CancelledError, which it also raises if close() cancelled the call."""
        end_if_cancelled()
        return self._closed() if self._is_closed else asyncio.CancelledError()

    def _closed(self) -> BrokerUnreachableError:
        text = self._connection.given_up or f"the {self._what} stream to {self._connection.address} was closed"
        return self._connection.unreachable(text)

    async def _error(self, error: BaseException) -> BrokerdError:
        """The reason for the end of the stream, which InvalidStateError does not tell."""
        if self._is_closed:
            return self._closed()
        self._connection.on_lost()
        if isinstance(error, grpc.aio.AioRpcError):
            return self._connection.error_from(error, self._what)
        code = await self._call.code()
        if code is grpc.StatusCode.OK:
            return self._connection.unreachable(f"{self._connection.address} ended the {self._what} stream")
        details = await self._call.details() or ""
        trailer = await self._call.trailing_metadata() or grpc.aio.Metadata()
        rpc_error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailer, details)
        return self._connection.error_from(rpc_error, self._what)
