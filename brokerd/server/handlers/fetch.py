"""Fetch: a stream of requests for whole record batches. DelayedFetch has the conditions of waiting.

Behaviour
- A partition of a topic that the caller may not read gets an error; rights are checked again for each read.
- Partitions are read in the requested order. The first batch of the first one that has data is returned even if it is larger
  than max_bytes and partition_max_bytes, so that a reader always makes progress; the first batch of a later partition may exceed
  partition_max_bytes, but not the rest of max_bytes.
- Batches that begin at until_offset or above are left out, but count towards min_bytes.
- An offset between the high watermark and the log end is in range but has no data yet; beyond either end of the log, the error
  is OFFSET_OUT_OF_RANGE, with the log start. A position from another history of the log gets LOG_TRUNCATION.
- A fetch is answered at once if max_wait_ms is 0, no partition is requested, min_bytes are available, or a partition has an
  error; otherwise it is parked.
- As responses fill max.fetch.bytes.in.flight, max_bytes is lowered. min_bytes then counts as reached if more data is available.
- Data in the page cache is read in the event loop, other data in a thread.
- With check_first_batch, one batch is read and its CRC verified in a thread, one such read at a time, clients in turn. A client's
  report of damage has no other effect.
- A leader that reaches neither etcd nor another replica answers readers at its log end with NOT_READY: they look for a new leader.

A parked fetch costs only memory: the stream's task is waiting for the client's next message anyway, and the parked fetch is one
DelayedFetch. When it completes, a short-lived task reads and responds.

A response counts against max.fetch.bytes.in.flight from before it is read until gRPC has accepted it (streams.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

import grpc

from brokerd.clock import stopwatch_ns
from brokerd.errors import (
    ErrorCode,
    LogTruncationError,
    NotLeaderError,
    NotReadyError,
    OffsetOutOfRangeError,
    ResourceExhaustedError,
    WireError,
)
from brokerd.ids import LogPosition, TopicIdPartition
from brokerd.partition.log_ends import LogEnd
from brokerd.partition.partition import Partition
from brokerd.partition.producer_state import AbortedTransaction
from brokerd.partition.reader import FetchDataInfo, NeedsRoom
from brokerd.purgatory import Completion, DelayedOperation
from brokerd.record.batch import begun_below, producer_ids_in
from brokerd.server.admin import STOPPING
from brokerd.server.broker import BrokerParts
from brokerd.server.failures import ENDED, internal, malformed
from brokerd.server.limits.response_budget import FREE_BYTES
from brokerd.server.requests import (
    FIELDS_PER_ENTRY,
    OTHER_FIELDS,
    PARTITIONS,
    check_count,
    check_doubles,
    check_not_negative,
    reads_committed,
    topic_id_partition,
    without_leader_epoch,
)
from brokerd.server.security.topic_authorizer import Right, TopicAuthorizer
from brokerd.server.streams import LARGE_BYTES, LARGE_PARTITIONS, StreamHandler
from brokerd.sharing import Caller
from brokerd.storage.files import Buffer, WouldBlock
from brokerd.wire.errors import to_proto
from brokerd.wire.records import Bytes, join_records, split_records
from brokerd.wire.v1 import fetch_pb2

_RETRY_AFTER_MS = 1_000
_LARGE_REQUEST_BYTES = 20 * LARGE_PARTITIONS  # a partition takes at least 20 bytes
_FIRST_BATCH_BYTES = 1_048_576  # minimum share, for a first batch larger than max_bytes: producers' batch size


class FetchPartition(NamedTuple):
    """One requested partition."""

    tp: TopicIdPartition
    leader_epoch: int
    fetch_offset: int
    max_bytes: int
    until_offset: int = 0  # 0 = no end
    position: LogPosition | None = None  # must be in the log's history
    check_first_batch: bool = False


class FetchParams(NamedTuple):
    """A decoded request; each limit is the lower of the client's and the broker's."""

    correlation_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    end: LogEnd
    partitions: Sequence[FetchPartition]


class PartitionRead(NamedTuple):
    """The data read from one partition. If this node has no such partition that the caller may read, `partition` is None and
    `error` set."""

    asked: FetchPartition
    partition: Partition | None
    data: FetchDataInfo
    error: WireError | None = None
    aborted: Sequence[AbortedTransaction] = ()


class _Left(NamedTuple):
    """Bytes left in a response; while the response has no batch, `first_batch_bytes` limits the first one."""

    bytes: int
    first_batch_bytes: int | None = None


def decode(broker: BrokerParts, data: bytes) -> FetchParams:
    """Decodes a request. Raises MalformedError, InvalidRequestError."""
    config = broker.config
    partitions_max = config.max_partitions_per_request
    head, records = split_records(fetch_pb2.FetchRequest, data, max_fields=FIELDS_PER_ENTRY * partitions_max + OTHER_FIELDS)
    if records:
        raise malformed("records", "is not a field of FetchRequest")
    check_count("partitions", head.partitions, partitions_max, "max.partitions.per.request")
    for name in ("max_wait_ms", "min_bytes", "max_bytes"):
        check_not_negative(name, getattr(head, name))
    is_committed = reads_committed(head.isolation_level)
    partitions = [_decode_partition(entry) for entry in head.partitions]
    if len({asked.tp for asked in partitions}) < len(partitions):
        check_doubles(PARTITIONS, head.partitions)
    max_bytes = min(head.max_bytes, config.fetch_max_bytes)
    return FetchParams(
        head.correlation_id,
        min(head.max_wait_ms, config.fetch_max_wait_ms),
        min(head.min_bytes, max_bytes),
        max_bytes,
        LogEnd.LAST_STABLE_OFFSET if is_committed else LogEnd.HIGH_WATERMARK,
        partitions,
    )


def _decode_partition(entry: fetch_pb2.PartitionFetch) -> FetchPartition:
    tp = topic_id_partition("partitions", entry.topic_id, entry.partition)
    check_not_negative("partitions.fetch_offset", entry.fetch_offset)
    check_not_negative("partitions.partition_max_bytes", entry.partition_max_bytes)
    check_not_negative("partitions.until_offset", entry.until_offset)
    position = LogPosition(entry.position.offset, entry.position.leader_epoch_id) if entry.HasField("position") else None
    return FetchPartition(
        tp,
        entry.current_leader_epoch,
        entry.fetch_offset,
        entry.partition_max_bytes,
        entry.until_offset,
        position,
        entry.check_first_batch,
    )


async def read(
    broker: BrokerParts, authorizer: TopicAuthorizer, caller: Caller, params: FetchParams, *, room_bytes: int
) -> list[PartitionRead]:
    """Reads the data available now, in order, within the limits and `room_bytes`. Raises NeedsRoom if the first batch alone exceeds
    them.
    """
    reads: list[PartitionRead] = []
    left = _Left(min(params.max_bytes, room_bytes), room_bytes)
    for asked in params.partitions:
        result = await _read_partition(broker, authorizer, caller, asked, params.end, left)
        reads.append(result)
        if result.data.size_bytes:
            left = _Left(max(0, left.bytes - result.data.size_bytes))
    return reads


async def _read_partition(
    broker: BrokerParts, authorizer: TopicAuthorizer, caller: Caller, asked: FetchPartition, end: LogEnd, left: _Left
) -> PartitionRead:
    partition = None
    try:
        authorizer.require_id(Right.READ, asked.tp.topic_id)
        partition = broker.partitions.leader(asked.tp, asked.leader_epoch)
        if asked.leader_epoch <= 0:
            raise without_leader_epoch(asked.leader_epoch, "a reader")
        try:
            if asked.position is not None:
                partition.check_history(asked.position)
            partition.check_in_range(asked.fetch_offset)
        except (LogTruncationError, OffsetOutOfRangeError) as error:
            if asked.fetch_offset >= partition.ends.log_start_offset:  # below it, records are gone on any leader
                await require_leader(broker, partition, error)
            raise
        visible_end = partition.ends.of(end)
        if asked.fetch_offset >= visible_end:
            partition.check_not_cut_off()
            return PartitionRead(asked, partition, _nothing(asked, visible_end))
        if left.bytes == 0 and left.first_batch_bytes is None:
            return PartitionRead(asked, partition, _nothing(asked, visible_end))
        try:
            data = await _read_log(broker, caller, partition, asked, left, end)
        except NeedsRoom:
            if left.first_batch_bytes is not None:
                raise
            return PartitionRead(asked, partition, _nothing(asked, visible_end))
        # The read may have waited for a thread, and a node that lost the lead does not know which commits hold back data.
        broker.partitions.leader(asked.tp, asked.leader_epoch)
        aborted = _aborted(partition, asked.fetch_offset, data) if end is LogEnd.LAST_STABLE_OFFSET else ()
        return PartitionRead(asked, partition, data, None, aborted)
    except NeedsRoom:
        raise
    except WireError as error:
        broker.counters.failed_fetch.labels(error.code.name).inc()
        return PartitionRead(asked, partition, _nothing(asked), error)
    except Exception as error:
        return PartitionRead(asked, partition, _nothing(asked), internal(f"read of {asked.tp}", error))


async def require_leader(broker: BrokerParts, partition: Partition, error: WireError) -> None:
    """Raises NotLeaderError unless the store confirms now that this node leads the partition. A leader that was replaced without
    noticing may lack records that others have, so it must not report records as gone."""
    if not await broker.cluster.is_confirmed_leader(partition.tp, partition.leader_epoch):
        raise NotLeaderError(f"whether this node still leads {partition.name} is not known, so this may be wrong: {error.message}")


def _nothing(asked: FetchPartition, visible_end: int = -1) -> FetchDataInfo:
    return FetchDataInfo([], 0, asked.fetch_offset, asked.fetch_offset, visible_end)


def _aborted(partition: Partition, fetch_offset: int, data: FetchDataInfo) -> Sequence[AbortedTransaction]:
    """The aborted transactions that have batches in `data`, at most one per batch. Raises OffsetOutOfRangeError."""
    overlapping = partition.aborted_transactions(fetch_offset, data.next_offset)
    if not overlapping:
        return ()
    producer_ids = set().union(*map(producer_ids_in, data.chunks))
    return [entry for entry in overlapping if entry.producer_id in producer_ids]


async def _read_log(
    broker: BrokerParts, caller: Caller, partition: Partition, asked: FetchPartition, left: _Left, end: LogEnd
) -> FetchDataInfo:
    first_batch_bytes = left.bytes if left.first_batch_bytes is None else left.first_batch_bytes
    if asked.check_first_batch:
        # max_bytes=1 still returns the first batch, and no other.
        check = partial(partition.read_checked, asked.fetch_offset, below=end, max_bytes=1, first_batch_max_bytes=first_batch_bytes)
        data = await broker.checkers.run(caller, check)  # the next check waits until this one has ended, even if its client is gone
    else:
        read = partial(
            partition.read,
            asked.fetch_offset,
            below=end,
            max_bytes=min(left.bytes, asked.max_bytes),
            first_batch_max_bytes=first_batch_bytes,
        )
        try:
            data = read(cached_only=True)
        except WouldBlock:
            data = await broker.readers.run(caller, partial(read, cached_only=False))
    return _begun_below(data, asked.until_offset) if 0 < asked.until_offset < data.next_offset else data


def _begun_below(data: FetchDataInfo, until_offset: int) -> FetchDataInfo:
    """The batches that begin below an offset: a read takes its full size even if the reader's range ends earlier."""
    chunks: list[Buffer] = []
    next_offset = data.first_offset
    for chunk in data.chunks:
        size_bytes, behind = begun_below(chunk, until_offset)
        if size_bytes:
            chunks.append(chunk if size_bytes == len(chunk) else memoryview(chunk)[:size_bytes])
            next_offset = behind
        if size_bytes < len(chunk):
            break
    return data._replace(chunks=chunks, size_bytes=sum(map(len, chunks)), next_offset=next_offset)


