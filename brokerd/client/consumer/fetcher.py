"""Reads ranges of partitions at full speed.

Two threads share the work. The loop thread fetches, walks batch headers, and sends the next fetch at once; the reading thread
decodes. So the next fetch is in flight while the last one is decoded, and a slow reader applies back-pressure: a fetch is sent
only if there is room for its response. The loop thread's part is in pump.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from brokerd.client.blocking import BlockingClient
from brokerd.client.consumer.arrivals import Arrivals, nothing
from brokerd.client.consumer.fetched import FetchedBatch, decode_piece
from brokerd.client.consumer.offsets import READ_COMMITTED
from brokerd.client.consumer.positions import FetchRange, Piece, RangePosition
from brokerd.client.consumer.pump import Fetched, Item, Pump
from brokerd.config.client import ConsumerConfig
from brokerd.errors import CorruptMessageError, UnsupportedVersionError, WireError
from brokerd.ids import TopicIdPartition
from brokerd.process import end_daemon_thread

logger = logging.getLogger(__name__)

_NOTHING = Fetched([], [])
RESPONSES_AHEAD = 3  # requested or waiting to be decoded: one in flight, two in the queue


class PartitionFetcher:
    """Reads ranges as an iterator of FetchedBatch, in offset order within a partition, up to the end of the ranges.

    Only one thread may read. Use `with`, or close(): until then a fetcher holds a stream to the broker. Raises
    OffsetOutOfRangeError (the offset is gone, or not in the log yet), UnknownTopicIdError (the topic was deleted),
    LogDamagedError, CorruptMessageError, and BrokerUnreachableError after default.api.timeout.ms without a response.
    """

    def __init__(
        self,
        client: BlockingClient,
        ranges: Sequence[FetchRange],
        config: ConsumerConfig,
        *,
        goes_past_damage: bool = False,
        on_arrival: Callable[[], None] = nothing,
    ) -> None:
        """Starts reading at once. `client` must stay open; it may serve any number of fetchers. With skip.corrupt.batches or
        `goes_past_damage`, damage after which the log goes on is only a warning. `on_arrival`: see Arrivals."""
        self._config = config
        self._responses: Arrivals[Item] = Arrivals(on_arrival)
        self._pieces: list[Piece] = []  # of the response being read, last first
        self._loop_thread = client.loop_thread
        self._slots = asyncio.Semaphore(RESPONSES_AHEAD)
        self._is_over = False
        self.positions = [
            RangePosition(
                one,
                is_read_committed=config.isolation_level == READ_COMMITTED,
                check_headers=config.check_crcs,
                goes_past_damage=config.skip_corrupt_batches or goes_past_damage,
            )
            for one in ranges
        ]
        self._pump = Pump(client.broker_client, self.positions, config, self._slots, self._responses)
        self._future = client.loop_thread.submit(self._pump.run())

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
                batch = decoded(self._pieces.pop(), self._config)
                if batch is not None:
                    return batch
            if self._is_over:
                return None
            fetched = self.next_fetched(timeout_ms)
            if fetched is None and not self._is_over:
                return None
            self._pieces = fetched.pieces[::-1] if fetched is not None else []

    @property
    def is_over(self) -> bool:
        """True once all ranges have been read to their ends, or the fetcher is closed."""
        return self._is_over and not self._pieces

    def close(self) -> None:
        """Stops reading; drops what was fetched but not read. Idempotent."""
        self._is_over = True
        self._pieces = []
        self._pump.is_stopped = True
        self._future.cancel()
        self._responses.put(None)  # wakes a waiting reader

    def stop(self) -> None:
        """Stops fetching and waits for nothing. What was fetched is still to be taken by `next_fetched`, up to the end
        (`is_over`): each of `positions` then says where reading goes on."""
        with contextlib.suppress(RuntimeError):  # the client was closed, and the pump has ended with it
            self._loop_thread.loop.call_soon_threadsafe(self._pump.stop)

    @property
    def has_arrivals(self) -> bool:
        """True if `next_fetched` would return at once."""
        return not self._responses.empty()

    def wake(self) -> None:
        """Has a thread that waits in `next_fetched`, or the next one to call it, return at once without records. For any thread."""
        self._responses.put(_NOTHING)

    def partition_of(self, error: BaseException) -> TopicIdPartition | None:
        """The partition whose error ended the reading, if it was one's."""
        return next((position.tp for position in self.positions if position.error is error), None)

    def next_fetched(self, timeout_ms: int | None = None) -> Fetched | None:
        """The next response, not decoded yet; None at the end of all ranges, and after `timeout_ms`. Raises the error that ended
        reading."""
        try:
            item = self._responses.get(timeout_ms)
        except queue.Empty:
            return None
        if item is None:
            self._is_over = True
            return None
        if isinstance(item, BaseException):
            self._is_over = True
            end_daemon_thread()
            raise item
        if item is not _NOTHING:
            with contextlib.suppress(RuntimeError):  # the client was closed: responses already received are still read
                self._loop_thread.loop.call_soon_threadsafe(self._slots.release)
        return item


def decoded(piece: Piece, config: ConsumerConfig) -> FetchedBatch | None:
    """The records of a piece, if any. Raises CorruptMessageError, UnsupportedVersionError unless such batches are skipped."""
    try:
        return decode_piece(piece, max_uncompressed_bytes=config.max_decompressed_bytes, check_crc=config.check_crcs)
    except (CorruptMessageError, UnsupportedVersionError) as error:
        if not config.skip_corrupt_batches:
            raise _with_remedy(error, piece) from None
        first, last = piece.from_offset, piece.until_offset - 1
        logger.warning("%s: offsets %d to %d are skipped (skip.corrupt.batches): %s", piece.name, first, last, error)
        return None


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
