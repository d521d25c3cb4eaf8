"""Bugs planted one at a time in a partition's core and in the code that executes its decisions. The random schedules must find
each; they prove nothing about a bug that they miss."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from brokerd.datadir.partition_table import PartitionTable
from brokerd.errors import InvalidTxnStateError
from brokerd.ids import TopicIdPartition
from brokerd.partition import core, cut, flush_state, recovery
from brokerd.partition.core import Append, PartitionCore, Role, Truncation
from brokerd.partition.cut import LogCut
from brokerd.partition.derived_files import read_snapshot
from brokerd.partition.flush_state import FlushOutcome, FlushPlan, FlushState
from brokerd.partition.leader_epochs import LeaderEpochs
from brokerd.partition.log_ends import LOG_END_MOVED, LogEnd, LogEnds, Moved
from brokerd.partition.log_state import Snapshot, snapshot_of
from brokerd.partition.log_walk import LogWalk
from brokerd.partition.markers import marker_of
from brokerd.partition.partition import FlushTask, Partition
from brokerd.partition.producer_state import AbortedTransactions, BatchMetadata, Marker, ProducerStates
from brokerd.partition.reader import PartitionReader
from brokerd.record.header import BatchHeader
from brokerd.sharing import Caller
from brokerd.storage.segment_bounds import SegmentBounds
from tests.support import partition_simulation
from tests.support.mutants import Mutants
from tests.support.partition_simulation import run_seed
from tests.support.planting import Put

SEARCHED = 3_000
MUTANTS = Mutants()
mutant, rare, bug = MUTANTS.add, MUTANTS.rare, MUTANTS.method


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    window = flush_state.RECOVERY_WINDOW_BYTES
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    flush_state.RECOVERY_WINDOW_BYTES = window


# --- what is durable


@mutant
def acknowledged_before_the_flush(put: Put) -> None:
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

    put(PartitionCore, "begin_flush", eager)
    put(FlushTask, "run", lazy)


@bug(PartitionCore, "flushed")
def high_watermark_is_the_log_end(flushed: Any, self: PartitionCore, plan: FlushPlan, outcome: FlushOutcome) -> Any:
    moved = flushed(self, plan, outcome)
    return moved + self.ends.durable_to(self.ends.log_end_offset)


@bug(Partition, "read")
def readers_see_what_is_not_acknowledged(
    read: Any, self: Partition, offset: int, *, below: LogEnd, max_bytes: int, cached_only: bool, **options: Any
) -> Any:
    end = LogEnd.LOG_END if below is LogEnd.HIGH_WATERMARK else below
    return read(self, offset, below=end, max_bytes=max_bytes, cached_only=cached_only, **options)


@bug(PartitionCore, "flushed")
def a_flush_covers_what_came_meanwhile(flushed: Any, self: PartitionCore, plan: FlushPlan, outcome: FlushOutcome) -> Any:
    moved = flushed(self, plan, outcome)
    return moved + self.ends.durable_to(self.ends.durable_end + 1)


@bug(FlushTask, "__init__")
def a_flush_forgets_sealed_segments(init: Any, self: FlushTask, *args: Any) -> None:
    init(self, *args)
    self.handles = self.handles[-1:]


@bug(PartitionCore, "flush_failed")
def a_failed_flush_counts(_original: Any, self: PartitionCore, plan: FlushPlan, _error: OSError) -> None:
    self.flushed(plan, FlushOutcome())


@bug(LogEnds, "in_sync")
def a_follower_that_says_nothing_does_not_count(in_sync: Any, self: LogEnds, followers: Any, *, is_enough: bool = True) -> Any:
    return in_sync(self, [node for node in followers if node in (self._replicas or {})], is_enough=is_enough)


@rare(850)
def a_follower_reports_what_it_has_not_flushed(put: Put) -> None:
    put(partition_simulation, "reported_end", lambda core: core.ends.log_end_offset)


@bug(LogEnds, "leader_at")
def a_follower_believes_more_than_it_has(_original: Any, self: LogEnds, high_watermark: int, *_more: int) -> Any:
    self.high_watermark = max(self.high_watermark, high_watermark)
    return (LogEnd.HIGH_WATERMARK,)


@bug(LogEnds, "_move_stable")
def nobody_is_woken_for_the_last_stable_offset(move: Any, self: LogEnds) -> Any:
    move(self)
    return ()


# --- appends


@bug(ProducerStates, "prepare")
def state_is_committed_before_the_write(prepare: Any, self: ProducerStates, header: BatchHeader, *args: Any, **kwargs: Any) -> Any:
    prepared = prepare(self, header, *args, **kwargs)
    if not isinstance(prepared, BatchMetadata):
        self.commit(header.producer_id, prepared)
    return prepared


@bug(Partition, "_write")
def state_is_committed_although_the_write_failed(write: Any, self: Partition, append: Append, buffers: Any, caller: Caller) -> None:
    try:
        write(self, append, buffers, caller)
    except Exception:
        if append.producer is not None:
            self.core.producers.commit(append.header.producer_id, append.producer)
        raise


@bug(ProducerStates, "prepare")
def a_repetition_is_appended_again(prepare: Any, self: ProducerStates, header: BatchHeader, *args: Any, **kwargs: Any) -> Any:
    prepared = prepare(self, header, *args, **kwargs)
    return self.entries[header.producer_id] if isinstance(prepared, BatchMetadata) else prepared


@bug(Partition, "append_as_follower")
def a_follower_stamps(_original: Any, self: Partition, batch: Any) -> None:
    append = self.core.append_as_follower(batch.header, marker=marker_of(batch))
    stamped = append.header._replace(leader_epoch=self.core.leader_epoch)
    self._append_stamped(append._replace(header=stamped), batch, Caller("", ""))


MUTANTS.instead("a_roll_takes_no_snapshot", FlushState, "seal", lambda self, segment, _snapshot: self.sealed.append(segment))


@mutant
def a_roll_takes_the_snapshot_too_late(put: Put) -> None:
    rolled, written = PartitionCore.rolled, PartitionCore.written

    def without(self: PartitionCore, segment: SegmentBounds) -> None:
        waiting = list(self.snapshots.waiting)
        rolled(self, segment)
        self.snapshots.waiting = waiting

    def late(self: PartitionCore, append: Append) -> Moved:
        written(self, append)
        if append.must_roll:
            self.snapshots.waiting.append(self.snapshot()._replace(offset=append.header.base_offset))
        return LOG_END_MOVED

    put(PartitionCore, "rolled", without)
    put(PartitionCore, "written", late)


# --- epochs


@bug(LogWalk, "__init__")
def recovery_measures_epochs_against_the_number_of_starts(init: Any, self: LogWalk, *args: Any, **options: Any) -> None:
    """The third start cuts batches of epoch 40 as foreign."""
    init(self, *args, **options)
    self._given = self._given._replace(checkpoint=self._given.checkpoint._replace(leader_epoch=3))


@bug(PartitionCore, "checkpoint_entry", first=80)
def a_checkpoint_keeps_the_epoch_that_the_start_found(checkpoint_entry: Any, self: PartitionCore) -> Any:
    return checkpoint_entry(self)._replace(leader_epoch=max(self.epochs.latest, 0))


@bug(PartitionCore, "lead")
def batches_carry_the_epoch_of_the_start(lead: Any, self: PartitionCore, epoch: int, *more: Any, **options: Any) -> Any:
    before = self.leader_epoch
    moved = lead(self, epoch, *more, **options)
    self.leader_epoch = before or epoch
    return moved


MUTANTS.instead("a_request_is_acknowledged_in_another_epoch", Partition, "leads_in", lambda _self, _epoch: True)


@bug(PartitionCore, "written")
def an_epoch_is_noted_one_batch_late(written: Any, self: PartitionCore, append: Append) -> Any:
    before = list(self.epochs.entries)
    moved = written(self, append)
    if len(self.epochs.entries) > len(before):
        self.epochs.entries[-1] = self.epochs.entries[-1]._replace(start_offset=append.header.next_offset)
    return moved


@bug(PartitionCore, "checkpoint_entry")
def a_start_takes_all_that_is_durable_for_committed(checkpoint_entry: Any, self: PartitionCore) -> Any:
    return checkpoint_entry(self)._replace(high_watermark=self.ends.durable_end)


@bug(PartitionCore, "checkpoint_entry", first=610)
def a_start_takes_all_that_is_committed_for_decided(checkpoint_entry: Any, self: PartitionCore) -> Any:
    return checkpoint_entry(self)._replace(announced_stable_offset=self.ends.high_watermark)


# --- cuts


@mutant
def a_cut_goes_below_the_high_watermark(put: Put) -> None:
    put(partition_simulation, "cut_offset", lambda end, own_end: max(min(end, own_end) - 1, 0))
    truncate_to = PartitionCore.truncate_to

    def careless(self: PartitionCore, offset: int) -> Truncation:
        high_watermark, self.ends.high_watermark = self.ends.high_watermark, 0
        try:
            return truncate_to(self, offset)
        finally:
            self.ends.high_watermark = high_watermark

    put(PartitionCore, "truncate_to", careless)


@bug(PartitionCore, "truncated")
def a_cut_keeps_the_state_of_producers(truncated: Any, self: PartitionCore, truncation: Any, last: Any, _producers: Any) -> Any:
    return truncated(self, truncation, last, self.producers)


MUTANTS.instead("a_cut_keeps_epochs", LeaderEpochs, "truncate", lambda _self, _offset: None)


MUTANTS.instead("a_cut_leaves_whole_batches_on_the_disk", LogCut, "_wipe", lambda _self, _segment, _position: None, first=455)


@mutant
def a_cut_is_made_before_the_checkpoint_knows(put: Put) -> None:
    truncate = cut.truncate
    put(partition_simulation, "truncate", lambda cuts, _checkpoint_job: truncate(cuts, lambda: lambda: None))


MUTANTS.instead("a_cut_is_made_although_another_leader_is_followed", PartitionCore, "check_tenure", lambda _self, _tenure: None)


@bug(PartitionCore, "truncate_to")
def a_log_takes_appends_while_it_is_cut(truncate_to: Any, self: PartitionCore, offset: int) -> Any:
    truncation = truncate_to(self, offset)
    self.health.is_being_cut = False
    return truncation


@bug(PartitionReader, "register", first=600)
def zeros_of_a_cut_are_taken_for_damage(register: Any, self: PartitionReader, file: Any, segment: Any, *more: Any) -> Any:
    """Schedule: a cold read waits for the disk; the leader is deposed and cuts its log; the read finds zeros."""
    segments, self.core.segments = self.core.segments, (segment,)
    try:
        return register(self, file, segment, *more)
    finally:
        self.core.segments = segments


@bug(PartitionCore, "check_tenure")
def a_read_above_the_high_watermark_belongs_to_no_epoch(check_tenure: Any, self: PartitionCore, tenure: tuple[Role, int]) -> None:
    """Schedule: during a cold read above the high watermark the leader is deposed, cuts and accepts other batches."""
    if tenure[0] is Role.FOLLOWER:  # a cut
        check_tenure(self, tenure)


# --- readers and clients with old metadata


@bug(PartitionCore, "__init__")
def a_replica_leads_until_it_is_told_otherwise(init: Any, self: PartitionCore, *args: Any) -> None:
    """Schedule: a deposed leader restarts while coordination is slow, and alone acknowledges a stale producer's batches."""
    init(self, *args)
    self.role, self.leader_epoch = Role.LEADER, max(self.epochs.latest, 1)
    self.ends.lead()