def must_answer_now(params: FetchParams, reads: Sequence[PartitionRead]) -> bool:
    """True if the response must not wait for more data; see the module docstring."""
    return (
        params.max_wait_ms == 0
        or not params.partitions
        or any(result.error is not None for result in reads)
        or sum([_available_bytes(params, result) for result in reads]) >= params.min_bytes
    )


def _available_bytes(params: FetchParams, result: PartitionRead) -> int:
    """The bytes of a partition that count towards min_bytes. If more is available than was read, the partition counts in full,
    since waiting would not read more of it."""
    if result.data.next_offset < result.data.until_offset:
        return min(result.asked.max_bytes, params.max_bytes)
    return result.data.size_bytes


def encode(params: FetchParams, reads: Sequence[PartitionRead]) -> bytes:
    """The response's bytes: one join makes the only copy of the payloads."""
    head = fetch_pb2.FetchResponse(correlation_id=params.correlation_id)
    records: list[list[Bytes]] = []
    for result in reads:
        _fill(head.results.add(), result)
        records.extend([chunk] for chunk in result.data.chunks)
    return join_records(head, records)


def _fill(out: fetch_pb2.PartitionFetchResult, result: PartitionRead) -> None:
    out.topic_id = result.asked.tp.topic_id
    out.partition = result.asked.tp.partition
    if result.error is not None:
        out.error.CopyFrom(to_proto(result.error))
    if result.partition is None:
        out.high_watermark = out.last_stable_offset = out.log_start_offset = -1
        return
    ends = result.partition.ends
    out.high_watermark = ends.high_watermark
    out.last_stable_offset = ends.last_stable_offset
    out.log_start_offset = ends.log_start_offset
    out.record_chunks = len(result.data.chunks)
    for entry in result.aborted:
        out.aborted.add(producer_id=entry.producer_id, first_offset=entry.first_offset, marker_offset=entry.marker_offset)


