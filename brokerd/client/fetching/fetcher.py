"""Reads ranges of partitions at full speed.

Two threads share the work. The loop thread fetches, walks batch headers, and sends the next fetch at once (Pump); the reading
thread decodes (PartitionFetcher, or a consumer). So the next fetch is in flight while the last one is decoded, and a slow reader
applies back-pressure: a fetch is sent only if there is room for its response.

Each leader of a range has one stream. After a lost connection, reading resumes at the next offset of each range. A position moves
only when its response is delivered, with no await in between, so nothing is read twice or skipped whenever the pump is stopped.
"""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import Callable, Container, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, Self

import pyarrow as pa

from brokerd.client.blocking import BlockingClient
from brokerd.client.broker_client import is_repeatable
from brokerd.client.fetching.columns import FetchedBatch, decode_slice
from brokerd.client.fetching.positions import BatchSlice, EpochStart, FetchRange, RangePosition
from brokerd.client.io.connection import RawStream
from brokerd.client.io.response_checks import throttle_ms
from brokerd.client.offsets import READ_COMMITTED, AskedPartition, fetch_request, isolation_to_proto
from brokerd.config.client import ConsumerConfig
from brokerd.errors import (
    BrokerdError,
    ClientError,
    CorruptMessageError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    UnknownServerError,
    UnsupportedVersionError,
    WireError,
)
from brokerd.ids import TopicIdPartition
from brokerd.process import end_daemon_thread
from brokerd.wire.errors import from_proto
from brokerd.wire.records import split_records
from brokerd.wire.v1 import fetch_pb2

logger = logging.getLogger(__name__)

RESPONSES_AHEAD = 3  # requested or waiting to be decoded: one in flight, two delivered


class Fetched(NamedTuple):
    """The records of one response, in offset order per partition. `reached`: where reading resumes, for each partition that
    moved; past the last slice, if control batches or records of aborted transactions follow it."""

    slices: list[BatchSlice]
    reached: list[tuple[TopicIdPartition, int]]
    epochs: Sequence[tuple[TopicIdPartition, EpochStart]] = ()  # leader epochs that begin in it


# Items of a pump: responses, then None at the end of all ranges, or the error that ended reading.
Item = Fetched | BaseException | None


