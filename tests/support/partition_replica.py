"""One replica of a simulated partition: its log on files in memory, its checkpoint, and the content it must have.

The checkpoint is a value that survives a crash as last written. The disk (tests/support/files.py) loses what was not synced.
`history` is the oracle: every batch of this log in order, including those that retention removed."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from brokerd.config.topic import TopicConfig
from brokerd.datadir.partition_table import PartitionTable
from brokerd.datadir.topic_store import TopicStore
from brokerd.errors import Fate, LogDamagedError, StorageError
from brokerd.ids import TopicIdPartition
from brokerd.partition.derived_files import remove_snapshot
from brokerd.partition.leader_epochs import EpochEntry
from brokerd.partition.log_ends import NOTHING_MOVED, LogEnd, Moved
from brokerd.partition.log_state import NEW_PARTITION
from brokerd.partition.log_walk import RecoveryInput
from brokerd.partition.partition import FlushTask, LogResources, Partition
from brokerd.partition.producer_state import AbortedTransaction, ProducerStateEntry
from brokerd.partition.recovery import PartitionRecovery
from brokerd.record.batch import RecordBatch, walk_batches
from brokerd.record.header import BatchHeader, crc_seed
from brokerd.storage.damage import first_that_stops
from brokerd.storage.files import Files
from brokerd.storage.open_files import OpenFiles, PatientFiles
from brokerd.storage.spare_files import SpareFiles
from tests.support.files import MemoryFiles
from tests.support.producer_oracle import ProducerOracle

TP = TopicIdPartition(b"partition-core!!", 0)
SEED = crc_seed(TP)
_MAX_PRODUCER_IDS = 1_000
_FREE_PRODUCER_NUMBER = 1 << 30


class Stored(NamedTuple):
    """A batch of a log: its header with a zero CRC, the transaction members that it ends, and those of them that it aborts."""

    header: BatchHeader
    ended: tuple[int, ...] = ()
    aborted: tuple[int, ...] = ()


class Replica:
    """See the module."""

    def __init__(self, number: int, config: TopicConfig) -> None:
        self.number = number
        self.config = config
        self.files = MemoryFiles()
        self.checkpoint = NEW_PARTITION._replace(leader_epoch=0)
        self.history: list[Stored] = []
        self.written: dict[BatchHeader, Stored] = {}  # all batches that may be in the files after a crash
        self.oracle = ProducerOracle()
        self.open: dict[int, int] = {}  # first offset of each transaction without a marker, by producer id
        self.held: dict[str, int] = {}  # first offsets held back by commits
        self.task: FlushTask | None = None
        self.found_end = 0  # log end found at the start; while down, the durable end of before
        self.high_watermark = 0  # last checked in this run
        self.agreed_epoch = 0  # epoch in which it last truncated records that its leader lacks
        self.table = PartitionTable(TopicStore(self.files))
        self._log: Partition | None = None

    @property
    def log(self) -> Partition:
        """The running log. The replica must be up."""
        assert self._log is not None
        return self._log

    @property
    def is_up(self) -> bool:
        """True between a start and a crash."""
        return self._log is not None

    @property
    def is_stopped(self) -> bool:
        """True if only a restart helps."""
        return self.log.is_stopped and not self.is_being_cut

    @property
    def is_being_cut(self) -> bool:
        """True while a truncation waits for the disk."""
        return self.log.health.is_being_cut

    def runs(self, log: Partition) -> bool:
        """True if this log is still the running one."""
        return self._log is log

    # Start and crash

    def start(self, *, is_alone: bool) -> None:
        """Recovers the log from disk. `is_alone`: there is no other replica."""
        open_files = OpenFiles(self.files, limit=4)
        files = PatientFiles(self.files, open_files)
        given = RecoveryInput(
            tp=TP,
            name="t-0",
            index_interval_bytes=self.config.index_interval_bytes,
            max_producer_ids=_MAX_PRODUCER_IDS,
            free_producer_number=_FREE_PRODUCER_NUMBER,
            checkpoint=self.checkpoint,
            clean=None,
            read_only_reason="",
            may_be_cut=not is_alone,
        )
        state = PartitionRecovery(files, open_files, given).run()
        assert first_that_stops(state.damaged, state.log_start_offset) is None, state.damaged
        resources = LogResources(files, SpareFiles(files), open_files, _MAX_PRODUCER_IDS)
        self._log = Partition(TP, "t", self.config, resources, state)
        self.table = PartitionTable(TopicStore(self.files))
        self.table.add(self._log)
        self.found_end = state.log_end_offset
        ends, known = self._log.ends, self.checkpoint
        assert is_alone or ends.high_watermark >= known.high_watermark, f"the high watermark was {known.high_watermark}"
        assert ends.announced_stable_offset >= known.announced_stable_offset, "what a leader announced is forgotten"
        self.write_checkpoint()

    def crash(self, rng: random.Random, *, is_power_cut: bool) -> int:
        """Crashes; returns the log's durable end."""
        durable_end = self.log.core.ends.durable_end
        self._log = self.task = None
        self.held.clear()
        self.agreed_epoch = 0
        self.high_watermark = 0
        if is_power_cut:
            self.files.power_cut(rng, any_subset=rng.random() < 0.5)
        else:
            self.files.kill()
        return durable_end

    def raise_epoch(self, epoch: int) -> None:
        """Makes an epoch durable, which must precede a role in it."""
        self.checkpoint = self.checkpoint._replace(leader_epoch=epoch)

    def write_checkpoint(self) -> None:
        """Checkpoints as the data directory does."""
        self.checkpoint = self.log.checkpoint_entry()

    def fail(self, operation: str) -> None:
        """The next such operation on a segment fails."""

        def hook(found: str, path: str) -> None:
            if found == operation and path.endswith(".log"):
                self.files.hook = None
                raise OSError(errno.EIO, "Input/output error", path)

        self.files.hook = hook

    def hold_back(self, members: Sequence[int]) -> Moved:
        """A commit of these members holds the last stable offset back until its release, if they have records here."""
        first_offset = self.log.producers.first_open_offset(members)
        assert first_offset == min([self.open[member] for member in members if member in self.open], default=None)
        if first_offset is None:
            return NOTHING_MOVED
        commit = f"commit of {members}"
        self.held[commit] = first_offset
        return self.log.core.ends.hold_back(commit, first_offset)

    def release(self, commit: str) -> Moved:
        """Releases the records that the commit holds back."""
        del self.held[commit]
        return self.woken(self.log.release(commit))

    def woken(self, moved: Moved) -> Moved:
        """Wakes the requests that wait for these moved ends."""
        self.log.wake(moved)
        return moved

    def remove_retired(self) -> int:
        """Removes segments and snapshots below the log start, as the data directory does; returns the number of segments."""
        segments, snapshot_offsets = self.log.take_removable(self.checkpoint.log_start_offset)
        files: Files = self.files
        for segment in segments:
            segment.remove()
        for offset in snapshot_offsets:
            remove_snapshot(files, TP.directory_name, offset)
        return len(segments)

    # Expected content

    def note(self, stored: Stored) -> None:
        """Records a written batch."""
        header = stored.header
        self.written[header] = stored
        self.history.append(stored)
        if header.producer_id >= 0:
            producer = (header.producer_id, header.producer_epoch)
            self.oracle.append(*producer, header.record_count, header.base_offset, header.append_timestamp)
            if header.is_transactional:
                self.open.setdefault(header.producer_id, header.base_offset)
        for producer_id in stored.ended:
            self.oracle.state.pop(producer_id, None)
            self.open.pop(producer_id, None)

    def stamped(self, header: BatchHeader, now_ms: int, ended: tuple[int, ...] = (), *, aborted: tuple[int, ...] = ()) -> Stored:
        """The batch as this replica must write it as leader."""
        epoch = self.log.core.leader_epoch
        return Stored(
            header._replace(base_offset=self.end, append_timestamp=now_ms, leader_epoch=epoch, stamp_flags=0, header_crc=0),
            ended,
            aborted,
        )

    def note_failed(self, stored: Stored, error: StorageError) -> None:
        """Records a failed write whose fate is unknown."""
        if error.fate is Fate.UNKNOWN:
            self.written[stored.header] = stored

    def cut_history(self, end: int) -> None:
        """The log was truncated at `end`."""
        history = [stored for stored in self.history if stored.header.base_offset < end]
        assert not history or history[-1].header.next_offset == end, f"the log ends at {end}, where no batch does"
        self._begin_again(history)

    def forget_cut(self) -> None:
        """The truncation is durable: the removed batches can never reappear."""
        self.written = {stored.header: stored for stored in self.history}

    def take_recovered(self, durable_end: int) -> None:
        """Makes the batches in the files the history: all durable ones, then some that were once written. A batch that recovery cut
        off may reappear in a later start if nothing was synced in its place."""
        begin = self.log.ends.log_start_offset
        try:
            headers = [batch.header._replace(header_crc=0) for batch in self.read_all(begin)]
        except LogDamagedError as error:
            raise AssertionError(f"damage: {error}") from error
        unknown = [header for header in headers if header not in self.written]
        assert not unknown, f"nobody wrote {unknown}"
        durable = [stored for stored in self.history if stored.header.next_offset <= durable_end]
        below = [stored for stored in self.history if stored.header.next_offset <= begin]
        self._begin_again([*below, *(self.written[header] for header in headers)])
        assert self.history[: len(durable)] == durable, f"what was durable up to {durable_end} is lost"

    def _begin_again(self, history: Sequence[Stored]) -> None:
        self.history, self.oracle, self.open = [], ProducerOracle(), {}
        for stored in history:
            self.note(stored)

    @property
    def end(self) -> int:
        """The expected log end."""
        return self.history[-1].header.next_offset if self.history else 0

    def first_undecided(self, high_watermark: int) -> int | None:
        """The first record of a transaction without a marker below the high watermark, or held back; None if there is none."""
        first: dict[int, int] = {}
        undecided: list[int] = []
        for header, ended, _ in self.history:
            if header.is_control:
                is_decided = header.base_offset < high_watermark
                undecided += [] if is_decided else [first[pid] for pid in ended if pid in first]
                for pid in ended:
                    first.pop(pid, None)
            elif header.is_transactional:
                first.setdefault(header.producer_id, header.base_offset)
        return min([*undecided, *first.values(), *self.held.values()], default=None)

    def epochs(self) -> list[EpochEntry]:
        """The leader epochs, derived from all batches."""
        entries: list[EpochEntry] = []
        for header, *_ in self.history:
            if not entries or header.leader_epoch > entries[-1].epoch:
                entries.append(EpochEntry(header.leader_epoch, header.base_offset))
        return entries

    def aborted(self) -> list[AbortedTransaction]:
        """The aborted transactions, derived from all batches."""
        first: dict[int, int] = {}
        found: list[AbortedTransaction] = []
        for header, ended, aborted in self.history:
            if header.is_transactional and not header.is_control:
                first.setdefault(header.producer_id, header.base_offset)
            begun = {pid: first.pop(pid) for pid in ended if pid in first}
            stable = min(first.values(), default=header.next_offset)
            void = sorted((begun[pid], pid) for pid in aborted if pid in begun)
            found += [AbortedTransaction(pid, begin, header.base_offset, stable) for begin, pid in void]
        return found

    def producers(self) -> dict[int, ProducerStateEntry]:
        """The producer state, derived from all batches."""
        return {pid: entry._replace(txn_first_offset=self.open.get(pid, -1)) for pid, entry in self.oracle.entries().items()}

    def read_all(self, offset: int) -> Iterator[RecordBatch]:
        """All batches of the log from `offset`."""
        log = self.log
        while offset < log.ends.log_end_offset:
            found = log.read(offset, below=LogEnd.LOG_END, max_bytes=1 << 20, cached_only=False)
            assert found.chunks, f"nothing to read at {offset} below {log.ends.log_end_offset}"
            for chunk in found.chunks:
                yield from walk_batches(pa.py_buffer(chunk), SEED)
            offset = found.next_offset

    def ends(self) -> dict[LogEnd, int]:
        """The current log ends."""
        core = self.log.core
        return {
            LogEnd.LOG_START: core.ends.log_start_offset,
            LogEnd.LAST_STABLE_OFFSET: core.ends.last_stable_offset,
            LogEnd.HIGH_WATERMARK: core.ends.high_watermark,
            LogEnd.LOG_END: core.ends.log_end_offset,
        }
