"""Defines when a batch is whole and the next one in its log: the one rule for every walk over batches, in files and on the wire.

A batch is whole, and the next one, if

    its header is intact: mark, length and CRC are right for this partition, and the version is known;
    its base offset is the next offset of the batch before it, and its last_offset_delta is not negative;
    its leader epoch is neither below that of the batch before it nor above the current one;
    all its bytes are present; and, where the payload is read, the payload's CRC is right.

The record count plays no part: a batch may cover offsets without records, as compaction and control batches leave them. Callers
decide what to do about a batch that is not whole.
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
    """The batch is not whole, or not the next one; the message gives the reason."""


class MoreBytesError(Exception):
    """The batch may be whole, but judging it takes its first `needed` bytes."""

    def __init__(self, needed: int) -> None:
        self.needed = needed


class Walk(NamedTuple):
    """The batches found in a chunk. Positions are relative to the chunk."""

    start: int  # of the batch that holds the wanted offset
    end: int  # after the last whole batch below until_offset
    first_offset: int  # base offset at `start`
    next_offset: int  # offset after `end`
    epoch: int  # of the batch before `end`
    needed: int  # bytes of the batch at `end` if the chunk cuts it off, else 0
    reached_until: bool
    problem: str | None  # why the batch at `end` is not whole
    is_newer: bool  # the problem is an unknown version


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
    """Walks the whole batches in `data` from `at` on, whose first one has the base offset `offset` (None: any, and gaps are
    allowed). `start` skips batches below `wanted`; the walk ends at `until_offset`. `only_headers`: payloads need not be in `data`.
    `end`: end of the log, relative to `data`. `epoch`: of the batch before. `seed` None: no CRC check. `positions` collects the
    batches' positions. A hot loop.
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
    """Size, next offset and leader epoch of the batch at `at`, judged by its header alone; see `walk_whole`. `data` ends with the
    header.

    Raises NotWholeError, UnsupportedVersionError, and MoreBytesError if the header extends past `data`.
    """
    walk = walk_whole(data, at, end, seed, offset, epoch, max_epoch, only_headers=True)
    if walk.problem is not None:
        raise UnsupportedVersionError(walk.problem) if walk.is_newer else NotWholeError(walk.problem)
    if walk.needed:
        raise MoreBytesError(walk.needed)
    return walk.end - at, walk.next_offset, walk.epoch


def payload_problem(payload: Bytes, length: int, crc: int) -> str | None:
    """Why these bytes are not a payload of this length and CRC, or None."""
    return None if len(payload) == length and google_crc32c.value(bytes(payload)) == crc else "payload_crc does not match"


def _cut(needed: int, there: int) -> tuple[int, str | None]:
    """The bytes needed to go on, or the reason why they are missing."""
    return (needed, None) if there >= needed else (0, f"only {there} bytes of a header are there")


def _chain_problem(base: int, offset: int | None, delta: int, own_epoch: int, epoch: int, max_epoch: int) -> str:
    if base != offset and offset is not None:
        return f"base offset {base} stands where {offset} should"
    if delta < 0:
        return f"last_offset_delta is {delta}"
    return f"leader epoch {own_epoch} stands between {epoch} before it and {max_epoch} now"
