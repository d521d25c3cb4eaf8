"""Goal: `process` passes a message to the handler once, by the id in its header; with a file, also across crashes. A message that
failed, or whose id is no longer known, is handled again. Method: a broker in memory, handlers that wait for one another.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from brokerd import Consumer, ConsumerRecord
from brokerd.consumer.processing.dedup import MessageId
from brokerd.consumer.processing.id_file import IdFile
from brokerd.consumer.processing.work import Work
from brokerd.errors import DedupFileError, HandlerTimeoutError, WakeupError
from tests.support.clock import ManualClock
from tests.support.consumers import LONG_MS, T0, T1, committed, settings
from tests.support.fake_broker import FakeBroker, Partition
from tests.support.records import key_values, new_batch
from tests.support.wait import DEADLINE_S, wait_until
from tests.unit.consumer.test_process import Gate, Processing


def put(partition: Partition, ids: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> None:
    """Appends a batch of records with these ids."""
    values = [b"%d" % (partition.end_offset + number) for number in range(len(ids))]
    headers = [[("trace", b"x")] if one is None else [("message-id", one), ("trace", b"x")] for one in ids]
    partition.put(new_batch(key_values(values, keys=keys or [b"key"] * len(ids), headers=headers), tp=partition.tp))


def is_all_finished(consumer: Consumer, broker: FakeBroker) -> bool:
    """True once `process` has nothing left but to write ids and to commit."""
    first_unfinished: Any = consumer._assignment.first_unfinished
    ends = {tp: broker.topics[tp.topic][tp.partition].end_offset for tp in consumer._assignment.partitions}
    is_here = all(one.position == ends[tp] for tp, one in consumer._assignment.partitions.items())
    return first_unfinished is not None and is_here and first_unfinished.__self__.record_count == 0


def process_all(consumer: Consumer, broker: FakeBroker, handler: Callable[[ConsumerRecord], object], **options: Any) -> object:
    """Processes all records in the topics; returns the outcome, None if nothing failed."""
    processing = Processing(consumer, handler, dedup_header="message-id", **options)
    wait_until(lambda: processing.is_over or is_all_finished(consumer, broker))
    if not processing.is_over:
        consumer.wakeup()
    outcome = processing.outcome()
    return None if isinstance(outcome, WakeupError) else outcome


def handle_all(consumer: Consumer, broker: FakeBroker, **options: Any) -> list[int]:
    """Processes all records in the topics; returns the offsets that reached the handler."""
    handled: list[int] = []
    assert process_all(consumer, broker, lambda record: handled.append(record.offset), **options) is None
    return handled


@pytest.fixture
def consumer(broker: FakeBroker) -> Iterator[Consumer]:
    broker.create("t", 2)
    with Consumer(settings(broker, group_id="g", auto_commit_interval_ms=0)) as consumer:
        consumer.assign([T0])
        yield consumer


def test_a_message_that_was_handled_is_passed_over_and_its_record_finished(
    consumer: Consumer, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    put(broker.topics["t"][0], [b"1", b"2", b"1", None, None, b"2", b"3"])
    with caplog.at_level(logging.INFO, "brokerd"):
        assert handle_all(consumer, broker) == [0, 1, 3, 4, 6]
    assert committed(broker) == 7
    assert "skipped 2 records of messages that were handled before" in caplog.messages
    put(broker.topics["t"][0], [b"3", b"4"])
    assert handle_all(consumer, broker) == [8], "the consumer still knows"


def test_a_repeated_message_waits_for_the_first_and_is_passed_over(consumer: Consumer, broker: FakeBroker) -> None:
    put(broker.topics["t"][0], [b"1", b"1", b"1", b"2"], [b"a", b"b", b"c", b"b"])
    gate = Gate(lambda record: record.key)
    processing = Processing(consumer, gate, workers=8, dedup_header="message-id")
    gate.await_running(0)
    wait_until(lambda: consumer._assignment.partitions[T0].position == 4)
    gate.let(0)
    gate.await_running(3)
    gate.let(3)
    wait_until(lambda: committed(broker) == 4)
    consumer.close()
    assert processing.outcome() == 2


def test_a_message_that_failed_comes_again(consumer: Consumer, broker: FakeBroker) -> None:
    put(broker.topics["t"][0], [b"1", b"1", b"1"], [b"a", b"b", b"c"])
    begun: list[int] = []

    def fail_first(record: ConsumerRecord) -> None:
        begun.append(record.offset)
        if len(begun) == 1:
            raise LookupError("no such customer")

    assert process_all(consumer, broker, fail_first, on_error="skip") is None
    assert begun == [0, 1]
    consumer.seek(T0, 0)
    consumer._dedup = None  # as after a call with another header
    begun.clear()
    assert isinstance(process_all(consumer, broker, fail_first), LookupError)
    assert process_all(consumer, broker, fail_first) is None
    assert begun == [0, 0]


def test_the_window_is_bounded_and_of_all_partitions_of_a_topic(consumer: Consumer, broker: FakeBroker) -> None:
    put(broker.topics["t"][0], [b"1", b"2", b"3", b"2", b"1", b"3"])
    assert handle_all(consumer, broker, dedup_window=2) == [0, 1, 2, 4], "the first was not known any more, the last still is"
    put(broker.topics["t"][1], [b"1", b"4"])
    (other,) = broker.create("u")
    put(other, [b"1"])
    consumer.assign([T1, ("u", 0)])
    assert sorted(handle_all(consumer, broker, dedup_window=2)) == [0, 1], "1 of topic t is known"


# --- ids in a file


def rows(path: Path) -> list[tuple[int, str, bytes]]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return list(database.execute("SELECT number, topic, id FROM handled ORDER BY number"))


def test_a_file_knows_what_was_handled_before(broker: FakeBroker, tmp_path: Path) -> None:
    (partition,) = broker.create("t")
    put(partition, [b"1", b"2", None])
    path = tmp_path / "ids"
    for more, handled in (([], [0, 1, 2]), ([b"3", b"2"], [2, 3]), ([b"1", b"4", b"3"], [2, 6])):
        put(partition, more) if more else None
        with Consumer(settings(broker)) as consumer:  # without a group: from the beginning
            consumer.assign([T0])
            assert handle_all(consumer, broker, dedup_path=path) == handled
    assert rows(path) == [(number, "t", b"%d" % number) for number in (1, 2, 3, 4)]


def test_ids_are_written_before_the_offsets_beyond_them_are_committed(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checked by the broker at each commit."""
    broker.create("t")
    ids: list[bytes | None] = [b"%d" % number for number in range(300)]
    put(broker.topics["t"][0], ids, [b"%d" % (number % 7) for number in range(300)])
    written: set[bytes] = set()
    write = IdFile.write

    def note(file: IdFile, numbered: Any, limit: int) -> None:
        write(file, numbered, limit)
        written.update(one.value for _, one in numbered)

    monkeypatch.setattr(IdFile, "write", note)
    wrong: list[int] = []
    commit = broker._CommitGroupOffsets

    def look(request: Any) -> Any:
        wrong.extend(number for number in range(request.offsets[0].offset) if b"%d" % number not in written)
        return commit(request)

    def await_commit(record: ConsumerRecord) -> None:
        if record.offset in (100, 200):
            wait_until(lambda: committed(broker) == record.offset)

    monkeypatch.setattr(broker, "_CommitGroupOffsets", look)
    with Consumer(settings(broker, group_id="g", auto_commit_interval_ms=0, max_poll_records=10)) as consumer:
        consumer.assign([T0])
        assert process_all(consumer, broker, await_commit, dedup_path=tmp_path / "ids", workers=8) is None
    assert len(broker.commits) > 2
    assert not wrong
    assert committed(broker) == 300