def encode_error(params: FetchParams, error: WireError) -> bytes:
    """The response to a request that failed as a whole."""
    return fetch_pb2.FetchResponse(correlation_id=params.correlation_id, error=to_proto(error)).SerializeToString()


class ParkedPartition(NamedTuple):
    """One partition of a parked fetch, as of the time of parking."""

    partition: Partition
    leader_epoch: int  # at the time of the read
    fetch_offset: int
    found_bytes: int  # bytes that the read found
    counted_bytes: int  # bytes of the partition's batches below the end of that read; later batches are added
    # The end of the read, if the bytes above it cannot be counted: they belong to undecided transactions, or were appended before
    # the broker's start. When the readable end passes this offset, the partition counts in full.
    uncounted_above: int | None
    max_bytes: int  # upper limit of its count


def park(partition: Partition, fetch_offset: int, read_until: int, *, found_bytes: int, max_bytes: int) -> ParkedPartition:
    """A partition of a fetch that was read up to `read_until`."""
    ends = partition.ends
    has_uncounted = read_until < max(ends.high_watermark, ends.counted_from)
    return ParkedPartition(
        partition=partition,
        leader_epoch=partition.leader_epoch,
        fetch_offset=fetch_offset,
        found_bytes=found_bytes,
        counted_bytes=ends.bytes_below(read_until),
        uncounted_above=read_until if has_uncounted else None,
        max_bytes=max_bytes,
    )


