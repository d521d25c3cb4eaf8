"""Client of the nodes of a cluster over gRPC: addresses, connections, leaders, limits, retries, status codes as errors; bound to
one event loop.

Connections are opened on first use, one per node. A call is retried until default.api.timeout.ms, then raises
BrokerUnreachableError (with address and duration) or the broker's WireError. Streams are opened here and retried by their users.
The calls themselves are in topics.py, offsets.py, groups.py and transactions.py.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import re
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from brokerd import __version__
from brokerd.backoff import backoff_ms
from brokerd.client.metadata import (
    Metadata,
    id_of,
    parse_bootstrap_servers,
    read_metadata,
)
from brokerd.client.response_checks import made_plain, senseless
from brokerd.client.security import ClientSecurity
from brokerd.clock import Clock
from brokerd.config.client import GRPC_MAX_MESSAGE_BYTES, ClientConfig
from brokerd.errors import (
    AuthenticationError,
    BrokerdError,
    BrokerUnreachableError,
    ErrorCode,
    InvalidRequestError,
    MessageTooLargeError,
    NotLeaderError,
    NotReadyError,
    ResourceExhaustedError,
    UnknownLeaderEpochError,
    UnknownServerError,
    UnsupportedVersionError,
    WireError,
)
from brokerd.ids import NO_EPOCH, NO_LEADER, TopicIdPartition, TopicInfo
from brokerd.wire.channel import CALLS_PER_CONNECTION, STREAMS_PER_CONNECTION
from brokerd.wire.errors import from_proto, from_trailer
from brokerd.wire.methods import UNARY
from brokerd.wire.texts import plain_text
from brokerd.wire.v1 import metadata_pb2

T = TypeVar("T")
R = TypeVar("R", bound=Message)
WIRE_VERSION = 1
PARTITIONS_PER_REQUEST = 1_000  # for a broker that does not report max.partitions.per.request
ANY_NODE = -1
_TOPICS_MAX = 100_000  # to cache: topics come and go, and a client may live long
# The first failure may be a lost connection; the second, a fraction of a second later, is worth a warning.
_SPEAKS_AT_FAILURE = 2
# How long a client that was never accepted retries after a refusal: longer than a restart or a reload of tokens, and short enough
# to report a wrong token soon. Once a client was accepted, only the call's own timeout limits retries.
REFUSALS_MS = 3_000
# If a call's last attempt is shorter than this, its timeout does not mean that no broker responds.
_SHORT_MS = 1_000
# These codes say "refresh", but a broker that responds knows all of its topics: waiting would only hide a mistyped name.
_DEFINITE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)

_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.ABORTED)
# A reset stream; or a write to a stream that has ended, whose status gRPC then loses (grpc/grpc#36066).
_LOST_IN_CORE = ("RST_STREAM", "Internal error from Core")
_CONNECT_FAILURE = re.compile(
    r"(?:Failed to connect to remote host: |DNS resolution failed for |address lookup failed for )([^\]]*)", re.DOTALL
)
# gRPC's messages about a port with something other than a gRPC server, and their meaning.
_NOT_GRPC = {
    "Failed parsing HTTP/2": "the server there speaks another protocol: is it a brokerd port?",
    "before receiving SETTINGS frame": (
        "it accepted the connection, but did not respond: is it a brokerd port, or is the broker overloaded?"
    ),
}
_RESOLVER_CHATTER = re.compile(r"C-ares status is not ARES_SUCCESS [^:]*: ")
_DETAILS_MAX_CHARACTERS = 300
_TOO_LARGE_FOR_BROKER = "lower max.request.size, or raise the broker's socket.request.max.bytes"
_TOO_LARGE_FOR_CLIENT = "the response is larger than a client takes: ask for less at once"

logger = logging.getLogger(__name__)


def check_client(config: ClientConfig) -> None:
    """Raises ConfigError for invalid addresses and security settings; does not connect."""
    security = ClientSecurity(config)
    for address in parse_bootstrap_servers(config.bootstrap_servers):
        security.check_address(address)


class BrokerClient:
    """Connections to one broker, or to the nodes of a cluster, with cached metadata, features and limits."""

    def __init__(self, config: ClientConfig, clock: Clock, *, is_retrying: bool = True) -> None:
        """Does not connect yet. `is_retrying` False: every call is tried once, for an owner that retries itself. Raises
        ConfigError for invalid bootstrap.servers or security settings."""
        self.config = config
        self.clock = clock
        self._addresses = parse_bootstrap_servers(config.bootstrap_servers)
        self._security = ClientSecurity(config)
        self._address_index = 0
        self._is_retrying = is_retrying
        self._was_accepted = False
        self._connections: dict[str, Connection] = {}
        self._node_addresses: dict[int, str] = {}
        self._topics: dict[bytes, TopicInfo] = {}
        self._server_infos: dict[str, metadata_pb2.GetServerInfoResponse] = {}
        self._random = random.SystemRandom()

    async def close(self) -> None:
        """Closes all connections; calls in progress fail."""
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            await connection.close()

    # ---- the cluster

    async def server_info(self) -> metadata_pb2.GetServerInfoResponse:
        """The broker's version, features and limits; requested once per connection. Raises UnsupportedVersionError if it speaks
        another version of the contract."""
        connection = await self.retried(lambda timeout_ms: self._connected(ANY_NODE, timeout_ms))
        return self._server_infos[connection.address]

    async def metadata(self, topics: Sequence[str] | None = None) -> Metadata:
        """The broker's current nodes, and topics by name (None = all). Topics that do not exist are in `errors`."""
        request = metadata_pb2.MetadataRequest(topics=topics or (), all_topics=topics is None)
        return self._remembered(read_metadata(await self.call(request, metadata_pb2.MetadataResponse)))

    async def metadata_by_id(self, topic_ids: Sequence[bytes]) -> Metadata:
        """As `metadata`, for topic ids; errors are under the id in hex."""
        request = metadata_pb2.MetadataRequest(topic_ids=topic_ids)
        return self._remembered(read_metadata(await self.call(request, metadata_pb2.MetadataResponse)))

    async def leader(self, tp: TopicIdPartition) -> int:
        """Node id of a partition's leader; requests it if unknown. Raises UnknownTopicIdError for a deleted topic,
        UnknownTopicOrPartitionError, and NotLeaderError while there is no leader."""
        topic = self._topics.get(tp.topic_id)
        if topic is None or tp.partition >= len(topic.leaders):
            (await self.metadata_by_id([tp.topic_id])).topic_by_id(tp.topic_id)
            topic = self._topics[tp.topic_id]
            id_of(topic, tp.partition)
        node_id = topic.leaders[tp.partition]
        if node_id == NO_LEADER:
            raise NotLeaderError(f"partition {tp.partition} of topic '{topic.name}' has no leader at present")
        return node_id

    def leader_epoch(self, tp: TopicIdPartition) -> int:
        """The highest leader epoch that this client has seen for a partition; -1 = unknown."""
        topic = self._topics.get(tp.topic_id)
        epochs = topic.leader_epochs if topic is not None else ()
        return epochs[tp.partition] if tp.partition < len(epochs) else NO_EPOCH

    async def refresh_leaders(self, tps: Iterable[TopicIdPartition]) -> None:
        """Requests the leaders of these partitions anew; the topics that are gone become unknown."""
        topic_ids = sorted({tp.topic_id for tp in tps})
        metadata = await self.metadata_by_id(topic_ids)
        for topic_id in topic_ids:
            if topic_id.hex() in metadata.errors:
                self._topics.pop(topic_id, None)

    async def partitions_per_request(self, node_id: int = ANY_NODE, *, refresh: bool = False) -> int:
        """How many partitions one request to a node may name; `refresh` requests it again, since the node may have restarted.
        Raises BrokerUnreachableError."""
        if refresh:
            self._server_infos.pop(self._address(node_id), None)
        return max(1, await self._limit(node_id, "max.partitions.per.request", PARTITIONS_PER_REQUEST))

    async def request_bytes_max(self, node_id: int = ANY_NODE) -> int:
        """Size in bytes of the largest request that a node accepts, if it reports one. Raises BrokerUnreachableError."""
        limit = await self._limit(node_id, "socket.request.max.bytes", GRPC_MAX_MESSAGE_BYTES)
        return min(limit, GRPC_MAX_MESSAGE_BYTES) if limit > 0 else GRPC_MAX_MESSAGE_BYTES

    async def _limit(self, node_id: int, name: str, otherwise: int) -> int:
        connection = await self._connected(node_id, self.config.request_timeout_ms)
        return next((one.value for one in self._server_infos[connection.address].limits if one.name == name), otherwise)

    async def chunks(self, node_id: int, items: Sequence[T]) -> list[Sequence[T]]:
        """`items`, one per partition, in groups small enough for one request to a node. Raises BrokerUnreachableError."""
        size = await self.partitions_per_request(node_id)
        return [items[at : at + size] for at in range(0, len(items), size)]

    # ---- streams: retried by their users

    async def open_stream(self, path: str, node_id: int = ANY_NODE) -> RawStream:
        """Opens a stream of messages as bytes to a node; `path`: PRODUCE or FETCH. Raises BrokerUnreachableError."""
        return (await self._connected(node_id, self.config.request_timeout_ms)).open_stream(path)

    def retries(self, now_ms: int, timeout_ms: int | None = None) -> CallRetries:
        """The retry state of one call that starts now."""
        return CallRetries(
            timeout_ms=self.config.api_timeout_ms if timeout_ms is None else timeout_ms,
            backoff_initial_ms=self.config.retry_backoff_ms,
            backoff_max_ms=self.config.retry_backoff_max_ms,
            now_ms=now_ms,
            was_accepted=self._was_accepted,
        )

    async def wait_or_raise(self, retries: CallRetries, error: BrokerdError) -> None:
        """After a failed attempt: waits for the next, or raises the final error."""
        now_ms = self.clock.monotonic_ms()
        wait_ms = retries.failed(error, now_ms=now_ms, random=self._random.random())
        if isinstance(error, (BrokerUnreachableError, NotReadyError)):
            self._next_address()
        if not self._is_retrying and isinstance(error, WireError):
            raise error
        if retries.failures == _SPEAKS_AT_FAILURE and wait_ms is not None and self._is_retrying:
            left_s = round(retries.left_ms(error, now_ms=now_ms) / 1000)
            logger.warning("%s (at %s): retrying for up to %d s", error, ", ".join(self._addresses), left_s)
        if wait_ms is None or not self._is_retrying:
            raise self._final_error(retries, error, now_ms) from None
        await asyncio.sleep(wait_ms / 1000)

    def _is_last(self, retries: CallRetries, error: BrokerdError) -> bool:
        return isinstance(error, BrokerUnreachableError) and not retries.left_ms(error, now_ms=self.clock.monotonic_ms())

    def _final_error(self, retries: CallRetries, error: BrokerdError, now_ms: int) -> BrokerdError:
        if isinstance(error, UnknownLeaderEpochError):
            # No node has heard of this epoch for as long as a call may last, so the data may be a restored copy's.
            self._topics.clear()
        return retries.final_error(error, ", ".join(self._addresses), now_ms=now_ms)

    # ---- calls

    async def call(
        self, request: Message, response_type: type[R], *, failures: list[BrokerdError] | None = None, timeout_ms: int | None = None
    ) -> R:
        """Makes a call that any node can answer; retries until `timeout_ms` (default.api.timeout.ms). `failures` collects the
        errors of failed attempts."""

        async def attempt(attempt_timeout_ms: int) -> R:
            return await self.call_once(ANY_NODE, request, response_type, attempt_timeout_ms)

        return await self.retried(attempt, failures=failures, timeout_ms=timeout_ms)

    async def call_once(self, node_id: int, request: Message, response_type: type[R], timeout_ms: int) -> R:
        """A call to one node, tried once. Raises the error of the whole response, if it has one."""
        connection = await self._connected(node_id, timeout_ms)
        response = await connection.call(_method_of(response_type), request, response_type, timeout_ms=timeout_ms)
        self._was_accepted = True
        # The error of the whole response, or of its only result.
        holder: Any = response if "error" in response.DESCRIPTOR.fields_by_name else getattr(response, "result", None)
        if holder is not None and holder.HasField("error"):
            raise from_proto(holder.error)
        return response

    async def retried(
        self,
        attempt: Callable[[int], Awaitable[T]],
        *,
        failures: list[BrokerdError] | None = None,
        timeout_ms: int | None = None,
    ) -> T:
        """Repeats `attempt`, which gets its time limit in ms, until `timeout_ms` (default.api.timeout.ms)."""
        now_ms = self.clock.monotonic_ms()
        retries = self.retries(now_ms, timeout_ms)
        answer: WireError | None = None
        while True:
            timeout_ms = retries.attempt_timeout_ms(self.config.request_timeout_ms, now_ms=now_ms)
            try:
                return await attempt(timeout_ms)
            except BrokerdError as failure:
                error = failure
                if isinstance(error, WireError):
                    answer = error
                elif answer is not None and timeout_ms < _SHORT_MS and self._is_last(retries, error):
                    error = answer  # the attempt had no time for one
                await self.wait_or_raise(retries, error)
                if failures is not None:
                    failures.append(error)
                now_ms = self.clock.monotonic_ms()
                if not retries.left_ms(error, now_ms=now_ms):
                    # The wait used up the remaining time: an attempt without time could only fail, and hide the actual cause.
                    raise self._final_error(retries, error, now_ms) from None

    async def ask_leaders(
        self, head: Any, parts: Mapping[TopicIdPartition, Any], response_type: type[Message]
    ) -> dict[TopicIdPartition, Any]:
        """Sends each partition's part of a request to its leader, and retries what may succeed later; returns each partition's
        result or WireError, in the order of `parts`. `head`: the request without its partitions."""
        results: dict[TopicIdPartition, Any] = {}
        pending = list(parts)
        needs_refresh = False  # from the second attempt on

        async def attempt(timeout_ms: int) -> None:
            nonlocal pending, needs_refresh
            by_leader = await self._by_leader(pending, results, refresh=needs_refresh)
            needs_refresh = True
            for node_id, group in by_leader:
                request = self._request_for(head, {tp: parts[tp] for tp in group})
                response: Any = await self.call_once(node_id, request, response_type, timeout_ms)
                found = [from_proto(one.error) if one.HasField("error") else one for one in response.results]
                if len(found) != len(group):
                    raise senseless(_method_of(response_type), f"{len(found)} results, {len(group)} were requested")
                results.update(zip(group, found, strict=True))
            failed = {tp: results.get(tp) for tp in pending}
            repeatable = {tp: error for tp, error in failed.items() if isinstance(error, WireError) and is_repeatable(error)}
            pending = list(repeatable)
            if pending:
                raise repeatable[pending[0]]

        try:
            await self.retried(attempt)
        except WireError:
            if any(tp not in results for tp in parts):
                raise
        return {tp: results[tp] for tp in parts}

    def _request_for(self, head: Any, parts: Mapping[TopicIdPartition, Any]) -> Message:
        """A request to one leader; where the broker checks leader epochs, with those of the latest metadata."""
        request: Any = type(head)()
        request.CopyFrom(head)
        for tp, part in parts.items():
            if "current_leader_epoch" in part.DESCRIPTOR.fields_by_name:
                part.current_leader_epoch = self.leader_epoch(tp)
            request.partitions.append(part)
        return cast("Message", request)

    async def _by_leader(
        self, tps: Sequence[TopicIdPartition], results: dict[TopicIdPartition, Any], *, refresh: bool
    ) -> list[tuple[int, Sequence[TopicIdPartition]]]:
        """Groups `tps` by leader, in chunks small enough for one request. Errors of deleted topics go to `results`."""
        unknown = sorted({tp.topic_id for tp in tps if refresh or tp.topic_id not in self._topics})
        metadata = await self.metadata_by_id(unknown) if unknown else None
        groups: dict[int, list[TopicIdPartition]] = {}
        for tp in tps:
            topic = self._topics.get(tp.topic_id)
            try:
                if metadata is not None and tp.topic_id in unknown:
                    described = metadata.topic_by_id(tp.topic_id)
                    topic = topic or described  # not remembered if there are too many
            except WireError as error:
                results[tp] = error
                continue
            leaders = topic.leaders if topic is not None else ()
            # A partition that did not exist when the topic was last looked up may exist by now: let any node decide.
            groups.setdefault(leaders[tp.partition] if tp.partition < len(leaders) else ANY_NODE, []).append(tp)
        return [(node_id, chunk) for node_id, group in groups.items() for chunk in await self.chunks(node_id, group)]

    async def _connected(self, node_id: int, timeout_ms: int) -> Connection:
        """The connection to a node; its first call checks that both speak the same version of the contract."""
        address = self._address(node_id)
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = Connection(address, self._security)
        if address not in self._server_infos:
            request = metadata_pb2.GetServerInfoRequest()
            # An unresponsive address gets only its share of the time, to leave some for the others.
            timeout_ms = min(timeout_ms, max(1, self.config.api_timeout_ms // len(self._addresses)))
            try:
                response = await connection.call(
                    "GetServerInfo", request, metadata_pb2.GetServerInfoResponse, timeout_ms=timeout_ms
                )
            except asyncio.CancelledError:  # the caller ran out of time: the next call tries another address
                if address == self._addresses[self._address_index]:
                    self._next_address()
                raise
            self._server_infos[address] = _checked(made_plain(response), address)
        return connection

    def _next_address(self) -> None:
        self._address_index = (self._address_index + 1) % len(self._addresses)

    def _address(self, node_id: int) -> str:
        address = self._node_addresses.get(node_id)
        return address if address is not None else self._addresses[self._address_index]

    def _remembered(self, metadata: Metadata) -> Metadata:
        self._node_addresses.update((node_id, node.address) for node_id, node in metadata.nodes.items())
        for topic in metadata.topics.values():
            seen = self._topics.pop(topic.topic_id, None)  # keeps the newest last
            self._topics[topic.topic_id] = topic if seen is None or seen == topic else topic.newer_than(seen)
        for topic_id in list(itertools.islice(self._topics, max(0, len(self._topics) - _TOPICS_MAX))):
            del self._topics[topic_id]
        return metadata


def _method_of(response_type: type[Message]) -> str:
    return response_type.DESCRIPTOR.name.removesuffix("Response")


def _checked(info: metadata_pb2.GetServerInfoResponse, address: str) -> metadata_pb2.GetServerInfoResponse:
    if not info.min_wire_version <= WIRE_VERSION <= info.max_wire_version:
        raise UnsupportedVersionError(
            f"{address} runs brokerd {info.software_version:.60}, which speaks wire versions {info.min_wire_version} to "
            f"{info.max_wire_version}; this client ({__version__}) speaks {WIRE_VERSION}: upgrade the older of the two"
        )
    return info


class NoBrokerAnsweredError(BrokerUnreachableError):
    """All attempts failed until the timeout; the caller must not retry."""


def is_repeatable(error: BaseException) -> bool:
    """True if the same request may succeed a moment later."""
    if isinstance(error, WireError):
        return error.retriable and error.code not in _DEFINITE
    if isinstance(error, AuthenticationError):
        return error.may_pass
    return isinstance(error, BrokerUnreachableError) and not isinstance(error, NoBrokerAnsweredError)


class CallRetries:
    """The retry state of one call: after each failure, `failed` returns how long to wait, or None to give up."""

    def __init__(
        self, *, timeout_ms: int, backoff_initial_ms: int, backoff_max_ms: int, now_ms: int, was_accepted: bool = False
    ) -> None:
        """`was_accepted`: the broker has accepted this client before, so a refusal is probably temporary."""
        self._timeout_ms = timeout_ms
        self._refusals_ms = timeout_ms if was_accepted else min(timeout_ms, REFUSALS_MS)
        self._backoff_initial_ms = backoff_initial_ms
        self._backoff_max_ms = backoff_max_ms
        self._started_ms = now_ms
        self.failures = 0

    def attempt_timeout_ms(self, request_timeout_ms: int, *, now_ms: int) -> int:
        """How long the next attempt may take; at least 1."""
        return max(1, min(request_timeout_ms, self._started_ms + self._timeout_ms - now_ms))

    def left_ms(self, error: BaseException, *, now_ms: int) -> int:
        """How much longer the call will be retried if `error` persists."""
        return max(0, self._started_ms + self._limit_ms(error) - now_ms)

    def succeeded(self, *, now_ms: int) -> None:
        """Restarts the timeout for the next failure."""
        self._started_ms = now_ms
        self.failures = 0

    def failed(self, error: BaseException, *, now_ms: int, random: float) -> int | None:
        """Wait in ms before the next attempt, or None: retrying is pointless, or no time is left."""
        if not is_repeatable(error):
            return None
        self.failures += 1
        wait_ms = backoff_ms(self.failures, first_ms=self._backoff_initial_ms, max_ms=self._backoff_max_ms, random=random)
        if isinstance(error, WireError):
            wait_ms = max(wait_ms, error.retry_after_ms)
        return wait_ms if now_ms + wait_ms < self._started_ms + self._limit_ms(error) else None

    def _limit_ms(self, error: BaseException) -> int:
        return self._refusals_ms if isinstance(error, AuthenticationError) else self._timeout_ms

    def final_error(self, error: BrokerdError, addresses: str, *, now_ms: int) -> BrokerdError:
        """The error to raise once `failed` has returned None, with the addresses and the duration of the attempts."""
        tried = f"{(now_ms - self._started_ms) / 1000:.1f} s"
        if isinstance(error, BrokerUnreachableError) and is_repeatable(error):
            return NoBrokerAnsweredError(f"no broker responded at {addresses} in {tried}: {error.message}")
        if isinstance(error, (WireError, AuthenticationError)) and is_repeatable(error):
            error.message += f" (tried {self.failures} times in {tried})"
        return error


class _Channel:
    """One gRPC connection, and the number of its open streams."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.grpc = channel
        self.open_streams = 0

    @property
    def has_room(self) -> bool:
        """True if one more stream leaves room for calls."""
        return self.open_streams < STREAMS_PER_CONNECTION

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

    Calls and streams share one channel until it has too many streams: a broker limits the streams per connection, and beyond that
    gRPC would wait for others to end, which streams do not.
    """

    def __init__(self, address: str, security: ClientSecurity) -> None:
        """Raises ConfigError if a token would cross a network in plaintext."""
        self.address = address
        self._security = security
        self._turns = asyncio.Semaphore(CALLS_PER_CONNECTION)
        self._channels = [_Channel(security.open_channel(address))]
        self._methods: dict[str, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = {}
        self._streams: weakref.WeakSet[RawStream] = weakref.WeakSet()
        self._calls: set[grpc.aio.UnaryUnaryCall[bytes, bytes]] = set()

    async def call(self, name: str, request: Message, response_type: type[R], *, timeout_ms: int) -> R:
        """Makes one unary call of the method `name`. Raises BrokerUnreachableError, or the error for the status code."""
        async with self._turns:
            return await self._call(name, request, response_type, timeout_ms)

    async def _call(self, name: str, request: Message, response_type: type[R], timeout_ms: int) -> R:
        method = self._methods.get(name)
        if method is None:
            method = self._methods[name] = self._channels[0].grpc.unary_unary(UNARY[name].path)
        metadata = self._security.fixed_metadata
        metadata = self._security.metadata() if metadata is None else metadata
        call = method(request.SerializeToString(), timeout=timeout_ms / 1000, metadata=metadata)
        self._calls.add(call)
        try:
            data = await call
        except grpc.aio.AioRpcError as error:
            raise self.error_from(error, name) from None
        finally:
            self._calls.discard(call)
        try:
            return response_type.FromString(data)
        except DecodeError:
            raise UnknownServerError(
                f"{self.address} responded to {name} with bytes that are not a valid {response_type.__name__}"
            ) from None

    def open_stream(self, path: str) -> RawStream:
        """A bidirectional stream of raw messages; nothing is sent yet."""
        channel = next((channel for channel in self._channels if channel.has_room), None)
        if channel is None:
            channel = _Channel(self._security.open_channel(self.address))
            self._channels.append(channel)
        metadata = self._security.fixed_metadata
        metadata = self._security.metadata() if metadata is None else metadata
        stream = RawStream(self, channel.open_stream(path, metadata), path)
        self._streams.add(stream)
        return stream

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
        details = _shortened(full)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return BrokerUnreachableError(f"{self.address} did not respond to {what} in time")
        if code is grpc.StatusCode.UNAVAILABLE:
            handshake_error = self._security.handshake_error(self.address, full)
            if handshake_error is not None:
                return handshake_error
            hint = self._security.hint(full) or next((text for mark, text in _NOT_GRPC.items() if mark in full), "")
            details = f"{self.address}: {hint}" if hint else details
        if code in _LOST or (code is grpc.StatusCode.INTERNAL and any(text in details for text in _LOST_IN_CORE)):
            return BrokerUnreachableError(details or f"{self.address} ended the call")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            if "Received message larger than max" in details:  # preceded by the side, after other words
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

    async def send(self, message: bytes) -> None:
        """Sends one message; awaiting it applies flow control."""
        try:
            await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise await self._error(error) from None
        except asyncio.CancelledError:
            self._reraise_if_cancelled()
            raise self._closed() from None

    async def receive(self, *, timeout_ms: int | None = None) -> bytes:
        """The next message. A timeout closes the stream: a later message could not be matched to its request."""
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                message = await self._call.read()
        except TimeoutError:
            self.close()
            raise BrokerUnreachableError(
                f"{self._connection.address} did not respond to {self._what} for {(timeout_ms or 0) / 1000:.1f} s"
            ) from None
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise await self._error(error) from None
        except asyncio.CancelledError:
            self._reraise_if_cancelled()
            raise self._closed() from None
        if message is grpc.aio.EOF:
            raise BrokerUnreachableError(f"{self._connection.address} ended the {self._what} stream")
        return cast("bytes", message)

    def close(self) -> None:
        """Cancels the stream without waiting."""
        self._is_closed = True
        self._call.cancel()

    def _reraise_if_cancelled(self) -> None:
        """Re-raises a cancellation of this task; gRPC also raises CancelledError if close() cancelled the call."""
        task = asyncio.current_task()
        if not self._is_closed or (task is not None and task.cancelling()):
            raise

    def _closed(self) -> BrokerUnreachableError:
        return BrokerUnreachableError(f"the {self._what} stream to {self._connection.address} was closed")

    async def _error(self, error: BaseException) -> BrokerdError:
        """Why the stream ended; InvalidStateError only says that it did."""
        if self._is_closed:
            return self._closed()
        if isinstance(error, grpc.aio.AioRpcError):
            return self._connection.error_from(error, self._what)
        code = await self._call.code()
        if code is grpc.StatusCode.OK:
            return BrokerUnreachableError(f"{self._connection.address} ended the {self._what} stream")
        details = await self._call.details() or ""
        trailer = await self._call.trailing_metadata() or grpc.aio.Metadata()
        rpc_error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailer, details)
        return self._connection.error_from(rpc_error, self._what)


def _shortened(details: str) -> str:
    """gRPC's text without its wrapping: "failed to connect to all addresses; last error: ... Connection refused (111)"."""
    found = _CONNECT_FAILURE.search(details)
    text = found.group(1) if found else details
    return plain_text(_RESOLVER_CHATTER.sub("", text).removeprefix("connect: ").strip(), _DETAILS_MAX_CHARACTERS)
