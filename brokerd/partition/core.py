"""One partition as a state machine: events in, decisions out. No files, clock, locks or logging.

Decisions (`append_as_leader`, `append_marker`, `retained_from`, ...) change no state, except that `begin_flush` records the flush
under way. Events (`written`, `rolled`, `flushed`, `flush_failed`, `retired`, ...) report completed I/O; those that move a log end
return it (log_ends.py). A failed write is not reported. partition.py carries out the decisions.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from typing import NamedTuple

from brokerd.config.topic import TopicConfig
from brokerd.errors import (
    CorruptMessageError,
    Fate,
    FencedLeaderEpochError,
    InvalidTimestampError,
    InvalidTxnStateError,
    LogDamagedError,
    LogTruncationError,
    NotLeaderError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownTopicIdError,
)
from brokerd.ids import LogPosition
from brokerd.partition.flush_state import FlushOutcome, FlushPlan, FlushState, KeptSnapshots
from brokerd.partition.leader_epochs import UNKNOWN_OFFSET, EpochEntry
from brokerd.partition.log_ends import NOTHING_MOVED, UNSETTLED, LogEnd, LogEnds, Moved
from brokerd.partition.log_state import CheckpointEntry, LogState, Snapshot, snapshot_of
from brokerd.partition.producer_state import AbortedTransaction, BatchMetadata, Marker, ProducerStateEntry, ProducerStates
from brokerd.record.header import BatchHeader, StampFlags, add_sequence
from brokerd.storage.damage import DamagedRange, damage_at, damage_error, first_that_stops
from brokerd.storage.segment_bounds import SegmentBounds

HIGH_WATERMARK = -1  # in DeleteRecords: delete up to the high watermark
TIMESTAMP_MAX_MS = (2**63 - 1) // 1_000  # records store microseconds in 64 bits
# The largest offset or time that a follower accepts from a leader. Near 2^63, log ends and append times overflow the directory's
# files, and no partition's checkpoint could be written. Client batches cover too few offsets for a log to get that far.
STAMPED_MAX = 2**62
_RETRY_AFTER_MS = 200
_LOG_APPEND_TIME = int(StampFlags.LOG_APPEND_TIME)


class Append(NamedTuple):
    """The decision to write a batch at the log end, after a roll if `must_roll`. Report the write with `written`."""

    header: BatchHeader  # with the leader's stamp
    size_bytes: int
    must_roll: bool
    producer: ProducerStateEntry | None  # its state after this batch
    marker: Marker | None = None


class Truncation(NamedTuple):
    """The decision to cut the log at `offset`, or at the start of the batch that contains it. Report the cut with `truncated`."""

    offset: int
    kept: int  # number of segments that stay; the last one is shortened
    snapshot_offsets: Sequence[int]  # snapshots to remove, before the segments
    restore_from: Sequence[int]  # candidate snapshots for restoring producers, newest first; later batches are replayed on top
    leader_epoch: int  # the follower's epoch at the decision; in any other epoch the cut is void


class OpenData(NamedTuple):
    """One member's records in an open transaction, counted modulo 2^31 like sequences. They lie in [`first_offset`, `end_offset`),
    interleaved with other producers' records. `is_durable`: durable on all in-sync replicas.
    """

    records: int
    first_offset: int
    end_offset: int
    is_durable: bool


class InSync(NamedTuple):
    """The in-sync set of a leader. The high watermark waits for `followers`: the other nodes in sync or about to join. The high
    watermark advances only while `members` is at least min.insync.replicas, or `replicas` if that is lower.
    """

    followers: Collection[int] = ()
    members: int = 1  # number of replicas in sync, this one included
    replicas: int = 1

    @property
    def is_under_replicated(self) -> bool:
        """True if a replica that was in sync is not."""
        return self.members < self.replicas

    def is_enough(self, min_insync_replicas: int) -> bool:
        """False if acks=all is refused: fewer replicas are in sync than min.insync.replicas, and fewer than the partition has."""
        return self.members >= min(min_insync_replicas, self.replicas)


ALONE = InSync()


class Role(enum.Enum):
    """This replica's role in its partition. NONE before a role is assigned, and after `resign`."""

    NONE = "none"
    LEADER = "leader"
    FOLLOWER = "follower"


