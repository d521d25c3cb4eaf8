"""Offsets that go with transactions: those of commits that are decided and that the table does not have yet. Pure.

The record of a commit, in the transaction log, holds the offsets of its group. They are brought into the log of the groups,
and into the table, once that record is durable, in the order of their numbers, each once: the log says up to which number it has
them, so a start tells by it what is left to do. Until then nothing else is decided about that group, so nothing overtakes them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from brokerd.groups.group import Group
from brokerd.groups.group_table import GroupTable, Limits
from brokerd.groups.model import CommittedOffset, LogEntry, OffsetsCommitted
from brokerd.ids import TopicIdPartition


class _Waiting(NamedTuple):
    """A decided entry, and what is kept free for it."""

    entry: LogEntry
    groups: int
    slots: int


class Decided:
    """See the module. `limits` are the table's."""

    def __init__(self, table: GroupTable, limits: Limits) -> None:
        self._table = table
        self._limits = limits
        self._waiting: deque[_Waiting] = deque()  # in the order of their numbers
        self._by_group: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def is_waiting(self, group_id: str) -> bool:
        """True if the table lacks offsets of this group that are decided."""
        return group_id in self._by_group

    @property
    def last(self) -> int:
        """The newest number."""
        return max(self._table.decision, self._waiting[-1].entry.decision if self._waiting else 0)

    def decide(
        self,
        group_id: str,
        principal: str,
        offsets: Mapping[TopicIdPartition, CommittedOffset],
        expected: Mapping[TopicIdPartition, int],
    ) -> LogEntry:
        """The offsets as the record of a commit holds them; nothing of the group is waiting. Raises as GroupTable.commit does."""
        assert not self.is_waiting(group_id), "what is decided goes first"
        return self._table.commit(group_id, principal, offsets, expected)._replace(decision=self.last + 1)

    def add(self, entry: LogEntry) -> None:
        """A record of a commit holds these; passed over if the table has them. In the order of their numbers."""
        assert isinstance(entry.event, OffsetsCommitted)
        if entry.decision <= self._table.decision:
            return
        group = self._table.groups.get(entry.group_id)
        slots = max(0, (group or Group(entry.group_id, entry.principal)).added_slots(entry.event.offsets))
        waiting = _Waiting(entry, int(group is None), slots)
        self._keep_free(waiting, 1)
        self._waiting.append(waiting)
        self._by_group[entry.group_id] += 1

    def due(self, last: int) -> Sequence[LogEntry]:
        """The entries that are waiting up to this number, in order."""
        return [one.entry for one in self._waiting if one.entry.decision <= last]

    def apply(self, entry: LogEntry, recorded: LogEntry) -> None:
        """The first one that is waiting stands in the log of the groups, as `recorded`: perhaps without topics that are gone."""
        waiting = self._waiting.popleft()
        assert waiting.entry is entry, "in their order"
        self._by_group[entry.group_id] -= 1
        if not self._by_group[entry.group_id]:
            del self._by_group[entry.group_id]
        self._keep_free(waiting, -1)
        self._table.apply(recorded)

    def _keep_free(self, waiting: _Waiting, sign: int) -> None:
        self._limits.groups.add(waiting.entry.principal, sign * waiting.groups)
        self._limits.offsets.add(waiting.entry.principal, sign * waiting.slots)
