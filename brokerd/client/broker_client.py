"""Client of a cluster: routes calls to nodes, caches leaders and limits, retries. Bound to one event loop.

Connections are opened on first use, one per node. A call is retried until default.api.timeout.ms, then raises
BrokerUnreachableError (with address and duration) or the broker's WireError. Streams are opened here and retried by their users.
The calls themselves are in topics.py, offsets.py, groups.py and transactions.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from google.protobuf.message import Message

from brokerd import __version__
from brokerd.backoff import backoff_ms
from brokerd.client.connection import NOTHING, Asked, Awaited, Connection, RawStream, Silence, loop_ms, patience_ms
from brokerd.client.metadata import ANY_NODE as ANY_NODE
from brokerd.client.metadata import NOTHING_KNOWN, Metadata, Nodes, id_of, read_metadata, read_node
from brokerd.client.response_checks import checked_count, made_plain
from brokerd.client.security import ClientSecurity
from brokerd.clock import Clock
from brokerd.config.client import GRPC_MAX_MESSAGE_BYTES, ClientConfig, parse_bootstrap_servers
from brokerd.errors import (
    AuthenticationError,
    BrokerdError,
    BrokerUnreachableError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    ErrorCode,
    Fate,
    FencedLeaderEpochError,
    NotCoordinatorError,
    NotLeaderError,
    NotReadyError,
    OffsetNotAvailableError,
    UnknownLeaderEpochError,
    UnsupportedVersionError,
    WireError,
    fresh,
)
from brokerd.ids import NO_EPOCH, NO_LEADER, TopicIdPartition, TopicInfo
from brokerd.wire.errors import from_proto
from brokerd.wire.methods import OF_COORDINATOR
from brokerd.wire.v1 import metadata_pb2

T = TypeVar("T")
R = TypeVar("R", bound=Message)
WIRE_VERSION = 1
PARTITIONS_PER_REQUEST = 1_000  # for a broker that does not report max.partitions.per.request
_HEARS_MS = 10_000  # how long a node may take to learn of a topic that another node has
_OTHERS_MS = 1_000  # timeout when all nodes are asked at once, in place of one that is cut off or behind
_ALL_CUT_OFF_MS = 2_000  # pause after such a round in which all nodes were cut off
_TOPICS_MAX = 100_000  # cached: a long-lived client may see many that were deleted since
# The first failure may be a lost connection; the second, a fraction of a second later, is worth a warning. Elections are ordinary:
# their errors are warned about only after _ELECTION_MS.
_SPEAKS_AT_FAILURE = 2
_REFUSED = "Connection refused"  # nothing listens at the address
_ELECTION_MS = 10_000
_OF_ELECTIONS = (
    NotLeaderError,
    FencedLeaderEpochError,
    UnknownLeaderEpochError,
    OffsetNotAvailableError,
    NotCoordinatorError,
    CoordinatorNotAvailableError,
    CoordinatorLoadInProgressError,
)
# How long a client that was never accepted retries after a refusal: longer than a restart or a reload of tokens takes, but short
# enough to report a wrong token soon. Once a client was accepted, only the call's own timeout limits retries.
REFUSALS_MS = 3_000
# Timeout of the first attempt at an address, if there are others; each attempt without an answer doubles it. gRPC keeps connecting
# between attempts, so a distant node has more time than this.
_FIRST_ATTEMPT_MS = 1_000
# A cancelled attempt shorter than this does not show that its node does not respond.
_SHORT_MS = 1_000
# Their action is REFRESH_AND_RETRY, but a broker that responds knows all of its topics: retrying would only hide a mistyped name.
_DEFINITE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)

logger = logging.getLogger(__name__)


def check_client(config: ClientConfig) -> None:
    """Raises ConfigError for invalid addresses and security settings; does not connect."""
    security = ClientSecurity(config)
    for address in parse_bootstrap_servers(config.bootstrap_servers):
        security.check_address(address)


class BrokerClient:
    """Connections to one broker, or to the nodes of a cluster, with cached metadata and limits."""

    def __init__(self, config: ClientConfig, clock: Clock, *, is_retrying: bool = True) -> None:
        """Does not connect yet. With `is_retrying` False every call is tried once, for an owner that retries itself. Raises
        ConfigError for invalid bootstrap.servers or security settings."""
        self.config = config
        self.clock = clock
        self._nodes = Nodes(parse_bootstrap_servers(config.bootstrap_servers))
        self._security = ClientSecurity(config)
        self._is_retrying = is_retrying
        self._was_accepted = False
        self._connections: dict[str, Connection] = {}
        self._topics: dict[bytes, _Seen] = {}
        self._server_infos: dict[str, metadata_pb2.GetServerInfoResponse] = {}
        self._unanswered: Counter[str] = Counter()  # by address: attempts in a row without an answer
        self._patience_ms = patience_ms(config.request_timeout_ms)
        self._silence = Silence(self._patience_ms, self._look_into)
        self._random = random.SystemRandom()
        self._all_cut_off_until_ms = 0

    async def close(self) -> None:
        """Closes all connections; calls in progress fail."""
        self._silence.close()
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            await connection.close()

    # ---- the cluster

    async def server_info(self) -> metadata_pb2.GetServerInfoResponse:
        """The broker's version and limits; requested once per connection. Raises UnsupportedVersionError if it speaks another wire
        version."""
        connection = await self.retried(lambda timeout_ms: self._connected(ANY_NODE, timeout_ms))
        return self._server_infos[connection.address]

    async def metadata(self, topics: Sequence[str] | None = None, known: Mapping[bytes, int] = NOTHING_KNOWN) -> Metadata:
        """The broker's current nodes, and topics by name (None = all). Topics that do not exist are in `errors`.

        `known`: topic ids, each with a partition count seen before. A node that lacks one of these topics although it exists, or
        reports fewer partitions, is behind: the other nodes are asked, for up to 10 s.
        """
        request = metadata_pb2.MetadataRequest(topics=topics or (), all_topics=topics is None)
        metadata, end_ms = await self._told(request), self.clock.monotonic_ms() + _HEARS_MS
        while self._nodes.are_several and await self._is_behind(metadata, topics, known):
            answers = await self._told_by_all(request)
            for each in answers:
                if not await self._is_behind(each, topics, known):
                    return await self._remembered(each)
            if len(answers) == len(self._nodes.addresses) or self.clock.monotonic_ms() > end_ms:
                break  # the topic has lost partitions, as after a restore
            await asyncio.sleep(self.config.retry_backoff_max_ms / 1000)
        return metadata

    async def metadata_by_id(self, topic_ids: Sequence[bytes]) -> Metadata:
        """As `metadata`, for topic ids; errors are under the id in hex."""
        return await self._told(metadata_pb2.MetadataRequest(topic_ids=topic_ids))

    async def _told(self, request: metadata_pb2.MetadataRequest) -> Metadata:
        """One node's metadata. If that node is cut off from the coordination store, the metadata of a node that is not, if any."""
        metadata = await self._remembered(read_metadata(await self.call(request, metadata_pb2.MetadataResponse)))
        if metadata.is_cut_off and self.clock.monotonic_ms() >= self._all_cut_off_until_ms:
            for each in await self._told_by_all(request):
                if not each.is_cut_off:
                    return await self._remembered(each)
            self._all_cut_off_until_ms = self.clock.monotonic_ms() + _ALL_CUT_OFF_MS  # the store itself may be down
        return metadata

    async def _told_by_all(self, request: metadata_pb2.MetadataRequest) -> list[Metadata]:
        """Asks all nodes at once; returns the answers that arrive within a second. `any` becomes a node that reaches the store."""

        async def ask(address: str) -> Metadata | None:
            try:
                connection = await self._connected(address, _OTHERS_MS)
                response = await connection.call("Metadata", request, metadata_pb2.MetadataResponse, timeout_ms=_OTHERS_MS)
                metadata = read_metadata(response)
            except BrokerdError:  # or an invalid response: the caller has an answer already
                return None
            if not metadata.is_cut_off and address in self._nodes.addresses:  # it may have left meanwhile
                self._nodes.any = address
            return metadata

        answers = await asyncio.gather(*map(ask, self._nodes.addresses))
        return [each for each in answers if each is not None]

    async def _is_behind(self, metadata: Metadata, topics: Sequence[str] | None, known: Mapping[bytes, int]) -> bool:
        """True if the node that sent `metadata` lacks a topic or a partition in `known`."""
        told = {topic.topic_id: topic for topic in metadata.topics.values()}
        missing = [topic_id for topic_id in known if topic_id not in told]
        if missing:  # deleted, recreated, no longer requested, or not known to this node yet
            there = (await self.metadata_by_id(missing)).topics.values()
            if any(topics is None or topic.name in topics for topic in there):
                return True
        return any(topic.partition_count < known.get(topic_id, 0) for topic_id, topic in told.items())

    async def leader(self, tp: TopicIdPartition) -> int:
        """Node id of a partition's leader; requests it if unknown. Raises UnknownTopicIdError for a deleted topic,
        UnknownTopicOrPartitionError, and NotLeaderError while there is no leader."""
        topic = self._fresh(tp.topic_id)
        if topic is None or tp.partition >= len(topic.leaders):
            answered = (await self.metadata_by_id([tp.topic_id])).topic_by_id(tp.topic_id)
            seen = self._topics.get(tp.topic_id)  # None: another call has forgotten it meanwhile
            topic = seen.topic if seen is not None else answered
            id_of(topic, tp.partition)
        node_id = topic.leaders[tp.partition]
        if node_id == NO_LEADER:
            unknown = f"partition {tp.partition} of topic '{topic.name}' has no leader at present"
            raise NotLeaderError(topic.problems.get(tp.partition, unknown))
        return node_id

    def leader_epoch(self, tp: TopicIdPartition) -> int:
        """The highest leader epoch that this client has seen for a partition; -1 = unknown."""
        seen = self._topics.get(tp.topic_id)
        return seen.topic.leader_epoch(tp.partition) if seen is not None else NO_EPOCH

    def _fresh(self, topic_id: bytes) -> TopicInfo | None:
        """A topic that was described less than metadata.max.age.ms ago."""
        seen = self._topics.get(topic_id)
        if seen is None or self.clock.monotonic_ms() - seen.at_ms >= self.config.metadata_max_age_ms:
            return None
        return seen.topic

    @property
    def has_several_nodes(self) -> bool:
        """True if the newest metadata lists more than one node."""
        return self._nodes.are_several

    def is_known_elsewhere(self, tp: TopicIdPartition) -> bool:
        """True if the newest metadata has the partition and there are several nodes: a node that does not know it may be behind."""
        seen = self._topics.get(tp.topic_id)
        return self._nodes.are_several and seen is not None and tp.partition < seen.topic.partition_count

    async def refresh_leaders(self, tps: Iterable[TopicIdPartition]) -> None:
        """Looks up the leaders of these partitions again; topics that no longer exist are dropped from the cache."""
        topic_ids = sorted({tp.topic_id for tp in tps})
        metadata = await self.metadata_by_id(topic_ids)
        for topic_id in topic_ids:
            if topic_id.hex() in metadata.errors:
                self._topics.pop(topic_id, None)

    async def partitions_per_request(self, node: int | str = ANY_NODE, *, refresh: bool = False) -> int:
        """How many partitions one request to a node (id or address) may name; `refresh` requests it again, since the node may have
        restarted. Raises BrokerUnreachableError."""
        if refresh:
            self._server_infos.pop(self._address(node), None)
        return max(1, await self._limit(node, "max.partitions.per.request", PARTITIONS_PER_REQUEST))

    async def request_bytes_max(self, node_id: int = ANY_NODE) -> int:
        """Size in bytes of the largest request that a node accepts, if it reports one. Raises BrokerUnreachableError."""
        limit = await self._limit(node_id, "socket.request.max.bytes", GRPC_MAX_MESSAGE_BYTES)
        return min(limit, GRPC_MAX_MESSAGE_BYTES) if limit > 0 else GRPC_MAX_MESSAGE_BYTES

    async def _limit(self, node: int | str, name: str, otherwise: int) -> int:
        connection = await self._connected(node, self.config.request_timeout_ms)
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

    def retry_wait_ms(self, retries: CallRetries, error: BrokerdError, *, is_quiet: bool = False) -> int:
        """After a failed attempt: how long to wait before the next, or raises the final error. `is_quiet`: logs nothing."""
        now_ms = self.clock.monotonic_ms()
        wait_ms = retries.failed(error, now_ms=now_ms, random=self._random.random())
        if not self._is_retrying and isinstance(error, WireError):
            raise error
        if wait_ms is None or not self._is_retrying:
            raise self._final_error(retries, error, now_ms) from None
        level = retries.level_of(error, now_ms=now_ms)
        if level and not is_quiet:
            left_s = round(retries.left_ms(error, now_ms=now_ms) / 1000)
            logger.log(level, "%s: retrying for up to %d s", named(error), left_s)
        return wait_ms

    def _final_error(self, retries: CallRetries, error: BrokerdError, now_ms: int) -> BrokerdError:
        if isinstance(error, UnknownLeaderEpochError):
            # No node has known this epoch for the length of a whole call, so the data may be a restored copy.
            self._topics.clear()
        elif isinstance(error, NotLeaderError):  # or a leader in an epoch without one: etcd may be restored
            known = self._topics.items()
            self._topics = {one: _Seen(seen.topic.without_leaderless_epochs(), seen.at_ms) for one, seen in known}
        if not self._is_retrying and isinstance(error, BrokerUnreachableError):
            return BrokerUnreachableError(named(error), is_final=True)  # its owner says how long it tried
        return retries.final_error(error, now_ms=now_ms)

    # ---- calls

    async def call(
        self, request: Message, response_type: type[R], *, failures: list[BrokerdError] | None = None, timeout_ms: int | None = None
    ) -> R:
        """Makes a call that any node or the coordinator answers; retries until `timeout_ms` (default.api.timeout.ms). `failures`
        collects the errors of failed attempts."""

        async def attempt(attempt_timeout_ms: int) -> R:
            if _method_of(response_type) not in OF_COORDINATOR:
                if response_type is metadata_pb2.MetadataResponse:
                    attempt_timeout_ms = min(attempt_timeout_ms, self._attempt_ms(self._nodes.any, self._patience_ms))
                return await self.call_once(ANY_NODE, request, response_type, attempt_timeout_ms)
            return await self.at_coordinator(
                lambda address, left_ms: self.call_once(address, request, response_type, left_ms), attempt_timeout_ms
            )

        return await self.retried(attempt, failures=failures, timeout_ms=timeout_ms)

    async def at_coordinator(self, ask: Callable[[str, int], Awaitable[T]], timeout_ms: int) -> T:
        """One attempt of a coordinator call: `ask` gets an address, for all requests of the attempt, and the time left in ms.

        While no coordinator is known, any node is asked first, since a single node is its own coordinator. Only a refusal of this
        guess is followed at once by a lookup, so nodes that name each other as coordinator are asked at the pace of the retries.
        """
        until_ms = loop_ms() + timeout_ms
        if self._nodes.is_coordinator_lost:
            await self._find_coordinator(until_ms)
        is_guess = self._nodes.coordinator is None
        try:
            return await self._ask_coordinator(ask, until_ms)
        except NotCoordinatorError as error:
            if not is_guess or error.fate is Fate.UNKNOWN:  # it may have begun the request: the caller counts this attempt
                raise
        await self._find_coordinator(until_ms)
        return await self._ask_coordinator(ask, until_ms)

    async def _ask_coordinator(self, ask: Callable[[str, int], Awaitable[T]], until_ms: int) -> T:
        known = self._nodes.coordinator
        address = known or self._nodes.any
        try:
            answer = await ask(address, _left_ms(until_ms))
        except (BrokerUnreachableError, NotReadyError, NotCoordinatorError, CoordinatorNotAvailableError) as error:
            self._nodes.coordinator_lost(address)
            if known is not None and isinstance(error, NotCoordinatorError):
                self._nodes.failed(self._nodes.any)  # it may have named this one: ask another node
            raise
        self._nodes.coordinator_found(address)
        return answer

    async def _find_coordinator(self, until_ms: int) -> None:
        request = metadata_pb2.FindCoordinatorRequest()
        asked = self._nodes.any
        try:
            timeout_ms = min(_left_ms(until_ms), self._attempt_ms(asked, self._patience_ms))
            response = await self.call_once(asked, request, metadata_pb2.FindCoordinatorResponse, timeout_ms)
        except CoordinatorNotAvailableError:
            self._nodes.failed(asked)  # another node may know more
            raise
        self._nodes.coordinator_found(read_node("FindCoordinator", response.coordinator).address)

    async def call_once(
        self, node: int | str, request: Message, response_type: type[R], timeout_ms: int, asked: Asked = NOTHING
    ) -> R:
        """Makes a call to one node, by id or address, without retries. Raises the error of the whole response, if it has one."""
        address = self._address(node)
        connection = await self._connected(address, timeout_ms)
        with self._noticing(address):
            name = _method_of(response_type)
            response = await connection.call(name, request, response_type, timeout_ms=timeout_ms, asked=asked)
            self._was_accepted = True
            # The error of the whole response, or of its only result.
            holder: Any = response if "error" in response.DESCRIPTOR.fields_by_name else getattr(response, "result", None)
            if holder is not None and holder.HasField("error"):
                raise from_proto(holder.error)
            return response

    @contextlib.contextmanager
    def _noticing(self, address: str) -> Iterator[None]:
        """Directs later calls away from a node that does not answer in time, or is not ready."""
        began_ms = loop_ms()
        try:
            yield
            self._unanswered.pop(address, None)
        except (BrokerUnreachableError, NotReadyError):
            self._failed(address)
            raise
        except asyncio.CancelledError:
            if loop_ms() - began_ms >= _SHORT_MS:  # the caller ran out of time
                self._failed(address)
            raise

    def _lost(self, address: str) -> None:
        """Called when a connection is lost: the node may restart with other limits."""
        self._server_infos.pop(address, None)
        self._nodes.failed(address)

    def _failed(self, address: str) -> None:
        self._nodes.failed(address)
        self._unanswered[address] += 1

    def _attempt_ms(self, address: str, first_ms: int) -> int:
        """Timeout of one attempt at an address; leaves time for the other addresses."""
        addresses = len(self._nodes.addresses)
        share_ms = max(1, self.config.api_timeout_ms // addresses)
        doublings = min(self._unanswered[address], 20)
        return min(share_ms, first_ms << doublings) if addresses > 1 else share_ms

    async def retried(
        self,
        attempt: Callable[[int], Awaitable[T]],
        *,
        failures: list[BrokerdError] | None = None,
        timeout_ms: int | None = None,
    ) -> T:
        """Repeats `attempt`, which gets its time limit in ms, until it succeeds or `timeout_ms` has passed
        (default.api.timeout.ms)."""
        now_ms = self.clock.monotonic_ms()
        retries = self.retries(now_ms, timeout_ms)
        answer: WireError | None = None
        unreached = 0  # nodes in a row that did not respond
        while True:
            timeout_ms = retries.attempt_timeout_ms(self.config.request_timeout_ms, now_ms=now_ms)
            try:
                return await attempt(timeout_ms)
            except BrokerdError as failure:
                error = failure
                unreached = unreached + 1 if isinstance(error, BrokerUnreachableError) else 0
                if isinstance(error, WireError):
                    answer = error
                elif answer is not None and unreached:
                    is_cut_short = timeout_ms < self.config.request_timeout_ms and not retries.left_ms(
                        error, now_ms=self.clock.monotonic_ms()
                    )
                    if (unreached == 1 and is_cut_short) or unreached < len(self._nodes.addresses):
                        # The attempt was cut short, or only some nodes are down. The last answer explains more than this error;
                        # its fate is UNKNOWN, since this attempt may have been carried out.
                        error = fresh(answer)
                        error.fate = Fate.UNKNOWN
                await asyncio.sleep(self.retry_wait_ms(retries, error) / 1000)
                if failures is not None:
                    failures.append(failure)
                now_ms = self.clock.monotonic_ms()
                if not retries.left_ms(error, now_ms=now_ms):
                    # The wait used up the remaining time: a further attempt could only fail, and would hide the actual cause.
                    raise self._final_error(retries, error, now_ms) from None

    async def ask_leaders(
        self,
        head: Any,
        parts: Mapping[TopicIdPartition, Any],
        response_type: type[Message],
        *,
        timeout_ms: int | None = None,
        is_partial: bool = False,
    ) -> dict[TopicIdPartition, Any]:
        """Sends each partition's part of a request to its leader, and retries what may succeed later until `timeout_ms`
        (default.api.timeout.ms); returns each partition's result or WireError, in the order of `parts`. `head`: the request without
        its partitions. `is_partial`: partitions whose leader does not answer get a NotLeaderError."""
        results: dict[TopicIdPartition, Any] = {}
        pending = list(parts)
        needs_refresh = False  # from the second attempt on

        async def ask(node_id: int, tps: Sequence[TopicIdPartition], timeout_ms: int) -> None:
            for group in await self.chunks(node_id, tps):
                request = self._request_for(head, {tp: parts[tp] for tp in group})
                asked = Asked({tp: self.leader_epoch(tp) for tp in group})
                response: Any = await self.call_once(node_id, request, response_type, timeout_ms, asked)
                found = checked_count(_method_of(response_type), response.results, len(group))
                for tp, one in zip(group, found, strict=True):
                    results[tp] = self._judged(tp, from_proto(one.error)) if one.HasField("error") else one
                unanswered.difference_update(group)

        unanswered: set[TopicIdPartition] = set()

        async def attempt(timeout_ms: int) -> None:
            nonlocal pending, needs_refresh
            by_leader = await self._by_leader(pending, results, refresh=needs_refresh)
            needs_refresh = True
            unanswered.update(*by_leader.values())
            calls = [ask(node_id, tps, timeout_ms) for node_id, tps in by_leader.items()]
            failures = [error for error in await asyncio.gather(*calls, return_exceptions=True) if error is not None]
            final = next((error for error in failures if not is_repeatable(error)), None)
            if final is not None:
                raise final
            pending = [tp for tp in pending if tp in unanswered or is_repeatable(results[tp])]
            if failures:
                raise failures[0]
            if pending:
                raise results[pending[0]]

        try:
            await self.retried(attempt, timeout_ms=timeout_ms)
        except (WireError, BrokerUnreachableError) as error:
            if is_partial:
                results = {tp: NotLeaderError(f"its leader did not answer: {error}") for tp in parts} | results
            elif not isinstance(error, WireError) or any(tp not in results for tp in parts):
                raise
        return {tp: results[tp] for tp in parts}

    def _judged(self, tp: TopicIdPartition, error: WireError) -> WireError:
        """A leader's error for a partition; NotLeaderError if the leader is behind: it lacks a topic that another node has."""
        if error.code in _DEFINITE and self.is_known_elsewhere(tp):
            return NotLeaderError(f"the leader has not heard of it yet: {error.message}")
        return error

    def _request_for(self, head: Any, parts: Mapping[TopicIdPartition, Any]) -> Message:
        """A request to one leader, with the leader epochs of the latest metadata if the broker checks them for this request."""
        request: Any = type(head)()
        request.CopyFrom(head)
        for tp, part in parts.items():
            if "current_leader_epoch" in part.DESCRIPTOR.fields_by_name:
                part.current_leader_epoch = self.leader_epoch(tp)
            request.partitions.append(part)
        return cast("Message", request)

    async def _by_leader(
        self, tps: Sequence[TopicIdPartition], results: dict[TopicIdPartition, Any], *, refresh: bool
    ) -> dict[int, list[TopicIdPartition]]:
        """Groups `tps` by leader. Errors of deleted topics go to `results`."""
        unknown = sorted({tp.topic_id for tp in tps if refresh or self._fresh(tp.topic_id) is None})
        metadata = await self.metadata_by_id(unknown) if unknown else None
        groups: dict[int, list[TopicIdPartition]] = {}
        for tp in tps:
            seen = self._topics.get(tp.topic_id)
            topic = seen.topic if seen is not None else None
            try:
                if metadata is not None and tp.topic_id in unknown:
                    described = metadata.topic_by_id(tp.topic_id)
                    topic = topic or described  # not cached if there are too many topics
            except WireError as error:
                results[tp] = error
                continue
            leaders = topic.leaders if topic is not None else ()
            # A partition missing when the topic was last looked up may exist by now: any node can tell.
            groups.setdefault(leaders[tp.partition] if tp.partition < len(leaders) else ANY_NODE, []).append(tp)
        return groups

    async def _connected(self, node: int | str, timeout_ms: int) -> Connection:
        """The connection to a node. Its first call checks that both sides speak the same wire version."""
        address = self._address(node)
        connection = self._connections.get(address)
        if connection is None:
            on_lost = functools.partial(self._lost, address)
            connection = self._connections[address] = Connection(address, self._security, on_lost, self._silence)
        if address not in self._server_infos:
            request = metadata_pb2.GetServerInfoRequest()
            timeout_ms = min(timeout_ms, self._attempt_ms(address, _FIRST_ATTEMPT_MS))
            try:
                response = await connection.call(
                    "GetServerInfo", request, metadata_pb2.GetServerInfoResponse, timeout_ms=timeout_ms
                )
            except (BrokerUnreachableError, NotReadyError, asyncio.CancelledError):  # cancelled: the caller ran out of time
                self._failed(address)
                raise
            self._unanswered.pop(address, None)
            self._server_infos[address] = _checked(made_plain(response), address)
            self._nodes.answered(address, response.node_id)
        return connection

    async def _look_into(self, address: str, waiting: Sequence[Awaited]) -> None:
        """Asks another node about a silent one. If the silent node is gone, or other nodes lead all partitions of a waiting
        request, its connection is given up, and the requests that wait there are repeated elsewhere."""
        node_id, connection = self._nodes.id_at(address), self._connections.get(address)
        self._nodes.ask_another(address)
        other = self._nodes.any
        if node_id is None or connection is None or self._nodes.id_at(other) == node_id or other == address:
            return
        topic_ids = sorted({tp.topic_id for one in waiting for tp in one.asked.epochs})
        request = metadata_pb2.MetadataRequest(topic_ids=topic_ids)
        try:
            timeout_ms = min(self.config.request_timeout_ms, self._attempt_ms(other, self._patience_ms))
            metadata = read_metadata(await self.call_once(other, request, metadata_pb2.MetadataResponse, timeout_ms))
            await self._remembered(metadata)
        except BrokerdError:
            return  # the next check asks another node
        leaders = {topic.topic_id: topic for topic in metadata.topics.values()}
        if node_id not in metadata.nodes:
            reason = f"{address} does not answer, and node {node_id} is gone, as {other} says"
        elif any(_is_led_elsewhere(one.asked.epochs, leaders, node_id) for one in waiting if not one.is_over):
            reason = f"{address} does not answer, and another node than {node_id} leads what it was asked for, as {other} says"
        else:
            return
        if self._connections.get(address) is connection and not all(one.is_over for one in waiting):
            logger.info("%s: the connection is closed", reason)
            del self._connections[address]
            self._server_infos.pop(address, None)
            self._failed(address)
            await connection.give_up(reason)

    def _address(self, node: int | str) -> str:
        return node if isinstance(node, str) else self._nodes.address(node)

    async def _remembered(self, metadata: Metadata) -> Metadata:
        now_ms, max_age_ms = self.clock.monotonic_ms(), self.config.metadata_max_age_ms
        known = [(self._topics.get(topic.topic_id), topic) for topic in metadata.topics.values()]
        if known and all(seen is not None and seen.topic == topic and now_ms - seen.at_ms < max_age_ms for seen, topic in known):
            self._nodes.ask_another(self._nodes.any)  # a leader failed, and this node still names it: it may be cut off
        for topic in metadata.topics.values():
            seen = self._topics.pop(topic.topic_id, None)  # keeps the newest last
            newest = topic if seen is None or seen.topic == topic else topic.newer_than(seen.topic)
            self._topics[topic.topic_id] = _Seen(newest, now_ms)
        for topic_id in list(itertools.islice(self._topics, max(0, len(self._topics) - _TOPICS_MAX))):
            del self._topics[topic_id]
        self._nodes.found({node_id: node.address for node_id, node in metadata.nodes.items()})
        for address in self._nodes.unused(self._connections):
            connection = self._connections.get(address)  # None: another call has closed it meanwhile
            if connection is not None and connection.is_idle:  # a node wrongly taken for dead still serves its streams
                self._server_infos.pop(address, None)
                del self._connections[address]
                await connection.close()
        return metadata


class _Seen(NamedTuple):
    """A topic, and the time of its last description."""

    topic: TopicInfo
    at_ms: int


def _left_ms(until_ms: int) -> int:
    return max(1, until_ms - loop_ms())


def _is_led_elsewhere(epochs: Mapping[TopicIdPartition, int], topics: Mapping[bytes, TopicInfo], node_id: int) -> bool:
    """True if another node leads each of the partitions, in a higher epoch than the given one."""

    def is_led_elsewhere(tp: TopicIdPartition, epoch: int) -> bool:
        topic = topics.get(tp.topic_id)
        if topic is None or tp.partition >= len(topic.leaders):
            return False
        return topic.leaders[tp.partition] not in (node_id, NO_LEADER) and topic.leader_epoch(tp.partition) > epoch

    return bool(epochs) and all(is_led_elsewhere(tp, epoch) for tp, epoch in epochs.items())


def _method_of(response_type: type[Message]) -> str:
    return response_type.DESCRIPTOR.name.removesuffix("Response")


def _checked(info: metadata_pb2.GetServerInfoResponse, address: str) -> metadata_pb2.GetServerInfoResponse:
    if not info.min_wire_version <= WIRE_VERSION <= info.max_wire_version:
        raise UnsupportedVersionError(
            f"{address} runs brokerd {info.software_version:.60}, which speaks wire versions {info.min_wire_version} to "
            f"{info.max_wire_version}; this client ({__version__}) speaks {WIRE_VERSION}: upgrade the older of the two"
        )
    return info


def named(error: BrokerdError) -> str:
    """The error's text with the address it concerns."""
    address = error.address if isinstance(error, BrokerUnreachableError) else ""
    return f"{error} (at {address})" if address and address not in error.message else str(error)


def is_repeatable(error: BaseException) -> bool:
    """True if the same request may succeed a moment later."""
    if isinstance(error, WireError):
        return error.retriable and error.code not in _DEFINITE
    if isinstance(error, AuthenticationError):
        return error.may_pass
    return isinstance(error, BrokerUnreachableError) and not error.is_final


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
        self._has_warned = False
        self._addresses: dict[str, None] = {}  # those that did not respond, in order

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
        self._has_warned = False
        self._addresses.clear()

    def level_of(self, error: BaseException, *, now_ms: int) -> int:
        """The level at which to log the last failure; 0 = do not log."""
        if self._has_warned or self.failures < _SPEAKS_AT_FAILURE:
            return 0
        if isinstance(error, _OF_ELECTIONS) and now_ms - self._started_ms < _ELECTION_MS:
            return logging.INFO if self.failures == _SPEAKS_AT_FAILURE else 0
        self._has_warned = True
        return logging.WARNING

    def failed(self, error: BaseException, *, now_ms: int, random: float) -> int | None:
        """Wait in ms before the next attempt; None if retrying is pointless or no time is left."""
        if not is_repeatable(error):
            return None
        self.failures += 1
        if isinstance(error, BrokerUnreachableError) and error.address:
            self._addresses[error.address] = None
        wait_ms = backoff_ms(self.failures, first_ms=self._backoff_initial_ms, max_ms=self._backoff_max_ms, random=random)
        if isinstance(error, WireError):
            wait_ms = max(wait_ms, error.retry_after_ms)
        return wait_ms if now_ms + wait_ms < self._started_ms + self._limit_ms(error) else None

    def _limit_ms(self, error: BaseException) -> int:
        return self._refusals_ms if isinstance(error, AuthenticationError) else self._timeout_ms

    def final_error(self, error: BrokerdError, *, now_ms: int) -> BrokerdError:
        """The error to raise once `failed` has returned None, with the duration of the attempts, and the addresses that did not
        respond."""
        tried = f"{(now_ms - self._started_ms) / 1000:.1f} s"
        if isinstance(error, BrokerUnreachableError) and is_repeatable(error):
            at = f" at {', '.join(self._addresses)}" if self._addresses else ""
            remedy = "; start the broker, or correct the address" if error.message.startswith(_REFUSED) else ""
            return BrokerUnreachableError(f"no broker responded{at} in {tried}: {error.message}{remedy}", is_final=True)
        if isinstance(error, (WireError, AuthenticationError)) and is_repeatable(error):
            error.message += f" (tried {self.failures} times in {tried})"
        return error