class PartitionCore:
    """The state of one partition and the decisions made from it."""

    def __init__(self, name: str, seed: int, config: TopicConfig, state: LogState) -> None:
        self.name = name
        self.config = config
        self.role = Role.NONE
        self.leader_epoch = state.leader_epoch  # the highest of this partition; the leader stamps it on its batches
        self.leader_epoch_id = 0
        self.epoch_start_offset = 0  # the log end when this node began to lead
        self.in_sync = ALONE  # leader only
        self.is_cut_off = False  # leader only: it reaches neither another in-sync replica nor the coordination store
        self.health = LogHealth(name, state.damaged, state.read_only_reason)
        self.producers = state.producers
        self.epochs = state.epochs
        self.segments: tuple[SegmentBounds, ...] = tuple(state.segments)  # oldest first; the last one is appended to
        self._seed = seed
        high_watermark = state.log_end_offset if state.high_watermark is None else state.high_watermark
        self.ends = LogEnds(
            state.log_start_offset,
            state.log_end_offset,
            high_watermark,
            self.producers.open_transactions,
            announced_stable_offset=state.announced_stable_offset,
        )
        self.snapshots = KeptSnapshots(state.snapshot_offsets, state.unwritten_snapshot)
        self.flushes = FlushState(self.ends, state.recovery_point, self.snapshots)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum([segment.size_bytes for segment in self.segments])

    @property
    def is_stopped(self) -> bool:
        """True if nothing may be appended to or removed from the log."""
        return self.health.is_stopped(self.ends.log_start_offset)

    # Appends

    def append_as_leader(
        self, header: BatchHeader, now_ms: int, *, clock_ahead_ms: int = 0, is_open_member: bool = False
    ) -> Append | BatchMetadata:
        """Places a producer's batch at the log end, or returns the earlier batch that it duplicates. `is_open_member`: the producer
        is a member of an open transaction. A producer id issued for a transaction may never be used outside it.

        Raises WireErrors with fate NOT_APPENDED; DuplicateSequenceError if the batch is in the log but older than the batches kept
        in producer state.
        """
        self._check_takes_appends(Role.LEADER)
        if header.is_transactional != is_open_member or (not is_open_member and header.is_of_member):
            raise self._no_member(header)
        stamped = self._stamped(header, now_ms, clock_ahead_ms)
        entry: ProducerStateEntry | None = None
        if header.producer_id >= 0:
            prepared = self.producers.prepare(stamped)
            if isinstance(prepared, BatchMetadata):
                return prepared
            entry = prepared
        # Duplicates are exempt: they must get the response of the accepted original, whatever the clock says now.
        _check_timestamps(self.name, header, self.config, now_ms)
        return self._at_end(stamped, entry)

    def append_marker(self, header: BatchHeader, now_ms: int, marker: Marker, *, clock_ahead_ms: int = 0) -> Append:
        """Places a control batch, which ends transactions, at the log end. Raises WireErrors with fate NOT_APPENDED."""
        self._check_takes_appends(Role.LEADER)
        return self._at_end(self._stamped(header, now_ms, clock_ahead_ms), None, marker)

    def append_as_follower(self, header: BatchHeader, *, marker: Marker | None = None) -> Append:
        """Places a batch stamped by the leader at the log end. `marker`: its content if it is a control batch.

        Raises CorruptMessageError if the batch does not continue this log or exceeds STAMPED_MAX; NotLeaderError unless this
        replica is a follower; the errors of LogHealth.check_writable if the log has stopped.
        """
        self._check_takes_appends(Role.FOLLOWER)
        end = self.ends.log_end_offset
        if header.base_offset != end:
            raise CorruptMessageError(
                f"{self.name}: a batch at offset {header.base_offset} does not continue a log that ends at {end}"
            )
        if max(header.next_offset, abs(header.append_timestamp)) > STAMPED_MAX:
            raise CorruptMessageError(
                f"{self.name}: a batch that ends at offset {header.next_offset}, appended at {header.append_timestamp} ms, "
                f"is beyond {STAMPED_MAX}"
            )
        if not self.epochs.latest <= header.leader_epoch <= self.leader_epoch:
            raise CorruptMessageError(
                f"{self.name}: a batch of leader epoch {header.leader_epoch} is outside {self.epochs.latest} (of the batch "
                f"before) to {self.leader_epoch} (now)"
            )
        return self._at_end(header, self.producers.replayed(header), marker)

    def rolled(self, segment: SegmentBounds) -> None:
        """Reports a new active segment, which begins at the log end."""
        assert segment.base_offset == self.ends.log_end_offset, "a segment begins where the log ends"
        self.flushes.seal(self.segments[-1], self.snapshot())
        self.segments = (*self.segments, segment)

    def written(self, append: Append) -> Moved:
        """Reports that the batch was written to the active segment."""
        header, active = append.header, self.segments[-1]
        base_offset = header.base_offset
        assert base_offset == self.ends.log_end_offset, "a batch is written where the log ends"
        active.add(header)
        if append.producer is not None:
            self.producers.commit(header.producer_id, append.producer)
        if append.marker is not None:
            first_offset = self.producers.first_open_offset(frozenset(append.marker.producer_ids))
            self.producers.end_transactions(append.marker, base_offset)
            if first_offset is not None:
                self.ends.ended(first_offset, base_offset)
        if self.epochs.assign(header.leader_epoch, base_offset, header.leader_epoch_id):
            self.flushes.epochs_changed = True
        return self.ends.written(active.next_offset, append.size_bytes)

    def _check_takes_appends(self, role: Role) -> None:
        """Raises NotLeaderError if this replica does not have the role, or hands over a damaged or read-only log; otherwise the
        errors of LogHealth.check_writable.
        """
        try:
            self.health.check_writable(self.ends.log_start_offset)
        except LogDamagedError as error:
            if self.hands_over:
                raise self._not_leader(f"{error.message}; another replica that is in sync will lead") from None
            raise
        if self.role is not role:
            raise self._not_leader(f"this node's role is {self.role.value}, not {role.value}")

    def _not_leader(self, why: str) -> NotLeaderError:
        return NotLeaderError(f"{self.name}: {why}", fate=Fate.NOT_APPENDED, current_leader_epoch=self.leader_epoch)

    def _no_member(self, header: BatchHeader) -> InvalidTxnStateError:
        subject = f"{self.name}: producer {header.producer_id} in epoch {header.producer_epoch}"
        if header.is_transactional:
            return InvalidTxnStateError(f"{subject} is no member of an open transaction", fate=Fate.NOT_APPENDED)
        return InvalidTxnStateError(
            f"{subject} is of a transaction, but its batch is not: ask for another id with InitProducerId", fate=Fate.NOT_APPENDED
        )

    def _stamped(self, header: BatchHeader, now_ms: int, clock_ahead_ms: int) -> BatchHeader:
        return header._replace(
            stamp_flags=_LOG_APPEND_TIME if self.config.message_timestamp_type == "LogAppendTime" else 0,
            base_offset=self.ends.log_end_offset,
            append_timestamp=now_ms,
            leader_epoch=self.leader_epoch,
            leader_epoch_id=self.leader_epoch_id,
            clock_ahead_s=clock_ahead_ms // 1_000,
        )

    def _at_end(self, header: BatchHeader, producer: ProducerStateEntry | None, marker: Marker | None = None) -> Append:
        """Places a stamped batch at the log end. Rolls first if the active segment would exceed segment.bytes or has reached
        segment.ms.
        """
        active, size_bytes = self.segments[-1], header.size
        is_full = active.size_bytes + size_bytes > self.config.segment_bytes
        is_old = header.log_time - active.first_log_time >= self.config.segment_ms
        return Append(header, size_bytes, active.size_bytes > 0 and (is_full or is_old), producer, marker)

    # Transactions

    def open_data(self, producer_id: int) -> OpenData | None:
        """The member's records in its open transaction; None if there are none."""
        entry = self.producers.entries.get(producer_id)
        if entry is None or entry.txn_first_offset < 0:
            return None
        end_offset = entry.batches[-1].last_offset + 1
        records = add_sequence(entry.last_sequence, 1)
        return OpenData(records, entry.txn_first_offset, end_offset, end_offset <= self.ends.high_watermark)

    def aborted_transactions(self, from_offset: int, until_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that overlap a range just read below the last stable offset. Raises OffsetOutOfRangeError if
        the log start has passed `from_offset` since the read: index entries may be gone.
        """
        if from_offset < self.ends.log_start_offset:
            raise OffsetOutOfRangeError(
                f"{self.name}: offset {from_offset} was deleted, the log starts at offset {self.ends.log_start_offset}",
                log_start_offset=self.ends.log_start_offset,
            )
        return self.producers.aborted.overlapping(from_offset, until_offset)

    # Durability

    def begin_flush(self) -> FlushPlan | None:
        """Begins a flush and returns its plan. None if nothing is dirty, a flush or a cut is under way, or the log has failed or is
        deleted.
        """
        health = self.health
        if self.flushes.under_way is not None or health.is_being_cut or health.failure is not None or health.is_deleted:
            return None
        return self.flushes.begin(self.epochs.entries) if self.flushes.is_due else None

    def flushed(self, plan: FlushPlan, outcome: FlushOutcome) -> Moved:
        """Reports that a flush ended without a failed sync."""
        return self.ends.durable_to(plan.end_offset) if self.flushes.done(plan, outcome) else NOTHING_MOVED

    def flush_failed(self, plan: FlushPlan, error: OSError) -> None:
        """Reports a failed sync. The log stops, since the kernel may have dropped the dirty pages. Reads continue."""
        self.flushes.ended(plan)
        self.failed(error)

    def damage_found(self, damaged: DamagedRange) -> None:
        """Reports a damaged range found by a reader. Callable from any thread, one at a time."""
        self.health.damaged = (*self.health.damaged, damaged)

    def deleted(self) -> None:
        """Reports that the topic is deleted: stops appends and flushes."""
        self.health.is_deleted = True
        self.flushes.give_up()

    # Role and epoch

    def lead(self, epoch: int, in_sync: InSync = ALONE, *, epoch_id: int = 0) -> Moved:
        """Makes this node the leader in a new epoch, which must be durable. Raises FencedLeaderEpochError."""
        self._check_epoch(epoch, max(self.leader_epoch, self.epochs.latest))
        self.role, self.leader_epoch, self.leader_epoch_id = Role.LEADER, epoch, epoch_id
        self.epoch_start_offset = self.ends.log_end_offset
        self.is_cut_off = False
        self.ends.lead()
        return self.set_in_sync(in_sync)

    def follow(self, epoch: int) -> None:
        """Makes this node a follower in `epoch`. Without a role, as after a start, it may follow again in the epoch it already
        knows. Raises FencedLeaderEpochError.
        """
        ended = self.leader_epoch - 1 if self.role is Role.NONE else self.leader_epoch
        self._check_epoch(epoch, max(ended, self.epochs.latest - 1))
        self.role, self.leader_epoch = Role.FOLLOWER, epoch
        self.ends.follow()

    def resign(self) -> None:
        """Resets the role to NONE."""
        self.role = Role.NONE
        self.ends.follow()

    def set_in_sync(self, in_sync: InSync) -> Moved:
        """Sets the in-sync set. Leader only."""
        self.in_sync = in_sync
        return self.ends.in_sync(in_sync.followers, is_enough=self.has_enough_in_sync)

    @property
    def has_enough_in_sync(self) -> bool:
        """True if enough replicas are in sync for the leader to acknowledge acks=all."""
        return self.in_sync.is_enough(self.config.min_insync_replicas)

    @property
    def hands_over(self) -> bool:
        """True on a leader whose log has stopped while another replica is in sync. That replica will be elected; clients retry."""
        return self.role is Role.LEADER and self.in_sync.members > 1 and self.is_stopped

    @property
    def tenure(self) -> tuple[Role, int]:
        """The role and the epoch. Records above the high watermark can change only when the tenure changes."""
        return self.role, self.leader_epoch

    def check_tenure(self, tenure: tuple[Role, int]) -> None:
        """Raises NotLeaderError if the role or the epoch has changed."""
        if self.tenure != tenure:
            raise self._not_leader("the leader has changed meanwhile")

    def latest_offset(self, *, is_committed: bool = False) -> int:
        """The high watermark or, with `is_committed`, the last stable offset. Raises OffsetNotAvailableError until the high
        watermark reaches the start of this epoch, up to which the previous leader may have acknowledged records; with
        `is_committed` also while UNSETTLED is held back, since the previous leader may have shown a higher last stable offset.
        """
        ends = self.ends
        if ends.high_watermark < self.epoch_start_offset:
            raise OffsetNotAvailableError(
                f"{self.name}: the high watermark is {ends.high_watermark}, below offset {self.epoch_start_offset}, where epoch "
                f"{self.leader_epoch} began: it is not known yet which of the records in between are acknowledged"
            )
        if is_committed and UNSETTLED in ends.held_back:
            raise OffsetNotAvailableError(
                f"{self.name}: the last stable offset is at least {ends.last_stable_offset}, but the coordinator has not said yet "
                "which transactions are complete"
            )
        return ends.last_stable_offset if is_committed else ends.high_watermark

    def _check_epoch(self, epoch: int, ended: int) -> None:
        if epoch <= ended:
            text = f"{self.name}: epoch {epoch} is over, the partition's is {max(self.leader_epoch, self.epochs.latest)}"
            raise FencedLeaderEpochError(text, current_leader_epoch=self.leader_epoch)

    def epoch_before(self, offset: int) -> EpochEntry | None:
        """The epoch of the record before `offset`; None if there is no such record or its epoch is unknown."""
        if offset > self.ends.log_end_offset or self.health.is_damaged_at(offset - 1):
            return None
        return self.epochs.entry_at(offset - 1)

    def check_history(self, position: LogPosition) -> None:
        """Raises LogTruncationError if the position belongs to another history than this log. Positions at or below the log start
        and positions right after a damaged record are not checked."""
        offset, epoch_id = position
        if not epoch_id or offset <= self.ends.log_start_offset or self.health.is_damaged_at(offset - 1):
            return
        parts_at = self.epochs.parts_at(offset, epoch_id, self.ends.log_end_offset)
        if parts_at is None:
            return
        where = "where they diverge is unknown" if parts_at == UNKNOWN_OFFSET else f"they diverge at offset {parts_at}"
        raise LogTruncationError(
            f"{self.name}: offset {offset} is of another history than this log (restored from a copy, or without its tail): "
            f"{where}, and the log ends at {self.ends.log_end_offset}",
            resume_offset=parts_at,
            log_start_offset=self.ends.log_start_offset,
        )

    # Removal

    def deletion_target(self, before_offset: int) -> int:
        """The log start that DeleteRecords requests. Raises OffsetOutOfRangeError, OffsetNotAvailableError, NotLeaderError;
        StorageError and LogDamagedError if the log has stopped: its checkpoint entry no longer changes, so a new log start could
        not be made durable.
        """
        self._check_takes_appends(Role.LEADER)
        ends = self.ends
        is_known = 0 <= before_offset <= ends.high_watermark
        target = before_offset if is_known else self.latest_offset(is_committed=False)
        if not is_known and before_offset != HIGH_WATERMARK:
            raise OffsetOutOfRangeError(
                f"{self.name}: cannot delete records before offset {before_offset}, the high watermark is {ends.high_watermark}"
            )
        return target

    def retained_from(self, now_ms: int) -> int:
        """The log start by retention.ms and retention.bytes: a segment's base offset, or the current log start."""
        config, start, size = self.config, self.ends.log_start_offset, self.size_bytes
        if self.is_stopped:
            return start
        # Keep undecided transactions and everything above them.
        limit = self.ends.last_stable_offset
        for segment, successor in zip(self.segments, self.segments[1:], strict=False):
            is_old = segment.has_passed(config.retention_ms, now_ms)
            is_excess = config.retention_bytes >= 0 and size - segment.size_bytes >= config.retention_bytes
            if successor.base_offset > limit or not (is_old or is_excess):
                break
            size -= segment.size_bytes
            start = max(start, successor.base_offset)
        return start

    def must_close_last(self, now_ms: int) -> bool:
        """True if the active segment is flushed and older than retention.ms; on a follower, if it is flushed and the leader has
        deleted all that is in it. It can be removed only after a roll."""
        last, ends = self.segments[-1], self.ends
        is_idle = self.flushes.dirty_bytes == 0 and self.flushes.under_way is None
        if self.role is Role.FOLLOWER:
            is_over = ends.log_start_offset == ends.log_end_offset
        else:
            is_over = last.has_passed(self.config.retention_ms, now_ms)
        return is_idle and last.size_bytes > 0 and is_over

    def removable_count(self, durable_start: int) -> int:
        """Number of segments, oldest first, that may be removed. `durable_start`: the log start in the checkpoint on disk."""
        if self.is_stopped:
            return 0
        # A durable snapshot must cover their producers. It must survive any cut, so it must lie at or below the high watermark.
        ends = self.ends
        start = min(ends.log_start_offset, durable_start, self.snapshots.newest_below(ends.high_watermark))
        count = 0
        while count + 1 < len(self.segments) and self.segments[count + 1].base_offset <= start:
            if self.segments[count] in self.flushes.sealed:
                break
            count += 1
        return count

    def retired(self, count: int) -> None:
        """Reports that the `count` oldest segments are removed. Their aborted transactions are dropped only now, because a log
        start that is not durable may fall back after a crash."""
        self.segments = self.segments[count:]
        self.producers.aborted.forget_below(self.segments[0].base_offset)

    def failed(self, error: OSError) -> None:
        """Reports a disk error that leaves the log inconsistent. The log stops until the next start."""
        self.health.failure = error
        self.flushes.give_up()

    # Cuts

    def truncate_to(self, offset: int) -> Truncation:
        """Decides what a follower removes so that its log ends at `offset`, or at the start of the batch that contains it. Flush
        everything first. Appends, flushes and removals stop until `cut_ended`. Raises ValueError below the high watermark, since
        acknowledged records are never dropped; NotLeaderError unless this replica is a follower; StorageError if a flush is due or
        has just begun: retention flushes too.
        """
        self._check_takes_appends(Role.FOLLOWER)
        if offset < self.ends.high_watermark:
            raise ValueError(f"{self.name}: cannot be cut at offset {offset}, below the high watermark {self.ends.high_watermark}")
        if self.flushes.has_unsynced:
            raise StorageError(f"{self.name}: what is to be cut could not be flushed yet", retry_after_ms=_RETRY_AFTER_MS)
        kept = max(sum(segment.base_offset < offset for segment in self.segments), 1)
        # Snapshots above the cut must go: the log no longer confirms them, but a later cut could restore one. A snapshot exactly at
        # the cut stays: it may be the only one that covers the producers of removed segments.
        below = [known for known in self.snapshots.durable if known <= offset]
        gone = self.snapshots.durable[len(below) :]
        self.health.is_being_cut = True
        return Truncation(offset, kept, gone, below[::-1], self.leader_epoch)

    def truncated(self, truncation: Truncation, last: SegmentBounds, producers: ProducerStates) -> Moved:
        """Makes `last` the final segment, before the files are cut. `producers`: the state after the remaining batches. Raises
        NotLeaderError if role or epoch have changed since the decision.
        """
        self.check_tenure((Role.FOLLOWER, truncation.leader_epoch))
        end = last.next_offset
        assert self.ends.high_watermark <= end <= truncation.offset, "what was acknowledged stays"
        self.segments = (*self.segments[: truncation.kept - 1], last)
        self.producers = producers
        self.epochs.truncate(end)
        self.snapshots.forget(truncation.snapshot_offsets, end)
        self.flushes.truncate(end)
        moved = self.ends.truncated(end, producers.open_transactions)
        self.snapshots.waiting.append(self.snapshot())  # replaces those that the cut removes
        return (LogEnd.LOG_END, *moved)

    def cut_ended(self, error: OSError | None = None) -> None:
        """Reports that a cut is complete on disk, or was abandoned before `truncated`. An error stops the log."""
        self.health.is_being_cut = False
        if error is not None:
            self.failed(error)

    # Written to other files

    def snapshot(self) -> Snapshot:
        """Producer state and epochs at the log end."""
        epochs = self.epochs.below(self.ends.log_end_offset)
        return snapshot_of(self._seed, self.ends.log_end_offset, epochs, self.producers)

    def checkpoint_entry(self) -> CheckpointEntry:
        """This log's entry for the next checkpoint. May advance the recovery point, but not past damage, so that the next start
        finds the damage again.
        """
        ends, recovery_point = self.ends, self.flushes.advance_recovery_point()
        damaged = self.health.first_damage(ends.log_start_offset)
        return CheckpointEntry(
            recovery_point if damaged is None else min(recovery_point, damaged.first_offset),
            ends.durable_end,
            ends.log_start_offset,
            self.leader_epoch,
            ends.high_watermark,
            ends.announced_stable_offset,
        )

    def take_old_snapshots(self) -> list[int]:
        """Offsets of snapshots that are no longer needed; the caller removes their files."""
        return [] if self.is_stopped else self.snapshots.take_old(self.ends.high_watermark)


class LogHealth:
    """The reasons why a log has stopped: deletion, a disk error, damage, read-only, or a cut under way. Damage lasts until the log
    start passes it, a cut until `cut_ended`, the others until the next start.
    """

    def __init__(self, name: str, damaged: Sequence[DamagedRange] = (), read_only_reason: str = "") -> None:
        self._name = name
        self.is_deleted = False
        self.is_being_cut = False
        self.failure: OSError | None = None  # from a flush or a cut
        self.damaged = tuple(damaged)
        self.read_only_reason = read_only_reason

    def is_damaged_at(self, offset: int) -> bool:
        """True if the offset lies in a known damaged range."""
        return bool(self.damaged) and damage_at(self.damaged, offset) is not None

    def first_damage(self, log_start_offset: int) -> DamagedRange | None:
        """The damaged range that stops the log; None if there is none."""
        return first_that_stops(self.damaged, log_start_offset) if self.damaged else None

    def is_stopped(self, log_start_offset: int) -> bool:
        """True if nothing may be appended to or removed from the log."""
        has_stopped = self.is_deleted or self.is_being_cut or self.failure or self.read_only_reason
        return bool(has_stopped or self.first_damage(log_start_offset) is not None)

    def check_exists(self) -> None:
        """Raises UnknownTopicIdError if the topic is deleted."""
        if self.is_deleted:
            raise UnknownTopicIdError(f"{self._name} is deleted") from None

    def check_writable(self, log_start_offset: int) -> None:
        """Raises UnknownTopicIdError, NotLeaderError, StorageError or LogDamagedError if the log has stopped, all with fate
        NOT_APPENDED.
        """
        if self.is_deleted:
            raise UnknownTopicIdError(f"{self._name} is deleted", fate=Fate.NOT_APPENDED)
        if self.is_being_cut:
            raise NotLeaderError(f"{self._name} is being cut, as a leader has asked", fate=Fate.NOT_APPENDED)
        if self.failure is not None:
            raise StorageError(
                f"{self._name} refuses appends: a disk operation failed ({self.failure.strerror}); restart the broker once the "
                "disk is repaired",
                fate=Fate.NOT_APPENDED,
            )
        stopping = self.first_damage(log_start_offset)
        if stopping is not None:
            raise damage_error(self._name, stopping, fate=Fate.NOT_APPENDED)
        if self.read_only_reason:
            raise LogDamagedError(f"{self._name} is read-only: {self.read_only_reason}", fate=Fate.NOT_APPENDED)


def _check_timestamps(name: str, header: BatchHeader, config: TopicConfig, now_wall_ms: int) -> None:
    """Raises InvalidTimestampError if a record's timestamp is too far in the future: it would hide all later records from look-ups
    by time. Topics with LogAppendTime are exempt.
    """
    if config.message_timestamp_type == "LogAppendTime":
        return
    latest = max(header.base_timestamp, header.max_timestamp)
    if latest > TIMESTAMP_MAX_MS:
        text = f"{name}: {latest} is no record's time: ms since 1970 end at {TIMESTAMP_MAX_MS}"
        raise InvalidTimestampError(text, fate=Fate.NOT_APPENDED)
    if latest - now_wall_ms > config.message_timestamp_after_max_ms:
        raise InvalidTimestampError(
            f"{name}: a record's time, {latest} ms, lies {latest - now_wall_ms} ms ahead of the broker's clock, more than "
            f"message.timestamp.after.max.ms ({config.message_timestamp_after_max_ms}): check its unit and the producer's clock",
            fate=Fate.NOT_APPENDED,
        )
