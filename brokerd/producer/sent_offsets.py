"""Offsets of a group that are committed with a transaction: where the input ends that it was made of.

Each goes with the offset that the group had when that input was read. The broker commits only if the group has it still, so of two
programs that have read the same input one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from brokerd.arguments import GivenOffset, checked_by_partition, checked_offset, checked_offsets, group_id_problem
from brokerd.errors import TransactionStateError
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.producer.core.membership import GroupOffset, GroupOffsets

NO_OFFSET = -1  # of a partition that the group has none of


class OffsetWithMetadata(Protocol):
    """A committed offset with a text, such as brokerd.client.groups.OffsetAndMetadata."""

    @property
    def offset(self) -> int:
        """The next offset to read."""

    @property
    def metadata(self) -> str:
        """Free text."""

    @property
    def leader_epoch(self) -> int:
        """Of the last record read; -1 = unknown."""


class InputReader(Protocol):
    """The part of a Consumer that a transaction needs."""

    def transaction_input(
        self, offsets: Mapping[TopicPartition, int]
    ) -> tuple[str, Mapping[TopicPartition, tuple[TopicIdPartition, int, int]]]:
        """The group, and of each partition its id, the offset that the group had when reading began, and the id of the leader epoch
        of the record before the offset given, 0 if that was not read there."""

    def transaction_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The group has these offsets now."""

    def transaction_failed(self, partitions: Collection[TopicPartition]) -> None:
        """Records that were read of these partitions are not committed, or nobody knows."""


Given = Mapping[TopicPartition, "int | OffsetWithMetadata"]
Expected = Mapping[TopicPartition, "int | OffsetWithMetadata | None"]
FindIds = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, TopicIdPartition]]


def partitions_of(given: Given) -> list[TopicPartition]:
    """The partitions that offsets are given of. Raises TypeError, ValueError."""
    return list(checked_offsets(given))


class SentOffsets:
    """The offsets that one transaction was given."""

    def __init__(self) -> None:
        self._group_id = ""
        self._offsets: dict[TopicIdPartition, GroupOffset] = {}
        self._readers: list[tuple[InputReader, dict[TopicPartition, int]]] = []

    @property
    def all_of_them(self) -> GroupOffsets | None:
        """As they are committed; None if there are none."""
        return GroupOffsets(self._group_id, self._offsets) if self._offsets else None

    def add_read(self, given: Given, reader: InputReader) -> None:
        """Offsets up to which a consumer has read. Raises TypeError, ValueError, TransactionStateError, and the reader's errors."""
        offsets = checked_offsets(given)
        if not hasattr(reader, "transaction_input"):
            raise TypeError(f"group must be the Consumer that has read the input, or the id of a group, not {reader!r:.200}")
        if not offsets:
            return
        group_id, begun = reader.transaction_input({tp: one.offset for tp, one in offsets.items()})
        offsets = {tp: one._replace(leader_epoch_id=one.leader_epoch_id or begun[tp][2]) for tp, one in offsets.items()}
        self._add(group_id, offsets, {tp: begun[tp][0] for tp in offsets}, {tp: begun[tp][1] for tp in offsets})
        self._readers.append((reader, {tp: offset for tp, (offset, *_) in offsets.items()}))

    def add(self, given: Given, group_id: str, expected: Expected, find_ids: FindIds) -> None:
        """Offsets of any group. Raises as `add_read`, and what `find_ids` raises."""
        offsets = checked_offsets(given)
        problem = group_id_problem(group_id)
        if problem is not None:
            raise ValueError(f"group id {problem}")
        if not offsets:
            return
        before = _before(expected)
        missing = [tp for tp in offsets if tp not in before]
        if missing:
            raise ValueError(
                f"expected lacks {missing[0]}: it says which offset the group had there when the input was read, None for none"
            )
        self._add(group_id, offsets, find_ids(offsets), before)

    def _add(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, GivenOffset],
        ids: Mapping[TopicPartition, TopicIdPartition],
        expected: Mapping[TopicPartition, int],
    ) -> None:
        if self._offsets and group_id != self._group_id:
            raise TransactionStateError(
                f"this transaction has offsets of group '{self._group_id}' already, and none of '{group_id}' can be committed with "
                "it: a transaction has one group"
            )
        self._group_id = group_id
        for tp, (offset, metadata, leader_epoch, epoch_id) in offsets.items():
            known = self._offsets.get(ids[tp])
            before = known.expected if known is not None else expected[tp]
            self._offsets[ids[tp]] = GroupOffset(offset, metadata, leader_epoch, before, epoch_id)

    def committed(self) -> None:
        """They are committed."""
        for reader, offsets in self._readers:
            reader.transaction_committed(offsets)

    def failed(self) -> None:
        """They are not, or nobody knows."""
        for reader, offsets in self._readers:
            reader.transaction_failed(offsets)


def _before(expected: object) -> dict[TopicPartition, int]:
    """The offsets that the group is to have, NO_OFFSET for none. Raises TypeError, ValueError."""
    given = checked_by_partition(expected, "expected", "offsets")
    return {tp: NO_OFFSET if one is None else checked_offset(tp, one).offset for tp, one in given.items()}
