"""One partition as a pure machine: events in, decisions out. No file, no clock, no lock, no logging.

    log_start_offset <= last_stable_offset <= high_watermark <= durable_end <= log_end_offset

Decisions change nothing: `append_as_leader`, `append_as_follower`, `append_marker`, `truncate_to`; only `begin_flush` notes that
a flush is under way. Events report what has been done, and return which ends have moved: `written`, `rolled`, `flushed`,
`flush_failed`, `retired`, `truncated`, ... A write that failed is not reported at all. retention_rules.py decides what retention
may remove; partition_log.py is the shell that carries decisions out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from brokerd.config.topic import TopicConfig
from brokerd.errors import (
    CorruptMessageError,
    Fate,
    FencedLeaderEpochError,
    InvalidTxnStateError,
    LogTruncationError,
    NotLeaderError,
    OffsetOutOfRangeError,
)
from brokerd.ids import LogPosition, is_member_producer_id
from brokerd.partition.aborted_transactions import AbortedTransaction
from brokerd.partition.entries import CheckpointEntry
from brokerd.partition.flush_state import FlushOutcome, FlushPlan, FlushState
from brokerd.partition.kept_snapshots import KeptSnapshots
from brokerd.partition.leader_epochs import UNKNOWN_OFFSET, EpochEntry
from brokerd.partition.log_ends import LOG_END_MOVED, NOTHING_MOVED, LogEnds, Moved
from brokerd.partition.log_health import LogHealth
from brokerd.partition.log_state import LogState
from brokerd.partition.markers import Marker
from brokerd.partition.open_data import OpenData
from brokerd.partition.open_transactions import OpenTransactions
from brokerd.partition.producer_state import BatchMetadata, ProducerStateEntry, ProducerStates
from brokerd.partition.snapshots import Snapshot, snapshot_of
from brokerd.partition.timestamps import check_timestamps
from brokerd.record.header import BatchHeader, add_sequence
from brokerd.storage.damage import DamagedRange, damage_at
from brokerd.storage.segment import batch_timestamp
from brokerd.storage.segment_bounds import SegmentBounds


class Append(NamedTuple):
    """The decision to write a batch at the log end, after a roll if `must_roll`. Report it with `written` once that is done."""

    base_offset: int
    next_offset: int
    size_bytes: int
    append_timestamp: int
    log_time: int
    max_timestamp: int  # of its records, as readers see them
    leader_epoch: int
    leader_epoch_id: int
    must_roll: bool
    producer_id: int
    producer: ProducerStateEntry | None  # its state with this batch
    marker: Marker | None = None


class Truncation(NamedTuple):
    """The decision to cut the log at `offset`, or where the batch begins that holds it. Report it with `truncated` once
    it is done.
    """

    offset: int
    kept: int  # number of segments that stay, the last of them cut
    snapshot_offsets: Sequence[int]  # of the snapshots to remove, before the segments
    restore_from: int  # offset of the snapshot to restore producers from; batches from there on are replayed. -1: replay all


class PartitionCore:
    """The state of one partition, and all decisions about it."""

    def __init__(
        self, name: str, seed: int, config: TopicConfig, state: LogState, *, leader_epoch: int, leader_epoch_id: int = 0
    ) -> None:
        self.name = name
        self.config = config
        self.leader_epoch = leader_epoch  # stamped on batches that are appended now
        self.leader_epoch_id = leader_epoch_id
        self.is_leader = True
        self.health = LogHealth(name, state.damaged, state.read_only_reason)
        self.producers = state.producers
        self.epochs = state.epochs
        self.segments: tuple[SegmentBounds, ...] = tuple(state.segments)  # oldest first; the last one is appended to
        self.log_end_offset = state.log_end_offset
        self.snapshots = KeptSnapshots(state.snapshot_offsets, state.unwritten_snapshot)
        self.flushes = FlushState(state.log_end_offset, state.recovery_point, self.snapshots)
        self._seed = seed
        self._transactions = OpenTransactions(self.producers.open_transactions)
        high_watermark = state.log_end_offset if state.high_watermark is None else state.high_watermark
        self.ends = LogEnds(state.log_start_offset, state.log_end_offset, high_watermark, self._transactions)

    @property
    def log_start_offset(self) -> int:
        """The first offset that readers may have."""
        return self.ends.log_start_offset

    @property
    def last_stable_offset(self) -> int:
        """Readers of committed records see all below this offset: no open transaction begins there."""
        return self.ends.last_stable_offset

    @property
    def high_watermark(self) -> int:
        """All below this offset is durable on every in-sync replica."""
        return self.ends.high_watermark

    @property
    def durable_end(self) -> int:
        """All below this offset is durable on this replica."""
        return self.ends.durable_end

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum([segment.size_bytes for segment in self.segments])

    @property
    def is_stopped(self) -> bool:
        """True if nothing may be appended to or removed from the log."""
        return self.health.is_stopped(self.log_start_offset)

    # Appends

    def append_as_leader(
        self, header: BatchHeader, now_ms: int, *, clock_ahead_ms: int = 0, is_open_member: bool = False
    ) -> Append | BatchMetadata:
        """Decides where this batch goes, or finds the batch that it repeats. `is_open_member`: its producer is in an open
        transaction. Who ever was given an id as a member writes nothing else with it, also once that is forgotten.

        Raises WireErrors of fate NOT_APPENDED; DuplicateSequenceError if the batch is in the log, but further back than is
        remembered.
        """
        self._check_leads()
        if header.is_transactional != is_open_member or (not is_open_member and is_member_producer_id(header.producer_id)):
            raise self._no_member(header)
        base_offset = self.log_end_offset
        entry: ProducerStateEntry | None = None
        if header.producer_id >= 0:
            prepared = self.producers.prepare(header, base_offset, now_ms - clock_ahead_ms)
            if isinstance(prepared, BatchMetadata):
                return prepared
            entry = prepared
        # Only of a new batch: a repeated one was accepted, and gets the same response whatever the clock says now.
        check_timestamps(self.name, header, self.config, now_ms)
        return self._append_stamped(header, now_ms, clock_ahead_ms, entry, None)

    def append_marker(self, header: BatchHeader, now_ms: int, marker: Marker, *, clock_ahead_ms: int = 0) -> Append:
        """Decides where this control batch goes, which ends transactions. Raises WireErrors of fate NOT_APPENDED."""
        self._check_leads()
        return self._append_stamped(header, now_ms, clock_ahead_ms, None, marker)

    def append_as_follower(self, header: BatchHeader, *, marker: Marker | None = None) -> Append:
        """Decides where a batch goes that its leader has stamped. `marker`: its content if it is a control batch.

        Raises CorruptMessageError if it does not continue this log; StorageError and others if the log has stopped.
        """
        self.health.check_writable(self.log_start_offset)
        if header.base_offset != self.log_end_offset:
            raise CorruptMessageError(
                f"{self.name}: a batch at offset {header.base_offset} does not continue a log that ends at {self.log_end_offset}"
            )
        if not self.epochs.latest <= header.leader_epoch <= self.leader_epoch:
            raise CorruptMessageError(
                f"{self.name}: a batch of leader epoch {header.leader_epoch} cannot stand between epoch {self.epochs.latest} "
                f"before it and epoch {self.leader_epoch} now"
            )
        entry = self.producers.replayed(header) if marker is None else None
        return Append(
            header.base_offset,
            header.next_offset,
            header.size,
            header.append_timestamp,
            header.log_time,
            batch_timestamp(header),
            header.leader_epoch,
            header.leader_epoch_id,
            self._must_roll(header.size, header.log_time),
            header.producer_id,
            entry,
            marker,
        )

    def rolled(self, segment: SegmentBounds) -> None:
        """Reports a new segment, which begins at the log end."""
        assert segment.base_offset == self.log_end_offset, "a segment begins where the log ends"
        self.flushes.seal(self.segments[-1], self.snapshot())
        self.segments = (*self.segments, segment)

    def written(self, append: Append) -> Moved:
        """Reports that the batch is written at the end of the last segment."""
        base_offset = append.base_offset
        assert base_offset == self.log_end_offset, "a batch is written where the log ends"
        self.segments[-1].add(append.next_offset, append.size_bytes, append.max_timestamp, append.log_time)
        entry = append.producer
        if entry is not None:
            self.producers.commit(append.producer_id, entry)
            if entry.txn_first_offset >= 0:
                self._transactions.begin(append.producer_id, entry.txn_first_offset)
        if append.marker is not None:
            self.producers.end_transactions(append.marker, base_offset)
            self._transactions.end(append.marker.producer_ids, base_offset)
        if self.epochs.assign(append.leader_epoch, base_offset, append.leader_epoch_id):
            self.flushes.epochs_changed = True
        self.flushes.appended_bytes += append.size_bytes
        self.log_end_offset = append.next_offset
        return LOG_END_MOVED

    def expire_producers(self, before_ms: int) -> int:
        """Forgets producers silent since before `before_ms`; returns how many."""
        return self.producers.expire(before_ms)

    def _check_leads(self) -> None:
        self.health.check_writable(self.log_start_offset)
        if not self.is_leader:
            raise NotLeaderError(
                f"{self.name} is led by another node", fate=Fate.NOT_APPENDED, current_leader_epoch=self.leader_epoch
            )

    def _no_member(self, header: BatchHeader) -> InvalidTxnStateError:
        subject = f"{self.name}: producer {header.producer_id} in epoch {header.producer_epoch}"
        if header.is_transactional:
            return InvalidTxnStateError(f"{subject} is no member of an open transaction", fate=Fate.NOT_APPENDED)
        return InvalidTxnStateError(
            f"{subject} is of a transaction, but its batch is not: ask for another id with InitProducerId", fate=Fate.NOT_APPENDED
        )

    def _append_stamped(
        self,
        header: BatchHeader,
        now_ms: int,
        clock_ahead_ms: int,
        entry: ProducerStateEntry | None,
        marker: Marker | None,
    ) -> Append:
        base_offset, size, log_time = self.log_end_offset, header.size, now_ms - clock_ahead_ms
        return Append(
            base_offset,
            base_offset + header.last_offset_delta + 1,
            size,
            now_ms,
            log_time,
            now_ms if self.config.message_timestamp_type == "LogAppendTime" else header.max_timestamp,
            self.leader_epoch,
            self.leader_epoch_id,
            self._must_roll(size, log_time),
            header.producer_id,
            entry,
            marker,
        )

    def _must_roll(self, size: int, log_time: int) -> bool:
        """True if the batch does not fit the last segment, or that one is old."""
        active = self.segments[-1]
        if active.size_bytes == 0:
            return False
        config = self.config
        return active.size_bytes + size > config.segment_bytes or log_time - active.first_log_time >= config.segment_ms

    # Transactions

    def open_producer_ids(self) -> list[int]:
        """Producer ids of the transactions that are open here, in the order of their first offsets."""
        return list(self.producers.open_transactions)

    def open_data(self, producer_id: int) -> OpenData | None:
        """The data of a member's open transaction here; None if it has none."""
        entry = self.producers.entries.get(producer_id)
        if entry is None or entry.txn_first_offset < 0:
            return None
        end_offset = entry.batches[-1].last_offset + 1
        records = add_sequence(entry.last_sequence, 1)
        return OpenData(records, entry.txn_first_offset, end_offset, end_offset <= self.high_watermark)

    @property
    def held_back(self) -> Mapping[str, int]:
        """First offsets that commits hold back until they are finished, by commit."""
        return self._transactions.held_back

    def first_open_offset(self, producer_ids: Collection[int]) -> int | None:
        """Where the first of these members' open transactions begins here; None if they have none."""
        open_transactions = self.producers.open_transactions
        return next((first for producer_id, first in open_transactions.items() if producer_id in producer_ids), None)

    def aborted_transactions(self, from_offset: int, until_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that overlap a range which was read, up to the last stable offset. Raises OffsetOutOfRangeError
        if the log begins behind `from_offset` by now: they may be known no longer.
        """
        if from_offset < self.log_start_offset:
            raise OffsetOutOfRangeError(
                f"{self.name}: offset {from_offset} was deleted, the log starts at offset {self.log_start_offset}",
                log_start_offset=self.log_start_offset,
            )
        return self.producers.aborted.overlapping(from_offset, until_offset)

    # Durability

    def begin_flush(self) -> FlushPlan | None:
        """Begins a flush and returns its plan; None if nothing is dirty, one is under way or the log has stopped."""
        if self.flushes.under_way is not None or self.health.failure is not None or self.health.is_deleted:
            return None
        return self.flushes.begin(self.log_end_offset, self.epochs.entries) if self.flushes.is_due else None

    def flushed(self, plan: FlushPlan, outcome: FlushOutcome) -> Moved:
        """Reports that a flush has ended without a failed sync."""
        return self.ends.durable_to(plan.end_offset) if self.flushes.done(plan, outcome) else NOTHING_MOVED

    def flush_failed(self, plan: FlushPlan, error: OSError) -> None:
        """Reports a failed sync: the log stops, since the kernel may have dropped those pages. Reads continue."""
        self.flushes.failed(plan)
        self.failed(error)

    def damage_found(self, damaged: tuple[DamagedRange, ...]) -> None:
        """Reports that a reader has met a batch that is not whole. `damaged`: all ranges known by now."""
        self.health.damaged = damaged

    def deleted(self) -> None:
        """Reports that the topic is deleted: nothing is appended or flushed any more."""
        self.health.is_deleted = True
        self.flushes.give_up()

    # Epochs

    def lead(self, epoch: int, followers: Iterable[int] = (), *, epoch_id: int = 0) -> Moved:
        """Makes this node the leader, with these other replicas in sync. Raises FencedLeaderEpochError."""
        self._begin_epoch(epoch)
        self.leader_epoch_id = epoch_id
        self.is_leader = True
        self.ends.lead()
        return self.ends.in_sync(followers)

    def follow(self, epoch: int) -> None:
        """Makes another node the leader. Raises FencedLeaderEpochError."""
        self._begin_epoch(epoch)
        self.is_leader = False
        self.ends.follow()

    def _begin_epoch(self, epoch: int) -> None:
        if epoch < max(self.leader_epoch, self.epochs.latest):
            raise FencedLeaderEpochError(
                f"{self.name}: epoch {epoch} is over, the partition's is {self.leader_epoch}",
                current_leader_epoch=self.leader_epoch,
            )
        self.leader_epoch = epoch

    def epoch_before(self, offset: int) -> EpochEntry | None:
        """The epoch of the record before `offset`; None if there is none, or it cannot be known."""
        if offset > self.log_end_offset or damage_at(self.health.damaged, offset - 1):
            return None
        return self.epochs.entry_at(offset - 1)

    def check_history(self, position: LogPosition) -> None:
        """Raises LogTruncationError if the position is of another history than this log. What is not here is not judged: positions
        that retention has reached, and records that are damaged."""
        offset, epoch_id = position
        if not epoch_id or offset <= self.log_start_offset or damage_at(self.health.damaged, offset - 1):
            return
        parts_at = self.epochs.parts_at(offset, epoch_id, self.log_end_offset)
        if parts_at is None:
            return
        where = "where they part is unknown" if parts_at == UNKNOWN_OFFSET else f"they part at offset {parts_at}"
        raise LogTruncationError(
            f"{self.name}: offset {offset} is of another history than this log (restored from a copy, or without its tail): "
            f"{where}, and the log ends at {self.log_end_offset}",
            resume_offset=parts_at,
            log_start_offset=self.log_start_offset,
        )

    # Removal

    def retired(self, count: int) -> None:
        """Reports that the `count` oldest segments are removed. Only now are their aborted transactions forgotten: a log start that
        is not durable may be lower again after a crash."""
        self.segments = self.segments[count:]
        self.producers.aborted.forget_below(self.segments[0].base_offset)

    def truncate_to(self, offset: int) -> Truncation:
        """Decides what to remove so that the log ends at `offset`, or where the batch begins that holds it. Flush everything first.

        Raises ValueError below the high watermark: nothing acknowledged is given up.
        """
        if offset < self.high_watermark:
            raise ValueError(f"{self.name}: cannot be cut at offset {offset}, below the high watermark {self.high_watermark}")
        assert not self.flushes.is_due, "all is flushed before a cut"
        assert self.flushes.under_way is None, "all is flushed before a cut"
        kept = max(sum(segment.base_offset < offset for segment in self.segments), 1)
        # With a segment goes the snapshot at its base.
        limit = self.segments[kept].base_offset if kept < len(self.segments) else offset + 1
        gone = [known for known in self.snapshots.durable if known >= limit]
        return Truncation(offset, kept, gone, self.snapshots.newest_below(offset))

    def truncated(self, truncation: Truncation, last: SegmentBounds, producers: ProducerStates) -> None:
        """Reports that the log now ends with segment `last`. `producers`: the state that its remaining batches add up to."""
        end = last.next_offset
        assert self.high_watermark <= end <= truncation.offset, "what was acknowledged stays"
        self.segments = (*self.segments[: truncation.kept - 1], last)
        self.log_end_offset = end
        self.producers = producers
        self.epochs.truncate(end)
        self.snapshots.forget(truncation.snapshot_offsets)
        self.flushes.truncate(end)
        self.snapshots.add(self.snapshot())  # snapshots beyond the cut are removed
        self._transactions.truncate(end, producers.open_transactions)
        self._transactions.settle(self.high_watermark)
        self.ends.durable_to(end)

    def failed(self, error: OSError) -> None:
        """Reports a disk error after which the log is not as it should be: it stops until the next start."""
        self.health.failure = error
        self.flushes.give_up()

    # Written to other files

    def snapshot(self) -> Snapshot:
        """Producer state and epochs at the log end."""
        epochs = self.epochs.below(self.log_end_offset)
        return snapshot_of(self._seed, self.log_end_offset, epochs, self.producers)

    def checkpoint_entry(self) -> CheckpointEntry:
        """This log's entry for the next checkpoint. May advance the recovery point."""
        return CheckpointEntry(self.flushes.advance_recovery_point(self.durable_end), self.durable_end, self.log_start_offset)

    def take_old_snapshots(self) -> list[int]:
        """Offsets of snapshots that are no longer needed; their files are for the caller to remove."""
        return [] if self.is_stopped else self.snapshots.take_old(self.high_watermark)
