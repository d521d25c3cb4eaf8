"""Queries in one program that may be killed. Settings, as JSON:

queries: for each its source's `options`, its `checkpoint`, the directory `out`, and an optional topic `copy`; drain: end with the
records that exist now; ways: a directory for ways.py; planted: a bug of planted_source.py.

Each micro-batch becomes a file in `out`, named by its number, with a line for each row in order of arrival. If a replay has other
rows, they go to a second file, `.differs`. `append_to` also writes the rows to the topic `copy`, at random by the driver or the
sink, so that some replays use the other writer.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.exactly_once.job import session, settings
from tests.spark.exactly_once.pipeline import TOO_BUSY
from tests.spark.exactly_once.ways import append_by
from tests.spark.source_runs import planted_source, ways
from tests.spark.source_runs.observed_source import ObservedSource
from tests.spark.source_runs.planted_source import PlantedSource
from tests.spark.source_runs.ways import BY_DRIVER, BY_SINK, note
from tests.support.wait import wait_until

_BEGINNING = "Initializing sources"  # Spark's status while it starts the planning worker
_LOOK_S = 0.05
_TURN_S = 1


def keep_in(out: Path, append: Callable[[DataFrame, int], None] | None) -> Callable[[DataFrame, int], None]:
    """The function for foreachBatch."""

    def keep(frame: DataFrame, batch_id: int) -> None:
        rows = [[row["partition"], row["offset"], row["value"].decode()] for row in frame.collect()]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        path = out / f"{batch_id:06}.jsonl"
        if path.exists() and path.read_text() != text:
            path = path.with_suffix(".differs")
        unfinished = path.with_suffix(".new")
        unfinished.write_text(text)
        unfinished.rename(path)
        if append is not None:
            append(frame.selectExpr("concat_ws(' ', partition, offset, string(value)) AS value"), batch_id)

    return keep


def copy_to(topic: str, servers: str) -> Callable[[DataFrame, int], None]:
    """append_to, which writes by driver or sink at random."""

    def is_large(batch_id: int) -> bool:
        way = random.choice((BY_DRIVER, BY_SINK))
        note(way, [topic, batch_id])
        return way == BY_SINK

    return append_by(topic, {"bootstrap.servers": servers}, is_large)


def start(spark: SparkSession, query: dict[str, Any]) -> StreamingQuery:
    """Starts one query."""
    frame = spark.readStream.format("brokerd").options(**query["options"]).load().select("partition", "offset", "value")
    keep = keep_in(Path(query["out"]), copy_to(query["copy"], query["options"]["bootstrap.servers"]) if query["copy"] else None)
    writer: Any = frame.writeStream.foreachBatch(keep).option("checkpointLocation", query["checkpoint"])
    if settings.get("drain"):
        writer = writer.trigger(availableNow=True)
    started: StreamingQuery = writer.start()
    return started


def keep_up(spark: SparkSession, queries: list[dict[str, Any]]) -> None:
    """Runs queries side by side, for ever or each to its end. Restarts one if Spark's time-out for its worker was too short."""
    running: dict[int, StreamingQuery] = {}
    left = dict(enumerate(queries))
    while left:
        for number, query in list(left.items()):
            if number not in running:
                running[number] = start(spark, query)
                wait_until(lambda one=running[number]: not one.isActive or one.status["message"] != _BEGINNING, pause_s=_LOOK_S)  # type: ignore[misc]
            ended = has_ended(running[number], None if settings.get("drain") else _TURN_S)
            if ended is None:
                continue
            del running[number]
            if ended:
                del left[number]


def has_ended(query: StreamingQuery, timeout_s: int | None) -> bool | None:
    """True if it has finished, False if it must be restarted, None if it is running."""
    try:
        is_over = query.awaitTermination(timeout_s)
    except StreamingQueryException as error:
        if TOO_BUSY not in str(error):
            raise
        print("FAILED", TOO_BUSY, flush=True)
        return False
    return True if is_over or timeout_s is None else None


def main() -> None:
    """Runs until it is killed, or until everything is read."""
    os.environ[planted_source.VARIABLE] = settings.get("planted", "")  # before the JVM starts, whose workers inherit it
    os.environ[ways.VARIABLE] = settings["ways"]
    spark = session()
    spark.dataSource.register(PlantedSource if settings.get("planted") else ObservedSource)
    keep_up(spark, settings["queries"])


if __name__ == "__main__":
    main()
