"""Look-ups by time in one partition: the first record at or after a timestamp.

The index narrows a look-up to a batch, and the batch's timestamp column narrows it to the record. Of clients' records, the broker
decodes nothing but this column, of one batch per look-up. If no record in it has a timestamp as large as its header promises, the
look-up returns the start of the next batch that promises one. So the cost does not depend on what clients wrote, and a reader may
start a little early, never late.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.partition.core import TIMESTAMP_MAX_MS
from brokerd.partition.reader import LookUp
from brokerd.record.batch import RecordBatch
from brokerd.record.header import BatchHeader, StampFlags
from brokerd.record.schema import decode_timestamps, payload_crc
from brokerd.storage.damage import DamagedRange, damage_error, past_taken_out
from brokerd.storage.files import File
from brokerd.storage.segment import Segment
from brokerd.storage.segment_bounds import batch_timestamp

_US_PER_MS = 1_000


class OffsetAndTimestamp(NamedTuple):
    """A record's offset and its timestamp, ms."""

    offset: int
    timestamp: int


class _Search:
    """A look-up of a time, in ms since 1970."""

    def __init__(self, timestamp_ms: int, until_offset: int) -> None:
        self.timestamp_ms = timestamp_ms
        self.until_offset = until_offset  # batches from here on are not searched
        self.has_decoded = False  # one batch was decoded without a match


def find_by_timestamp(look_up: LookUp, timestamp_ms: int, until_offset: int) -> OffsetAndTimestamp | None:
    """See LookUps.offset_for_timestamp. Raises OSError, LogDamagedError, LookUpAbandoned."""
    log_start_offset = look_up.reader.core.ends.log_start_offset
    found = _find(look_up, _Search(timestamp_ms, until_offset), log_start_offset)
    end = found.offset if found is not None else until_offset
    for damaged in look_up.reader.damaged:
        # The record may have been in the damaged range, so neither a later record nor None would be right.
        if damaged.stops(log_start_offset) and damaged.first_offset < end:
            raise damage_error(look_up.reader.core.name, damaged)
    return found


def _find(look_up: LookUp, search: _Search, first_offset: int) -> OffsetAndTimestamp | None:
    """The first readable record from `first_offset` on whose timestamp is at least the wanted one."""
    for segment in look_up.reader.segments:
        if segment.max_timestamp >= search.timestamp_ms and segment.next_offset > first_offset:
            with look_up.reader.open_files.use(segment.path) as file:
                found = _find_in_segment(look_up, file, segment, search, first_offset)
            if found is not None:
                return found
    return None


def _find_in_segment(
    look_up: LookUp, file: File, segment: Segment, search: _Search, first_offset: int
) -> OffsetAndTimestamp | None:
    floor = look_up.index_of(segment).floor_by_time(search.timestamp_ms)
    for position, header in look_up.headers(file, segment, *(floor or (segment.base_offset, 0))):
        if header.base_offset >= search.until_offset:
            return None
        is_wanted = batch_timestamp(header) >= search.timestamp_ms and header.last_offset >= first_offset
        if is_wanted and past_taken_out(look_up.reader.damaged, header.base_offset) < header.next_offset:
            found = _find_in_batch(look_up.reader.core.name, file, position, header, search, first_offset)
            if found is not None:
                return found
    return None


def _find_in_batch(
    name: str, file: File, position: int, header: BatchHeader, search: _Search, first_offset: int
) -> OffsetAndTimestamp | None:
    """The record within a batch; the start of the batch if its records have no timestamps of their own, they cannot be decoded, or
    one batch was decoded already; None if no record matches.
    """
    whole = OffsetAndTimestamp(max(header.base_offset, first_offset), batch_timestamp(header))
    if header.stamp_flags & StampFlags.LOG_APPEND_TIME or header.is_control:
        return whole
    if search.has_decoded:
        return whole
    search.has_decoded = True
    times = _times(name, file, position, header)
    if times is None:
        return whole
    import pyarrow.compute as pc

    # Records have microseconds; Kafka's clients see milliseconds, rounded down.
    matches = pc.greater_equal(times, min(search.timestamp_ms, TIMESTAMP_MAX_MS) * _US_PER_MS)
    skipped = max(first_offset - header.base_offset, 0)
    at = pc.index(matches.slice(skipped), True).as_py()
    if at < 0:
        return None if times.null_count == 0 else whole
    at += skipped
    return OffsetAndTimestamp(header.base_offset + at, times[at].as_py() // _US_PER_MS)


def _times(name: str, file: File, position: int, header: BatchHeader) -> pa.Array | None:
    """The timestamps of a batch's records, microseconds; None if they cannot be decoded. Raises LogDamagedError, OSError."""
    batch = RecordBatch(header, pa.py_buffer(bytes(file.pread(header.size, position))))
    if payload_crc(batch.payload) != header.payload_crc:
        raise damage_error(name, DamagedRange(header.base_offset, header.next_offset, "payload_crc does not match", -1, 0))
    try:
        return decode_timestamps(
            batch.payload,
            schema_id=header.schema_id,
            record_count=header.record_count,
            uncompressed_bytes=header.uncompressed_bytes,
        ).cast(pa.int64())
    except (CorruptMessageError, UnsupportedVersionError):
        return None
