"""Reads ranges of partitions at full speed.

Two threads share the work. The loop thread fetches, walks batch headers, and sends the next fetch at once; the reading thread
decodes. So the next fetch is in flight while the last one is decoded, and a slow reader applies back-pressure: a fetch is sent
only if there is room for its response.

After a lost connection, reading resumes at the next offset of each range. A position moves only when its response is handed over,
with no await in between, so nothing is read twice or left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from brokerd.client.blocking import BlockingClient
from brokerd.client.broker_client import BrokerClient
from brokerd.client.consumer.fetch_messages import FetchRequest, FetchResponse, PartitionFetch, decode_response, encode_request
from brokerd.client.consumer.fetched import FetchedBatch, decode_piece
from brokerd.client.consumer.offsets import READ_COMMITTED, isolation_to_proto
from brokerd.client.consumer.positions import FetchRange, Piece, RangePosition
from brokerd.client.io.connection import RawStream
from brokerd.client.io.retry import is_repeatable
from brokerd.config.client import ConsumerConfig
from brokerd.errors import (
    BrokerdError,
    ClientError,
    CorruptMessageError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    UnsupportedVersionError,
    WireError,
)
from brokerd.process import end_daemon_thread

logger = logging.getLogger(__name__)

RESPONSES_AHEAD = 3  # requested or waiting to be decoded: one in flight, two in the queue


class PartitionFetcher:
    """Reads ranges as an iterator of FetchedBatch, in offset order within a partition, up to the end of the ranges.

    Only one thread may read. Use `with`, or close(): until then a fetcher holds a stream to the broker. Raises
    OffsetOutOfRangeError (the offset is gone, or not in the log yet), UnknownTopicIdError (the topic was deleted),
    LogDamagedError, CorruptMessageError, and BrokerUnreachableError after default.api.timeout.ms without a response.
    """

    def __init__(
        self, client: BlockingClient, ranges: Sequence[FetchRange], config: ConsumerConfig, *, goes_past_damage: bool = False
    ) -> None:
        """Starts reading at once. `client` must stay open; it may serve any number of fetchers. With skip.corrupt.batches or
        `goes_past_damage`, damage after which the log goes on is only a warning."""
        self._config = config
        self._responses: queue.SimpleQueue[list[Piece] | BaseException | None] = queue.SimpleQueue()
        self._pieces: list[Piece] = []  # of the response being read, last first
        self._loop = client.loop_thread.loop
        self._slots = asyncio.Semaphore(RESPONSES_AHEAD)
        self._is_over = False
        self.skipped_offset_count = 0  # offsets of batches that could not be decoded
        self.positions = [
            RangePosition(
                one,
                is_read_committed=config.isolation_level == READ_COMMITTED,
                check_headers=config.check_crcs,
                goes_past_damage=config.skip_corrupt_batches or goes_past_damage,
            )
            for one in ranges
        ]
        pump = _Pump(client.broker_client, self.positions, config, self._slots, self._responses)
        self._future = client.loop_thread.submit(pump.run())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __iter__(self) -> Iterator[FetchedBatch]:
        while (batch := self.next_batch()) is not None:
            yield batch

    def next_batch(self, timeout_ms: int | None = None) -> FetchedBatch | None:
        """The next records; None at the end of all ranges (`is_over` is then true), or after `timeout_ms` without any."""
        while True:
            while self._pieces:
                batch = self._decoded(self._pieces.pop())
                if batch is not None:
                    return batch
            if self._is_over or not self._take_response(timeout_ms):
                return None

    def _decoded(self, piece: Piece) -> FetchedBatch | None:
        """The records of a piece, if any. Raises CorruptMessageError, UnsupportedVersionError unless such batches are skipped."""
        config = self._config
        try:
            return decode_piece(piece, max_uncompressed_bytes=config.max_decompressed_bytes, check_crc=config.check_crcs)
        except (CorruptMessageError, UnsupportedVersionError) as error:
            if not config.skip_corrupt_batches:
                raise _with_remedy(error, piece) from None
            first, last = piece.from_offset, piece.until_offset - 1
            self.skipped_offset_count += last - first + 1
            logger.warning("%s: offsets %d to %d are skipped (skip.corrupt.batches): %s", piece.name, first, last, error)
            return None

    @property
    def is_over(self) -> bool:
        """True once all ranges have been read to their ends, or the fetcher is closed."""
        return self._is_over and not self._pieces

    def close(self) -> None:
        """Stops reading; drops what was fetched but not read. Idempotent."""
        self._is_over = True
        self._pieces = []
        self._future.cancel()
        self._responses.put(None)  # wakes a waiting reader

    def _take_response(self, timeout_ms: int | None) -> bool:
        """Waits for the next response; False if none arrived in time. Raises the error that ended reading."""
        try:
            response = self._responses.get(timeout=None if timeout_ms is None else timeout_ms / 1000)
        except queue.Empty:
            return False
        if response is None:
            self._is_over = True
            return True
        if isinstance(response, BaseException):
            self._is_over = True
            end_daemon_thread()
            raise response
        with contextlib.suppress(RuntimeError):  # the client was closed: responses already received are still read
            self._loop.call_soon_threadsafe(self._slots.release)
        self._pieces = response[::-1]
        return True


def _with_remedy(error: WireError, piece: Piece) -> WireError:
    """The same error with the partition and a remedy. A batch of a later version is not damaged."""
    advice = "skip.corrupt.batches=true skips such batches"
    if isinstance(error, CorruptMessageError):
        place = f"{piece.name}@{piece.batch.header.base_offset}"
        advice = (
            f"`brokerd doctor` shows whether it is damaged on the broker's disk, and takes it out with `--take-out {place}`; "
            f"{advice}"
        )
    return type(error)(f"{piece.name}: {error.message}; {advice}")


class _Pump:
    """The part of a fetcher that runs on the loop thread: one stream per node that leads one of the ranges."""

    def __init__(
        self,
        client: BrokerClient,
        positions: Sequence[RangePosition],
        config: ConsumerConfig,
        slots: asyncio.Semaphore,
        responses: queue.SimpleQueue[list[Piece] | BaseException | None],
    ) -> None:
        self._client = client
        self._positions = positions
        self._config = config
        self._isolation_level = isolation_to_proto(config.isolation_level)
        self._slots = slots
        self._responses = responses
        self._progress_ms = client.clock.monotonic_ms()
        self._retries = client.retries(self._progress_ms)
        self._correlation_id = 0

    async def run(self) -> None:
        """Reads until all ranges are done; then enqueues None, or the error that ended it."""
        try:
            is_repeat = False
            while unread := [position for position in self._positions if not position.is_done]:
                try:
                    await self._read_from_leaders(unread, is_repeat=is_repeat)
                except* BrokerdError as group:
                    await self._client.wait_or_raise(self._retries, _first(group))
                    is_repeat = True
            self._responses.put(None)
        except asyncio.CancelledError:
            self._responses.put(ClientError("the client of this fetcher was closed"))
            raise
        except BaseException as error:
            self._responses.put(error)

    async def _read_from_leaders(self, unread: Sequence[RangePosition], *, is_repeat: bool) -> None:
        """Runs one stream per leader; the first failure ends them all."""
        by_leader: dict[int, list[RangePosition]] = {}
        for position in unread:
            leader = await self._client.leader(position.tp, refresh=is_repeat)
            by_leader.setdefault(leader, []).append(position)
        async with asyncio.TaskGroup() as group:
            for node_id, positions in by_leader.items():
                group.create_task(self._read_from(node_id, positions))

    async def _read_from(self, node_id: int, unread: list[RangePosition]) -> None:
        most = await self._client.partitions_per_request(node_id)
        stream = await self._client.open_fetch_stream(node_id)
        has_slot = False
        try:
            while unread:
                if not has_slot:
                    await self._slots.acquire()
                    has_slot = True
                # Partitions beyond the limit of a request take turns; each turn waits for its share of fetch.max.wait.ms.
                asked = unread[:most]
                request = self._request(asked, self._config.fetch_max_wait_ms * len(asked) // len(unread))
                await stream.send(encode_request(request))
                response = await self._receive(stream, request)
                # No await and no exception between accept and hand-over: a position that has moved counts as read.
                pieces, error = self._accepted(asked, response)
                if pieces:
                    self._responses.put(pieces)
                    has_slot = False
                if error is not None:
                    raise error
                turned = unread[most:] + asked[1:] + asked[:1]  # no partition stays last for ever
                unread = [position for position in turned if not position.is_done]
                if response.throttle_time_ms:
                    await asyncio.sleep(response.throttle_time_ms / 1000)
        finally:
            if has_slot:
                self._slots.release()
            stream.close()

    def _request(self, positions: Sequence[RangePosition], max_wait_ms: int) -> FetchRequest:
        self._correlation_id += 1
        config = self._config
        max_bytes = min(config.max_partition_fetch_bytes, config.fetch_max_bytes)
        return FetchRequest(
            correlation_id=self._correlation_id,
            max_wait_ms=max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            isolation_level=self._isolation_level,
            partitions=[PartitionFetch(position.tp, position.next_offset, max_bytes) for position in positions],
        )

    async def _receive(self, stream: RawStream, request: FetchRequest) -> FetchResponse:
        timeout_ms = self._config.fetch_max_wait_ms + self._config.request_timeout_ms
        response = decode_response(await stream.receive(timeout_ms=timeout_ms))
        if response.error is not None:
            raise response.error
        is_ours = [result.tp for result in response.results] == [asked.tp for asked in request.partitions]
        if response.correlation_id != request.correlation_id or not is_ours:
            raise InvalidRequestError(
                f"the broker answered fetch {request.correlation_id} ({len(request.partitions)} partitions) with "
                f"{response.correlation_id} ({len(response.results)}), or for others"
            )
        return response

    def _accepted(self, positions: Sequence[RangePosition], response: FetchResponse) -> tuple[list[Piece], BrokerdError | None]:
        """The pieces of a response to decode, and its error, if any: OffsetOutOfRangeError if a bounded range makes no progress
        for default.api.timeout.ms, because the log ends before the range.
        """
        now_ms = self._client.clock.monotonic_ms()
        before = sum(position.next_offset for position in positions)
        pieces: list[Piece] = []
        is_empty = not any(chunk.size for result in response.results for chunk in result.chunks)
        for number, (position, result) in enumerate(zip(positions, response.results, strict=True)):
            try:
                # The first partition requested always gets a batch if it has one; a later one, only if there is room left.
                pieces.extend(position.accept(result, had_room=is_empty or number == 0))
                for first, until, reason in position.take_gaps():
                    logger.warning("%s: offsets %d to %d are skipped: %s", position.name, first, until - 1, reason)
            except BrokerdError as error:
                return pieces, error
        self._retries.succeeded(now_ms=now_ms)
        stuck = None
        if sum(position.next_offset for position in positions) == before:
            stuck = next((position for position in positions if position.until_offset is not None and not position.is_done), None)
        if stuck is None:
            self._progress_ms = now_ms
        elif now_ms - self._progress_ms >= self._config.api_timeout_ms:
            return pieces, OffsetOutOfRangeError(
                f"{stuck.name}: the range to read ends at {stuck.until_offset}, but it can be read up to {stuck.end_offset}, and "
                f"nothing arrived for {(now_ms - self._progress_ms) / 1000:.1f} s ({self._config.isolation_level})"
            )
        return pieces, None


def _first(group: BaseExceptionGroup[BrokerdError]) -> BrokerdError:
    """One error of a group; a final one if there is any, which a lost connection must not hide."""
    leaves = list(_leaves(group))
    return next((error for error in leaves if not is_repeatable(error)), leaves[0])


def _leaves(group: BaseExceptionGroup[BrokerdError]) -> Iterator[BrokerdError]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