class Disk:
    """The disk of the id file: writes fail once `is_full`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self.error: BaseException = sqlite3.OperationalError("database or disk is full")
        self._write = IdFile.write
        disk = self
        monkeypatch.setattr(IdFile, "write", lambda file, numbered, limit: disk.write(file, numbered, limit))

    def write(self, file: IdFile, numbered: Any, limit: int) -> None:
        """Replaces IdFile.write."""
        if self.is_full and numbered:
            with file._explained():
                raise self.error
        self._write(file, numbered, limit)


@pytest.mark.parametrize("interval_ms", [0, 5_000])
@pytest.mark.parametrize("written", [0, 2])
@pytest.mark.parametrize("kind", [DedupFileError, KeyboardInterrupt])
def test_if_ids_cannot_be_written_nothing_beyond_is_committed_or_passed_over(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval_ms: int, written: int, kind: Any
) -> None:
    broker.create("t")
    disk = Disk(monkeypatch)
    if kind is KeyboardInterrupt:
        disk.error = KeyboardInterrupt()
    with Consumer(settings(broker, group_id="g", auto_commit_interval_ms=interval_ms)) as consumer:
        consumer.assign([T0])
        if written:
            put(broker.topics["t"][0], [b"1", b"2"])
            assert handle_all(consumer, broker, dedup_path=tmp_path / "ids") == [0, 1]
        disk.is_full = True
        put(broker.topics["t"][0], [b"3", b"4"])
        assert isinstance(process_all(consumer, broker, lambda _: None, dedup_path=tmp_path / "ids"), kind)
        assert consumer.position(T0) == written
    assert committed(broker) in ((None, 0) if written == 0 else (written,)), "by close neither"
    disk.is_full = False
    with Consumer(settings(broker, group_id="g")) as consumer:
        consumer.assign([T0])
        assert handle_all(consumer, broker, dedup_path=tmp_path / "ids") == [written, written + 1]


def test_a_file_that_is_full_at_the_end_is_an_error_of_a_consumer_that_is_closed_too(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create("t")
    put(broker.topics["t"][0], [b"1"])
    Disk(monkeypatch).is_full = True
    with Consumer(settings(broker, group_id="g", auto_commit_interval_ms=LONG_MS)) as consumer:
        consumer.assign([T0])
        with pytest.raises(DedupFileError):
            consumer.process(lambda _: consumer.close(), dedup_header="message-id", dedup_path=tmp_path / "ids")
    assert committed(broker) in (None, 0)


def test_an_interrupt_as_a_transaction_begins_leaves_none_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(IdFile(str(tmp_path / "ids"), "g")) as file:
        database = file._database

        class Interrupting:
            """The database, with an interrupt right after the first statement."""

            def execute(self, *statement: Any) -> Any:
                database.execute(*statement)
                monkeypatch.undo()
                raise KeyboardInterrupt

            @property
            def in_transaction(self) -> bool:
                return database.in_transaction

        monkeypatch.setattr(file, "_database", Interrupting())
        with pytest.raises(KeyboardInterrupt):
            file.write([(1, MessageId("t", b"1"))], 10)
        file.write([(1, MessageId("t", b"1"))], 10)
    assert rows(tmp_path / "ids") == [(1, "t", b"1")]


def test_an_interrupt_before_ids_are_written_holds_back_offsets_that_are_committed_later(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`close` commits by itself, and must leave out the offsets of unwritten ids."""
    broker.create("t")
    put(broker.topics["t"][0], [b"1", b"2", b"3"])
    stop = Work.end

    def strike(work: Work, workers: int) -> None:
        stop(work, workers)
        raise KeyboardInterrupt

    monkeypatch.setattr(Work, "end", strike)
    path = tmp_path / "ids"
    with Consumer(settings(broker, group_id="g", auto_commit_interval_ms=LONG_MS)) as consumer:
        consumer.assign([T0])
        assert isinstance(process_all(consumer, broker, lambda _: None, dedup_path=path), KeyboardInterrupt)
    assert (rows(path), committed(broker)) in (([], None), ([], 0))


