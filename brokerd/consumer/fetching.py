"""Keeps fetching in line with the assignment: looks up where partitions begin, and runs one pump that prefetches them.

After a change of the assignment (a seek, a pause, another partition), the next `sync` stops the pump and starts another where it
ended; fetched records of unchanged partitions are kept. So records from before a seek are never handed over, and none twice.

Everything from the loop thread arrives in one queue, each item with its sender: the pump, the search for positions, or `wake`.
Items of an abandoned sender are dropped. Only `take` and `rest` wait.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from brokerd.client.blocking import BlockingClient, LoopCall
from brokerd.client.columns import BatchSlice, FetchedBatch, decoded
from brokerd.client.fetching import NO_END, RESPONSES_AHEAD, Fetched, FetchRange, Item, Pump
from brokerd.config.client import PlainConsumerConfig
from brokerd.consumer.core.assignment import AssignedPartition, Assignment, Begin, HandedOver
from brokerd.consumer.core.records import Run
from brokerd.consumer.resolution import Found, Search, named, resolve
from brokerd.errors import (
    BrokerdError,
    CorruptMessageError,
    LogTruncationError,
    OffsetOutOfRangeError,
    UnknownTopicIdError,
    UnsupportedVersionError,
    WireError,
)
from brokerd.ids import TopicIdPartition
from brokerd.process import end_daemon_thread

logger = logging.getLogger(__name__)


class Fetching:
    """The I/O of a consumer. Only the consumer's thread may use it, except `wake`."""

    def __init__(
        self,
        client: BlockingClient,
        config: PlainConsumerConfig,
        assignment: Assignment,
        uncommitted: Callable[[], Mapping[TopicIdPartition, int]],
        on_arrival: Callable[[], None],
    ) -> None:
        """`uncommitted`: offsets whose commit is pending, which count as committed. `on_arrival` is called, on any thread, when
        there may be something to `take`."""
        self._client = client
        self._config = config
        self._assignment = assignment
        self._uncommitted = uncommitted
        self._on_arrival = on_arrival
        self._arrivals: queue.SimpleQueue[tuple[object, Item]] = queue.SimpleQueue()
        self._latch: threading.Lock | None = None  # of a thread in `rest`
        self._buffer = _Buffer(config, assignment)
        self._pump: Pump | None = None
        self._pump_sender: object = None
        self._fetched: frozenset[TopicIdPartition] = frozenset()  # partitions of the pump
        self._is_stopping = False  # the pump; its remaining responses are taken before another begins
        self._has_left_out = False  # some of those responses were dropped, to be fetched again
        self._responses = 0  # taken so far
        self._unasked = 0  # responses taken since records were last asked for; only RESPONSES_AHEAD of them make room in the pump
        self._search: LoopCall[Found] | None = None
        self._search_sender: object = None
        self._searched: list[tuple[AssignedPartition, int]] = []  # partitions of the search, with their versions
        self._version = -1  # of the assignment as of the last `sync`
        self._stale: set[TopicIdPartition] = set()  # partitions that the pump reads at outdated offsets

    # --- records

    def next_run(self) -> Run | None:
        """The next buffered records to hand over, if any. Raises CorruptMessageError and UnsupportedVersionError, after taking what
        has arrived, so that the other partitions make progress."""
        self._make_room()
        try:
            return self._buffer.next_run()
        except (CorruptMessageError, UnsupportedVersionError):
            if self.has_arrivals:
                self.take(0)
            raise

    def _make_room(self) -> None:
        """Lets the pump continue, since records are asked for."""
        unasked, self._unasked = self._unasked, 0
        if self._pump is not None:
            for _ in range(unasked - RESPONSES_AHEAD):
                self._pump.taken()

    def hand_over(self, handed: HandedOver) -> None:
        """Moves the positions past everything that was taken; notes the previous ones in `handed`."""
        moves, passed = self._buffer.take_moves()
        if moves:
            self._assignment.move(moves, handed)
        if passed:
            self._assignment.pass_markers(passed)

    # --- changes of the assignment

    def forget(self, id_tp: TopicIdPartition | None) -> None:
        """Drops a partition's fetched records: its position changed, or it is no longer assigned."""
        if id_tp is not None:
            self._buffer.drop(id_tp)
            self._stale.add(id_tp)

    def go_back(self) -> None:
        """Moves each partition's position back to its first unfinished record in work."""
        for one in self._assignment.back_to_unfinished():
            self.forget(one.id_tp)

    def give_up(self, id_tp: TopicIdPartition | None) -> None:
        """Drops a partition that is no longer assigned, or whose topic disappeared, and ends its hold: `pause` and `resume` find it
        by its id, which it may have lost when it is resumed."""
        if id_tp is not None:
            self._buffer.release(id_tp)
            self.forget(id_tp)

    def pause(self, one: AssignedPartition, *, is_paused: bool) -> None:
        """Holds back a partition's records, or releases them."""
        if one.id_tp is not None:
            (self._buffer.hold if is_paused else self._buffer.release)(one.id_tp)

    # --- I/O

    def sync(self) -> None:
        """Brings searches and fetches in line with the assignment, without waiting for the broker."""
        if self._is_stopping:
            self._take_all()
        while self._version != self._assignment.version:  # again if something arrived that changes it
            self._version = self._assignment.version
            self._look_up()
            self._follow()

    def _look_up(self) -> None:
        """Searches for partitions that need a lookup, unless just these are searched for. The others are read meanwhile."""
        unresolved = self._assignment.unresolved()
        searched = [(one, one.version) for one in unresolved]
        if self._search is not None and searched == self._searched:
            return
        self._end_search()
        if unresolved:
            self._search_sender = sender = object()
            searches = [Search(one, copy.copy(one)) for one in unresolved]
            search = resolve(self._client.broker_client, searches, self._config, self._uncommitted())
            self._search = self._client.loop_thread.submit(search, partial(self._arrive, sender, None))
            self._searched = searched

    def _follow(self) -> None:
        """Replaces the pump if it does not read exactly the fetchable partitions."""
        wanted = {one.id_tp: one for one in self._assignment.fetchable() if one.id_tp is not None}
        if self._pump is not None and (self._stale or self._fetched != wanted.keys()):
            if not self._is_stopping:
                self._is_stopping = True
                self._pump.stop()
            self._take_all()
        if self._pump is None and wanted:
            self._pump_sender = sender = object()
            # The longest unserved first: if each pump soon ends by the next change, its first responses must not always be of the
            # same partitions.
            ordered = sorted(wanted.items(), key=lambda entry: entry[1].last_response)
            ranges = [_range_of(id_tp, one) for id_tp, one in ordered]
            self._pump = Pump(self._client, ranges, self._config, partial(self._arrive, sender))
            self._fetched = frozenset(wanted)
            self._stale.clear()

    def _arrive(self, sender: object, item: Item) -> None:
        self._arrivals.put((sender, item))
        self._on_arrival()

    def _take_all(self) -> None:
        """Takes the responses of a stopping pump that have arrived."""
        while self._is_stopping and self.has_arrivals:
            self.take(0)

    @property
    def has_arrivals(self) -> bool:
        """True if `take` would not wait."""
        return not self._arrivals.empty()

    def take(self, timeout_ms: int | None) -> None:
        """Waits for an item (records, positions or an error), for `wake`, or for `timeout_ms`, and applies what arrived.

        Raises BrokerUnreachableError, UnknownTopicOrPartitionError, UnknownTopicIdError, LogDamagedError, LogTruncationError,
        NoOffsetForPartitionError, OffsetOutOfRangeError and the broker's other errors. The next `sync` tries again.
        """
        try:
            sender, item = self._arrivals.get(timeout=None if timeout_ms is None else timeout_ms / 1000)
        except queue.Empty:
            return
        if self._pump is not None and sender is self._pump_sender:
            self._take_fetched(self._pump, item)
        elif self._search is not None and sender is self._search_sender:
            self._take_found(self._search)

    def _take_fetched(self, pump: Pump, item: Item) -> None:
        if isinstance(item, Fetched):
            self._unasked += not self._is_stopping
            if self._is_stopping or self._unasked <= RESPONSES_AHEAD:  # else the caller waits only for a position
                pump.taken()
            # A stopping pump may not exceed the buffer's usual bound: the rest is dropped and fetched again.
            self._has_left_out |= self._is_stopping and self._buffer.size_bytes > RESPONSES_AHEAD * self._config.fetch_max_bytes
            if not self._has_left_out:
                self._add(item)
            return
        has_successor = self._is_stopping
        self._end_pump()
        if item is None:
            return
        end_daemon_thread()
        if not isinstance(item, BrokerdError):
            raise item
        if not has_successor:  # else the successor meets the error too, if it persists
            self._after_failure(pump, item)

    def _end_pump(self) -> None:
        self._pump, self._unasked = None, 0
        self._is_stopping = self._has_left_out = False
        self._stale.clear()
        self._version = -1

    def _add(self, fetched: Fetched) -> None:
        self._buffer.add(fetched)
        self._responses += 1
        for id_tp, epoch in fetched.epochs:
            if id_tp not in self._stale:
                self._assignment.by_id[id_tp].enter(epoch)
        for id_tp, offset in fetched.reached:
            if id_tp not in self._stale:
                one = self._assignment.by_id[id_tp]
                one.fetch_offset, one.last_response = offset, self._responses
        for id_tp in self._stale:
            self._buffer.drop(id_tp)

    def _take_found(self, search: LoopCall[Found]) -> None:
        self._search = None
        self._version = -1  # partitions that were not found are searched for again
        try:
            found = search.outcome()
            for (one, then), id_tp, position, committed in found.resolved:
                if self._assignment.found(one, id_tp, position, then.version, committed) and then.reason:
                    logger.warning("%s: reading continues at offset %d", then.reason, position.offset)
            if found.failure is not None:
                raise found.failure
        except UnknownTopicIdError:
            self._forget_ids()
            raise

    def _end_search(self) -> None:
        if self._search is not None:
            self._search.withdraw()
            self._search = None

    def _forget_ids(self) -> None:
        """Forgets the ids of partitions without a position, after a search found a topic gone: the next search looks them up."""
        for one in self._assignment.unresolved():
            if one.id_tp is not None and one.position is None:
                self.give_up(one.id_tp)
                self._assignment.forget_id(one)

    def _after_failure(self, pump: Pump, error: BrokerdError) -> None:
        """Applies auto.offset.reset, or raises the pump's error with advice."""
        failed = pump.partition_of(error)
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
                f"{named(one.tp, error)}; check what was read of the other history, then seek() to the offset at which to continue"
            )
        elif isinstance(error, UnknownTopicIdError):
            self.give_up(one.id_tp)
            self._assignment.forget_id(one)
            error.message = (
                f"topic '{one.tp.topic}' was deleted, or this principal may no longer see it, so {one.tp} cannot be read: assign() "
                "other partitions; once the topic is visible again, the next poll() continues; a new topic of that name is read "
                "from its beginning or end, by auto.offset.reset"
            )
        return error

    def rest(self, timeout_ms: int, is_over: Callable[[], bool]) -> None:
        """Waits for `wake`, at most `timeout_ms`, unless `is_over`, which is called once no `wake` can be missed any more."""
        latch = self._latch = threading.Lock()
        latch.acquire()
        try:
            if not is_over():
                latch.acquire(timeout=timeout_ms / 1000)
        finally:
            self._latch = None

    def wake(self) -> None:
        """Makes a waiting `take` or `rest` return, or else the next `take`. Thread-safe."""
        latch = self._latch
        if latch is None:
            self._arrive(None, None)
            return
        with contextlib.suppress(RuntimeError):  # already released
            latch.release()

    def reset(self) -> None:
        """Discards everything except positions: an interrupt may have left a step half done."""
        self.close()
        self._buffer.clear()
        for one in self._assignment.partitions.values():
            one.fetch_offset, one.is_unreadable = None, False
            self.pause(one, is_paused=one.is_paused)

    def close(self) -> None:
        """Ends the search and the pump."""
        self._end_search()
        if self._pump is not None:
            self._pump.stop()
        self._end_pump()


