"""Produce: a stream of requests to append record batches.

Behaviour
- A request is checked as a whole before any of it is appended: a field that violates the contract ends the stream with
  INVALID_ARGUMENT; a request that breaks a rule gets `error`, and nothing of it is appended.
- A batch for a topic that the caller may not write to is refused; the other batches are not affected.
- Batches are appended one by one in the order of the request; one can fail and the next succeed.
- With acks=-1, nothing is appended while fewer replicas are in sync than min.insync.replicas: NOT_ENOUGH_REPLICAS.
- acks=-1 is answered after the high watermark has passed every batch, recognised duplicates included (they may not be durable yet).
- Idempotent producers must name the leader epoch: with stale metadata, a batch would otherwise reach a former leader, which may
  lack batches that the current leader has acknowledged.
- A duplicate is answered with its original offset, or DUPLICATE_SEQUENCE_NUMBER if that is not known; nothing is appended.
- A transactional batch is accepted only from an open member, with acks=-1; a member's non-transactional batches are refused. The
  batch's producer id determines the member; transactional_id and member_id may be empty, and must match if they are not.
- If another node is the coordinator, it is asked about a member before the member's first batch. Without its answer the batch is
  refused with COORDINATOR_NOT_AVAILABLE.
- Every error has a fate: NOT_APPENDED for refused batches, UNKNOWN for those that may be in the log.
- A request waits until appended bytes that are not on disk yet are below log.max.dirty.bytes. Its hello does not wait, so that it
  fences older streams at once.
- A stream is not read while one of its budgets is used up, so gRPC's flow control throttles the client:

    WAITING_REQUESTS_MAX       requests waiting for their response
    _WAITING_BYTES_MAX         bytes of these requests, and of their responses
    max.in.flight.bytes        requests that were read and wait to be appended, over all streams
    max.fetch.bytes.in.flight  large responses (errors of many partitions), over all streams; holds up only streams that have some

  Beyond twice max.in.flight.bytes (if many streams were reading when the budget ran out), requests that would have to wait are
  refused with RESOURCE_EXHAUSTED if their caller uses at least the average of all callers.

The stream's own task does everything with a message: reads, decodes, decides, appends, and queues the response. A second task,
alive while responses are queued, waits until the first of them is durable and writes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, cast

import pyarrow as pa

from brokerd.clock import stopwatch_ns
from brokerd.errors import (
    BrokerdError,
    DuplicateSequenceError,
    ErrorCode,
    InvalidRequestError,
    InvalidRequiredAcksError,
    InvalidTxnStateError,
    NotReadyError,
    ResourceExhaustedError,
    WireError,
)
from brokerd.ids import TopicIdPartition
from brokerd.partition.partition import LogAppendInfo, Partition
from brokerd.record.batch import check_produced
from brokerd.record.header import HEADER_SIZE, BatchHeader, decode_header
from brokerd.server.admin import STOPPING
from brokerd.server.broker import BrokerParts
from brokerd.server.coordinator.members import OpenMember
from brokerd.server.delayed_produce import WAIT_MAX_MS, Appended, DelayedProduce, watch_durable
from brokerd.server.failures import ENDED, StreamFencedError, internal, malformed, not_appended
from brokerd.server.limits.fence import Instance
from brokerd.server.limits.response_budget import FREE_BYTES
from brokerd.server.requests import (
    FIELDS_PER_ENTRY,
    OTHER_FIELDS,
    check_id_bytes,
    check_not_negative,
    check_text,
    first_double,
    partitions_of,
    without_leader_epoch,
)
from brokerd.server.security.topic_authorizer import Right, TopicAuthorizer
from brokerd.server.streams import LARGE_BYTES, LARGE_PARTITIONS, Context, StreamHandler
from brokerd.sharing import Caller
from brokerd.wire.errors import to_proto
from brokerd.wire.records import split_records
from brokerd.wire.v1 import produce_pb2

ACKS_ALL = -1
ACKS_NONE = 0
_ACKS = (ACKS_ALL, ACKS_NONE, 1)
WAITING_REQUESTS_MAX = 64  # per stream, waiting for their responses; reported by GetServerInfo
_WAITING_BYTES_MAX = 67_108_864
_HARD_LIMIT = 2  # times max.in.flight.bytes
_RETRY_AFTER_MS = 100
_LAST_RESPONSES_S = 1.0


class Produce(NamedTuple):
    """A decoded request. `size_bytes` is its size on the wire."""

    head: produce_pb2.ProduceRequest
    partitions: list[TopicIdPartition]
    batches: list[pa.Buffer]
    size_bytes: int


class PendingResponse:
    """A queued response, to write at once or when `operation` is complete."""

    __slots__ = ("appended_ns", "charged_bytes", "operation", "received_ns", "response", "size_bytes")

    def __init__(self, response: produce_pb2.ProduceResponse, size_bytes: int, operation: DelayedProduce | None = None) -> None:
        self.response = response
        response_bytes = response.ByteSize()
        self.size_bytes = size_bytes + response_bytes  # of the request and its response, for the stream's budget
        self.charged_bytes = response_bytes if response_bytes > FREE_BYTES else 0  # while it is queued
        self.operation = operation
        self.received_ns = self.appended_ns = 0  # stopwatch readings


def decode(data: bytes, *, partitions_max: int) -> Produce:
    """Decodes a request; its batches are slices of `data`. Raises MalformedError, InvalidRequestError.

    More than `partitions_max` partitions are refused later, in a response; far more are refused here as malformed.
    """
    head, batches = split_records(produce_pb2.ProduceRequest, data, max_fields=2 * FIELDS_PER_ENTRY * partitions_max + OTHER_FIELDS)
    partitions = partitions_of("partitions", head.partitions)
    if len(batches) != len(partitions):
        raise malformed("records", f"has {len(batches)} entries, but partitions has {len(partitions)}")
    check_not_negative("timeout_ms", head.timeout_ms)
    check_text("transactional_id", head.transactional_id)
    if head.member_id:
        check_id_bytes("member_id", head.member_id)
    return Produce(head, partitions, batches, len(data))


def refuse(request: Produce, error: WireError) -> PendingResponse | None:
    """The response to a request of which nothing was appended; None for acks=0."""
    if request.head.acks == ACKS_NONE:
        return None
    response = produce_pb2.ProduceResponse(correlation_id=request.head.correlation_id, error=to_proto(not_appended(error)))
    return PendingResponse(response, request.size_bytes)


def handle(broker: BrokerParts, authorizer: TopicAuthorizer, caller: Caller, request: Produce) -> PendingResponse | None:
    """Checks and appends; returns the response, which may have to wait for durability, or None for acks=0.

    There is no await before the last append, so the stream's next request sees the state after this one.
    """
    try:
        _check_request(broker, request)
    except WireError as error:
        broker.counters.failed_produce.labels(error.code.name).inc()
        return refuse(request, error)
    head = request.head
    response = produce_pb2.ProduceResponse(correlation_id=head.correlation_id)
    appended: dict[int, Appended] = {}  # by index in the request
    for index, tp in enumerate(request.partitions):
        result = response.results.add(topic_id=tp.topic_id, partition=tp.partition, base_offset=-1, append_timestamp=-1)
        try:
            partition, info = _append(broker, authorizer, caller, request, index)
        except WireError as error:
            broker.counters.failed_produce.labels(error.code.name).inc()
            result.error.CopyFrom(to_proto(not_appended(error)))
            if isinstance(error, DuplicateSequenceError):  # the original is somewhere below the log end
                partition = broker.partitions.leader(tp)
                appended[index] = Appended(partition, partition.ends.log_end_offset - 1, partition.leader_epoch)
        except Exception as error:
            result.error.CopyFrom(to_proto(internal(f"append to {tp}", error)))
        else:
            result.base_offset = info.base_offset
            result.append_timestamp = info.append_timestamp
            result.is_log_append_time = info.is_log_append_time
            appended[index] = Appended(partition, info.last_offset, info.leader_epoch)
    if head.acks == ACKS_NONE:
        return None
    wait_ms = min(head.timeout_ms or WAIT_MAX_MS, WAIT_MAX_MS)
    operation = watch_durable(broker.produce_purgatory, appended, wait_ms) if head.acks == ACKS_ALL and appended else None
    return PendingResponse(response, request.size_bytes, operation)


def encode(pending: PendingResponse) -> bytes:
    """The response's bytes, once its operation, if any, is complete."""
    response = pending.response
    if pending.operation is not None:
        for index, error in pending.operation.errors.items():
            result = response.results[index]
            result.error.CopyFrom(to_proto(error))
            result.base_offset = -1
    return response.SerializeToString()


