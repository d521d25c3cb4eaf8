"""Runs the whole pipeline: a daemon, a Spark job that writes a keyed stream, another that reads it, and a check of every byte.

    make demo
    make demo INPUT=flights.json KEY=origin

or, in an environment with brokerd[spark]: python examples/demo.py [--rows N] [--input FILE --key COLUMN]
Exit code 1 if anything was lost, duplicated, reordered or changed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from demo_parts.broker import create_topic, log_ends, running_broker
from demo_parts.checks import Verdict, compare
from demo_parts.ending import drop_output, quick_end
from demo_parts.files import records_of
from demo_parts.progress import ProgressBar
from demo_parts.rows import BATCHES, LANES, generated_events, stage
from demo_parts.session import java_problem, last_words, quiet_session
from demo_parts.timing import Timing, timing_of
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import window
from pyspark.sql.streaming.query import StreamingQuery

from brokerd.errors import BrokerdError

TOPIC = "events"
PARTITIONS = 8
DEFAULT_ROWS = 300_000
_POLL_S = 0.1
_WINDOWS_SHOWN = 6


def main() -> int:
    arguments = _arguments()
    problem = java_problem()
    if problem:
        print(problem, file=sys.stderr)
        return 1
    try:
        with tempfile.TemporaryDirectory(prefix="brokerd-demo-", ignore_cleanup_errors=True) as name, quick_end(Path(name)):
            return _run_or_tell(Path(name), arguments)
    except BrokenPipeError:
        drop_output()
        return 141
    except (ValueError, RuntimeError, BrokerdError, PySparkException) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


def _run_or_tell(directory: Path, arguments: argparse.Namespace) -> int:
    """Calls `run`; on failure, copies Spark's output to standard error, since its file is about to be deleted."""
    is_right = False
    try:
        code = run(directory, arguments)
        is_right = code == 0
        return code
    except (ValueError, BrokerdError, BrokenPipeError):
        is_right = True  # one sentence is enough; Spark has nothing to add
        raise
    finally:
        if not is_right:
            print(last_words(directory), end="", file=sys.stderr)


def run(directory: Path, arguments: argparse.Namespace) -> int:
    """Starts the daemon, writes, reads, checks and reports."""
    given = records_of(arguments.input, arguments.key) if arguments.input else generated_events(arguments.rows)
    with running_broker(directory) as servers:
        print(f"brokerd serves on {servers}; Spark starts ...", flush=True)
        spark = quiet_session(directory, "brokerd-demo")
        try:
            stage(given, directory / "input")
            create_topic(servers, TOPIC, PARTITIONS)
            written = _watched(_write(spark, servers, directory), "write", given.num_rows)
            read = _watched(_read(spark, servers, directory, given.num_rows), "read ", given.num_rows)
            verdict = compare(given, _read_back(spark, servers))
            windows = spark.table("windows").orderBy("from").toArrow()
        finally:
            spark.stop()
        _report(verdict, written, read, windows, log_ends(servers, TOPIC))
    return 0 if verdict.is_right and read.rows == verdict.rows_in else 1


def _write(spark: SparkSession, servers: str, directory: Path) -> StreamingQuery:
    """Streams files to a topic, in BATCHES micro-batches."""
    events = (
        spark.readStream.schema(spark.read.parquet(str(directory / "input")).schema)
        .option("maxFilesPerTrigger", LANES)
        .parquet(str(directory / "input"))
    )
    return (
        events.writeStream.format("brokerd")
        .option("bootstrap.servers", servers)
        .option("topic", TOPIC)
        .option("checkpointLocation", str(directory / "checkpoint-write"))
        .trigger(availableNow=True)
        .start()
    )