class Pump:
    """Fetches ranges on the loop thread while there is room for responses; `taken` makes room."""

    def __init__(
        self,
        client: BlockingClient,
        ranges: Sequence[FetchRange],
        config: ConsumerConfig,
        deliver: Callable[[Item], None],
        *,
        goes_past_damage: bool = False,
    ) -> None:
        """Starts at once. `deliver` runs on the loop thread and must not wait. With skip.corrupt.batches or `goes_past_damage`,
        damage in the middle of a log is only a warning."""
        self.positions = [
            RangePosition(
                one,
                is_read_committed=config.isolation_level == READ_COMMITTED,
                check_headers=config.check_crcs,
                goes_past_damage=config.skip_corrupt_batches or goes_past_damage,
            )
            for one in ranges
        ]
        self._client = client.broker_client
        self._loop_thread = client.loop_thread
        self._config = config
        self._isolation_level = isolation_to_proto(config.isolation_level)
        self._deliver = deliver
        self._slots = asyncio.Semaphore(RESPONSES_AHEAD)
        self._progress_ms = self._client.clock.monotonic_ms()
        self._retries = self._client.retries(self._progress_ms)
        self._correlation_id = 0
        self._is_stopped = False
        self._task: asyncio.Task[None] | None = None
        self._call = client.loop_thread.submit(self._run())  # kept: a loop holds its tasks weakly

    def taken(self) -> None:
        """Makes room for another response, once a thread has taken one; thread-safe."""
        self._loop_thread.call_soon(self._slots.release)

    def stop(self) -> None:
        """Stops fetching without waiting. The responses fetched so far are still delivered, then None: `positions` then tell where
        reading resumes. Thread-safe."""
        self._is_stopped = True
        self._loop_thread.call_soon(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:  # None: _run has not begun, and will end at once
            self._task.cancel()

    def partition_of(self, error: BaseException) -> TopicIdPartition | None:
        """The partition that `error` came from, if any."""
        return next((position.tp for position in self.positions if position.error is error), None)

    # --- on the loop thread

    async def _run(self) -> None:
        """Reads until all ranges are done or `stop`; its last item is None, or the error that ended it."""
        self._task = asyncio.current_task()
        try:
            is_repeat = False
            while unread := [position for position in self.positions if not (position.is_done or self._is_stopped)]:
                try:
                    await self._read_from_leaders(unread, is_repeat=is_repeat)
                except* BrokerdError as group:
                    # If a task fails while its group is being cancelled, the group raises only that failure (Python 3.11).
                    if self._is_stopped:
                        raise asyncio.CancelledError from None
                    await self._client.wait_or_raise(self._retries, _first(group))
                    is_repeat = True
            self._deliver(None)
        except asyncio.CancelledError:
            self._deliver(None if self._is_stopped else ClientError("the client of this fetcher was closed"))
            raise
        except BaseException as error:
            self._deliver(error)

    async def _read_from_leaders(self, unread: Sequence[RangePosition], *, is_repeat: bool) -> None:
        """Runs one stream per leader; the first failure ends them all."""
        if is_repeat:
            await self._client.refresh_leaders([position.tp for position in unread])
        by_leader: dict[int, list[RangePosition]] = {}
        for position in unread:
            try:
                leader = await self._client.leader(position.tp)
            except BrokerdError as error:
                position.error = error
                raise
            position.leader_epoch = self._client.leader_epoch(position.tp)
            by_leader.setdefault(leader, []).append(position)
        async with asyncio.TaskGroup() as group:
            for node_id, positions in by_leader.items():
                group.create_task(self._read_from(node_id, positions))

    async def _read_from(self, node_id: int, unread: list[RangePosition]) -> None:
        most = await self._client.partitions_per_request(node_id)
        stream = await self._client.open_fetch_stream(node_id)
        has_slot = False
        checked: set[RangePosition] = set()  # positions that match this node's history; valid for this stream only
        try:
            while unread:
                if not has_slot:
                    await self._slots.acquire()
                    has_slot = True
                # Partitions beyond the limit of a request take turns; each turn waits for its share of fetch.max.wait.ms.
                asked = unread[:most]
                request = self._request(asked, checked, self._config.fetch_max_wait_ms * len(asked) // len(unread))
                await stream.send(request.SerializeToString())
                results, wait_ms = await self._receive(stream, request)
                # No await and no exception between accept and deliver: a position that has moved counts as read.
                fetched, error = self._accepted(asked, results)
                if fetched.reached:
                    self._deliver(fetched)
                    has_slot = False
                if error is not None:
                    raise error
                checked.update(asked)
                turned = unread[most:] + asked[1:] + asked[:1]  # round robin: no partition starves
                unread = [position for position in turned if not position.is_done]
                if wait_ms:
                    await asyncio.sleep(wait_ms / 1000)
        finally:
            if has_slot:
                self._slots.release()
            stream.close()

    def _request(
        self, positions: Sequence[RangePosition], checked: Container[RangePosition], max_wait_ms: int
    ) -> fetch_pb2.FetchRequest:
        self._correlation_id += 1
        config = self._config
        max_bytes = min(config.max_partition_fetch_bytes, config.fetch_max_bytes)
        asked = [
            AskedPartition(
                one.tp,
                one.leader_epoch,
                one.next_offset,
                max_bytes,
                one.until_offset or 0,
                None if one in checked else one.position,
            )
            for one in positions
        ]
        return fetch_request(
            asked,
            self._isolation_level,
            correlation_id=self._correlation_id,
            max_wait_ms=max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
        )

    async def _receive(self, stream: RawStream, request: fetch_pb2.FetchRequest) -> tuple[list[PartitionResult], int]:
        """The results in the order of the request's partitions, and the broker's throttle time in ms."""
        timeout_ms = self._config.fetch_max_wait_ms + self._config.request_timeout_ms
        response, results = read_response(await stream.receive(timeout_ms=timeout_ms))
        if response.HasField("error"):
            raise from_proto(response.error)
        asked = [(one.topic_id, one.partition) for one in request.partitions]
        is_ours = [(result.topic_id, result.partition) for result, _ in results] == asked
        if response.correlation_id != request.correlation_id or not is_ours:
            raise InvalidRequestError(
                f"the broker answered fetch {request.correlation_id} ({len(asked)} partitions) with "
                f"{response.correlation_id} ({len(results)}), or for others"
            )
        return results, throttle_ms(response.throttle_time_ms) if response.throttle_time_ms else 0

    def _accepted(
        self, positions: Sequence[RangePosition], results: Sequence[PartitionResult]
    ) -> tuple[Fetched, BrokerdError | None]:
        """The slices of a response to decode, and the first partition's error, if any, which does not affect the others; or
        OffsetOutOfRangeError if a bounded range made no progress for default.api.timeout.ms, because the log ends before it.
        """
        now_ms = self._client.clock.monotonic_ms()
        before = [position.next_offset for position in positions]
        slices: list[BatchSlice] = []
        failure: BrokerdError | None = None
        is_empty = not any(chunk.size for _, chunks in results for chunk in chunks)
        for number, (position, (result, chunks)) in enumerate(zip(positions, results, strict=True)):
            try:
                # The first partition requested always gets a batch if it has one; later ones only if there is room left.
                slices.extend(position.accept(result, chunks, had_room=is_empty or number == 0))
            except BrokerdError as error:
                position.error = error
                failure = failure or error
            for first, until, reason in position.gaps:
                logger.warning("%s: offsets %d to %d are skipped: %s", position.name, first, until - 1, reason)
        moved = [position for position, offset in zip(positions, before, strict=True) if position.next_offset != offset]
        reached = [(position.tp, position.next_offset) for position in moved]
        fetched = Fetched(slices, reached, [(position.tp, epoch) for position in moved for epoch in position.epochs])
        if failure is not None:
            return fetched, failure
        self._retries.succeeded(now_ms=now_ms)
        return fetched, self._stuck(positions, has_moved=bool(moved), now_ms=now_ms)

    def _stuck(self, positions: Sequence[RangePosition], *, has_moved: bool, now_ms: int) -> OffsetOutOfRangeError | None:
        stuck = None
        if not has_moved:
            stuck = next((position for position in positions if position.until_offset is not None and not position.is_done), None)
        if stuck is None:
            self._progress_ms = now_ms
        elif now_ms - self._progress_ms >= self._config.api_timeout_ms:
            return OffsetOutOfRangeError(
                f"{stuck.name}: the range to read ends at {stuck.until_offset}, but it can be read up to {stuck.end_offset}, and "
                f"nothing arrived for {(now_ms - self._progress_ms) / 1000:.1f} s ({self._config.isolation_level})"
            )
        return None


# The result of one partition, with its record batches: each chunk holds one or more whole batches.
PartitionResult = tuple[fetch_pb2.PartitionFetchResult, Sequence[pa.Buffer]]


def read_response(data: bytes) -> tuple[fetch_pb2.FetchResponse, list[PartitionResult]]:
    """A response, and its results with their records, which are slices of `data`. Raises UnknownServerError if that fails."""
    try:
        response, records = split_records(fetch_pb2.FetchResponse, data)
    except InvalidRequestError as error:
        raise UnknownServerError(f"the broker's response to a fetch cannot be read: {error.message}") from None
    counts = [result.record_chunks for result in response.results]
    if sum(counts) != len(records) or any(count < 0 for count in counts):
        raise UnknownServerError(
            f"the broker's response to a fetch holds {len(records)} chunks of records, not as many as it declares"
        )
    results: list[PartitionResult] = []
    at = 0
    for result in response.results:
        results.append((result, records[at : at + result.record_chunks]))
        at += result.record_chunks
    return response, results


def _first(group: BaseExceptionGroup[BrokerdError]) -> BrokerdError:
    """One error of a group, preferably a final one: a lost connection must not hide it."""
    leaves = list(_leaves(group))
    return next((error for error in leaves if not is_repeatable(error)), leaves[0])


def _leaves(group: BaseExceptionGroup[BrokerdError]) -> Iterator[BrokerdError]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


class PartitionFetcher:
    """Reads ranges as an iterator of FetchedBatch, in offset order within a partition, up to the end of the ranges.

    Only one thread may read. Use `with`, or close() it: an open fetcher holds a stream to the broker. Raises
    OffsetOutOfRangeError (the offset is gone, or not in the log yet), UnknownTopicIdError (the topic was deleted),
    LogDamagedError, CorruptMessageError, and BrokerUnreachableError after default.api.timeout.ms without a response.
    """

    def __init__(
        self, client: BlockingClient, ranges: Sequence[FetchRange], config: ConsumerConfig, *, goes_past_damage: bool = False
    ) -> None:
        """Starts reading at once. `client` must stay open; it may serve any number of fetchers. `goes_past_damage`: see Pump."""
        self._config = config
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._slices: list[BatchSlice] = []  # of the response being read, last first
        self._is_over = False
        self._pump = Pump(client, ranges, config, self._items.put, goes_past_damage=goes_past_damage)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __iter__(self) -> Iterator[FetchedBatch]:
        while (batch := self.next_batch()) is not None:
            yield batch

    def next_batch(self, timeout_ms: int | None = None) -> FetchedBatch | None:
        """The next records; None after `timeout_ms` without any, or at the end of all ranges (then `is_over`). Raises the error
        that ended reading."""
        while True:
            while self._slices:
                batch = decoded(self._slices.pop(), self._config)
                if batch is not None:
                    return batch
            if self._is_over:
                return None
            try:
                item = self._items.get(timeout=None if timeout_ms is None else timeout_ms / 1000)
            except queue.Empty:
                return None
            if isinstance(item, Fetched):
                self._pump.taken()
                self._slices = item.slices[::-1]
                continue
            self._is_over = True
            if item is not None:
                end_daemon_thread()
                raise item

    @property
    def is_over(self) -> bool:
        """True once all ranges have been read to their ends, or the fetcher is closed."""
        return self._is_over and not self._slices

    def close(self) -> None:
        """Stops reading and drops fetched records that were not read. Idempotent."""
        self._is_over = True
        self._slices = []
        self._pump.stop()
        self._items.put(None)  # wakes a waiting reader


def decoded(one: BatchSlice, config: ConsumerConfig) -> FetchedBatch | None:
    """The records of a slice, if any. Raises CorruptMessageError, UnsupportedVersionError unless such batches are skipped."""
    try:
        return decode_slice(one, max_uncompressed_bytes=config.max_decompressed_bytes, check_crc=config.check_crcs)
    except (CorruptMessageError, UnsupportedVersionError) as error:
        if not config.skip_corrupt_batches:
            raise _with_remedy(error, one) from None
        first, last = one.from_offset, one.until_offset - 1
        logger.warning("%s: offsets %d to %d are skipped (skip.corrupt.batches): %s", one.name, first, last, error)
        return None


def _with_remedy(error: WireError, one: BatchSlice) -> WireError:
    """The error with the partition and a remedy; a batch of a later version is not called damaged."""
    advice = "skip.corrupt.batches=true skips such batches"
    if isinstance(error, CorruptMessageError):
        place = f"{one.name}@{one.batch.header.base_offset}"
        advice = (
            f"`brokerd doctor` shows whether it is damaged on the broker's disk, and takes it out with `--take-out {place}`; "
            f"{advice}"
        )
    return type(error)(f"{one.name}: {error.message}; {advice}")
