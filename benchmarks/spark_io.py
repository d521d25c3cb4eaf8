"""Spark writing and reading through brokerd, beside a sink that discards rows and a source that generates them, and beside Kafka if
the jars of its connector and a server are given. All use the same rows, session and settings.

The Kafka server creates the topics: it needs auto.create.topics.enable, and num.partitions equal to --partitions.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from benchmarks.environment import KEY_BYTES, KEYS, Server
from benchmarks.measure import CEILING, OURS, Work
from benchmarks.spark_ceiling import DiscardSource, InventSource
from brokerd.datasource.source import BrokerdDataSource

WRITE_GOAL = 0.40
READ_GOAL = 0.65
KAFKA = "kafka"
_ROOT = Path(__file__).resolve().parents[1]
_INPUT_FILES = 4


class Kafka(NamedTuple):
    """A Kafka to compare with: its address, and the jars of Spark's connector (comma-separated)."""

    servers: str
    jars: str


def spark_session(*, kafka: Kafka | None = None, settings: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
    """A session on all cores, whose Python workers import this checkout. They use this interpreter unless the environment names
    another; Spark's default is the `python3` of the PATH. They keep byte code, as for an installed package: otherwise each would
    start a tenth of a second later."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(name, sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    builder = (
        SparkSession.builder.master(f"local[{os.cpu_count()}]")
        .appName("brokerd-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.shuffle.partitions", "2")
    )
    for name, value in {**shipped_settings(), **settings}.items():
        builder = builder.config(name, value)
    if kafka:
        builder = builder.config("spark.jars", kafka.jars)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for source in (BrokerdDataSource, DiscardSource, InventSource):
        spark.dataSource.register(source)
    return spark


def shipped_settings() -> dict[str, str]:
    """The settings of conf/spark-defaults.conf, which users are advised to set."""
    file = _ROOT / "conf" / "spark-defaults.conf"
    lines = file.read_text().splitlines() if file.exists() else []
    return dict(line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))


class SparkWorks:
    """The works of one run."""

    def __init__(
        self,
        spark: SparkSession,
        broker: Server,
        *,
        rows: int,
        value_bytes: int,
        partitions: int,
        directory: str,
        kafka: Kafka | None,
    ) -> None:
        self._spark = spark
        self._broker = broker
        self._rows = rows
        self._value_bytes = value_bytes
        self._partitions = partitions
        self._directory = directory
        self._kafka = kafka
        self._topics: dict[str, str] = {}  # peer -> topic of its last batch write, for the readers
        self._files = f"{directory}/rows"
        self._write_files()
        self._input = spark.read.parquet(self._files).cache()
        self._input.count()

    def works(self) -> list[Work]:
        """Every work of every peer, writers first."""
        peers = [OURS, CEILING, *([KAFKA] if self._kafka else [])]
        actions: list[tuple[str, Callable[[str], float], float]] = [
            ("Spark write batch", self._write_batch, WRITE_GOAL),
            ("Spark write AvailableNow", self._write_stream, WRITE_GOAL),
            ("Spark read batch", self._read_batch, READ_GOAL),
            ("Spark read AvailableNow", self._read_stream, READ_GOAL),
        ]
        size = self._rows * (self._value_bytes + KEY_BYTES)
        return [
            Work(name, peer, lambda _, action=action, peer=peer: action(peer), self._rows, size, goal if peer == OURS else None)  # type: ignore[misc]
            for name, action, goal in actions
            for peer in peers
        ]

    def _write_files(self) -> None:
        """Writes the rows as Parquet files, with text that compresses to half."""
        pieces = ",".join(f"sha2(concat(id, '-{number}'), 512)" for number in range(-(-self._value_bytes // 128)))
        (
            self._spark.range(0, self._rows, 1, _INPUT_FILES)
            .selectExpr(
                f"cast(concat('k', lpad(id % {KEYS}, 7, '0')) as binary) key",
                f"cast(substring(concat({pieces}), 1, {self._value_bytes}) as binary) value",
            )
            .write.option("compression", "none")
            .parquet(self._files)
        )

    def _sink_options(self, peer: str, topic: str) -> tuple[str, dict[str, str]]:
        if peer == CEILING:
            return "discard", {}
        if peer == KAFKA:
            assert self._kafka is not None
            return "kafka", {"kafka.bootstrap.servers": self._kafka.servers, "topic": topic}
        return "brokerd", {"bootstrap.servers": self._broker.address, "topic": topic}

    def _new_topic(self, peer: str) -> str:
        if peer == OURS:
            return self._broker.new_topic(self._partitions)
        return f"bench-{uuid.uuid4().hex[:12]}"

    def _write_batch(self, peer: str) -> float:
        if peer == OURS and peer in self._topics:
            self._broker.delete_topic(self._topics[peer])
        self._topics[peer] = self._new_topic(peer)
        format_, options = self._sink_options(peer, self._topics[peer])
        start = time.perf_counter()
        self._input.write.format(format_).options(**options).mode("append").save()
        return time.perf_counter() - start

    def _write_stream(self, peer: str) -> float:
        topic = self._new_topic(peer)
        format_, options = self._sink_options(peer, topic)
        frame = self._spark.readStream.schema(self._input.schema).parquet(self._files)
        taken = self._run_to_end(frame, format_, options)
        if peer == OURS:
            self._broker.delete_topic(topic)
        return taken

    def _reader(self, peer: str, reader: Any) -> DataFrame:
        if peer == CEILING:
            numbers = {"rows": self._rows, "partitions": self._partitions, "valueBytes": self._value_bytes}
            frame: DataFrame = reader.format("invent").options(**numbers).load()
            return frame
        format_, options = self._sink_options(peer, self._topics[peer])
        del options["topic"]
        given = {**options, "subscribe": self._topics[peer], "startingOffsets": "earliest"}
        frame = reader.format(format_).options(**given).load()
        return frame.select("key", "value")

    def _read_batch(self, peer: str) -> float:
        start = time.perf_counter()
        self._reader(peer, self._spark.read).write.format("noop").mode("overwrite").save()
        return time.perf_counter() - start

    def _read_stream(self, peer: str) -> float:
        return self._run_to_end(self._reader(peer, self._spark.readStream), "noop", {})

    def _run_to_end(self, frame: DataFrame, format_: str, options: dict[str, str]) -> float:
        checkpoint = tempfile.mkdtemp(dir=self._directory)
        start = time.perf_counter()
        query = (
            frame.writeStream.format(format_).options(**options).option("checkpointLocation", checkpoint).trigger(availableNow=True)
        ).start()
        query.awaitTermination()
        taken = time.perf_counter() - start
        seen = sum(progress["numInputRows"] for progress in query.recentProgress)
        if seen != self._rows:
            raise RuntimeError(f"a query over {self._rows} rows saw {seen}")
        shutil.rmtree(checkpoint, ignore_errors=True)
        return taken
