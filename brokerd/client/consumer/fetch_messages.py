"""Requests and responses of a fetch stream as values, payload bytes as slices of the message they arrived in.

positions.py decides which offset to fetch next; the fetcher reconnects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from brokerd.client.io.response_checks import throttle_ms
from brokerd.errors import InvalidRequestError, UnknownServerError, WireError
from brokerd.ids import LogPosition, TopicIdPartition
from brokerd.wire.errors import from_proto
from brokerd.wire.records import split_records
from brokerd.wire.v1 import fetch_pb2

_NO_EPOCH = -1
_A_CONSUMER = -1


class PartitionFetch(NamedTuple):
    """One partition to read, starting at `fetch_offset`."""

    tp: TopicIdPartition
    fetch_offset: int
    max_bytes: int
    until_offset: int = 0  # no batch that begins there or above is wanted; 0: no end
    position: LogPosition | None = None  # to be checked


class FetchRequest(NamedTuple):
    """One poll: answered once `min_bytes` are available, or after `max_wait_ms`."""

    correlation_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: fetch_pb2.IsolationLevel
    partitions: Sequence[PartitionFetch]


class Aborted(NamedTuple):
    """Records of `producer_id` from `first_offset` up to its marker are void."""

    producer_id: int
    first_offset: int
    marker_offset: int


class PartitionFetchResult(NamedTuple):
    """The batches read from one partition: each of `chunks` holds one or more whole batches."""

    tp: TopicIdPartition
    error: WireError | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[Aborted, ...]
    chunks: Sequence[pa.Buffer]


class FetchResponse(NamedTuple):
    """Response to one poll; `error` = the whole request failed."""

    correlation_id: int
    throttle_time_ms: int
    error: WireError | None
    results: Sequence[PartitionFetchResult]


def encode_request(request: FetchRequest) -> bytes:
    """The wire form of a poll."""
    message = fetch_pb2.FetchRequest(
        correlation_id=request.correlation_id,
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        isolation_level=request.isolation_level,
        replica_id=_A_CONSUMER,
    )
    for tp, fetch_offset, max_bytes, until_offset, position in request.partitions:
        entry = message.partitions.add(
            topic_id=tp.topic_id,
            partition=tp.partition,
            current_leader_epoch=_NO_EPOCH,
            fetch_offset=fetch_offset,
            partition_max_bytes=max_bytes,
            last_fetched_epoch=_NO_EPOCH,
            durable_offset=-1,
            until_offset=until_offset,
        )
        if position is not None:
            entry.position.offset, entry.position.leader_epoch_id = position
    return message.SerializeToString()


def decode_response(data: bytes) -> FetchResponse:
    """A response as values; the records are not copied. Raises UnknownServerError if it cannot be read."""
    try:
        message, records = split_records(fetch_pb2.FetchResponse, data)
    except InvalidRequestError as error:
        raise UnknownServerError(f"the broker's response to a fetch cannot be read: {error.message}") from None
    counts = [result.record_chunks for result in message.results]
    if sum(counts) != len(records) or any(count < 0 for count in counts):
        raise UnknownServerError(
            f"the broker's response to a fetch holds {len(records)} chunks of records, not as many as it declares"
        )
    results = []
    at = 0
    for result in message.results:
        results.append(
            PartitionFetchResult(
                tp=TopicIdPartition(result.topic_id, result.partition),
                error=from_proto(result.error) if result.HasField("error") else None,
                high_watermark=result.high_watermark,
                last_stable_offset=result.last_stable_offset,
                log_start_offset=result.log_start_offset,
                aborted=tuple(Aborted(one.producer_id, one.first_offset, one.marker_offset) for one in result.aborted),
                chunks=records[at : at + result.record_chunks],
            )
        )
        at += result.record_chunks
    failure = from_proto(message.error) if message.HasField("error") else None
    return FetchResponse(message.correlation_id, throttle_ms(message.throttle_time_ms), failure, results)
