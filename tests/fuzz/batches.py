"""Hostile record batches for the broker's check and the reader's decoder. A crash inside Arrow ends this process; the parent then
reports the input.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa

from brokerd.errors import WireError
from brokerd.record.batch import RecordBatch, check_produced, walk_batches
from tests.fuzz.inputs import odd_header, rng_of, spoilt_batch
from tests.fuzz.legal import why_illegal
from tests.fuzz.report import FuzzError, Report
from tests.support.child import resident_bytes
from tests.support.hostile_records import UNCOMPRESSED_LIMIT_BYTES, good_batches, mutate
from tests.support.records import MAX_BYTES, SEED, TP, header_of

GROWTH_MAX_BYTES = 64 << 20
Source = Callable[[random.Random], bytes]


def sources() -> dict[str, Source]:
    """Generators of batches, by kind."""
    good = good_batches()
    as_bytes = [data.to_pybytes() for data in good]
    return {
        "batch.spoilt": lambda rng: spoilt_batch(rng, as_bytes),
        "batch.payload": lambda rng: bytes(mutate(rng, rng.choice(good)).to_pybytes()),
        "batch.header": lambda rng: bytes(odd_header(rng, rng.choice(good), TP).to_pybytes()),
    }


def run(counts: dict[str, int], seed: int, report: Report, *, first: int = 0) -> None:
    """Tries `counts[kind]` inputs of each kind. Raises FuzzError."""
    made = sources()
    honest = {data.to_pybytes() for data in good_batches()}
    warm_bytes = 0
    for kind, count in counts.items():
        for number in range(first, first + count):
            report.begin(kind, number)
            data = made[kind](rng_of(seed, kind, number))
            try:
                outcome = _try(data)
            except Exception as error:
                raise FuzzError(f"{kind}:{number}: {error!r}") from error
            # No changed batch passes a check: the CRCs cover every byte.
            if kind == "batch.spoilt" and outcome.startswith("broker passed") and data not in honest:
                raise FuzzError(f"{kind}:{number}: the broker takes a spoilt batch")
            report.count(kind, outcome)
        warm_bytes = warm_bytes or resident_bytes()
    growth = resident_bytes() - warm_bytes
    report.figures["batches: growth, MB"] = round(growth / 1e6, 1)
    if growth > GROWTH_MAX_BYTES:
        raise FuzzError(f"decoding batches grew the process by {growth} bytes")


def _try(data: bytes) -> str:
    buffer = pa.py_buffer(data)
    illegal = why_illegal(data, *TP)
    try:
        check_produced(buffer, SEED, max_message_bytes=MAX_BYTES)
        broker = "passed"
    except WireError as error:
        broker = f"refused {error.code.name}"
    if broker == "passed" and header_of(buffer).is_transactional:
        broker = "refused by the next check"  # no producer is a member here
    if broker == "passed" and illegal is not None:
        raise AssertionError(f"the broker takes it in spite of its {illegal}")
    reader = _read(buffer)
    return f"broker {broker}" + (f", reader {reader}" if broker == "passed" else "")


def _read(buffer: pa.Buffer) -> str:
    try:
        for batch in walk_batches(buffer, SEED):
            columns = RecordBatch(batch.header, batch.data).to_arrow(max_uncompressed_bytes=UNCOMPRESSED_LIMIT_BYTES)
            if columns.num_rows != batch.header.record_count:
                raise AssertionError(f"{columns.num_rows} rows, {batch.header.record_count} in the header")
            # Reads every value, as a reader would (timestamps as int64, since any int64 is valid).
            columns.set_column(3, "timestamp", columns.column(3).cast(pa.int64())).to_pylist()
    except WireError as error:
        return f"refused {error.code.name}"
    return "passed"
