"""Checks that everything was read back once, in order per key, byte for byte. Compares with the input, column by column."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class Verdict(NamedTuple):
    """The result of the comparison."""

    rows_in: int
    rows_out: int
    keys: int
    wrong_keys: int  # keys whose rows differ from the input's, in number, bytes or order

    @property
    def is_right(self) -> bool:
        """True if the log holds the input and nothing else."""
        return self.rows_in == self.rows_out and self.wrong_keys == 0


def compare(given: pa.Table, read: pa.Table) -> Verdict:
    """Compares `given` (key, value) in input order with `read` (key, value, partition, offset) in any order."""
    read = read.take(pc.sort_indices(read, sort_keys=[("partition", "ascending"), ("offset", "ascending")]))
    given_key, given_value = _bytes_of(given)
    read_key, read_value = _bytes_of(read)
    # Numbers the keys once for both sides, then sorts stably by key: rows of a key are adjacent, in their order.
    both = pa.concat_arrays([given_key, read_key]).dictionary_encode(null_encoding="encode")
    codes = both.indices.to_numpy()
    given_codes, read_codes = codes[: len(given_key)], codes[len(given_key) :]
    given_order, read_order = np.argsort(given_codes, kind="stable"), np.argsort(read_codes, kind="stable")
    keys = len(both.dictionary)
    if np.array_equal(given_codes[given_order], read_codes[read_order]):
        is_same = pc.equal(given_value.take(pa.array(given_order)), read_value.take(pa.array(read_order))).fill_null(False)
        wrong_rows = np.flatnonzero(~is_same.to_numpy(zero_copy_only=False))
        wrong = len(np.unique(given_codes[given_order][wrong_rows]))
    else:
        wrong = int(np.count_nonzero(np.bincount(given_codes, minlength=keys) != np.bincount(read_codes, minlength=keys)))
    return Verdict(given.num_rows, read.num_rows, keys, wrong)


def _bytes_of(table: pa.Table) -> tuple[pa.Array, pa.Array]:
    key, value = (table.column(name).cast(pa.binary()).combine_chunks() for name in ("key", "value"))
    return key, value
