"""How long a streaming query takes from start() to its first row in `foreachBatch`, beside a source that generates its rows.

    python -m benchmarks.first_row [--rounds 5]

Each round starts a Spark session for each source in turn. Cold: its first query. Warm: the median of the next five.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from pyspark.sql import DataFrame, SparkSession

from benchmarks.environment import Broker
from benchmarks.measure import CEILING, OURS, Row, text_table
from benchmarks.source import fill
from benchmarks.spark_io import spark_session

_ROWS = 20
_PARTITIONS = 8
_WARM = 5


def first_row_s(spark: SparkSession, format_: str, options: dict[str, str]) -> float:
    """Seconds from start() to the first row in `foreachBatch`."""
    arrived = threading.Event()

    def take(rows: DataFrame, _batch_id: int) -> None:
        if rows.collect():
            arrived.set()

    frame = spark.readStream.format(format_).options(**options).load()
    with tempfile.TemporaryDirectory() as checkpoint:
        started = time.perf_counter()
        query = frame.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint).start()
        try:
            if not arrived.wait(120):
                raise RuntimeError(f"no row after 120 s: {query.exception()}")
            return time.perf_counter() - started
        finally:
            query.stop()


def session(peer: str, servers: str, topic: str) -> None:
    """Prints the seconds of each query of a new session."""
    spark = spark_session()
    if peer == OURS:
        given = ("brokerd", {"bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"})
    else:
        given = ("invent", {"rows": str(_ROWS), "partitions": "1", "valueBytes": "100"})
    print(*(first_row_s(spark, *given) for _ in range(1 + _WARM)), flush=True)
    spark.stop()


def main() -> int:
    """Measures; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_row", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--session", nargs=3, metavar=("PEER", "SERVERS", "TOPIC"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.session:
        session(*given.session)
        return 0
    seconds: dict[str, list[list[float]]] = {OURS: [], CEILING: []}
    with Broker(None, {}) as broker:
        topic = broker.new_topic(_PARTITIONS)
        fill(broker, topic, _ROWS, 100)
        for _ in range(given.rounds):
            for peer, sessions in seconds.items():
                command = [sys.executable, "-m", "benchmarks.first_row", "--session", peer, broker.address, topic]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                sessions.append([float(one) for one in done.stdout.split()])
                print(peer, *(f"{one:.2f}" for one in sessions[-1]), flush=True)
    rows: list[Row] = [
        {
            "start() to the first row, s": peer,
            "cold": statistics.median(one[0] for one in sessions),
            "warm": statistics.median(second for one in sessions for second in one[1:]),
        }
        for peer, sessions in seconds.items()
    ]
    print(text_table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
