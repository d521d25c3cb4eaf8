"""Client of etcd's v3 API over gRPC: connections and fail-over, reads, transactions, watches, leases; bound to one event loop.

One endpoint is used at a time, the next one after a failure. Reads are linearizable and repeated until the time limit. A
transaction is sent once: if its connection breaks, its fate is unknown, and only a read can tell. etcd's term and cluster id are
remembered: an answer from an older term or from another cluster is refused.

A watch tells all changes below a prefix, without a gap or a repetition, over lost connections, compactions and changes of the
endpoint. It begins with all keys at one revision, and goes on with the changes after it. Its stream is opened before the keys are
read, and both begin anew after a lost connection: etcd may have gone back meanwhile, and have passed the revision again at which
the stream would be resumed. They begin anew every ten minutes, too, since a watch has been seen to miss a change at a compaction
(etcd-io/etcd#18089). So the consumer takes a Snapshot for the whole truth at any time, also one of an older revision than the last.

A lease, whose keys go when a node goes, is kept alive in the background until it is lost, which is said once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from brokerd.clock import Clock, stopwatch_ns
from brokerd.coordination.v3.etcd_pb2 import (
    Compare,
    DeleteRangeRequest,
    Event,
    LeaseGrantRequest,
    LeaseGrantResponse,
    LeaseKeepAliveRequest,
    LeaseKeepAliveResponse,
    LeaseRevokeRequest,
    LeaseRevokeResponse,
    PutRequest,
    RangeRequest,
    RangeResponse,
    RequestOp,
    ResponseHeader,
    StatusRequest,
    StatusResponse,
    TxnRequest,
    TxnResponse,
    WatchCreateRequest,
    WatchRequest,
    WatchResponse,
)
from brokerd.errors import CoordinationError
from brokerd.wire.texts import in_plain_words

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Message)
RECONCILE_MS = 600_000  # a watch begins anew so often
_RETRY_MS = 100  # before the next endpoint is tried
_REFUSED_MS = 1_000  # before a watch that has not worked for so long is asked for again
_RENEWALS_PER_TTL = 3
_ATTEMPTS_PER_TTL = 5  # at least: a member that hangs costs one of them
_STATUS = "/etcdserverpb.Maintenance/Status"
_VERSION_MIN = (3, 4)
_PAGE = 1_000  # keys in one response, as long as they fit in a message
_DETAILS_MAX = 300  # characters
_MESSAGE_MAX_BYTES = 33_554_432
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", _MESSAGE_MAX_BYTES),
    ("grpc.max_send_message_length", _MESSAGE_MAX_BYTES),
    # A peer that went away without a word is noticed after 15 s. etcd closes connections that ping more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
)
# With it etcd refuses calls at a member that has lost its leader, instead of letting them wait at it, or of answering with the term
# of an election that it cannot win: whoever remembered that would refuse all other members.
_HAS_LEADER = (("hasleader", "true"),)
_LOST = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
)
_LINEARIZABLE = "/etcdserverpb.KV/"  # calls that a member which lags behind does not answer by itself
_COMPACTED = "required revision has been compacted"
_TOO_LARGE = "larger than max"
_NO_SPACE = "database space exceeded"
_HANDSHAKES = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS, or it does and this node does not: check coordination.ssl.ca.file",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not trusted: set coordination.ssl.ca.file to the authority that signed it",
    "is not in peer certificate": "its certificate is for other names: use one of them in coordination",
    "Hostname Verification Check failed": "its certificate is for other names: use one of them in coordination",
    "CERTIFICATE_REQUIRED": "it wants a certificate: set coordination.ssl.certificate.file and coordination.ssl.key.file",
}
# A connection that is closed in its handshake.
_NOT_CONNECTED = "failed to connect to all addresses"
_HANGS_UP = ("Socket closed", "Handshake read failed", "TSI_DATA_CORRUPTED")
_SPEAK_TLS = (
    "it closes connections at once: if it speaks TLS, set coordination.ssl.ca.file, and if it wants a certificate, "
    "coordination.ssl.certificate.file and coordination.ssl.key.file"
)
_SPEAK_OTHERWISE = (
    "it closes connections at once: if it wants a certificate, set coordination.ssl.certificate.file and "
    "coordination.ssl.key.file; if it does not speak TLS, leave coordination.ssl.ca.file out"
)


class KeyValue(NamedTuple):
    """A key. Revisions number the changes of the whole store."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int


class Snapshot(NamedTuple):
    """All keys below a prefix at one revision, by key."""

    revision: int
    items: list[KeyValue]
    has_gone_back: bool = False  # the store is known to have had a higher one


