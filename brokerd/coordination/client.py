"""Client of etcd's v3 API over gRPC: connections and fail-over, reads, transactions, watches, leases; bound to one event loop.

One endpoint is used at a time, the next one after a failure. Reads are linearizable and retried until the time limit. A
transaction is sent once: if its connection breaks, only a read can tell its fate. Responses from another etcd cluster or an older
term are refused; so is a store that was rolled back (restored from a backup, or without its last changes), until `believe`.

A watch reports all changes below a prefix, without gaps or repetitions, across lost connections, compactions and fail-over. It
yields a Snapshot of all keys at one revision, then the changes after it. The stream is opened before the keys are read. Both are
repeated after a lost connection, since etcd may have been rolled back and have passed the revision to resume from a second time,
and every ten minutes, since a watch has been seen to miss a change at a compaction (etcd-io/etcd#18089). The consumer must
therefore accept a Snapshot at any time as the complete state, even one of an older revision than the last.

A lease is renewed in the background until it is lost; then its `lost` event is set. Its keys disappear with it.
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
from brokerd.event_loop import cancellations, end_if_cancelled
from brokerd.wire.texts import in_plain_words

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Message)
RECONCILE_MS = 600_000  # interval at which a watch starts over
_RETRY_MS = 100  # delay before the next endpoint is tried
_REFUSED_MS = 1_000  # delay before a retry of a watch that has worked for less than this
_RENEWALS_PER_TTL = 3
_ATTEMPTS_PER_TTL = 5  # at least: a hanging member costs one attempt
_STATUS = "/etcdserverpb.Maintenance/Status"
_VERSION_MIN = (3, 4)
_PAGE = 1_000  # keys in one response; halved if they do not fit in a message
_DETAILS_MAX = 300  # characters
_MESSAGE_MAX_BYTES = 33_554_432
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", _MESSAGE_MAX_BYTES),
    ("grpc.max_send_message_length", _MESSAGE_MAX_BYTES),
    # A peer that vanished silently is noticed after 15 s. etcd closes connections that ping more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
)
# Makes an etcd member without a leader refuse calls. Otherwise it would let them hang, or answer with the term of an election that
# it cannot win; this client would remember that term and refuse all other members.
_HAS_LEADER = (("hasleader", "true"),)
_LOST = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
)
_LINEARIZABLE = "/etcdserverpb.KV/"  # prefix of the calls that a lagging member does not answer from its own state
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
# Signs of a connection closed during its handshake.
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
    """A key with its value. Revisions number the changes of the whole store."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int


class Snapshot(NamedTuple):
    """All keys below a prefix at one revision, sorted by key."""

    revision: int
    items: list[KeyValue]
    has_gone_back: bool = False  # the store has been at a higher revision before


