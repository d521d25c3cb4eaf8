"""Produce: append record batches.

Behaviour
- The whole request is checked before any of it is appended: a field that violates its contract ends the stream with
  INVALID_ARGUMENT; a request that breaks a rule gets `error`, and none of it is appended.
- A batch for a topic that the caller may not write to is refused; the others are not.
- Batches are appended one after the other in the order of the request; one can fail and the next succeed.
- acks=0 gets no response; acks=1 gets it after the append; acks=-1 when the high watermark has passed every batch, even a
  recognised duplicate too, since it may not be durable yet.
- A duplicate is answered with its original offset; nothing is appended.
- A batch of a transaction is accepted from an open member alone, with acks=-1; a member's other batches are refused. Which member
  it is, the batch's producer id says; transactional_id and member_id may be empty, and are compared if they are not.
- Every error has a fate: NOT_APPENDED for refused batches, UNKNOWN for those that may be in the log.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pyarrow as pa

from brokerd.errors import Action, InvalidRequestError, InvalidRequiredAcksError, InvalidTxnStateError, NotReadyError, WireError
from brokerd.ids import TopicIdPartition
from brokerd.partition.partition import Partition
from brokerd.record.batch import RecordBatch, check_produced
from brokerd.record.header import BatchHeader
from brokerd.server.admin import STOPPING
from brokerd.server.broker import Broker
from brokerd.server.failures import internal, malformed, not_appended
from brokerd.server.fields import FIELDS_PER_ENTRY, OTHER_FIELDS, check_not_negative, topic_id_partition
from brokerd.server.requests import first_double
from brokerd.server.security.topic_authorizer import TopicAuthorizer
from brokerd.server.security.topic_rights import Right
from brokerd.server.waiting.delayed_produce import WAIT_MAX_MS, Awaited, DelayedProduce
from brokerd.sharing.room import Caller
from brokerd.transaction.transactional_id import MEMBER_EPOCH
from brokerd.wire.errors import to_proto
from brokerd.wire.records import split_records
from brokerd.wire.v1 import produce_pb2

ACKS_ALL = -1
ACKS_NONE = 0
_ACKS = (ACKS_ALL, ACKS_NONE, 1)
WAITING_REQUESTS_MAX = 64  # of one stream, that wait for their responses; told likewise


class Produce(NamedTuple):
    """A decoded request. `size_bytes` is its size on the wire."""

    head: produce_pb2.ProduceRequest
    partitions: list[TopicIdPartition]
    batches: list[pa.Buffer]
    size_bytes: int


class PendingResponse:
    """A response in its stream's queue: to be written at once, or when `operation` is complete."""

    __slots__ = ("appended_ns", "operation", "received_ns", "response", "size_bytes")

    def __init__(self, response: produce_pb2.ProduceResponse, size_bytes: int, operation: DelayedProduce | None = None) -> None:
        self.response = response
        self.size_bytes = size_bytes  # of the request, for the stream's budget
        self.operation = operation
        self.received_ns = self.appended_ns = 0  # stopwatch readings


def decode(data: bytes, *, partitions_max: int) -> Produce:
    """The request in `data`, with its batches as slices. Raises MalformedError, InvalidRequestError.

    More than `partitions_max` partitions are refused later, with a response; far more do not count as a request at all.
    """
    head, batches = split_records(produce_pb2.ProduceRequest, data, max_fields=2 * FIELDS_PER_ENTRY * partitions_max + OTHER_FIELDS)
    partitions = [topic_id_partition("partitions", entry.topic_id, entry.partition) for entry in head.partitions]
    if len(batches) != len(partitions):
        raise malformed("records", f"has {len(batches)} entries, but partitions has {len(partitions)}")
    check_not_negative("timeout_ms", head.timeout_ms)
    return Produce(head, partitions, batches, len(data))


def refuse(request: Produce, error: WireError) -> PendingResponse | None:
    """The response to a request of which nothing was appended; None for acks=0."""
    if request.head.acks == ACKS_NONE:
        return None
    response = produce_pb2.ProduceResponse(
        correlation_id=request.head.correlation_id, throttle_time_ms=error.retry_after_ms, error=to_proto(not_appended(error))
    )
    return PendingResponse(response, request.size_bytes)


def handle(broker: Broker, authorizer: TopicAuthorizer, caller: Caller, request: Produce) -> PendingResponse | None:
    """Decides and appends; returns the response, which may have to wait for the disk, or None for acks=0.

    There is no await before the last append, so the stream's next request finds the state that this one leaves.
    """
    try:
        _check_request(broker, request)
    except WireError as error:
        broker.counters.failed_produce[error.code] += 1
        return refuse(request, error)
    head = request.head
    response = produce_pb2.ProduceResponse(correlation_id=head.correlation_id)
    awaited: list[Awaited] = []
    for index, (tp, data) in enumerate(zip(request.partitions, request.batches, strict=True)):
        result = response.results.add(topic_id=tp.topic_id, partition=tp.partition, base_offset=-1, append_timestamp=-1)
        waits_for = _append(broker, authorizer, caller, head, result, index, data)
        if waits_for is not None:
            awaited.append(waits_for)
    if head.acks == ACKS_NONE:
        return None
    operation = _wait_until_durable(broker, awaited, head.timeout_ms) if head.acks == ACKS_ALL and awaited else None
    return PendingResponse(response, request.size_bytes, operation)