@mutant
def an_older_epoch_is_served(put: Put) -> None:
    """Schedule: A leads, then B, then A. A producer with metadata from before B sends to A, which has cut its earlier batches."""
    _serve(put, lambda asked, own: max(asked, own))


@rare(55)
def a_newer_epoch_is_served(put: Put) -> None:
    """Schedule: a reader moves from the new leader to the deposed one, whose log ends before the reader's offset."""
    _serve(put, lambda asked, own: min(asked, own))


def _serve(put: Put, as_if: Callable[[int, int], int]) -> None:
    leader = PartitionTable.leader

    def lenient(self: PartitionTable, tp: TopicIdPartition, current_leader_epoch: int = -1) -> Partition:
        known = self.get(tp)
        return leader(self, tp, as_if(current_leader_epoch, known.leader_epoch if known is not None else 0))

    put(PartitionTable, "leader", lenient)


# Schedule: all replicas restart with a low high watermark; a batch query reads up to the latest offset and finds no rows.
MUTANTS.instead(
    "the_latest_offset_is_told_before_it_is_known",
    PartitionCore,
    "latest_offset",
    lambda self, *, is_committed=False: self.ends.high_watermark,
    first=420,
)


MUTANTS.instead("a_follower_waits_for_the_high_watermark", LogEnds, "bytes_below_end", lambda self, _end: self.readable_bytes)


