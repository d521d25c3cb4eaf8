"""The records in work: which may be handled now, which are passed over, and which is the first that is not finished. Pure.

Of the records in one lane, one is at work at a time, in the order in which they came. Of the records of one message, too: the
others wait for the outcome, are passed over if it was handled, and otherwise one of them has its turn.

Records finish in any order. Only offsets below the first unfinished record of a partition may be committed: a record above it that
is finished would be lost, or the unfinished one skipped, if the process died.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from brokerd.consumer.core.message_ids import MessageId, Window
from brokerd.consumer.core.records import ConsumerRecord
from brokerd.ids import TopicPartition

LaneOf = Callable[[ConsumerRecord], Hashable]
IdOf = Callable[[ConsumerRecord], MessageId | None]


def _by_key(record: ConsumerRecord) -> Hashable:
    """Records without a key are one lane for each partition: nothing says that their order does not matter."""
    return (record.topic, record.partition) if record.key is None else (record.topic, record.key)


def _by_partition(record: ConsumerRecord) -> Hashable:
    return (record.topic, record.partition)


def _each(record: ConsumerRecord) -> Hashable:
    return (record.topic, record.partition, record.offset)


ORDERS: dict[str, LaneOf] = {"key": _by_key, "partition": _by_partition, "none": _each}


class _Stretch:
    """Records of one partition that were begun in the order of their offsets, from the first unfinished one on."""

    __slots__ = ("begun", "finished")

    def __init__(self) -> None:
        self.begun: deque[int] = deque()
        self.finished: set[int] = set()  # of those, behind the first

    def finish(self, offset: int) -> None:
        """A record of it is finished."""
        begun, finished = self.begun, self.finished
        if begun[0] != offset:
            finished.add(offset)
            return
        begun.popleft()
        while finished and begun[0] in finished:
            finished.discard(begun.popleft())


class Task(NamedTuple):
    """A record in work."""

    record: ConsumerRecord
    lane: Hashable
    stretch: _Stretch
    message_id: MessageId | None


class Schedule:
    """The records in work."""

    def __init__(
        self,
        lane_of: LaneOf,
        id_of: IdOf | None,
        window: Window,
        *,
        begin: Callable[[Task], None],
        pass_over: Callable[[ConsumerRecord], None],
    ) -> None:
        """Calls `begin` with each record that may be handled now, and `pass_over` with each one finished because its message was
        handled before."""
        self._lane_of = lane_of
        self._id_of = id_of
        self._window = window
        self._begin = begin
        self._pass_over = pass_over
        self._lanes: dict[Hashable, deque[Task] | None] = {}  # those with a record at work: the records behind it
        self._messages: dict[MessageId, list[Task]] = {}  # those at work: the records that wait for their outcome
        self._newest: dict[TopicPartition, _Stretch] = {}

    def add(self, tp: TopicPartition, records: Sequence[ConsumerRecord]) -> None:
        """Takes records of a partition into work, of rising offsets.

        Offsets that begin again below those in work are another stretch: the log was shortened, or was made again, and reading goes
        on before its former end. Those of the old stretch are not in the log any more, so nothing waits for them.
        """
        stretch = self._newest.get(tp)
        if stretch is None or (stretch.begun and records[0].offset <= stretch.begun[-1]):
            stretch = self._newest[tp] = _Stretch()
        stretch.begun.extend(record.offset for record in records)
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
        """A record that began is finished, and others have their turns; if it was not handled, another one of its message."""
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
        # Last: an offset beyond a record must not be committed before its message counts as handled.
        task.stretch.finish(task.record.offset)

    def first_unfinished(self, tp: TopicPartition) -> int | None:
        """The offset of the first record that is in work and not finished; None if all are finished."""
        stretch = self._newest.get(tp)
        return stretch.begun[0] if stretch is not None and stretch.begun else None

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
            following.stretch.finish(following.record.offset)
            self._pass_over(following.record)
            following = self._next_in_lane(following)