def encode(pending: PendingResponse) -> bytes:
    """The response's bytes, once it need not wait any more."""
    response = pending.response
    if pending.operation is not None:
        for index, error in pending.operation.errors.items():
            result = response.results[index]
            result.error.CopyFrom(to_proto(error))
            result.base_offset = -1
    return response.SerializeToString()


def _check_request(broker: Broker, request: Produce) -> None:
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
    broker: Broker,
    authorizer: TopicAuthorizer,
    caller: Caller,
    head: produce_pb2.ProduceRequest,
    result: produce_pb2.PartitionProduceResult,
    index: int,
    data: pa.Buffer,
) -> Awaited | None:
    """Appends one batch and fills in its result; returns what to wait for, if it was appended."""
    partition = None
    tp = TopicIdPartition(result.topic_id, result.partition)
    try:
        authorizer.require_id(Right.WRITE, tp.topic_id)
        partition = broker.partitions.leader(tp, head.partitions[index].current_leader_epoch)
        batch = _check_batch(broker, authorizer, partition, data)
        is_open_member = _check_member(broker, head, batch.header)
        now_ms, ahead_ms = broker.logs.time.stamp_ms()
        info = partition.append(batch, now_wall_ms=now_ms, clock_ahead_ms=ahead_ms, is_open_member=is_open_member, caller=caller)
        if is_open_member:
            broker.transactions.appended(batch.header.producer_id, tp, 0 if info.is_duplicate else batch.header.record_count)
    except WireError as error:
        broker.counters.failed_produce[error.code] += 1
        if (
            partition is not None and error.action is Action.PRODUCER_STATE
        ):  # it shows whether the records that the producer misses have expired
            error.log_start_offset = result.log_start_offset = partition.ends.log_start_offset
        result.error.CopyFrom(to_proto(not_appended(error)))
        return None
    except Exception as error:
        result.error.CopyFrom(to_proto(internal(f"append to {tp}", error)))
        return None
    if not info.is_duplicate:
        broker.counters.appended(tp.topic_id, messages=info.last_offset - info.base_offset + 1, size_bytes=data.size)
    result.base_offset = info.base_offset
    result.append_timestamp = info.append_timestamp
    result.is_log_append_time = partition.config.message_timestamp_type == "LogAppendTime"
    result.log_start_offset = info.log_start_offset
    return Awaited(index, partition, info.last_offset)


def _check_batch(broker: Broker, authorizer: TopicAuthorizer, partition: Partition, data: pa.Buffer) -> RecordBatch:
    """The batch, if it is whole and the caller may write it."""
    batch = check_produced(
        data,
        partition.crc_seed,
        max_message_bytes=partition.config.max_message_bytes,
        max_decompressed_bytes=broker.config.message_max_decompressed_bytes,
    )
    if batch.header.producer_id >= 0:
        authorizer.require_producer(batch.header.producer_id)
    return batch


def _check_member(broker: Broker, head: produce_pb2.ProduceRequest, header: BatchHeader) -> bool:
    """True if the batch's producer is a member of an open transaction: the log accepts transactional batches of these alone, and
    of these no others. Raises InvalidTxnStateError for one that contradicts its request.
    """
    known = broker.transactions.coordinator.open_members.get(header.producer_id)
    if not header.is_transactional:
        if head.transactional_id or head.member_id:
            raise InvalidTxnStateError("transactional_id and member_id must be empty: the batch is not marked as transactional")
        return known is not None
    if head.acks != ACKS_ALL:
        raise InvalidTxnStateError(f"acks is {head.acks}, but must be -1 (all) in a transaction: its commit relies on it")
    if known is None or header.producer_epoch != MEMBER_EPOCH:
        return False
    if head.transactional_id not in ("", known.state.transactional_id) or head.member_id not in (b"", known.member.member_id):
        raise InvalidTxnStateError(
            f"transactional_id {head.transactional_id!r} and member_id {head.member_id.hex()!r} are not those that producer id "
            f"{header.producer_id} was given to"
        )
    return True


def _wait_until_durable(broker: Broker, awaited: list[Awaited], timeout_ms: int) -> DelayedProduce:
    wait_ms = min(timeout_ms or WAIT_MAX_MS, WAIT_MAX_MS)
    operation = DelayedProduce(broker.clock.monotonic_ms() + wait_ms, awaited, asyncio.get_running_loop().create_future())
    broker.produce_purgatory.watch(operation)
    return operation