@bug(LogEnds, "written")
def an_append_wakes_no_follower(written: Any, self: LogEnds, next_offset: int, size_bytes: int) -> Any:
    written(self, next_offset, size_bytes)
    return ()


@bug(LogEnds, "__init__")
def what_was_there_before_the_start_wakes_nobody(init: Any, self: LogEnds, *args: Any, **options: Any) -> None:
    init(self, *args, **options)
    self.counted_from = 0


MUTANTS.instead(
    "what_followers_have_moves_the_high_watermark_and_wakes_nobody",
    Partition,
    "replica_fetched",
    lambda self, node, durable_end: self.ends.replica_at(node, durable_end),
)


# --- transactions


@bug(ProducerStates, "end_transactions")
def a_marker_ends_all_transactions(end: Any, self: ProducerStates, marker: Marker, marker_offset: int) -> None:
    end(self, marker, marker_offset)
    self.open_transactions.clear()


MUTANTS.instead("a_marker_counts_before_it_is_durable", LogEnds, "ended", lambda _self, _first_offset, _marker_offset: None)


MUTANTS.instead("a_commit_holds_nothing_back", LogEnds, "hold_back", lambda _self, _commit, _first_offset: ())


@bug(LogEnds, "ended")
def a_marker_ends_what_a_commit_holds_back(ended: Any, self: LogEnds, first_offset: int, marker_offset: int) -> None:
    ended(self, first_offset, marker_offset)
    self.held_back.clear()


