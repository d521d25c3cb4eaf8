"""The conversion of a DataFrame's Arrow batches to records. Works by column, never by row.

Types are checked once, on the driver, against Spark's schema (options.py). Arrow types are not checked: nullability, time zones
and list item names vary with Spark's settings, and the producer casts. The module also computes the sums over all rows of a
transaction, by which the broker tells a replay from another batch; they depend neither on the order of rows nor on how batches
divide them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from brokerd.errors import InvalidRecordError
from brokerd.ids import topic_name_problem
from brokerd.producer import columns
from brokerd.producer.core.membership import HASH_SUM_MODULUS, Totals
from brokerd.producer.core.partitioner import Int32s, murmur2
from brokerd.record.schema import HEADERS, KEY, SCHEMA_0, VALUE

UNSET_PARTITION = -1


class TopicRows(NamedTuple):
    """Rows of one topic, in Spark's order."""

    topic: str
    records: pa.RecordBatch  # key, value, headers and timestamp, as far as present, in Spark's types
    partitions: npt.NDArray[np.int32] | None  # -1 = chosen by the partitioner; None = all rows are
    key_hashes: npt.NDArray[np.int32] | None = None  # the partitioner's hashes, if computed already


def to_records(
    arrow_batch: pa.RecordBatch, *, topic: str | None, key_hashes: npt.NDArray[np.int32] | None = None
) -> Iterator[TopicRows]:
    """Yields the rows of one Arrow batch as records, by topic in order of first appearance. Raises InvalidRecordError.

    Columns are passed on unchanged: the producer casts text to bytes, and gives rows without a timestamp the current time.
    """
    if arrow_batch.num_rows == 0:
        return
    names = arrow_batch.schema.names
    records = arrow_batch.select([name for name in SCHEMA_0.names if name in names])
    if HEADERS.name in names:
        _check_headers(arrow_batch.column(HEADERS.name))
    partitions = _partition_column(arrow_batch.column("partition")) if "partition" in names else None
    if topic is not None:
        yield TopicRows(topic, records, partitions, key_hashes)
    else:
        yield from _by_topic(arrow_batch.column("topic"), records, partitions, key_hashes)


def _by_topic(
    topics: pa.Array,
    records: pa.RecordBatch,
    partitions: npt.NDArray[np.int32] | None,
    key_hashes: npt.NDArray[np.int32] | None,
) -> Iterator[TopicRows]:
    if topics.null_count:
        raise InvalidRecordError(
            f"column 'topic' is null in {topics.null_count} of {len(topics)} rows: every row needs a topic, or set option 'topic'"
        )
    encoded = topics.dictionary_encode()
    names = encoded.dictionary.to_pylist()  # one entry per topic, not per row
    for name in names:
        problem = topic_name_problem(name)
        if problem:  # the producer would wait max.block.ms for the topic to appear
            raise InvalidRecordError(f"column 'topic' holds '{name}', which is not a topic's name: {problem}")
    if len(names) == 1:
        yield TopicRows(names[0], records, partitions, key_hashes)
        return
    codes = encoded.indices.to_numpy()
    for code, name in enumerate(names):
        chosen = np.flatnonzero(codes == code)
        taken = [None if column is None else column[chosen] for column in (partitions, key_hashes)]
        yield TopicRows(name, records.take(pa.array(chosen)), *taken)


def _check_headers(headers: pa.Array) -> None:
    entries = headers.flatten()  # of this slice, without elements hidden by null lists
    if entries.null_count or pc.struct_field(entries, 0).null_count:
        raise InvalidRecordError(
            "a header or its key is null, but every header needs a key: filter such entries out of column 'headers'"
        )


def _partition_column(column: pa.Array) -> npt.NDArray[np.int32] | None:
    if column.null_count == len(column):
        return None
    lowest, highest = (pc.min(column).as_py(), pc.max(column).as_py())
    if lowest < 0 or highest > np.iinfo(np.int32).max:
        wrong = lowest if lowest < 0 else highest
        raise InvalidRecordError(f"column 'partition' holds {wrong}, which is not a partition: partitions are numbered from 0")
    chosen: npt.NDArray[np.int32] = pc.fill_null(column.cast(pa.int32()), UNSET_PARTITION).to_numpy()
    return chosen


# The hash of a null key: a number beyond 32 bits, which no murmur2 equals, so that a null key differs from an empty one.
_NULL_KEY_HASH = 0x9E3779B97F4A7C15


class RowTotals:
    """Accumulates the sums over rows."""

    def __init__(self) -> None:
        self.totals = Totals()

    def add(self, rows: pa.RecordBatch) -> Int32s | None:
        """Adds rows with the columns key (optional) and value, in the types that Producer.send_batch takes. Returns the hashes of
        the keys, to be passed to it as `key_hashes`, or None without keys. Raises TypeError naming a column of a wrong type.
        """
        count = rows.num_rows
        value = columns.bytes_column(rows, VALUE)
        key = columns.bytes_column(rows, KEY) if KEY.name in rows.schema.names else None
        hashes = murmur2(key) if key is not None and key.null_count < count else None
        self.totals = self.totals.plus(Totals(count, _bytes_in(key), _bytes_in(value), _hash_sum(key, hashes, count)))
        return hashes


def _hash_sum(key: pa.Array | None, hashes: Int32s | None, count: int) -> int:
    if key is None or hashes is None:
        return count * _NULL_KEY_HASH % HASH_SUM_MODULUS
    total = int(hashes.view(np.uint32).sum(dtype=np.uint64))
    if key.null_count:
        empty_hash = int(murmur2(pa.array([b""])).view(np.uint32)[0])  # murmur2 hashes a null key as an empty one
        total += key.null_count * (_NULL_KEY_HASH - empty_hash)
    return total % HASH_SUM_MODULUS


def _bytes_in(column: pa.Array | None) -> int:
    if column is None or not len(column):
        return 0
    if not column.null_count:
        offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
        return int(offsets[-1]) - int(offsets[0])
    return pc.sum(pc.binary_length(column)).as_py() or 0
