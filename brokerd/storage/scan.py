"""Walking the batches of a segment file: what recovery, reads after damage, dump and doctor share.

`Scan` walks headers from a position as long as batches are whole and in sequence. Where a log goes on behind a bad batch is
behind_damage.py's; what to do about one is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import google_crc32c

from brokerd.errors import UnsupportedVersionError
from brokerd.record.header import HEADER_SIZE, BatchHeader, decode_header, header_problem, header_size_claimed
from brokerd.storage.files import File

_SMALL_WINDOW_BYTES = 4_096
_LARGE_WINDOW_BYTES = 1_048_576


class Scan:
    """Iterates over the headers of whole batches. Afterwards `position` and `next_offset` say how far it came and
    `problem` why it stopped (None: at the end).

    A batch is whole if its header has the right CRC for this partition, its base offset follows, its leader epoch is
    neither below its predecessor's nor above `max_epoch`, all its bytes are there, and, from `payload_from` on, its
    payload has the right CRC.
    """

    def __init__(
        self, file: File, seed: int, *, position: int, end: int, next_offset: int, epoch: int, max_epoch: int, payload_from: int
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
        self.error: OSError | None = None  # why reading failed, if that is the problem

    def __iter__(self) -> Iterator[BatchHeader]:
        while self.position < self._end:
            try:
                header, problem = self._next()
            except UnsupportedVersionError as error:
                self.problem, self.must_keep = error.message, True
                return
            except OSError as error:
                self.problem, self.must_keep, self.error = f"reading failed: {error.strerror}", True, error
                return
            if problem:
                self.problem = problem
                return
            self.batch_position = self.position
            self._batch_bytes = header.size
            self.position += header.size
            self.next_offset = header.next_offset
            self.epoch = header.leader_epoch
            yield header

    def _next(self) -> tuple[BatchHeader, str | None]:
        prefix = self._read(self.position, HEADER_SIZE)
        if len(prefix) < HEADER_SIZE:
            return _NO_HEADER, f"only {len(prefix)} bytes of a header are there"
        size = header_size_claimed(prefix)
        whole = prefix if size == HEADER_SIZE else self._read(self.position, size)
        header = decode_header(prefix)
        return header, header_problem(header, whole, self._seed) or self._problem_in_log(header)

    def _problem_in_log(self, header: BatchHeader) -> str | None:
        if header.base_offset != self.next_offset or header.last_offset_delta < 0:
            return f"base offset {header.base_offset} stands where {self.next_offset} should"
        if not self.epoch <= header.leader_epoch <= self._max_epoch:
            return f"leader epoch {header.leader_epoch} stands between {self.epoch} before it and {self._max_epoch} now"
        missing = self.position + header.size - self._end
        if missing > 0:
            return f"{missing} of its {header.size} bytes are missing"
        if header.base_offset >= self._payload_from:
            payload = self._read(self.position + header.header_size, header.batch_length)
            if len(payload) != header.batch_length or google_crc32c.value(payload) != header.payload_crc:
                return "payload_crc does not match"
        return None

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


_NO_HEADER = decode_header(bytes(HEADER_SIZE))
