"""The promises of transactions on replicated partitions, checked after each step of a schedule. A decision is a record in the
committed part of the coordinator's log. A partition's content is its own committed part. Both are followed as they grow.

- A row is visible at a leader, deposed or not, only if its member is a winner of a decided commit and lies in a partition that the
  commit has counted; and only once all markers of that commit are below their partitions' high watermarks.
- A row that a reader of committed records has seen is at its offset for every later leader. No row appears between those seen.
- When a driver is told of its commit, all rows are there, once, each member's in order.
- No answer contradicts a decision (transaction_promises.py).
- In the end no member is open, no commit unfinished, no reader held back, and readers have seen exactly the committed rows.

An unclean election may choose a copy of a client partition that lacks acknowledged records (replication_promises.py). Then exactly
the rows that it lacks are lost; decisions stay, and a commit may be answered without those rows. Where the copy lacks markers,
readers wait until the coordinator has rewritten them. It does so for the last commit of each transactional id and for every commit
in its log: their rows in that copy become visible. Rows of other commits are void. Once the coordinator's log has lost decisions,
nothing is promised of transactions. It loses none as long as each election finds one of its last two in-sync copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from brokerd.coordinator.records import Event, decode, event_of, is_of_group
from brokerd.datadir.topic_store import COORDINATOR, COORDINATOR_LOG, effective_min_insync
from brokerd.ids import TopicIdPartition
from brokerd.partition.log_ends import LogEnd
from brokerd.partition.partition import Partition
from brokerd.record.batch import RecordBatch, values_of
from brokerd.record.control import decode_control
from brokerd.wire.v1.coordinator_log_pb2 import CommitPrepared, MembersAborted, StateBegins, StateEnds, VersionRepeated
from tests.support.clock import START_WALL_MS
from tests.support.replicated_groups import GroupPromises, GroupRequest
from tests.support.replication_nodes import Process, batches, undisturbed
from tests.support.replication_promises import Promises
from tests.support.simulated_transactions import Request
from tests.support.transaction_actors import Driver, totals_of
from tests.support.transaction_promises import Answers
from tests.support.transactions import committed_slices

if TYPE_CHECKING:
    from tests.support.replicated_transactions import Simulation


class Row(NamedTuple):
    """A row and its member."""

    producer_id: int
    number: int


class DecisionsLostError(AssertionError):
    """The coordinator's log has lost decisions, so nothing is promised of transactions any more."""


class LogPromises(Promises):
    """Promises of the coordinator's log: its committed records are the decisions."""

    def __init__(self, sim: Simulation, tp: TopicIdPartition) -> None:
        super().__init__(sim, tp)
        self._world = sim

    def shrunk(self, partition: Partition) -> None:
        raise DecisionsLostError

    def holds(self, offset: int) -> bool:
        """True unless a compaction has removed the record at this offset."""
        return offset >= self._removed_below

    def _min_insync(self) -> int:
        return effective_min_insync(COORDINATOR, super()._min_insync())

    def grown(self, partition: Partition, before: int) -> None:
        """Records the events that are now below the high watermark."""
        for batch in _below(partition, before, self.shown):
            for record in map(decode, values_of(batch)):
                if is_of_group(record):
                    self._world.decided.groups.recorded(record, self._world.now_ms)
                if record.in_state or not record.transactional_id:
                    continue
                event = event_of(record)
                if not isinstance(event, StateBegins | StateEnds):
                    decided, at_ms = self._world.decided, record.timestamp - START_WALL_MS
                    decided.epoch, decided.offset = batch.header.leader_epoch, batch.header.base_offset
                    decided.recorded(record.transactional_id, event, at_ms)


