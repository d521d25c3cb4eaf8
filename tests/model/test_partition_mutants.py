"""Bugs planted one by one in a partition's core and in what carries out its decisions: the random schedules must catch each. What
they do not catch, they do not prove."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest

from brokerd.datadir.partition_table import PartitionTable
from brokerd.errors import InvalidTxnStateError
from brokerd.ids import TopicIdPartition
from brokerd.partition import core, flush_state, recovery, truncation
from brokerd.partition.aborted_transactions import AbortedTransaction, AbortedTransactions
from brokerd.partition.core import Append, PartitionCore, Role, Truncation
from brokerd.partition.flush_state import FlushOutcome, FlushPlan, FlushState, KeptSnapshots
from brokerd.partition.flush_task import FlushTask
from brokerd.partition.leader_epochs import LeaderEpochs
from brokerd.partition.log_ends import LOG_END_MOVED, LogEnd, LogEnds, Moved
from brokerd.partition.log_state import CheckpointEntry
from brokerd.partition.log_walk import LogWalk
from brokerd.partition.markers import Marker, marker_of
from brokerd.partition.partition import Partition
from brokerd.partition.producer_state import BatchMetadata, ProducerStateEntry, ProducerStates
from brokerd.partition.reader import PartitionReader
from brokerd.partition.snapshots import Snapshot, read_snapshot, snapshot_of
from brokerd.partition.truncation import LogCut
from brokerd.record.header import BatchHeader
from brokerd.sharing import Caller
from brokerd.storage.damage import DamagedRange
from brokerd.storage.files import File
from brokerd.storage.segment import Segment, SegmentBounds
from tests.support import partition_simulation
from tests.support.mutants import Mutants
from tests.support.partition_simulation import run_seed

SEARCHED = 3_000
MUTANTS = Mutants[pytest.MonkeyPatch]()
mutant, rare = MUTANTS.add, MUTANTS.rare


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    window = flush_state.RECOVERY_WINDOW_BYTES
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    flush_state.RECOVERY_WINDOW_BYTES = window


# --- what is durable


@mutant
def acknowledged_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    begin_flush = PartitionCore.begin_flush

    def eager(self: PartitionCore) -> FlushPlan | None:
        plan = begin_flush(self)
        if plan is not None:
            self.ends.durable_to(plan.end_offset)
        return plan

    run = FlushTask.run

    def lazy(self: FlushTask) -> None:
        handles, self.handles = self.handles, []
        run(self)
        self.handles = handles

    patch.setattr(PartitionCore, "begin_flush", eager)
    patch.setattr(FlushTask, "run", lazy)


@mutant
def high_watermark_is_the_log_end(patch: pytest.MonkeyPatch) -> None:
    flushed = PartitionCore.flushed

    def eager(self: PartitionCore, plan: FlushPlan, outcome: FlushOutcome) -> Moved:
        moved = flushed(self, plan, outcome)
        return moved + self.ends.durable_to(self.ends.log_end_offset)

    patch.setattr(PartitionCore, "flushed", eager)


@mutant
def a_flush_covers_what_came_meanwhile(patch: pytest.MonkeyPatch) -> None:
    flushed = PartitionCore.flushed

    def generous(self: PartitionCore, plan: FlushPlan, outcome: FlushOutcome) -> Moved:
        moved = flushed(self, plan, outcome)
        return moved + self.ends.durable_to(self.ends.durable_end + 1)

    patch.setattr(PartitionCore, "flushed", generous)


@mutant
def a_flush_forgets_sealed_segments(patch: pytest.MonkeyPatch) -> None:
    init = FlushTask.__init__

    def forgetful(self: FlushTask, *args: Any) -> None:
        init(self, *args)
        self.handles = self.handles[-1:]

    patch.setattr(FlushTask, "__init__", forgetful)


@mutant
def a_failed_flush_counts(patch: pytest.MonkeyPatch) -> None:
    def hopeful(self: PartitionCore, plan: FlushPlan, _error: OSError) -> None:
        self.flushed(plan, FlushOutcome())

    patch.setattr(PartitionCore, "flush_failed", hopeful)


@mutant
def a_follower_that_says_nothing_does_not_count(patch: pytest.MonkeyPatch) -> None:
    in_sync = LogEnds.in_sync

    def hopeful(self: LogEnds, followers: Any) -> Moved:
        return in_sync(self, [node for node in followers if node in (self._replicas or {})])

    patch.setattr(LogEnds, "in_sync", hopeful)


@mutant
def a_follower_reports_what_it_has_not_flushed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(partition_simulation, "reported_end", lambda core: core.ends.log_end_offset)


@mutant
def a_follower_believes_more_than_it_has(patch: pytest.MonkeyPatch) -> None:
    def credulous(self: LogEnds, high_watermark: int, _last_stable_offset: int) -> Moved:
        self.high_watermark = max(self.high_watermark, high_watermark)
        return (LogEnd.HIGH_WATERMARK,)

    patch.setattr(LogEnds, "leader_at", credulous)


@mutant
def nobody_is_woken_for_the_last_stable_offset(patch: pytest.MonkeyPatch) -> None:
    move = LogEnds._move_stable

    def silent(self: LogEnds) -> Moved:
        move(self)
        return ()

    patch.setattr(LogEnds, "_move_stable", silent)


# --- appends


@mutant
def state_is_committed_before_the_write(patch: pytest.MonkeyPatch) -> None:
    prepare = ProducerStates.prepare

    def early(self: ProducerStates, header: BatchHeader, *args: Any, **kwargs: Any) -> ProducerStateEntry | BatchMetadata:
        prepared = prepare(self, header, *args, **kwargs)
        if not isinstance(prepared, BatchMetadata):
            self.commit(header.producer_id, prepared)
        return prepared

    patch.setattr(ProducerStates, "prepare", early)


@mutant
def state_is_committed_although_the_write_failed(patch: pytest.MonkeyPatch) -> None:
    write = Partition._write

    def hopeful(self: Partition, append: Append, buffers: Any, caller: Caller) -> None:
        try:
            write(self, append, buffers, caller)
        except Exception:
            if append.producer is not None:
                self.core.producers.commit(append.producer_id, append.producer)
            raise

    patch.setattr(Partition, "_write", hopeful)


@mutant
def a_repetition_is_appended_again(patch: pytest.MonkeyPatch) -> None:
    prepare = ProducerStates.prepare

    def forgetful(self: ProducerStates, header: BatchHeader, *args: Any, **kwargs: Any) -> ProducerStateEntry | BatchMetadata:
        prepared = prepare(self, header, *args, **kwargs)
        return self.entries[header.producer_id] if isinstance(prepared, BatchMetadata) else prepared

    patch.setattr(ProducerStates, "prepare", forgetful)


@mutant
def a_follower_stamps(patch: pytest.MonkeyPatch) -> None:
    def stamps(self: Partition, batch: Any) -> None:
        append = self.core.append_as_follower(batch.header, marker=marker_of(batch))
        self._append_stamped(append._replace(leader_epoch=self.core.leader_epoch), batch, Caller("", ""))

    patch.setattr(Partition, "append_as_follower", stamps)


@mutant
def a_roll_takes_no_snapshot(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FlushState, "seal", lambda self, segment, _snapshot: self.sealed.append(segment))


@mutant
def a_roll_takes_the_snapshot_too_late(patch: pytest.MonkeyPatch) -> None:
    rolled, written = PartitionCore.rolled, PartitionCore.written

    def without(self: PartitionCore, segment: SegmentBounds) -> None:
        waiting = list(self.snapshots._waiting)
        rolled(self, segment)
        self.snapshots._waiting = waiting

    def late(self: PartitionCore, append: Append) -> Moved:
        written(self, append)
        if append.must_roll:
            self.snapshots.add(self.snapshot()._replace(offset=append.base_offset))
        return LOG_END_MOVED

    patch.setattr(PartitionCore, "rolled", without)
    patch.setattr(PartitionCore, "written", late)


# --- epochs


@mutant
def recovery_measures_epochs_against_the_number_of_starts(patch: pytest.MonkeyPatch) -> None:
    """The third start cuts off batches of epoch 40 as foreign."""
    init = LogWalk.__init__

    def third(self: LogWalk, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        self._given = self._given._replace(checkpoint=self._given.checkpoint._replace(leader_epoch=3))

    patch.setattr(LogWalk, "__init__", third)


@mutant
def a_checkpoint_keeps_the_epoch_that_the_start_found(patch: pytest.MonkeyPatch) -> None:
    checkpoint_entry = PartitionCore.checkpoint_entry

    def old(self: PartitionCore) -> CheckpointEntry:
        return checkpoint_entry(self)._replace(leader_epoch=max(self.epochs.latest, 0))

    patch.setattr(PartitionCore, "checkpoint_entry", old)


@mutant
def batches_carry_the_epoch_of_the_start(patch: pytest.MonkeyPatch) -> None:
    lead = PartitionCore.lead

    def forgetful(self: PartitionCore, epoch: int, followers: Iterable[int] = (), *, epoch_id: int = 0) -> Moved:
        before = self.leader_epoch
        moved = lead(self, epoch, followers, epoch_id=epoch_id)
        self.leader_epoch = before or epoch
        return moved

    patch.setattr(PartitionCore, "lead", forgetful)


@mutant
def a_request_is_acknowledged_in_another_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "leads_in", lambda _self, _epoch: True)


@mutant
def an_epoch_is_noted_one_batch_late(patch: pytest.MonkeyPatch) -> None:
    written = PartitionCore.written

    def late(self: PartitionCore, append: Append) -> Moved:
        before = list(self.epochs.entries)
        moved = written(self, append)
        if len(self.epochs.entries) > len(before):
            self.epochs.entries[-1] = self.epochs.entries[-1]._replace(start_offset=append.next_offset)
        return moved

    patch.setattr(PartitionCore, "written", late)


@mutant
def a_start_takes_all_that_is_durable_for_committed(patch: pytest.MonkeyPatch) -> None:
    checkpoint_entry = PartitionCore.checkpoint_entry

    def generous(self: PartitionCore) -> CheckpointEntry:
        return checkpoint_entry(self)._replace(high_watermark=self.ends.durable_end)

    patch.setattr(PartitionCore, "checkpoint_entry", generous)


@rare(450)
def a_start_takes_all_that_is_committed_for_decided(patch: pytest.MonkeyPatch) -> None:
    checkpoint_entry = PartitionCore.checkpoint_entry

    def generous(self: PartitionCore) -> CheckpointEntry:
        return checkpoint_entry(self)._replace(announced_stable_offset=self.ends.high_watermark)

    patch.setattr(PartitionCore, "checkpoint_entry", generous)


# --- cuts


@mutant
def a_cut_goes_below_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(partition_simulation, "cut_offset", lambda end, own_end: max(min(end, own_end) - 1, 0))
    truncate_to = PartitionCore.truncate_to

    def careless(self: PartitionCore, offset: int) -> Truncation:
        high_watermark, self.ends.high_watermark = self.ends.high_watermark, 0
        try:
            return truncate_to(self, offset)
        finally:
            self.ends.high_watermark = high_watermark

    patch.setattr(PartitionCore, "truncate_to", careless)


@mutant
def a_cut_keeps_the_state_of_producers(patch: pytest.MonkeyPatch) -> None:
    truncated = PartitionCore.truncated

    def lazy(self: PartitionCore, truncation: Truncation, last: SegmentBounds, _producers: ProducerStates) -> Moved:
        return truncated(self, truncation, last, self.producers)

    patch.setattr(PartitionCore, "truncated", lazy)


@mutant
def a_cut_keeps_epochs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderEpochs, "truncate", lambda _self, _offset: None)


@mutant
def a_cut_leaves_whole_batches_on_the_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogCut, "_wipe", lambda _self, _segment, _position: None)


@mutant
def a_cut_is_made_before_the_checkpoint_knows(patch: pytest.MonkeyPatch) -> None:
    truncate = PartitionTable.truncate

    def hasty(self: PartitionTable, cuts: Mapping[Partition, int], _checkpoint_job: Any) -> Any:
        return truncate(self, cuts, lambda: lambda: None)

    patch.setattr(PartitionTable, "truncate", hasty)


@mutant
def a_cut_is_made_although_another_leader_is_followed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionCore, "check_tenure", lambda _self, _tenure: None)


@mutant
def a_log_takes_appends_while_it_is_cut(patch: pytest.MonkeyPatch) -> None:
    truncate_to = PartitionCore.truncate_to

    def busy(self: PartitionCore, offset: int) -> Truncation:
        truncation = truncate_to(self, offset)
        self.health.is_being_cut = False
        return truncation

    patch.setattr(PartitionCore, "truncate_to", busy)


@rare(600)
def zeros_of_a_cut_are_taken_for_damage(patch: pytest.MonkeyPatch) -> None:
    """Schedule: a cold read waits for the disk, the leader is deposed and cuts its log; the read finds zeros."""
    register = PartitionReader.register

    def hasty(self: PartitionReader, file: File, segment: Segment, position: int, bad_offset: int, problem: str) -> DamagedRange:
        segments, self.core.segments = self.core.segments, (segment,)
        try:
            return register(self, file, segment, position, bad_offset, problem)
        finally:
            self.core.segments = segments

    patch.setattr(PartitionReader, "register", hasty)


@mutant
def a_read_above_the_high_watermark_belongs_to_no_epoch(patch: pytest.MonkeyPatch) -> None:
    """Schedule: a cold read above the high watermark; meanwhile the leader is deposed, cuts and takes other batches."""
    check_tenure = PartitionCore.check_tenure

    def hasty(self: PartitionCore, tenure: tuple[Role, int]) -> None:
        if tenure[0] is Role.FOLLOWER:  # a cut
            check_tenure(self, tenure)

    patch.setattr(PartitionCore, "check_tenure", hasty)


# --- readers and clients with old metadata


@mutant
def a_replica_leads_until_it_is_told_otherwise(patch: pytest.MonkeyPatch) -> None:
    """Schedule: a deposed leader restarts while coordination is slow, and acknowledges alone what a producer still sends to it."""
    init = PartitionCore.__init__

    def eager(self: PartitionCore, *args: Any) -> None:
        init(self, *args)
        self.role, self.leader_epoch = Role.LEADER, max(self.epochs.latest, 1)
        self.ends.lead()

    patch.setattr(PartitionCore, "__init__", eager)


@mutant
def an_older_epoch_is_served(patch: pytest.MonkeyPatch) -> None:
    """Schedule: A leads, B, A again; a producer that has not heard of B goes on at A, which has cut what came before."""
    _serve(patch, lambda asked, own: max(asked, own))


@mutant
def a_newer_epoch_is_served(patch: pytest.MonkeyPatch) -> None:
    """Schedule: a reader comes from the new leader to the deposed one, whose log ends before the reader's offset."""
    _serve(patch, lambda asked, own: min(asked, own))


