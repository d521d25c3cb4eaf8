"""One partition of the simulated broker: the real PartitionCore on a list instead of files, and a reader of committed records. A
batch's content is its row numbers. A crash cuts the list at a random point above the durable end; the rest is replayed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

from brokerd.config.topic import TopicConfig
from brokerd.errors import CorruptMessageError
from brokerd.ids import TopicIdPartition
from brokerd.partition.core import Append, LogHealth, OpenData, PartitionCore
from brokerd.partition.flush_state import FlushOutcome, FlushPlan
from brokerd.partition.leader_epochs import LeaderEpochs
from brokerd.partition.log_ends import LogEnds
from brokerd.partition.log_state import LogState
from brokerd.partition.producer_state import BatchMetadata, Marker, ProducerStates
from brokerd.record.header import Attributes, BatchHeader, new_header
from brokerd.storage.segment_bounds import SegmentBounds
from brokerd.wire.v1 import control_pb2
from tests.support.clock import START_WALL_MS

_CONFIG = TopicConfig()
_DATA = int(Attributes.TRANSACTIONAL)
_CONTROL = int(Attributes.TRANSACTIONAL | Attributes.CONTROL)
_LIMIT = 1_000


class Stored(NamedTuple):
    """A stamped batch of the log."""

    header: BatchHeader
    rows: tuple[int, ...]
    marker: Marker | None


class Row(NamedTuple):
    """A row as a reader sees it."""

    offset: int
    producer_id: int
    number: int


def data_header(count: int, producer_id: int, sequence: int) -> BatchHeader:
    """The header of a member's batch."""
    return _header(count, _DATA, producer_id, sequence)


def _header(count: int, attributes: int, producer_id: int = -1, sequence: int = -1) -> BatchHeader:
    return new_header(
        batch_length=64,
        payload_crc=0,
        record_count=count,
        base_timestamp=START_WALL_MS,
        max_timestamp=START_WALL_MS,
        uncompressed_bytes=0,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=sequence,
        attributes=attributes,
    )


