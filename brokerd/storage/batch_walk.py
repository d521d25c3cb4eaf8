"""The hot loop of a fetch: how many whole batches stand in a chunk of a segment, header CRCs checked. Pure."""

from __future__ import annotations

import struct
from typing import NamedTuple

import google_crc32c

from brokerd.record.header import HEADER_SIZE, HEADER_WORDS, MAGIC, MARK
from brokerd.storage.files import Buffer

# mark, magic, header_words, stamp_flags, batch_length, header_crc, base_offset, then last_offset_delta at byte 56.
_FIELDS = struct.Struct("<4sBBHIIq32xi")
_ZERO_CRC = b"\0\0\0\0"


class Walk(NamedTuple):
    """What stands in a chunk. Positions count from its start."""

    start: int  # where the batch that holds the wanted offset begins
    end: int  # after the last whole batch below until_offset
    first_offset: int  # base offset at `start`
    next_offset: int  # offset after `end`
    needed: int  # bytes of the batch at `end` if it is cut off, else 0
    reached_until: bool
    problem: str | None  # why the batch at `end` is not whole


def walk_chunk(data: Buffer, seed: int, *, expected: int, offset: int, until_offset: int) -> Walk:
    """Walks `data`, which begins with the batch at offset `expected`, skips what lies below `offset`, and takes whole batches
    below `until_offset`.
    """
    unpack, extend = _FIELDS.unpack_from, google_crc32c.extend
    total = len(data)
    start = at = 0
    first_offset = expected
    needed = 0
    reached_until = False
    problem = None
    while at < total:
        if at + HEADER_SIZE > total:
            needed = HEADER_SIZE
            break
        mark, magic, words, _flags, length, crc, base, delta = unpack(data, at)
        header_size = words * 8
        if mark != MARK or words < HEADER_WORDS:
            problem = "the mark is missing"
            break
        if at + header_size > total:
            needed = header_size
            break
        head = bytes(data[at : at + header_size])
        if extend(seed, head[:12] + _ZERO_CRC + head[16:]) != crc:
            problem = "header_crc does not match"
            break
        if magic != MAGIC or base != expected:
            problem = f"a batch of version {magic} at offset {base} stands where offset {expected} should"
            break
        if base + delta >= until_offset:
            reached_until = True
            break
        size = header_size + length
        if at + size > total:
            needed = size
            break
        at += size
        expected = base + delta + 1
        if expected <= offset:
            start, first_offset = at, expected
    return Walk(start, at, first_offset, expected, needed, reached_until, problem)
