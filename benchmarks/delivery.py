"""The cost of exactly once: alternates the same writes with delivery=exactly_once and at_least_once, in one session.

    python -m benchmarks.delivery [--rows 1000000] [--repeats 5] [--batches 60]

Two figures: rows per second of a batch write, and milliseconds of a micro-batch of 20 rows (median of Spark's triggerExecution
without the first ten batches). Exactly once adds to each batch a member, durable before the coordinator responds to it, and a
commit (the record of the decision and a marker in each partition, each synced). Then each of these parts is measured without Spark,
beside an empty call and a synced append to a file.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.environment import Broker
from benchmarks.spark_io import spark_session
from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig, ProducerConfig
from brokerd.producer.core.membership import MemberReport, Membership, TransactionEnd
from brokerd.producer.producer import Producer

CALL = "an empty call"
SYNC = "an append to a file, synced"
ROWS = "rows, acknowledged"
MEMBER_AND_ROWS = "member and rows"
EMPTY_COMMIT = "commit without rows: the decision alone"
COMMIT = "commit: decision and a marker in each partition"
_PARTS = (CALL, SYNC, ROWS, MEMBER_AND_ROWS, EMPTY_COMMIT, COMMIT)
_APPENDED_BYTES = 512
_PART_TURNS = 200
_WARM_TURNS = 20

DELIVERIES = ("at_least_once", "exactly_once")
ROWS_PER_BATCH = 20
_WARM_BATCHES = 10
_PARTITIONS = 4


def rows_of(spark: SparkSession, rows: int) -> DataFrame:
    """Keyed rows of 100 bytes, generated in Spark."""
    return spark.range(rows).selectExpr("string(id % 10000) AS key", "repeat('x', 100) AS value")


def write(frame: DataFrame, servers: str, topic: str, delivery: str) -> float:
    """Seconds of one batch write."""
    writer = frame.write.format("brokerd").option("bootstrap.servers", servers).option("topic", topic)
    started = time.perf_counter()
    writer.option("delivery", delivery).mode("append").save()
    return time.perf_counter() - started


def micro_batches(spark: SparkSession, servers: str, topic: str, delivery: str, batches: int, directory: Path) -> list[float]:
    """Milliseconds of each micro-batch but the first ones."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH).option("numPartitions", 2).load()
    frame = source.selectExpr("string(value) AS key", "string(value) AS value")
    writer = frame.writeStream.format("brokerd").option("bootstrap.servers", servers).option("topic", topic)
    query = writer.option("delivery", delivery).option("checkpointLocation", str(directory)).start()
    try:
        while (last := query.lastProgress) is None or last.batchId < batches:
            if query.exception() is not None:
                raise RuntimeError(str(query.exception()))
            time.sleep(0.05)
        return [float(one.durationMs["triggerExecution"]) for one in query.recentProgress if one.batchId >= _WARM_BATCHES]
    finally:
        query.stop()


# --- the parts, without Spark


class Stopwatch:
    """Collects the times of each part, in ms."""

    def __init__(self) -> None:
        self._taken: dict[str, list[float]] = {part: [] for part in _PARTS}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Times the block."""
        started = time.perf_counter()
        yield
        self._taken[name].append((time.perf_counter() - started) * 1_000)

    def medians(self) -> dict[str, float]:
        """The median of each part, without the first turns."""
        return {part: statistics.median(taken[_WARM_TURNS:]) for part, taken in self._taken.items()}


def measure_parts(servers: str, topic: str) -> dict[str, float]:
    """The median ms of each part."""
    name = f"bench-{uuid.uuid4().hex}"
    records = pa.record_batch({"key": [b"%d" % row for row in range(ROWS_PER_BATCH)], "value": [b"x" * 100] * ROWS_PER_BATCH})
    watch = Stopwatch()
    with (
        BlockingClient(ClientConfig(bootstrap_servers=servers)) as client,
        Producer(ProducerConfig(bootstrap_servers=servers)) as producer,
        tempfile.TemporaryFile() as file,
    ):
        for turn in range(_PART_TURNS + _WARM_TURNS):
            with watch.part(CALL):
                client.metadata([])  # never answered from a cache
            with watch.part(SYNC):
                file.write(b"x" * _APPENDED_BYTES)
                file.flush()
                os.fdatasync(file.fileno())
            with watch.part(ROWS):
                producer.send_batch(topic, records)
                producer.flush()
            with watch.part(MEMBER_AND_ROWS):
                producer.begin_member(Membership(name, 2 * turn, "execution", "run", "benchmark", uuid.uuid4().bytes))
                producer.send_batch(topic, records)
                report = producer.end_member()
            with watch.part(COMMIT):
                client.end_transaction(_commit(name, 2 * turn, report))
            with watch.part(EMPTY_COMMIT):
                client.end_transaction(_commit(name, 2 * turn + 1, None))
    return watch.medians()


def _commit(name: str, version: int, report: MemberReport | None) -> TransactionEnd:
    members = [] if report is None else [report]
    partitions = () if report is None else report.partitions
    return TransactionEnd(name, version, "execution", "run", is_commit=True, members=members, partitions=partitions)


# --- both


def by_turns(repeats: int) -> list[str]:
    """Measures each delivery several times, in alternating order."""
    return [name for turn in range(repeats) for name in (DELIVERIES if turn % 2 == 0 else reversed(DELIVERIES))]


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of a batch write")
    parser.add_argument("--repeats", type=int, default=5, help="turns")
    parser.add_argument("--batches", type=int, default=60, help="micro-batches of a turn")
    given = parser.parse_args()
    spark = spark_session(settings={"spark.sql.streaming.numRecentProgressUpdates": "1000"})
    rates: dict[str, list[float]] = {name: [] for name in DELIVERIES}
    times: dict[str, list[float]] = {name: [] for name in DELIVERIES}
    with Broker(None, {}) as broker, tempfile.TemporaryDirectory(prefix="brokerd-bench-") as directory:
        frame = rows_of(spark, given.rows)
        for name in DELIVERIES:  # warms up
            write(frame, broker.address, broker.new_topic(_PARTITIONS), name)
        for name in by_turns(given.repeats):
            rates[name].append(given.rows / write(frame, broker.address, broker.new_topic(_PARTITIONS), name))
        for turn, name in enumerate(by_turns(given.repeats)):
            where = Path(directory, f"{name}-{turn}")
            times[name] += micro_batches(spark, broker.address, broker.new_topic(_PARTITIONS), name, given.batches, where)
        parts = measure_parts(broker.address, broker.new_topic(_PARTITIONS))
    spark.stop()
    print(f"{'':16}{'rows/s':>12}{'ms/micro-batch':>16}")
    for name in DELIVERIES:
        print(f"{name:16}{statistics.median(rates[name]):12,.0f}{statistics.median(times[name]):16.1f}")
    rate, cost = (statistics.median(of["exactly_once"]) / statistics.median(of["at_least_once"]) for of in (rates, times))
    print(f"{'ratio':16}{rate:12.2f}{cost:16.2f}")
    print(f"\n{f'without Spark, {ROWS_PER_BATCH} rows, {_PARTITIONS} partitions':52}{'ms':>8}")
    for name, ms in parts.items():
        print(f"{name:52}{ms:8.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
