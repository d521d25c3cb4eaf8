"""Walks one segment file, past damage. Shared by recovery and the offline tools.

The walk yields whole batches, tells a torn tail from damage, and finds the damaged offsets and the batch where the log continues.
Read-only; the caller decides what to do about the damage.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from brokerd.ids import TopicIdPartition
from brokerd.record.batch import NO_EPOCH_LIMIT, NO_OFFSET_LIMIT
from brokerd.record.header import BatchHeader, crc_seed
from brokerd.storage.files import File, Files
from brokerd.storage.names import LOG_SUFFIX, offset_file, offsets_of
from brokerd.storage.resync import Place, Resync
from brokerd.storage.scan import Scan


class Lost(NamedTuple):
    """Damaged offsets [`first_offset`, `until_offset`) in a segment. The bad batch begins at `position`; the log continues at
    `resume_position` (None: not in this segment)."""

    first_offset: int
    until_offset: int
    position: int
    problem: str
    resume_position: int | None


@dataclass(eq=False)
class SegmentWalk:
    """`scan` yields the headers of whole batches up to a bad one, and holds the problem found there. `go_past` replaces `scan` by
    one that yields the rest.
    """

    file: File
    seed: int
    _: KW_ONLY
    base_offset: int
    end: int  # the file's size
    successor: int | None = None  # base offset of the next segment, if there is one
    durable_end: int = 0  # everything below was durable; more may have been unless `is_durable_end_known`
    is_durable_end_known: bool = True
    cut_offsets: Collection[int] = ()  # where an operator may have cut the log
    epoch_at: Callable[[int], int] = lambda _: 0  # the lowest leader epoch possible at an offset
    max_epoch: int = NO_EPOCH_LIMIT  # as in Scan
    payload_from: int = NO_OFFSET_LIMIT  # as in Scan

    def __post_init__(self) -> None:
        self._found: Place | None = None
        self._has_searched = False
        self.scan = self._scan_from(0, self.base_offset, 0)

    def is_torn(self) -> bool:
        """True if the bad batch begins a torn tail, which was never known to be durable. Raises OSError."""
        if self.scan.must_keep or self.scan.next_offset < self.durable_end:
            return False
        return self.is_durable_end_known or (self._behind() is None and self.successor is None)

    def go_past(self) -> Lost:
        """Returns the damage at the bad batch, and moves past it if the log continues in this segment. Raises OSError."""
        assert self.scan.problem is not None
        first, position, problem = self.scan.next_offset, self.scan.position, self.scan.problem
        found = self._behind()
        if found is None:
            until = self.successor if self.successor is not None else max(self.durable_end, first + 1)
            return Lost(first, until, position, problem, None)
        self.scan = self._scan_from(found.position, found.header.base_offset, self.scan.epoch)
        self._found, self._has_searched = None, False
        return Lost(first, found.header.base_offset, position, problem, found.position)

    def _scan_from(self, position: int, offset: int, epoch: int) -> Scan:
        return Scan(
            self.file,
            self.seed,
            position=position,
            end=self.end,
            next_offset=offset,
            epoch=max(epoch, self.epoch_at(offset)),
            max_epoch=self.max_epoch,
            payload_from=self.payload_from,
        )

    def _behind(self) -> Place | None:
        if not self._has_searched:
            known = self.durable_end
            search = Resync(
                self.file,
                self.seed,
                end=self.end,
                limit_offset=NO_OFFSET_LIMIT if self.successor is None else self.successor,
                known_offset=known if self.scan.next_offset < known else NO_OFFSET_LIMIT,
                cut_offsets=self.cut_offsets,
                epoch=self.scan.epoch,
                max_epoch=self.max_epoch,
            )
            self._found = search.find(self.scan.position, self.scan.next_offset)
            self._has_searched = True
        return self._found


def whole_batches(file: File, seed: int, base_offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """Positions and headers of a segment's whole batches, past damage too; payload CRCs are not checked. Raises OSError."""
    walk = SegmentWalk(file, seed, base_offset=base_offset, end=file.size())
    while True:
        for header in walk.scan:
            yield walk.scan.batch_position, header
        if walk.scan.problem is None or walk.go_past().resume_position is None:
            return


def batches_of(files: Files, tp: TopicIdPartition, from_offset: int = 0) -> Iterator[tuple[File, int, BatchHeader]]:
    """All whole batches of a partition, from the segment that contains `from_offset` on: the open file, the position in it and the
    header. Raises OSError."""
    directory = tp.directory_name
    names = files.listdir(directory) if directory in files.listdir() else []
    bases = offsets_of(names, LOG_SUFFIX)
    first = max((base for base in bases if base <= from_offset), default=0)
    for base in (base for base in bases if base >= first):
        with closing(files.open(f"{directory}/{offset_file(base, LOG_SUFFIX)}")) as file:
            for position, header in whole_batches(file, crc_seed(tp), base):
                yield file, position, header