def _serve(patch: pytest.MonkeyPatch, as_if: Callable[[int, int], int]) -> None:
    leader = PartitionTable.leader

    def lenient(self: PartitionTable, tp: TopicIdPartition, current_leader_epoch: int = -1) -> Partition:
        known = self.get(tp)
        return leader(self, tp, as_if(current_leader_epoch, known.leader_epoch if known is not None else 0))

    patch.setattr(PartitionTable, "leader", lenient)


@mutant
def the_latest_offset_is_told_before_it_is_known(patch: pytest.MonkeyPatch) -> None:
    """Schedule: all replicas restart with a low high watermark; a batch query reads up to the latest offset, and finds no rows."""
    patch.setattr(PartitionCore, "latest_offset", lambda self, *, is_committed: self.ends.high_watermark)


@mutant
def a_follower_waits_for_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogEnds, "bytes_below_end", lambda self, _end: self.readable_bytes)


@mutant
def an_append_wakes_no_follower(patch: pytest.MonkeyPatch) -> None:
    written = LogEnds.written

    def silent(self: LogEnds, next_offset: int, size_bytes: int) -> Moved:
        written(self, next_offset, size_bytes)
        return ()

    patch.setattr(LogEnds, "written", silent)


@mutant
def what_was_there_before_the_start_wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    init = LogEnds.__init__

    def forgetful(self: LogEnds, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        self.counted_from = 0

    patch.setattr(LogEnds, "__init__", forgetful)


@mutant
def what_followers_have_moves_the_high_watermark_and_wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "replica_fetched", lambda self, node, durable_end: self.ends.replica_at(node, durable_end))