@bug(LogEnds, "__init__", first=850)
def a_start_takes_all_that_ended_for_decided(init: Any, self: LogEnds, *args: Any, **options: Any) -> None:
    init(self, *args, **options)
    self._unknown = None
    self.last_stable_offset = self._stable_end()


@bug(PartitionCore, "append_as_leader")
def anybody_may_write_in_a_transaction(append: Any, self: PartitionCore, header: Any, *more: Any, **options: Any) -> Any:
    try:
        return append(self, header, *more, **options)
    except InvalidTxnStateError:
        return append(self, header, *more, **{**options, "is_open_member": header.is_transactional})


@mutant
def a_snapshot_forgets_aborted_transactions(put: Put) -> None:
    def forgetful(*args: Any) -> Snapshot:
        return snapshot_of(*args)._replace(aborted=())

    put(core, "snapshot_of", forgetful)
    put(recovery, "snapshot_of", forgetful)


@mutant
def a_cut_forgets_aborted_transactions(put: Put) -> None:
    def forgetful(files: Any, directory: str, offset: int, seed: int) -> Snapshot | None:
        snapshot = read_snapshot(files, directory, offset, seed)
        return None if snapshot is None else snapshot._replace(aborted=())

    put(cut, "read_snapshot", forgetful)


@bug(AbortedTransactions, "overlapping")
def aborted_transactions_are_looked_up_by_their_first_offset(
    _original: Any, self: AbortedTransactions, from_offset: Any, until_offset: Any
) -> Any:
    return [entry for entry in self.entries if from_offset <= entry.first_offset < until_offset]


@bug(AbortedTransactions, "overlapping")
def aborted_transactions_are_looked_up_by_their_marker(
    _original: Any, self: AbortedTransactions, from_offset: Any, until_offset: Any
) -> Any:
    return [entry for entry in self.entries if from_offset <= entry.marker_offset < until_offset]


@bug(ProducerStates, "end_transactions")
def a_look_up_ends_where_the_last_stable_offset_stood_without_the_marker(
    end_transactions: Any, self: ProducerStates, marker: Any, marker_offset: Any
) -> None:
    opened = self.open_transactions
    self.open_transactions = {pid: first for pid, first in opened.items() if pid in marker.producer_ids}
    end_transactions(self, marker, marker_offset)
    self.open_transactions = {pid: first for pid, first in opened.items() if pid not in marker.producer_ids}


# --- what goes


@bug(PartitionCore, "retained_from")
def retention_takes_what_is_undecided(retained_from: Any, self: PartitionCore, now_ms: int) -> Any:
    stable, self.ends.last_stable_offset = self.ends.last_stable_offset, self.ends.high_watermark
    try:
        return retained_from(self, now_ms)
    finally:
        self.ends.last_stable_offset = stable


@rare(204)
def segments_go_before_the_log_start_is_durable(put: Put) -> None:
    removable_count = PartitionCore.removable_count
    put(PartitionCore, "removable_count", lambda self, _durable_start: removable_count(self, self.ends.log_start_offset))


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS.assert_found(name, monkeypatch.setattr, run_seed, SEARCHED)
