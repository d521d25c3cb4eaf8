"""Sums over all rows of a transaction, by which the broker tells a replay from another batch. They do not depend on the order of
rows, nor on how they come in batches. By column, never by row.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from brokerd.producer.core.membership import HASH_SUM_MODULUS, Totals
from brokerd.producer.core.partitioner import Int32s, murmur2
from brokerd.producer.rows import columns
from brokerd.record.schema import KEY, VALUE

# A null key counts as this hash: any number that is no murmur2, so that it is not an empty key.
_NULL_KEY_HASH = 0x9E3779B97F4A7C15


class RowTotals:
    """The sums over the rows that were added."""

    def __init__(self) -> None:
        self.totals = Totals()

    def add(self, rows: pa.RecordBatch) -> Int32s | None:
        """Adds rows with the columns key (optional) and value, as Producer.send_batch takes them; returns the hashes of their keys
        for its argument `key_hashes`, so that they are computed once, or None without keys. Raises TypeError naming a column of a
        wrong type.
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
        empty_hash = int(murmur2(pa.array([b""])).view(np.uint32)[0])  # as which murmur2 counts a null key
        total += key.null_count * (_NULL_KEY_HASH - empty_hash)
    return total % HASH_SUM_MODULUS


def _bytes_in(column: pa.Array | None) -> int:
    if column is None or not len(column):
        return 0
    if not column.null_count:
        offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
        return int(offsets[-1]) - int(offsets[0])
    return pc.sum(pc.binary_length(column)).as_py() or 0
