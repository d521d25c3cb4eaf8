"""Keeps what is fetched in line with the assignment: finds where partitions begin, and has one fetcher read them ahead.

When the assignment changes (a seek, a pause, another partition), the fetcher is stopped at the next `sync`, and another one begins
where it ended: what it has fetched of other partitions stays. So no record of before a seek is ever handed over, and none twice.

Nothing waits but `take` and `rest`, and they only for what `on_arrival` tells too.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Mapping
from functools import partial

from brokerd.client.blocking import BlockingClient
from brokerd.client.consumer.arrivals import Arrivals, nothing
from brokerd.client.consumer.fetcher import RESPONSES_AHEAD, PartitionFetcher, decoded
from brokerd.client.consumer.positions import FetchRange
from brokerd.client.consumer.pump import Fetched
from brokerd.config.client import PlainConsumerConfig
from brokerd.consumer.core.assignment import AssignedPartition, Assignment, Begin, HandedOver
from brokerd.consumer.core.buffer import Buffer
from brokerd.consumer.core.records import Run
from brokerd.consumer.resolution import Resolution, named
from brokerd.errors import BrokerdError, LogTruncationError, OffsetOutOfRangeError, UnknownTopicIdError, WireError
from brokerd.ids import TopicIdPartition, TopicPartition

logger = logging.getLogger(__name__)


class _Nothing:
    """Stands in for a fetcher while there is nothing to fetch: waits until it is woken."""

    def __init__(self, on_arrival: Callable[[], None]) -> None:
        self._wakes: Arrivals[None] = Arrivals(on_arrival)

    @property
    def has_arrivals(self) -> bool:
        return not self._wakes.empty()

    def take(self, timeout_ms: int | None) -> None:
        try:
            self._wakes.get(timeout_ms)
        except queue.Empty:
            return

    def wake(self) -> None:
        self._wakes.put(None)


class Fetching:
    """The I/O of a consumer. For the thread that uses the consumer, but for `wake`."""

    def __init__(
        self,
        client: BlockingClient,
        config: PlainConsumerConfig,
        assignment: Assignment,
        uncommitted: Callable[[], Mapping[TopicIdPartition, int]],
        on_arrival: Callable[[], None] = nothing,
    ) -> None:
        """`uncommitted`: offsets that are still to be committed, and count as if they were. `on_arrival` is called, by any thread,
        when there may be something to `take`."""
        self._client = client
        self._config = config
        self._assignment = assignment
        self._uncommitted = uncommitted
        self._on_arrival = on_arrival
        self._buffer = Buffer()
        self._fetcher: PartitionFetcher | None = None
        self._is_stopping = False  # the fetcher: what it still has is taken before another begins
        self._has_left_out = False  # some of that, which is fetched again
        self._fetched: frozenset[TopicIdPartition] = frozenset()  # partitions of the fetcher
        self._resolution: Resolution | None = None
        self._nothing = _Nothing(on_arrival)
        self._waited_for: PartitionFetcher | Resolution | _Nothing = self._nothing
        self._version = -1  # of the assignment that all this is in line with
        self._stale: set[TopicIdPartition] = set()  # the fetcher reads them at offsets that are not wanted any more

    # --- records

    def next_run(self) -> Run | None:
        """The records to hand over next, if they are here. Raises CorruptMessageError and UnsupportedVersionError."""
        return self._buffer.next_run(partial(decoded, config=self._config), self._name_of)

    def taken(self, run: Run) -> None:
        """Notes how far a run was taken."""
        self._buffer.taken(run)

    def hand_over(self, handed: HandedOver) -> None:
        """Moves the positions behind everything that was taken; notes in `handed` where they were."""
        moves = self._buffer.take_moves()
        if moves:
            self._assignment.move(moves, handed)

    def _name_of(self, id_tp: TopicIdPartition) -> TopicPartition:
        return self._assignment.by_id[id_tp].tp

    # --- what the assignment's changes mean here

    def forget(self, id_tp: TopicIdPartition | None) -> None:
        """A partition goes on elsewhere, or is given up."""
        if id_tp is not None:
            self._buffer.drop(id_tp)
            self._stale.add(id_tp)

    def give_up(self, id_tp: TopicIdPartition | None) -> None:
        """A partition is not assigned any more."""
        if id_tp is not None:
            self._buffer.release(id_tp)
            self.forget(id_tp)

    def pause(self, one: AssignedPartition, *, is_paused: bool) -> None:
        """The records of a partition are kept back, or are handed over again."""
        if one.id_tp is not None:
            (self._buffer.hold if is_paused else self._buffer.release)(one.id_tp)

    # --- I/O

    def sync(self) -> None:
        """Starts what is missing, stops what is not wanted any more. Does not wait for the broker."""
        if self._is_stopping:
            self._take_rest()
        if self._version == self._assignment.version:
            return
        unresolved = self._assignment.unresolved()
        if self._resolution is not None:
            self._resolution.close()
            self._resolution = None
        if unresolved:
            uncommitted = self._uncommitted()
            self._resolution = Resolution(self._client, unresolved, self._config, uncommitted, self._on_arrival)
            self._waited_for = self._resolution
        else:
            self._follow()
        self._version = self._assignment.version

    def _follow(self) -> None:
        """Has the fetcher read what is to be fetched."""
        wanted = {one.id_tp: one for one in self._assignment.fetchable() if one.id_tp is not None}
        if self._fetcher is not None and (self._stale or self._fetched != wanted.keys()):
            self._stop_fetcher()
        if self._fetcher is None and wanted:
            ranges = [_range_of(id_tp, one) for id_tp, one in wanted.items()]
            self._fetcher = PartitionFetcher(self._client, ranges, self._config, on_arrival=self._on_arrival)
            self._fetched = frozenset(wanted)
            self._stale.clear()
        self._waited_for = self._fetcher or self._nothing

    def _stop_fetcher(self) -> None:
        if not self._is_stopping and self._fetcher is not None:
            self._is_stopping = True
            self._fetcher.stop()
        self._take_rest()

    def _take_rest(self) -> None:
        """Takes what a fetcher that is stopped still has, as far as it is here."""
        while self._fetcher is not None and self._fetcher.has_arrivals:
            self._take_fetched(self._fetcher, 0)

    def _take_fetched(self, fetcher: PartitionFetcher, timeout_ms: int | None) -> None:
        try:
            fetched = fetcher.next_fetched(timeout_ms)
        except BrokerdError:
            if not self._is_stopping:
                raise
            self._end_fetcher()  # the next one meets it too, if it lasts
            return
        if fetched is not None:
            # Of a fetcher that ends, no more than may be buffered while one goes on: the rest is fetched again.
            self._has_left_out |= self._is_stopping and self._buffer.size_bytes > RESPONSES_AHEAD * self._config.fetch_max_bytes
            if not self._has_left_out:
                self._add(fetched)
        elif fetcher.is_over:
            self._end_fetcher()

    def _end_fetcher(self) -> None:
        self._fetcher = None
        self._is_stopping = self._has_left_out = False
        self._stale.clear()
        self._version = -1

    def _add(self, fetched: Fetched) -> None:
        self._buffer.add(fetched)
        for id_tp, epoch in fetched.epochs:
            if id_tp not in self._stale:
                self._assignment.by_id[id_tp].enter(epoch)
        for id_tp, offset in fetched.reached:
            if id_tp not in self._stale:
                self._assignment.by_id[id_tp].fetch_offset = offset
        for id_tp in self._stale:
            self._buffer.drop(id_tp)

    @property
    def has_arrivals(self) -> bool:
        """True if `take` would not wait."""
        return self._waited_for.has_arrivals

    def take(self, timeout_ms: int | None) -> None:
        """Waits for the broker: until something has come that may be records, or is woken, or for `timeout_ms`.

        Raises BrokerUnreachableError, UnknownTopicOrPartitionError, UnknownTopicIdError, LogDamagedError, LogTruncationError,
        NoOffsetForPartitionError, OffsetOutOfRangeError and the broker's other errors. The next `sync` tries again.
        """
        try:
            if self._resolution is not None:
                self._take_found(self._resolution, timeout_ms)
            elif self._fetcher is not None:
                self._take_fetched(self._fetcher, timeout_ms)
            else:
                self._nothing.take(timeout_ms)
        except BrokerdError as error:
            self._version = -1
            if self._resolution is None:
                self._after_failure(error)
                return
            if isinstance(error, UnknownTopicIdError):
                self._forget_ids()
            raise

    def _take_found(self, resolution: Resolution, timeout_ms: int | None) -> None:
        for search, id_tp, position, committed in resolution.take(timeout_ms) or ():
            if self._assignment.found(search.one, id_tp, position, search.version, committed) and search.reason:
                logger.warning("%s: reading goes on at offset %d", search.reason, position.offset)

    def _forget_ids(self) -> None:
        """A search has found that a topic is gone: the next one asks for the ids of all partitions without a position."""
        for one in self._assignment.unresolved():
            if one.id_tp is not None and one.position is None:
                self.forget(one.id_tp)
                self._assignment.forget_id(one)

    def _after_failure(self, error: BrokerdError) -> None:
        """Obeys auto.offset.reset, or raises the error of the fetcher with what to do."""
        assert self._fetcher is not None
        failed = self._fetcher.partition_of(error)
        self._end_fetcher()
        one = None if failed is None else self._assignment.by_id.get(failed)
        if one is None or not isinstance(error, WireError):
            raise error
        if isinstance(error, OffsetOutOfRangeError) and self._config.auto_offset_reset != "none":
            reset = self._config.auto_offset_reset
            reason = f"{named(one.tp, error)}; auto.offset.reset is {reset}"
            self.forget(one.id_tp)
            self._assignment.seek(one, None, Begin.RESET, reason)
            return
        raise self._with_advice(one, error)

    def _with_advice(self, one: AssignedPartition, error: WireError) -> WireError:
        if isinstance(error, OffsetOutOfRangeError):
            error.message = (
                f"{named(one.tp, error)}; seek() to an offset that it has, or set auto.offset.reset to earliest or latest"
            )
        elif isinstance(error, LogTruncationError):
            error.message = (
                f"{named(one.tp, error)}; see to what was read of the other one, then seek() to where reading is to go on"
            )
        elif isinstance(error, UnknownTopicIdError):
            self.forget(one.id_tp)
            self._assignment.forget_id(one)
            error.message = (
                f"topic '{one.tp.topic}' was deleted, or may not be seen by this principal any more, so {one.tp} cannot be read "
                "on: assign() other partitions; once it is seen again the next poll() goes on, and begins like a new reader with "
                "another topic of that name"
            )
        return error

    def rest(self, timeout_ms: int, is_over: Callable[[], bool]) -> None:
        """Waits for `wake`, at most `timeout_ms`; not at all if `is_over` by the time that a `wake` would be noticed."""
        before, self._waited_for = self._waited_for, self._nothing
        try:
            if not is_over():
                self._nothing.take(timeout_ms)
        finally:
            self._waited_for = before

    def wake(self) -> None:
        """Has a thread that waits in `take` or `rest` return. For any thread."""
        self._waited_for.wake()

    def reset(self) -> None:
        """Throws away everything but positions: after an interrupt it is not known how far a step has come."""
        self.close()
        self._buffer.clear()
        for one in self._assignment.partitions.values():
            one.fetch_offset = None
            self.pause(one, is_paused=one.is_paused)

    def close(self) -> None:
        """Ends what is under way."""
        if self._fetcher is not None:
            self._fetcher.close()
        self._end_fetcher()
        if self._resolution is not None:
            self._resolution.close()
            self._resolution = None


def _range_of(id_tp: TopicIdPartition, one: AssignedPartition) -> FetchRange:
    offset = one.position if one.fetch_offset is None else one.fetch_offset
    assert offset is not None
    return FetchRange(id_tp, offset, None, str(one.tp), one.epoch_before(offset))
