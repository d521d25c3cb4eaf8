"""The demo's input, in order: a table of key, value (JSON text) and, for generated events, timestamp.

The table is staged as files for Spark's file stream: one micro-batch takes LANES files, and a key is always in the same
lane. So each key's rows are in one task of a micro-batch, which is what order per key needs from a pipeline: Spark promises
no order between tasks, whatever the sink.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

LANES = 2
BATCHES = 12
_KEYS = 500
_START_US = 1_767_225_600_000_000  # 2026-01-01 00:00 UTC
_HOUR_US = 3_600_000_000


def generated_events(rows: int) -> pa.Table:
    """Readings of sensors over one hour: the same table for the same number."""
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


def rows_of_file(spark: SparkSession, path: Path, key: str) -> pa.Table:
    """The rows of a JSON, CSV or Parquet file, each as JSON text, keyed by a column. Raises ValueError naming what is wrong."""
    frame = _read(spark, path)
    if key not in frame.columns:
        raise ValueError(f"{path} has no column '{key}'; there are: {', '.join(frame.columns)}")
    return frame.selectExpr(f"cast(`{key}` as string) as key", "to_json(struct(*)) as value").toArrow()


def stage(table: pa.Table, directory: Path) -> None:
    """Writes the table as files for a file stream, LANES of them a micro-batch; modification times put them in order."""
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


def _read(spark: SparkSession, path: Path) -> DataFrame:
    kind = path.suffix.lower().lstrip(".")
    if not path.exists():
        raise ValueError(f"{path} does not exist")
    if kind in ("json", "jsonl", "ndjson"):
        return spark.read.option("multiLine", _is_one_document(path)).json(str(path))
    if kind == "csv":
        return spark.read.option("header", True).option("inferSchema", True).csv(str(path))
    if kind == "parquet":
        return spark.read.parquet(str(path))
    raise ValueError(f"{path} is not a .json, .csv or .parquet file")


def _is_one_document(path: Path) -> bool:
    """True if the file is one JSON document (an array, or an object over many lines), not one object per line."""
    with path.open("rb") as file:
        line = next((text.strip() for text in file if text.strip()), b"")
    if line.startswith(b"["):
        return True
    try:
        json.loads(line)
    except ValueError:
        return True
    return False
