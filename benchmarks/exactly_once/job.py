"""A Spark driver that does as it is told: one step as a line of JSON on standard input, one response as another on its output.

Needs PySpark alone: it runs in the environment of the system that is attacked. Arguments: the master, and Spark's settings as JSON.
Steps, by "do":

stream     source, files (per micro-batch), checkpoint, format, options, columns[, tables][, groups, versions][, accident]: files to
           the sink, until none is left. With tables (topic -> path) the sink is foreachBatch, which writes one after another, each
           micro-batch once; with groups it is foreachBatch, which writes an equal part of the rows after each setJobGroup, with a
           version where the sink asks for one
batch      source, format, options, columns: one batch write
follow     read, checkpoint, path: a query from a topic to files of text, until nothing is left
read       reads, each with format, options, topic (an expression): the values that a reader sees, each with its topic

An accident is {"kind", "from", "until", "mark", "commits"}: it happens once, in the micro-batch that holds rows number `from` to
`until`, and outside of the sink, so that it is the same for all sinks. The file `mark` says that it has been:

task-fails               the first task has handed all its rows to the sink, and then fails; Spark runs it again
driver-killed            the JVM is killed by SIGKILL when the first task has ended, and the second begins (there is one core)
driver-killed-in-commit  likewise, when the sink has committed the micro-batch, and Spark is about to write `commits/N`: Spark then
                         waits for a lock of its own, which is held meanwhile
slow-twin                the first task has handed its rows to the sink, and does not end until the micro-batch is in `commits`;
                         Spark runs a twin of it on another host. `mark` has the host of the first attempt, `mark`.twin that of the
                         other; `mark`.late: the first one was still there after the commit
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

SCHEMA = "key string, value string, topic string, number long"
TASKS = 2
_SLICE_ROWS = 50
_DEADLINE_S = 120

Made = dict[str, Any]  # an accident


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Looks every few milliseconds. Raises TimeoutError."""
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {_DEADLINE_S} s: {what}")
        time.sleep(0.005)


def is_first(made: Made) -> bool:
    """True for one process alone, which makes the mark."""
    try:
        descriptor = os.open(made["mark"], os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    os.write(descriptor, os.environ.get("SPARK_LOCAL_IP", "").encode())
    os.close(descriptor)
    return True


def kill_jvm() -> None:
    """Kills the JVM above a Python worker."""
    pid = os.getppid()
    while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGKILL)
    signal.pause()


def ended(made: Made, batch_id: str) -> None:
    """The first task's accident, after its rows."""
    mark = made["mark"]
    if made["kind"] == "task-fails" and is_first(made):
        raise RuntimeError("the accident that was asked for")
    if made["kind"] == "driver-killed-in-commit" and is_first(made):
        wait_for(Path(f"{mark}.held").exists, "the driver holds Spark's lock")
    if made["kind"] == "slow-twin":
        if is_first(made):
            wait_for(Path(made["commits"], batch_id).exists, "the micro-batch is committed")
            Path(f"{mark}.late").touch()
        else:
            Path(f"{mark}.twin").write_text(os.environ.get("SPARK_LOCAL_IP", ""))


def accident(made: Made) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The stage before the sink."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        is_there = False
        for batch in batches:
            is_there |= any(made["from"] <= number < made["until"] for number in batch.column("number").to_pylist())
            if made["kind"] == "driver-killed" and is_there and task.partitionId() == TASKS - 1 and is_first(made):
                kill_jvm()
            for start in range(0, batch.num_rows, _SLICE_ROWS):
                yield batch.slice(start, _SLICE_ROWS)
        if is_there and task.partitionId() == 0:
            ended(made, task.getLocalProperty("streaming.sql.batchId") or "")

    return stage


