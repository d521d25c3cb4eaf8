"""Reading through Spark: bytes sent for a filter, rows per second by partitions and splits, and latency of an idle query.

    python -m benchmarks.source [--only filters,rates,idle] [--gigabytes 2] [--rows 4000000] [--repeats 3]

filters: bytes that the broker sent (its own counter) for reads of one per cent of a topic. rates: rows per second, alternating with
a source that generates as many rows in as many tasks. idle: CPU time of 20 quiet seconds, and the time from an acknowledged append
to the user's micro-batch.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import re
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.environment import Broker, arrow_batches, cpu_seconds, free_port
from benchmarks.measure import Row, text_table
from benchmarks.spark_io import spark_session
from brokerd import Producer
from brokerd.record.schema import TIMESTAMP

BEGIN_US = 1_767_225_600_000_000  # 2026-01-01 00:00:00Z; one record per millisecond
_PARTITIONS = 8
_FILTER_VALUE_BYTES = 1_000
_RATE_VALUE_BYTES = 100
_QUIET_S = 20.0
_REACTIONS = 20


def timed_batches(rows: int, value_bytes: int) -> Iterator[pa.RecordBatch]:
    """Rows a millisecond apart."""
    first = 0
    for batch in arrow_batches(rows, value_bytes):
        micros = BEGIN_US + np.arange(first, first + batch.num_rows, dtype=np.int64) * 1_000
        first += batch.num_rows
        at = batch.schema.get_field_index(TIMESTAMP.name)
        yield batch.set_column(at, batch.schema.field(at), pa.array(micros).view(TIMESTAMP.type))


def fill(broker: Broker, topic: str, rows: int, value_bytes: int) -> None:
    """Writes the rows, by key."""
    with Producer(bootstrap_servers=broker.address) as producer:
        for batch in timed_batches(rows, value_bytes):
            producer.send_batch(topic, batch)


def sent_bytes(port: int, topic: str) -> int:
    """Bytes of a topic's record batches that the broker has sent."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        found = re.search(rf'^brokerd_topic_bytes_out_total{{.*topic="{topic}".*}} (\S+)$', page.read().decode(), re.MULTILINE)
    return int(float(found[1])) if found else 0


def reader(spark: SparkSession, broker: Broker, topic: str, **options: str | int) -> DataFrame:
    """A batch read of keys and values."""
    frame = spark.read.format("brokerd").option("bootstrap.servers", broker.address).option("subscribe", topic)
    return frame.options(**options).load().select("key", "value")


