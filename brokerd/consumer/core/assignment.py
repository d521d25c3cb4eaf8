"""The assigned partitions, each with its position or, if that is unknown, where to begin. Pure.

A position changes only when records are handed over, by `move`, or at the application's request. Work in the background
(prefetching, looking up where to begin) may be discarded at any time: positions are authoritative. `version` rises whenever that
work no longer matches the assignment.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from brokerd.client.fetching import EpochStart
from brokerd.errors import ConsumerStateError, WireError
from brokerd.ids import LogPosition, TopicIdPartition, TopicPartition

NO_OFFSET = -1
_EPOCHS_MAX = 100


class Begin(enum.Enum):
    """Where to begin in a partition that has no position."""

    COMMITTED = "committed"  # at the group's committed offset; without one, by auto.offset.reset
    RESET = "reset"  # by auto.offset.reset
    EARLIEST = "earliest"
    LATEST = "latest"


class Gone(NamedTuple):
    """State of a partition whose topic has disappeared, kept in case the same topic reappears."""

    tp: TopicIdPartition
    position: LogPosition | None  # None = unknown at the time
    begun_at: LogPosition | None
    had_offset: int = NO_OFFSET  # of the group

    def resumes_at(self, *, in_group: bool) -> LogPosition | None:
        """Where to resume without a committed offset: at the position or, in a group, where reading began, since records handed
        over since then may belong to a transaction that fails. None: by auto.offset.reset."""
        return self.begun_at if in_group and self.begun_at is not None else self.position


@dataclass(slots=True, eq=False)
class AssignedPartition:
    """One partition. `version` rises when the position is set or lost, but not when records are handed over."""

    tp: TopicPartition
    id_tp: TopicIdPartition | None = None  # None = not looked up yet
    position: int | None = None  # next offset to hand over; None = to be looked up by `begin`
    records_end: int | None = None  # the position before markers that followed the last record handed over
    begin: Begin = Begin.COMMITTED
    reason: str = ""  # why the position was lost, for a log line
    # The group's committed offset when reading began or since, NO_OFFSET for none, or the error of its lookup; None = unknown.
    committed: int | WireError | None = None
    is_in_transaction: bool = False  # records read since `committed` was found, and their offset, are part of one
    has_lost_committed: bool = False  # `committed` must be looked up again, even if the position is known
    had_offset: int = NO_OFFSET  # the group's when the position was lost: if it has none by now, the resume point is unknown
    begun_at: LogPosition | None = None  # where reading began; a failed transaction resumes there if its group has no offset
    gone: Gone | None = None
    fetch_offset: int | None = None  # next offset to fetch, after the buffered records; None = at the position
    last_response: int = 0  # number of the last response that had something of it
    is_paused: bool = False
    is_unreadable: bool = False  # at a batch that cannot be decoded: nothing after it is fetched
    version: int = 0
    epochs: list[EpochStart] = field(default_factory=list)  # leader epochs of fetched records, by offset

    @property
    def is_unresolved(self) -> bool:
        """True while a lookup is needed: of the id, the position, or the group's offset, for the next transaction."""
        return self.id_tp is None or self.position is None or self.has_lost_committed

    def go_to(self, position: int | None, begin: Begin, reason: str = "") -> None:
        """Sets the position or, if None, where to begin."""
        self.epochs = []
        self.position, self.begin, self.reason = position, begin, reason
        self.records_end = position
        self.fetch_offset = self.gone = None
        self.is_unreadable = False
        self.version += 1

    def enter(self, epoch: EpochStart) -> None:
        """Notes the leader epoch of the fetched records from an offset on."""
        self.epochs = [one for one in self.epochs[-_EPOCHS_MAX:] if one.offset < epoch.offset]
        self.epochs.append(epoch)

    def epoch_before(self, offset: int) -> int:
        """Id of the leader epoch of the record before `offset`; 0 if unknown, or if `offset` is beyond what was fetched."""
        if self.position is None or offset > max(self.position, self.fetch_offset or 0):
            return 0
        return next((one.id for one in reversed(self.epochs) if one.offset < offset), 0)

    def log_position(self) -> LogPosition | None:
        """The position with its leader epoch."""
        return None if self.position is None else LogPosition(self.position, self.epoch_before(self.position))


HandedOver = dict[AssignedPartition, int]  # positions before one call handed over its records


class _Stored(NamedTuple):
    """An offset that the application itself committed, and the position before the first record handed over since; for records in
    work, that record's offset, since markers may precede it."""

    offset: int
    position: int | None