class RowPromises(Promises):
    """Promises of a client partition: its committed rows, and those that readers of committed records see."""

    def __init__(self, sim: Simulation, tp: TopicIdPartition) -> None:
        super().__init__(sim, tp)
        self._world = sim
        self.data: dict[int, Row] = {}  # all rows by offset
        self.rows: dict[int, Row] = {}  # by offset: rows of members that have ended as winners
        self.open: dict[int, dict[int, Row]] = {}  # by producer id and offset: rows without a marker
        self.lost: set[Row] = set()  # rows that an elected copy lacked
        self.unmarked: set[int] = set()  # producer ids of which an elected copy had rows but lacked the marker
        self.visible: dict[int, Row] = {}  # by offset: rows that readers have seen
        self.read_to = 0  # the highest last stable offset that a reader has seen
        self._looked: dict[Process, tuple[int, int]] = {}  # by leader's process: its epoch, and the offset checked up to

    def grown(self, partition: Partition, before: int) -> None:
        """Records the rows and markers that are now below the high watermark."""
        for batch in _below(partition, before, self.shown):
            header = batch.header
            if not header.is_control:
                rows = self._rows_of(batch)
                self.data.update(rows)
                self.open.setdefault(header.producer_id, {}).update(rows)
                continue
            record = decode_control(batch)
            for producer_id in record.committed_producer_ids:
                self.rows.update(self.open.pop(producer_id, {}))
            for producer_id in record.aborted_producer_ids:
                self._world.decided.check_void(self.tp, producer_id, self.open.pop(producer_id, {}))

    def shrunk(self, partition: Partition) -> None:
        """Recounts from the elected copy alone. Rows that readers have seen and it holds stay visible."""
        before, ended = self.data, {row.producer_id for row in self.data.values()} - self.open.keys()
        self.data, self.rows, self.open = {}, {}, {}
        self.grown(partition, partition.ends.log_start_offset)
        lost = {row for offset, row in before.items() if self.data.get(offset) != row}
        unmarked = self.open.keys() & ended
        self.lost |= lost
        self.unmarked |= unmarked
        self.visible = {offset: row for offset, row in self.visible.items() if offset < self.shown}
        self.read_to = min(self.read_to, self.shown)
        self._world.decided.count_lost(lost, unmarked)

    def _rows_of(self, batch: RecordBatch) -> dict[int, Row]:
        header = batch.header
        numbers = self._world.clients.sent[self.tp, header.producer_id, header.base_sequence]
        return {header.base_offset + place: Row(header.producer_id, number) for place, number in enumerate(numbers)}

    def seen(self, process: Process, partition: Partition) -> None:
        """Readers of this leader see everything below its last stable offset."""
        epoch, stable = partition.leader_epoch, partition.ends.last_stable_offset
        known_epoch, begin = self._looked.get(process, (0, 0))
        if known_epoch != epoch:
            begin = 0  # a new epoch may show other rows
        begin = max(begin, partition.ends.log_start_offset)
        self._looked[process] = epoch, stable
        if begin < stable:
            self._check_visible(partition, begin, stable)

    def _check_visible(self, partition: Partition, begin: int, end: int) -> None:
        found: dict[int, Row] = {}
        for piece in undisturbed(lambda: list(committed_slices(partition, begin, end))):
            rows = self._rows_of(piece.batch)
            found.update((offset, rows[offset]) for offset in range(piece.from_offset, piece.until_offset))
        before = {offset: row for offset, row in self.visible.items() if begin <= offset < end}
        gone = {offset: row for offset, row in before.items() - found.items() if not self._world.decided.is_void(row)}
        assert not gone, f"{self.tp}: readers have seen {gone}, and do not any more"
        for offset in sorted(found.keys() - before.keys()):
            assert offset >= self.read_to, (
                f"{self.tp}: {found[offset]} appears at {offset}, and readers have read on to {self.read_to}"
            )
            self._world.decided.check_visible(self.tp, offset, found[offset])
            self.visible[offset] = found[offset]
        self.read_to = max(self.read_to, end)


def _below(partition: Partition, begin: int, end: int) -> Iterator[RecordBatch]:
    for batch in batches(partition, begin, below=LogEnd.LOG_END):
        if batch.header.base_offset >= end:
            return
        yield batch