class Changes(NamedTuple):
    """What changed up to `revision`: keys put, and keys deleted, in this order of events."""

    revision: int
    events: list[KeyValue | str]  # a key that was put, or the name of one that was deleted


class CoordinationClient:
    """See the module docstring. Every method raises CoordinationError."""

    def __init__(
        self,
        endpoints: Sequence[str],
        clock: Clock,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        timeout_ms: int = 5_000,
    ) -> None:
        """Does not connect yet. `endpoints`: HOST:PORT of the members. `credentials` None: plaintext. `timeout_ms`: of one call
        with all its attempts."""
        self.clock = clock
        self.timeout_ms = timeout_ms
        self.answered_ms = clock.monotonic_ms()  # when the store answered last
        self.calls = self.failed_calls = self.call_ns = 0  # reads and changes, those without an answer, the time of the others
        self._endpoints = list(endpoints)
        self._at = 0
        self.credentials = credentials  # of the next connection
        self._channel: grpc.aio.Channel | None = None
        self._checked: grpc.aio.Channel | None = None  # on which the store turned out to have reached what is known
        self._cluster_id = self._term = 0
        self._revision = 0  # the highest that the store is known to have had
        self.histories = 0  # counts how often it went back

    async def close(self) -> None:
        """Ends all calls and watches."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def check(self) -> None:
        """Checks that a member answers and is new enough."""
        status = await self.repeated(_STATUS, StatusRequest(), StatusResponse)
        found = re.match(r"(\d+)\.(\d+)", status.version)
        if found is None or (int(found[1]), int(found[2])) < _VERSION_MIN:
            raise CoordinationError(f"etcd at {self.address} is version {status.version[:50]!r}: brokerd needs 3.4 or newer")

    async def get(self, key: str) -> KeyValue | None:
        """One key; None if there is none."""
        response = await self.repeated("/etcdserverpb.KV/Range", RangeRequest(key=key.encode()), RangeResponse)
        return key_value(response.kvs[0]) if response.kvs else None

    async def read(self, prefix: str, *, is_older_taken: bool = False) -> Snapshot:
        """All keys below a prefix. `is_older_taken`: also of a store that has gone back; see `believe`."""
        while True:
            try:
                found = await self._read(prefix, is_checked=not is_older_taken)
                if found is not None:
                    return found
            except CoordinationError as error:
                if _COMPACTED not in error.message:  # between two pages
                    raise

    async def transact(
        self,
        compares: Mapping[str, int],
        puts: Mapping[str, bytes],
        deletes: Sequence[str] = (),
        *,
        lease_id: int = 0,
        histories: int | None = None,
    ) -> int | None:
        """Puts and deletes keys if each compared key was last changed at its revision (0: there is none). Returns the revision of
        the change; None if a comparison failed. At most 128 comparisons, and 1 to 128 operations: without one etcd would compare
        what a member knows, perhaps not the newest. `lease_id`: the keys go with it. `histories`: as this was decided, else now.
        Raises CoordinationError, with `is_fate_unknown` if the change may have been made.
        """
        equal = [
            Compare(result=Compare.EQUAL, target=Compare.MOD, key=key.encode(), mod_revision=revision)
            for key, revision in compares.items()
        ]
        operations = [
            *(RequestOp(request_put=PutRequest(key=key.encode(), value=value, lease=lease_id)) for key, value in puts.items()),
            *(RequestOp(request_delete_range=DeleteRangeRequest(key=key.encode())) for key in deletes),
        ]
        try:
            histories = self.histories if histories is None else histories
            await self._connected(next(iter((*puts, *deletes))))
            if histories != self.histories:
                raise CoordinationError("etcd has gone back since this change was decided: nothing was changed")
            request = TxnRequest(compare=equal, success=operations)
            response = await self._call("/etcdserverpb.KV/Txn", request, TxnResponse, self.timeout_ms)
        except CoordinationError as error:
            # etcd says so of the change that crosses its quota, too, and makes it.
            error.is_fate_unknown |= _NO_SPACE in error.message
            raise
        return response.header.revision if response.succeeded else None

    # ---- for watches and leases, below

    @property
    def address(self) -> str:
        """The endpoint in use."""
        return self._endpoints[self._at]

    def channel(self) -> grpc.aio.Channel:
        """The connection to the endpoint in use."""
        if self._channel is None:
            if self.credentials is None:
                self._channel = grpc.aio.insecure_channel(self.address, options=_OPTIONS)
            else:
                self._channel = grpc.aio.secure_channel(self.address, self.credentials, options=_OPTIONS)
        if self._channel.get_state() is not grpc.ChannelConnectivity.READY:
            self._checked = None
        return self._channel

    def seen(self, response: Any) -> None:
        """Checks where an answer comes from."""
        header: ResponseHeader = response.header
        if self._cluster_id not in (0, header.cluster_id):
            text = f"etcd at {self.address} belongs to another etcd cluster than before: check coordination.servers"
            raise CoordinationError(text, is_fate_unknown=True)
        if header.raft_term < self._term:
            text = f"etcd at {self.address} answers in term {header.raft_term}, after {self._term}: it is cut off, or was restored"
            raise CoordinationError(text, is_fate_unknown=True)
        self._cluster_id, self._term = header.cluster_id, header.raft_term
        self.answered_ms = self.clock.monotonic_ms()

    def _check_revision(self, response: Any, known: int) -> None:
        """Checks that the store has not gone back. `known`: the highest revision when the call began."""
        revision: int = response.header.revision
        if revision < known:
            text = f"etcd at {self.address} is at revision {revision}, after {known}"
            why = "it was emptied, restored from a backup, or has lost its last changes; see docs/cluster.md"
            raise CoordinationError(f"{text}: {why}", is_fate_unknown=True)
        self.has_reached(revision)

    def has_reached(self, revision: int) -> None:
        """Notes that the store has had this revision."""
        self._revision = max(self._revision, revision)

    def believe(self, revision: int) -> None:
        """Takes a store that has gone back to this revision as it is. Changes that wait for a connection are not made."""
        self.histories += 1
        self._revision = revision

    @property
    def attempt_ms(self) -> int:
        """The time limit of one attempt, if the next one is to be made at another endpoint."""
        return max(self.timeout_ms // 3, _RETRY_MS)

    async def repeated(self, path: str, request: Message, response_type: type[R], *, is_checked: bool = True) -> R:
        """A call that may be repeated: one that changes nothing, or the same each time. `is_checked`: a store that has gone back is
        refused."""
        end_ms, attempt_ms = self.clock.monotonic_ms() + self.timeout_ms, self.attempt_ms
        told: CoordinationError | None = None
        while True:
            left_ms = end_ms - self.clock.monotonic_ms()
            try:
                return await self._call(path, request, response_type, min(left_ms, attempt_ms), is_checked=is_checked)
            except CoordinationError as error:
                if not error.is_fate_unknown:
                    raise
                if told is None or left_ms >= attempt_ms:  # one with less time has perhaps not heard why
                    told = error
                if end_ms - self.clock.monotonic_ms() <= _RETRY_MS:
                    told.is_fate_unknown = False
                    raise told from None
                await asyncio.sleep(_RETRY_MS / 1000)

    async def _connected(self, key: str) -> None:
        """Returns on a connection that stands. On a new one it reads a key first: the store may have gone back meanwhile, and give
        out numbers again."""
        while self.channel() is not self._checked:
            await self.get(key)

    async def first(self, call: Any, request: Message, timeout_ms: int) -> Any:
        """Sends the request of a stream, and returns the first response, or EOF."""
        try:
            # gRPC's own time limit is not enough: if somebody closes the connection just now, the write would wait for ever.
            async with asyncio.timeout(max(timeout_ms, 1) / 1000):
                await call.write(request)
                return await call.read()
        except TimeoutError:
            text = f"etcd at {self.address} does not answer (no response for {max(timeout_ms, 1) / 1000:.1f} s)"
            raise CoordinationError(text, is_fate_unknown=True) from None

    async def _call(self, path: str, request: Message, response_type: type[R], timeout_ms: int, *, is_checked: bool = True) -> R:
        channel = self.channel()
        call: Callable[..., Any] = channel.unary_unary(
            path, request_serializer=type(request).SerializeToString, response_deserializer=response_type.FromString
        )
        started_ns, known, histories = stopwatch_ns(), self._revision, self.histories
        self.calls += 1
        try:
            async with self.using(channel):
                response: R = await call(request, timeout=max(timeout_ms, 1) / 1000, metadata=_HAS_LEADER)
                self.seen(response)
            if path.startswith(_LINEARIZABLE) and is_checked:  # a refusal leaves the connection to the watch, which learns why
                if histories != self.histories:
                    raise CoordinationError(f"etcd at {self.address} has gone back while it was asked", is_fate_unknown=True)
                self._check_revision(response, known)
                self._checked = channel
        except CoordinationError:
            self.failed_calls += 1
            raise
        self.call_ns += stopwatch_ns() - started_ns
        return response

    @contextlib.asynccontextmanager
    async def using(self, channel: grpc.aio.Channel) -> AsyncIterator[None]:
        """Makes a call on a connection. If that is lost, the next endpoint is the one in use from then on."""
        try:
            yield
        except (grpc.RpcError, CoordinationError, asyncio.InvalidStateError, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # else somebody else has found the connection lost, and closed it
            failed = self._failed(error)
            if failed.is_fate_unknown and self._channel is channel:
                self._channel = None
                self._at = (self._at + 1) % len(self._endpoints)
                await channel.close()
            raise failed from None

    def _failed(self, error: BaseException) -> CoordinationError:
        """The error for a failed call; `is_fate_unknown` unless etcd has refused it."""
        if isinstance(error, CoordinationError):
            return error
        # Otherwise its connection was closed, or a stream had ended before it was written to.
        details = (error.details() or "")[:_DETAILS_MAX] if isinstance(error, grpc.aio.AioRpcError) else ""
        advice = next((text for sign, text in _HANDSHAKES.items() if sign in details), "")
        if advice:
            return CoordinationError(f"etcd at {self.address} cannot be used: {advice}", is_fate_unknown=True)
        if isinstance(error, grpc.aio.AioRpcError) and error.code() not in _LOST:
            return CoordinationError(f"etcd at {self.address} refused the request ({details or error.code().name})")
        hangs_up = _NOT_CONNECTED in details and any(text in details for text in _HANGS_UP)
        advice = _SPEAK_TLS if self.credentials is None else _SPEAK_OTHERWISE
        reason = advice if hangs_up else in_plain_words(details)
        text = f"etcd at {', '.join(self._endpoints)} does not answer ({reason})"
        return CoordinationError(text, is_fate_unknown=True, is_away=not hangs_up)

    async def _read(self, prefix: str, *, is_checked: bool) -> Snapshot | None:
        """None if the connection has changed between pages: they may be of two histories."""
        items: list[KeyValue] = []
        channel, known = None, self._revision
        revision, key, end, page = 0, prefix.encode(), prefix_end(prefix), _PAGE
        while True:
            request = RangeRequest(key=key, range_end=end, limit=page, revision=revision)
            try:
                response = await self.repeated("/etcdserverpb.KV/Range", request, RangeResponse, is_checked=is_checked)
            except CoordinationError as error:
                if _TOO_LARGE not in error.message or page == 1:
                    raise
                page //= 2
                continue
            channel = channel or self._channel
            if channel is None or channel is not self._channel:
                return None
            revision = revision or response.header.revision
            items += map(key_value, response.kvs)
            if not response.more or not response.kvs:
                return Snapshot(revision, items, revision < known)
            key = response.kvs[-1].key + b"\0"


async def watch(client: CoordinationClient, prefix: str) -> AsyncGenerator[Snapshot | Changes, None]:
    """Everything below `prefix` now, and each change from then on; see the module docstring. Goes on through outages, for ever."""
    told = ""
    while True:
        begun_ms = None
        try:
            async for found in _watch_once(client, prefix):
                begun_ms = client.clock.monotonic_ms() if begun_ms is None else begun_ms
                yield found
        except CoordinationError as error:
            has_worked = begun_ms is not None and client.clock.monotonic_ms() - begun_ms >= _REFUSED_MS
            if has_worked or error.message != told:  # an outage may last
                told = error.message
                logger.log(logging.INFO if error.is_fate_unknown else logging.WARNING, "%s: all keys are read anew", error)
            await asyncio.sleep((_RETRY_MS if has_worked else _REFUSED_MS) / 1000)


async def _watch_once(client: CoordinationClient, prefix: str) -> AsyncGenerator[Snapshot | Changes, None]:
    """A snapshot and the changes after it, for RECONCILE_MS, or until they are compacted. Raises CoordinationError."""
    channel = client.channel()
    call: Any = channel.stream_stream(
        "/etcdserverpb.Watch/Watch",
        request_serializer=WatchRequest.SerializeToString,
        response_deserializer=WatchResponse.FromString,
    )(metadata=_HAS_LEADER)
    create = WatchCreateRequest(key=prefix.encode(), range_end=prefix_end(prefix))
    try:
        async with client.using(channel):
            response = await client.first(call, WatchRequest(create_request=create), client.attempt_ms)
            snapshot = await client.read(prefix, is_older_taken=True)
            end_ms = client.clock.monotonic_ms() + RECONCILE_MS
            yield snapshot
            while response is not grpc.aio.EOF:
                client.seen(response)
                if response.compact_revision:
                    return
                if response.canceled:
                    raise CoordinationError(f"etcd at {client.address} refused a watch ({response.cancel_reason[:300]})")
                events = [event for event in response.events if event.kv.mod_revision > snapshot.revision]
                if events:
                    # The header has the store's revision, of which more changes may be on the way.
                    revision = max(event.kv.mod_revision for event in events)
                    client.has_reached(revision)
                    yield Changes(revision, [_event(event) for event in events])
                response = await _read(call, end_ms - client.clock.monotonic_ms())
            raise CoordinationError(f"etcd at {client.address} ended a watch", is_fate_unknown=True)
    except TimeoutError:
        return
    finally:
        call.cancel()


async def _read(call: Any, left_ms: int) -> Any:
    """The next response. Raises TimeoutError."""
    # Not wait_for, which drops a cancellation that meets a response (Python 3.11): a stop would wait for this watch for ever.
    async with asyncio.timeout(left_ms / 1000):
        return await call.read()


def _event(event: Event) -> KeyValue | str:
    found = key_value(event.kv)
    return found.key if event.type == Event.DELETE else found


def key_value(kv: Any) -> KeyValue:
    """A key as it came from etcd. A key that is not UTF-8 is none of ours, and stays recognizable."""
    return KeyValue(kv.key.decode(errors="backslashreplace"), kv.value, kv.create_revision, kv.mod_revision)


def prefix_end(prefix: str) -> bytes:
    """The end of the range of all keys that begin with `prefix`, which is ASCII."""
    return prefix[:-1].encode() + bytes([ord(prefix[-1]) + 1])


class Lease:
    """A lease that is kept alive. It counts as lost when etcd says so, or when no renewal begun within its time to live was
    answered, time asleep included: etcd may then have ended it."""

    def __init__(self, client: CoordinationClient, lease_id: int, ttl_ms: int, granted_ms: int) -> None:
        self.id = lease_id
        self.lost = asyncio.Event()
        self._client = client
        self._ttl_ms = ttl_ms
        self._good_until_ms = granted_ms + ttl_ms
        self._is_late = False  # the last renewal failed
        self._task = asyncio.create_task(self._keep(), name="lease")

    @property
    def is_over(self) -> bool:
        """True if etcd may have ended it, also if this process was suspended and has not noticed yet."""
        return self.lost.is_set() or self._client.clock.boot_ms() >= self._good_until_ms

    async def revoke(self) -> None:
        """Ends the lease and its keys at once. Raises CoordinationError; the lease then ends by itself."""
        await self._stop()
        await self._client.repeated("/etcdserverpb.Lease/LeaseRevoke", LeaseRevokeRequest(ID=self.id), LeaseRevokeResponse)

    async def _stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        clock = self._client.clock
        try:
            while (left_ms := self._good_until_ms - clock.boot_ms()) > 0:
                due_ms = left_ms - self._ttl_ms + self._ttl_ms // _RENEWALS_PER_TTL  # past if the last attempt failed
                await asyncio.sleep(min(left_ms, max(due_ms, _RETRY_MS)) / 1000)
                if not await self._renew():
                    return
        finally:
            self.lost.set()

    async def _renew(self) -> bool:
        """Renews the lease once; False if it is gone."""
        client = self._client
        channel, begun_ms = client.channel(), client.clock.boot_ms()
        timeout_ms = min(self._ttl_ms // _ATTEMPTS_PER_TTL, self._good_until_ms - begun_ms)
        call: Any = channel.stream_stream(
            "/etcdserverpb.Lease/LeaseKeepAlive",
            request_serializer=LeaseKeepAliveRequest.SerializeToString,
            response_deserializer=LeaseKeepAliveResponse.FromString,
        )(metadata=_HAS_LEADER)
        try:
            async with client.using(channel):
                response = await client.first(call, LeaseKeepAliveRequest(ID=self.id), timeout_ms)
                if response is grpc.aio.EOF:
                    raise CoordinationError(f"etcd at {client.address} ended the renewal of a lease", is_fate_unknown=True)
                client.seen(response)
        except CoordinationError as error:
            if not self._is_late:  # an outage is told once
                logger.info("%s: the lease is renewed at the next endpoint", error)
            self._is_late = True
            return True
        finally:
            call.cancel()
        self._is_late = False
        if response.TTL > 0:
            self._good_until_ms = begun_ms + response.TTL * 1000
        return bool(response.TTL > 0)


async def grant(client: CoordinationClient, ttl_s: int) -> Lease:
    """A new lease of `ttl_s` seconds. Raises CoordinationError."""
    begun_ms = client.clock.boot_ms()
    response = await client.repeated("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest(TTL=ttl_s), LeaseGrantResponse)
    return Lease(client, response.ID, response.TTL * 1000, begun_ms)
