"""All groups: their owners, limits and expiry, and the state rebuilt from the log.

A decision (`commit`, `renew`, `delete`, `delete_offsets`, `expired`) changes no state. The caller appends the record to the log,
calls `apply` at once, and responds when the record is durable.

A record holds absolute values, independent of the records before it. The log is therefore compacted by writing the whole state
again (`pieces`), possibly interleaved with new commits, and deleting the log before it. Deleted topics need no record: topic ids
are never reused, and `keep_topics` drops their offsets at the next start.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from brokerd.coordinator.records import group_deleted, offsets_committed, offsets_deleted
from brokerd.errors import Fate, PolicyViolationError, ProducerFencedError, UnknownGroupError
from brokerd.ids import TopicIdPartition
from brokerd.sharing import Shares
from brokerd.wire.v1.coordinator_log_pb2 import CommittedOffset, CoordinatorRecord, OffsetsDeleted

METADATA_MAX_BYTES = 4_096
NO_OFFSET = -1  # the group has no offset of the partition
PIECE_SLOTS = 500  # in one piece of the state: 350 KiB at most
_METADATA_BYTES_PER_SLOT = 256
_CHUNK = 50  # partitions in one record of `pieces`
NameOf = Callable[[TopicIdPartition], str]


def partition_of(committed: CommittedOffset) -> TopicIdPartition:
    """The partition of a committed offset."""
    return TopicIdPartition(committed.topic_id, committed.partition)


def slots_of(committed: CommittedOffset | None) -> int:
    """Slots of max.group.offsets: one, and one more for each 256 bytes of metadata; 0 for no offset."""
    if committed is None:
        return 0
    return 1 + len(committed.metadata.encode()) // _METADATA_BYTES_PER_SLOT if committed.metadata else 1


class Group:
    """One group: its offsets, by topic and partition. Only the table changes it."""

    __slots__ = ("_topics", "commit_timestamp", "count", "group_id", "last_commit_ms", "principal", "slots")

    def __init__(self, group_id: str, principal: str) -> None:
        self.group_id = group_id
        self.principal = principal
        self.count = 0  # partitions that have an offset
        self.slots = 0
        self.last_commit_ms = 0  # log time
        self.commit_timestamp = 0  # wall clock time of the same commit
        self._topics: dict[bytes, dict[int, CommittedOffset]] = {}

    def offset(self, tp: TopicIdPartition) -> CommittedOffset | None:
        """The offset of one partition."""
        partitions = self._topics.get(tp.topic_id)
        return partitions.get(tp.partition) if partitions is not None else None

    def partitions(
        self,
        after: TopicIdPartition | None = None,
        count_of: Callable[[bytes], int] = lambda _: 0,
        is_wanted: Callable[[bytes], bool] = lambda _: True,
    ) -> Iterator[TopicIdPartition]:
        """Partitions of the wanted topics that have an offset and follow `after`, by topic id and number. `count_of` returns a
        topic's partition count, and adds its partitions without an offset. The group must not change during the iteration."""
        topic_ids = sorted(filter(is_wanted, self._topics))
        for topic_id in topic_ids[bisect_left(topic_ids, after.topic_id) if after is not None else 0 :]:
            for partition in sorted(self._topics[topic_id].keys() | range(count_of(topic_id))):
                tp = TopicIdPartition(topic_id, partition)
                if after is None or tp > after:
                    yield tp

    def offsets(self) -> Iterator[CommittedOffset]:
        """All offsets, by topic id and partition."""
        return (self._topics[tp.topic_id][tp.partition] for tp in self.partitions())

    def topic_ids(self) -> Collection[bytes]:
        """Topics with an offset."""
        return self._topics.keys()

    def put(self, offsets: Iterable[CommittedOffset]) -> None:
        """Adds or replaces offsets. Each is copied: a reference into a record would keep the whole record in memory."""
        for one in offsets:
            committed = CommittedOffset()
            committed.CopyFrom(one)
            partitions = self._topics.setdefault(committed.topic_id, {})
            before = partitions.get(committed.partition)
            self.count += before is None
            self.slots += slots_of(committed) - slots_of(before)
            partitions[committed.partition] = committed
            self.renew(committed.timestamp, committed.clock_ahead_ms)

    def renew(self, timestamp: int, ahead_ms: int) -> None:
        """Notes the time of a commit or renewal."""
        log_time = timestamp - ahead_ms
        if log_time >= self.last_commit_ms:
            self.last_commit_ms, self.commit_timestamp = log_time, timestamp

    def drop(self, tps: Iterable[TopicIdPartition]) -> None:
        """Forgets offsets; ignores partitions without one."""
        for topic_id, partition in tps:
            partitions = self._topics.get(topic_id, {})
            before = partitions.pop(partition, None)
            self.count -= before is not None
            self.slots -= slots_of(before)
            if before is not None and not partitions:
                del self._topics[topic_id]

    def drop_topic(self, topic_id: bytes) -> None:
        """Forgets all offsets of one topic."""
        self.drop([TopicIdPartition(topic_id, partition) for partition in self._topics.get(topic_id, {})])


