"""All groups: whom they count for, how many there may be, when they expire, and the state as a fold of the log.

A decision changes nothing (`commit`, `delete`, `delete_offsets`, `expired`). The caller appends the event's record to the log and
calls `apply` at once; it answers when the record is durable.

A record says what holds from then on, whatever stood before: so the log is compacted by writing everything that holds once more
(`pieces`), between later commits or not, and giving up all that stands before. Deleted topics need no record: their ids never
come back, and `keep_topics` leaves them out at the next start.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from brokerd.errors import Fate, PolicyViolationError, ProducerFencedError, UnknownGroupError
from brokerd.groups.group import Group
from brokerd.groups.model import NO_OFFSET, CommittedOffset, GroupDeleted, LogEntry, OffsetsCommitted, OffsetsDeleted
from brokerd.ids import TopicIdPartition

PIECE_SLOTS = 500  # of one piece of the state: 350 KiB at most
_CHUNK = 50  # partitions of one group in a record of it
NameOf = Callable[[TopicIdPartition], str]


class Slots(Protocol):
    """A limited number of slots, and how many of them each principal has."""

    def has_room(self, principal: str, count: int) -> bool:
        """True if the principal may take `count` more."""
        ...

    def add(self, principal: str, count: int) -> None:
        """Takes `count` slots, or returns them if negative."""
        ...


class Limits(NamedTuple):
    """Limits of a table. The slots are its own."""

    groups: Slots
    offsets: Slots


class GroupTable:
    """See the module."""

    def __init__(self, limits: Limits, name_of: NameOf = str) -> None:
        """`name_of` a partition of a topic that exists, for texts."""
        self._limits = limits
        self._name_of = name_of
        self._groups: dict[str, Group] = {}
        self.offset_count = 0  # over all groups
        self.decision = 0  # the offsets of transactions up to this number are here

    # Reading

    @property
    def groups(self) -> Mapping[str, Group]:
        """All groups. Only `apply` changes them."""
        return self._groups

    def required(self, group_id: str) -> Group:
        """Raises UnknownGroupError."""
        group = self._groups.get(group_id)
        if group is None:
            raise UnknownGroupError(f"there is no group {group_id!r}: ListGroups names those that there are")
        return group

    # Decisions

    def commit(
        self,
        group_id: str,
        principal: str,
        offsets: Mapping[TopicIdPartition, CommittedOffset],
        expected: Mapping[TopicIdPartition, int] | None = None,
    ) -> LogEntry:
        """The entry that records these offsets. `expected`: what the group has now, NO_OFFSET for none, or the caller's input is
        another's. A new group counts for `principal`. Raises PolicyViolationError, ProducerFencedError; UnknownGroupError where the
        group has none any more.
        """
        group = self._groups.get(group_id)
        _check_expected(group_id, group, expected or {}, self._name_of)
        owner = group.principal if group is not None else principal
        if group is None and not self._limits.groups.has_room(owner, 1):
            raise PolicyViolationError(
                f"group {group_id!r} would be one more than max.groups leaves room for: delete groups that are not used "
                "(brokerd groups delete), or raise the limit"
            )
        added = (group or Group(group_id, owner)).added_slots(offsets)
        if added > 0 and not self._limits.offsets.has_room(owner, added):
            raise PolicyViolationError(
                f"group {group_id!r}: max.group.offsets leaves no room for {added} more (a partition's offset, and each 256 bytes "
                "of its metadata): delete groups that are not used (brokerd groups delete), or raise the limit"
            )
        return LogEntry(group_id, owner, OffsetsCommitted(offsets))

    def renew(self, group_id: str, now_ms: int, ahead_ms: int) -> LogEntry:
        """The entry that makes some of a group's offsets as young as a commit, and so the group. Raises UnknownGroupError."""
        group = self.required(group_id)
        young = {
            tp: committed._replace(timestamp=now_ms, clock_ahead=ahead_ms)
            for tp in itertools.islice(group.partitions(), _CHUNK)
            if (committed := group.offset(tp)) is not None
        }
        return LogEntry(group_id, group.principal, OffsetsCommitted(young))

    def delete(self, group_id: str) -> LogEntry:
        """The entry that forgets a group. Raises UnknownGroupError."""
        group = self.required(group_id)
        return LogEntry(group_id, group.principal, GroupDeleted())

    def delete_offsets(self, group_id: str, tps: Iterable[TopicIdPartition]) -> LogEntry:
        """The entry that forgets some offsets, of partitions that have one. Raises as `delete` does."""
        group = self.required(group_id)
        known = tuple(tp for tp in dict.fromkeys(tps) if group.offset(tp) is not None)
        return LogEntry(group_id, group.principal, OffsetsDeleted(known))

    def expired(self, before_ms: int) -> Iterator[LogEntry]:
        """The entries that forget the groups whose last commit was before `before_ms`, a log time. Each is as of the moment when it
        is asked for, and is to be appended at once; others may commit in between.
        """
        for group in list(self._groups.values()):
            if group.last_commit_ms < before_ms and self._groups.get(group.group_id) is group:  # not gone, and made again since
                yield LogEntry(group.group_id, group.principal, GroupDeleted())

    # Events of the log

    def apply(self, entry: LogEntry) -> None:
        """Takes an entry that stands in the log."""
        group_id, principal, event, decision = entry
        self.decision = max(self.decision, decision)
        group = self._groups.get(group_id)
        if isinstance(event, OffsetsCommitted) and not event.offsets:
            return  # their topics are gone, or it says the number alone
        if isinstance(event, OffsetsCommitted):
            if group is not None and group.principal != principal:  # it was gone with its topics, which leaves no record
                self._change(group, lambda known: known.drop(list(known.partitions())))
                group = None
            if group is None:
                group = self._groups[group_id] = Group(group_id, principal)
                self._limits.groups.add(principal, 1)
            self._change(group, lambda known: known.put(event.offsets))
        elif group is not None and isinstance(event, OffsetsDeleted):
            self._change(group, lambda known: known.drop(event.partitions))
        elif group is not None:
            self._change(group, lambda known: known.drop(list(known.partitions())))

    def forget_topic(self, topic_id: bytes) -> None:
        """The topic is deleted: nobody has an offset of it."""
        for group in [group for group in self._groups.values() if group.knows(topic_id)]:
            self._change(group, lambda known: known.drop_topic(topic_id))

    def keep_topics(self, exists: Callable[[bytes], bool]) -> None:
        """Forgets the offsets of all other topics."""
        found = {topic_id for group in self._groups.values() for topic_id in group.topic_ids()}
        for topic_id in sorted(found):
            if not exists(topic_id):
                self.forget_topic(topic_id)

    def _change(self, group: Group, change: Callable[[Group], None]) -> None:
        slots, count = group.slots, group.count
        change(group)
        self._limits.offsets.add(group.principal, group.slots - slots)
        self.offset_count += group.count - count
        if not group.count:
            del self._groups[group.group_id]
            self._limits.groups.add(group.principal, -1)

    # The log as a whole

    def pieces(self) -> Iterator[Sequence[LogEntry]]:
        """Everything that holds, in pieces: each is as of the moment when it is asked for, and is to be appended at once. Others
        may commit in between. Once all are in the log, it says the same from the first of them on."""
        piece = [LogEntry("", "", OffsetsCommitted({}), self.decision)] if self.decision else []
        slots = 0
        for group in list(self._groups.values()):  # one that is gone since then has no offsets
            for tps in _chunks(list(group.partitions())):
                known = {tp: committed for tp in tps if (committed := group.offset(tp)) is not None}
                if not known:
                    continue
                piece.append(LogEntry(group.group_id, group.principal, OffsetsCommitted(known)))
                slots += sum(committed.slots for committed in known.values())
                if slots >= PIECE_SLOTS:
                    yield piece
                    piece, slots = [], 0
        if piece:
            yield piece


