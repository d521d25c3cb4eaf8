"""Calls about the offsets of partitions, and their values: the ends of a log, offsets by time or size, deleting records, waiting
for new ones."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from brokerd.client.broker_client import BrokerClient
from brokerd.client.connection import Asked
from brokerd.client.response_checks import TIMESTAMP_MAX_MS, checked_offset, senseless
from brokerd.errors import BrokerdError, ConfigError, WireError
from brokerd.ids import LogPosition, TopicIdPartition
from brokerd.wire.errors import from_proto
from brokerd.wire.methods import FETCH
from brokerd.wire.v1 import fetch_pb2, offsets_pb2, topics_pb2

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"
NO_POSITIONS: Mapping[TopicIdPartition, LogPosition] = {}
_NO_OFFSET = -1


class OffsetSpec(enum.Enum):
    """A query for an offset other than by timestamp."""

    EARLIEST = "earliest"
    LATEST = "latest"  # the high watermark, or the last stable offset with read_committed


class AfterBytes(NamedTuple):
    """The end of the last batch within `max_bytes`, counting whole batches from the one that holds `from_offset`: at least the end
    of that batch, and at most `until_offset`."""

    from_offset: int
    until_offset: int
    max_bytes: int


class GivenOffset(NamedTuple):
    """This offset, which may lie outside the log; a query for it returns the leader epoch before it."""

    offset: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """As OffsetSpec.LATEST, with the size and age of the records that a reader at `from_offset` has left to read."""

    from_offset: int


@dataclass(frozen=True, slots=True)
class LastRecords:
    """The offset of the newest `count` records; the log start if there are fewer. Only records below `until_offset` count (0: all):
    an end looked up before, since the log may have grown."""

    count: int
    until_offset: int = 0


# An int is a timestamp, ms since 1970: the first record at or after it.
Wanted: TypeAlias = OffsetSpec | AfterBytes | Backlog | GivenOffset | LastRecords | int


class OffsetAndTimestamp(NamedTuple):
    """The result of an offset query; `offset` -1 = no record matches, `timestamp` (ms) and `leader_epoch` -1 = unknown.
    `size_bytes`: with AfterBytes and Backlog, the size of the batches before `offset`. `leader_epoch_id`: of the record before it,
    0 = unknown, with the offset where that epoch begins. `truncation`: why the position checked is not in this log's history.
    `log_start_offset`: the first offset that the log holds; not with AfterBytes. `lag_ms`: with Backlog, the age of the next record
    to read."""

    offset: int
    timestamp: int = -1
    leader_epoch: int = -1
    size_bytes: int = 0
    leader_epoch_id: int = 0
    epoch_start_offset: int = 0
    truncation: WireError | None = None
    log_start_offset: int = 0
    lag_ms: int = -1


_SPECS = {OffsetSpec.EARLIEST: offsets_pb2.OFFSET_SPEC_EARLIEST, OffsetSpec.LATEST: offsets_pb2.OFFSET_SPEC_LATEST}


def isolation_to_proto(isolation: str) -> fetch_pb2.IsolationLevel:
    """The wire form of isolation.level. Raises ConfigError."""
    if isolation == READ_COMMITTED:
        return fetch_pb2.ISOLATION_LEVEL_READ_COMMITTED
    if isolation == READ_UNCOMMITTED:
        return fetch_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED
    raise ConfigError(f"isolation.level must be {READ_COMMITTED} or {READ_UNCOMMITTED}, not '{isolation}'")


async def list_offsets(
    client: BrokerClient,
    wanted: Mapping[TopicIdPartition, Wanted],
    isolation: str = READ_COMMITTED,
    positions: Mapping[TopicIdPartition, LogPosition] = NO_POSITIONS,
    *,
    timeout_ms: int | None = None,
    is_partial: bool = False,
) -> dict[TopicIdPartition, OffsetAndTimestamp | WireError]:
    """Looks up offsets; returns the result for each partition, or its error. The broker also checks `positions`. Retries until
    `timeout_ms` (default.api.timeout.ms). `is_partial`: partitions whose leader does not answer get an error; otherwise the call
    raises BrokerUnreachableError."""
    head = offsets_pb2.ListOffsetsRequest(isolation_level=isolation_to_proto(isolation))
    parts = {tp: _partition_request(tp, one, positions.get(tp)) for tp, one in wanted.items()}
    results = await client.ask_leaders(head, parts, offsets_pb2.ListOffsetsResponse, timeout_ms=timeout_ms, is_partial=is_partial)
    return {tp: one if isinstance(one, WireError) else _read_offset(one) for tp, one in results.items()}


def answers_in(results: Mapping[TopicIdPartition, OffsetAndTimestamp | WireError]) -> dict[TopicIdPartition, OffsetAndTimestamp]:
    """The results of `list_offsets`. Raises the first error among them."""
    answers = {}
    for tp, result in results.items():
        if isinstance(result, WireError):
            raise result
        answers[tp] = result
    return answers


async def delete_records(client: BrokerClient, before: Mapping[TopicIdPartition, int]) -> dict[TopicIdPartition, int | WireError]:
    """Advances log starts (-1 = to the high watermark); returns each new log start, or the error. A leader that does not answer may
    have advanced those of its partitions."""
    parts = {
        tp: topics_pb2.PartitionDeleteRecords(topic_id=tp.topic_id, partition=tp.partition, before_offset=offset)
        for tp, offset in before.items()
    }
    head = topics_pb2.DeleteRecordsRequest()
    results = await client.ask_leaders(head, parts, topics_pb2.DeleteRecordsResponse, is_partial=True)
    return {
        tp: one if isinstance(one, WireError) else checked_offset("DeleteRecords", one.log_start_offset)
        for tp, one in results.items()
    }


async def wait_for_records(client: BrokerClient, ends: Mapping[TopicIdPartition, int], isolation: str, *, timeout_ms: int) -> None:
    """Returns once a partition has a record at its offset of `ends` or above, after `timeout_ms`, or early if the broker cannot
    be reached: the next call raises the reason. Parks one fetch at each node, or more if its partitions exceed one request."""
    if not ends:
        await asyncio.sleep(timeout_ms / 1000)
        return
    try:
        by_leader: dict[int, list[TopicIdPartition]] = {}
        for tp in ends:
            by_leader.setdefault(await client.leader(tp), []).append(tp)
        chunks = [(node_id, chunk) for node_id, tps in by_leader.items() for chunk in await client.chunks(node_id, tps)]
    except BrokerdError:
        return
    waits = [
        asyncio.create_task(_parked_fetch(client, node_id, {tp: ends[tp] for tp in chunk}, isolation, timeout_ms))
        for node_id, chunk in chunks
    ]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _parked_fetch(
    client: BrokerClient, node_id: int, ends: Mapping[TopicIdPartition, int], isolation: str, timeout_ms: int
) -> None:
    level = isolation_to_proto(isolation)
    request = fetch_pb2.FetchRequest(max_wait_ms=timeout_ms, min_bytes=1, max_bytes=1, isolation_level=level)
    for tp, offset in ends.items():
        request.partitions.add(
            topic_id=tp.topic_id,
            partition=tp.partition,
            current_leader_epoch=client.leader_epoch(tp),
            fetch_offset=offset,
            partition_max_bytes=1,
        )
    stream = await client.open_stream(FETCH, node_id)
    try:
        epochs = {tp: client.leader_epoch(tp) for tp in ends}
        await stream.send(request.SerializeToString(), Asked(epochs, timeout_ms))
        await stream.receive(timeout_ms=timeout_ms + client.config.request_timeout_ms)
    finally:
        stream.close()


def _read_offset(result: offsets_pb2.PartitionListOffsetsResult) -> OffsetAndTimestamp:
    """Reads a result without an error. Raises UnknownServerError if it holds no valid offset."""
    if result.offset < _NO_OFFSET:
        raise senseless("ListOffsets", f"offset {result.offset}")
    return OffsetAndTimestamp(
        result.offset,
        result.timestamp if 0 <= result.timestamp <= TIMESTAMP_MAX_MS else -1,
        max(-1, result.leader_epoch),
        max(0, result.size_bytes),
        result.leader_epoch_id,
        result.epoch_start_offset,
        from_proto(result.truncation) if result.HasField("truncation") else None,
        max(0, result.log_start_offset),
        max(-1, result.lag_ms),
    )


def _partition_request(tp: TopicIdPartition, wanted: Wanted, position: LogPosition | None) -> offsets_pb2.PartitionListOffsets:
    """The wire form of one partition's query, and of the position to check."""
    request = offsets_pb2.PartitionListOffsets(topic_id=tp.topic_id, partition=tp.partition)
    if position is not None:
        request.position.offset, request.position.leader_epoch_id = position
    if isinstance(wanted, OffsetSpec):
        request.spec = _SPECS[wanted]
    elif isinstance(wanted, AfterBytes):
        request.spec = offsets_pb2.OFFSET_SPEC_AFTER_BYTES
        request.from_offset, request.until_offset, request.max_bytes = wanted
    elif isinstance(wanted, Backlog):
        request.spec = offsets_pb2.OFFSET_SPEC_BACKLOG
        request.from_offset = wanted.from_offset
    elif isinstance(wanted, GivenOffset):
        request.spec = offsets_pb2.OFFSET_SPEC_GIVEN
        request.from_offset = wanted.offset
    elif isinstance(wanted, LastRecords):
        request.spec = offsets_pb2.OFFSET_SPEC_LAST_RECORDS
        request.record_count, request.until_offset = wanted.count, wanted.until_offset
    else:
        request.spec = offsets_pb2.OFFSET_SPEC_TIMESTAMP
        request.timestamp = wanted
    return request