def _check_request(broker: BrokerParts, request: Produce) -> None:
    if broker.is_stopping:
        raise NotReadyError(STOPPING)
    head = request.head
    if head.acks not in _ACKS:
        raise InvalidRequiredAcksError(f"acks is {head.acks}, but must be -1 (all), 0 or 1")
    limit = broker.config.max_partitions_per_request
    if len(request.partitions) > limit:
        raise InvalidRequestError(
            f"partitions: {len(request.partitions)} in one request, more than max.partitions.per.request ({limit})"
        )
    if len(set(request.partitions)) < len(request.partitions):
        twice = first_double(request.partitions)
        raise InvalidRequestError(f"partitions: {twice} has two batches in one request; one is allowed")


def _append(
    broker: BrokerParts, authorizer: TopicAuthorizer, caller: Caller, request: Produce, index: int
) -> tuple[Partition, LogAppendInfo]:
    """Checks the batch at `index` in the request and its sender's rights, and appends it. Raises WireErrors."""
    head, tp, data = request.head, request.partitions[index], request.batches[index]
    authorizer.require_id(Right.WRITE, tp.topic_id)
    leader_epoch = head.partitions[index].current_leader_epoch
    partition = broker.partitions.leader(tp, leader_epoch)
    if head.acks == ACKS_ALL:
        partition.check_enough_in_sync()
    batch = check_produced(
        data,
        partition.crc_seed,
        max_message_bytes=partition.config.max_message_bytes,
        max_decompressed_bytes=broker.config.message_max_decompressed_bytes,
    )
    header = batch.header
    if header.producer_id >= 0:
        authorizer.require_producer(header.producer_id)
        if leader_epoch <= 0:
            raise without_leader_epoch(leader_epoch, "an idempotent producer")
    member = _open_member(broker, head, header)
    is_open_member = member is not None
    now_ms, ahead_ms = broker.time.stamp_ms()
    info = partition.append(batch, now_wall_ms=now_ms, clock_ahead_ms=ahead_ms, is_open_member=is_open_member, caller=caller)
    if is_open_member:
        broker.members.appended(header.producer_id, tp, 0 if info.is_duplicate else header.record_count)
    if not info.is_duplicate:
        broker.counters.appended(tp.topic_id, messages=info.last_offset - info.base_offset + 1, size_bytes=data.size)
    return partition, info


