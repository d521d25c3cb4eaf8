"""Lives of one partition and its idempotent producers. `run_seed(seed)` raises AssertionError if state is lost or invented.

Goal: however a life ends, the next one's producer state is the fold of all appended batches that survived (including those that
retention or DeleteRecords has since removed), minus expired producers. The oracle keeps this history; which of the last batches
survived is read from the log.

Method: seeded lives with appends, retries, new and stale epochs, flushes, rolls, retention, DeleteRecords, checkpoints and long
idle times. Operations on derived files, checkpoints, names and data fail, or the disk is full, for all or part of a life, starts
included. A life ends by a clean stop, a kill at any file operation (of the start, too) or a power cut. Between lives, derived files
are lost, stale or from another history. After each start the whole state is compared, and every response with the oracle's.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from brokerd.datadir.checkpoint import read_checkpoint
from brokerd.errors import DataDirectoryError, Fate, StorageError, WireError
from brokerd.ids import ProducerIdAndEpoch
from brokerd.partition import flush_state
from brokerd.partition.derived_files import snapshot_path
from brokerd.partition.partition import FlushTask, Partition
from brokerd.record.header import BatchHeader
from brokerd.storage.names import LOG_SUFFIX, SNAPSHOT_SUFFIX, parse_offset_file
from tests.support.build import delete_records, first_log, open_log, open_manager, raw_batch, read_batches, run_flush
from tests.support.clock import ManualClock
from tests.support.files import Killed, MemoryFiles
from tests.support.log_manager import LogManager
from tests.support.producer_oracle import RING, Known, ProducerOracle

PRODUCERS = 4
# Operations that may fail, a word of the paths, and the probabilities.
_WRITES = ("create", "pwritev", "fdatasync", "rename")
_FAULTS: tuple[tuple[tuple[str, ...], str, tuple[float, ...]], ...] = (
    (_WRITES, ".snapshot", (0.2, 1.0, 1.0)),
    (_WRITES, "leader-epochs", (0.5, 1.0)),
    (_WRITES, "index", (0.3, 1.0)),
    (_WRITES, "checkpoint", (0.3, 1.0)),
    (("sync_dir",), "-0", (0.1, 0.3)),
    (("fdatasync",), ".log", (0.1,)),
    (("unlink",), "-0/", (0.2,)),
)


class Appended(NamedTuple):
    """A batch that was handed to the log. Unless `is_certain`, it may not be in the log."""

    offset: int
    producer: ProducerIdAndEpoch
    first: int
    record_count: int
    timestamp: int
    is_certain: bool

    def is_in(self, header: BatchHeader) -> bool:
        """True if this is the batch with that header."""
        return self == Appended(
            header.base_offset,
            ProducerIdAndEpoch(header.producer_id, header.producer_epoch),
            header.base_sequence,
            header.record_count,
            header.append_timestamp,
            self.is_certain,
        )


class Faults:
    """Hook of the file system: counts down to a kill, and makes operations fail."""

    def __init__(self, rng: random.Random, count: Callable[[str], None]) -> None:
        self._rng = rng
        self._count = count
        self.operations_left: int | None = None
        self.failing: list[tuple[tuple[str, ...], str, float]] = []

    def __call__(self, operation: str, path: str) -> None:
        """See MemoryFiles.hook."""
        if self.operations_left is not None:
            self.operations_left -= 1
            if self.operations_left <= 0:
                raise Killed
        for operations, word, likelihood in self.failing:
            if operation in operations and word in path and self._rng.random() < likelihood:
                self._count(f"{word} failed")
                raise OSError(errno.EIO, "Input/output error", path)


class Lives:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.files = MemoryFiles()
        self.clock = ManualClock()
        self.oracle = ProducerOracle()
        self.history: list[Appended | int] = []  # an int: producers whose last batch is older have expired
        self.flushed = 0
        self.epoch = 0  # of the last life
        self.facts: dict[str, int] = {}
        self.task: FlushTask | None = None
        self.old_snapshots: dict[str, bytes] = {}
        self.lies: set[bytes] = set()  # contents of files with a flipped bit or of another history
        self.expiration_ms = self.rng.choice((300_000, 100_000_000))
        self.settings: dict[str, Any] = {
            "log_segment_bytes": self.rng.choice((4_096, 4_096, 8_192)),
            "log_index_interval_bytes": 256,
            "log_checkpoint_interval_ms": 1_000,
            "log_retention_bytes": self.rng.choice((-1, 1_000, 12_000)),
            "log_retention_ms": self.rng.choice((-1, 60_000)),
            "producer_id_expiration_ms": self.expiration_ms,
        }
        # A small window moves recovery points, as 64 MiB do in an older log.
        flush_state.RECOVERY_WINDOW_BYTES = self.rng.choice((4_000, 20_000, 1 << 26, 1 << 26))

    def run(self) -> dict[str, int]:
        """Runs all lives; returns the counts of events."""
        lives = self.rng.randint(2, 6)
        for life in range(lives + 1):
            manager = self._start()
            log = first_log(manager)
            self._check(log)
            if life == lives:
                self._harmless(log)
            else:
                self._live_and_die(manager, log)
        return self.facts

    def count(self, fact: str) -> None:
        """Counts an event."""
        self.facts[fact] = self.facts.get(fact, 0) + 1

    # A start

    def _start(self) -> LogManager:
        """Opens the directory; sometimes it is killed on the way, or its disk fails or is full."""
        while self.files.paths():
            faults = self._new_faults()
            if self.rng.random() < 0.3:
                faults.operations_left = self.rng.randint(1, 60)
            if self.rng.random() < 0.1:
                self.files.space_left = self.rng.randint(0, 6_000)
            try:
                manager, report = open_manager(self.files, self.clock, **self.settings)
            except (Killed, DataDirectoryError) as error:
                self.count("killed in a start" if isinstance(error, Killed) else "a start was refused")
                self._crash()
                if self.rng.random() < 0.5:
                    break
                continue
            faults.operations_left = None
            assert not report.damaged, report.damaged
            if not report.read_only_reason and all((not log.core.is_stopped) for log in manager.partitions.of_clients()):
                return manager
            # The disk refused all writes. The log is served read-only, and the next start retries.
            self.count("a start was read-only")
            self._crash()
        self.files.hook, self.files.space_left = None, None
        manager, report = open_manager(self.files, self.clock, **self.settings)
        assert not report.damaged, report.damaged
        return manager

    def _new_faults(self) -> Faults:
        faults = Faults(self.rng, self.count)
        if self.rng.random() < 0.4:
            for operations, word, likelihoods in self.rng.sample(_FAULTS, self.rng.randint(1, 2)):
                faults.failing.append((operations, word, self.rng.choice(likelihoods)))
        if self.rng.random() < 0.25:
            faults.failing.append((_WRITES, ".snapshot", 1.0))
        self.files.hook = faults
        return faults

    def _check(self, log: Partition) -> None:
        """Compares the producer state with the fold of the surviving batches."""
        hook, self.files.hook = self.files.hook, None
        assert log.ends.log_end_offset >= self.flushed, "what was flushed is lost"
        assert log.leader_epoch > self.epoch, f"epoch {log.leader_epoch} comes after {self.epoch}"
        self.epoch = log.leader_epoch
        begin = max(self.flushed, log.ends.log_start_offset)
        found = {batch.header.base_offset: batch.header for batch in read_batches(log, begin)}
        self.files.hook = hook
        self.history = [event for event in self.history if isinstance(event, int) or self._survived(event, found)]
        assert not found, f"nobody appended what stands at {list(found)}"
        self.history.append(self.clock.wall_ms() - self.expiration_ms)
        self.flushed = log.ends.log_end_offset
        self.oracle = ProducerOracle()
        for event in self.history:
            if isinstance(event, int):
                self.oracle.expire(event)
            else:
                self.oracle.append(*event.producer, event.record_count, event.offset, event.timestamp)
        wanted = self.oracle.entries()
        where = f"of a log with {log.ends.log_start_offset} to {log.ends.log_end_offset}"
        for producer_id in sorted({*wanted, *log.core.producers.entries}):
            known, expected = log.core.producers.entries.get(producer_id), wanted.get(producer_id)
            assert known == expected, f"producer {producer_id} {where}: {known} is known, not {expected}"
        if log.ends.log_start_offset and self.oracle.state:
            oldest = min(known.batches[-1].offset for known in self.oracle.state.values())
            self.count("state outlived its records" if oldest < log.ends.log_start_offset else "records are there")

    def _survived(self, event: Appended, found: dict[int, BatchHeader]) -> bool:
        if event.offset < self.flushed:
            return event.is_certain
        header = found.get(event.offset)
        if header is None or not event.is_in(header):
            return False
        del found[event.offset]
        return True

    # A life

    def _live_and_die(self, manager: LogManager, log: Partition) -> None:
        faults = self.files.hook
        if not isinstance(faults, Faults):
            faults = self._new_faults()
        if self.rng.random() < 0.3:
            faults.operations_left = self.rng.randint(1, 150)
        if self.rng.random() < 0.7:
            self.files.space_left = None
        try:
            for _ in range(self.rng.randint(0, 25)):
                if self.rng.random() < 0.1:
                    faults.failing = []  # the disk works again
                    self.files.space_left = None
                self._act(manager, log)
            if self.rng.random() < 0.3:
                self._close(manager, log)
                return
        except Killed:
            self.flushed = max(self.flushed, log.ends.high_watermark)
            self.count("killed in a life")
        self._crash()

    def _act(self, manager: LogManager, log: Partition) -> None:
        action = self.rng.random()
        if action < 0.5:
            for _ in range(self.rng.choice((1, 2, 5))):
                self._send(log)
        elif action < 0.72:
            self._flush(log)
        elif action < 0.8:
            self.clock.advance(self.rng.choice((10, 1_000, 1_000, 30_000, 400_000)))
            _tried(lambda: manager.write_checkpoint_if_due(self.clock.monotonic_ms()))
        elif action < 0.92:
            self._delete(manager, log)
        elif action < 0.96:
            manager.expire_producers()
            before_ms = self.clock.wall_ms() - self.expiration_ms
            self.history.append(before_ms)
            known = len(self.oracle.state)
            self.oracle.expire(before_ms)
            if len(self.oracle.state) < known:
                self.count("expired")
        else:
            self.files.space_left = self.rng.randint(0, 6_000)

    def _candidate(self, producer_id: int) -> tuple[int, int, int]:
        """(epoch, first sequence, count) of a new batch, a retry, another epoch's or one after a gap."""
        epoch, next_number, batches = self.oracle.state.get(producer_id, Known(0, 0, ()))
        count = self.rng.choice((1, 1, 3, 40, RING // 5))
        kind = self.rng.random()
        if kind < 0.3 and batches:
            sent = self.rng.choice(batches)
            return epoch, sent.number % RING, sent.record_count
        if kind < 0.38:
            return epoch + 1, self.rng.choice((0, 0, 0, 1)), count
        if kind < 0.45:
            return max(epoch - 1, 0), self.rng.choice((0, next_number % RING)), count
        if kind < 0.5:
            return epoch, self.rng.choice((0, (next_number + 1) % RING)), count
        return epoch, next_number % RING, count

    def _send(self, log: Partition) -> None:
        """Sends one batch; the response must be the oracle's."""
        producer_id = self.rng.randrange(PRODUCERS)
        epoch, first, count = self._candidate(producer_id)
        producer = ProducerIdAndEpoch(producer_id, epoch)
        expected = self.oracle.answer(producer_id, epoch, first, count)
        event = Appended(log.ends.log_end_offset, producer, first, count, self.clock.wall_ms(), False)
        if expected is None:
            self.history.append(event)
        payload = self.rng.randbytes(self.rng.choice((8, 400, 1_200, 3_000)))
        try:
            info = log.append(raw_batch(payload, count=count, producer=producer, sequence=first), now_wall_ms=self.clock.wall_ms())
            found: int | type[WireError] = info.base_offset
        except StorageError as error:
            if expected is None and error.fate is Fate.NOT_APPENDED:
                self.history.pop()
            self.count("not written")
            return
        except WireError as error:
            found = type(error)
        if expected is None:
            self.history[-1] = event._replace(is_certain=True)
            self.oracle.append(producer_id, epoch, count, event.offset, event.timestamp)
            expected = event.offset
        assert found == expected, f"{producer} sends {count} records from {first} on: {self.oracle.state.get(producer_id)}"
        self.count(expected.__name__ if isinstance(expected, type) else "appended" if expected == event.offset else "repeated")

    def _flush(self, log: Partition) -> None:
        """Flushes; sometimes the log learns of it only after the next action."""
        if self.task is not None:
            self._complete(log, self.task)
            return
        task = log.prepare_flush()
        if task is None:
            return
        if not run_flush(log, task):
            self.count("sync failed")
            return
        self.task = task
        if self.rng.random() < 0.8:
            self._complete(log, task)

    def _complete(self, log: Partition, task: FlushTask) -> None:
        self.task = None
        log.complete_flush(task)
        self.flushed = max(self.flushed, log.ends.high_watermark)

    def _delete(self, manager: LogManager, log: Partition) -> None:
        if self.rng.random() < 0.7 and log.ends.high_watermark > log.ends.log_start_offset:
            until = self.rng.choice((log.ends.high_watermark, self.rng.randint(log.ends.log_start_offset, log.ends.high_watermark)))
            _tried(lambda: delete_records(manager, log, until))
        if self.rng.random() < 0.5:
            before = len(log.segments)
            _tried(lambda: manager.retention_pass())
            self.flushed = max(self.flushed, log.ends.high_watermark)  # retention flushes what it rolls
            if len(log.segments) < before:
                self.count("segments removed")

    # The end of a life

    def _close(self, manager: LogManager, log: Partition) -> None:
        if self.task is not None:
            self._complete(log, self.task)
        manager.close()
        self.flushed = max(self.flushed, log.ends.high_watermark)
        self.files.kill()
        self.count("closed")
        if self.rng.random() < 0.3:
            self._crash()
        else:
            self._between_lives()

    def _crash(self) -> None:
        self.task = None
        kind = self.rng.random()
        if kind < 0.4:
            self.files.kill()
            self.count("killed")
        else:
            self.files.power_cut(self.rng, any_subset=kind < 0.7)
            self.count("power cut")
        self._between_lives()

    def _between_lives(self) -> None:
        """Loses or harms derived files, but never the only copy of the state."""
        self.files.hook = None
        self.clock.advance(self.rng.choice((10, 5_000)))
        paths = self.files.paths()
        snapshots = [path for path in paths if path.endswith(SNAPSHOT_SUFFIX)]
        true = [path for path in snapshots if self.files.is_name_synced(path) and self.files.read_file(path) not in self.lies]
        if self.rng.random() < 0.2:
            # The state at an offset never changes, so an old snapshot remains true.
            self.old_snapshots.update((path, self.files.read_file(path)) for path in true)
            path, data = self.rng.choice([*self.old_snapshots.items(), ("", b"")])
            if path and path not in paths:
                self.files.write_file(path, data)
                self.count("an old snapshot is there again")
        if any(isinstance(event, Appended) for event in self.history) and self.rng.random() < 0.1:
            # A copy of the directory continued in another history: its snapshot must not be used for this log.
            future = self._snapshot_of_another_future()
            if future is not None:
                self.files.write_file(*future)
                self.lies.add(future[1])
                self.count("one of another future")
        # There may be holes in the segment of the log start and below, which a snapshot must bridge.
        found = read_checkpoint(self.files, 0)
        start = max((entry.log_start_offset for entry in found.values()), default=0) if found is not None else 0
        segments = [_offset(path) for path in paths if path.endswith(LOG_SUFFIX)]
        begins = max((base for base in segments if base <= start), default=0)
        spared = {path for path in true if begins and _offset(path) >= begins}
        for path in snapshots:
            if self.rng.random() < 0.1 and (spared - {path} or not begins):
                spared.discard(path)
                self._harm(path)
        for path in paths:
            if path.endswith(("leader-epochs", "index")) and self.rng.random() < 0.1:
                self._harm(path)

    def _snapshot_of_another_future(self) -> tuple[str, bytes] | None:
        """Path and content of a snapshot above every offset that this log has had."""
        copy = self.files.copy()
        manager, log = open_log(copy, self.clock, **self.settings)
        producer = ProducerIdAndEpoch(PRODUCERS + 1, 0)
        log.append(raw_batch(b"", count=RING - 1, producer=producer, sequence=0), now_wall_ms=self.clock.wall_ms())
        manager.close()
        end = max(event.offset + event.record_count for event in self.history if not isinstance(event, int))
        if log.ends.log_end_offset <= end:
            return None
        path = snapshot_path(log.tp.directory_name, log.ends.log_end_offset)
        return path, copy.read_file(path)

    def _harm(self, path: str) -> None:
        if self.rng.random() < 0.5:
            self.files.remove_file(path)
        else:
            self.files.flip_bit(path, self.rng.randrange(len(self.files.read_file(path)) * 8))
            self.lies.add(self.files.read_file(path))
        self.count("a derived file was harmed")

    def _harmless(self, log: Partition) -> None:
        """The last life: retries of every batch that producer state remembers."""
        self.files.hook, self.files.space_left = None, None
        for producer_id, known in self.oracle.state.items():
            for sent in known.batches[-5:]:
                batch = raw_batch(
                    b"", count=sent.record_count, producer=ProducerIdAndEpoch(producer_id, known.epoch), sequence=sent.number % RING
                )
                assert log.append(batch, now_wall_ms=self.clock.wall_ms()).base_offset == sent.offset


def _tried(work: Callable[[], object]) -> None:
    try:
        work()
    except (OSError, StorageError):
        return  # an injected failure


def _offset(path: str) -> int:
    parsed = parse_offset_file(path.rpartition("/")[2])
    assert parsed is not None
    return parsed[0]


def run_seed(seed: int) -> dict[str, int]:
    """Runs one seed; returns the counts of events."""
    return Lives(seed).run()
