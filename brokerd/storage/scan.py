"""Iterates over the batches of a segment file, header by header, up to one that is not whole or not the next (record/batch.py).

resync.py finds where a log continues after a bad batch; segment_walk.py walks past it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

from brokerd.record.batch import NO_EPOCH_LIMIT, NO_OFFSET_LIMIT, Walk, payload_problem, walk_whole
from brokerd.record.header import HEADER_SIZE, BatchHeader, decode_header
from brokerd.storage.files import File

_SMALL_WINDOW_BYTES = 2_048  # no header is longer
_LARGE_WINDOW_BYTES = 1_048_576


class Scan:
    """Iterates over the headers of whole batches. Afterwards, `position` and `next_offset` are where it stopped, and `problem` is
    the reason (None: the end). Payload CRCs are checked from offset `payload_from` on.
    """

    def __init__(
        self,
        file: File,
        seed: int,
        *,
        position: int,
        end: int,
        next_offset: int,
        epoch: int = 0,
        max_epoch: int = NO_EPOCH_LIMIT,
        payload_from: int = NO_OFFSET_LIMIT,
    ) -> None:
        self._file = file
        self._seed = seed
        self._end = end
        self._max_epoch = max_epoch
        self._payload_from = payload_from
        self._reads_ahead = True
        self._window = b""
        self._window_at = 0
        self.position = position
        self.batch_position = position
        self.next_offset = next_offset
        self.epoch = epoch
        self.problem: str | None = None
        # True if the rest must not be cut whatever durable_end is: a newer format, a later leader epoch, or a read error.
        self.must_keep = False
        self.is_outdated = False  # the problem is a leader epoch above `max_epoch`
        self.error: OSError | None = None  # the read error, if that is the problem

    def __iter__(self) -> Iterator[BatchHeader]:
        needed = HEADER_SIZE
        try:
            while self.position < self._end and self.problem is None:
                positions: list[int] = []
                walk = self._walk(needed, positions)
                window = self._window
                for at in positions:
                    header = decode_header(window[at : at + HEADER_SIZE])
                    self.problem = self._payload_problem(header) if self.next_offset >= self._payload_from else None
                    if self.problem is not None:
                        return
                    self.batch_position = self.position
                    self.position += header.size
                    self.next_offset = header.next_offset
                    self.epoch = header.leader_epoch
                    yield header
                self.problem, self.must_keep, needed = walk.problem, walk.is_newer or walk.is_outdated, walk.needed or HEADER_SIZE
                self.is_outdated = walk.is_outdated
                if not positions and not walk.needed and walk.problem is None:
                    self.problem = "bytes are missing"  # the file ends after a whole batch, but before `end`
        except OSError as error:
            self.problem, self.must_keep, self.error = f"reading failed: {error.strerror}", True, error

    def _walk(self, needed: int, positions: list[int]) -> Walk:
        """Walks all batches whose headers are in the window; appends their positions in the window to `positions`."""
        self._read(self.position, needed)
        at, end = self.position - self._window_at, self._end - self._window_at
        if at + needed > len(self._window):
            end = len(self._window)  # the file is shorter than it should be
        return walk_whole(
            self._window, at, end, self._seed, self.next_offset, self.epoch, self._max_epoch, only_headers=True, positions=positions
        )

    def _payload_problem(self, header: BatchHeader) -> str | None:
        begin = self.position + header.header_size
        self._read(begin, header.batch_length)
        payload = self._window[begin - self._window_at : begin - self._window_at + header.batch_length]
        return payload_problem(payload, header.batch_length, header.payload_crc)

    def _read(self, position: int, size: int) -> None:
        """Reads bytes into the window. It is large while batches are small, to save reads, until a large read fails with EIO."""
        at = position - self._window_at
        if at < 0 or at + size > len(self._window):
            are_small = self._reads_ahead and 0 < self.position - self.batch_position <= _LARGE_WINDOW_BYTES // 8
            window = _LARGE_WINDOW_BYTES if are_small else _SMALL_WINDOW_BYTES
            length = min(max(size, window), self._end - position)
            try:
                self._window = bytes(self._file.pread(max(length, 0), position))
            except OSError as error:
                if error.errno != errno.EIO or length <= size:
                    raise
                self._reads_ahead = False
                self._window = bytes(self._file.pread(size, position))
            self._window_at = position
