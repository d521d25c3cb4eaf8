"""Schedules the records in work: decides which may be handled, which are skipped as duplicates, and the first unfinished one. Pure.

One record per lane is handled at a time, in order of arrival. The same holds for a message id: duplicates wait for the outcome of
the first. They are skipped if it was handled; otherwise the next duplicate is handled.

Records finish in any order. Only offsets up to the first unfinished record of a partition may be committed: if the process died
after committing a later one, the unfinished record would be skipped.
"""

from __future__ import annotations

import operator
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from brokerd.consumer.core.records import ConsumerRecord
from brokerd.consumer.processing.dedup import DedupWindow, MessageId
from brokerd.ids import TopicPartition

LaneOf = Callable[[ConsumerRecord], Hashable]
IdOf = Callable[[ConsumerRecord], MessageId | None]


def _by_key(record: ConsumerRecord) -> Hashable:
    """Records without a key share a lane per partition, since their order may matter."""
    return (record.topic, record.partition) if record.key is None else (record.topic, record.key)


# A record begins with its topic, partition and offset.
ORDERS: dict[str, LaneOf] = {"key": _by_key, "partition": operator.itemgetter(0, 1), "none": operator.itemgetter(0, 1, 2)}


class _Stretch:
    """Records in work of one partition, with ascending offsets. Only the unfinished ones take memory, even if many after the first
    have finished."""

    __slots__ = ("newest", "unfinished")

    def __init__(self) -> None:
        self.unfinished: OrderedDict[int, None] = OrderedDict()  # a dict's iteration would scan the entries deleted at its front
        self.newest = -1  # offset

    def begin(self, records: Sequence[ConsumerRecord]) -> None:
        """Adds records."""
        self.unfinished.update((record.offset, None) for record in records)
        self.newest = records[-1].offset


class Task(NamedTuple):
    """A record in work."""

    record: ConsumerRecord
    lane: Hashable
    stretch: _Stretch
    message_id: MessageId | None


class Schedule:
    """Decides the order in which records are handled."""

    def __init__(
        self,
        lane_of: LaneOf,
        id_of: IdOf | None,
        window: DedupWindow,
        *,
        begin: Callable[[Task], None],
        pass_over: Callable[[ConsumerRecord], None],
    ) -> None:
        """Calls `begin` with each record once it may be handled, and `pass_over` with each one skipped because its message was
        handled before."""
        self._lane_of = lane_of
        self._id_of = id_of
        self._window = window
        self._begin = begin
        self._pass_over = pass_over
        self._lanes: dict[Hashable, deque[Task] | None] = {}  # per lane with a record in its handler: the records waiting
        self._messages: dict[MessageId, list[Task]] = {}  # per message in its handler: the duplicates waiting
        self._newest: dict[TopicPartition, _Stretch] = {}

    def add(self, tp: TopicPartition, records: Sequence[ConsumerRecord]) -> None:
        """Takes records of a partition, with ascending offsets, into work.

        Offsets below those in work begin a new stretch: the log was truncated or created anew, and is read from before its former
        end. The records of the old stretch are no longer in the log, so commits do not wait for them.
        """
        stretch = self._newest.get(tp)
        if stretch is None or (stretch.unfinished and records[0].offset <= stretch.newest):
            stretch = self._newest[tp] = _Stretch()
        stretch.begin(records)
        for record in records:
            task = Task(record, self._lane_of(record), stretch, None if self._id_of is None else self._id_of(record))
            if task.lane in self._lanes:
                waiting = self._lanes[task.lane]
                if waiting is None:
                    waiting = self._lanes[task.lane] = deque()
                waiting.append(task)
            else:
                self._lanes[task.lane] = None
                self._take_turn(task)

    def end(self, task: Task, *, is_handled: bool) -> None:
        """Finishes a record, and begins the next of its lane and, unless it was handled, of its message."""
        again: list[Task] = []
        if task.message_id is not None:
            if is_handled:
                self._window.add(task.message_id)
            again = self._messages.pop(task.message_id)
        following = self._next_in_lane(task)
        if following is not None:
            self._take_turn(following)
        for waiting in again:
            self._take_turn(waiting)
        # Must be last: an offset beyond a record may be committed only after its message counts as handled.
        del task.stretch.unfinished[task.record.offset]

    def first_unfinished(self, tp: TopicPartition) -> int | None:
        """The offset of the first unfinished record in work; None if there is none."""
        stretch = self._newest.get(tp)
        return next(iter(stretch.unfinished), None) if stretch is not None else None

    def _next_in_lane(self, task: Task) -> Task | None:
        waiting = self._lanes[task.lane]
        if waiting:
            return waiting.popleft()
        del self._lanes[task.lane]
        return None

    def _take_turn(self, task: Task) -> None:
        following: Task | None = task
        while following is not None:
            identity = following.message_id
            if identity in self._messages:
                self._messages[identity].append(following)
                return
            if identity is None or identity not in self._window:
                if identity is not None:
                    self._messages[identity] = []
                self._begin(following)
                return
            del following.stretch.unfinished[following.record.offset]
            self._pass_over(following.record)
            following = self._next_in_lane(following)
