"""Offsets of a group that are committed with a transaction: where the input ends that it was made of.

Each goes with the offset that the group had when that input was read. The broker commits only if the group has it still, so of two
programs that have read the same input one is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from brokerd.errors import TransactionStateError
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.producer.core.membership import GroupOffset, GroupOffsets

NO_OFFSET = -1  # of a partition that the group has none of
_INT64_MAX = 2**63 - 1
_UNKNOWN = -1


class OffsetWithMetadata(Protocol):
    """A committed offset with a text, such as brokerd.client.group_offsets.OffsetAndMetadata."""

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
        self, partitions: Collection[TopicPartition]
    ) -> tuple[str, Mapping[TopicPartition, tuple[TopicIdPartition, int]]]:
        """The group, and of each partition its id and the offset that the group had when reading began."""

    def transaction_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The group has these offsets now."""

    def transaction_failed(self, partitions: Collection[TopicPartition]) -> None:
        """Records that were read of these partitions are not committed, or nobody knows."""


Given = Mapping[TopicPartition, "int | OffsetWithMetadata"]
Expected = Mapping[TopicPartition, "int | OffsetWithMetadata | None"]
FindIds = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, TopicIdPartition]]


def partitions_of(given: Given) -> list[TopicPartition]:
    """The partitions that offsets are given of. Raises TypeError, ValueError."""
    return list(_checked(given))


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
        offsets = _checked(given)
        if not offsets:
            return
        group_id, begun = reader.transaction_input(offsets)
        self._add(group_id, offsets, {tp: begun[tp][0] for tp in offsets}, {tp: begun[tp][1] for tp in offsets})
        self._readers.append((reader, {tp: offset for tp, (offset, _, _) in offsets.items()}))

    def add(self, given: Given, group_id: str, expected: Expected, find_ids: FindIds) -> None:
        """Offsets of any group. Raises as `add_read`, and what `find_ids` raises."""
        offsets = _checked(given)
        if not offsets:
            return
        before = {_partition(tp): NO_OFFSET if one is None else _offset(tp, one)[0] for tp, one in expected.items()}
        missing = [tp for tp in offsets if tp not in before]
        if missing:
            raise ValueError(
                f"expected lacks {missing[0]}: it says which offset the group had there when the input was read, None for none"
            )
        self._add(group_id, offsets, find_ids(offsets), before)

    def _add(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, tuple[int, str, int]],
        ids: Mapping[TopicPartition, TopicIdPartition],
        expected: Mapping[TopicPartition, int],
    ) -> None:
        if self._offsets and group_id != self._group_id:
            raise TransactionStateError(
                f"this transaction has offsets of group '{self._group_id}' already, and none of '{group_id}' can be committed with "
                "it: a transaction has one group"
            )
        self._group_id = group_id
        for tp, (offset, metadata, leader_epoch) in offsets.items():
            known = self._offsets.get(ids[tp])
            before = known.expected if known is not None else expected[tp]
            self._offsets[ids[tp]] = GroupOffset(offset, metadata, leader_epoch, before)

    def committed(self) -> None:
        """They are committed."""
        for reader, offsets in self._readers:
            reader.transaction_committed(offsets)

    def failed(self) -> None:
        """They are not, or nobody knows."""
        for reader, offsets in self._readers:
            reader.transaction_failed(offsets)


def _checked(given: Given) -> dict[TopicPartition, tuple[int, str, int]]:
    return {_partition(tp): _offset(tp, one) for tp, one in given.items()}


def _partition(given: object) -> TopicPartition:
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str)):
        raise TypeError(f"a partition is a TopicPartition or a pair of topic and number, not {given!r:.200}")
    return TopicPartition(given[0], operator.index(given[1]))


def _offset(tp: object, given: object) -> tuple[int, str, int]:
    """Offset, metadata and leader epoch."""
    offset: Any = getattr(given, "offset", given)
    metadata, leader_epoch = getattr(given, "metadata", ""), getattr(given, "leader_epoch", _UNKNOWN)
    try:
        number = operator.index(offset)
    except TypeError:
        raise TypeError(f"the offset of {tp} must be a whole number or an OffsetAndMetadata, not {given!r:.200}") from None
    if isinstance(offset, bool) or not 0 <= number <= _INT64_MAX:
        raise ValueError(f"the offset of {tp} must be a whole number from 0 on, that of the next record to read, not {offset!r}")
    return number, metadata, leader_epoch