def _range_of(id_tp: TopicIdPartition, one: AssignedPartition) -> FetchRange:
    offset = one.position if one.fetch_offset is None else one.fetch_offset
    assert offset is not None
    return FetchRange(id_tp, offset, NO_END, one.tp.topic, one.epoch_before(offset))


class _Reached(NamedTuple):
    """The end of a partition's response. Taking it moves the position past markers and aborted records after the last record."""

    tp: TopicIdPartition
    offset: int


_Entry = BatchSlice | Run | _Reached


class _Buffer:
    """Fetched records that are not handed over yet, in order of arrival: slices, partly taken runs and ends of responses.

    Records of paused partitions are kept aside, so resuming fetches nothing again; those of a partition after a seek, or no longer
    assigned, are dropped. Until `take_moves`, keeps the offset up to which each partition's records were taken.
    """

    def __init__(self, config: PlainConsumerConfig, assignment: Assignment) -> None:
        self._config = config
        self._assignment = assignment
        self._entries: deque[_Entry] = deque()
        self._held: dict[TopicIdPartition, list[_Entry]] = {}
        self._moves: dict[TopicIdPartition, int] = {}
        self._passed: dict[TopicIdPartition, int] = {}  # ends of responses, reached after the records of `_moves`

    def add(self, fetched: Fetched) -> None:
        """Appends a response."""
        entries: list[_Entry] = [*fetched.slices]
        entries += [_Reached(tp, offset) for tp, offset in fetched.reached]
        for entry in entries:
            held = self._held.get(entry.tp)
            if held is None:
                self._entries.append(entry)
            else:
                held.append(entry)

    def drop(self, tp: TopicIdPartition) -> None:
        """Drops the records of a partition."""
        self._entries = deque(entry for entry in self._entries if entry.tp != tp)
        if tp in self._held:
            self._held[tp] = []
        self._moves.pop(tp, None)
        self._passed.pop(tp, None)

    def hold(self, tp: TopicIdPartition) -> None:
        """Keeps the records of a partition aside until `release`, including those added later."""
        if tp not in self._held:
            self._held[tp] = [entry for entry in self._entries if entry.tp == tp]
            self._entries = deque(entry for entry in self._entries if entry.tp != tp)

    def release(self, tp: TopicIdPartition) -> None:
        """Appends the held records of a partition to the queue."""
        self._entries.extend(self._held.pop(tp, ()))

    def clear(self) -> None:
        """Drops all records and ends all holds."""
        self._entries.clear()
        self._held.clear()
        self._moves.clear()
        self._passed.clear()

    @property
    def size_bytes(self) -> int:
        """Approximate memory of its records."""
        kept = itertools.chain(self._entries, *self._held.values())
        return sum(entry.size_bytes for entry in kept if isinstance(entry, (BatchSlice, Run)))

    def next_run(self) -> Run | None:
        """The next records to hand over; None if there are none. Raises CorruptMessageError, UnsupportedVersionError; the partition
        then moves behind all others, and raises again at its turn.
        """
        while True:
            self._pass_spent()
            head = self._entries[0] if self._entries else None
            if head is None or isinstance(head, Run):
                return head
            assert isinstance(head, BatchSlice)
            batch = self._decoded(head)
            if batch is None:
                self._entries.popleft()
            else:
                self._entries[0] = Run(batch, self._assignment.by_id[batch.tp].tp)

    def _decoded(self, one: BatchSlice) -> FetchedBatch | None:
        try:
            return decoded(one, self._config)
        except (CorruptMessageError, UnsupportedVersionError):
            own = [entry for entry in self._entries if entry.tp == one.tp]
            self._entries = deque([*(entry for entry in self._entries if entry.tp != one.tp), *own])
            self._assignment.cannot_read(one.tp)
            raise

    def take_moves(self) -> tuple[dict[TopicIdPartition, int], dict[TopicIdPartition, int]]:
        """The next offset of each partition with records taken since the last call, and of each that then passed markers; takes
        markers at the queue's front."""
        self._pass_spent()
        if self._entries and isinstance(head := self._entries[0], Run) and head.is_begun:
            self._take(head)
        moves, passed, self._moves, self._passed = self._moves, self._passed, {}, {}
        return moves, passed

    def _take(self, run: Run) -> None:
        self._moves[run.tp] = run.next_offset
        self._passed.pop(run.tp, None)

    def _pass_spent(self) -> None:
        """Drops runs taken to their end, and ends of responses, from the front, and notes their offsets."""
        while self._entries:
            head = self._entries[0]
            if isinstance(head, _Reached):
                self._passed[head.tp] = head.offset
            elif isinstance(head, Run) and not head.left:
                self._take(head)
            else:
                return
            self._entries.popleft()
