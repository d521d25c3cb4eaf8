"""From which offset on the newest records follow, so many of them. Payloads are not read.

Offsets alone do not say it: markers of transactions take some, and what was aborted takes offsets that readers of committed records
pass over. So headers are counted, from the end backwards, in pieces that grow.
"""

from __future__ import annotations

from collections.abc import Iterator

from brokerd.partition.aborted_transactions import AbortedTransaction, AbortedTransactions
from brokerd.partition.timestamps import LookUp

_PIECE_MAX_OFFSETS = 65_536


def find_newest(look_up: LookUp, count: int, until_offset: int, aborted: AbortedTransactions) -> int:
    """See PartitionReader.newest_offset. Raises OSError, LookUpAbandoned."""
    log_start_offset = look_up.log.log_start_offset
    piece, end, left = min(count, _PIECE_MAX_OFFSETS), until_offset, count
    while 0 < left < end - log_start_offset:  # else none, or all that there is
        begin = max(log_start_offset, end - piece)
        for first, until in reversed(list(_records(look_up, begin, end, aborted.overlapping(begin, end)))):
            if left <= until - first:
                return until - left
            left -= until - first
        piece, end = min(2 * piece, _PIECE_MAX_OFFSETS), begin
    return log_start_offset if count else until_offset


def _records(look_up: LookUp, begin: int, end: int, aborted: list[AbortedTransaction]) -> Iterator[tuple[int, int]]:
    """The offsets from `begin` to `end` that have records for readers: the first of each batch, and the one behind its last."""
    for segment in look_up.log.segments:
        if segment.next_offset <= begin or segment.base_offset >= end:
            continue
        near = look_up.index_of(segment).floor(begin) or (segment.base_offset, 0)
        with look_up.open_files.use(segment.path) as file:
            for _, header in look_up.headers(file, segment, *near):
                if header.base_offset >= end:
                    return
                first, until = max(begin, header.base_offset), min(end, header.next_offset)
                is_void = header.is_transactional and any(
                    header.producer_id == one.producer_id and one.first_offset <= header.base_offset < one.marker_offset
                    for one in aborted
                )
                if first < until and not header.is_control and not is_void:
                    yield first, until
                begin = max(begin, until)