def test_the_error_of_a_file_that_cannot_be_written_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    disk.is_full = True
    with contextlib.closing(IdFile(str(tmp_path / "ids"), "g")) as file:
        with pytest.raises(DedupFileError, match="disk is full: check the disk's free space"):
            file.write([(1, MessageId("t", b"1"))], 1)
        disk.is_full = False
        file.write([(1, MessageId("t", b"1"))], 1)


@pytest.mark.parametrize("suffix", ["", "-wal"])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_file_that_was_removed_while_open_ends_process_before_anything_beyond_it_is_committed(
    broker: FakeBroker, tmp_path: Path, suffix: str, is_replaced: bool
) -> None:
    """A message whose id is missing in the file that the next process opens would be handled again."""
    broker.create("t")
    put(broker.topics["t"][0], [b"%d" % number for number in range(20)])
    path = tmp_path / "ids"
    file = Path(f"{path}{suffix}")

    def handler(record: ConsumerRecord) -> None:
        if record.offset == 10:
            content = file.read_bytes()
            file.unlink()
            if is_replaced:
                file.write_bytes(content)

    with Consumer(settings(broker, group_id="g", auto_commit_interval_ms=1_000_000)) as consumer:
        consumer.assign([T0])
        outcome = process_all(consumer, broker, handler, dedup_path=path)
    assert isinstance(outcome, DedupFileError)
    assert "was removed or replaced while it was open: restore it" in str(outcome)
    assert not committed(broker)


def test_a_file_that_was_removed_is_missed_though_there_is_nothing_to_write(tmp_path: Path) -> None:
    with contextlib.closing(IdFile(str(tmp_path / "ids"), "g")) as file:
        file.write([], 1)
        (tmp_path / "ids").unlink()
        with pytest.raises(DedupFileError, match="was removed or replaced"):
            file.write([], 1)


def test_a_file_behind_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "here").symlink_to(tmp_path / "there" / "ids")
    with contextlib.closing(IdFile(str(tmp_path / "here"), "g")) as file:
        file.write([(1, MessageId("t", b"1"))], 1)
        file.write([(2, MessageId("t", b"2"))], 1)


def test_a_handler_that_hung_and_returns_later_changes_nothing(broker: FakeBroker) -> None:
    clock = ManualClock()
    broker.create("t")
    put(broker.topics["t"][0], [b"1"])
    gate = Gate(lambda record: record.key)
    with Consumer(settings(broker), clock=clock) as consumer:
        consumer.assign([T0])
        processing = Processing(consumer, gate, workers=2, dedup_header="message-id")
        gate.await_running(0)
        clock.advance(300_000)
        assert isinstance(processing.outcome(), HandlerTimeoutError)
        gate.let(0)
        gate.await_running()
        processing = Processing(consumer, gate, workers=2, dedup_header="message-id")
        wait_until(lambda: gate.ended == [0, 0])
        consumer.close()
        assert processing.outcome() == 1


