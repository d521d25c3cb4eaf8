"""Goal: in whatever order records finish, and whenever the process dies, a message is not handled again while its id is known,
unless it failed; records with one id never run together; no record waits for ever; records below a committed offset are finished.

Method: Hypothesis plays the log, the workers and the deaths around the pure state machines of `process`, beside a model.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brokerd.consumer.core.records import ConsumerRecord
from brokerd.consumer.processing.dedup import ID_MAX_BYTES, DedupWindow, MessageId, message_id
from brokerd.consumer.processing.schedule import ORDERS, LaneOf, Schedule, Task
from brokerd.ids import TopicPartition
from tests.support.scale import TEST_SCALE

PARTITIONS = 2
KEYS = st.sampled_from([None, b"a", b"b"])
IDS = st.sampled_from([None, b"1", b"2", b"3", b"4"])


def id_of(record: ConsumerRecord) -> MessageId | None:
    """The id of a message."""
    return message_id(record, "id")


class Life:
    """The records in work between a start and a death."""

    def __init__(self, lane_of: LaneOf, window: DedupWindow, at: list[int]) -> None:
        self.window = window
        self.at = at  # next offset to take, by partition
        self.ready: list[Task] = []
        self.running: list[Task] = []
        self.finished: set[tuple[int, int]] = set()
        self.passed_over: list[ConsumerRecord] = []
        self.schedule = Schedule(lane_of, id_of, window, begin=self.ready.append, pass_over=self.passed_over.append)


class Handling(RuleBasedStateMachine):
    """A log, lives over it, and the file of ids."""

    @initialize(limit=st.integers(1, 4), order=st.sampled_from(sorted(ORDERS)))
    def start(self, limit: int, order: str) -> None:
        self.limit = limit
        self.lane_of = ORDERS[order]
        self.log: list[list[ConsumerRecord]] = [[] for _ in range(PARTITIONS)]
        self.committed = [0] * PARTITIONS
        self.file: dict[int, MessageId] = {}
        self.known: list[MessageId] = []  # the model's window of ids
        self.done: set[tuple[int, int]] = set()  # finished in any life
        self.life = Life(self.lane_of, DedupWindow(limit), [0] * PARTITIONS)

    @rule(partition=st.integers(0, PARTITIONS - 1), records=st.lists(st.tuples(KEYS, IDS), min_size=1, max_size=5))
    def append(self, partition: int, records: list[tuple[bytes | None, bytes | None]]) -> None:
        for key, identity in records:
            headers = () if identity is None else (("id", identity),)
            self.log[partition].append(ConsumerRecord("t", partition, len(self.log[partition]), 0, 0, key, b"", headers))

    @rule(partition=st.integers(0, PARTITIONS - 1), count=st.integers(1, 5))
    def take(self, partition: int, count: int) -> None:
        life = self.life
        records = self.log[partition][life.at[partition] :][:count]
        if records:
            life.at[partition] += len(records)
            life.schedule.add(TopicPartition("t", partition), records)
            self._finish_repeated()

    def _finish_repeated(self) -> None:
        while self.life.passed_over:
            record = self.life.passed_over.pop(0)
            assert id_of(record) in self.known, "passed over without having been handled"
            self._finish(record)

    def _finish(self, record: ConsumerRecord) -> None:
        self.life.finished.add((record.partition, record.offset))
        self.done.add((record.partition, record.offset))

    @precondition(lambda self: self.life.ready)
    @rule()
    def begin(self) -> None:
        task = self.life.ready.pop(0)
        if task.message_id is not None:
            assert task.message_id not in self.known, "handled again"
            assert task.message_id not in [one.message_id for one in self.life.running], "two of a message at a time"
        assert task.lane not in [one.lane for one in self.life.running]
        self.life.running.append(task)

    @precondition(lambda self: self.life.running)
    @rule(which=st.integers(0, 99), is_handled=st.booleans())
    def end(self, which: int, is_handled: bool) -> None:
        task = self.life.running.pop(which % len(self.life.running))
        if is_handled and task.message_id is not None:
            self.known = [*self.known, task.message_id][-self.limit :]
        self.life.schedule.end(task, is_handled=is_handled)
        self._finish(task.record)
        self._finish_repeated()

    @rule(is_committed=st.booleans())
    def write(self, is_committed: bool) -> None:
        """Commits as `auto` does: gets the offsets, writes the ids, then commits, which may fail."""
        offsets = [self._first_unfinished(partition) for partition in range(PARTITIONS)]
        numbered = self.life.window.unwritten()
        self.file |= dict(numbered)
        self.file = {number: one for number, one in self.file.items() if number > max(self.file) - self.limit}
        self.life.window.written(numbered)
        assert list(self.file.values()) == self.known, "all that is known is in the file"
        if is_committed:
            self.committed = offsets

    def _first_unfinished(self, partition: int) -> int:
        first = self.life.schedule.first_unfinished(TopicPartition("t", partition))
        return self.life.at[partition] if first is None else first

    @rule()
    def die(self) -> None:
        """After a death only the ids in the file are known."""
        self.known = list(self.file.values())
        self.life = Life(self.lane_of, DedupWindow(self.limit, sorted(self.file.items())), list(self.committed))

    @invariant()
    def what_is_committed_is_done(self) -> None:
        for partition in range(PARTITIONS):
            assert all((partition, offset) in self.done for offset in range(self.committed[partition]))

    def teardown(self) -> None:
        """Every record is finished in the end."""
        if not hasattr(self, "life"):
            return
        for partition in range(PARTITIONS):
            self.take(partition, len(self.log[partition]))
        while self.life.ready or self.life.running:
            if self.life.ready:
                self.begin()
            else:
                self.end(0, True)
        self.write(True)
        assert self.committed == [len(log) for log in self.log]


TestHandling = Handling.TestCase
TestHandling.settings = settings(max_examples=100 * TEST_SCALE, stateful_step_count=50, deadline=None)


def test_an_id_is_the_last_header_of_its_name_and_of_bounded_size() -> None:
    def identity(*headers: tuple[str, bytes | None]) -> MessageId | None:
        return message_id(ConsumerRecord("t", 0, 0, 0, 0, None, None, headers), "id")

    assert identity(("id", b"1"), ("other", b"2"), ("id", b"3")) == ("t", b"3")
    assert identity() is identity(("id", None)) is identity(("id", b"")) is identity(("id", b"1"), ("id", None)) is None
    longest = b"x" * ID_MAX_BYTES
    assert identity(("id", longest)) == ("t", longest)
    digests = [identity(("id", longest + tail)) for tail in (b"y", b"z", b"y" * 1_000_000)]
    assert len(set(digests)) == 3
    assert all(one is not None and ID_MAX_BYTES < len(one.value) <= ID_MAX_BYTES + 40 for one in digests)


def test_a_window_with_less_room_keeps_the_newest() -> None:
    window = DedupWindow(4)
    ids = [MessageId("t", b"%d" % number) for number in range(6)]
    for one in ids:
        window.add(one)
    assert [one in window for one in ids] == [False, False, True, True, True, True]
    window.limit_to(2)
    assert [one in window for one in ids] == [False] * 4 + [True] * 2
    assert window.unwritten() == [(5, ids[4]), (6, ids[5])]
    window.limit_to(3)
    window.add(ids[0])
    assert len(window) == 3