def _read(spark: SparkSession, servers: str, directory: Path, rows: int) -> StreamingQuery:
    """Streams counts of the topic per time window to a table in memory."""
    events = (
        spark.readStream.format("brokerd")
        .option("bootstrap.servers", servers)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", max(PARTITIONS, rows // BATCHES))
        .load()
    )
    counts = (
        events.groupBy(window("timestamp", "10 minutes")).count().selectExpr("window.start as from", "window.end as to", "count")
    )
    return (
        counts.writeStream.format("memory")
        .queryName("windows")
        .outputMode("complete")
        .option("checkpointLocation", str(directory / "checkpoint-read"))
        .trigger(availableNow=True)
        .start()
    )


def _read_back(spark: SparkSession, servers: str) -> pa.Table:
    """All records in the log, with partition and offset."""
    return (
        spark.read.format("brokerd")
        .option("bootstrap.servers", servers)
        .option("subscribe", TOPIC)
        .load()
        .select("key", "value", "partition", "offset")
        .toArrow()
    )


def _watched(query: StreamingQuery, label: str, total_rows: int) -> Timing:
    """Shows a query's progress until it ends. Raises RuntimeError with Spark's reason if it fails."""
    bar = ProgressBar(label, total_rows)
    started = time.monotonic()
    try:
        while query.isActive:
            time.sleep(_POLL_S)
            bar.update(_rows_done(query), time.monotonic() - started)
        query.awaitTermination()  # raises the error that ended it, if any
        seconds = time.monotonic() - started
        bar.update(_rows_done(query), seconds)
        timing = timing_of(query.recentProgress, seconds)
    finally:
        bar.finish()
        query.stop()
    return timing


def _rows_done(query: StreamingQuery) -> int:
    return sum(progress.numInputRows for progress in query.recentProgress)


def _report(verdict: Verdict, written: Timing, read: Timing, windows: pa.Table, ends: dict[int, tuple[int, int]]) -> None:
    order = f"same as the input's for all {verdict.keys:,} keys" if verdict.is_right else f"WRONG for {verdict.wrong_keys:,} keys"
    print()
    print(f"  rows in            {verdict.rows_in:>12,}")
    print(f"  rows out           {verdict.rows_out:>12,}   {'all of them, once' if verdict.is_right else 'NOT WHAT WENT IN'}")
    print(f"  order and bytes    {order}")
    for label, timing in (("written", written), ("read, aggregated", read)):
        for number, line in enumerate(timing.lines()):
            print(f"  {'' if number else label:<19}{line}")
    print(f"  {'':<19}in micro-batches, on this machine alone; written with acks=all: flushed to disk")
    print()
    print(f"  {'partition':<12}{'first offset':>14}{'next offset':>14}")
    for partition, (first, end) in sorted(ends.items()):
        print(f"  {TOPIC}-{partition:<{11 - len(TOPIC)}}{first:>14,}{end:>14,}")
    print("  more offsets than rows: the markers of transactions take offsets, too")
    print()
    print(f"  {'window':<34}{'rows':>12}")
    rows = windows.to_pylist()
    for row in rows[:_WINDOWS_SHOWN]:
        print(f"  {row['from']:%Y-%m-%d %H:%M} - {row['to']:%H:%M}{'':<15}{row['count']:>12,}")
    if len(rows) > _WINDOWS_SHOWN:
        print(f"  and {len(rows) - _WINDOWS_SHOWN} more")
    print()
    print("  next: docs/first-pipeline.md builds a pipeline of your own")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog="Exit code 1 if any check fails.")
    parser.add_argument("--rows", type=int, default=DEFAULT_ROWS, help=f"events to generate (default {DEFAULT_ROWS:,})")
    parser.add_argument("--input", type=Path, help="a .json, .jsonl, .csv or .parquet file to use instead")
    parser.add_argument("--key", help="the column of --input that is the key")
    arguments = parser.parse_args()
    if (arguments.input is None) != (arguments.key is None):
        parser.error("--input and --key belong together")
    if arguments.rows < 1:
        parser.error("--rows must be at least 1")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
