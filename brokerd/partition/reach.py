"""How far a number of bytes reaches from an offset on, in whole batches. Payloads are not read.

Sizes are those on disk, which are those of a fetch. The index narrows the end down to a few batches, so that the cost does not
depend on how much lies in between.
"""

from __future__ import annotations

from typing import NamedTuple

from brokerd.partition.backlog import batch_of
from brokerd.partition.timestamps import LookUp
from brokerd.storage.segment import Segment


class Reach(NamedTuple):
    """The end of the last batch that still fits, and what the batches up to there take."""

    offset: int
    size_bytes: int


class _Wanted(NamedTuple):
    """The part of a segment that is asked about: from the batch that holds `offset`, which begins at `position`."""

    offset: int
    position: int
    until_offset: int
    until_position: int  # no batch that ends behind it fits


def find_reach(look_up: LookUp, from_offset: int, until_offset: int, max_bytes: int) -> Reach:
    """See PartitionReader.reach. Raises OSError, LookUpAbandoned."""
    offset = max(from_offset, look_up.log.log_start_offset)
    size_bytes = 0
    for segment in look_up.log.segments:
        if segment.next_offset <= offset or segment.base_offset >= until_offset:
            continue
        begin = 0
        if segment.base_offset < offset:
            begin, _ = batch_of(look_up, segment, offset)
        until_position = begin + max_bytes - size_bytes
        if segment.next_offset <= until_offset and segment.size_bytes <= until_position:
            size_bytes += segment.size_bytes - begin
            continue
        wanted = _Wanted(max(offset, segment.base_offset), begin, until_offset, until_position)
        found = _reach_within(look_up, segment, wanted, needs_one=size_bytes == 0)
        if found is None:
            return Reach(wanted.offset, size_bytes)
        size_bytes += found.size_bytes
        if found.offset < min(segment.next_offset, until_offset):
            return Reach(found.offset, size_bytes)
    return Reach(until_offset, size_bytes)


def _reach_within(look_up: LookUp, segment: Segment, wanted: _Wanted, *, needs_one: bool) -> Reach | None:
    """The end of the last batch of a segment that fits; None if not even the first one does, unless one is needed."""
    index = look_up.index_of(segment)
    near = min(index.floor(wanted.until_offset) or (0, 0), index.floor_by_position(wanted.until_position) or (0, 0))
    begin = near if near[1] > wanted.position else index.floor(wanted.offset) or (segment.base_offset, 0)
    found = Reach(begin[0], begin[1] - wanted.position) if begin is near else None
    with look_up.open_files.use(segment.path) as file:
        for position, header in look_up.headers(file, segment, *begin):
            end = position + header.size
            if header.next_offset <= wanted.offset:
                continue
            if header.base_offset >= wanted.until_offset:
                return found
            if end > wanted.until_position and (found is not None or not needs_one):
                return found
            found = Reach(header.next_offset, end - wanted.position)
            if end > wanted.until_position:
                return found
    # The rest of the segment cannot be read: its readers are told so.
    return Reach(segment.next_offset, segment.size_bytes - wanted.position)