class Changes(NamedTuple):
    """The changes up to `revision`, in order."""

    revision: int
    events: list[KeyValue | str]  # a key that was put, or the name of a deleted key


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
        """Does not connect yet. `endpoints`: HOST:PORT of the members. `credentials` None: plaintext. `timeout_ms`: limit of one
        call, retries included."""
        self.clock = clock
        self.timeout_ms = timeout_ms
        self.answered_ms = clock.monotonic_ms()  # when the store last answered
        self.calls = self.failed_calls = self.call_ns = 0  # unary calls, failed ones, total time of the others
        self._endpoints = list(endpoints)
        self._at = 0
        self.credentials = credentials  # used for the next connection
        self._channel: grpc.aio.Channel | None = None
        self._checked: grpc.aio.Channel | None = None  # connection on which the store was seen at `_revision` or later
        self._cluster_id = self._term = 0
        self._revision = 0  # the highest at which the store was seen
        self.histories = 0  # counts the store's rollbacks

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
        """Reads one key; None if it does not exist."""
        response = await self.repeated("/etcdserverpb.KV/Range", RangeRequest(key=key.encode()), RangeResponse)
        return key_value(response.kvs[0]) if response.kvs else None

    async def read(self, prefix: str, *, is_older_taken: bool = False) -> Snapshot:
        """Reads all keys below a prefix. `is_older_taken`: accepts a store that was rolled back; see `believe`."""
        while True:
            try:
                found = await self._read(prefix, is_checked=not is_older_taken)
                if found is not None:
                    return found
            except CoordinationError as error:
                if _COMPACTED not in error.message:  # compacted between two pages
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
        """Puts and deletes keys if each compared key was last changed at its revision (0: the key does not exist). Returns the
        revision of the change; None if a comparison failed. At most 128 comparisons, and 1 to 128 operations: without any, etcd
        would compare one member's state, which may be stale. `lease_id`: of the keys put. `histories`: as of the decision; default:
        now. Raises CoordinationError, with `is_fate_unknown` if the change may have been made.
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
            # etcd also reports this for the change that crosses its quota, although it makes that change.
            error.is_fate_unknown |= _NO_SPACE in error.message
            raise
        return response.header.revision if response.succeeded else None

    # ---- used by the watches and leases below

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
        """Checks the etcd cluster and the term of a response."""
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
        """Checks that the store was not rolled back. `known`: the highest revision seen when the call began."""
        revision: int = response.header.revision
        if revision < known:
            text = f"etcd at {self.address} is at revision {revision}, after {known}"
            why = "it was emptied, restored from a backup, or has lost its last changes; see docs/cluster.md"
            raise CoordinationError(f"{text}: {why}", is_fate_unknown=True)
        self.has_reached(revision)

    def has_reached(self, revision: int) -> None:
        """Notes that the store has been at this revision."""
        self._revision = max(self._revision, revision)

    def believe(self, revision: int) -> None:
        """Accepts a store that was rolled back to this revision. Transactions waiting for a connection then fail."""
        self.histories += 1
        self._revision = revision

    @property
    def attempt_ms(self) -> int:
        """The time limit of one attempt, which leaves time for attempts at other endpoints."""
        return max(self.timeout_ms // 3, _RETRY_MS)

    async def repeated(self, path: str, request: Message, response_type: type[R], *, is_checked: bool = True) -> R:
        """Makes an idempotent call, with retries. `is_checked`: refuses a store that was rolled back."""
        end_ms, attempt_ms = self.clock.monotonic_ms() + self.timeout_ms, self.attempt_ms
        told: CoordinationError | None = None
        while True:
            left_ms = end_ms - self.clock.monotonic_ms()
            try:
                return await self._call(path, request, response_type, min(left_ms, attempt_ms), is_checked=is_checked)
            except CoordinationError as error:
                if not error.is_fate_unknown:
                    raise
                if told is None or left_ms >= attempt_ms:  # a shorter attempt may end before the cause is known
                    told = error
                if end_ms - self.clock.monotonic_ms() <= _RETRY_MS:
                    told.is_fate_unknown = False
                    raise told from None
                await asyncio.sleep(_RETRY_MS / 1000)

    async def _connected(self, key: str) -> None:
        """Waits for a checked connection. On a new one it reads a key first: the store may have been rolled back, and reuse
        revisions."""
        while self.channel() is not self._checked:
            await self.get(key)

    async def first(self, call: Any, request: Message, timeout_ms: int) -> Any:
        """Sends the first request of a stream, and returns the first response, or EOF."""
        try:
            # gRPC's own time limit is not enough: if the connection is closed at this moment, the write would never return.
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
            if path.startswith(_LINEARIZABLE) and is_checked:  # outside using(): the watch needs the connection to see a rollback
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
        """Wraps a call on a connection. If the connection is lost, closes it and switches to the next endpoint."""
        before = cancellations()
        try:
            yield
        except (grpc.RpcError, CoordinationError, asyncio.InvalidStateError, asyncio.CancelledError) as error:
            if not isinstance(error, CoordinationError):
                end_if_cancelled(since=before)  # else another call has found the connection lost, and closed it
            failed = self._failed(error)
            if failed.is_fate_unknown and self._channel is channel:
                self._channel = None
                self._at = (self._at + 1) % len(self._endpoints)
                await channel.close()
            raise failed from None

    def _failed(self, error: BaseException) -> CoordinationError:
        """The error for a failed call; `is_fate_unknown` unless etcd refused the call."""
        if isinstance(error, CoordinationError):
            return error
        # Any error but AioRpcError means that the connection was closed, or that a stream ended before a write.
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
        """None if the connection changed between pages: the store may have been rolled back between them."""
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
    """Yields all keys below `prefix`, then each change; see the module docstring. Survives outages and never ends."""
    told = ""
    while True:
        begun_ms = None
        try:
            async for found in _watch_once(client, prefix):
                begun_ms = client.clock.monotonic_ms() if begun_ms is None else begun_ms
                yield found
        except CoordinationError as error:
            has_worked = begun_ms is not None and client.clock.monotonic_ms() - begun_ms >= _REFUSED_MS
            if has_worked or error.message != told:  # a long outage is logged once
                told = error.message
                logger.log(logging.INFO if error.is_fate_unknown else logging.WARNING, "%s: all keys are read anew", error)
            await asyncio.sleep((_RETRY_MS if has_worked else _REFUSED_MS) / 1000)


async def _watch_once(client: CoordinationClient, prefix: str) -> AsyncGenerator[Snapshot | Changes, None]:
    """Yields a snapshot and the changes after it, for RECONCILE_MS or until they are compacted. Raises CoordinationError."""
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
                    # Not the header's revision, which is the store's: more changes up to that one may follow.
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
    # Not wait_for, which loses a cancellation that coincides with a response (Python 3.11): a stop would never complete.
    async with asyncio.timeout(left_ms / 1000):
        return await call.read()


def _event(event: Event) -> KeyValue | str:
    found = key_value(event.kv)
    return found.key if event.type == Event.DELETE else found


def key_value(kv: Any) -> KeyValue:
    """Converts a key from etcd. A key that is not UTF-8 is not brokerd's; it is escaped, and stays recognizable."""
    return KeyValue(kv.key.decode(errors="backslashreplace"), kv.value, kv.create_revision, kv.mod_revision)


