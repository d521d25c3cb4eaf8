"""Totals over rows are equal for equal rows in any order, batches and types, and differ for other keys."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from brokerd.producer.core.membership import Totals
from brokerd.producer.core.partitioner import murmur2
from brokerd.producer.producer import Producer
from brokerd.sink.task import RowTotals
from tests.support.broker_double import double_of
from tests.support.wait import DEADLINE_S

Row = tuple[bytes | None, bytes | None]


def batch_of(rows: list[Row], kind: pa.DataType | None = None) -> pa.RecordBatch:
    kind = kind or pa.binary()
    return pa.RecordBatch.from_arrays([pa.array([row[at] for row in rows], kind) for at in (0, 1)], ["key", "value"])


def totals_of(*batches: pa.RecordBatch) -> Totals:
    summed = RowTotals()
    for batch in batches:
        summed.add(batch)
    return summed.totals


def rows_of(rng: random.Random, count: int) -> list[Row]:
    return [
        (None if rng.random() < 0.2 else rng.randbytes(rng.randrange(12)), None if rng.random() < 0.1 else rng.randbytes(5))
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_neither_order_nor_batches_matter(seed: int) -> None:
    rng = random.Random(seed)
    rows = rows_of(rng, rng.randrange(1, 300))
    whole = totals_of(batch_of(rows))
    rng.shuffle(rows)
    cuts = sorted(rng.randrange(len(rows) + 1) for _ in range(4))
    parts = [rows[lo:hi] for lo, hi in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    assert totals_of(*(batch_of(part) for part in parts)) == whole
    sliced = batch_of([(b"x", b"y"), *rows, (None, b"z")]).slice(1, len(rows))
    assert totals_of(sliced) == whole
    assert totals_of(batch_of(rows[: len(rows) // 2])).plus(totals_of(batch_of(rows[len(rows) // 2 :]))) == whole


def test_rows_and_bytes_are_counted() -> None:
    totals = totals_of(batch_of([(b"ab", b"xyz"), (None, b"1"), (b"", None)]))
    assert totals[:3] == (3, 2, 4)
    assert totals_of() == Totals()
    assert totals_of(batch_of([])) == Totals()


def test_the_sum_is_of_the_hashes_that_choose_partitions() -> None:
    keys = [b"a", b"bc", b"defgh"]
    hashes = murmur2(pa.array(keys)).view(np.uint32).astype(object).sum()
    assert totals_of(batch_of([(key, b"v") for key in keys])).key_hash_sum == hashes


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary(), pa.binary_view(), pa.string_view()])
def test_types_do_not_matter(kind: pa.DataType) -> None:
    rows: list[Row] = [(b"a", b"x"), (None, b"yy"), (b"", None)]
    assert totals_of(batch_of(rows, kind)) == totals_of(batch_of(rows))


def test_a_missing_column_is_one_of_nulls_and_a_null_is_no_empty_key() -> None:
    values = [b"x", b"y"]
    keyless = pa.RecordBatch.from_pydict({"value": values})
    nulls = batch_of([(None, value) for value in values])
    assert totals_of(keyless) == totals_of(nulls)
    assert totals_of(nulls) != totals_of(batch_of([(b"", value) for value in values]))


@pytest.mark.parametrize("other", [[b"1", b"4"], [b"2"], [b"2", b"3", b"3"], [b"23", b""], [None, b"23"]])
def test_other_keys_have_another_sum(other: list[bytes | None]) -> None:
    assert totals_of(batch_of([(key, b"v") for key in other])) != totals_of(batch_of([(b"2", b"v"), (b"3", b"v")]))


def test_hashes_are_computed_once_for_totals_and_partitions() -> None:
    rows = rows_of(random.Random(1), 20_000)
    logs = []
    for is_shared in (False, True):
        broker = double_of(3)
        batch = batch_of([(key, value or b"") for key, value in rows])
        hashes = RowTotals().add(batch)
        with Producer({"linger.ms": 0}, transport_factory=broker.transport) as producer:
            producer.send_batch("t", batch, key_hashes=hashes if is_shared else None).result(DEADLINE_S)
        logs.append([[row["value"] for row in broker.records("t", number) if row["key"] is not None] for number in range(3)])
    assert logs[0] == logs[1]


def test_a_batch_without_keys_has_no_hashes() -> None:
    assert RowTotals().add(pa.RecordBatch.from_pydict({"value": [b"x"]})) is None
    assert RowTotals().add(batch_of([(None, b"x")])) is None
