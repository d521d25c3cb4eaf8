"""A Spark driver that does as it is told: one step as a line of JSON on standard input, one response as another on its output.

Needs PySpark alone: it runs in the environment of the system that is attacked. Steps, by "do":

stream     source, files (per micro-batch), checkpoint, format, options, columns[, accident]: files to the sink, until none is left
batch      source, format, options, columns: one batch write
read       format, options, topic (an expression): the values that a reader of committed records sees, each with its topic

An accident is {"kind", "from", "mark"}: it happens once, in the micro-batch that holds row number `from`, upstream of the sink, so
that it is the same for all sinks:

task-fails       the first task has handed all its rows to the sink, and then fails; Spark runs it again
driver-killed    the JVM is killed by SIGKILL when the first task has ended, and the second begins (there is one core)
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

SCHEMA = "key string, value string, topic string, number long"
TASKS = 2
_SLICE_ROWS = 50


def accident(kind: str, first_number: int, mark: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The stage before the sink."""

    def is_first() -> bool:
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def kill_jvm() -> None:
        pid = os.getppid()
        while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(pid, signal.SIGKILL)
        signal.pause()

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        is_there = False
        for batch in batches:
            is_there |= any(number >= first_number for number in batch.column("number").to_pylist())
            if kind == "driver-killed" and is_there and context.partitionId() == TASKS - 1 and is_first():
                kill_jvm()
            for start in range(0, batch.num_rows, _SLICE_ROWS):
                yield batch.slice(start, _SLICE_ROWS)
        if kind == "task-fails" and is_there and context.partitionId() == 0 and is_first():
            raise RuntimeError("the accident that was asked for")

    return stage


class Driver:
    """One session and its steps."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def stream(self, step: dict[str, Any]) -> dict[str, Any]:
        """A query until nothing is left; whether it ended well."""
        rows = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", step["files"]).json(step["source"])
        rows = rows.repartition(TASKS, "key")
        if step.get("accident"):
            made = step["accident"]
            rows = rows.mapInArrow(accident(made["kind"], made["from"], made["mark"]), rows.schema)
        writer = rows.select(*step["columns"]).writeStream.format(step["format"]).options(**step["options"]).outputMode("append")
        writer.option("checkpointLocation", step["checkpoint"]).trigger(availableNow=True).start().awaitTermination()
        return {}

    def batch(self, step: dict[str, Any]) -> dict[str, Any]:
        """One write."""
        rows = self._spark.read.schema(SCHEMA).json(step["source"])
        rows.select(*step["columns"]).write.format(step["format"]).options(**step["options"]).mode("append").save()
        return {}

    def read(self, step: dict[str, Any]) -> dict[str, Any]:
        """Everything that is committed."""
        rows = self._spark.read.format(step["format"]).options(**step["options"]).load()
        found = rows.selectExpr("cast(value as string) as value", f"{step['topic']} as topic").collect()
        return {"rows": [[row.topic, row.value] for row in found]}


def main() -> None:
    """Steps until standard input ends, or the JVM has."""
    settings = json.loads(sys.argv[1])
    builder = SparkSession.builder.master("local[1,4]").appName("exactly once, attacked")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    driver = Driver(spark)
    jvm = spark.sparkContext._jvm  # noqa: SLF001 - nothing public names the process
    assert jvm is not None
    versions = {"spark": spark.version, "jvm_pid": jvm.java.lang.ProcessHandle.current().pid()}
    print(json.dumps(versions), flush=True)
    for line in sys.stdin:
        step = json.loads(line)
        try:
            response = getattr(driver, step["do"])(step)
        except Exception as error:
            response = {"error": str(error)}
        print(json.dumps(response), flush=True)


if __name__ == "__main__":
    main()
