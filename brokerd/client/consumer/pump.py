"""The part of a fetcher that runs on the loop thread: one stream per node that leads one of the ranges.

After a lost connection, reading resumes at the next offset of each range. A position moves only when its response is handed over,
with no await in between, so nothing is read twice or left out, whenever the pump is stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from brokerd.client.broker_client import BrokerClient
from brokerd.client.consumer.arrivals import Arrivals
from brokerd.client.consumer.fetch_messages import FetchRequest, FetchResponse, PartitionFetch, decode_response, encode_request
from brokerd.client.consumer.offsets import isolation_to_proto
from brokerd.client.consumer.positions import EpochStart, Piece, RangePosition
from brokerd.client.io.connection import RawStream
from brokerd.client.io.retry import is_repeatable
from brokerd.config.client import ConsumerConfig
from brokerd.errors import BrokerdError, ClientError, InvalidRequestError, OffsetOutOfRangeError
from brokerd.ids import TopicIdPartition

logger = logging.getLogger(__name__)


class Fetched(NamedTuple):
    """The records of one response, in order of offsets per partition. `reached`: where reading goes on, of each partition that
    moved; past the last piece, if control batches or records of aborted transactions follow it."""

    pieces: list[Piece]
    reached: list[tuple[TopicIdPartition, int]]
    epochs: Sequence[tuple[TopicIdPartition, EpochStart]] = ()  # leader epochs that it begins


# An item of the queue between the pump and the reading thread; None ends it.
Item = Fetched | BaseException | None


class Pump:
    """Fetches ranges into a queue, as far as there are slots for responses."""

    def __init__(
        self,
        client: BrokerClient,
        positions: Sequence[RangePosition],
        config: ConsumerConfig,
        slots: asyncio.Semaphore,
        responses: Arrivals[Item],
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
        self._task: asyncio.Task[None] | None = None
        self.is_stopped = False  # for any thread to set before it cancels `run`

    def stop(self) -> None:
        """Has `run` end soon, if it has begun, or as soon as it begins; on the loop thread."""
        self.is_stopped = True
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        """Reads until all ranges are done, or it is stopped; then enqueues None, or the error that ended it, and nothing more."""
        self._task = asyncio.current_task()
        try:
            is_repeat = False
            while unread := [position for position in self._positions if not (position.is_done or self.is_stopped)]:
                try:
                    await self._read_from_leaders(unread, is_repeat=is_repeat)
                except* BrokerdError as group:
                    # A task group in which a task fails while the group is being cancelled raises that failure alone (Python 3.11).
                    if self.is_stopped:
                        raise asyncio.CancelledError from None
                    await self._client.wait_or_raise(self._retries, _first(group))
                    is_repeat = True
            self._responses.put(None)
        except asyncio.CancelledError:
            self._responses.put(None if self.is_stopped else ClientError("the client of this fetcher was closed"))
            raise
        except BaseException as error:
            self._responses.put(error)

    async def _read_from_leaders(self, unread: Sequence[RangePosition], *, is_repeat: bool) -> None:
        """Runs one stream per leader; the first failure ends them all."""
        by_leader: dict[int, list[RangePosition]] = {}
        for position in unread:
            try:
                leader = await self._client.leader(position.tp, refresh=is_repeat)
            except BrokerdError as error:
                position.error = error
                raise
            by_leader.setdefault(leader, []).append(position)
        async with asyncio.TaskGroup() as group:
            for node_id, positions in by_leader.items():
                group.create_task(self._read_from(node_id, positions))

    async def _read_from(self, node_id: int, unread: list[RangePosition]) -> None:
        most = await self._client.partitions_per_request(node_id)
        stream = await self._client.open_fetch_stream(node_id)
        has_slot = False
        checked: set[RangePosition] = set()  # known to be of the history that this node has, which ends with the stream
        try:
            while unread:
                if not has_slot:
                    await self._slots.acquire()
                    has_slot = True
                # Partitions beyond the limit of a request take turns; each turn waits for its share of fetch.max.wait.ms.
                asked = unread[:most]
                request = self._request(asked, checked, self._config.fetch_max_wait_ms * len(asked) // len(unread))
                await stream.send(encode_request(request))
                response = await self._receive(stream, request)
                # No await and no exception between accept and hand-over: a position that has moved counts as read.
                fetched, error = self._accepted(asked, response)
                if fetched.reached:
                    self._responses.put(fetched)
                    has_slot = False
                if error is not None:
                    raise error
                checked.update(asked)
                turned = unread[most:] + asked[1:] + asked[:1]  # no partition stays last for ever
                unread = [position for position in turned if not position.is_done]
                if response.throttle_time_ms:
                    await asyncio.sleep(response.throttle_time_ms / 1000)
        finally:
            if has_slot:
                self._slots.release()
            stream.close()

    def _request(self, positions: Sequence[RangePosition], checked: Container[RangePosition], max_wait_ms: int) -> FetchRequest:
        self._correlation_id += 1
        config = self._config
        max_bytes = min(config.max_partition_fetch_bytes, config.fetch_max_bytes)
        return FetchRequest(
            correlation_id=self._correlation_id,
            max_wait_ms=max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            isolation_level=self._isolation_level,
            partitions=[
                PartitionFetch(one.tp, one.next_offset, max_bytes, one.until_offset or 0, None if one in checked else one.position)
                for one in positions
            ],
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

    def _accepted(self, positions: Sequence[RangePosition], response: FetchResponse) -> tuple[Fetched, BrokerdError | None]:
        """The pieces of a response to decode, and the first error of a partition in it, if any: the others are read all the same.
        OffsetOutOfRangeError if a bounded range makes no progress for default.api.timeout.ms, because the log ends before it.
        """
        now_ms = self._client.clock.monotonic_ms()
        before = [position.next_offset for position in positions]
        pieces: list[Piece] = []
        failure: BrokerdError | None = None
        is_empty = not any(chunk.size for result in response.results for chunk in result.chunks)
        for number, (position, result) in enumerate(zip(positions, response.results, strict=True)):
            try:
                # The first partition requested always gets a batch if it has one; a later one, only if there is room left.
                pieces.extend(position.accept(result, had_room=is_empty or number == 0))
            except BrokerdError as error:
                position.error = error
                failure = failure or error
            for first, until, reason in position.take_gaps():
                logger.warning("%s: offsets %d to %d are skipped: %s", position.name, first, until - 1, reason)
        moved = [position for position, offset in zip(positions, before, strict=True) if position.next_offset != offset]
        reached = [(position.tp, position.next_offset) for position in moved]
        fetched = Fetched(pieces, reached, [(position.tp, epoch) for position in moved for epoch in position.take_epochs()])
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
