"""Finds where a log continues after a bad batch.

Bytes after a bad batch that look like a batch need not be one: a record's value may hold a forged batch of the same partition,
with correct CRCs and matching offsets, since nothing in a batch is secret. So a candidate is accepted

    1  if two of three fields of the bad batch's header point to it: length, offsets, payload CRC;
    2  otherwise, if that header is unreadable, the batches from the candidate on reach the end of the segment, or a bad batch whose
       header leads on by rule 1, and no later batch repeats one of their offsets. Of several candidates, the first that the bad
       header's offsets do not contradict is taken.

If the bad batch's header is intact, its length is certain, and candidates inside the batch are ignored. One case is undecidable:
the header of a batch is lost, and a value in it holds forged batches up to the batch's end that fit the next batch's offsets.

Bytes that the disk cannot read (EIO) belong to no whole batch.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import google_crc32c

from brokerd.record.batch import NO_EPOCH_LIMIT, NO_OFFSET_LIMIT, payload_problem, walk_whole
from brokerd.record.header import HEADER_SIZE, MARK, BatchHeader, decode_header, header_size_claimed
from brokerd.storage.files import File
from brokerd.storage.scan import Scan

_WINDOW_BYTES = 1_048_576
_BLOCK_BYTES = 4_096  # a page, the smallest unit that a disk fails to read
_ALIGNMENT = 8


class Place(NamedTuple):
    """A batch in a segment file."""

    position: int
    header: BatchHeader


class _BadBatch(NamedTuple):
    """A bad batch: its position, the offset expected there, and its header as read (None: unreadable)."""

    position: int
    offset: int
    header: BatchHeader | None

    @property
    def said_end(self) -> int:
        """The end position according to the header; -1 = the header is unreadable."""
        return self.position + self.header.size if self.header is not None else -1

    @property
    def said_offset(self) -> int:
        """The next offset according to the header; -1 = unreadable or impossible."""
        return self.offset + self.header.last_offset_delta + 1 if self.header and self.header.last_offset_delta >= 0 else -1


@dataclass(frozen=True, slots=True)
class Resync:
    """Searches one segment for the batch where the log continues after a bad one."""

    file: File
    seed: int
    _: KW_ONLY
    end: int  # the segment's size
    limit_offset: int = NO_OFFSET_LIMIT  # the base of the next segment, if known
    known_offset: int = NO_OFFSET_LIMIT  # an offset where a batch must begin or the segment must end, if known
    cut_offsets: Collection[int] = ()  # where an operator may have cut the log
    epoch: int = 0
    max_epoch: int = NO_EPOCH_LIMIT

    def find(self, position: int, offset: int) -> Place | None:
        """The batch where the log continues after the bad one at `position`, expected at `offset`; None if there is none. Raises
        OSError.
        """
        while position < self.end:
            here = self._whole_at(position, offset)
            if here is not None:
                return here  # batches before it are missing
            bad = self._bad_at(position, offset)
            led_to = self._led_to(bad)
            if led_to is not None:
                return led_to
            if not self._is_header_whole(bad) and not self._leads_to_remains(bad):
                return self._search(bad)
            position, offset = bad.said_end, bad.said_offset
        return None

    @property
    def _known_offset(self) -> int:
        return min(self.known_offset, self.limit_offset)

    def _search(self, bad: _BadBatch) -> Place | None:
        """Searches after a bad batch whose header is unreadable or wrong."""
        at = bad.position + _ALIGNMENT
        while (place := next(self._candidates(at, bad.offset), None)) is not None:
            if place.header.base_offset >= self._known_offset:
                at = place.position + place.header.size
                continue
            first, at = self._follow(place, bad)
            if first is not None:
                return first
        return None

    def _led_to(self, bad: _BadBatch) -> Place | None:
        """Applies rule 1."""
        if bad.header is None:
            return None
        said = self._whole_at(bad.said_end, bad.offset)
        if said is not None and (said.header.base_offset == bad.said_offset or self._has_payload(bad, said.position)):
            return said
        if self._is_header_whole(bad):
            return None  # everything before that end is inside the bad batch
        for place in self._candidates(bad.position + _ALIGNMENT, bad.offset):
            if place.header.base_offset == bad.said_offset and self._has_payload(bad, place.position):
                return place
            if place.header.base_offset > bad.said_offset:
                break
        return None

    def _follow(self, place: Place, bad: _BadBatch) -> tuple[Place | None, int]:
        """Applies rule 2. Returns the place where the log continues, or None, and the position where the search continues."""
        first = place
        reaches = False
        scan = Scan(
            self.file,
            self.seed,
            position=place.position,
            end=self.end,
            next_offset=place.header.base_offset,
            epoch=self.epoch,
            max_epoch=self.max_epoch,
            payload_from=0,
        )
        for header in scan:
            if header.base_offset == bad.said_offset or scan.batch_position == bad.said_end:
                first = Place(scan.batch_position, header)
            reaches = reaches or header.next_offset == self._known_offset
        # Batches that end where the bad batch's header says it ends are inside it.
        is_inside = scan.next_offset == bad.said_offset or scan.position == bad.said_end
        if is_inside or scan.next_offset > self.limit_offset:
            reaches = False
        elif scan.problem is None:
            reaches = reaches or self._known_offset == NO_OFFSET_LIMIT or scan.next_offset in self.cut_offsets
        elif not reaches:
            next_bad = self._bad_at(scan.position, scan.next_offset)
            led_to = self._led_to(next_bad)
            reaches = self._leads_to_remains(next_bad) if led_to is None else led_to.header.base_offset == next_bad.said_offset
        if reaches and scan.position < self.end and self._is_refuted(scan.position, bad.offset, scan.next_offset):
            reaches = False
        return (first if reaches else None), max(scan.position, place.position + _ALIGNMENT)

    def _is_refuted(self, position: int, offset: int, next_offset: int) -> bool:
        """True if a later batch, not inside another one, repeats an offset below `next_offset`."""
        while (place := next(self._candidates(position, offset), None)) is not None:
            if place.header.base_offset < next_offset:
                return True
            position = place.position + place.header.size
        return False

    def _bad_at(self, position: int, offset: int) -> _BadBatch:
        prefix = self._read(HEADER_SIZE, position)
        header = decode_header(prefix) if len(prefix) == HEADER_SIZE else None
        if header is not None and header.mark != MARK and header.base_offset != offset:
            header = None
        return _BadBatch(position, offset, header)

    def _is_header_whole(self, bad: _BadBatch) -> bool:
        header = self._header_at(bad.position)
        return header is not None and header.base_offset == bad.offset

    def _leads_to_remains(self, bad: _BadBatch) -> bool:
        """True if another bad batch begins where this one's header says it ends: it has the mark and the next offset."""
        if bad.header is None or not bad.position < bad.said_end <= self.end - HEADER_SIZE:
            return False
        prefix = self._read(HEADER_SIZE, bad.said_end)
        if len(prefix) < HEADER_SIZE:  # the file is shorter than it should be
            return False
        header = decode_header(prefix)
        return header.mark == MARK and header.base_offset == bad.said_offset

    def _has_payload(self, bad: _BadBatch, end: int) -> bool:
        """True if the bytes between the bad header and `end` are the payload that the header describes."""
        begin = bad.position + HEADER_SIZE
        if bad.header is None or end <= begin:
            return False
        payload = self._read(end - begin, begin)
        return len(payload) == end - begin and google_crc32c.value(payload) == bad.header.payload_crc

    def _candidates(self, position: int, offset: int) -> Iterator[Place]:
        """Whole batches from `position` on with offsets above `offset`, including batches inside other batches."""
        at, limit = position, _WINDOW_BYTES
        while at < self.end:
            try:
                window = bytes(self.file.pread(min(limit - at % limit, self.end - at), at))
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                if limit == _BLOCK_BYTES:
                    at += limit - at % limit
                limit = _BLOCK_BYTES  # until a read succeeds: each failed read may take seconds
                continue
            limit = _WINDOW_BYTES
            found = window.find(MARK)
            while found >= 0:
                if (at + found) % _ALIGNMENT == 0:
                    place = self._whole_at(at + found, offset)
                    if place is not None:
                        yield place
                found = window.find(MARK, found + 1)
            if not window:  # the file is shorter than it should be
                return
            at += len(window)  # marks are aligned, so none crosses two windows

    def _whole_at(self, position: int, offset: int) -> Place | None:
        """The batch at `position` if it is whole and lies between `offset` and the segment's end."""
        header = self._header_at(position, self.end - position, self.epoch, self.max_epoch)
        if header is None or header.base_offset <= offset or header.next_offset > self.limit_offset:
            return None
        payload = self._read(header.batch_length, position + header.header_size)
        return None if payload_problem(payload, header.batch_length, header.payload_crc) else Place(position, header)

    def _read(self, size: int, position: int) -> bytes:
        """The bytes at `position`: fewer if the file ends before, none if the disk cannot read them."""
        try:
            return bytes(self.file.pread(size, position))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return b""

    def _header_at(
        self, position: int, end: int = NO_OFFSET_LIMIT, epoch: int = -(2**31), max_epoch: int = NO_EPOCH_LIMIT
    ) -> BatchHeader | None:
        """The header at `position` if it is whole. With `end` (relative to `position`), the whole batch must fit before it."""
        if not 0 <= position <= self.end - HEADER_SIZE:
            return None
        prefix = self._read(HEADER_SIZE, position)
        if len(prefix) < HEADER_SIZE or prefix[: len(MARK)] != MARK:
            return None
        size = header_size_claimed(prefix)
        head = prefix if size == HEADER_SIZE else self._read(size, position)
        walk = walk_whole(head, 0, end, self.seed, None, epoch, max_epoch, only_headers=True)
        return None if walk.problem is not None or walk.needed else decode_header(prefix)