# --- transactions


@mutant
def a_marker_ends_all_transactions(patch: pytest.MonkeyPatch) -> None:
    end = ProducerStates.end_transactions

    def careless(self: ProducerStates, marker: Marker, marker_offset: int) -> None:
        end(self, marker, marker_offset)
        self.open_transactions.clear()

    patch.setattr(ProducerStates, "end_transactions", careless)


@mutant
def a_marker_counts_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogEnds, "ended", lambda _self, _first_offset, _marker_offset: None)


@mutant
def a_commit_holds_nothing_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogEnds, "hold_back", lambda _self, _commit, _first_offset: ())


@mutant
def a_marker_ends_what_a_commit_holds_back(patch: pytest.MonkeyPatch) -> None:
    ended = LogEnds.ended

    def hasty(self: LogEnds, first_offset: int, marker_offset: int) -> None:
        ended(self, first_offset, marker_offset)
        self.held_back.clear()

    patch.setattr(LogEnds, "ended", hasty)


@rare(850)
def a_start_takes_all_that_ended_for_decided(patch: pytest.MonkeyPatch) -> None:
    init = LogEnds.__init__

    def credulous(self: LogEnds, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        self._unknown = None
        self.last_stable_offset = self._stable_end()

    patch.setattr(LogEnds, "__init__", credulous)


@mutant
def anybody_may_write_in_a_transaction(patch: pytest.MonkeyPatch) -> None:
    append_as_leader = PartitionCore.append_as_leader

    def lenient(
        self: PartitionCore, header: BatchHeader, now_ms: int, *, clock_ahead_ms: int = 0, is_open_member: bool = False
    ) -> Append | BatchMetadata:
        try:
            return append_as_leader(self, header, now_ms, clock_ahead_ms=clock_ahead_ms, is_open_member=is_open_member)
        except InvalidTxnStateError:
            return append_as_leader(self, header, now_ms, clock_ahead_ms=clock_ahead_ms, is_open_member=header.is_transactional)

    patch.setattr(PartitionCore, "append_as_leader", lenient)


@mutant
def a_snapshot_forgets_aborted_transactions(patch: pytest.MonkeyPatch) -> None:
    def forgetful(*args: Any) -> Snapshot:
        return snapshot_of(*args)._replace(aborted=())

    patch.setattr(core, "snapshot_of", forgetful)
    patch.setattr(recovery, "snapshot_of", forgetful)


@mutant
def a_cut_forgets_aborted_transactions(patch: pytest.MonkeyPatch) -> None:
    def forgetful(files: Any, directory: str, offset: int, seed: int) -> Snapshot | None:
        snapshot = read_snapshot(files, directory, offset, seed)
        return None if snapshot is None else snapshot._replace(aborted=())

    patch.setattr(truncation, "read_snapshot", forgetful)


@mutant
def aborted_transactions_are_looked_up_by_their_first_offset(patch: pytest.MonkeyPatch) -> None:
    def narrow(self: AbortedTransactions, from_offset: int, until_offset: int) -> list[AbortedTransaction]:
        return [entry for entry in self.entries if from_offset <= entry.first_offset < until_offset]

    patch.setattr(AbortedTransactions, "overlapping", narrow)


@mutant
def aborted_transactions_are_looked_up_by_their_marker(patch: pytest.MonkeyPatch) -> None:
    def narrow(self: AbortedTransactions, from_offset: int, until_offset: int) -> list[AbortedTransaction]:
        return [entry for entry in self.entries if from_offset <= entry.marker_offset < until_offset]

    patch.setattr(AbortedTransactions, "overlapping", narrow)


@mutant
def a_look_up_ends_where_the_last_stable_offset_stood_without_the_marker(patch: pytest.MonkeyPatch) -> None:
    end_transactions = ProducerStates.end_transactions

    def hasty(self: ProducerStates, marker: Marker, marker_offset: int) -> None:
        opened = self.open_transactions
        self.open_transactions = {pid: first for pid, first in opened.items() if pid in marker.producer_ids}
        end_transactions(self, marker, marker_offset)
        self.open_transactions = {pid: first for pid, first in opened.items() if pid not in marker.producer_ids}

    patch.setattr(ProducerStates, "end_transactions", hasty)


# --- what goes


@mutant
def retention_takes_what_is_undecided(patch: pytest.MonkeyPatch) -> None:
    retained_from = PartitionCore.retained_from

    def greedy(self: PartitionCore, now_ms: int) -> int:
        stable, self.ends.last_stable_offset = self.ends.last_stable_offset, self.ends.high_watermark
        try:
            return retained_from(self, now_ms)
        finally:
            self.ends.last_stable_offset = stable

    patch.setattr(PartitionCore, "retained_from", greedy)


@mutant
def segments_go_before_their_producers_are_in_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeptSnapshots, "newest_below", lambda _self, offset: offset)


@mutant
def segments_go_before_the_log_start_is_durable(patch: pytest.MonkeyPatch) -> None:
    removable_count = PartitionCore.removable_count
    patch.setattr(PartitionCore, "removable_count", lambda self, _durable_start: removable_count(self, self.ends.log_start_offset))


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS.assert_found(name, monkeypatch, run_seed, SEARCHED)