class GroupTable:
    """The committed offsets of all groups."""

    def __init__(self, groups_max: Shares, slots_max: Shares, name_of: NameOf = str) -> None:
        """`name_of` names a partition in messages."""
        self._groups_max = groups_max
        self._slots_max = slots_max
        self._name_of = name_of
        self._groups: dict[str, Group] = {}
        self.offset_count = 0  # over all groups

    # Reading

    @property
    def groups(self) -> Mapping[str, Group]:
        """All groups. Only `apply` changes them."""
        return self._groups

    def required(self, group_id: str) -> Group:
        """The group. Raises UnknownGroupError."""
        group = self._groups.get(group_id)
        if group is None:
            raise UnknownGroupError(f"there is no group {group_id!r}: ListGroups lists the existing ones")
        return group

    # Decisions

    def commit(
        self,
        group_id: str,
        principal: str,
        offsets: Collection[CommittedOffset],
        expected: Mapping[TopicIdPartition, int] | None = None,
    ) -> CoordinatorRecord:
        """The record of these offsets. `expected`: the group's offsets when the caller read its input, NO_OFFSET for none. A new
        group counts towards the limits of `principal`. Raises PolicyViolationError; ProducerFencedError if an offset differs from
        the expected one, UnknownGroupError if it is gone.
        """
        group = self._groups.get(group_id)
        _check_expected(group_id, group, expected or {}, self._name_of)
        owner = group.principal if group is not None else principal
        if group is None and not self._groups_max.has_room(owner, 1):
            raise PolicyViolationError(
                f"group {group_id!r} exceeds max.groups: delete unused groups (brokerd groups delete), or raise the limit"
            )
        known = group or Group(group_id, owner)
        added = sum(slots_of(one) - slots_of(known.offset(partition_of(one))) for one in offsets)
        if added > 0 and not self._slots_max.has_room(owner, added):
            raise PolicyViolationError(
                f"group {group_id!r}: max.group.offsets leaves no room for {added} more (a partition's offset, and each 256 bytes "
                "of its metadata): delete unused groups (brokerd groups delete), or raise the limit"
            )
        return offsets_committed(group_id, owner, offsets)

    def renew(self, group_id: str, now_ms: int, ahead_ms: int) -> CoordinatorRecord:
        """The record that renews a group: repeats one of its offsets, with the current time. Raises UnknownGroupError."""
        group = self.required(group_id)
        return offsets_committed(group_id, group.principal, itertools.islice(group.offsets(), 1), now_ms, ahead_ms)

    def delete(self, group_id: str) -> CoordinatorRecord:
        """The record that forgets a group. Raises UnknownGroupError."""
        return group_deleted(group_id, self.required(group_id).principal)

    def delete_offsets(self, group_id: str, tps: Iterable[TopicIdPartition]) -> CoordinatorRecord:
        """The record that forgets some offsets; ignores partitions without one. Raises as `delete` does."""
        group = self.required(group_id)
        deleted = OffsetsDeleted()
        for tp in dict.fromkeys(tps):
            if group.offset(tp) is not None:
                deleted.partitions.add(topic_id=tp.topic_id, partition=tp.partition)
        return offsets_deleted(group_id, group.principal, deleted)

    def expired(self, before_ms: int) -> Iterator[CoordinatorRecord]:
        """The records that forget the groups whose last commit was before `before_ms` (log time). Lazy: append each at once; other
        commits may be applied in between."""
        for group in list(self._groups.values()):
            if group.last_commit_ms < before_ms and self._groups.get(group.group_id) is group:  # not deleted or recreated since
                yield group_deleted(group.group_id, group.principal)

    # The log

    def apply(self, record: CoordinatorRecord) -> None:
        """Applies a record that is in the log."""
        group_id, principal = record.group_id, record.principal
        group = self._groups.get(group_id)
        if record.HasField("offsets_committed"):
            offsets = record.offsets_committed.offsets
            if not offsets:
                return  # their topics are deleted
            if group is not None and group.principal != principal:  # the old group vanished with its topics, without a record
                self._change(group, lambda known: known.drop(list(known.partitions())))
                group = None
            if group is None:
                group = self._groups[group_id] = Group(group_id, principal)
                self._groups_max.add(principal, 1)
            self._change(group, lambda known: known.put(offsets))
            group.renew(record.offsets_committed.last_timestamp, record.offsets_committed.clock_ahead_ms)
        elif group is not None and record.HasField("offsets_deleted"):
            tps = [TopicIdPartition(one.topic_id, one.partition) for one in record.offsets_deleted.partitions]
            self._change(group, lambda known: known.drop(tps))
        elif group is not None:
            self._change(group, lambda known: known.drop(list(known.partitions())))

    def forget_topic(self, topic_id: bytes) -> None:
        """Forgets all groups' offsets of a deleted topic."""
        for group in [group for group in self._groups.values() if topic_id in group.topic_ids()]:
            self._change(group, lambda known: known.drop_topic(topic_id))

    def keep_topics(self, exists: Callable[[bytes], bool]) -> None:
        """Forgets the offsets of topics for which `exists` is false."""
        found = {topic_id for group in self._groups.values() for topic_id in group.topic_ids()}
        for topic_id in sorted(found):
            if not exists(topic_id):
                self.forget_topic(topic_id)

    def _change(self, group: Group, change: Callable[[Group], None]) -> None:
        slots, count = group.slots, group.count
        change(group)
        self._slots_max.add(group.principal, group.slots - slots)
        self.offset_count += group.count - count
        if not group.count:
            del self._groups[group.group_id]
            self._groups_max.add(group.principal, -1)

    def pieces(self) -> Iterator[Sequence[CoordinatorRecord]]:
        """The whole state, in pieces. Lazy: append each at once; other commits may be applied in between. Once all are in the log,
        the log from the first piece on yields the same state."""
        piece: list[CoordinatorRecord] = []
        slots = 0
        for group in list(self._groups.values()):  # a group deleted meanwhile has no offsets
            tps = list(group.partitions())
            for at in range(0, len(tps), _CHUNK):
                known = [committed for tp in tps[at : at + _CHUNK] if (committed := group.offset(tp)) is not None]
                if not known:
                    continue
                last, log_time = group.commit_timestamp, group.last_commit_ms
                piece.append(offsets_committed(group.group_id, group.principal, known, last, last - log_time))
                slots += sum(map(slots_of, known))
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
                f"group {group_id!r} no longer has an offset of {name_of(tp)}, but the input of this transaction was read when it "
                f"was {offset}: it expired (offsets.retention.minutes) or was deleted. The transaction is void: set the offset at "
                "which to continue (brokerd groups reset, or seek())"
            )
        if found != offset:
            raise ProducerFencedError(
                f"group {group_id!r}: its offset of {name_of(tp)} is {_shown(found)}, but the input of this transaction was read "
                f"when it was {_shown(offset)}: another program has committed since, or it was reset. The transaction is void: "
                "read again from the committed offsets",
                fate=Fate.NOT_APPENDED,
            )


def _shown(offset: int) -> str:
    return str(offset) if offset != NO_OFFSET else "not set"
