"""The rest that a reader has left to read: bytes, and how long the next record has been there. Payloads are not read."""

from __future__ import annotations

from typing import NamedTuple

from brokerd.partition.timestamps import LookUp
from brokerd.record.header import BatchHeader
from brokerd.storage.segment import Segment

_NONE = -1


class Backlog(NamedTuple):
    """`size_bytes` on disk, from the batch of the first record on; `append_timestamp` of that batch, ms, -1 if there is none."""

    size_bytes: int
    append_timestamp: int


def find_backlog(look_up: LookUp, offset: int, until_offset: int) -> Backlog:
    """See PartitionReader.backlog. Raises OSError, LookUpAbandoned."""
    offset = max(offset, look_up.log.log_start_offset)
    size_bytes, append_timestamp = 0, _NONE
    for segment in look_up.log.segments:
        if segment.next_offset <= offset or segment.base_offset >= until_offset or offset >= until_offset:
            continue
        begin, end = 0, segment.size_bytes
        if append_timestamp == _NONE:
            begin, header = batch_of(look_up, segment, max(offset, segment.base_offset))
            append_timestamp = header.append_timestamp if header is not None else _NONE
        if until_offset < segment.next_offset:
            end, _ = batch_of(look_up, segment, until_offset)
        size_bytes += max(0, end - begin)
    return Backlog(size_bytes, append_timestamp)


def batch_of(look_up: LookUp, segment: Segment, offset: int) -> tuple[int, BatchHeader | None]:
    """Position and header of the batch that holds an offset of the segment, or of the next one that can be read; the segment's end
    if there is none. Raises OSError, LookUpAbandoned.
    """
    begin = look_up.index_of(segment).floor(offset) or (segment.base_offset, 0)
    with look_up.open_files.use(segment.path) as file:
        for position, header in look_up.headers(file, segment, *begin):
            if header.next_offset > offset:
                return position, header
    return segment.size_bytes, None
