"""Walks the batches of a segment file, header by header, as long as batches are whole and follow each other (record/whole.py).

behind_damage.py finds where a log goes on behind a bad batch; segment_walk.py walks past it.
"""

from __future__ import annotations

from collections.abc import Iterator

from brokerd.errors import UnsupportedVersionError
from brokerd.record.header import HEADER_SIZE, BatchHeader, decode_header
from brokerd.record.whole import NO_EPOCH_LIMIT, NO_OFFSET_LIMIT, NotWholeError, payload_problem, walk_whole
from brokerd.storage.files import File

_SMALL_WINDOW_BYTES = 4_096
_LARGE_WINDOW_BYTES = 1_048_576


class Scan:
    """Iterates over the headers of whole batches. Afterwards `position` and `next_offset` are where it stopped, and `problem` is
    the reason (None: the end). CRCs of payloads are checked from offset `payload_from` on.
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
        self._window = b""
        self._window_at = 0
        self._batch_bytes = 0
        self.position = position
        self.batch_position = position
        self.next_offset = next_offset
        self.epoch = epoch
        self.problem: str | None = None
        # True if cutting would be wrong whatever durable_end says: a newer format, or a disk that cannot be read.
        self.must_keep = False
        self.error: OSError | None = None  # the error of a read, if that is the problem

    def __iter__(self) -> Iterator[BatchHeader]:
        while self.position < self._end:
            try:
                header, size, next_offset = self._next()
            except UnsupportedVersionError as error:
                self.problem, self.must_keep = error.message, True
                return
            except OSError as error:
                self.problem, self.must_keep, self.error = f"reading failed: {error.strerror}", True, error
                return
            except NotWholeError as error:
                self.problem = str(error)
                return
            self.batch_position = self.position
            self._batch_bytes = size
            self.position += size
            self.next_offset = next_offset
            self.epoch = header.leader_epoch
            yield header

    def _next(self) -> tuple[BatchHeader, int, int]:
        size, next_offset = self._check(HEADER_SIZE)
        at = self.position - self._window_at
        header = decode_header(self._window[at : at + HEADER_SIZE])
        if self.next_offset >= self._payload_from:
            payload = self._read(self.position + header.header_size, header.batch_length)
            problem = payload_problem(payload, header.batch_length, header.payload_crc)
            if problem:
                raise NotWholeError(problem)
        return header, size, next_offset

    def _check(self, needed: int) -> tuple[int, int]:
        held = self._read(self.position, needed)
        at, end = self.position - self._window_at, self._end - self._window_at
        if len(held) < needed:
            end = at + len(held)  # the file is shorter than it should be
        offset = self.next_offset
        walk = walk_whole(self._window, at, end, self._seed, offset, self.epoch, self._max_epoch, is_single=True)
        if walk.problem is not None:
            raise UnsupportedVersionError(walk.problem) if walk.is_newer else NotWholeError(walk.problem)
        return self._check(walk.needed) if walk.needed else (walk.end - at, walk.next_offset)

    def _read(self, position: int, size: int) -> bytes:
        """Bytes of the file through a window: large while batches are small, so that small ones do not cost a read each."""
        at = position - self._window_at
        if at < 0 or at + size > len(self._window):
            window = _SMALL_WINDOW_BYTES if self._batch_bytes > _LARGE_WINDOW_BYTES // 16 else _LARGE_WINDOW_BYTES
            length = min(max(size, window), self._end - position)
            self._window = bytes(self._file.pread(max(length, 0), position))
            self._window_at = position
            at = 0
        return self._window[at : at + size]
