"""Defines a whole batch, and the next one in a log: the one rule for every walk over batches, in files and from the wire.

A batch is whole, and the next one, if

    its header is whole: the mark, the length and the CRC are right for this partition, and the version is known;
    it begins where the one before it ended, and does not end before it begins;
    its leader epoch is not below that of the one before it, nor above the present one;
    all its bytes are there; and, for those who read it, its payload has the right CRC.

How many records it holds plays no part: a batch may cover offsets that no record has (compaction and control batches leave such
gaps). What to do about a batch that is not whole is the walker's own business. No I/O lives here.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

import google_crc32c

from brokerd.errors import UnsupportedVersionError
from brokerd.record.header import HEADER_SIZE, HEADER_WORDS, MAGIC, MARK

Bytes: TypeAlias = bytes | bytearray | memoryview
NO_OFFSET_LIMIT = 2**63 - 1
NO_EPOCH_LIMIT = 2**31 - 1
_NO_END = 2**64  # above the end of any batch, whatever its header says
# mark, magic, header_words, batch_length, header_crc, base_offset, leader_epoch, last_offset_delta
_unpack = struct.Struct("<4sBB2xIIq8xi20xi").unpack_from
_extend = google_crc32c.extend
_ZERO_CRC = b"\0\0\0\0"


class NotWholeError(Exception):
    """The batch is not whole, or not the next one; the text says why."""


class MoreBytesError(Exception):
    """The batch may be whole: `needed` bytes of it are to be looked at."""

    def __init__(self, needed: int) -> None:
        self.needed = needed


class Walk(NamedTuple):
    """The batches found in a chunk. Positions are relative to the chunk."""

    start: int  # where the batch that holds the wanted offset begins
    end: int  # after the last whole batch below until_offset
    first_offset: int  # base offset at `start`
    next_offset: int  # offset after `end`
    epoch: int  # of the batch before `end`
    needed: int  # bytes of the batch at `end` if the chunk cuts it off, else 0
    reached_until: bool
    problem: str | None  # why the batch at `end` is not whole
    is_newer: bool  # and it is of a version that is not known


def walk_whole(
    data: Bytes,
    at: int,
    end: int,
    seed: int | None,
    offset: int | None,
    epoch: int = 0,
    max_epoch: int = NO_EPOCH_LIMIT,
    *,
    wanted: int = -1,
    until_offset: int = _NO_END,
    only_headers: bool = False,
    positions: list[int] | None = None,
) -> Walk:
    """Walks the whole batches in `data` from `at` on, where the one at `offset` begins (None: at any offset): skips those below
    `wanted`, takes those below `until_offset`. `only_headers`: payloads need not be in `data`. `end`: where the log ends, counted
    as `at` is. `epoch`: of the batch before. `seed` None: no CRCs. `positions` gets where each begins. A hot loop.
    """
    total = len(data)
    start, first_offset, next_offset, needed, problem = at, offset or 0, offset or 0, 0, None
    reached_until = is_newer = False
    while at < total:
        if at + HEADER_SIZE > total:
            needed, problem = _cut(HEADER_SIZE, end - at)
            break
        mark, magic, words, length, crc, base, own_epoch, delta = _unpack(data, at)
        header_size = words * 8
        if mark != MARK or words < HEADER_WORDS:
            problem = "the mark is missing" if mark != MARK else f"header_words is {words}, less than {HEADER_WORDS}"
            break
        if at + header_size > total:
            needed, problem = _cut(header_size, end - at)
            break
        if seed is not None and _extend(seed, b"".join((data[at : at + 12], _ZERO_CRC, data[at + 16 : at + header_size]))) != crc:
            problem = "header_crc does not match"
            break
        if magic != MAGIC:
            problem, is_newer = f"record batch version {magic} is not known; this version reads {MAGIC}", True
            break
        if (base != offset and offset is not None) or delta < 0 or not epoch <= own_epoch <= max_epoch:
            problem = _chain_problem(base, offset, delta, own_epoch, epoch, max_epoch)
            break
        size, behind = header_size + length, base + delta + 1
        reached_until = behind > until_offset
        if reached_until:
            break
        if at + size > total:
            problem = f"{at + size - end} of its {size} bytes are missing" if at + size > end else None
            needed = size if problem is None and not only_headers else 0
            if needed or problem is not None:
                break
        if positions is not None:
            positions.append(at)
        at += size
        next_offset, epoch = behind, own_epoch
        offset = None if offset is None else behind
        if next_offset <= wanted:
            start, first_offset = at, next_offset
    return Walk(start, at, first_offset, next_offset, epoch, needed, reached_until, problem, is_newer)


def next_batch(
    data: Bytes, at: int, end: int, seed: int | None, offset: int | None, epoch: int = 0, max_epoch: int = NO_EPOCH_LIMIT
) -> tuple[int, int, int]:
    """Size, next offset and leader epoch of the batch at `at`, which is whole as far as its header can say; see `walk_whole`.
    `data` ends with its header.

    Raises NotWholeError, MoreBytesError where the header goes on behind `data`, UnsupportedVersionError.
    """
    walk = walk_whole(data, at, end, seed, offset, epoch, max_epoch, only_headers=True)
    if walk.problem is not None:
        raise UnsupportedVersionError(walk.problem) if walk.is_newer else NotWholeError(walk.problem)
    if walk.needed:
        raise MoreBytesError(walk.needed)
    return walk.end - at, walk.next_offset, walk.epoch


def payload_problem(payload: Bytes, length: int, crc: int) -> str | None:
    """Why these bytes are not a payload of that length and CRC, or None."""
    return None if len(payload) == length and google_crc32c.value(bytes(payload)) == crc else "payload_crc does not match"


def _cut(needed: int, there: int) -> tuple[int, str | None]:
    """Bytes that are to be looked at, or why there are none."""
    return (needed, None) if there >= needed else (0, f"only {there} bytes of a header are there")


def _chain_problem(base: int, offset: int | None, delta: int, own_epoch: int, epoch: int, max_epoch: int) -> str:
    if base != offset and offset is not None:
        return f"base offset {base} stands where {offset} should"
    if delta < 0:
        return f"last_offset_delta is {delta}"
    return f"leader epoch {own_epoch} stands between {epoch} before it and {max_epoch} now"