def test_without_a_group_ids_are_written_at_the_interval_too(broker: FakeBroker, tmp_path: Path) -> None:
    broker.create("t")
    put(broker.topics["t"][0], [b"message 1 of two", b"message 2 of two"], [b"a", b"b"])
    gate = Gate(lambda record: record.key)
    with Consumer(settings(broker, auto_commit_interval_ms=0)) as consumer:
        consumer.assign([T0])
        processing = Processing(consumer, gate, workers=2, dedup_header="message-id", dedup_path=tmp_path / "ids")
        gate.let(0)
        gate.await_running(1)
        wait_until(lambda: b"message 1 of" in (tmp_path / "ids-wal").read_bytes())
        assert not processing.is_over
        gate.let(1)
        consumer.close()
        processing.outcome()
    assert [one for _, _, one in rows(tmp_path / "ids")] == [b"message 1 of two", b"message 2 of two"]


def test_a_file_is_bounded_and_written_again_without_harm(tmp_path: Path) -> None:
    ids = [(number, MessageId("t", b"%d" % number)) for number in range(1, 11)]
    with contextlib.closing(IdFile(str(tmp_path / "ids"), "g")) as file:
        file.write(ids[:4], 3)
        file.write(ids[2:6], 3)
        file.write([], 3)
        assert file.load(100) == ids[3:6]
        assert file.load(2) == ids[4:6]
        file.write(ids[6:], 3)
    assert [number for number, _, _ in rows(tmp_path / "ids")] == [8, 9, 10]


def test_a_file_is_one_reader_s(tmp_path: Path) -> None:
    path = str(tmp_path / "ids")
    with contextlib.closing(IdFile(path, "g")):
        failures: list[str] = []

        def open_it_too() -> None:
            try:
                IdFile(path, "g")
            except DedupFileError as error:
                failures.append(str(error))

        other = threading.Thread(target=open_it_too)
        other.start()
        other.join(DEADLINE_S)
        assert failures == [
            f"dedup_path '{path}': another process, or another consumer of this one, has it open: give each a file of its own"
        ]
    with pytest.raises(DedupFileError, match=r"what group\.id 'g' has handled, this consumer's is 'h': give a path of its own"):
        IdFile(path, "h")
    IdFile(path, "g").close()


def test_a_file_that_another_process_recovers_after_a_death_is_busy(tmp_path: Path) -> None:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY_RECOVERY
    file = IdFile(str(tmp_path / "ids"), "g")
    with (
        contextlib.closing(file),
        pytest.raises(DedupFileError, match="another process, or another consumer of this one, has it open"),
        file._explained(),
    ):
        raise error


def _other_program(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE bookmarks (url TEXT)")


def _later_format(path: Path) -> None:
    IdFile(str(path), "g").close()
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 2")


def _damage(path: Path) -> None:
    with contextlib.closing(IdFile(str(path), "g")) as file:
        file.write([(number, MessageId("t", b"x" * 60)) for number in range(1, 500)], 1_000)
    data = bytearray(path.read_bytes())
    data[4096 * 4 : 4096 * 5] = b"\xff" * 4096
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda path: path.mkdir(), "unable to open database file: check the disk"),
        (lambda path: path.write_bytes(b"ids\n" * 1_000), "file is not a database"),
        (_other_program, "it is another program's file: give a path of its own"),
        (_later_format, "its format is 2, and this version reads 1: use the version that wrote it"),
        (_damage, "it is damaged: .*: delete it"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_and_left_as_it_is(tmp_path: Path, make: Any, match: str) -> None:
    path = tmp_path / "ids"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(DedupFileError, match=match):
        IdFile(str(path), "g")
    assert (path.read_bytes() if path.is_file() else None) == before


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dedup_path": "ids"}, "dedup_path needs dedup_header"),
        ({"dedup_header": ""}, "dedup_header must have 1 to 1000 characters"),
        ({"dedup_header": b"id"}, "dedup_header must be the name of a header"),
        ({"dedup_header": "id", "dedup_window": 0}, "dedup_window must be a whole number between 1 and 10000000"),
        ({"dedup_header": "id", "dedup_path": b"ids"}, "dedup_path must be a path of text"),
        ({"dedup_header": "id", "dedup_path": 5}, "PathLike"),
    ],
)
def test_arguments_are_checked(consumer: Consumer, options: dict[str, Any], match: str) -> None:
    with pytest.raises((TypeError, ValueError), match=match):
        consumer.process(print, **options)
