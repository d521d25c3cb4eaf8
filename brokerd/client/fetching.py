"""Reads ranges of partitions at full speed.

Two threads share the work. The loop thread fetches, checks headers and CRCs, and sends the next fetch at once (Pump); the reading
thread decodes (PartitionFetcher, or a consumer). So the next fetch is in flight while the last one is decoded. A slow reader
applies back-pressure: a fetch is sent only if there is room for its response.

RangePosition tracks one range. Batches arrive whole, so the first and the last are cut to the range. Control batches and batches of
aborted transactions occupy offsets and are left out. Offsets may have gaps. A range ends exactly at its end offset, whether or not
a record is there. Damage is skipped only if that is enabled and the broker reports where the log resumes.

A batch with a wrong CRC is fetched once more, and its leader is told to check its copy. If the copy is damaged and another replica
is in sync, that replica becomes leader and serves the batch. If the batch was damaged in transit, the second fetch succeeds.
Otherwise its error is raised.

Each leader has one stream, for all of its ranges. Failures are retried from the next offset of each range. A lost stream affects
all partitions of its leader, a refusal only the refused partition; the others are read meanwhile. A final error ends the pump, but
not before each leader has answered once: a consumer starts another pump, and a partition that fails each time must not starve those
of slower leaders. A position moves only when its response is delivered, with no await in between, so the pump may be stopped at any
time without repeating or skipping records.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Self

import pyarrow as pa

from brokerd.client.blocking import BlockingClient
from brokerd.client.broker_client import is_repeatable
from brokerd.client.columns import BatchSlice, FetchedBatch, decoded, remedy
from brokerd.client.connection import Asked, RawStream, patience_ms
from brokerd.client.offsets import READ_COMMITTED, isolation_to_proto
from brokerd.config.client import ConsumerConfig
from brokerd.config.settings import INT64_MAX
from brokerd.errors import (
    BrokerdError,
    ClientError,
    CorruptMessageError,
    InvalidRequestError,
    LogDamagedError,
    LogTruncationError,
    NotLeaderError,
    OffsetOutOfRangeError,
    UnknownServerError,
    UnknownTopicIdError,
    UnsupportedVersionError,
    WireError,
)
from brokerd.ids import LogPosition, TopicIdPartition, TopicPartition
from brokerd.process import end_daemon_thread
from brokerd.record.batch import walk_batches
from brokerd.record.header import BatchHeader, crc_seed
from brokerd.record.schema import payload_crc
from brokerd.wire.errors import from_proto
from brokerd.wire.methods import FETCH
from brokerd.wire.records import split_records
from brokerd.wire.v1 import fetch_pb2

logger = logging.getLogger(__name__)

# An empty response from a log that reaches past the range means that nothing is left in the range. One is not enough: the offsets
# in a response may be newer than its records (the fetch was parked, and the log grew before the response).
_EMPTY_RESPONSES_AT_END = 2
NO_END = INT64_MAX  # as the end of a range
RESPONSES_AHEAD = 3  # requested or waiting to be decoded: one in flight, two delivered; each further leader adds one


class FetchRange(NamedTuple):
    """Offsets to read, from `start_offset` (inclusive) to `until_offset` (exclusive; NO_END: follow the log for ever)."""

    tp: TopicIdPartition
    start_offset: int
    until_offset: int = NO_END
    topic: str = ""  # its name; empty if errors may name the partition by topic id
    epoch_id: int = 0  # id of the leader epoch of the record before `start_offset`; 0 = unknown
    end: LogPosition | None = None  # end of the range in the history of its log, for the truncation check; None = check `epoch_id`

    @property
    def name(self) -> TopicPartition:
        """The partition by topic name."""
        return TopicPartition(self.topic, self.tp.partition)

    @property
    def size(self) -> int:
        """The number of offsets in the range; there may be fewer records."""
        return self.until_offset - self.start_offset

    def __str__(self) -> str:
        return f"{self.name} [{self.start_offset}, {self.until_offset})"


class Gap(NamedTuple):
    """Skipped offsets, `first_offset` (inclusive) to `until_offset` (exclusive), and the reason."""

    first_offset: int
    until_offset: int
    reason: str


class EpochStart(NamedTuple):
    """The leader epoch of records from `offset` on; id 0 = unknown."""

    offset: int
    id: int


class RangePosition:
    """Progress of one range: `accept` takes responses, `next_offset` is the next offset to fetch."""

    def __init__(self, wanted: FetchRange, *, is_read_committed: bool, check_crcs: bool, goes_past_damage: bool = False) -> None:
        self.tp = wanted.tp
        self.name = wanted.name if wanted.topic else wanted.tp
        self.next_offset = wanted.start_offset
        self.until_offset = wanted.until_offset
        self.leader_epoch = -1  # of the current stream's leader; -1 = unknown
        self.end_offset = -1  # end of the readable log, as last reported by the broker; -1 = unknown
        self.error: BrokerdError | None = None  # the last error of this partition
        self._is_read_committed = is_read_committed
        self._seed = crc_seed(wanted.tp) if check_crcs else None
        self._doubt: CorruptMessageError | None = None  # the error of the batch at `next_offset`, which is fetched once more
        self._empty_responses = 0
        self._goes_past_damage = goes_past_damage
        self._end = wanted.end
        self._epoch_id = wanted.epoch_id  # of the record before `next_offset`
        self.gaps: list[Gap] = []  # skipped by the last response
        self.epochs: list[EpochStart] = []  # leader epochs that began in the last response

    @property
    def is_done(self) -> bool:
        """True once the whole range was requested and received."""
        return self.next_offset >= self.until_offset

    def accept(
        self, result: fetch_pb2.PartitionFetchResult, chunks: Sequence[pa.Buffer], *, had_room: bool = True
    ) -> list[BatchSlice]:
        """The slices of a response to decode; each of `chunks` holds one or more whole batches. Raises the response's error, or
        CorruptMessageError if its batches are inconsistent.

        `had_room` is false if other partitions may have used up the response's bytes: then an empty result means nothing.
        """
        self.gaps, self.epochs = [], []
        if result.HasField("error"):
            self._go_past(from_proto(result.error))
            return []
        self.end_offset = result.last_stable_offset if self._is_read_committed else result.high_watermark
        asked = self.next_offset
        slices: list[BatchSlice] = []
        try:
            slices.extend(self._slices(result, chunks) if chunks else ())
        except (CorruptMessageError, UnsupportedVersionError) as error:
            if self.next_offset == asked:
                named = type(error)(f"{self.name}: {error.message}")
                if self.is_in_doubt or not isinstance(named, CorruptMessageError):
                    raise named from None
                logger.warning("%s: the batch at offset %d came damaged, and is fetched once more", self.name, asked)
                self._doubt = named
                return slices
            # The batches before it are intact: return them; the next response begins with the bad one.
        if self.next_offset > asked or self.is_done:
            self._empty_responses = 0
            return slices
        if any(chunk.size for chunk in chunks):
            raise CorruptMessageError(f"{self.name}: the broker was asked for offset {asked} and returned older batches")
        if not had_room:
            return slices
        self._empty_responses = self._empty_responses + 1 if self.end_offset >= self.until_offset else 0
        if self._empty_responses >= _EMPTY_RESPONSES_AT_END:
            self.next_offset = self.until_offset
        return slices

    @property
    def is_in_doubt(self) -> bool:
        """True if the batch at `next_offset` arrived corrupt: the next fetch asks the leader to check it."""
        return self._doubt is not None

    @property
    def position(self) -> LogPosition | None:
        """The position for the broker's truncation check; None if the range's history is unknown."""
        if self._end is not None:
            return self._end
        return LogPosition(self.next_offset, self._epoch_id) if self._epoch_id else None

    def _enter(self, offset: int, epoch_id: int) -> None:
        self._epoch_id = epoch_id
        self.epochs.append(EpochStart(offset, epoch_id))

    def _go_past(self, error: WireError) -> None:
        """Moves past damage, at most to the end of the range. Raises `error` if it is not damage or the broker does not report
        where the log resumes. If damage must not be skipped, raises the batch's own error if it arrived corrupt, else
        LogDamagedError with advice on how to continue."""
        if not isinstance(error, LogDamagedError) or error.resume_offset <= self.next_offset:
            raise error
        if not self._goes_past_damage:
            if self._doubt is not None:
                raise self._doubt
            advice = f"skip.corrupt.batches=true (Spark: also failOnDataLoss=false) continues at offset {error.resume_offset}"
            raise LogDamagedError(f"{error.message}; {advice}", resume_offset=error.resume_offset)
        until_offset = min(error.resume_offset, self.until_offset)
        self.gaps.append(Gap(self.next_offset, until_offset, error.message))
        self._enter(self.next_offset, 0)
        self.next_offset = until_offset
        self._empty_responses, self._doubt = 0, None

    def _slices(self, result: fetch_pb2.PartitionFetchResult, chunks: Sequence[pa.Buffer]) -> Iterator[BatchSlice]:
        aborted: dict[int, list[fetch_pb2.AbortedTransaction]] = {}
        for one in result.aborted if self._is_read_committed else ():
            aborted.setdefault(one.producer_id, []).append(one)
        for batch in (batch for chunk in chunks for batch in walk_batches(chunk, self._seed)):
            header, next_offset = batch.header, batch.header.next_offset
            if next_offset <= self.next_offset:
                continue
            if header.base_offset < 0 or next_offset > INT64_MAX:
                raise CorruptMessageError(f"the broker sent a batch at offset {header.base_offset}, which is not a valid offset")
            if header.base_offset >= self.until_offset:
                self.next_offset = self.until_offset
                return
            is_left_out = header.is_control or (aborted and is_aborted(header, aborted.get(header.producer_id, ())))
            is_right = is_left_out or self._seed is None or payload_crc(batch.payload) == header.payload_crc
            if not is_right and not self.is_in_doubt:
                raise CorruptMessageError(
                    f"batch at offset {header.base_offset}: payload_crc does not match; {remedy(self.name, header.base_offset)}"
                )
            from_offset = max(header.base_offset, self.next_offset)
            if from_offset > self.next_offset:
                self.gaps.append(Gap(self.next_offset, from_offset, "they were taken out of the log"))
            self.next_offset, self._doubt = next_offset, None
            if header.leader_epoch_id != self._epoch_id:
                self._enter(header.base_offset, header.leader_epoch_id)
            if is_left_out:
                continue
            until_offset = min(next_offset, self.until_offset)
            # A batch that is still wrong after the leader's check fails, or is skipped, when it is decoded.
            yield BatchSlice(self.tp, batch, from_offset, until_offset, self.name, is_checked=is_right and self._seed is not None)


def is_aborted(header: BatchHeader, aborted: Iterable[fetch_pb2.AbortedTransaction]) -> bool:
    """True if the batch belongs to an aborted transaction: its producer id matches, and its offset lies between the first offset
    and the marker. Either offset alone would miss records of transactions split across fetches."""
    if not header.is_transactional:
        return False
    return any(
        header.producer_id == one.producer_id and one.first_offset <= header.base_offset < one.marker_offset for one in aborted
    )


class Fetched(NamedTuple):
    """The records of one response, in offset order per partition. `reached`: the next offset of each partition that moved. It is
    beyond the last slice if control batches or records of aborted transactions follow."""

    slices: list[BatchSlice]
    reached: list[tuple[TopicIdPartition, int]]
    epochs: Sequence[tuple[TopicIdPartition, EpochStart]] = ()  # leader epochs that begin in it


# Items of a pump: responses, then None at the end of all ranges, or the error that ended reading.
Item = Fetched | BaseException | None


_SAYS_GONE = (OffsetOutOfRangeError, LogTruncationError, UnknownTopicIdError)
NO_FAILURES: Mapping[RangePosition, BrokerdError] = {}


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
                check_crcs=config.check_crcs,
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
        self._slot_count = RESPONSES_AHEAD
        self._progress_ms = self._client.clock.monotonic_ms()
        self._retries = {position: self._client.retries(self._progress_ms) for position in self.positions}
        self._streams: dict[int, list[RangePosition]] = {}  # the positions of the stream to each leader
        self._answered: dict[int, asyncio.Event] = {}  # by leader: its stream has had an answer, or has ended
        self._moved: set[RangePosition] = set()  # positions whose leader is no longer that of their stream
        self._tasks = asyncio.TaskGroup()
        self._correlation_id = 0
        self._is_stopped = False
        self._task: asyncio.Task[None] | None = None
        self._is_done = False  # all ranges are read
        self._error: BaseException | None = None
        self._call = client.loop_thread.submit(self._run(), self._on_end)  # keeps the task alive: a loop holds its tasks weakly

    def taken(self) -> None:
        """Makes room for another response, once a thread has taken one; thread-safe."""
        self._loop_thread.call_soon(self._slots.release)

    def stop(self) -> None:
        """Stops fetching without waiting. Responses already fetched are still delivered, then None; `positions` then tell where
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
        """Reads until all ranges are done, one fails for good, or `stop`."""
        self._task = asyncio.current_task()
        keeping_fresh = asyncio.create_task(self._keep_fresh())
        try:
            async with self._tasks:
                if not self._is_stopped:
                    self._tasks.create_task(self._place([position for position in self.positions if not position.is_done]))
            self._is_done = True
        except BaseExceptionGroup as errors:
            self._error = errors.exceptions[0]
        finally:
            keeping_fresh.cancel()
            await asyncio.wait([keeping_fresh])

    def _on_end(self) -> None:
        """Delivers the last item; called also if the loop closes before `_run` begins."""
        if self._error is None and not (self._is_done or self._is_stopped):
            self._error = ClientError("the client of this fetcher was closed")
        self._deliver(None if self._is_stopped else self._error)  # stopping may have broken a stream

    async def _place(self, positions: Iterable[RangePosition], failed: Mapping[RangePosition, BrokerdError] = NO_FAILURES) -> None:
        """Adds positions to the streams of their leaders; `failed` ones after a wait and a metadata refresh. Raises a final
        error."""
        while unplaced := list(positions):
            if failed:
                try:
                    await self._wait(failed)
                except BrokerdError:
                    await self._first_answers()
                    raise
                await self._client.refresh_leaders([position.tp for position in unplaced])
            positions = failed = {}
            for position in unplaced:
                try:
                    leader = await self._client.leader(position.tp)
                except BrokerdError as error:
                    position.error = failed[position] = error
                    continue
                position.leader_epoch = self._client.leader_epoch(position.tp)
                self._join(leader, position)

    async def _wait(self, failed: Mapping[RangePosition, BrokerdError]) -> None:
        """Waits before failed positions are read again. Raises an error that is not retriable, or whose retries are used up."""
        judged = await self._judged(failed)
        now_ms = self._client.clock.monotonic_ms()
        wait_ms = 0
        for number, position in enumerate(sorted(judged, key=lambda one: is_repeatable(judged[one]))):
            retries = self._retries[position]
            if not retries.failures:
                retries.succeeded(now_ms=now_ms)  # restarts the timeout: time waiting for a slow reader does not count
            one_ms = self._client.retry_wait_ms(retries, judged[position], is_quiet=number > 0)
            wait_ms = max(wait_ms, one_ms)
        await asyncio.sleep(wait_ms / 1000)

    async def _first_answers(self) -> None:
        """Waits until each leader has answered once, at most as long as one that is well may take."""
        timeout_ms = self._config.fetch_max_wait_ms + patience_ms(self._config.request_timeout_ms)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                for answered in list(self._answered.values()):
                    await answered.wait()

    async def _judged(self, failed: Mapping[RangePosition, BrokerdError]) -> dict[RangePosition, BrokerdError]:
        """The errors, with NotLeaderError in place of a former or lagging leader's claim that records are gone, although a newer
        leader exists, or that a topic is gone that another node has. With old metadata the reader may reach a node that does not
        know that it was deposed, and whose log ends or diverges below records that were acknowledged or read: they are not lost.
        Raises the lookup's error if no broker tells who leads now."""
        judged = dict(failed)
        gone = [one for one, error in failed.items() if one.error is error and isinstance(error, _SAYS_GONE)]
        if gone:
            await self._client.refresh_leaders([position.tp for position in gone])
        for position in gone:
            error = failed[position]
            if isinstance(error, UnknownTopicIdError):
                is_wrong = self._client.is_known_elsewhere(position.tp)
            else:
                is_wrong = self._client.leader_epoch(position.tp) > position.leader_epoch
            if is_wrong:
                text = f"{position.name}: the leader of epoch {position.leader_epoch} was deposed, or is behind; it said: {error}"
                judged[position] = NotLeaderError(text)
        return judged

    async def _keep_fresh(self) -> None:
        """Refreshes the leaders every metadata.max.age.ms: a deposed leader may not know that it was deposed."""
        while True:
            await asyncio.sleep(max(self._config.metadata_max_age_ms, self._config.retry_backoff_max_ms, 1) / 1000)
            with contextlib.suppress(BrokerdError):  # the next refresh retries
                await self._client.refresh_leaders([position.tp for positions in self._streams.values() for position in positions])
            for positions in self._streams.values():
                self._moved.update(one for one in positions if self._client.leader_epoch(one.tp) > one.leader_epoch)

    def _join(self, node_id: int, position: RangePosition) -> None:
        """Adds a position to the stream to its leader."""
        positions = self._streams.get(node_id)
        if positions is not None:
            positions.append(position)
            return
        self._streams[node_id], self._answered[node_id] = [position], asyncio.Event()
        for _ in range(RESPONSES_AHEAD - 1 + len(self._streams) - self._slot_count):
            self._slots.release()  # a fetch parked at a leader without records must not block other leaders' fetches
            self._slot_count += 1
        self._tasks.create_task(self._read_from(node_id))

    async def _read_from(self, node_id: int) -> None:
        """Runs the stream to one leader until it has no positions left."""
        positions = self._streams[node_id]
        failed: dict[RangePosition, BrokerdError] = {}
        try:
            await self._read(node_id, positions)
        except BrokerdError as error:
            failed = dict.fromkeys(positions, error)
        finally:
            del self._streams[node_id]
            self._answered.pop(node_id).set()
        await self._place(failed, failed)

    async def _read(self, node_id: int, positions: list[RangePosition]) -> None:
        most = await self._client.partitions_per_request(node_id)
        stream = await self._client.open_stream(FETCH, node_id)
        has_slot = False
        checked: set[RangePosition] = set()  # positions that match this node's history; valid for this stream only
        try:
            while positions:
                if not has_slot:
                    await self._acquire_slot()
                    has_slot = True
                # Partitions beyond the limit of a request take turns; each turn waits for its share of fetch.max.wait.ms.
                asked = positions[:most]
                request = self._request(asked, checked, self._config.fetch_max_wait_ms * len(asked) // len(positions))
                epochs = {one.tp: one.leader_epoch for one in asked}
                await stream.send(request.SerializeToString(), Asked(epochs, request.max_wait_ms))
                results = await self._receive(stream, request)
                # No await and no exception between accept and deliver: a position that has moved counts as read.
                now_ms = self._client.clock.monotonic_ms()
                fetched, failed = self._accepted(asked, results, now_ms)
                if fetched.reached:
                    self._deliver(fetched)
                    has_slot = False
                self._answered[node_id].set()
                checked.update(asked)
                moved = self._moved.intersection(positions) if self._moved else self._moved
                turned = positions[len(asked) :] + asked[1:] + asked[:1]  # round robin: no partition starves
                positions[:] = [one for one in turned if not (one.is_done or one in failed or one in moved)]
                for leaving, errors in ((failed, failed), (moved - failed.keys(), NO_FAILURES)):
                    if leaving:
                        checked.difference_update(leaving)
                        self._tasks.create_task(self._place([one for one in leaving if not one.is_done], errors))
                self._moved -= moved
                if not failed:
                    self._check_progress(asked, now_ms, has_arrived=bool(fetched.reached) or _hold_records(results))
        finally:
            if has_slot:
                self._slots.release()
            stream.close()

    async def _acquire_slot(self) -> None:
        waits = self._slots.locked()
        await self._slots.acquire()
        if waits:  # time waiting for a slow reader does not count
            self._progress_ms = self._client.clock.monotonic_ms()

    def _request(
        self, positions: Sequence[RangePosition], checked: Container[RangePosition], max_wait_ms: int
    ) -> fetch_pb2.FetchRequest:
        self._correlation_id += 1
        config = self._config
        max_bytes = min(config.max_partition_fetch_bytes, config.fetch_max_bytes)
        request = fetch_pb2.FetchRequest(
            correlation_id=self._correlation_id,
            max_wait_ms=max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            isolation_level=self._isolation_level,
        )
        for one in positions:
            entry = request.partitions.add(
                topic_id=one.tp.topic_id,
                partition=one.tp.partition,
                current_leader_epoch=one.leader_epoch,
                fetch_offset=one.next_offset,
                partition_max_bytes=max_bytes,
                until_offset=0 if one.until_offset == NO_END else one.until_offset,
                check_first_batch=one.is_in_doubt,
            )
            position = None if one in checked else one.position
            if position is not None:
                entry.position.offset, entry.position.leader_epoch_id = position
        return request

    async def _receive(self, stream: RawStream, request: fetch_pb2.FetchRequest) -> list[PartitionResult]:
        """The results in the order of the request's partitions."""
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
        return results

    def _accepted(
        self, positions: Sequence[RangePosition], results: Sequence[PartitionResult], now_ms: int
    ) -> tuple[Fetched, dict[RangePosition, BrokerdError]]:
        """The slices of a response to decode, and the errors of single partitions, which do not affect the others."""
        before = [position.next_offset for position in positions]
        slices: list[BatchSlice] = []
        failed: dict[RangePosition, BrokerdError] = {}
        is_empty = not _hold_records(results)
        for number, (position, (result, chunks)) in enumerate(zip(positions, results, strict=True)):
            try:
                # The first partition requested always gets a batch if it has one; later ones only if there is room left.
                slices.extend(position.accept(result, chunks, had_room=is_empty or number == 0))
                self._retries[position].succeeded(now_ms=now_ms)
            except BrokerdError as error:
                position.error = failed[position] = error
            for first, until, reason in position.gaps:
                logger.warning("%s: offsets %d to %d are skipped: %s", position.name, first, until - 1, reason)
        moved = [position for position, offset in zip(positions, before, strict=True) if position.next_offset != offset]
        reached = [(position.tp, position.next_offset) for position in moved]
        fetched = Fetched(slices, reached, [(position.tp, epoch) for position in moved for epoch in position.epochs])
        return fetched, failed

    def _check_progress(self, positions: Sequence[RangePosition], now_ms: int, *, has_arrived: bool) -> None:
        """Raises OffsetOutOfRangeError if nothing arrived for default.api.timeout.ms, and the log ends before a bounded range. A
        batch that arrived corrupt counts as progress: it is fetched once more."""
        stuck = None
        if not has_arrived:
            stuck = next((one for one in positions if one.end_offset < one.until_offset < NO_END and not one.is_done), None)
        if stuck is None:
            self._progress_ms = now_ms
        elif now_ms - self._progress_ms >= self._config.api_timeout_ms:
            raise OffsetOutOfRangeError(
                f"{stuck.name}: the range to read ends at {stuck.until_offset}, but it can be read up to {stuck.end_offset}, and "
                f"nothing arrived for {(now_ms - self._progress_ms) / 1000:.1f} s ({self._config.isolation_level})"
            )


# The result of one partition, with its record batches: each chunk holds one or more whole batches.
PartitionResult = tuple[fetch_pb2.PartitionFetchResult, Sequence[pa.Buffer]]


def _hold_records(results: Sequence[PartitionResult]) -> bool:
    return any(chunk.size for _, chunks in results for chunk in chunks)


def read_response(data: bytes) -> tuple[fetch_pb2.FetchResponse, list[PartitionResult]]:
    """Parses a response; the records of its results are slices of `data`. Raises UnknownServerError for an invalid response."""
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
        self._clock = client.broker_client.clock
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
        deadline_ms = None if timeout_ms is None else self._clock.monotonic_ms() + timeout_ms
        while True:
            while self._slices:
                batch = decoded(self._slices.pop(), self._config)
                if batch is not None:
                    return batch
            if self._is_over:
                return None
            left_ms = None if deadline_ms is None else max(0, deadline_ms - self._clock.monotonic_ms())
            try:
                item = self._items.get(timeout=None if left_ms is None else left_ms / 1000)
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

    @property
    def next_offsets(self) -> list[int]:
        """The offset at which each range resumes after an error. Unlike the last record, it also covers control batches."""
        return [position.next_offset for position in self._pump.positions]

    def close(self) -> None:
        """Stops reading and drops fetched records that were not read. Idempotent."""
        self._slices = []
        if self._is_over:
            return
        self._is_over = True
        self._pump.stop()
        self._items.put(None)  # wakes a waiting reader
