"""Offsets of committed transactions that are not in the group table yet. Pure.

The record of a commit in the transaction log holds the offsets of its group. Once that record is durable, they are copied to the
log of group offsets and applied to the table, in the order of their decision numbers, each once. That log records the highest
number it has, so a restart finds what is left to copy. Until then the group accepts no other decision, so none overtakes them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from brokerd.groups.group_table import Group, GroupLimits, GroupTable
from brokerd.ids import TopicIdPartition
from brokerd.wire.v1.group_log_pb2 import CommittedOffset, GroupLogRecord


class _Waiting(NamedTuple):
    """A decided record, and what it reserves of the limits."""

    record: GroupLogRecord
    groups: int
    slots: int


class Decided:
    """The queue of decided offsets. `limits` are the table's."""

    def __init__(self, table: GroupTable, limits: GroupLimits) -> None:
        self._table = table
        self._limits = limits
        self._waiting: deque[_Waiting] = deque()  # by decision number
        self._by_group: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def is_waiting(self, group_id: str) -> bool:
        """True if the group has decided offsets that are not in the table."""
        return group_id in self._by_group

    @property
    def last(self) -> int:
        """The highest decision number."""
        return max(self._table.decision, self._waiting[-1].record.decision if self._waiting else 0)

    def decide(
        self,
        group_id: str,
        principal: str,
        offsets: Collection[CommittedOffset],
        expected: Mapping[TopicIdPartition, int],
    ) -> GroupLogRecord:
        """The record of these offsets, with the next decision number. No other offsets of the group may be waiting. Raises as
        GroupTable.commit does."""
        assert not self.is_waiting(group_id), "what is decided goes first"
        record = self._table.commit(group_id, principal, offsets, expected)
        record.decision = self.last + 1
        return record

    def add(self, record: GroupLogRecord) -> None:
        """Queues the offsets of a recorded commit, unless they are in the table already. Call it in the order of their numbers."""
        if record.decision <= self._table.decision:
            return
        group = self._table.groups.get(record.group_id)
        added = (group or Group(record.group_id, record.principal)).added_slots(record.offsets_committed.offsets)
        waiting = _Waiting(record, int(group is None), max(0, added))
        self._keep_free(waiting, 1)
        self._waiting.append(waiting)
        self._by_group[record.group_id] += 1

    def due(self, last: int) -> Sequence[GroupLogRecord]:
        """The waiting records up to this number, in order."""
        return [one.record for one in self._waiting if one.record.decision <= last]

    def apply(self, record: GroupLogRecord, written: GroupLogRecord) -> None:
        """Applies the first waiting record, now in the log of group offsets as `written`, without topics deleted meanwhile."""
        waiting = self._waiting.popleft()
        assert waiting.record is record, "in their order"
        self._by_group[record.group_id] -= 1
        if not self._by_group[record.group_id]:
            del self._by_group[record.group_id]
        self._keep_free(waiting, -1)
        self._table.apply(written)

    def _keep_free(self, waiting: _Waiting, sign: int) -> None:
        self._limits.groups.add(waiting.record.principal, sign * waiting.groups)
        self._limits.offsets.add(waiting.record.principal, sign * waiting.slots)