def _check_expected(group_id: str, group: Group | None, expected: Mapping[TopicIdPartition, int], name_of: NameOf) -> None:
    for tp, offset in expected.items():
        committed = group.offset(tp) if group is not None else None
        found = committed.offset if committed is not None else NO_OFFSET
        if found == NO_OFFSET != offset:
            raise UnknownGroupError(
                f"group {group_id!r} has no offset of {name_of(tp)} any more, but the input of this transaction was read when it "
                f"was {offset}: it has expired (offsets.retention.minutes), or was deleted. Nothing of this transaction counts: "
                "set the offset where reading is to go on (brokerd groups reset, or seek())"
            )
        if found != offset:
            raise ProducerFencedError(
                f"group {group_id!r}: its offset of {name_of(tp)} is {_shown(found)}, but the input of this transaction was read "
                f"when it was {_shown(offset)}: another program has gone on from there, or it was reset. Nothing of this "
                "transaction counts: read again from the committed offsets",
                fate=Fate.NOT_APPENDED,
            )


def _shown(offset: int) -> str:
    return str(offset) if offset != NO_OFFSET else "not set"


def _chunks(tps: Sequence[TopicIdPartition]) -> Iterator[Sequence[TopicIdPartition]]:
    return (tps[at : at + _CHUNK] for at in range(0, len(tps), _CHUNK))
