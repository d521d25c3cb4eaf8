"""Record batches as columns with their offsets. Works on whole columns, never one record at a time. Does no I/O."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from brokerd.client.response_checks import TIMESTAMP_MAX_MS
from brokerd.config.client import ConsumerConfig
from brokerd.config.settings import INT32_MAX
from brokerd.errors import CorruptMessageError, UnsupportedVersionError, WireError
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.record.batch import RecordBatch
from brokerd.record.header import BatchHeader
from brokerd.record.schema import HEADERS, KEY, TIMESTAMP, VALUE, known_schema

logger = logging.getLogger(__name__)

CREATE_TIME = 0  # Spark's and Kafka's numbers of timestampType
LOG_APPEND_TIME = 1
_US_PER_MS = 1_000
_SKIPS = "skip.corrupt.batches=true skips such batches"
# The columns in which readers get records, as Spark's Kafka source has them.
CONSUMED_SCHEMA = pa.schema(
    [
        pa.field(KEY.name, KEY.type),
        pa.field(VALUE.name, VALUE.type),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field(TIMESTAMP.name, TIMESTAMP.type),
        pa.field("timestampType", pa.int32()),
        pa.field(HEADERS.name, HEADERS.type),
    ]
)


class BatchSlice(NamedTuple):
    """The part of a record batch that is in a range: `from_offset` (inclusive) to `until_offset` (exclusive)."""

    tp: TopicIdPartition
    batch: RecordBatch
    from_offset: int
    until_offset: int
    name: TopicPartition | TopicIdPartition | None = None  # the partition's name in errors
    is_checked: bool = False  # its payload CRC was verified

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, as received."""
        return self.batch.header.batch_length


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """Records of one partition, in offset order, as columns of their schema; `offsets` (int64) has one entry per row."""

    tp: TopicIdPartition
    header: BatchHeader
    arrow_batch: pa.RecordBatch
    offsets: pa.Int64Array
    timestamp_type: int  # CREATE_TIME or LOG_APPEND_TIME, for all records

    @property
    def record_count(self) -> int:
        """Number of records."""
        return int(self.arrow_batch.num_rows)

    def head(self, record_count: int) -> FetchedBatch:
        """The first `record_count` records, or all if there are fewer."""
        if record_count >= self.record_count:
            return self
        return replace(self, arrow_batch=self.arrow_batch.slice(0, record_count), offsets=self.offsets.slice(0, record_count))

    def parts(self, size_bytes: int, rows_max: int = INT32_MAX) -> list[FetchedBatch]:
        """Splits the records into parts of about `size_bytes` and at most `rows_max` records each, without copying."""
        rows = self.arrow_batch.num_rows
        step = max(1, min(rows, rows_max, rows * size_bytes // max(1, self.arrow_batch.nbytes)))
        return [
            replace(self, arrow_batch=self.arrow_batch.slice(start, step), offsets=self.offsets.slice(start, step))
            for start in range(0, rows, step)
        ]


def decode_slice(one: BatchSlice, *, max_uncompressed_bytes: int, check_crc: bool) -> FetchedBatch | None:
    """The records of a slice as columns, without copying unless they are compressed; None if none is in its range.

    Raises CorruptMessageError and UnsupportedVersionError with the batch's offset in the text.
    """
    header = one.batch.header
    arrow_batch = one.batch.to_arrow(max_uncompressed_bytes=max_uncompressed_bytes, check_crc=check_crc)
    if header.last_offset_delta != arrow_batch.num_rows - 1:
        raise CorruptMessageError(
            f"batch at offset {header.base_offset}: {arrow_batch.num_rows} records do not fit last_offset_delta "
            f"{header.last_offset_delta}"
        )
    if one.from_offset > header.base_offset or one.until_offset < header.next_offset:
        arrow_batch = arrow_batch.slice(one.from_offset - header.base_offset, one.until_offset - one.from_offset)
    if arrow_batch.num_rows == 0:
        return None
    timestamp_type = CREATE_TIME
    if header.is_log_append_time:
        timestamp_type = LOG_APPEND_TIME
        if not 0 <= header.append_timestamp <= TIMESTAMP_MAX_MS:
            raise CorruptMessageError(
                f"batch at offset {header.base_offset}: append_timestamp {header.append_timestamp} is not a time in ms since 1970"
            )
        stamped = np.full(arrow_batch.num_rows, header.append_timestamp * _US_PER_MS, np.int64)
        timestamp = known_schema(header.schema_id).timestamp
        field = arrow_batch.schema.field(timestamp.index)
        arrow_batch = arrow_batch.set_column(timestamp.index, field, pa.array(stamped, timestamp.type))
    offsets = np.arange(one.from_offset, one.until_offset, dtype=np.int64)
    return FetchedBatch(one.tp, header, arrow_batch, pa.array(offsets), timestamp_type)


def decoded(one: BatchSlice, config: ConsumerConfig) -> FetchedBatch | None:
    """The records of a slice, if any. Raises CorruptMessageError and UnsupportedVersionError unless skip.corrupt.batches is set."""
    try:
        check_crc = config.check_crcs and not one.is_checked
        return decode_slice(one, max_uncompressed_bytes=config.max_decompressed_bytes, check_crc=check_crc)
    except (CorruptMessageError, UnsupportedVersionError) as error:
        if not config.skip_corrupt_batches:
            raise _with_remedy(error, one) from None
        first, last = one.from_offset, one.until_offset - 1
        logger.warning("%s: offsets %d to %d are skipped (skip.corrupt.batches): %s", one.name, first, last, error)
        return None


def _with_remedy(error: WireError, one: BatchSlice) -> WireError:
    """The error with the partition and a remedy. For UnsupportedVersionError the remedy does not call the batch damaged."""
    is_corrupt = isinstance(error, CorruptMessageError)
    advice = remedy(one.name, one.batch.header.base_offset) if is_corrupt else _SKIPS
    return type(error)(f"{one.name}: {error.message}; {advice}")


def remedy(name: TopicPartition | TopicIdPartition | None, base_offset: int) -> str:
    """What to do about a corrupt batch."""
    return (
        "`brokerd doctor` shows whether it is damaged on the broker's disk, and takes it out with "
        f"`--take-out {name}@{base_offset}`; {_SKIPS}"
    )