class DelayedFetch(DelayedOperation):
    """A fetch that found too little data and waits for more. It holds no data: the response reads it again.

    It completes when one of these holds:

    A. The readable bytes reach min_bytes; each partition counts for at most its partition_max_bytes.
    B. A fetch offset is out of range: the log start has moved past it. (An offset between high watermark and log end is in
       range: its fetch waits.)
    C. A topic was deleted, or this node no longer leads a partition in the epoch of the read.
    D. Its deadline passes (max_wait_ms).
    E. The next request arrived on its stream, or the broker is stopping: forced.
    F. The client is gone: cancelled, never answered.

    Unlike in Kafka, rolling a segment is not a case: bytes are counted as they are appended, not by positions in a segment, and a
    read crosses segments. Bytes are kept per partition, so that updating one costs the same however many others are fetched.
    """

    __slots__ = ("_available_bytes", "_log_end", "_min_bytes", "_on_done", "_partition_bytes", "_partitions")

    def __init__(
        self, expiry_ms: int, partitions: list[ParkedPartition], *, end: LogEnd, min_bytes: int, on_done: Callable[[], None]
    ) -> None:
        super().__init__(expiry_ms, [parked.partition.waiters[end] for parked in partitions])
        self._partitions = partitions
        self._log_end = end
        self._min_bytes = min_bytes
        self._on_done = on_done
        self._partition_bytes = [0] * len(partitions)  # counted per partition
        self._available_bytes = 0  # their sum

    @property
    def partition_count(self) -> int:
        """The number of partitions that the fetch waits for."""
        return len(self._partitions)

    def is_satisfied(self, place: int) -> bool:
        """Cases A to C."""
        parked = self._partitions[place]
        if parked.fetch_offset < parked.partition.ends.log_start_offset:  # case B
            return True
        if parked.partition.health.is_deleted or not parked.partition.leads_in(parked.leader_epoch):  # case C
            return True
        readable_bytes = self._readable_bytes(parked)
        self._available_bytes += readable_bytes - self._partition_bytes[place]
        self._partition_bytes[place] = readable_bytes
        return self._available_bytes >= self._min_bytes  # case A

    def _readable_bytes(self, parked: ParkedPartition) -> int:
        ends = parked.partition.ends
        end_offset = ends.of(self._log_end)
        if end_offset <= parked.fetch_offset:
            return 0
        if parked.uncounted_above is not None and end_offset > parked.uncounted_above:
            return parked.max_bytes
        gained_bytes = ends.bytes_below_end(self._log_end) - parked.counted_bytes
        return min(parked.found_bytes + gained_bytes, parked.max_bytes)

    def on_complete(self, completion: Completion) -> None:  # noqa: ARG002 - all cases are answered alike
        """Cases A to E: the data is read and the response sent."""
        self._on_done()


