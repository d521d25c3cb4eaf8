"""What transactions on replicated partitions promise, checked after each step of a schedule. What is decided is what the committed
part of the coordinator's log says, and what a partition holds is its own committed part: both are followed as they grow.

- A row is visible at a leader, be it deposed or not, only if its member is a winner of a commit that is decided there, and lies in
  a partition that the commit has counted. Until all markers of the commit are below their partitions' high watermarks, none is.
- What a reader of committed records has seen stands at its offset for every later leader, and nothing appears between.
- A driver that is told of its commit: all rows are there, once, and each member's in order.
- Nobody is told anything that contradicts what is decided (transaction_promises.py).
- In the end no member is open, no commit unfinished, nothing holds back a reader, and what readers have seen is what is committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from brokerd.coordinator.records import Event, decode, event_of, is_of_group
from brokerd.datadir.topic_store import COORDINATOR, COORDINATOR_LOG, effective_min_insync
from brokerd.ids import TopicIdPartition
from brokerd.partition.following import ReplicatedPartition
from brokerd.partition.log_ends import LogEnd
from brokerd.record.batch import RecordBatch, values_of
from brokerd.record.control import decode_control
from brokerd.wire.v1.coordinator_log_pb2 import CommitPrepared, MembersAborted, StateBegins, StateEnds, VersionRepeated
from tests.support.clock import START_WALL_MS
from tests.support.replicated_groups import GroupPromises, GroupRequest
from tests.support.replication_nodes import Process, batches
from tests.support.replication_promises import Promises
from tests.support.simulated_transactions import Request
from tests.support.transaction_actors import Driver, totals_of
from tests.support.transaction_promises import Answers
from tests.support.transactions import committed_slices

if TYPE_CHECKING:
    from tests.support.replicated_transactions import Simulation


class Row(NamedTuple):
    """A row, and whose it is."""

    producer_id: int
    number: int


class LogPromises(Promises):
    """Of the coordinator's log: what is committed there is decided."""

    def __init__(self, sim: Simulation, tp: TopicIdPartition) -> None:
        super().__init__(sim, tp)
        self._world = sim

    def _min_insync(self) -> int:
        return effective_min_insync(COORDINATOR, super()._min_insync())

    def grown(self, partition: ReplicatedPartition, before: int) -> None:
        """Its records below the high watermark are events."""
        for batch in _below(partition, before, self.shown):
            for record in map(decode, values_of(batch)):
                if is_of_group(record):
                    self._world.decided.groups.recorded(record, self._world.now_ms)
                if record.in_state or not record.transactional_id:
                    continue
                event = event_of(record)
                if not isinstance(event, StateBegins | StateEnds):
                    decided, at_ms = self._world.decided, record.timestamp - START_WALL_MS
                    decided.epoch = batch.header.leader_epoch
                    decided.recorded(record.transactional_id, event, at_ms)


class RowPromises(Promises):
    """Of a clients' partition: what is committed there, and what readers of committed records see of it."""

    def __init__(self, sim: Simulation, tp: TopicIdPartition) -> None:
        super().__init__(sim, tp)
        self._world = sim
        self.rows: dict[int, Row] = {}  # by offset: those whose members have ended as winners
        self.open: dict[int, dict[int, Row]] = {}  # by producer id and offset: those without a marker
        self.visible: dict[int, Row] = {}  # by offset: those that readers have seen
        self.read_to = 0  # the highest last stable offset that a reader has seen
        self._looked: dict[Process, tuple[int, int]] = {}  # at a leader: its epoch, and up to where

    def grown(self, partition: ReplicatedPartition, before: int) -> None:
        """Rows and markers below the high watermark."""
        for batch in _below(partition, before, self.shown):
            header = batch.header
            if not header.is_control:
                rows = self._rows_of(batch)
                self.open.setdefault(header.producer_id, {}).update(rows)
                continue
            record = decode_control(batch)
            for producer_id in record.committed_producer_ids:
                self.rows.update(self.open.pop(producer_id, {}))
            for producer_id in record.aborted_producer_ids:
                self.open.pop(producer_id, None)

    def _rows_of(self, batch: RecordBatch) -> dict[int, Row]:
        header = batch.header
        numbers = self._world.clients.sent[self.tp, header.producer_id, header.base_sequence]
        return {header.base_offset + place: Row(header.producer_id, number) for place, number in enumerate(numbers)}

    def seen(self, process: Process, partition: ReplicatedPartition) -> None:
        """Readers of this leader see what lies below its last stable offset."""
        epoch, stable = partition.leader_epoch, partition.ends.last_stable_offset
        known_epoch, begin = self._looked.get(process, (0, 0))
        if known_epoch != epoch:
            begin = 0  # it may show all of it in another way
        begin = max(begin, partition.ends.log_start_offset)
        self._looked[process] = epoch, stable
        if begin < stable:
            self._check_visible(partition, begin, stable)

    def _check_visible(self, partition: ReplicatedPartition, begin: int, end: int) -> None:
        found: dict[int, Row] = {}
        for piece in committed_slices(partition, begin, end):
            rows = self._rows_of(piece.batch)
            found.update((offset, rows[offset]) for offset in range(piece.from_offset, piece.until_offset))
        before = {offset: row for offset, row in self.visible.items() if begin <= offset < end}
        gone = before.items() - found.items()
        assert not gone, f"{self.tp}: readers have seen {sorted(gone)}, and do not any more"
        for offset in sorted(found.keys() - before.keys()):
            assert offset >= self.read_to, (
                f"{self.tp}: {found[offset]} appears at {offset}, and readers have read on to {self.read_to}"
            )
            self._world.decided.check_visible(self.tp, offset, found[offset])
            self.visible[offset] = found[offset]
        self.read_to = max(self.read_to, end)