def _open_member(broker: BrokerParts, head: produce_pb2.ProduceRequest, header: BatchHeader) -> OpenMember | None:
    """The open member of a transaction that produced the batch; None if there is none. The log accepts transactional batches from
    open members only, and no other batches from them. Raises InvalidTxnStateError for a batch that contradicts its request;
    CoordinatorNotAvailableError if it is not known whether the member is open."""
    member = broker.members.open_member(header) if header.is_of_member else None
    if not header.is_transactional:
        if head.transactional_id or head.member_id:
            raise InvalidTxnStateError("transactional_id and member_id must be empty: the batch is not marked as transactional")
        return member
    if head.acks != ACKS_ALL:
        raise InvalidTxnStateError(f"acks is {head.acks}, but must be -1 (all) in a transaction: its commit relies on it")
    if member is not None and not (
        head.transactional_id in ("", member.transactional_id) and head.member_id in (b"", member.member_id)
    ):
        raise InvalidTxnStateError(
            f"transactional_id {head.transactional_id!r} and member_id {head.member_id.hex()!r} are not those that producer id "
            f"{header.producer_id} was given to"
        )
    return member


async def verify_members(broker: BrokerParts, authorizer: TopicAuthorizer, request: Produce) -> None:
    """Asks the coordinator about members in a request that this node does not know. Call it before `handle`, which must not wait;
    without an answer, `handle` refuses their batches. Batches that `handle` refuses anyway, since the topic or the producer id is
    not the caller's, cost the coordinator nothing."""
    allowed = (
        batch
        for tp, batch in zip(request.partitions, request.batches, strict=True)
        if batch.size >= HEADER_SIZE and authorizer.allows_id(Right.WRITE, tp.topic_id)
    )
    found = (decode_header(batch[:HEADER_SIZE].to_pybytes()) for batch in allowed)
    await broker.members.verify(
        header.producer_id for header in found if header.is_of_member and authorizer.owns_producer(header.producer_id)
    )


