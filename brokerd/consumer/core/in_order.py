"""Records in work, by partition: which is the first one that is not finished. Pure.

What lies below that one may be committed, and nothing else: records finish in any order, and one that is finished above one that is
not would be lost, or the other skipped, if the process died.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from brokerd.ids import TopicPartition


class Stretch:
    """Records of one partition that were begun in the order of their offsets, from the first unfinished one on."""

    __slots__ = ("begun", "finished")

    def __init__(self) -> None:
        self.begun: deque[int] = deque()
        self.finished: set[int] = set()  # of those, behind the first

    def finish(self, offset: int) -> None:
        """A record of it is finished."""
        begun, finished = self.begun, self.finished
        if begun[0] != offset:
            finished.add(offset)
            return
        begun.popleft()
        while finished and begun[0] in finished:
            finished.discard(begun.popleft())


class InOrder:
    """Begun records are added in the order of their offsets; they finish in any order."""

    def __init__(self) -> None:
        self._newest: dict[TopicPartition, Stretch] = {}

    def begin(self, tp: TopicPartition, offsets: Sequence[int]) -> Stretch:
        """Records are in work, of rising offsets; they are finished in the stretch that it returns.

        Offsets that begin again below those in work are another stretch: the log was shortened, or was made again, and reading goes
        on before its former end. Those of the old stretch are not in the log any more, so nothing waits for them.
        """
        stretch = self._newest.get(tp)
        if stretch is None or (stretch.begun and offsets[0] <= stretch.begun[-1]):
            stretch = self._newest[tp] = Stretch()
        stretch.begun.extend(offsets)
        return stretch

    def first_unfinished(self, tp: TopicPartition) -> int | None:
        """The offset of the first record that is in work and not finished; None if all are finished."""
        stretch = self._newest.get(tp)
        return stretch.begun[0] if stretch is not None and stretch.begun else None