def _below(partition: ReplicatedPartition, begin: int, end: int) -> Iterator[RecordBatch]:
    for batch in batches(partition, begin, below=LogEnd.LOG_END):
        if batch.header.base_offset >= end:
            return
        yield batch


class Decisions(Answers):
    """Of all transactions: what is decided, what is told, what is visible."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim.clients)
        self._sim = sim
        self._count = 0
        self._teller: Process
        self.epoch = 0  # in which the event at hand was decided
        self._signs: dict[tuple[str, int, str], list[tuple[int, int]]] = {}  # all: epoch and time
        self.groups = GroupPromises()

    # --- recorded

    def recorded(self, name: str, event: Event, at_ms: int | None = None) -> None:
        """An event is committed, which was decided at `at_ms`."""
        self._count += 1
        super().recorded(name, event, at_ms)
        if isinstance(event, CommitPrepared):
            self._sim.count("prepared, with losers" if event.aborted_producer_ids else "prepared")
            self._sim.strike_soon(0.4)
        elif isinstance(event, MembersAborted):
            self._sim.count("aborted")
        elif isinstance(event, VersionRepeated):
            self._sim.count("repeated")

    def _newest(self) -> int:
        return self._count

    def _is_durable(self, _index: int) -> bool:
        return True

    # --- told

    def told_by(self, process: Process, request: Request | GroupRequest, answer: object, asked_ms: int) -> None:
        """A node answers. A sign of life counts that the coordinator takes: a former one does not tell the next."""
        self._teller = process
        if isinstance(request, GroupRequest):
            self.groups.told(request, answer, asked_ms)
        else:
            self.told(request, answer, asked_ms)

    def _check_refused(self, producer_id: int) -> None:
        local = self._teller.broker.coordinator.local
        if local is None or producer_id in local.coordinator.open_members:  # else it has ended here, perhaps not durably
            super()._check_refused(producer_id)

    def _sign(self, request: Request, asked_ms: int) -> None:
        if self._sim.leader(COORDINATOR_LOG) is self._teller:
            self.epoch = self._sim.entries[COORDINATOR_LOG].leader_epoch
            super()._sign(request, asked_ms)

    def _add_sign(self, key: tuple[str, int, str], at_ms: int) -> None:
        self._signs.setdefault(key, []).append((self.epoch, at_ms))

    def _last_sign_ms(self, key: tuple[str, int, str], at_ms: int) -> int:
        """One that has been replaced, and does not know it, does not hear what its successor hears. If it leads again, what it has
        decided meanwhile may stand."""
        return max(sign_ms for epoch, sign_ms in self._signs[key] if epoch <= self.epoch and sign_ms <= at_ms)

    # --- visible

    def check_visible(self, tp: TopicIdPartition, offset: int, row: Row) -> None:
        """A row is visible that was not before."""
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
            found = tuple(one.number for _, one in self._rows(commit))
            assert event.totals == totals_of(found), f"{commit} is visible with {sorted(found)}, not {event.totals}"

    def _commit(self, commit: tuple[str, int]) -> CommitPrepared:
        event = self.commits[commit].event
        assert isinstance(event, CommitPrepared)
        return event

    def _check_markers(self, committed: CommitPrepared) -> None:
        ended = {*committed.committed_producer_ids, *committed.aborted_producer_ids}
        for one in committed.held_back:
            tp = TopicIdPartition(one.topic_id, one.partition)
            missing = ended & self._sim.rows_in(tp).open.keys()
            assert not missing, f"version {committed.txn_version} takes effect, but {tp} has no committed marker for {missing}"

    def _rows(self, commit: tuple[str, int]) -> Iterator[tuple[TopicIdPartition, Row]]:
        for tp in self._sim.rows_tps:
            for row in self._sim.rows_in(tp).rows.values():
                if self._winners.get(row.producer_id) == commit:
                    yield tp, row

    def told_committed(self, driver: Driver) -> None:
        """A driver is told that its version is committed: all of its rows are there, once."""
        commit = driver.name, driver.version
        assert commit in self.commits, f"{commit} is said to be committed"
        found = [row.number for _, row in self._rows(commit)]
        if driver.rows:
            assert Counter(found) == Counter(driver.rows), f"{commit} is said to be committed with {driver.rows}; there are {found}"

    # --- the end

    def check_quiet(self) -> None:
        """What readers have seen is what is committed, in order."""
        for commit in self.commits:
            found = tuple(row.number for _, row in self._rows(commit))
            assert self._commit(commit).totals == totals_of(found), f"{commit} has {sorted(found)}"
        for tp in self._sim.rows_tps:
            promises = self._sim.rows_in(tp)
            assert promises.visible == promises.rows, f"{tp}: visible are {promises.visible}, and committed {promises.rows}"
            by_member: dict[int, list[int]] = {}
            for _, row in sorted(promises.visible.items()):
                by_member.setdefault(row.producer_id, []).append(row.number)
            assert all(numbers == sorted(numbers) for numbers in by_member.values()), f"{tp}: out of order: {by_member}"