class ProduceHandler(StreamHandler):
    """Serves one stream from hello to its end."""

    def __init__(self, broker: BrokerParts, context: Context, authorizer: TopicAuthorizer, caller: Caller) -> None:
        super().__init__(broker, context, authorizer, caller)
        self._is_large = True  # whether the last request named many partitions; assumed for the first
        self._instance: Instance | None = None  # set by the hello
        self._incarnation = 0
        self._responses: deque[PendingResponse] = deque()
        self._waiting_bytes = self._charged_bytes = 0
        self._writer: asyncio.Task[None] | None = None
        self._written = asyncio.Event()  # set when a response is written or dropped

    async def run(self) -> None:
        """Returns when the client has closed its side and every request is answered. Raises BrokerdError to end the stream."""
        try:
            failure = await self._read_all()
            await self._drain()
            if failure is not None:
                raise failure
        finally:
            self._end()

    async def _finish(self) -> None:
        """Answers requests already accepted; with revoked credentials, only if the client reads in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_RESPONSES_S if self._is_revoked else None):
                await self._drain()

    async def _read_all(self) -> BrokerdError | None:
        """Processes requests until the client closes its side or a request ends the stream; returns the error that ended it."""
        try:
            while True:
                await self._wait_for_room()
                data = cast("object", await self.context.read())
                if not isinstance(data, bytes):  # end of stream
                    return None
                await self._process(data)
        except BrokerdError as error:
            return error

    async def _wait_for_room(self) -> None:
        while self._responses and (len(self._responses) >= WAITING_REQUESTS_MAX or self._waiting_bytes >= _WAITING_BYTES_MAX):
            await self._next_response()
        if self._charged_bytes and not self._broker.response_budget.is_free:
            await self._broker.response_budget.take(self.caller)
        if not self._broker.in_flight.is_free:
            await self._broker.in_flight.take(self.caller)

    async def _process(self, data: bytes) -> None:
        broker = self._broker
        if self._is_large or len(data) >= LARGE_BYTES:
            with self._in_flight(len(data)):
                await broker.turns.take(self.caller)
        received_ns = stopwatch_ns()
        request = decode(data, partitions_max=broker.config.max_partitions_per_request)
        self._is_large = len(request.partitions) > LARGE_PARTITIONS
        instance = self._instance
        if instance is None:
            instance = self._hello(request.head)
            if not request.partitions:
                return
        elif request.head.HasField("hello"):
            raise malformed("hello", "must be in a stream's first message only")
        if not broker.dirty.is_free:
            with self._in_flight(len(data)):
                if broker.in_flight.is_excessive(self.caller.owner, _HARD_LIMIT):
                    self._queue(self._refuse_overload(request), received_ns)
                    return
                await broker.dirty.take(self.caller)
        if broker.members.verifies:
            with self._in_flight(len(data)):
                await verify_members(broker, self.authorizer, request)
        # Checked after the last await before the append, during which a newer stream may have said hello.
        if self._is_revoked:
            return
        if instance.incarnation != self._incarnation:
            raise StreamFencedError("a newer stream of this producer instance has taken over: this stream accepts no more batches")
        self._queue(handle(broker, self.authorizer, self.caller, request), received_ns)

    @contextlib.contextmanager
    def _in_flight(self, size_bytes: int) -> Iterator[None]:
        """Counts the bytes of a request that waits against max.in.flight.bytes."""
        self._broker.in_flight.add(self.caller.owner, size_bytes)
        try:
            yield
        finally:
            self._broker.in_flight.add(self.caller.owner, -size_bytes)

    def _queue(self, response: PendingResponse | None, received_ns: int) -> None:
        """Queues the response to a processed request; None for acks=0."""
        appended_ns = stopwatch_ns()
        if response is None:
            self._broker.counters.produce_time.local.observe((appended_ns - received_ns) / 1e9)
            return
        response.received_ns, response.appended_ns = received_ns, appended_ns
        self._responses.append(response)
        self._waiting_bytes += response.size_bytes
        self._charge(response.charged_bytes)
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write_responses())

    def _charge(self, size_bytes: int) -> None:
        """Counts the bytes of large queued responses towards the budget of fetch responses."""
        if size_bytes:
            self._charged_bytes += size_bytes
            self._broker.response_budget.add(self.caller.owner, size_bytes)

    def _hello(self, head: produce_pb2.ProduceRequest) -> Instance:
        if not head.HasField("hello"):
            raise malformed("hello", "is missing in the stream's first message")
        hello = head.hello
        check_id_bytes("hello.instance_id", hello.instance_id)
        if hello.incarnation < 1:
            raise malformed("hello.incarnation", f"is {hello.incarnation}, but must be at least 1")
        self.authorizer.require_somewhere(Right.WRITE)
        now_ms = self._broker.clock.monotonic_ms()
        self._instance = self._broker.fence.hello(self.authorizer.principal, hello.instance_id, hello.incarnation, now_ms=now_ms)
        self._incarnation = hello.incarnation
        return self._instance

    def _refuse_overload(self, request: Produce) -> PendingResponse | None:
        self._broker.counters.failed_produce.labels(ErrorCode.RESOURCE_EXHAUSTED.name).inc()
        used_bytes = self._broker.in_flight.used
        return refuse(
            request,
            ResourceExhaustedError(
                f"{used_bytes} bytes of requests are in memory, more than twice max.in.flight.bytes: try again later",
                retry_after_ms=_RETRY_AFTER_MS,
            ),
        )

    async def _write_responses(self) -> None:
        """Writes the queued responses in order, each as soon as it is complete."""
        try:
            while self._responses:
                response = self._responses[0]
                operation = response.operation
                if operation is not None and operation.completion is None:
                    await operation.settled
                ready_ns = stopwatch_ns()
                await self._write(encode(response))
                self._responses.popleft()
                self._waiting_bytes -= response.size_bytes
                self._charge(-response.charged_bytes)
                self._written.set()
                self._broker.counters.produce_time.observe(
                    local_ns=response.appended_ns - response.received_ns,
                    remote_ns=ready_ns - response.appended_ns,
                    send_ns=stopwatch_ns() - ready_ns,
                )
        except ENDED:
            self._drop_responses()  # the client is gone; reading reports it too
        except Exception as error:
            self._drop_responses()
            await self._end_unexpectedly("responses to a produce stream", error)
        finally:
            self._writer = None

    async def _write(self, data: bytes) -> None:
        """Writes a response, which counts towards the budget of fetch responses meanwhile."""
        self._broker.response_budget.add(self.caller.owner, len(data))
        try:
            await self._send(data)
        finally:
            self._broker.response_budget.add(self.caller.owner, -len(data))

    async def _drain(self) -> None:
        """Returns once every queued response is written or dropped."""
        while self._responses:
            await self._next_response()

    async def _next_response(self) -> None:
        self._written.clear()
        await self._written.wait()

    def _drop_responses(self) -> None:
        for response in self._responses:
            if response.operation is not None:
                response.operation.cancel()
        self._responses.clear()
        self._waiting_bytes = 0
        self._charge(-self._charged_bytes)
        self._written.set()

    def _end(self) -> None:
        self._is_over = True
        if self._instance is not None:
            self._broker.fence.goodbye(self._instance, now_ms=self._broker.clock.monotonic_ms())
        if self._writer is not None:
            self._writer.cancel()
        self._drop_responses()