class Decisions(Answers):
    """The promises of all transactions: decisions, answers, visible rows."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim.clients)
        self._sim = sim
        self._count = 0
        self._teller: Process
        self.epoch = self.offset = 0  # leader epoch and offset of the current decision
        self._offsets: dict[tuple[str, int], int] = {}  # of commits in the coordinator's log
        self._void: set[Row] = set()  # rows of winners whose commit the coordinator had forgotten
        self._signs: dict[tuple[str, int, str], list[tuple[int, int]]] = {}  # all signs of life: (epoch, time ms)
        self.groups = GroupPromises()

    # --- recorded

    def recorded(self, name: str, event: Event, at_ms: int | None = None) -> None:
        """An event is committed that was decided at `at_ms`."""
        self._count += 1
        super().recorded(name, event, at_ms)
        if isinstance(event, CommitPrepared):
            self._sim.count("prepared, with losers" if event.aborted_producer_ids else "prepared")
            self._offsets[name, event.txn_version] = self.offset
            self._sim.strike_soon(0.4)
            self._sim.prepared(event)
        elif isinstance(event, MembersAborted):
            self._sim.count("aborted")
        elif isinstance(event, VersionRepeated):
            self._sim.count("repeated")

    def _newest(self) -> int:
        return self._count

    def _is_durable(self, _index: int) -> bool:
        return True

    # --- answers

    def told_by(self, process: Process, request: Request | GroupRequest, answer: object, asked_ms: int) -> None:
        """A node answers. Only signs of life at the current coordinator count: a former one does not pass them on."""
        self._teller = process
        if isinstance(request, GroupRequest):
            self.groups.told(request, answer, asked_ms)
        else:
            self.told(request, answer, asked_ms)

    def _check_refused(self, producer_id: int) -> None:
        local = self._teller.broker.coordinator.local
        if local is None or producer_id in local.coordinator.open_members:  # else the member has ended here, perhaps not durably
            super()._check_refused(producer_id)

    def _sign(self, request: Request, asked_ms: int) -> None:
        if self._sim.leader(COORDINATOR_LOG) is self._teller:
            self.epoch = self._sim.entries[COORDINATOR_LOG].leader_epoch
            super()._sign(request, asked_ms)

    def _add_sign(self, key: tuple[str, int, str], at_ms: int) -> None:
        self._signs.setdefault(key, []).append((self.epoch, at_ms))

    def _last_sign_ms(self, key: tuple[str, int, str], at_ms: int) -> int:
        """A replaced coordinator that does not know it misses its successor's signs of life. If it leads again, its decisions from
        that time may stand."""
        return max(sign_ms for epoch, sign_ms in self._signs[key] if epoch <= self.epoch and sign_ms <= at_ms)

    # --- visible

    def check_visible(self, tp: TopicIdPartition, offset: int, row: Row) -> None:
        """Checks a row that has become visible."""
        commit = self._winners.get(row.producer_id)
        assert commit is not None, f"{tp}: {row} is visible at {offset}, but it is not committed"
        event = self._commit(commit)
        first = next((one.first_offset for one in event.held_back if (one.topic_id, one.partition) == tp), None)
        assert first is not None, f"{tp}: {row} is visible at {offset}, but {commit} has not counted it"
        assert first <= offset, f"{tp}: {row} is visible at {offset}, and {commit} begins at {first}"
        assert self._sim.rows_in(tp).rows.get(offset) == row, f"{tp}: {row} is visible at {offset} without a marker"
        if commit not in self._visible:
            self._visible.add(commit)
            self._check_markers(event)
            self._check_totals(commit, "is visible")

    def _commit(self, commit: tuple[str, int]) -> CommitPrepared:
        event = self.commits[commit].event
        assert isinstance(event, CommitPrepared)
        return event

    def _check_markers(self, committed: CommitPrepared) -> None:
        ended = {*committed.committed_producer_ids, *committed.aborted_producer_ids}
        for one in committed.held_back:
            tp = TopicIdPartition(one.topic_id, one.partition)
            promises = self._sim.rows_in(tp)
            missing = (ended & promises.open.keys()) - promises.unmarked
            assert not missing, f"version {committed.txn_version} takes effect, but {tp} has no committed marker for {missing}"

    def _check_totals(self, commit: tuple[str, int], what: str) -> None:
        numbers = [*self._rows(commit), *self._missing(commit)]
        assert self._commit(commit).totals == totals_of(tuple(numbers)), f"{commit} {what} with {sorted(numbers)}"

    def _rows(self, commit: tuple[str, int]) -> Iterator[int]:
        """The rows of a commit that have their marker."""
        for tp in self._sim.rows_tps:
            for row in self._sim.rows_in(tp).rows.values():
                if self._winners.get(row.producer_id) == commit:
                    yield row.number

    def _missing(self, commit: tuple[str, int]) -> set[int]:
        """The commit's rows that are lost, or that have lost their marker."""
        found, there = set(self._void), set[Row]()
        for promises in map(self._sim.rows_in, self._sim.rows_tps):
            found |= promises.lost
            there.update(promises.rows.values())
            for producer_id in promises.unmarked:
                found.update(promises.open.get(producer_id, {}).values())
        return {row.number for row in found - there if self._winners.get(row.producer_id) == commit}

    # --- lost, and void

    def _may_be_gone(self, producer_id: int) -> bool:
        lost = (row for tp in self._sim.rows_tps for row in self._sim.rows_in(tp).lost)
        return super()._may_be_gone(producer_id) or any(row.producer_id == producer_id for row in lost)

    def count_lost(self, lost: set[Row], unmarked: set[int]) -> None:
        """A copy was elected that lacks rows or markers."""
        if lost:
            self._sim.count("rows lost")
        for commit in {self._winners[producer_id] for producer_id in unmarked if producer_id in self._winners}:
            self._sim.count("a last commit lost markers" if self._is_last(commit) else "an earlier commit lost markers")
        if unmarked - self._winners.keys():
            self._sim.count("markers of an abort lost")

    def check_void(self, tp: TopicIdPartition, producer_id: int, rows: dict[int, Row]) -> None:
        """A member's rows in a partition are void. For a winner, only if its commit has not counted the partition; or if an elected
        copy lacked its marker, a newer version was committed, and a compaction has removed the commit from the log."""
        commit = self._winners.get(producer_id)
        if commit is None or not self._has_counted(commit, tp):
            return
        assert producer_id in self._sim.rows_in(tp).unmarked, f"{tp}: {rows} are void, and {commit} has counted them"
        assert not self._is_last(commit), f"{tp}: {rows} are void, and the last commit, {commit}, has counted them"
        log = self._sim.promises[COORDINATOR_LOG]
        assert isinstance(log, LogPromises)
        assert not log.holds(self._offsets[commit]), f"{tp}: {rows} are void, and the log has {commit}, which has counted them"
        self._sim.count("a forgotten commit's rows are void")
        self._void.update(rows.values())

    def is_void(self, row: Row) -> bool:
        """True for a row of a forgotten commit."""
        return row in self._void

    def _is_last(self, commit: tuple[str, int]) -> bool:
        name, version = commit
        return version == max(known for owner, known in self.commits if owner == name)

    def _has_counted(self, commit: tuple[str, int], tp: TopicIdPartition) -> bool:
        return any((one.topic_id, one.partition) == tp for one in self._commit(commit).held_back)

    def told_committed(self, driver: Driver) -> None:
        """A driver learns that its version is committed: checks that all its rows are there, once."""
        commit = driver.name, driver.version
        assert commit in self.commits, f"{commit} is said to be committed"
        found = Counter(self._rows(commit))
        if driver.rows:
            missing = Counter(driver.rows) - found
            assert not found - Counter(driver.rows), f"{commit} is said to be committed with {driver.rows}; there are {found}"
            assert not missing.keys() - self._missing(commit), f"{commit} is said to be committed; {missing} are missing"

    # --- the end

    def check_quiet(self) -> None:
        """Checks that readers have seen exactly the committed rows, in order."""
        for commit in self.commits:
            self._check_totals(commit, "ends")
        for tp in self._sim.rows_tps:
            promises = self._sim.rows_in(tp)
            visible = {offset: row for offset, row in promises.visible.items() if row not in self._void}
            assert visible == promises.rows, f"{tp}: visible are {visible}, and committed {promises.rows}"
            winners = {offset: self._winners.get(row.producer_id) for offset, row in promises.data.items()}
            counted = {offset for offset, commit in winners.items() if commit is not None and self._has_counted(commit, tp)}
            hidden = {row for offset, row in promises.data.items() if offset in counted - promises.rows.keys()} - self._void
            assert not hidden, f"{tp} has {hidden}, which are committed, and hides them"
            assert len(set(promises.rows.values())) == len(promises.rows), f"{tp}: rows are there twice: {promises.rows}"
            by_member: dict[int, list[int]] = {}
            for _, row in sorted(promises.visible.items()):
                by_member.setdefault(row.producer_id, []).append(row.number)
            assert all(numbers == sorted(numbers) for numbers in by_member.values()), f"{tp}: out of order: {by_member}"