def prefix_end(prefix: str) -> bytes:
    """The end of the range of all keys that begin with `prefix`, which is ASCII."""
    return prefix[:-1].encode() + bytes([ord(prefix[-1]) + 1])


class Lease:
    """A lease that is renewed in the background. It is lost when etcd says so, or when its time to live has passed since the start
    of the last answered renewal, system sleep included: etcd may then have expired it."""

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
        """True if etcd may have expired the lease, even if this process was suspended and has not noticed yet."""
        return self.lost.is_set() or self._client.clock.boot_ms() >= self._good_until_ms

    async def revoke(self) -> None:
        """Ends the lease and deletes its keys at once. Raises CoordinationError; the lease then expires by itself."""
        await self._stop()
        await self._client.repeated("/etcdserverpb.Lease/LeaseRevoke", LeaseRevokeRequest(ID=self.id), LeaseRevokeResponse)

    async def _stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        clock = self._client.clock
        try:
            while (left_ms := self._good_until_ms - clock.boot_ms()) > 0:
                due_ms = left_ms - self._ttl_ms + self._ttl_ms // _RENEWALS_PER_TTL  # negative after a failed attempt
                await asyncio.sleep(min(left_ms, max(due_ms, _RETRY_MS)) / 1000)
                if not await self._renew():
                    return
        finally:
            self.lost.set()

    async def _renew(self) -> bool:
        """Makes one attempt to renew the lease; False if the lease is gone."""
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
            if not self._is_late:  # an outage is logged once
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
    """Grants a lease of `ttl_s` seconds. Raises CoordinationError."""
    begun_ms = client.clock.boot_ms()
    response = await client.repeated("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest(TTL=ttl_s), LeaseGrantResponse)
    return Lease(client, response.ID, response.TTL * 1000, begun_ms)
