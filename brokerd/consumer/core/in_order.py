"""Records in work, by partition: which is the first one that is not finished. Pure.

What lies below that one may be committed, and nothing else: records finish in any order, and one that is finished above one that is
not would be lost, or the other skipped, if the process died.
"""

from __future__ import annotations

from collections import deque

from brokerd.ids import TopicPartition


class InOrder:
    """Begun records are added in the order of their offsets; they finish in any order."""

    def __init__(self) -> None:
        self._begun: dict[TopicPartition, deque[int]] = {}  # from the first unfinished one on
        self._finished: dict[TopicPartition, set[int]] = {}  # of those

    def begin(self, tp: TopicPartition, offset: int) -> None:
        """A record is in work. Raises ValueError if a later one is already."""
        begun = self._begun.setdefault(tp, deque())
        if begun and offset <= begun[-1]:
            raise ValueError(f"offset {offset} of {tp} is begun after {begun[-1]}")
        begun.append(offset)

    def finish(self, tp: TopicPartition, offset: int) -> None:
        """A record in work is finished."""
        begun, finished = self._begun[tp], self._finished.setdefault(tp, set())
        finished.add(offset)
        while begun and begun[0] in finished:
            finished.discard(begun.popleft())

    def first_unfinished(self, tp: TopicPartition) -> int | None:
        """The offset of the first record that is in work and not finished; None if all are finished."""
        begun = self._begun.get(tp)
        return begun[0] if begun else None