def run_filters(spark: SparkSession, broker: Broker, metrics_port: int, gigabytes: float) -> list[Row]:
    """Measures the bytes of reads of one per cent."""
    rows = int(gigabytes * 1e9 / _FILTER_VALUE_BYTES)
    topic = broker.new_topic(_PARTITIONS)
    fill(broker, topic, rows, _FILTER_VALUE_BYTES)
    share = rows // _PARTITIONS // 100
    late, later = time_of(rows - rows // 100), time_of(rows // 2)
    middle_end = time_of(rows // 2 + rows // 100)
    end_ms = (BEGIN_US + (rows // 2 + rows // 100) * 1_000) // 1_000
    reads: dict[str, dict[str, str | int]] = {
        "all": {},
        "1 % by offset": {"where": f"offset BETWEEN {50 * share} AND {51 * share - 1}"},
        "1 % by time, the last": {"where": f"timestamp >= '{late}'"},
        "1 % by time, endingTimestamp": {
            "where": f"timestamp >= '{later}' AND timestamp < '{middle_end}'",
            "endingTimestamp": end_ms,
        },
        "1 % by time, no end": {"where": f"timestamp >= '{later}' AND timestamp < '{middle_end}'"},
        "one of 8 partitions": {"where": "partition = 3"},
    }
    told: list[Row] = []
    whole = 0
    for name, options in reads.items():
        before, started = sent_bytes(metrics_port, topic), time.perf_counter()
        count = reader(spark, broker, topic, **options).count()
        moved = sent_bytes(metrics_port, topic) - before
        whole = whole or moved
        told.append(
            {"read": name, "rows": count, "MB": moved / 1e6, "% of all": 100 * moved / whole, "s": time.perf_counter() - started}
        )
    broker.delete_topic(topic)
    return told


def time_of(row: int) -> str:
    """A row's timestamp, as the option `where` accepts it."""
    moment = datetime.datetime.fromtimestamp(BEGIN_US / 1e6, datetime.UTC) + datetime.timedelta(milliseconds=row)
    return moment.isoformat(sep=" ")


def run_rates(spark: SparkSession, broker: Broker, rows: int, repeats: int) -> list[Row]:
    """Measures rows per second by partitions, and by splits of one partition. The generating source makes a key and a value."""
    told: list[Row] = []
    for partitions, tasks in ((1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (1, 4), (2, 8)):
        topic = broker.new_topic(partitions)
        fill(broker, topic, rows, _RATE_VALUE_BYTES)
        options: dict[str, str | int] = {"bootstrap.servers": broker.address, "subscribe": topic}
        if tasks > partitions:
            options["minPartitions"] = tasks
        frames = {
            "all columns": spark.read.format("brokerd").options(**options).load(),
            "key, value": spark.read.format("brokerd").schema("key binary, value binary").options(**options).load(),
            "ceiling": spark.read.format("invent").options(rows=rows, partitions=tasks, valueBytes=_RATE_VALUE_BYTES).load(),
        }
        seconds: dict[str, list[float]] = {name: [] for name in frames}
        for number in range(repeats + 1):
            for name, frame in frames.items():
                started = time.perf_counter()
                frame.write.format("noop").mode("overwrite").save()
                if number:
                    seconds[name].append(time.perf_counter() - started)
        medians = {name: rows / statistics.median(taken) for name, taken in seconds.items()}
        share = 100 * medians["key, value"] / medians["ceiling"]
        told.append({"partitions": partitions, "tasks": tasks, **medians, "key, value of ceiling, %": share})
        broker.delete_topic(topic)
    return told


def run_idle(spark: SparkSession, broker: Broker) -> list[Row]:
    """Measures the latency and the CPU time of an idle query."""
    topic = broker.new_topic(_PARTITIONS)
    arrived = threading.Event()

    def take(rows: DataFrame, _batch_id: int) -> None:
        if rows.collect():  # isEmpty() ends its tasks early, and Spark logs that at length
            arrived.set()

    with tempfile.TemporaryDirectory() as checkpoint, Producer(bootstrap_servers=broker.address, linger_ms=0) as producer:
        producer.send(topic, b"first").result()
        stream = spark.readStream.format("brokerd").option("bootstrap.servers", broker.address).option("subscribe", topic)
        frame = stream.option("startingOffsets", "earliest").load()
        query = frame.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint).start()
        try:
            arrived.wait(120)
            reactions = []
            for number in range(_REACTIONS + 3):
                time.sleep(0.5 + number % 7 / 20)  # appends at different moments of the wait
                arrived.clear()
                producer.send(topic, b"next", partition=number % _PARTITIONS).result()
                acknowledged = time.perf_counter()
                arrived.wait(60)
                reactions.append(time.perf_counter() - acknowledged)
            time.sleep(2)
            driver, daemon = family_s(os.getpid()), broker.child.cpu_seconds()
            time.sleep(_QUIET_S)
            driver, daemon = family_s(os.getpid()) - driver, broker.child.cpu_seconds() - daemon
        finally:
            query.stop()
    broker.delete_topic(topic)
    return [
        {"figure": "append to foreachBatch, median ms", "value": statistics.median(reactions[3:]) * 1e3},
        {"figure": "append to foreachBatch, largest ms", "value": max(reactions[3:]) * 1e3},
        {"figure": "idle: driver and its workers, % of a core", "value": 100 * driver / _QUIET_S},
        {"figure": "idle: daemon, % of a core", "value": 100 * daemon / _QUIET_S},
    ]


def family_s(pid: int) -> float:
    """CPU seconds of a process and its descendants (the JVM and Python workers), except the broker, which is also a child."""
    total, left = 0.0, [pid]
    while left:
        one = left.pop()
        process = Path(f"/proc/{one}")
        with contextlib.suppress(OSError):  # it has ended
            if b"--data-dir" not in (process / "cmdline").read_bytes():
                total += cpu_seconds(one)
                left += [int(child) for task in process.glob("task/*/children") for child in task.read_text().split()]
    return total


def main() -> int:
    """Measures; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.source", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", default="filters,rates,idle")
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data-dir", help="where the broker's files go (default: the system's temporary directory)")
    given = parser.parse_args()
    port = free_port()
    with Broker(given.data_dir, {"metrics.port": str(port)}) as broker:
        spark = spark_session()
        for group in given.only.split(","):
            print(f"{group} (load {os.getloadavg()[0]:.1f}):", flush=True)
            rows = {
                "filters": lambda: run_filters(spark, broker, port, given.gigabytes),
                "rates": lambda: run_rates(spark, broker, given.rows, given.repeats),
                "idle": lambda: run_idle(spark, broker),
            }[group]()
            print(text_table(rows), flush=True)
        spark.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