class FetchHandler(StreamHandler):
    """Serves one stream to its end."""

    _is_large = False  # whether the last request named many partitions
    _parked: DelayedFetch | None = None
    _answered: asyncio.Future[None] | None = None  # done when the parked fetch is answered
    _answering: asyncio.Task[None] | None = None
    _held_bytes = 0  # charged to the response budget

    async def run(self) -> None:
        """Returns when the client has closed its side and every request is answered. Raises BrokerdError to end the stream."""
        try:
            while isinstance(data := cast("object", await self.context.read()), bytes):  # anything else: end of stream
                await self._finish_parked()
                if len(data) >= _LARGE_REQUEST_BYTES:
                    await self._broker.turns.take(self.caller)
                params = decode(self._broker, data)
                self._is_large = len(params.partitions) > LARGE_PARTITIONS
                del data
                await self._serve(params)
            if self._answered is not None:
                await self._answered
        except grpc.aio.BaseError as error:
            if isinstance(error, grpc.aio.AbortError):
                raise
        finally:
            self._end()

    async def _finish(self) -> None:
        """Answers the parked fetch, or drops it if the credentials are revoked."""
        if not self._is_revoked:
            await self._finish_parked()
        elif self._parked is not None:
            self._drop_parked()

    async def _finish_parked(self) -> None:
        """Answers the parked fetch, if any, with the data available."""
        if self._parked is not None:
            self._parked.force_complete()
        if self._answered is not None:
            await asyncio.shield(self._answered)
            self._answered = None

    async def _serve(self, params: FetchParams) -> None:
        if self._broker.is_stopping:
            await self._write(encode_error(params, NotReadyError(STOPPING)))
            return
        received_ns = stopwatch_ns()
        try:
            reads = await self._read(params)
            if must_answer_now(params, reads):
                await self._answer(params, reads, received_ns, parked_ns=0)
                return
        finally:
            self._hold(0)
        if self._is_revoked:
            return
        if not self._broker.parked_partitions.has_room(self.authorizer.principal, len(params.partitions)):
            self._broker.counters.failed_fetch.labels(ErrorCode.RESOURCE_EXHAUSTED.name).inc()
            await self._write(encode_error(params, self._too_many()))
        else:
            self._park(params, reads, received_ns)

    async def _read(self, params: FetchParams) -> list[PartitionRead]:
        """Reads as much as the response budget allows, and charges it. If the first batch does not fit, waits until there is room
        for it."""
        self._hold(self._broker.response_budget.share(max(params.max_bytes, _FIRST_BATCH_BYTES)))
        while True:
            try:
                reads = await read(self._broker, self.authorizer, self.caller, params, room_bytes=self._held_bytes)
            except NeedsRoom as needs:
                self._hold(0)
                await self._broker.response_budget.take(self.caller, needs.size_bytes)
                self._held_bytes = needs.size_bytes
            else:
                self._hold(sum([result.data.size_bytes for result in reads]))
                return reads

    async def _turn(self) -> None:
        """Waits for the caller's turn before reading or copying much data; one turn for both would be too long."""
        if self._is_large or self._held_bytes >= LARGE_BYTES:
            await self._broker.turns.take(self.caller)

    def _hold(self, size_bytes: int) -> None:
        if size_bytes != self._held_bytes:
            self._broker.response_budget.add(self.caller.owner, size_bytes - self._held_bytes)
            self._held_bytes = size_bytes

    async def _hold_all(self, size_bytes: int) -> None:
        """Charges a whole response: besides its records, it has a result or an error for each partition. If those outweigh the
        records, waits until there is room."""
        if size_bytes - self._held_bytes > max(self._held_bytes, FREE_BYTES):
            self._hold(0)
            await self._broker.response_budget.take(self.caller, size_bytes)
            self._held_bytes = size_bytes
        else:
            self._hold(size_bytes)

    def _park(self, params: FetchParams, reads: list[PartitionRead], received_ns: int) -> None:
        loop = asyncio.get_running_loop()
        parked_from_ns = stopwatch_ns()
        answered = self._answered = loop.create_future()

        def start_response() -> asyncio.Task[None]:
            self._answering = loop.create_task(self._answer_parked(params, answered, received_ns, parked_from_ns))
            return self._answering

        parked = [
            park(
                read.partition,
                read.asked.fetch_offset,
                read.data.next_offset,
                found_bytes=_available_bytes(params, read),
                max_bytes=min(read.asked.max_bytes, params.max_bytes),
            )
            for read in reads
            if read.partition is not None
        ]
        operation = DelayedFetch(
            self._broker.clock.monotonic_ms() + params.max_wait_ms,
            parked,
            end=params.end,
            min_bytes=params.min_bytes,
            on_done=lambda: self._broker.response_queue.put(self.caller, start_response),
        )
        self._parked = operation
        self._broker.parked_partitions.add(self.authorizer.principal, operation.partition_count)
        # Records may have been appended during a cold read above, so check again before parking.
        self._broker.fetch_purgatory.watch(operation)

    async def _answer_parked(
        self, params: FetchParams, answered: asyncio.Future[None], received_ns: int, parked_from_ns: int
    ) -> None:
        self._unpark()
        parked_ns = stopwatch_ns() - parked_from_ns
        try:
            if self._is_over:  # the client disconnected while the response was queued
                return
            await self._turn()
            await self._answer(params, await self._read(params), received_ns, parked_ns=parked_ns)
        except ENDED:
            pass  # the client is gone; reading reports it too
        except Exception as error:
            await self._end_unexpectedly("response to a parked fetch", error)
        finally:
            self._hold(0)
            self._answering = None
            if not answered.done():
                answered.set_result(None)

    def _unpark(self) -> None:
        if self._parked is not None:
            self._broker.parked_partitions.add(self.authorizer.principal, -self._parked.partition_count)
            self._parked = None

    async def _answer(self, params: FetchParams, reads: list[PartitionRead], received_ns: int, *, parked_ns: int) -> None:
        """Writes the response. Clears `reads`, which would otherwise keep a second copy of the data while the client reads."""
        await self._turn()
        for result in reads:
            if result.data.size_bytes:
                self._broker.counters.topics[result.asked.tp.topic_id].bytes_out += result.data.size_bytes
        data = encode(params, reads)
        reads.clear()
        await self._hold_all(len(data))
        await self._turn()
        ready_ns = stopwatch_ns()
        await self._write(data)
        self._broker.counters.total.bytes_out += len(data)
        self._broker.counters.fetch_time.observe(
            local_ns=ready_ns - received_ns - parked_ns, remote_ns=parked_ns, send_ns=stopwatch_ns() - ready_ns
        )

    async def _write(self, data: bytes) -> None:
        if not self._is_revoked:
            await self._send(data)

    def _too_many(self) -> ResourceExhaustedError:
        waiting, principal = len(self._broker.fetch_purgatory), self.authorizer.principal
        parked = self._broker.parked_partitions
        return ResourceExhaustedError(
            f"{waiting} fetches of {parked.total} partitions wait already, {parked.count(principal)} of them of principal "
            f"'{principal}', and max.parked.partitions allows no more: try again later",
            retry_after_ms=_RETRY_AFTER_MS,
        )

    def _end(self) -> None:
        self._is_over = True
        if self._answering is not None:
            self._answering.cancel()
        self._drop_parked()

    def _drop_parked(self) -> None:
        """Ends the parked fetch, if any, without a response, even if its response task was cancelled before it ran."""
        if self._parked is not None:
            self._parked.cancel()
        self._unpark()
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)
