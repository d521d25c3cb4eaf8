"""Generates the demo's events, and stages its input for Spark: a table of key, value and, for events, timestamp.

The table is staged as files for Spark's file stream. One micro-batch takes LANES files, and a key is always in the same lane, so
all rows of a key are in one task of a micro-batch. Any pipeline needs that for order per key, whatever the sink: Spark promises no
order between tasks.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LANES = 2
BATCHES = 12
_KEYS = 500
_START_US = 1_767_225_600_000_000  # 2026-01-01 00:00 UTC
_HOUR_US = 3_600_000_000


def generated_events(rows: int) -> pa.Table:
    """Sensor readings over one hour; the same number of rows always gives the same table."""
    rng = np.random.default_rng(20260101)
    sensors = rng.integers(0, _KEYS, rows)
    readings = np.round(rng.normal(21.0, 4.0, rows), 2)
    times_us = _START_US + np.arange(rows, dtype=np.int64) * _HOUR_US // max(1, rows)
    keys = [f"sensor-{number:03d}" for number in sensors.tolist()]
    values = [
        f'{{"sensor":"{key}","seq":{seq},"celsius":{celsius}}}'
        for seq, (key, celsius) in enumerate(zip(keys, readings.tolist(), strict=True))
    ]
    return pa.table({"key": keys, "value": values, "timestamp": pa.array(times_us, pa.timestamp("us", tz="UTC"))})


def stage(table: pa.Table, directory: Path) -> None:
    """Writes the table as files for a file stream, LANES of them per micro-batch, ordered by modification time."""
    directory.mkdir()
    codes = table.column("key").combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
    size = -(-table.num_rows // BATCHES)
    for number, start in enumerate(range(0, table.num_rows, size)):
        part = table.slice(start, size)
        lane_of = codes[start : start + size] % LANES
        for lane in range(LANES):
            path = directory / f"part-{number:03d}-{lane}.parquet"
            pq.write_table(part.filter(pa.array(lane_of == lane)), path)
            os.utime(path, (_START_US // 1_000_000 + number, _START_US // 1_000_000 + number))