class Driver:
    """One session and its steps."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        jvm = spark.sparkContext._jvm  # noqa: SLF001 - nothing public names the process
        assert jvm is not None
        self.jvm_pid = int(jvm.java.lang.ProcessHandle.current().pid())

    def stream(self, step: dict[str, Any]) -> dict[str, Any]:
        """A query until nothing is left."""
        made = step.get("accident")
        rows = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", step["files"]).json(step["source"])
        rows = rows.repartition(TASKS, "key")
        if made and "tables" not in step:
            rows = rows.mapInArrow(accident(made), rows.schema)
        to = self._in_groups if step.get("groups") else self._to_tables if "tables" in step else self._to_sink
        writer = to(rows, step)
        query = writer.option("checkpointLocation", step["checkpoint"]).trigger(availableNow=True).start()
        if made and made["kind"] == "driver-killed-in-commit":
            self._die_after_commit(query, made["mark"])
        query.awaitTermination()
        return {}

    def _to_sink(self, rows: DataFrame, step: dict[str, Any]) -> DataStreamWriter:
        return rows.select(*step["columns"]).writeStream.format(step["format"]).options(**step["options"]).outputMode("append")

    def _to_tables(self, rows: DataFrame, step: dict[str, Any]) -> DataStreamWriter:
        """As Delta's manual says: one application's name and the micro-batch's number make each write idempotent. The accident
        happens in the last of them."""
        last = list(step["tables"])[-1]

        def write(batch: DataFrame, batch_id: int) -> None:
            for topic, path in step["tables"].items():
                part = batch.where(batch.topic == topic)
                if step.get("accident") and topic == last:
                    part = part.mapInArrow(accident(step["accident"]), part.schema)
                options = {"txnAppId": last, "txnVersion": str(batch_id), **step["options"]}
                part.select(*step["columns"]).write.format(step["format"]).options(**options).mode("append").save(path)

        return rows.writeStream.foreachBatch(write)

    def _in_groups(self, rows: DataFrame, step: dict[str, Any]) -> DataStreamWriter:
        """As a program does that shows its writes in Spark's UI, or wants to cancel them."""
        groups = step["groups"]

        def write(batch: DataFrame, batch_id: int) -> None:
            versions = {"txnAppId": "copy", "txnVersion": str(batch_id)} if step["versions"] else {}
            for part, group in enumerate(groups):
                self._spark.sparkContext.setJobGroup(group, "a group of the user's own")
                chosen = batch.where(f"number % {len(groups)} = {part}").select(*step["columns"])
                chosen.write.format(step["format"]).options(**versions, **step["options"]).mode("append").save()

        return rows.writeStream.foreachBatch(write)

    def _die_after_commit(self, query: StreamingQuery, mark: str) -> None:
        """Spark takes this lock when the sink has committed, and writes `commits/N` under it."""
        lock = query._jsq.streamingQuery().awaitProgressLock()  # noqa: SLF001 - no public one
        wait_for(Path(mark).exists, "the first task has ended")
        lock.lock()
        Path(f"{mark}.held").touch()
        wait_for(lock.hasQueuedThreads, "the sink has committed")
        os.kill(self.jvm_pid, signal.SIGKILL)

    def batch(self, step: dict[str, Any]) -> dict[str, Any]:
        """One write."""
        rows = self._spark.read.schema(SCHEMA).json(step["source"])
        rows.select(*step["columns"]).write.format(step["format"]).options(**step["options"]).mode("append").save()
        return {}

    def follow(self, step: dict[str, Any]) -> dict[str, Any]:
        """A query that reads what is attacked."""
        rows = self._spark.readStream.format(step["read"]["format"]).options(**step["read"]["options"]).load()
        writer = rows.selectExpr("cast(value as string) as value").writeStream.format("text")
        writer = writer.option("path", step["path"]).option("checkpointLocation", step["checkpoint"])
        writer.trigger(availableNow=True).start().awaitTermination()
        return {}

    def read(self, step: dict[str, Any]) -> dict[str, Any]:
        """Everything that is there."""
        found = []
        for each in step["reads"]:
            rows = self._spark.read.format(each["format"]).options(**each["options"]).load()
            found += rows.selectExpr("cast(value as string) as value", f"{each['topic']} as topic").collect()
        return {"rows": [[row.topic, row.value] for row in found]}


def main() -> None:
    """Steps until the end of standard input."""
    builder = SparkSession.builder.master(sys.argv[1]).appName("exactly once, attacked")
    for name, value in json.loads(sys.argv[2]).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    driver = Driver(spark)
    print(json.dumps({"spark": spark.version, "jvm_pid": driver.jvm_pid}), flush=True)
    for line in sys.stdin:
        step = json.loads(line)
        try:
            response = getattr(driver, step["do"])(step)
        except Exception as error:
            response = {"error": str(error)}
        print(json.dumps(response), flush=True)


if __name__ == "__main__":
    main()