class Assignment:
    """Assigned partitions by name, in the order in which they were given."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, AssignedPartition] = {}
        self.by_id: dict[TopicIdPartition, AssignedPartition] = {}
        self.version = 0
        self._unconfirmed: dict[AssignedPartition, int] = {}  # positions before the last records were handed over
        self._stored: dict[AssignedPartition, _Stored] = {}  # valid until a later record counts as processed
        # A partition's first unfinished record in work. None = no work: the next call counts the records handed over as processed.
        self.first_unfinished: Callable[[TopicPartition], int | None] | None = None

    def given_up(self, tps: Iterable[TopicPartition]) -> list[AssignedPartition]:
        """The partitions whose reading ends once `tps` are assigned."""
        stay = set(tps)
        return [one for tp, one in self.partitions.items() if tp not in stay and one.id_tp is not None]

    def assign(self, tps: Sequence[TopicPartition]) -> None:
        """Replaces the assignment; partitions that stay keep position and pause."""
        for one in self.given_up(tps):
            self._forget_unconfirmed(one)
            if one.id_tp is not None:
                self.by_id.pop(one.id_tp, None)
        self.partitions = {tp: self.partitions.get(tp) or AssignedPartition(tp) for tp in tps}
        self.version += 1

    def of(self, tp: TopicPartition) -> AssignedPartition:
        """An assigned partition. Raises ConsumerStateError."""
        one = self.partitions.get(tp)
        if one is None:
            raise ConsumerStateError(f"{tp} is not assigned to this consumer: assign() it first")
        return one

    def seek(self, one: AssignedPartition, position: int | None, begin: Begin = Begin.COMMITTED, reason: str = "") -> None:
        """Seeks to an offset or, if None, to where `begin` says."""
        one.go_to(position, begin, reason)
        one.begun_at, one.had_offset = None, NO_OFFSET
        self._forget_unconfirmed(one)
        self.version += 1

    def _forget_unconfirmed(self, one: AssignedPartition) -> None:
        self._unconfirmed.pop(one, None)
        self._stored.pop(one, None)

    def pause(self, one: AssignedPartition, *, is_paused: bool) -> None:
        """Pauses or resumes a partition."""
        if one.is_paused != is_paused:
            one.is_paused = is_paused
            self.version += 1

    def forget_id(self, one: AssignedPartition) -> None:
        """Forgets the id of a topic that disappeared. A new topic of its name is read as if for the first time. If the same topic
        reappears (the principal regained its permission), reading resumes at the group's committed offset, or as Gone says."""
        id_tp, position, begun_at, had_offset = one.id_tp, one.log_position(), one.begun_at, _had_offset(one)
        begin = one.begin if position is None else Begin.COMMITTED
        if id_tp is not None:
            self.by_id.pop(id_tp, None)
        one.id_tp = one.committed = None
        self.seek(one, None, begin)
        one.gone = None if id_tp is None or begin is not Begin.COMMITTED else Gone(id_tp, position, begun_at, had_offset)

    def seek_to_committed(self, one: AssignedPartition) -> None:
        """Seeks to the group's committed offset, to be looked up; if there is none, to where reading began."""
        begun_at, gone, had_offset = one.begun_at, one.gone, _had_offset(one)
        self.seek(one, None)
        one.had_offset = had_offset
        one.committed, one.has_lost_committed, one.begun_at, one.gone = None, True, begun_at, gone

    def found(
        self,
        one: AssignedPartition,
        id_tp: TopicIdPartition,
        position: LogPosition,
        version: int,
        committed: int | WireError | None = None,
    ) -> bool:
        """Applies the result of a search that began at `version` of the partition; False if it is outdated. `committed`: the
        group's offset if it was looked up, or the broker's error."""
        if self.partitions.get(one.tp) is not one or one.version != version:
            return False
        one.id_tp = id_tp
        if committed is not None:
            one.committed, one.is_in_transaction = committed, False
        one.has_lost_committed, one.had_offset = False, NO_OFFSET
        self.by_id[id_tp] = one
        one.go_to(position.offset, one.begin)
        one.enter(EpochStart(position.offset - 1, position.leader_epoch_id))
        self.version += 1
        return True

    def committed(self, offsets: Mapping[TopicIdPartition, int]) -> None:
        """Notes that this consumer has committed these offsets for its group."""
        for id_tp, offset in offsets.items():
            if id_tp in self.by_id:
                self.by_id[id_tp].committed = offset

    def unresolved(self) -> list[AssignedPartition]:
        """Partitions that need a lookup: of the id, the position or the group's offset."""
        return [one for one in self.partitions.values() if one.is_unresolved]

    def fetchable(self) -> list[AssignedPartition]:
        """Partitions to fetch: resolved, not paused and not at a batch that cannot be decoded."""
        return [one for one in self.partitions.values() if not (one.is_unresolved or one.is_paused or one.is_unreadable)]

    def cannot_read(self, id_tp: TopicIdPartition) -> None:
        """Notes that a partition is at a batch that cannot be decoded, until its position is set."""
        one = self.by_id[id_tp]
        if not one.is_unreadable:
            one.is_unreadable = True
            self.version += 1

    def move(self, reached: Mapping[TopicIdPartition, int], handed: HandedOver) -> None:
        """Moves positions to these offsets: all earlier records are handed over. Notes the previous positions in `handed`."""
        for id_tp, offset in reached.items():
            one = self.by_id[id_tp]
            if one.position is not None:
                handed.setdefault(one, one.position)
                self._unconfirmed.setdefault(one, one.position)
                stored = self._stored.get(one)
                if stored is not None and stored.position in (None, one.position):
                    self._stored[one] = stored._replace(position=self._first_in_work(one) or one.position)
                one.begun_at = one.begun_at or one.log_position()
                one.position = one.records_end = offset

    def pass_markers(self, reached: Mapping[TopicIdPartition, int]) -> None:
        """Moves positions to these offsets, past markers and aborted records, which count as processed with what precedes them."""
        for id_tp, offset in reached.items():
            one = self.by_id[id_tp]
            stored = self._stored.get(one)
            if stored is not None and stored.position == one.position:
                self._stored[one] = stored._replace(position=offset)
            if one.position is not None:
                one.begun_at = one.begun_at or one.log_position()
                one.position = offset

    def go_back(self, handed: HandedOver) -> None:
        """Undoes a `move` whose records did not reach the application."""
        for one, position in handed.items():
            one.position = position

    def confirm(self) -> None:
        """Counts all records handed over so far as processed."""
        self._unconfirmed.clear()
        self._stored = {
            one: stored
            for one, stored in self._stored.items()
            if stored.position is None or (one.position is not None and stored.position == self._processed(one, one.position))
        }

    def confirm_below(self, id_tp: TopicIdPartition, offset: int) -> None:
        """Counts the records below `offset` as processed, and no others until a record handed over later counts as processed."""
        one = self.by_id.get(id_tp)
        if one is None:
            return
        if one.position is not None and one.records_end is not None and one.records_end <= offset <= one.position:
            self._forget_unconfirmed(one)  # only markers follow
        else:
            self._stored[one] = _Stored(offset, one.position)

    def back_to_unfinished(self) -> list[AssignedPartition]:
        """Ends the work: positions go back to the first unfinished record. Returns the partitions whose positions changed."""
        back = []
        for one in self.partitions.values():
            offset = self._first_in_work(one)
            if offset is not None and one.gone is not None and one.gone.position is not None:
                one.gone = one.gone._replace(position=min(LogPosition(offset), one.gone.position))
            if offset is not None and one.position is not None and offset < one.position:
                epochs, stored = one.epochs, self._stored.get(one)
                self.seek(one, offset)
                one.epochs = epochs
                if stored is not None and stored.position == offset:
                    self._stored[one] = stored
                back.append(one)
        if self.first_unfinished is not None:
            self.confirm()  # everything below the positions is finished
        self.first_unfinished = None
        return back

    def positions(self, partitions: Iterable[AssignedPartition], *, is_confirmed: bool) -> dict[AssignedPartition, int]:
        """The known positions; with `is_confirmed`, those below which all records are processed: before the records handed over
        last, or at the first unfinished one in work."""
        known = {one: one.position for one in partitions if one.position is not None and one.id_tp is not None}
        if not is_confirmed:
            return known
        if self.first_unfinished is None:
            stored = {one: self._stored[one].offset for one in known if one in self._stored}
            return known | {one: at for one, at in self._unconfirmed.items() if one in known} | stored
        processed = {one: self._processed(one, position) for one, position in known.items()}
        stands = {one: stored.offset for one, stored in self._stored.items() if stored.position in (None, processed.get(one))}
        return processed | {one: offset for one, offset in stands.items() if one in processed}

    def _processed(self, one: AssignedPartition, position: int) -> int:
        """The position, or the first unfinished record in work."""
        unfinished = self._first_in_work(one)
        return position if unfinished is None else min(position, unfinished)

    def _first_in_work(self, one: AssignedPartition) -> int | None:
        return None if self.first_unfinished is None else self.first_unfinished(one.tp)


def _had_offset(one: AssignedPartition) -> int:
    return one.committed if isinstance(one.committed, int) and one.committed != NO_OFFSET else one.had_offset