class SimulatedPartition:
    """See the module."""

    is_leader = True

    def __init__(self, tp: TopicIdPartition) -> None:
        self.tp = tp
        self.name = str(tp)
        self.is_deleted = False
        self.before_marker: Callable[[SimulatedPartition, control_pb2.ControlRecord], None] = lambda *_: None
        self.log: list[Stored] = []
        self.open: dict[int, int] = {}  # first offsets of members without a marker, according to the log
        self.seen: list[Row] = []  # rows that the eager reader has read
        self._read_to = 0
        self._plan: FlushPlan | None = None
        self._flushing_end = self._durable_end = 0  # the disk's durable end, whatever the core assumes
        self.core = self._new_core()

    def _new_core(self) -> PartitionCore:
        producers = ProducerStates(str(self.tp), limit=_LIMIT)
        epochs = LeaderEpochs()
        for header, _, marker in self.log:
            producers.replay(header, marker)
            epochs.assign(header.leader_epoch, header.base_offset)
        end = self.log[-1].header.next_offset if self.log else 0
        segment = SegmentBounds(0)
        segment.next_offset = end
        state = LogState([segment], producers, epochs, 0, end, end)
        core = PartitionCore(str(self.tp), 0, _CONFIG, state)
        core.lead(max(epochs.latest, 0) + 1)
        return core

    # --- appends

    def append(self, header: BatchHeader, rows: tuple[int, ...], *, is_open_member: bool) -> int:
        """Appends a member's batch, or recognises a repeated one; returns its next offset. Raises WireErrors."""
        decided = self.core.append_as_leader(header, START_WALL_MS, is_open_member=is_open_member)
        if isinstance(decided, BatchMetadata):
            return decided.last_offset + 1
        self._write(rows, decided)
        self.open.setdefault(header.producer_id, decided.header.base_offset)
        return decided.header.next_offset

    def append_marker(self, record: control_pb2.ControlRecord, **_: object) -> Any:
        """Appends a marker like Partition, but not encoded. Raises the errors of `before_marker`."""
        self.before_marker(self, record)
        header = _header(1, _CONTROL)
        marker = Marker(tuple(record.committed_producer_ids), tuple(record.aborted_producer_ids))
        decided = self.core.append_marker(header, START_WALL_MS, marker)
        self._write((), decided)
        for producer_id in marker.producer_ids:
            self.open.pop(producer_id, None)
        return SimpleNamespace(last_offset=decided.header.last_offset, leader_epoch=decided.header.leader_epoch)

    def _write(self, rows: tuple[int, ...], decided: Append) -> None:
        self.log.append(Stored(decided.header, rows, decided.marker))
        self.core.written(decided)

    # --- as Partition

    @property
    def leader_epoch(self) -> int:
        return self.core.leader_epoch

    @property
    def ends(self) -> LogEnds:
        return self.core.ends

    @property
    def producers(self) -> ProducerStates:
        return self.core.producers

    @property
    def health(self) -> LogHealth:
        return self.core.health

    def open_data(self, producer_id: int) -> OpenData | None:
        return self.core.open_data(producer_id)

    def latest_offset(self) -> int:
        return self.core.latest_offset()

    def hold_back(self, commit: str, first_offset: int) -> None:
        self.core.ends.hold_back(commit, first_offset)

    # --- durability

    def is_durable(self, offset: int) -> bool:
        """True if everything below this offset is durable, or the topic is deleted."""
        return self.is_deleted or self.core.ends.high_watermark >= offset

    def flush_step(self) -> None:
        """Begins a flush, or completes the one under way."""
        if self._plan is None:
            self._plan, self._flushing_end = self.core.begin_flush(), self.core.ends.log_end_offset
        else:
            plan, self._plan, self._durable_end = self._plan, None, self._flushing_end
            self.core.flushed(plan, FlushOutcome())

    def flush(self) -> None:
        """Makes everything durable."""
        while self._plan is not None or self.core.ends.durable_end < self.core.ends.log_end_offset:
            self.flush_step()

    def crash(self, rng: random.Random) -> None:
        """Loses a random part of the undurable batches, and recovers from the rest."""
        kept = sum(stored.header.next_offset <= self._durable_end for stored in self.log)
        del self.log[rng.randint(kept, len(self.log)) :]
        self._plan = None
        self.core = self._new_core()
        self._durable_end = self.core.ends.log_end_offset
        self.open = {}
        for header, rows, marker in self.log:
            if rows:
                self.open.setdefault(header.producer_id, header.base_offset)
            for producer_id in marker.producer_ids if marker is not None else ():
                self.open.pop(producer_id, None)

    # --- readers

    def read(self) -> list[Row]:
        """The eager reader reads everything visible; returns the new rows."""
        stable = self.core.ends.last_stable_offset
        if stable <= self._read_to:
            return []
        rows = list(self._visible(self._read_to, stable))
        self._read_to = stable
        self.seen += rows
        return rows

    def read_again(self) -> list[Row]:
        """All rows that a new reader sees."""
        return list(self._visible(0, self.core.ends.last_stable_offset))

    def _visible(self, from_offset: int, until_offset: int) -> Iterator[Row]:
        aborted = self.core.aborted_transactions(from_offset, until_offset)
        void = {(entry.producer_id, entry.first_offset, entry.marker_offset) for entry in aborted}
        for header, rows, _ in self.log:
            offset, producer_id = header.base_offset, header.producer_id
            if offset < from_offset or not rows:
                continue
            if offset >= until_offset:
                break
            if any(pid == producer_id and first <= offset < marker for pid, first, marker in void):
                continue
            yield from (Row(offset + number, producer_id, row) for number, row in enumerate(rows))

    def decided(self) -> tuple[list[Row], set[int]]:
        """The committed rows and the aborted members, derived from the committed part of the log alone."""
        end = self.core.ends.high_watermark
        data: dict[int, list[Row]] = {}
        committed: list[Row] = []
        aborted: set[int] = set()
        for header, rows, marker in self.log:
            if header.next_offset > end:
                break
            if marker is not None:
                for producer_id in marker.committed_ids:
                    committed += data.pop(producer_id, [])
                aborted.update(marker.aborted_ids)
            offset = header.base_offset
            data.setdefault(header.producer_id, []).extend(
                Row(offset + number, header.producer_id, row) for number, row in enumerate(rows)
            )
        return committed, aborted


def check_is_readable(partition: SimulatedPartition) -> None:
    """Checks that a new reader sees what the eager one saw, in the same order. Raises CorruptMessageError."""
    again = partition.read_again()
    if again[: len(partition.seen)] != partition.seen:
        raise CorruptMessageError(f"{partition.tp}: read {partition.seen} before, and now {again}")
